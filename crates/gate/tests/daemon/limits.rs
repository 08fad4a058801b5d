//! Connections beyond a limit, and of peers that are gone.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::router::{SERVERS, worker};
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
    // Those for which a worker is late, on a machine that pauses, pass by themselves.
    let state = setup.state(|state| state.open_connections >= 50);
    assert_eq!(state.split_connections, state.open_connections);
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
