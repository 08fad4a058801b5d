//! Two forwarders in network namespaces with a veth pair between them, and real hosts. They take root, and the
//! programs `ip` and `nft`.

mod hosts;
mod marks;
#[path = "../requirements/mod.rs"]
mod requirements;
mod transfers;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use bentpipe_gate::tunnel::Limits;
use bentpipe_sys::clock::Clock;

use crate::hosts::{Hosts, PROGRAMS, settings};
use crate::requirements::is_possible;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Given a TCP connection through the tunnel over a link that loses 1 % in each direction, expect 20 MB to arrive intact in
/// both directions, with IPv4 and with IPv6, losses to be decoded, and super-packets to be written.
#[test]
fn a_connection_passes_intact_over_a_lossy_link() {
    if !is_possible(&PROGRAMS) {
        return;
    }
    let hosts = Hosts::new("lossy", &settings(), Limits::DEFAULT, Some(10));
    const BYTES: usize = 20_000_000;
    let pattern = |seed: u64| {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
    };
    let transfer = |mut stream: TcpStream, own: u64| {
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let mut writer = stream.try_clone().expect("a descriptor");
        thread::scope(|scope| {
            scope.spawn(move || {
                let bytes: Vec<u8> = pattern(own).take(BYTES).collect();
                writer.write_all(&bytes).expect("the peer reads");
            });
            let mut received = vec![0; BYTES];
            stream.read_exact(&mut received).expect("all bytes");
            assert!(received.iter().copied().eq(pattern(1 - own).take(BYTES)), "intact");
        });
    };
    for address in ["10.99.0.2:5000", "[fd99::2]:5000"] {
        let listener = hosts.on(1, || TcpListener::bind(address).expect("an address"));
        thread::scope(|scope| {
            scope.spawn(|| transfer(listener.accept().expect("a connection").0, 1));
            let stream = hosts.on(0, || TcpStream::connect(address).expect("the tunnel"));
            transfer(stream, 0);
        });
    }
    for end in 0..2 {
        let counters = hosts.counters(end);
        assert!(counters.path.code.recovered > 50, "{counters:?}");
        assert!(counters.io.coalesced_packets > 1_000, "{counters:?}");
        assert_eq!(counters.io.rejected_writes, 0);
        serde_json::to_string(&counters).expect("counters are serializable");
    }
}

/// Given datagrams of all sizes up to the MTU of the device, expect each to arrive as it was sent.
#[test]
fn datagrams_of_all_sizes_pass() {
    if !is_possible(&PROGRAMS) {
        return;
    }
    let hosts = Hosts::new("sizes", &settings(), Limits::DEFAULT, None);
    let [a, b] = [0, 1].map(|end| {
        hosts.on(end, || UdpSocket::bind(format!("10.99.0.{}:7000", end + 1)).expect("an address"))
    });
    b.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    for bytes in (0..1_426 - 28).step_by(7).chain([1_426 - 28]) {
        let sent: Vec<u8> = (0..bytes).map(|at| (at * bytes) as u8).collect();
        a.send_to(&sent, "10.99.0.2:7000").expect("a route");
        let mut received = [0; 2_000];
        let length = b.recv(&mut received).expect("a datagram");
        assert_eq!(received[..length], sent);
    }
}

/// Given a forwarder, when it is dropped, then its thread ends at once.
#[test]
fn a_forwarder_ends() {
    if !is_possible(&PROGRAMS) {
        return;
    }
    let hosts = Hosts::new("ends", &settings(), Limits::DEFAULT, None);
    let clock = Clock::start();
    drop(hosts);
    assert!(clock.now().as_nanos() < TIMEOUT.as_nanos() as u64);
}
