//! The daemon on a router between two networks, with real clients and servers. It takes root, and the
//! programs `nft` and `ip`.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use bentpipe_sys::SystemError;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::netns::Namespace;

const TIMEOUT: Duration = Duration::from_secs(10);
const SERVERS: [&str; 2] = ["10.2.0.2", "fd02::2"];

/// Three hosts in a row, and the daemon on the one in the middle.
struct Setup {
    names: [String; 3],
    folder: std::path::PathBuf,
    daemon: Child,
}

/// Returns whether this machine can run the tests; a failure where they must run.
fn is_possible() -> bool {
    let has = |program: &str| Command::new(program).arg("-V").output().is_ok();
    let is_root = rustix::process::getuid().is_root();
    if is_root && has("nft") && has("ip") {
        return true;
    }
    assert!(
        !is_root || std::env::var_os("BENTPIPE_REQUIRE_LABS").is_none(),
        "nft and ip are missing: apt install nftables iproute2"
    );
    eprintln!("skipped: it takes root, and nft and ip (apt install nftables iproute2)");
    false
}

fn ip(arguments: &str) -> Output {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
    output
}

impl Setup {
    fn new(test: &str) -> Self {
        let names = ["c", "g", "s"].map(|host| format!("bp-{}-{test}-{host}", std::process::id()));
        let [client, gateway, server] = &names;
        for name in &names {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        ip(&format!("link add net0 netns {client} type veth peer name lan0 netns {gateway}"));
        ip(&format!("link add net0 netns {server} type veth peer name wan0 netns {gateway}"));
        for (name, device, v4, v6) in [
            (client, "net0", "10.1.0.2/24", "fd01::2/64"),
            (gateway, "lan0", "10.1.0.1/24", "fd01::1/64"),
            (gateway, "wan0", "10.2.0.1/24", "fd02::1/64"),
            (server, "net0", "10.2.0.2/24", "fd02::2/64"),
        ] {
            ip(&format!("-n {name} addr add {v4} dev {device}"));
            ip(&format!("-n {name} addr add {v6} dev {device} nodad"));
            ip(&format!("-n {name} link set {device} up"));
        }
        for (name, network) in [(client, 1), (server, 2)] {
            ip(&format!("-n {name} route add default via 10.{network}.0.1"));
            ip(&format!("-n {name} route add default via fd0{network}::1"));
        }
        let forwarding = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1";
        ip(&format!("netns exec {gateway} {forwarding}"));
        let folder = std::env::temp_dir().join(gateway);
        fs::create_dir(&folder).expect("a new folder");
        let daemon = daemon(gateway, &folder);
        let setup = Self { names, folder, daemon };
        setup.until_alive();
        setup
    }

    fn on<T: Send>(&self, host: usize, act: impl FnOnce() -> T + Send) -> T {
        let open = |path: String| File::open(path).expect("it exists").into();
        let net = open(format!("/run/netns/{}", self.names[host]));
        let namespace = Namespace::from_fds([net, open("/proc/self/ns/mnt".to_owned())]);
        namespace.run(|| Ok::<_, SystemError>(act())).expect("the namespace is entered")
    }

    fn gateway(&self, command: &str) -> String {
        let output = ip(&format!("netns exec {} {command}", self.names[1]));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Waits until new connections are held.
    fn until_alive(&self) {
        until(|| self.gateway("nft list ruleset").contains("expires"));
    }

    fn listen(&self, address: &str) -> TcpListener {
        let address = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), 80);
        self.on(2, || TcpListener::bind(address).expect("a free port"))
    }

    fn connect(&self, address: &str, port: u16) -> std::io::Result<TcpStream> {
        let address = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port);
        let stream = self.on(0, || TcpStream::connect_timeout(&address, TIMEOUT))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(stream)
    }

    /// A client with its server, through the gateway or past it.
    fn pair(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let address = listener.local_addr().expect("it is bound").ip().to_string();
        let client = self.connect(&address, 80).expect("the server listens");
        let (server, from) = listener.accept().expect("the client connects");
        assert_eq!(from, client.local_addr().expect("connected"));
        server.set_read_timeout(Some(TIMEOUT)).expect("not zero");
        (client, server)
    }

    /// Whether the gateway relays a new connection: then it owns sockets of it.
    fn relays(&self, listener: &TcpListener) -> bool {
        let (_client, _server) = self.pair(listener);
        self.gateway("ss -Htn state established").lines().count() > 0
    }

    fn signal(&self, pid: u32, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("not zero");
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// The worker is the only child of the daemon.
    fn worker(&self) -> u32 {
        let pid = self.daemon.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.expect("the daemon runs").trim().parse().expect("one child")
    }
}

fn daemon(gateway: &str, folder: &std::path::Path) -> Child {
    let plan = format!(
        r#"{{"name": "bentpipe", "state_file": "{}/state.json", "user": 65534, "group": 65534,
        "mark": 25113, "route_table": 25113, "inner": ["lan0"], "threads": 1, "connections": 200,
        "connect_limit_ns": 3000000000, "idle_limit_ns": null,
        "client": {{"congestion_control": null, "send_buffer_bytes": null,
                    "receive_buffer_bytes": null, "not_sent_bytes": null}},
        "server": {{"congestion_control": "reno", "send_buffer_bytes": 200000,
                    "receive_buffer_bytes": 200000, "not_sent_bytes": 65536}}}}"#,
        folder.display()
    );
    // Without `ip netns exec` in between, so that signals reach the daemon itself.
    let mut child = Command::new("nsenter")
        .args([&format!("--net=/run/netns/{gateway}"), env!("CARGO_BIN_EXE_bentpipe-gate")])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the daemon starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(plan.as_bytes()).expect("the daemon reads its plan");
    child
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn until(condition: impl Fn() -> bool) {
    let pause = Duration::from_millis(20);
    for _ in 0..TIMEOUT.as_millis() / pause.as_millis() {
        if condition() {
            return;
        }
        thread::sleep(pause);
    }
    panic!("this was waited for in vain");
}

/// Given a gateway, expect data both ways over both versions of IP with the addresses of the ends, a refusal by
/// the server's port to be one at the client, a host that is silent to stay silent, a worker without
/// privileges, and after the end of the daemon nothing left of it.
#[test]
fn connections_are_relayed_and_nothing_remains() {
    if !is_possible() {
        return;
    }
    let mut setup = Setup::new("relay");
    for address in SERVERS {
        let listener = setup.listen(address);
        assert!(setup.relays(&listener), "{address}");
        let (mut client, mut server) = setup.pair(&listener);
        client.write_all(&[3; 1_000_000]).expect("it can be written");
        client.shutdown(std::net::Shutdown::Write).expect("it is open");
        let mut found = Vec::new();
        server.read_to_end(&mut found).expect("no reset");
        assert!(found == [3; 1_000_000]);
        server.write_all(b"and back").expect("it can be written");
        drop(server);
        let mut back = String::new();
        client.read_to_string(&mut back).expect("no reset");
        assert_eq!(back, "and back");
        let refused = setup.connect(address, 81).expect_err("no server is listening");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    let clock = Clock::start();
    let silent: SocketAddr = "10.2.0.99:80".parse().expect("an address");
    let limit = Duration::from_millis(500);
    let error = setup.on(0, || TcpStream::connect_timeout(&silent, limit)).expect_err("no host");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "after {}", clock.now());

    let status = fs::read_to_string(format!("/proc/{}/status", setup.worker())).expect("it runs");
    for line in ["Uid:\t65534", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} in {status}");
    }
    let state = setup.folder.join("state.json");
    until(|| fs::read_to_string(&state).is_ok_and(|text| text.contains("\"refused\":2")));

    setup.signal(setup.daemon.id(), rustix::process::Signal::TERM);
    assert!(setup.daemon.wait().expect("it ends").success());
    assert_eq!(setup.gateway("nft list ruleset"), "");
    for version in ["-4", "-6"] {
        let rules = setup.gateway(&format!("ip {version} rule"));
        assert!(!rules.contains("25113"), "{rules}");
        assert_eq!(
            setup.gateway(&format!("ip {version} route show table all type local table 25113")),
            ""
        );
    }
    assert!(!state.exists());
    assert!(!setup.relays(&setup.listen(SERVERS[0])));
}

/// Given a worker or a daemon that is killed, expect resets of what it relayed, never a FIN, and new
/// connections to pass without it within 3 s.
#[test]
fn new_connections_pass_without_a_gateway_that_died() {
    if !is_possible() {
        return;
    }
    for (test, kills_worker) in [("worker", true), ("daemon", false)] {
        let mut setup = Setup::new(test);
        let listener = setup.listen(SERVERS[0]);
        let (mut client, mut server) = setup.pair(&listener);
        client.write_all(b"half of a").expect("it can be written");
        server.read_exact(&mut [0; 9]).expect("the data arrive");
        let killed = if kills_worker { setup.worker() } else { setup.daemon.id() };
        setup.signal(killed, rustix::process::Signal::KILL);
        let clock = Clock::start();
        setup.daemon.wait().expect("it ends");
        let (mut passing, mut passed) = setup.pair(&listener);
        let taken = clock.now();
        passing.write_all(b"without").expect("it can be written");
        passed.read_exact(&mut [0; 7]).expect("the data arrive");
        // A second for a SYN that was lost in between: the first retransmission (RFC 6298).
        assert!(taken < bentpipe_core::time::Instant::from_millis(4_000), "{test}: {taken}");
        for end in [&mut client, &mut server] {
            let error = end.read(&mut [0; 9]).expect_err("no FIN");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{test}");
        }
    }
}
