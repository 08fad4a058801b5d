//! Gateways that restart, and links that fail.

use bentpipe_core::time::Duration;
use bentpipe_gate::tunnel::Settings;

use crate::network::{
    Network, ONE_WAY, PEER, connected_pair, hub, hub_address, ms, pair, terminal, terminal_address,
};

/// Lets both ends send a number each 50 ms for `seconds`, and keeps none that has no session.
fn traffic(network: &mut Network, seconds: u64) {
    for number in 0..seconds * 20 {
        for end in [0, 1] {
            network.send(end, PEER, &number.to_be_bytes());
        }
        network.run_until(network.now + Duration::from_millis(50));
    }
}

/// Given traffic in both directions over a GEO link, when either end or both restart, at any instant of two seconds, then
/// payloads arrive at both ends again within 3 s.
///
/// A restarted terminal starts a handshake: after 0.9 s both have keys. A restarted hub waits for the terminal, which
/// notices 1.5 s after its last unanswered packet; 0.9 s later both have keys, and a payload of the hub takes 0.3 s. The
/// last answer of the hub before the restart may arrive up to 0.3 s after it.
#[test]
fn traffic_flows_again_within_three_seconds() {
    for (restarts_terminal, restarts_hub) in [(true, false), (false, true), (true, true)] {
        for step in 0..16 {
            let mut network = connected_pair();
            traffic(&mut network, 3);
            network.run_until(network.now + Duration::from_millis(130 * step));
            let at = network.now;
            if restarts_terminal {
                network.restart(0, terminal());
            }
            if restarts_hub {
                network.restart(1, hub());
            }
            network.ends.iter_mut().for_each(|end| end.delivered.clear());
            // What is still in transit belongs to old sessions.
            traffic(&mut network, 3);
            for end in [0, 1] {
                let after = at + Duration::from_millis(301);
                let first =
                    network.ends[end].delivered.iter().find(|delivered| delivered.0 > after);
                let (first, ..) = first.expect("payloads arrive again");
                assert!(*first <= at + Duration::from_secs(3), "{end} {step}: {:?}", *first);
                let settings = network.ends[end].tunnel.statistics();
                assert!(settings.payloads > 0);
            }
        }
    }
}

/// Given a terminal without traffic and a keepalive of 10 s, when the hub restarts, then the hub can reach it again within
/// the 10 s, 1.5 s and a handshake.
#[test]
fn a_keepalive_finds_a_restarted_hub() {
    let mut network = Network::new();
    let mut settings = terminal();
    settings.peers[0].keepalive = Some(Duration::from_secs(10));
    network.add(terminal_address(), settings);
    network.add(hub_address(), hub());
    network.run_until(ms(5_000));
    network.restart(1, hub());
    network.run_until(ms(5_000 + 10_000 + 1_500 + 900));
    assert!(network.send(1, PEER, b"payload"));
    network.run_until(network.now + ONE_WAY);
    assert_eq!(network.ends[0].payloads(), [b"payload"]);
}

/// Given data in one direction only, then keepalives of the receiver, one each 250 ms, show that it lives: no handshake
/// begins.
#[test]
fn one_way_traffic_starts_no_handshake() {
    let mut network = connected_pair();
    let start = network.now;
    for _ in 0..3_000 {
        assert!(network.send(0, PEER, b"data"));
        network.run_until(network.now + Duration::from_millis(20));
    }
    let log = network.log(start);
    assert!(log.iter().all(|&(kind, ..)| kind >= 4));
    let keepalives = log.iter().filter(|&&(_, sender, _)| sender == 1).count();
    // 60 s, 250 ms after a packet that comes up to 20 ms after the last keepalive.
    assert!((220..=240).contains(&keepalives), "{keepalives}");
}

/// Given an outage of 10 s, then payloads after it arrive in the old session at once, and the handshakes begun meanwhile
/// lose none of them.
#[test]
fn an_outage_loses_only_its_own_packets() {
    let mut network = connected_pair();
    network.set_fate(|sent| {
        let is_out = sent.at >= ms(5_000) && sent.at < ms(15_000);
        if is_out { vec![] } else { vec![ONE_WAY] }
    });
    network.run_until(ms(3_000));
    traffic(&mut network, 20);
    network.run_until(network.now + ONE_WAY);
    for end in [0, 1] {
        let payloads = network.ends[end].payloads();
        let numbers =
            payloads.iter().map(|it| u64::from_be_bytes((*it).try_into().expect("8 bytes")));
        // 50 ms each, from 3 s on: those of 5 to 15 s are missing.
        let expected: Vec<_> = (0..40).chain(240..400).collect();
        assert_eq!(numbers.collect::<Vec<_>>(), expected, "{end}");
    }
}

/// Given a terminal whose clock is a year behind after a restart, then the hub refuses its first messages. The hub itself
/// starts a handshake when its payloads are not answered, and traffic flows again within 3 s.
#[test]
fn a_clock_that_was_set_back_does_not_end_the_tunnel() {
    let mut network = pair();
    network.run_until(ms(2_000));
    traffic(&mut network, 3);
    let at = network.now;
    let year = 365 * 86_400 * 1_000_000_000;
    let settings = terminal();
    let behind = Settings { unix_nanos_at_start: settings.unix_nanos_at_start - year, ..settings };
    network.restart(0, behind);
    traffic(&mut network, 3);
    let answered = network.ends[1].tunnel.statistics();
    assert_eq!(answered.answered_handshakes, 1);
    assert_eq!(answered.sessions_as_initiator, 1);
    for end in [0, 1] {
        let (last, ..) = network.ends[end].delivered.last().expect("payloads");
        assert!(*last >= at + Duration::from_millis(2_500), "{end}");
    }
}
