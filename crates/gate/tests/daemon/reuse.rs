//! Connections with addresses and ports that were used before.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bentpipe_core::time::Instant;
use bentpipe_gate::transparent::{SYN_BYTES_MAX, Syn, raw};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::packet_log::PacketLog;
use bentpipe_sys::tcp_sockets::Version;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, connect, sendto, socket};
use rustix::process::Signal;

use crate::router::{Host, SERVERS, TIMEOUT, until};
use crate::setup::{PROGRAM, Setup, is_possible, pep};
use crate::streams::stress;

/// A SYN that is lost is repeated after 1 s (RFC 6298).
const AT_ONCE: Instant = Instant::from_millis(900);
/// Before a worker that hangs is ended, after 10 s.
const MEANWHILE: Instant = Instant::from_millis(6_000);
/// Those that open connections at the same time, and how many ports each of them has.
const CLIENTS: usize = 16;
const PORTS: usize = 25;

/// A client with a port of its own choice.
fn connect_from(setup: &Setup, port: u16, listener: &TcpListener) -> io::Result<TcpStream> {
    let to = listener.local_addr()?;
    let (family, from): (_, SocketAddr) = if to.is_ipv4() {
        (AddressFamily::INET, ([10, 1, 0, 2], port).into())
    } else {
        (AddressFamily::INET6, ([0xfd01, 0, 0, 0, 0, 0, 0, 2], port).into())
    };
    setup.router.on(Host::Client, || {
        let socket = socket(family, SocketType::STREAM, None)?;
        set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &from)?;
        let stream = TcpStream::from(socket);
        // That of connect(2), too (socket(7)).
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        connect(&stream, &to)?;
        Ok(stream)
    })
}

/// The next connection of a listener, within a limit of time.
fn accept(listener: &TcpListener) -> TcpStream {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout));
    assert_eq!(ready, Ok(1), "no connection arrived");
    let (server, _) = listener.accept().expect("it is there");
    server.set_read_timeout(Some(TIMEOUT)).expect("not zero");
    server
}

/// Opens a connection from a port of the client, which takes no more than a round trip.
fn open_at_once(setup: &Setup, port: u16, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let clock = Clock::start();
    let opened = exchange(setup, port, listener);
    let taken = clock.now();
    assert!(taken < AT_ONCE, "{port}: {taken}");
    opened
}

/// Opens a connection from a port of the client, and sends data both ways.
fn exchange(setup: &Setup, port: u16, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = connect_from(setup, port, listener).expect("the server listens");
    let mut server = accept(listener);
    client.write_all(b"to").expect("it can be written");
    server.read_exact(&mut [0; 2]).expect("the data arrive");
    server.write_all(b"fro").expect("it can be written");
    client.read_exact(&mut [0; 3]).expect("the data arrive");
    (client, server)
}

/// Ends a connection by a FIN of one end, and then one of the other.
fn end(mut first: TcpStream, mut second: TcpStream) {
    first.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(second.read_to_end(&mut Vec::new()).expect("no reset"), 0);
    second.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(first.read_to_end(&mut Vec::new()).expect("no reset"), 0);
}

/// Opens a connection, and ends it. So a leg of the gateway is left in TIME-WAIT: that to the client if the server ends
/// first, otherwise that to the server.
fn use_port(setup: &Setup, port: u16, listener: &TcpListener, server_is_first: bool) {
    let (client, server) = open_at_once(setup, port, listener);
    if server_is_first {
        end(server, client)
    } else {
        end(client, server)
    }
    // What is left of the client's own sockets is not part of the test.
    setup.router.command(Host::Client, "ss -K state time-wait");
}

/// Given ports of a client that are used again at once, whether server or client ended their connections first, and servers
/// with and without timestamps, which Linux requires to open a connection from TIME-WAIT, expect all to be split at once.
#[test]
fn a_port_in_time_wait_is_used_again() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("again");
    let listeners = SERVERS.map(|address| setup.listen(address));
    let mut split = 0;
    // Ports of their own: a leg from TIME-WAIT takes over that the one before had timestamps.
    for (timestamps, ports) in [(1, [5_001, 5_002]), (0, [5_003, 5_004])] {
        let setting = format!("sysctl -qw net.ipv4.tcp_timestamps={timestamps}");
        setup.router.command(Host::Server, &setting);
        for (port, server_is_first) in ports.into_iter().zip([true, false]) {
            for listener in &listeners {
                for _ in 0..3 {
                    use_port(&setup, port, listener, server_is_first);
                    split += 1;
                }
            }
        }
    }
    let state =
        setup.state(|state| state.split_connections == split && state.open_connections == 0);
    assert_eq!((state.unsplit_connections, state.reset_connections), (0, 0));
}

/// Given a connection that the gateway may not split, from a port of which a leg is in TIME-WAIT, expect it to pass at once,
/// with data both ways.
#[test]
fn a_port_in_time_wait_is_used_again_beyond_the_limit() {
    if !is_possible() {
        return;
    }
    let setup = Setup::with("beyond", |plan| pep(plan).connections = 1);
    let listeners = SERVERS.map(|address| setup.listen(address));
    let mut split = 0;
    for (port, server_is_first) in [(5_001, true), (5_002, false)] {
        for listener in &listeners {
            use_port(&setup, port, listener, server_is_first);
            setup
                .state(|state| state.split_connections == split + 1 && state.open_connections == 0);
            let other = setup.pair(listener);
            use_port(&setup, port, listener, server_is_first);
            drop(other);
            split += 2;
            setup.state(|state| state.split_connections == split && state.open_connections == 0);
        }
    }
    let state = setup.state(|state| state.unsplit_connections == 4);
    assert_eq!((state.split_connections, state.reset_connections), (8, 0));
}

/// Given ports of a client of which a leg is in TIME-WAIT, of a daemon that has ended, and another one with more workers, which
/// all hang, so that nothing is held: expect connections from these ports to pass before they are ended. The marks of both
/// daemons differ.
#[test]
fn a_port_in_time_wait_of_an_earlier_daemon_is_used_again() {
    if !is_possible() {
        return;
    }
    let mut setup = Setup::new("earlier");
    let listeners = SERVERS.map(|address| setup.listen(address));
    for listener in &listeners {
        use_port(&setup, 5_001, listener, true);
    }
    setup.state(|state| state.split_connections == 2 && state.open_connections == 0);
    setup.signal(setup.daemon.id(), Signal::TERM);
    setup.daemon.wait().expect("it ends");
    pep(&mut setup.plan).workers = 3;
    setup.daemon = setup.router.start(PROGRAM, &setup.plan);
    for worker in setup.workers() {
        setup.signal(worker, Signal::STOP);
    }
    until(|| !setup.router.gateway("nft list sets inet").contains("tcp expires"));
    for listener in &listeners {
        let clock = Clock::start();
        let (client, server) = exchange(&setup, 5_001, listener);
        assert!(clock.now() < MEANWHILE, "{}", clock.now());
        end(server, client);
    }
}

/// Given three workers, of which the first has ended, and ports of a client whose leg to the server is in TIME-WAIT, expect
/// connections from the ports of the other workers to open at once.
#[test]
fn a_port_in_time_wait_is_used_again_while_a_worker_is_missing() {
    // With all of them for the first worker a test of ten thousand would fail.
    const PORTS: [u16; 9] = [5_001, 5_002, 5_003, 5_004, 5_005, 5_006, 5_007, 5_008, 5_009];
    if !is_possible() {
        return;
    }
    let setup = Setup::with("missing", |plan| pep(plan).workers = 3);
    // Without them Linux opens no leg from TIME-WAIT.
    setup.router.command(Host::Server, "sysctl -qw net.ipv4.tcp_timestamps=0");
    let listener = setup.listen(SERVERS[0]);
    for port in PORTS {
        use_port(&setup, port, &listener, false);
    }
    let split = PORTS.len() as u64;
    setup.state(|state| state.split_connections == split && state.open_connections == 0);
    setup.signal(setup.workers()[0], Signal::KILL);
    setup.workers_state(|workers| !workers.is_splitting);
    let clock = Clock::start();
    let taken = thread::scope(|scope| {
        let open = |port| {
            let client = connect_from(&setup, port, &listener).expect("it opens");
            (client, clock.now())
        };
        let opening = PORTS.map(|port| scope.spawn(move || open(port)));
        opening.map(|client| client.join().expect("no panic").1)
    });
    let at_once = taken.iter().filter(|&&taken| taken < AT_ONCE).count();
    assert!(at_once > 0, "{taken:?}");
}

/// Given ports of a client of which a leg is in TIME-WAIT, and then a daemon that is killed and whose rules are removed, as its
/// unit does, expect connections from these ports to pass at once.
#[test]
fn a_port_in_time_wait_is_used_again_when_the_rules_were_removed() {
    if !is_possible() {
        return;
    }
    let mut setup = Setup::new("removed");
    let listeners = SERVERS.map(|address| setup.listen(address));
    for listener in &listeners {
        use_port(&setup, 5_001, listener, true);
    }
    setup.state(|state| state.split_connections == 2 && state.open_connections == 0);
    let left = || setup.router.gateway("ss -Htn state time-wait sport = 80").lines().count();
    assert_eq!(left(), 2);
    setup.signal(setup.daemon.id(), Signal::KILL);
    assert!(setup.remove().status.success());
    assert_eq!(left(), 0);
    setup.daemon.wait().expect("it ends");
    for listener in &listeners {
        let (client, server) = open_at_once(&setup, 5_001, listener);
        end(server, client);
    }
}

/// Given a server that ended its connection first and does not acknowledge the client's FIN until it is retransmitted, after
/// 200 ms, so that the leg to the server lasts longer than that to the client, expect a connection from the same port to open
/// then, before the client repeats its SYN.
#[test]
fn a_port_is_used_again_before_its_leg_has_ended() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("last-ack");
    for (address, split) in SERVERS.into_iter().zip([2, 4]) {
        let listener = setup.listen(address);
        let (mut client, server) = open_at_once(&setup, 5_001, &listener);
        server.shutdown(Shutdown::Write).expect("it is open");
        assert_eq!(client.read_to_end(&mut Vec::new()).expect("no reset"), 0);
        setup.router.mute(Host::Server, "meta l4proto tcp");
        drop(client);
        until(|| setup.router.gateway("ss -Htn state last-ack").lines().count() == 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                setup.router.unmute(Host::Server);
            });
            let (client, server) = open_at_once(&setup, 5_001, &listener);
            end(server, client);
        });
        setup.state(|state| state.split_connections == split && state.open_connections == 0);
    }
    let state = setup.state(|state| state.split_connections == 4);
    assert_eq!((state.unsplit_connections, state.reset_connections), (0, 0));
}

/// Given a SYN of which a copy arrives when its connection has ended, as a repeated one may that was overtaken by the answer,
/// expect the server to see no other connection.
#[test]
fn a_syn_that_arrives_late_opens_nothing() {
    if !is_possible() {
        return;
    }
    let group = 7;
    let setup = Setup::new("late");
    let listener = setup.listen(SERVERS[0]);
    let chain = "{ type filter hook output priority 0 ; }";
    setup.router.command(Host::Client, "nft add table inet copy");
    setup.router.command(Host::Client, &format!("nft add chain inet copy output {chain}"));
    let rule = format!("tcp flags & (syn | ack) == syn log group {group} queue-threshold 1");
    setup.router.command(Host::Client, &format!("nft add rule inet copy output {rule}"));
    let open = || (PacketLog::open(group, SYN_BYTES_MAX as u32), raw(Version::V4, None));
    let (log, copies) = setup.router.on(Host::Client, open);
    let (log, copies) = (log.expect("a log"), copies.expect("a raw socket"));

    let (client, server) = open_at_once(&setup, 5_001, &listener);
    let mut buffer = [0; PacketLog::buffer_bytes(SYN_BYTES_MAX)];
    let syn = Syn::parse(log.receive(&mut buffer).expect("it was sent"), false).expect("a SYN");
    end(server, client);
    setup.state(|state| state.split_connections == 1 && state.open_connections == 0);
    let to: SocketAddr = ([10, 2, 0, 2], 0).into();
    sendto(&copies, syn.packet(), SendFlags::empty(), &to).expect("it can be sent");
    // The server would accept the other one first.
    let (client, server) = open_at_once(&setup, 5_002, &listener);
    end(server, client);
    let state = setup.state(|state| state.split_connections > 1 && state.open_connections == 0);
    assert_eq!(state.split_connections, 2);
}

/// Given 16 clients that use 25 ports each, one after the other, of a server without timestamps that ends all connections
/// first, and a gateway that splits at most 8 at a time, expect every connection to carry its data. `BENTPIPE_STRESS` times
/// 1,600.
#[test]
fn ports_are_used_again_under_load() {
    if !is_possible() {
        return;
    }
    let setup = Setup::with("load", |plan| pep(plan).connections = 8);
    setup.router.command(Host::Server, "sysctl -qw net.ipv4.tcp_timestamps=0");
    let (count, _) = stress(1_600);
    let listener = setup.listen(SERVERS[0]);
    listener.set_nonblocking(true).expect("a listener");
    let (ends, failures) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let serve = || {
        while !ends.load(Ordering::Relaxed) {
            match listener.accept() {
                // The client sees how it ends.
                Ok((mut server, _)) => drop(answer(&mut server)),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    };
    let open = |client: usize| {
        for number in 0..count / CLIENTS {
            let port = (20_000 + PORTS * client + number % PORTS) as u16;
            let opened = connect_from(&setup, port, &listener);
            if let Err(error) = opened.and_then(ask) {
                failures.lock().expect("no panic").push((port, error));
            }
        }
    };
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(serve)));
        let clients: Vec<_> =
            (0..CLIENTS).map(|client| scope.spawn(move || open(client))).collect();
        clients.into_iter().for_each(|client| client.join().expect("no panic"));
        ends.store(true, Ordering::Relaxed);
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{} of {count}, such as {:?}", failures.len(), failures.first());
    // Some of both kinds.
    setup.state(|state| {
        state.open_connections == 0 && state.split_connections > 0 && state.unsplit_connections > 0
    });
}

fn answer(server: &mut TcpStream) -> io::Result<usize> {
    server.set_read_timeout(Some(TIMEOUT))?;
    server.read_exact(&mut [0; 2])?;
    server.write_all(b"fro")?;
    server.shutdown(Shutdown::Write)?;
    server.read_to_end(&mut Vec::new())
}

fn ask(mut client: TcpStream) -> io::Result<()> {
    client.write_all(b"to")?;
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    if answer == b"fro" { Ok(()) } else { Err(io::Error::other("another answer")) }
}
