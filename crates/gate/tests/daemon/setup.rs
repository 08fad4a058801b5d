//! A router with a daemon.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use bentpipe_gate::daemon::{Leg, PepPlan, PepWorkers, Plan, Report, State};
use rustix::process::{Pid, Signal, kill_process};

use crate::requirements;
use crate::router::{Host, PROGRAMS, Router, TIMEOUT, until};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_bentpipe-gate");

/// A router with a daemon.
pub(crate) struct Setup {
    pub(crate) router: Router,
    pub(crate) folder: PathBuf,
    pub(crate) plan: Plan,
    pub(crate) daemon: Child,
}

/// Whether this machine can run the tests; a failure where they must run.
pub(crate) fn is_possible() -> bool {
    requirements::is_possible(&PROGRAMS)
}

/// The PEP of a plan.
pub(crate) fn pep(plan: &mut Plan) -> &mut PepPlan {
    plan.pep.as_mut().expect("it has one")
}

impl Setup {
    pub(crate) fn new(test: &str) -> Self {
        Self::with(test, |_| ())
    }

    /// With a change of the plan.
    pub(crate) fn with(test: &str, change: impl FnOnce(&mut Plan)) -> Self {
        Self::on(Router::new(test), test, change)
    }

    /// On a router that is there.
    pub(crate) fn on(router: Router, test: &str, change: impl FnOnce(&mut Plan)) -> Self {
        let folder = std::env::temp_dir().join(format!("bp-{}-{test}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        let mut plan = router.plan(&folder, 200);
        let link = &mut pep(&mut plan).link;
        link.interfaces = vec!["wan0".to_owned()];
        link.tcp = Leg {
            congestion_control: Some("reno".to_owned()),
            send_buffer_bytes: Some(200_000),
            receive_buffer_bytes: Some(200_000),
            not_sent_bytes: Some(65_536),
        };
        change(&mut plan);
        let daemon = router.start(PROGRAM, &plan);
        Self { router, folder, plan, daemon }
    }

    pub(crate) fn listen(&self, address: &str) -> TcpListener {
        let address = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), 80);
        self.router.on(Host::Server, || TcpListener::bind(address).expect("a free port"))
    }

    pub(crate) fn connect(&self, address: &str, port: u16) -> std::io::Result<TcpStream> {
        self.connect_within(address, port, TIMEOUT)
    }

    /// Gives up after this time.
    pub(crate) fn connect_within(
        &self,
        address: &str,
        port: u16,
        timeout: Duration,
    ) -> std::io::Result<TcpStream> {
        let address = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port);
        let stream =
            self.router.on(Host::Client, || TcpStream::connect_timeout(&address, timeout))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(stream)
    }

    /// A client with its server, through the gateway or past it.
    pub(crate) fn pair(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let address = listener.local_addr().expect("it is bound").ip().to_string();
        let client = self.connect(&address, 80).expect("the server listens");
        let (server, from) = listener.accept().expect("the client connects");
        assert_eq!(from, client.local_addr().expect("connected"));
        server.set_read_timeout(Some(TIMEOUT)).expect("not zero");
        (client, server)
    }

    /// Opens connections until data pass. A worker may live for some milliseconds after its daemon, and resets what it
    /// relays when it ends; and a leg that it opened may reach the server before the client's own SYN.
    pub(crate) fn passes(&self, listener: &TcpListener) {
        let address = listener.local_addr().expect("it is bound").ip().to_string();
        listener.set_nonblocking(true).expect("a listener");
        let exchange = || {
            let mut client = self.connect(&address, 80)?;
            client.write_all(b"without")?;
            let own = client.local_addr()?;
            loop {
                let (mut server, from) = match listener.accept() {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        // The client's connection is established: its server's is soon, or it is reset.
                        if let Some(error) = client.take_error()? {
                            return Err(error);
                        }
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    accepted => accepted?,
                };
                server.set_nonblocking(false)?;
                server.set_read_timeout(Some(TIMEOUT))?;
                if from == own && server.read_exact(&mut [0; 7]).is_ok() {
                    server.write_all(b"and back")?;
                    return client.read_exact(&mut [0; 8]);
                }
            }
        };
        while let Err(error) = exchange() {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
        close_waiting(listener);
    }

    /// The counts of the PEP, once a condition on them holds.
    pub(crate) fn state(&self, condition: impl Fn(&Report) -> bool) -> Report {
        let state = self.whole_state(|state| state.pep.as_ref().is_some_and(&condition));
        state.pep.expect("it was there")
    }

    /// The state, once a condition on it holds.
    pub(crate) fn whole_state(&self, condition: impl Fn(&State) -> bool) -> State {
        let file = self.folder.join("state.json");
        let pause = Duration::from_millis(20);
        let mut text = Vec::new();
        for _ in 0..TIMEOUT.as_millis() / pause.as_millis() {
            text = fs::read(&file).unwrap_or_default();
            if let Some(state) = State::parse(&text).ok().filter(&condition) {
                return state;
            }
            std::thread::sleep(pause);
        }
        panic!(
            "the state that was waited for did not come; it is {}",
            String::from_utf8_lossy(&text)
        );
    }

    /// How the workers are.
    pub(crate) fn workers_state(&self, condition: impl Fn(PepWorkers) -> bool) -> PepWorkers {
        let state = self.whole_state(|state| state.pep_workers.is_some_and(&condition));
        state.pep_workers.expect("they were there")
    }

    /// Whether the gateway relays a new connection: then it owns sockets of it.
    pub(crate) fn relays(&self, listener: &TcpListener) -> bool {
        let (_client, _server) = self.pair(listener);
        self.router.gateway("ss -Htn state established").lines().count() > 0
    }

    /// The workers of the daemon.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let pid = self.daemon.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let is_worker = |pid: &&str| {
            let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline"));
            arguments.is_ok_and(|arguments| arguments.ends_with("worker\0"))
        };
        let workers = children.split_whitespace().filter(is_worker);
        workers.map(|pid| pid.parse().expect("a number")).collect()
    }

    /// Removes the rules of a daemon that was killed.
    pub(crate) fn remove(&self) -> Output {
        let text = serde_json::to_vec(&self.plan).expect("a plan");
        let remove = || run(&["plan", "remove"], &text);
        self.router.on(Host::Gateway, remove)
    }

    /// Expects no rule of the daemon, and no file of its state.
    pub(crate) fn expect_nothing_left(&self) {
        let ruleset = self.router.gateway("nft list ruleset");
        assert!(!ruleset.contains("table inet bentpipe "), "{ruleset}");
        for version in ["-4", "-6"] {
            let rules = self.router.gateway(&format!("ip {version} rule"));
            assert!(!rules.contains("lookup 25113"), "{rules}");
            let routes = format!("ip {version} route show table all type local table 25113");
            assert_eq!(self.router.gateway(&routes), "");
        }
        assert!(!self.folder.join("state.json").exists());
    }

    pub(crate) fn signal(&self, pid: u32, signal: Signal) {
        let process = Pid::from_raw(pid.cast_signed()).expect("not zero");
        kill_process(process, signal).expect("it runs");
        if signal == Signal::STOP {
            // Threads on other processors go on until they see it.
            until(|| has_stopped(pid));
        }
    }
}

/// Whether all threads of a process have stopped (proc(5), `/proc/pid/task/tid/stat`).
fn has_stopped(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let mut stats =
        tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("stat")));
    stats.all(|stat| {
        let stat = stat.expect("its state");
        stat.rsplit_once(") ").is_some_and(|(_, after_name)| after_name.starts_with('T'))
    })
}

/// Closes the connections that wait to be accepted.
pub(crate) fn close_waiting(listener: &TcpListener) {
    listener.set_nonblocking(true).expect("a listener");
    while listener.accept().is_ok() {}
    listener.set_nonblocking(false).expect("a listener");
}

impl Drop for Setup {
    fn drop(&mut self) {
        // One that is stopped does not see that its daemon has gone.
        let workers = self.workers();
        let _ = self.daemon.kill();
        for worker in workers.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(worker, Signal::KILL);
        }
        let _ = self.daemon.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs the program with this standard input.
pub(crate) fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads its plan");
    child.wait_with_output().expect("it ends")
}
