//! Sessions are renewed before they end, and end.

use bentpipe_core::time::{Duration, Instant};
use bentpipe_gate::tunnel::Limits;

use crate::network::{
    Network, ONE_WAY, PEER, Sent, connected_pair, hub_address, ms, pair, pair_with,
    terminal_address,
};

/// Lets `end` send the numbers `range` in 4 bytes, one each `interval`. Returns how many had no session.
fn send_numbers(
    network: &mut Network,
    end: usize,
    range: std::ops::Range<u32>,
    interval: Duration,
) -> u32 {
    let mut unsent = 0;
    for number in range {
        unsent += u32::from(!network.send(end, PEER, &number.to_be_bytes()));
        network.run_until(network.now + interval);
    }
    unsent
}

fn numbers(network: &Network, end: usize) -> Vec<u32> {
    let number = |payload: &[u8]| u32::from_be_bytes(payload.try_into().expect("4 bytes"));
    network.ends[end].payloads().into_iter().map(number).collect()
}

fn handshakes(network: &Network) -> [u64; 2] {
    [0, 1].map(|end| network.ends[end].tunnel.statistics().sessions_as_initiator)
}

/// Given sessions that are renewed after 10 s, with packets in both directions each 20 ms for 60 s, then all arrive, in
/// sequence. The terminal has a new session each 10.6 s, the age and a round trip: at 0.6, 11.2, 21.8, 32.4, 43.0, 53.6 s.
#[test]
fn a_renewal_by_time_loses_nothing() {
    let limits = Limits {
        renew_after: Duration::from_secs(10),
        end_after: Duration::from_secs(15),
        ..Limits::DEFAULT
    };
    let mut network = pair_with(limits);
    network.run_until(ms(1_000));
    for number in 0..3_000_u32 {
        assert!(network.send(0, PEER, &number.to_be_bytes()));
        assert!(network.send(1, PEER, &number.to_be_bytes()));
        network.run_until(network.now + Duration::from_millis(20));
    }
    assert_eq!(handshakes(&network), [6, 0]);
    network.run_until(network.now + ONE_WAY);
    let expected: Vec<_> = (0..3_000).collect();
    assert!(numbers(&network, 0) == expected && numbers(&network, 1) == expected);
}

/// Given sessions of up to 250 packets that are renewed after 100, with a packet each 10 ms in one direction, then all
/// arrive. Whoever sends, the terminal renews: it counts both directions.
///
/// If the terminal sends, a handshake of 0.6 s follows each 100 packets: one session each 1.6 s, so 18 or 19 in 30 s. If
/// the hub does, the 100th packet arrives 0.3 s later, and the hub has the new keys 0.9 s after that: one each 2.2 s, 13 or
/// 14, of 220 packets.
#[test]
fn a_renewal_by_packets_loses_nothing() {
    for (sender, sessions) in [(0, 18..=19), (1, 13..=14)] {
        let limits = Limits { renew_packets: 100, end_packets: 250, ..Limits::DEFAULT };
        let mut network = pair_with(limits);
        network.run_until(ms(1_000));
        let before = handshakes(&network)[0];
        let interval = Duration::from_millis(10);
        assert_eq!(send_numbers(&mut network, sender, 0..3_000, interval), 0);
        network.run_until(network.now + ONE_WAY);
        assert_eq!(numbers(&network, 1 - sender), (0..3_000).collect::<Vec<_>>());
        let [terminal, hub] = handshakes(&network);
        assert!(sessions.contains(&(terminal - before)) && hub == 0, "{terminal} {hub}");
    }
}

/// Given a responder that is never asked to renew, because its peer's first messages are lost, then it renews itself.
#[test]
fn the_responder_renews_when_the_initiator_does_not() {
    let mut network = connected_pair();
    network.set_fate(|sent| {
        let is_lost = sent.bytes[0] == 1 && sent.from == terminal_address();
        if is_lost { vec![] } else { vec![ONE_WAY] }
    });
    assert_eq!(send_numbers(&mut network, 0, 0..3_000, Duration::from_millis(100)), 0);
    network.run_until(network.now + ONE_WAY);
    assert_eq!(numbers(&network, 1), (0..3_000).collect::<Vec<_>>());
    // 302 s: the first session is the terminal's, those that follow after 130 s, renewed by then at 120 s by their
    // initiator, are the hub's.
    assert_eq!(handshakes(&network), [1, 2]);
}

fn lose_handshakes(sent: &Sent) -> Vec<Duration> {
    if sent.bytes[0] <= 3 { vec![] } else { vec![ONE_WAY] }
}

/// Given that no handshake succeeds any more and sessions of up to 50 packets, then 50 counters of each direction are
/// used, once each, and no packet follows. When handshakes succeed again, payloads do, too, within 1.25 s and a round trip.
#[test]
fn no_counter_is_used_after_the_last_one() {
    let limits = Limits { renew_packets: 25, end_packets: 50, ..Limits::DEFAULT };
    let mut network = pair_with(limits);
    network.run_until(ms(2_000));
    network.set_fate(lose_handshakes);
    // The terminal's confirmation was the first packet of the session.
    let unsent = send_numbers(&mut network, 0, 0..100, Duration::from_millis(20));
    assert_eq!(unsent, 100 - 49);
    let counter = |sent: &Sent| u64::from_be_bytes(sent.bytes[5..13].try_into().expect("8 bytes"));
    let transport = |sent: &&Sent| sent.bytes[0] >= 4 && sent.from == terminal_address();
    let counters: Vec<_> = network.sent.iter().filter(transport).map(counter).collect();
    assert_eq!(counters, (0..50).collect::<Vec<_>>());

    network.set_fate(|_| vec![ONE_WAY]);
    network.run_until(network.now + Duration::from_millis(1_850));
    assert!(network.send(0, PEER, &1_000_u32.to_be_bytes()));
    network.run_until(network.now + ONE_WAY);
    let expected: Vec<_> = (0..49).chain([1_000]).collect();
    assert_eq!(numbers(&network, 1), expected);
}

/// Given that no handshake succeeds any more, then a session of 0.6 s is used until 180.6 s and not after.
#[test]
fn a_session_ends_by_time() {
    let mut network = connected_pair();
    network.set_fate(lose_handshakes);
    network.run_until(ms(180_590));
    assert!(network.send(0, PEER, b"at the end"));
    network.run_until(ms(180_600));
    assert!(!network.send(0, PEER, b"after it"));
    // The hub's session is 0.3 s older: it has ended when the packet arrives.
    network.run_until(ms(182_000));
    assert!(network.ends[1].payloads().is_empty());
    assert!(!network.ends[1].tunnel.has_session(PEER, network.now));
}

/// Given packets that are delayed by 5 s, when the session was renewed meanwhile, then they are still accepted, once; after
/// two more renewals they are not.
#[test]
fn packets_of_the_previous_session_are_accepted() {
    for (renewals, expected) in [(1, 1), (2, 1), (3, 0)] {
        let limits = Limits { renew_packets: 20, end_packets: 1 << 20, ..Limits::DEFAULT };
        let mut network = pair_with(limits);
        network.run_until(ms(2_000));
        network.set_fate(|_| vec![]);
        assert!(network.send(0, PEER, b"delayed"));
        let delayed = network.sent.last().expect("it was sent").clone();
        network.set_fate(|_| vec![ONE_WAY]);
        for renewal in 0..renewals {
            let before = handshakes(&network)[0];
            while handshakes(&network)[0] == before {
                send_numbers(&mut network, 0, renewal..renewal + 1, Duration::from_millis(50));
            }
            // The packet that confirms the new session.
            network.run_until(network.now + ONE_WAY);
        }
        for _ in 0..3 {
            network.arrive(1, delayed.from, &delayed.bytes);
        }
        let delivered = network.ends[1].payloads().iter().filter(|it| **it == b"delayed").count();
        assert_eq!(delivered, expected, "{renewals}");
    }
}

/// Given no payload after the handshake, then nothing is sent, the session is not renewed, and its keys are dropped after
/// 180 s. The next payload starts a handshake.
#[test]
fn an_idle_tunnel_is_silent() {
    let mut network = pair();
    network.run_until(ms(3_600_000));
    assert_eq!(network.log(ms(1_000)), []);
    assert!(network.ends.iter().all(|end| !end.tunnel.has_session(PEER, network.now)));
    assert!(network.ends.iter().all(|end| end.tunnel.next_wake().is_none()));
    assert!(!network.send(0, PEER, b"payload"));
    network.run_until(network.now + Duration::from_millis(600));
    assert!(network.send(0, PEER, b"payload"));
    network.run_until(network.now + ONE_WAY);
    assert_eq!(network.ends[1].payloads(), [b"payload"]);
}

/// Given a keepalive of 25 s, then it is answered at once, and a session exists at any time for an hour.
#[test]
fn keepalives_keep_a_session() {
    let mut network = Network::new();
    let mut terminal = crate::network::terminal();
    terminal.peers[0].keepalive = Some(Duration::from_secs(25));
    network.add(terminal_address(), terminal);
    network.add(hub_address(), crate::network::hub());
    network.run_until(ms(26_000));
    assert_eq!(network.log(ms(10_000)), [(5, 0, 30), (5, 1, 30)]);
    let mut gaps = 0;
    while network.now < Instant::from_millis(3_600_000) {
        network.run_until(network.now + Duration::from_secs(1));
        let [a, b] = [0, 1].map(|end| network.ends[end].tunnel.has_session(PEER, network.now));
        gaps += u32::from(!(a && b));
    }
    // An unused session is not renewed: between the end after 180 s and the next keepalive there may be 25 s without one.
    assert!(gaps <= 20 * 26, "{gaps}");
    assert!(network.sent.iter().filter(|sent| sent.bytes[0] == 1).count() <= 21);
}
