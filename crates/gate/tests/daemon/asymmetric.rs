//! Clients whose servers answer them past the gateway.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use bentpipe_core::time::Instant;
use bentpipe_sys::clock::Clock;

use crate::router::{Host, SERVERS};
use crate::setup::{Setup, is_possible, pep};

/// A SYN that is lost is repeated after 1 s (RFC 6298).
const AT_ONCE: Instant = Instant::from_millis(900);
const BYTES: usize = 300_000;

/// A gateway that waits for servers as long as by default.
fn gateway(test: &str) -> Setup {
    Setup::with(test, |plan| pep(plan).connect_limit_ns = 30_000_000_000)
}

/// Opens a connection, sends data both ways, and returns how long it took to open.
fn converse(setup: &Setup, listener: &TcpListener) -> Instant {
    let clock = Clock::start();
    let (mut client, mut server) = setup.pair(listener);
    let taken = clock.now();
    thread::scope(|scope| {
        let sending = scope.spawn(|| client.write_all(&[3; BYTES]));
        let mut found = vec![0; BYTES];
        server.read_exact(&mut found).expect("the data arrive");
        assert!(found == [3; BYTES]);
        sending.join().expect("no panic").expect("it can be written");
    });
    server.write_all(b"and back").expect("it can be written");
    client.read_exact(&mut [0; 8]).expect("the data arrive");
    taken
}

/// Given a server whose packets return past the gateway, expect connections to it to pass unsplit at once, the first of which
/// is held until the client resets what it was answered, a closed port to refuse, and no leg to be left.
#[test]
fn connections_on_an_asymmetric_path_pass_at_once() {
    if !is_possible() {
        return;
    }
    let setup = gateway("asymmetric");
    setup.router.return_past_gateway();
    for address in SERVERS {
        let listener = setup.listen(address);
        for number in 1..=3 {
            let taken = converse(&setup, &listener);
            assert!(taken < AT_ONCE, "{address}, {number}: {taken}");
        }
        let clock = Clock::start();
        let refused = setup.connect(address, 81).expect_err("no server is listening");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(clock.now() < AT_ONCE, "{address}: refused after {}", clock.now());
    }
    let state = setup.state(|state| state.unsplit_connections == 8);
    assert_eq!((state.split_connections, state.open_connections), (2, 0));
    assert_eq!((state.expired_connections, state.reset_connections), (0, 0));
    assert_eq!(setup.router.gateway("ss -Htn state all exclude listening"), "");
}

/// Given such a server, and a client whose firewall lets no reset out, so that it looks as if the server were silent, expect
/// no answer, but the next connection to open at once: the gateway has given up when the client repeated its SYN after 3 s.
#[test]
fn an_asymmetric_path_is_found_without_a_reset() {
    if !is_possible() {
        return;
    }
    let setup = gateway("no-reset");
    setup.router.return_past_gateway();
    setup.router.mute(Host::Client, "tcp flags & rst == rst");
    for (address, unsplit) in SERVERS.into_iter().zip([2, 4]) {
        let listener = setup.listen(address);
        assert_eq!(connect_in_vain(&setup, address, 80), ErrorKind::TimedOut);
        let taken = converse(&setup, &listener);
        assert!(taken < AT_ONCE, "{address}: {taken}");
        let state = setup.state(|state| state.unsplit_connections == unsplit);
        assert_eq!(state.split_connections, unsplit / 2);
    }
}

/// How a connection fails that is given 4.5 s, in which Linux sends its SYN after 1 and 3 s again.
fn connect_in_vain(setup: &Setup, address: &str, port: u16) -> ErrorKind {
    let address = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port);
    let limit = Duration::from_millis(4_500);
    let connect = || TcpStream::connect_timeout(&address, limit).expect_err("it does not open");
    setup.router.on(Host::Client, connect).kind()
}

/// Given a link that is interrupted for 3.5 s while a connection opens, so that its server is silent as on an asymmetric
/// path, expect it to be split when the link is back.
#[test]
fn an_interrupted_link_is_no_asymmetric_path() {
    if !is_possible() {
        return;
    }
    let setup = gateway("outage");
    let listener = setup.listen(SERVERS[0]);
    assert!(setup.relays(&listener));
    setup.router.mute(Host::Server, "meta l4proto tcp");
    thread::scope(|scope| {
        let opening = scope.spawn(|| converse(&setup, &listener));
        thread::sleep(Duration::from_millis(3_500));
        setup.router.unmute(Host::Server);
        let taken = opening.join().expect("no panic");
        assert!(taken > Instant::from_millis(3_000), "{taken}");
    });
    let state = setup.state(|state| state.split_connections == 2 && state.open_connections == 0);
    assert_eq!(state.unsplit_connections, 0);
}

/// Given a silent port of a server that answers at others, and a silent host, expect no answer of both, as without a gateway,
/// the SYN to the host alone to pass, and connections to that server to be split as before.
#[test]
fn silent_servers_stay_silent() {
    if !is_possible() {
        return;
    }
    let silent_host = "10.2.0.9";
    let setup = gateway("silent");
    setup.router.command(Host::Server, &format!("ip addr add {silent_host}/24 dev net0"));
    setup.router.mute(Host::Server, &format!("ip saddr {silent_host}"));
    setup.router.command(Host::Server, "nft add rule inet mute output tcp sport 81 drop");
    let listener = setup.listen(SERVERS[0]);
    thread::scope(|scope| {
        let silent = [(SERVERS[0], 81), (silent_host, 80)];
        let opening = silent.map(|(address, port)| {
            let setup = &setup;
            scope.spawn(move || connect_in_vain(setup, address, port))
        });
        thread::sleep(Duration::from_millis(500));
        assert!(setup.relays(&listener));
        for opening in opening {
            assert_eq!(opening.join().expect("no panic"), ErrorKind::TimedOut);
        }
    });
    assert!(setup.relays(&listener));
    let state = setup.state(|state| state.split_connections == 4);
    assert_eq!((state.unsplit_connections, state.expired_connections), (1, 0));
}
