//! Peers that change their address.

use bentpipe_core::time::Duration;

use crate::network::{ONE_WAY, PEER, address, connected_pair, hub_address, terminal_address};

/// Given a terminal that moves, when its next packet arrives from there, then the payloads of the hub go there, with no
/// handshake.
#[test]
fn an_authenticated_packet_moves_its_sender() {
    let mut network = connected_pair();
    let elsewhere = address("[2001:db8:7::7]:999");
    network.ends[0].address = elsewhere;
    let start = network.now;
    assert!(network.send(0, PEER, b"from elsewhere"));
    network.run_until(network.now + ONE_WAY);
    assert_eq!(network.ends[1].tunnel.endpoint(PEER), Some(elsewhere));
    assert!(network.send(1, PEER, b"to elsewhere"));
    network.run_until(network.now + ONE_WAY);
    assert_eq!(network.ends[0].payloads(), [b"to elsewhere"]);
    assert!(network.log(start).iter().all(|&(kind, ..)| kind == 4));
}

/// Given packets that are forged, replayed, or older than one from another address, then the endpoint stays.
#[test]
fn other_packets_move_nobody() {
    let mut network = connected_pair();
    let stranger = address("203.0.113.1:1");
    network.set_fate(|_| vec![]);
    assert!(network.send(0, PEER, b"first"));
    let first = network.sent.last().expect("sent").clone();
    assert!(network.send(0, PEER, b"second"));
    let second = network.sent.last().expect("sent").clone();

    let mut forged = second.bytes.clone();
    *forged.last_mut().expect("a tag") ^= 1;
    assert!(network.arrive(1, stranger, &forged).is_none());
    assert_eq!(network.ends[1].tunnel.endpoint(PEER), Some(terminal_address()));

    let elsewhere = address("192.0.2.200:5");
    network.arrive(1, elsewhere, &second.bytes);
    assert_eq!(network.ends[1].tunnel.endpoint(PEER), Some(elsewhere));
    // The packet before it comes late, from the old address; then both are replayed.
    network.arrive(1, terminal_address(), &first.bytes);
    network.arrive(1, stranger, &first.bytes);
    network.arrive(1, stranger, &second.bytes);
    assert_eq!(network.ends[1].tunnel.endpoint(PEER), Some(elsewhere));
    assert_eq!(network.ends[1].payloads(), [&b"second"[..], b"first"]);
}

/// Given a first message that a stranger repeats from its own address before the true one arrives, then the stranger gets
/// the answer, which it cannot use, and neither session nor endpoint go to it; the true handshake succeeds.
#[test]
fn a_repeated_first_message_moves_nobody() {
    let mut network = connected_pair();
    network.restart(0, crate::network::terminal());
    let stranger = address("203.0.113.1:1");
    let before = network.sent.len();
    network.run_until(network.now + Duration::from_millis(1));
    let first = network.sent[before].clone();
    assert_eq!(first.bytes[0], 1);
    assert!(network.arrive(1, stranger, &first.bytes).is_some());
    assert_eq!(network.ends[1].tunnel.endpoint(PEER), Some(terminal_address()));
    network.run_until(network.now + Duration::from_millis(2_500));
    assert_eq!(network.ends[1].tunnel.endpoint(PEER), Some(terminal_address()));
    assert_eq!(network.ends[0].tunnel.endpoint(PEER), Some(hub_address()));
    assert!(network.send(0, PEER, b"up") && network.send(1, PEER, b"down"));
    network.run_until(network.now + ONE_WAY);
    assert_eq!(network.ends[1].payloads(), [b"up"]);
    assert_eq!(network.ends[0].payloads(), [b"down"]);
}

/// Given a packet of the hub that an attacker takes out of the network and sends on from its own address, then the terminal
/// sends its payloads there. It notices 1.5 s later that nothing comes back, and its handshake with the configured address
/// brings the hub back within 3 s.
#[test]
fn a_diverted_peer_comes_back() {
    let mut network = connected_pair();
    network.set_fate(|_| vec![]);
    assert!(network.send(1, PEER, b"diverted"));
    let packet = network.sent.last().expect("sent").clone();
    network.set_fate(|_| vec![ONE_WAY]);
    let attacker = address("203.0.113.1:1");
    network.arrive(0, attacker, &packet.bytes);
    assert_eq!(network.ends[0].tunnel.endpoint(PEER), Some(attacker));
    let start = network.now;
    for _ in 0..60 {
        network.send(0, PEER, b"payload");
        network.run_until(network.now + Duration::from_millis(50));
    }
    assert_eq!(network.ends[0].tunnel.endpoint(PEER), Some(hub_address()));
    let (first, ..) = network.ends[1].delivered[0];
    assert!(first <= start + Duration::from_secs(3), "{first:?}");
}
