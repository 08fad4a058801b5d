//! The daemon on a router between two networks, with real clients and servers. It takes root, and the
//! programs `nft` and `ip`.

mod router;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use bentpipe_gate::daemon::Leg;
use bentpipe_sys::clock::Clock;

use router::{Host, Router, SERVERS, TIMEOUT, missing, until, worker};

/// A router with a daemon.
struct Setup {
    router: Router,
    folder: PathBuf,
    daemon: Child,
}

/// Returns whether this machine can run the tests; a failure where they must run.
fn is_possible() -> bool {
    let Some(reason) = missing() else { return true };
    let is_root = rustix::process::getuid().is_root();
    assert!(!is_root || std::env::var_os("BENTPIPE_REQUIRE_LABS").is_none(), "{reason}");
    eprintln!("skipped: {reason}");
    false
}

impl Setup {
    fn new(test: &str) -> Self {
        let router = Router::new(test);
        let folder = std::env::temp_dir().join(format!("bp-{}-{test}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        let mut plan = router.plan(&folder, 200);
        plan.link.interfaces = vec!["wan0".to_owned()];
        plan.link.tcp = Leg {
            congestion_control: Some("reno".to_owned()),
            send_buffer_bytes: Some(200_000),
            receive_buffer_bytes: Some(200_000),
            not_sent_bytes: Some(65_536),
        };
        let daemon = router.start(env!("CARGO_BIN_EXE_bentpipe-gate"), &plan);
        Self { router, folder, daemon }
    }

    fn listen(&self, address: &str) -> TcpListener {
        let address = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), 80);
        self.router.on(Host::Server, || TcpListener::bind(address).expect("a free port"))
    }

    fn connect(&self, address: &str, port: u16) -> std::io::Result<TcpStream> {
        let address = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port);
        let stream =
            self.router.on(Host::Client, || TcpStream::connect_timeout(&address, TIMEOUT))?;
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
        self.router.gateway("ss -Htn state established").lines().count() > 0
    }

    fn signal(&self, pid: u32, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("not zero");
        rustix::process::kill_process(pid, signal).expect("it runs");
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
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
    // A connection to the gateway itself is its own.
    let own: SocketAddr = "10.1.0.1:22".parse().expect("an address");
    let bind = || TcpListener::bind(own).expect("a free port");
    let listener = setup.router.on(Host::Gateway, bind);
    let client = setup.connect("10.1.0.1", 22).expect("it listens");
    let (accepted, from) = listener.accept().expect("the client connects");
    assert_eq!(from, client.local_addr().expect("connected"));
    assert_eq!(accepted.local_addr().expect("connected"), own);
    drop((client, accepted));
    let clock = Clock::start();
    let silent: SocketAddr = "10.2.0.99:80".parse().expect("an address");
    let limit = Duration::from_millis(500);
    let error = setup
        .router
        .on(Host::Client, || TcpStream::connect_timeout(&silent, limit))
        .expect_err("no host");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "after {}", clock.now());

    let status =
        fs::read_to_string(format!("/proc/{}/status", worker(&setup.daemon))).expect("it runs");
    for line in ["Uid:\t65534", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} in {status}");
    }
    let state = setup.folder.join("state.json");
    until(|| fs::read_to_string(&state).is_ok_and(|text| text.contains("\"refused\":2")));

    setup.signal(setup.daemon.id(), rustix::process::Signal::TERM);
    assert!(setup.daemon.wait().expect("it ends").success());
    assert_eq!(setup.router.gateway("nft list ruleset"), "");
    for version in ["-4", "-6"] {
        let rules = setup.router.gateway(&format!("ip {version} rule"));
        assert!(!rules.contains("lookup 25113"), "{rules}");
        assert_eq!(
            setup
                .router
                .gateway(&format!("ip {version} route show table all type local table 25113")),
            ""
        );
    }
    assert!(!state.exists());
    assert!(!setup.relays(&setup.listen(SERVERS[0])));
}

/// Given a gateway with interfaces on both sides, expect connections from the link to be relayed, too.
#[test]
fn connections_from_the_link_are_relayed() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("link");
    let island: SocketAddr = "10.1.0.2:80".parse().expect("an address");
    let bind = || TcpListener::bind(island).expect("a free port");
    let listener = setup.router.on(Host::Client, bind);
    let connect = || TcpStream::connect_timeout(&island, TIMEOUT).expect("the server listens");
    let mut client = setup.router.on(Host::Server, connect);
    let (mut server, from) = listener.accept().expect("the client connects");
    assert_eq!(from, client.local_addr().expect("connected"));
    client.write_all(b"from the link").expect("it can be written");
    server.read_exact(&mut [0; 13]).expect("the data arrive");
    assert!(setup.router.gateway("ss -Htn state established").lines().count() > 0);
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
        let killed = if kills_worker { worker(&setup.daemon) } else { setup.daemon.id() };
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
