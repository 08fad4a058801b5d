//! What passes in clear text when the daemon of a tunnel is gone: nothing, unless the tunnel fails open.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bentpipe_core::tunnel::{
    ClassifierSettings, DeliverySettings, QueueSettings, RedundancySettings, SignalSettings,
    TitrationSettings, TunnelSettings,
};
use bentpipe_gate::Network;
use bentpipe_gate::daemon::{FailMode, Plan, State, TunnelPeerPlan, TunnelPlan};
use bentpipe_gate::tunnel::{OsRandom, PrivateKey, keygen};
use rustix::process::{Pid, Signal, kill_process};

use crate::kills::Ended;
use crate::router::{Host, Router, TIMEOUT, until, worker};
use crate::setup::{PROGRAM, is_possible, run};
use crate::streams::stress;

/// Addresses in the networks of the peer. The server has them, and the gateway a default route to it: what misses the tunnel
/// arrives there in clear text.
pub(crate) const BEHIND: [&str; 2] = ["10.9.0.2", "fd09::2"];
const NETWORKS: [&str; 2] = ["10.9.0.0/24", "fd09::/64"];
pub(crate) const PORT: u16 = 4_000;
const CLOSED: [ErrorKind; 2] = [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];

/// A router whose server has the addresses behind the peer, and whose gateway has a default route to it.
pub(crate) fn router(test: &str) -> Router {
    let router = Router::new(test);
    router.on(Host::Server, || {
        ip("addr add 10.9.0.2/32 dev lo");
        ip("addr add fd09::2/128 dev lo nodad");
    });
    router.gateway("ip route add default via 10.2.0.2");
    router.gateway("ip -6 route add default via fd02::2");
    router
}

/// The tunnel of the gateway to the server, with a new key in a folder.
pub(crate) fn tunnel(folder: &Path, fail: FailMode) -> TunnelPlan {
    let key = folder.join("key");
    keygen(&key, &mut OsRandom::new()).expect("a new file");
    TunnelPlan {
        device: "bp0".to_owned(),
        addresses: ["10.99.0.1/24", "fd99::1/64"].map(network).into(),
        listen_address: None,
        listen_port: 51_871,
        private_key: key.display().to_string(),
        outer_mtu_bytes: None,
        fail,
        peers: vec![TunnelPeerPlan {
            name: "peer".to_owned(),
            public_key: PrivateKey::from_bytes([1; 32]).public().to_string(),
            endpoint: Some("10.2.0.2:51871".to_owned()),
            keepalive_ns: None,
            networks: NETWORKS.map(network).into(),
        }],
        settings: settings(),
    }
}

/// A router with a daemon that has a tunnel.
struct Tunneled {
    router: Router,
    folder: PathBuf,
    plan: Plan,
    daemon: Option<Child>,
}

/// Code of 10 % for a link of 1 Gbit/s.
fn settings() -> TunnelSettings {
    TunnelSettings {
        classifier: ClassifierSettings { packet_size_bytes: 0, classes: None, young_bytes: 0 },
        redundancy: RedundancySettings::Fixed { redundancy_ppm: 100_000, window_symbols: 64 },
        overflow: None,
        titration: TitrationSettings::Immediate,
        hold_bytes: 1_000_000,
        queue: QueueSettings {
            rate_bps: 1_000_000_000,
            capacity_bytes: 1_000_000,
            packet_overhead_bytes: 0,
        },
        memory_symbols: 1_024,
        symbol_size_bytes: 1_432,
        density: 15,
        feedback_interval_ns: Some(100_000_000),
        delivery: DeliverySettings::Unordered,
        congestion_signal: SignalSettings::Hidden,
    }
}

pub(crate) fn network(text: &str) -> Network {
    Network::try_from(text.to_owned()).expect("a network")
}

impl Tunneled {
    /// A router whose daemon does not run yet. Nobody answers its handshakes.
    fn new(test: &str, fail: FailMode) -> Self {
        let router = router(test);
        let folder = std::env::temp_dir().join(format!("bp-{}-{test}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        let tunnel = tunnel(&folder, fail);
        let plan = Plan { pep: None, tunnel: Some(tunnel), ..router.plan(&folder, 1) };
        Self { router, folder, plan, daemon: None }
    }

    fn start(&mut self) {
        self.daemon = Some(self.router.start(PROGRAM, &self.plan));
    }

    /// Runs the program on the gateway with a plan until it ends; returns its code and what it printed.
    fn run(&self, arguments: &[&str], plan: &Plan) -> (Option<i32>, String) {
        let text = serde_json::to_vec(plan).expect("a plan");
        let done = self.router.on(Host::Gateway, || run(arguments, &text));
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    }

    fn signal(&self, pid: u32, signal: Signal) {
        kill_process(Pid::from_raw(pid.cast_signed()).expect("not zero"), signal).expect("it runs");
    }

    fn daemon(&self) -> &Child {
        self.daemon.as_ref().expect("it runs")
    }

    fn wait_until_gone(&self) {
        until(|| !self.router.gateway("ip -oneline link").contains("bp0"));
    }

    /// Ends the daemon by a signal, and waits until the device is gone. Returns whether it ended as it should.
    fn end(&mut self, signal: Signal) -> bool {
        let mut daemon = self.daemon.take().expect("it runs");
        self.signal(daemon.id(), signal);
        let status = daemon.wait().expect("it ends");
        self.wait_until_gone();
        status.success()
    }

    /// Kills the worker, and waits until the device is gone. It is started again after [`Tunneled::resume`].
    fn kill_worker(&self) {
        self.signal(self.daemon().id(), Signal::STOP);
        self.signal(worker(self.daemon()), Signal::KILL);
        self.wait_until_gone();
    }

    /// Lets the daemon start the worker again, and waits until it has.
    fn resume(&self) {
        self.signal(self.daemon().id(), Signal::CONT);
        let state = || State::parse(&fs::read(&self.plan.state_file).ok()?).ok()?.tunnel_worker;
        until(|| state().is_some_and(|worker| worker.failures == 1 && worker.missing == 0));
        assert!(self.router.gateway("ip -oneline link").contains("bp0"));
    }

    /// The networks with an unreachable route of the daemon.
    fn closed(&self) -> Vec<String> {
        let show = |version| format!("ip {version} route show type unreachable proto 98");
        let shown = ["-4", "-6"].map(|version| self.router.gateway(&show(version))).concat();
        let network = |line: &str| line.split_whitespace().nth(1).unwrap_or_default().to_owned();
        shown.lines().map(network).collect()
    }

    /// How a connection to an address behind the peer fails. In clear text the server refuses it.
    fn connects(&self, from: Host, address: &str) -> ErrorKind {
        let address = SocketAddr::new(address.parse().expect("an address"), PORT);
        let connected = self.router.on(from, || TcpStream::connect_timeout(&address, TIMEOUT));
        connected.expect_err("no server is listening").kind()
    }

    fn expect_closed(&self) {
        assert_eq!(self.closed(), NETWORKS);
        for (from, address) in senders() {
            let error = self.connects(from, address);
            assert!(CLOSED.contains(&error), "{from:?} to {address}: {error}");
        }
    }

    fn expect_open(&self) {
        assert!(self.closed().is_empty(), "{:?}", self.closed());
        for (from, address) in senders() {
            assert_eq!(self.connects(from, address), ErrorKind::ConnectionRefused, "{from:?}");
        }
    }
}

impl Drop for Tunneled {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            // It may be stopped.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

fn senders() -> impl Iterator<Item = (Host, &'static str)> {
    [Host::Client, Host::Gateway].into_iter().flat_map(|host| BEHIND.map(|address| (host, address)))
}

/// A socket on a host, to or at an address behind the peer.
pub(crate) fn socket(router: &Router, host: Host, address: &str) -> UdpSocket {
    let address = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), PORT);
    router.on(host, || {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        let any = if address.is_ipv6() { any } else { "0.0.0.0:0".parse().expect("an address") };
        let own = if host == Host::Server { address } else { any };
        let socket = UdpSocket::bind(own).expect("a free port");
        socket.set_nonblocking(true).expect("a socket");
        socket
    })
}

/// Given datagrams for the networks of the peer each 5 ms, from a client and the gateway itself, when the worker is killed,
/// and once it is replaced the whole daemon, expect none at the server in clear text, also while they start again. Given an
/// end by a signal, expect no route to be left, and connections to take the default route. `BENTPIPE_STRESS` times as many
/// kills.
#[test]
fn a_killed_tunnel_lets_nothing_pass_in_clear_text() {
    if !is_possible() {
        return;
    }
    let kills = stress(1).0;
    let mut tunneled = Tunneled::new("closed", FailMode::Closed);
    let received = BEHIND.map(|address| socket(&tunneled.router, Host::Server, address));
    let sending: Vec<_> = senders()
        .map(|(host, address)| (socket(&tunneled.router, host, address), address))
        .collect();
    tunneled.expect_open();
    tunneled.start();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for (socket, address) in &sending {
                    let _ = socket.send_to(b"secret", (*address, PORT));
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        // Ends the thread if a check fails, too.
        let _ended = Ended(&is_over);
        for _ in 0..kills {
            tunneled.kill_worker();
            assert_eq!(tunneled.closed(), NETWORKS);
            thread::sleep(Duration::from_millis(100));
            tunneled.resume();
            assert!(!tunneled.end(Signal::KILL));
            assert_eq!(tunneled.closed(), NETWORKS);
            thread::sleep(Duration::from_millis(100));
            tunneled.start();
        }
    });
    for socket in &received {
        let error = socket.recv(&mut [0; 10]).expect_err("no packet passes in clear text");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    assert!(tunneled.end(Signal::TERM));
    tunneled.expect_open();
}

/// Given a tunnel that fails open, expect no unreachable route, and the default route to be taken after a kill of its worker
/// and of the daemon.
#[test]
fn a_tunnel_that_fails_open_closes_nothing() {
    if !is_possible() {
        return;
    }
    let mut tunneled = Tunneled::new("open", FailMode::Open);
    tunneled.start();
    assert!(tunneled.closed().is_empty());
    tunneled.kill_worker();
    tunneled.expect_open();
    tunneled.resume();
    assert!(!tunneled.end(Signal::KILL));
    tunneled.expect_open();
}

/// Given a worker that cannot start threads, expect an end with code 3, and of the unreachable routes those alone that were
/// there before.
#[test]
fn a_start_that_fails_closes_nothing() {
    if !is_possible() {
        return;
    }
    let mut tunneled = Tunneled::new("tno-start", FailMode::Closed);
    // Root, as whom the privileged part runs, is not limited.
    let start = |tunneled: &Tunneled| {
        let arguments = ["--nproc=0", PROGRAM, "plan", "run"];
        tunneled.router.run("prlimit", &arguments, &tunneled.plan).code()
    };
    assert_eq!(start(&tunneled), Some(3));
    tunneled.expect_open();
    tunneled.start();
    assert!(!tunneled.end(Signal::KILL));
    assert_eq!(start(&tunneled), Some(3));
    tunneled.expect_closed();
}

/// Given a killed daemon, expect connections to fail by an ICMP error; expect `remove` to open the networks, and to find nothing
/// the second time.
#[test]
fn remove_opens_what_a_killed_daemon_has_closed() {
    if !is_possible() {
        return;
    }
    let mut tunneled = Tunneled::new("reopen", FailMode::Closed);
    tunneled.start();
    assert!(!tunneled.end(Signal::KILL));
    tunneled.expect_closed();
    for _ in 0..2 {
        let (code, said) = tunneled.run(&["plan", "remove"], &tunneled.plan);
        assert_eq!(code, Some(0), "{said}");
        tunneled.expect_open();
    }
}

/// Given another route to a network that would be used instead of the tunnel's or of the unreachable one, expect a refusal
/// with the fix, and no route and no device to be left.
#[test]
fn other_routes_to_a_network_are_refused() {
    if !is_possible() {
        return;
    }
    let tunneled = Tunneled::new("others", FailMode::Closed);
    for (route, said) in [
        ("-4 route add unreachable 10.9.0.0/24 metric 1", "the other route of metric 1 to it"),
        ("-4 route add 10.9.0.0/24 dev wan0", "remove the other route to it"),
        ("-6 route add unreachable fd09::/64 metric 1025", "the other route of metric 1025 to it"),
        (
            "-6 route add fd09::/64 dev wan0 metric 256",
            "to fix it: ip route del fd09::/64 dev wan0",
        ),
    ] {
        tunneled.router.gateway(&format!("ip {route}"));
        let (code, printed) = tunneled.run(&["plan", "run"], &tunneled.plan);
        assert_eq!(code, Some(3), "{route}: {printed}");
        assert!(printed.contains(said), "{route}: {printed}");
        assert!(tunneled.closed().is_empty(), "{route}");
        assert!(!tunneled.router.gateway("ip -oneline link").contains("bp0"), "{route}");
        tunneled.router.gateway(&format!("ip {}", route.replacen("add", "del", 1)));
    }
}

/// Given a second daemon with the same networks, expect a refusal, and those of the first to stay closed after a kill.
#[test]
fn a_second_daemon_with_the_same_networks_takes_nothing_over() {
    if !is_possible() {
        return;
    }
    let mut tunneled = Tunneled::new("second", FailMode::Closed);
    tunneled.start();
    let mut other = tunneled.plan.clone();
    other.name = "other".to_owned();
    other.state_file = tunneled.folder.join("other.json").display().to_string();
    let tunnel = other.tunnel.as_mut().expect("it has one");
    tunnel.device = "bp1".to_owned();
    tunnel.listen_port = 51_872;
    other.control_file = tunneled.folder.join("other.control").display().to_string();
    let (code, said) = tunneled.run(&["plan", "run"], &other);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("tunnel.networks: 10.9.0.0/24: File exists"), "{said}");
    assert_eq!(tunneled.closed(), NETWORKS);
    assert!(!tunneled.end(Signal::KILL));
    tunneled.expect_closed();
}
