//! Connections through a daemon, and past one that has ended.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use bentpipe_sys::clock::Clock;
use rustix::process::Signal;

use crate::router::{Host, SERVERS, TIMEOUT, until, worker};
use crate::setup::{Setup, is_possible};

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
    until(|| {
        fs::read_to_string(&state).is_ok_and(|text| text.contains("\"refused_connections\":2"))
    });

    setup.signal(setup.daemon.id(), Signal::TERM);
    assert!(setup.daemon.wait().expect("it ends").success());
    setup.expect_nothing_left();
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
/// connections to pass without it within 3 s. Expect another worker in place of one that was killed.
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
        setup.signal(killed, Signal::KILL);
        let clock = Clock::start();
        setup.passes(&listener);
        let taken = clock.now();
        // A second for a SYN that was lost in between: the first retransmission (RFC 6298).
        assert!(taken < bentpipe_core::time::Instant::from_millis(4_000), "{test}: {taken}");
        for end in [&mut client, &mut server] {
            let error = end.read(&mut [0; 9]).expect_err("no FIN");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{test}");
        }
        if kills_worker {
            setup.workers_state(|workers| workers.is_splitting && workers.failures == 1);
            assert!(setup.relays(&listener));
            setup.signal(setup.daemon.id(), Signal::TERM);
        }
        setup.daemon.wait().expect("it ends");
        // The rules of a daemon that was killed remain, without effect, until they are removed. A table of
        // somebody else remains after that. A second time there is nothing to remove.
        setup.router.gateway("nft add table inet bentpipe-other");
        for _ in 0..2 {
            let removed = setup.remove();
            assert!(removed.status.success(), "{removed:?}");
            setup.expect_nothing_left();
        }
        assert!(setup.router.gateway("nft list ruleset").contains("bentpipe-other"));
    }
}

/// Given a plan that is not valid, expect one message with what is wrong, and exit code 2.
#[test]
fn a_plan_that_is_not_valid_is_refused() {
    let leg = r#"{"congestion_control": null, "send_buffer_bytes": null, "receive_buffer_bytes": null,
        "not_sent_bytes": null}"#;
    let names = r#"{"name": "a b", "state_file": "/nonexistent/state", "control_file": "/nonexistent/control", "files": [], "user": 1, "group": 1,
        "metrics_listen": null, "tunnel": null, "pep": {"mark": 6,
        "route_table": 7, "workers": 1, "threads": 1, "connections": 1, "buffer_bytes": 65536, "early_accept": false,
        "connect_limit_ns": 1, "idle_limit_ns": null, "keep_alive_ns": null, "except": {"networks": [], "ports": [], "interfaces": []}, "only": {"networks": [], "ports": [], "interfaces": []},
        "lan": {"interfaces": ["lan0"], "tcp": LEG}, "link": {"interfaces": [], "tcp": LEG}}}"#
        .replace("LEG", leg);
    let cases = [
        ("{", "EOF"),
        (r#"{"speed": 3}"#, "unknown field `speed`"),
        (&names, "letters, digits, _ and -"),
        (&names.replace("a b", "ab").replace("lan0", "lan0\\\""), "no name of an interface"),
        (&names.replace("a b", "ab").replace("\"mark\": 6", "\"mark\": 7"), "no multiple of 2"),
        (
            &names
                .replace("a b", "ab")
                .replace("\"metrics_listen\": null", "\"metrics_listen\": \"0.0.0.0:9100\""),
            "no address of the loopback interface",
        ),
    ];
    for (text, message) in cases {
        for arguments in [["plan", "run"], ["plan", "check"]] {
            let output = crate::setup::run(&arguments, text.as_bytes());
            let printed = String::from_utf8(output.stderr).expect("text");
            assert_eq!(output.status.code(), Some(2), "{printed}");
            assert!(printed.contains(message) && printed.lines().count() == 1, "{printed}");
        }
    }
}

/// Given a daemon that was killed, expect `remove` to leave nothing of it, and a second one to be no error.
#[test]
fn what_a_killed_daemon_left_can_be_removed() {
    if !is_possible() {
        return;
    }
    let mut setup = Setup::new("remove");
    setup.signal(setup.daemon.id(), rustix::process::Signal::KILL);
    setup.daemon.wait().expect("it ends");
    assert!(setup.router.gateway("nft list ruleset").contains("table inet bentpipe"));
    let plan = setup.router.plan(&setup.folder, 200);
    for _ in 0..2 {
        let done =
            setup.router.run(env!("CARGO_BIN_EXE_bentpipe-gate"), &["plan", "remove"], &plan);
        assert!(done.success(), "{done}");
        assert_eq!(setup.router.gateway("nft list ruleset"), "");
        for version in ["-4", "-6"] {
            let rules = setup.router.gateway(&format!("ip {version} rule"));
            assert!(!rules.contains("lookup 25113"), "{rules}");
        }
        assert!(!setup.folder.join("state.json").exists());
    }
}
