//! Workers of a daemon that end, hang or do not start, and what takes their place.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use bentpipe_core::time::Instant;
use bentpipe_sys::clock::Clock;
use rustix::process::Signal;

use crate::router::{SERVERS, until, worker};
use crate::setup::{PROGRAM, Setup, close_waiting, is_possible, pep};

const WORKERS: usize = 3;
/// One of three workers has none of so many connections with a probability of (2/3)^40, below 1e-7.
const CONNECTIONS: usize = 40;
/// More than the buffers between a server and a client that does not read.
const BYTES: usize = 2_000_000;
/// A SYN that was lost is repeated after 1 s and after 3 s (RFC 6298).
const PASSES: Instant = Instant::from_millis(3_000);
const PASSES_AT_LAST: Instant = Instant::from_millis(4_000);
/// The end of the rules, and a quarter of a second until the SYN holder looks; before the end of the handshake's limit, 3 s.
const ACCEPTED_AGAIN: Instant = Instant::from_millis(2_800);
/// Before a client repeats its SYN, after 1 s (RFC 6298).
const HELD_ONCE: Instant = Instant::from_millis(900);
/// Long before a worker that hangs is ended.
const MEANWHILE: Instant = Instant::from_millis(6_000);

/// Three workers, and connections with their servers.
fn with_connections(test: &str) -> (Setup, TcpListener, Vec<(TcpStream, TcpStream)>) {
    let setup = Setup::with(test, |plan| {
        pep(plan).workers = WORKERS;
        pep(plan).connections = 300;
    });
    let listener = setup.listen(SERVERS[0]);
    let pairs: Vec<_> = (0..CONNECTIONS).map(|_| setup.pair(&listener)).collect();
    // What a worker counts after its last report is lost with it.
    setup.state(|state| state.split_connections == CONNECTIONS as u64);
    (setup, listener, pairs)
}

/// The number of connections that a worker relays.
fn connections_of(setup: &Setup, worker: u32) -> usize {
    let legs = setup.router.gateway("ss -Htnp state established");
    legs.matches(&format!("pid={worker},")).count() / 2
}

/// How many of so many new connections are split: then the gateway has their client's address at one end of either leg.
fn split_of(setup: &Setup, listener: &TcpListener, connections: usize) -> usize {
    let pairs: Vec<_> = (0..connections).map(|_| setup.pair(listener)).collect();
    let legs = setup.router.gateway("ss -Htn state established");
    let is_split = |client: &TcpStream| {
        let address = client.local_addr().expect("connected").to_string();
        legs.split_whitespace().filter(|end| *end == address).count() == 2
    };
    pairs.iter().filter(|(client, _)| is_split(client)).count()
}

fn splits(setup: &Setup, listener: &TcpListener) -> bool {
    split_of(setup, listener, 1) == 1
}

/// Sends all to a client that may be reset.
fn send(mut server: &TcpStream, data: &[u8]) -> io::Result<()> {
    server.write_all(data)?;
    server.shutdown(Shutdown::Write)
}

/// Receives up to the end, and compares. Returns the error if there is one.
fn receive(mut client: &TcpStream, data: &[u8]) -> Option<ErrorKind> {
    let mut found = Vec::new();
    let error = client.read_to_end(&mut found).err();
    assert!(data.starts_with(&found), "{} bytes", found.len());
    // A FIN comes behind all data.
    assert!(error.is_some() || found.len() == data.len(), "{} bytes", found.len());
    error.map(|error| error.kind())
}

/// Given three workers with downloads under way, one of which is killed, expect resets of its downloads and of no others,
/// a new connection within 3 s, and another worker in its place with new connections. All are counted.
#[test]
fn one_of_three_workers_that_is_killed_is_replaced_alone() {
    if !is_possible() {
        return;
    }
    let (setup, listener, mut pairs) = with_connections("one");
    let data: Vec<u8> = (0..BYTES).map(|number| (number % 251) as u8).collect();
    let data = &data[..];
    let before = setup.workers();
    let killed = before[1];
    let of_killed = connections_of(&setup, killed);
    assert!((1..CONNECTIONS).contains(&of_killed), "{of_killed}");
    thread::scope(|scope| {
        for (client, server) in &pairs {
            scope.spawn(move || send(server, data));
            client.peek(&mut [0]).expect("the download begins");
        }
        setup.signal(killed, Signal::KILL);
        let clock = Clock::start();
        setup.passes(&listener);
        let taken = clock.now();
        assert!(taken <= PASSES, "{taken}");
        let clients = pairs.iter().map(|(client, _)| scope.spawn(move || receive(client, data)));
        let clients: Vec<_> = clients.collect();
        let ends = clients.into_iter().map(|client| client.join().expect("all arrive"));
        let reset: Vec<_> = ends.flatten().collect();
        assert_eq!(reset, vec![ErrorKind::ConnectionReset; of_killed]);
    });
    let workers = setup.workers_state(|workers| workers.is_splitting && workers.failures > 0);
    assert_eq!((workers.failures, workers.missing), (1, 0));
    let after = setup.workers();
    assert_eq!(after.len(), WORKERS);
    assert!(before.iter().all(|worker| *worker == killed || after.contains(worker)), "{after:?}");
    let new = after.iter().find(|worker| !before.contains(worker)).expect("another one");
    assert!(splits(&setup, &listener));
    pairs.extend((0..CONNECTIONS).map(|_| setup.pair(&listener)));
    assert!(connections_of(&setup, *new) > 0);
    setup.state(|state| state.split_connections >= 2 * CONNECTIONS as u64);
}

/// Given three workers of which one is stopped, as one whose main thread hangs, expect the state to say so, all new connections
/// to open within 4 s, and then some to pass while those of the others are split; data in the connections of the other workers
/// meanwhile, and then resets of its own and another worker in its place.
#[test]
fn one_of_three_workers_that_hangs_is_replaced_alone() {
    if !is_possible() {
        return;
    }
    let (setup, listener, pairs) = with_connections("hangs");
    let stopped = setup.workers()[2];
    let of_stopped = connections_of(&setup, stopped);
    setup.signal(stopped, Signal::STOP);
    let clock = Clock::start();
    thread::scope(|scope| {
        let opened = || (setup.connect(SERVERS[0], 80).map(drop), clock.now());
        let new: Vec<_> = (0..12).map(|_| scope.spawn(opened)).collect();
        let exchanges = pairs.iter().map(|(client, server)| {
            scope.spawn(move || exchange(client, server).map(|()| clock.now()))
        });
        let exchanges: Vec<_> = exchanges.collect();
        for client in new {
            let (opened, taken) = client.join().expect("no panic");
            opened.expect("it opens");
            assert!(taken <= PASSES_AT_LAST, "{taken}");
        }
        let workers = setup.workers_state(|workers| !workers.is_splitting);
        assert_eq!((workers.workers, workers.missing, workers.failures), (3, 1, 0));
        close_waiting(&listener);
        let split = split_of(&setup, &listener, CONNECTIONS);
        assert!((1..CONNECTIONS).contains(&split), "{split}");
        let mut reset = 0;
        for exchange in exchanges {
            match exchange.join().expect("no panic") {
                Ok(taken) => assert!(taken <= MEANWHILE, "{taken}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    reset += 1;
                }
            }
        }
        assert_eq!(reset, of_stopped);
    });
    let workers = setup.workers_state(|workers| workers.is_splitting);
    assert_eq!((workers.missing, workers.failures), (0, 1));
    let after = setup.workers();
    assert!(after.len() == WORKERS && !after.contains(&stopped), "{after:?}");
    // Those that were opened meanwhile.
    close_waiting(&listener);
    assert!(splits(&setup, &listener));
}

/// Sends some bytes to the server, and some back.
pub(crate) fn exchange(mut client: &TcpStream, mut server: &TcpStream) -> io::Result<()> {
    client.write_all(b"to")?;
    server.read_exact(&mut [0; 2])?;
    server.write_all(b"fro")?;
    client.read_exact(&mut [0; 3])
}

/// Given a worker that goes on before it is taken for hung, expect it to keep its connections and to split new ones.
#[test]
fn a_worker_that_goes_on_is_kept() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("goes-on");
    let listener = setup.listen(SERVERS[0]);
    let (client, server) = setup.pair(&listener);
    let worker = setup.workers()[0];
    setup.signal(worker, Signal::STOP);
    let workers = setup.workers_state(|workers| !workers.is_splitting);
    assert_eq!((workers.missing, workers.failures), (1, 0));
    setup.signal(worker, Signal::CONT);
    exchange(&client, &server).expect("it goes on");
    let workers = setup.workers_state(|workers| workers.is_splitting);
    assert_eq!((workers.missing, workers.failures), (0, 0));
    assert_eq!(setup.workers(), [worker]);
    assert!(splits(&setup, &listener));
}

/// Given a privileged part that is stopped for longer than a worker may be silent, expect new connections to pass within
/// 4 s; when it goes on, expect the worker and its connection to be as before, and new connections to be split.
#[test]
fn a_pause_of_the_privileged_part_ends_no_worker() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("pause");
    let listener = setup.listen(SERVERS[0]);
    let (client, server) = setup.pair(&listener);
    let workers = setup.workers();
    setup.signal(setup.daemon.id(), Signal::STOP);
    let clock = Clock::start();
    // After the lease.
    thread::sleep(Duration::from_secs(2));
    assert!(!splits(&setup, &listener));
    let taken = clock.now();
    assert!(taken <= PASSES_AT_LAST, "{taken}");
    thread::sleep(Duration::from_secs(9));
    exchange(&client, &server).expect("the worker serves");
    setup.signal(setup.daemon.id(), Signal::CONT);
    // The rules are renewed by the reports that wait.
    until(|| splits(&setup, &listener));
    let state = setup.workers_state(|workers| workers.is_splitting);
    assert_eq!((state.missing, state.failures), (0, 0));
    assert_eq!(setup.workers(), workers);
    exchange(&client, &server).expect("the worker serves");
}

/// Given workers that may not start threads, expect the daemon to end with code 3 instead of starting others, and nothing
/// to be left.
#[test]
fn workers_that_cannot_start_end_the_daemon() {
    if !is_possible() {
        return;
    }
    let mut setup = Setup::new("no-start");
    setup.signal(setup.daemon.id(), Signal::TERM);
    setup.daemon.wait().expect("it ends");
    // Root, as whom the privileged part runs, is not limited.
    let status = setup.router.run("prlimit", &["--nproc=0", PROGRAM, "plan", "run"], &setup.plan);
    assert_eq!(status.code(), Some(3));
    setup.expect_nothing_left();
}

/// Given a SYN that is lost between the SYN holder and the relay, and then a daemon that hangs, so that the rules expire: the
/// client's own SYN passes to its server, which answers the leg. Expect the SYN to go on to the relay again, and the client to
/// be accepted as soon as that.
#[test]
#[ignore = "measures times, so nothing may run beside it: make test-real-time"]
fn a_lost_syn_goes_on_again_when_the_rules_have_expired() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("handed");
    let listener = setup.listen(SERVERS[0]);
    assert!(setup.relays(&listener));
    setup.router.gateway("nft add table ip lossy");
    let chain = "{ type filter hook prerouting priority -400 ; }";
    setup.router.gateway(&format!("nft add chain ip lossy in {chain}"));
    setup.router.gateway("nft add rule ip lossy in iifname lo tcp dport 80 drop");
    let clock = Clock::start();
    thread::scope(|scope| {
        let client = scope.spawn(|| setup.connect(SERVERS[0], 80).expect("it is accepted"));
        // The leg is open, and the SYN was lost.
        let (_server, _) = listener.accept().expect("the leg");
        setup.signal(setup.daemon.id(), Signal::STOP);
        thread::sleep(Duration::from_millis(1_500));
        setup.router.gateway("nft delete table ip lossy");
        client.join().expect("no panic");
    });
    setup.signal(setup.daemon.id(), Signal::CONT);
    assert!(clock.now() <= ACCEPTED_AGAIN, "{:?}", clock.now());
}

/// Given rules that are renewed, and a worker that hears of it 0.2 s later, expect a SYN that was held in the meantime not to
/// be lost: its client is accepted before it repeats it.
#[test]
#[ignore = "measures times, so nothing may run beside it: make test-real-time"]
fn a_syn_waits_for_a_worker_that_does_not_know_yet_that_it_is_held() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("early");
    let listener = setup.listen(SERVERS[0]);
    let (daemon, worker) = (setup.daemon.id(), worker(&setup.daemon));
    assert!(setup.relays(&listener));
    setup.signal(daemon, Signal::STOP);
    until(|| !setup.router.gateway("nft list set inet bentpipe alive_0").contains("expires"));
    // The worker's own lease is over as well.
    thread::sleep(Duration::from_millis(100));
    setup.signal(worker, Signal::STOP);
    setup.signal(daemon, Signal::CONT);
    until(|| setup.router.gateway("nft list set inet bentpipe alive_0").contains("expires"));
    let clock = Clock::start();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            setup.signal(worker, Signal::CONT);
        });
        assert!(setup.relays(&listener));
    });
    assert!(clock.now() < HELD_ONCE, "{:?}", clock.now());
}
