//! Connections beyond a limit, of peers that are gone, and with addresses and ports that were used before.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use bentpipe_sys::clock::Clock;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::router::{Host, SERVERS, TIMEOUT, worker};
use crate::setup::{Setup, is_possible, pep};

/// Given two connections at most, expect the third to pass unsplit, with data both ways, and one after it to be
/// relayed when there is room.
#[test]
fn connections_beyond_the_limit_pass_unsplit() {
    if !is_possible() {
        return;
    }
    let setup = Setup::with("limit", |plan| pep(plan).connections = 2);
    for (address, split) in SERVERS.into_iter().zip([3, 6]) {
        let listener = setup.listen(address);
        let legs = || setup.router.gateway("ss -Htn state established").lines().count();
        let relayed = [setup.pair(&listener), setup.pair(&listener)];
        assert_eq!(legs(), 4, "{address}");
        let (mut client, mut server) = setup.pair(&listener);
        assert_eq!(legs(), 4, "{address}");
        client.write_all(b"to").expect("it can be written");
        server.read_exact(&mut [0; 2]).expect("the data arrive");
        server.write_all(b"fro").expect("it can be written");
        client.read_exact(&mut [0; 3]).expect("the data arrive");
        drop((relayed, client, server));
        setup.state(|state| (state.split_connections, state.open_connections) == (split - 1, 0));
        assert!(setup.relays(&listener), "{address}");
        setup.state(|state| (state.split_connections, state.open_connections) == (split, 0));
    }
    let state = setup.state(|state| state.split_connections == 6);
    assert_eq!((state.unsplit_connections, state.max_open_connections), (2, 2));
    assert_eq!((state.refused_connections, state.expired_connections), (0, 0));
}

/// Given a gateway that accepts early, expect a closed port to reset the client after it was accepted, a silent host
/// to do so when the limit for the server is over, and data that the client sent at once to arrive.
#[test]
fn early_accept_answers_before_the_server() {
    if !is_possible() {
        return;
    }
    let setup = Setup::with("early", |plan| pep(plan).early_accept = true);
    for address in SERVERS {
        // The reset may come before the client looks.
        let refused = setup.connect(address, 81).and_then(|client| read(&client));
        let error = refused.expect_err("no server is listening");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let listener = setup.listen(address);
        let (mut client, mut server) = setup.pair(&listener);
        client.write_all(b"to").expect("it can be written");
        server.read_exact(&mut [0; 2]).expect("the data arrive");
    }
    let silent = setup.connect("10.2.0.99", 80).expect("it is accepted early");
    let error = read(&silent).expect_err("no host");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let state = setup.state(|state| state.expired_connections == 1);
    assert_eq!((state.split_connections, state.refused_connections), (5, 2));
}

/// Reads a byte; a read with a time limit may be interrupted.
fn read(mut stream: &TcpStream) -> std::io::Result<usize> {
    loop {
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// A client with a port of its own choice.
fn connect_from(setup: &Setup, from: SocketAddr, to: SocketAddr) -> TcpStream {
    let open = || {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        set_socket_reuseaddr(&socket, true).expect("a socket");
        bind(&socket, &from).expect("the port is free");
        connect(&socket, &to).expect("the server listens");
        TcpStream::from(socket)
    };
    let stream = setup.router.on(Host::Client, open);
    stream.set_read_timeout(Some(TIMEOUT)).expect("not zero");
    stream
}

/// Given a connection that the server ended first, so that the gateway's leg to the client is left in TIME-WAIT, and
/// then one with the same addresses and ports, expect it to be relayed at once. The same if the client ends first
/// and its own TIME-WAIT is over, where the leg to the server is left.
#[test]
fn addresses_and_ports_are_used_again() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("again");
    let listener = setup.listen(SERVERS[0]);
    let to = listener.local_addr().expect("it is bound");
    // SYNs that arrive before the worker knows that the rules hold them are lost, and repeated after 1 s.
    assert!(setup.relays(&listener));
    let mut split = 1;
    setup.state(|state| (state.split_connections, state.open_connections) == (split, 0));
    for (port, server_is_first) in [(5_001, true), (5_002, false)] {
        let from: SocketAddr = ([10, 1, 0, 2], port).into();
        for round in 1..=3 {
            let clock = Clock::start();
            let mut client = connect_from(&setup, from, to);
            let (mut server, address) = listener.accept().expect("the client connects");
            assert_eq!(address, from);
            client.write_all(b"to").expect("it can be written");
            server.read_exact(&mut [0; 2]).expect("the data arrive");
            let taken = clock.now();
            assert!(
                taken < bentpipe_core::time::Instant::from_millis(900),
                "{port}, {round}: {taken}"
            );
            let (first, mut second) =
                if server_is_first { (server, client) } else { (client, server) };
            first.shutdown(std::net::Shutdown::Write).expect("it is open");
            assert_eq!(second.read(&mut [0; 1]).expect("no reset"), 0);
            second.shutdown(std::net::Shutdown::Write).expect("it is open");
            let mut first = first;
            assert_eq!(first.read(&mut [0; 1]).expect("no reset"), 0);
            drop((first, second));
            split += 1;
            setup.state(|state| (state.split_connections, state.open_connections) == (split, 0));
            // What is left of the client's own sockets is not part of the test.
            setup.router.on(Host::Client, || {
                let kill = ["ss", "-K", "state", "time-wait"];
                std::process::Command::new(kill[0]).args(&kill[1..]).output().expect("ss runs");
            });
        }
    }
    let state = setup.state(|state| state.split_connections == 7);
    assert_eq!((state.unsplit_connections, state.reset_connections), (0, 0));
}

/// Given a keep-alive time of 100 s and an idle limit of a second, expect a timer of that kind on both legs, and a
/// reset of a connection without data after the limit.
#[test]
fn idle_connections_are_probed_and_reset() {
    if !is_possible() {
        return;
    }
    let setup = Setup::with("idle", |plan| {
        pep(plan).keep_alive_ns = Some(100_000_000_000);
        pep(plan).idle_limit_ns = Some(1_000_000_000);
    });
    let listener = setup.listen(SERVERS[0]);
    let (mut client, _server) = setup.pair(&listener);
    let legs = setup.router.gateway("ss -Htno state established");
    assert_eq!(legs.matches("timer:(keepalive,1min").count(), 2, "{legs}");
    let error = client.read(&mut [0]).expect_err("no FIN");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    setup.state(|state| state.timed_out_connections == 1 && state.open_connections == 0);
}

/// Given three workers with two connections each, expect six connections at least to be relayed in all of them or to
/// pass, with data both ways, and all to be reported.
#[test]
fn several_workers_share_the_connections() {
    if !is_possible() {
        return;
    }
    let setup = Setup::with("workers", |plan| {
        pep(plan).workers = 3;
        pep(plan).mark = 25_112;
        pep(plan).connections = 300;
    });
    let listener = setup.listen(SERVERS[0]);
    let mut pairs: Vec<_> = (0..60).map(|_| setup.pair(&listener)).collect();
    for (client, server) in &mut pairs {
        client.write_all(b"to").expect("it can be written");
        server.read_exact(&mut [0; 2]).expect("the data arrive");
    }
    let state = setup.state(|state| state.open_connections == 60);
    assert_eq!((state.split_connections, state.unsplit_connections), (60, 0));
    let of_workers = setup.workers().iter().filter(|worker| sockets_of(**worker) > 20).count();
    // With 60 connections one of three gets none with a probability of (2/3)^60, below 1e-9.
    assert_eq!(of_workers, 3);
    drop(pairs);
    setup.state(|state| state.open_connections == 0);
}

/// The sockets that a process has open.
fn sockets_of(pid: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// Given the worker's descriptors while a connection is idle, expect two more than without it.
#[test]
fn an_idle_connection_has_two_descriptors() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("two");
    let listener = setup.listen(SERVERS[0]);
    let worker = worker(&setup.daemon);
    let open = || std::fs::read_dir(format!("/proc/{worker}/fd")).expect("it runs").count();
    // The first one leaves a spare pipe.
    let mut pairs = Vec::new();
    let mut before = 0;
    for number in 0..11 {
        let (mut client, mut server) = setup.pair(&listener);
        client.write_all(b"to").expect("it can be written");
        server.read_exact(&mut [0; 2]).expect("the data arrive");
        server.write_all(b"fro").expect("it can be written");
        client.read_exact(&mut [0; 3]).expect("the data arrive");
        pairs.push((client, server));
        if number == 0 {
            before = open();
        }
    }
    // The sockets to servers were there before, or are part of a group that was asked for since.
    let grown = open().saturating_sub(before);
    assert!(grown <= 20 + 64, "{grown} for 10");
    let pipes = std::fs::read_dir(format!("/proc/{worker}/fd")).expect("it runs");
    let is_pipe = |path: std::path::PathBuf| path.to_string_lossy().starts_with("pipe:");
    let count = pipes
        .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
        .filter(|path| is_pipe(path.clone()))
        .count();
    assert!(count <= 4, "{count}");
}
