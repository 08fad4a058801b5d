//! Gateways that restart, and links that fail.

use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_gate::tunnel::{Limits, Tunnel};

use crate::network::{
    Network, ONE_WAY, PEER, Seeded, UNIX_NANOS, address, connected_pair, hub, hub_address, ms,
    pair, pair_with, terminal, terminal_address,
};

const YEAR: Duration = Duration::from_secs(365 * 86_400);

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
/// starts a handshake, and traffic flows again within 3 s.
#[test]
fn a_clock_that_was_set_back_does_not_end_the_tunnel() {
    let mut network = pair();
    network.run_until(ms(2_000));
    traffic(&mut network, 3);
    let at = network.now;
    network.ends[0].clock_behind = YEAR;
    network.restart(0, terminal());
    traffic(&mut network, 3);
    let answered = network.ends[1].tunnel.statistics();
    assert_eq!(answered.answered_handshakes, 1);
    assert_eq!(answered.sessions_as_initiator, 1);
    for end in [0, 1] {
        let (last, ..) = network.ends[end].delivered.last().expect("payloads");
        assert!(*last >= at + Duration::from_millis(2_500), "{end}");
    }
}

/// Given the same, and a hub that has nothing to send, then its first refusal, 0.3 s after the restart, makes it start a
/// handshake, which takes 0.9 s; a payload of the terminal takes 0.3 s. The refusals are counted for the terminal.
#[test]
fn a_hub_that_sends_nothing_finds_a_terminal_whose_clock_went_back() {
    let mut network = connected_pair();
    network.run_until(ms(5_000));
    network.ends[0].clock_behind = YEAR;
    network.restart(0, terminal());
    while network.now < ms(6_500) {
        network.send(0, PEER, b"payload");
        network.run_until(network.now + Duration::from_millis(50));
    }
    network.run_until(ms(6_550));
    let (first, ..) = network.ends[1].delivered.first().expect("a payload arrives");
    assert!(*first >= ms(6_500), "{first:?}");
    let hub = &network.ends[1].tunnel;
    assert_eq!(hub.statistics().sessions_as_initiator, 1);
    // The second one leaves the terminal 1 s after the first, if it leaves before the session of the hub arrives.
    let outdated = hub.outdated_handshakes(PEER);
    assert!((1..=2).contains(&outdated), "{outdated}");
    assert_eq!(hub.statistics().refused_datagrams, outdated);
    assert_eq!(network.ends[0].tunnel.outdated_handshakes(PEER), 0);
}

/// An authentic handshake initiation of the terminal, a year old, which the hub has not seen.
fn old_initiation(number: u64) -> Vec<u8> {
    let random = Box::new(Seeded(Rng::stream(number, "a year ago")));
    let mut former = Tunnel::new(terminal(), random).expect("distinct keys");
    let mut out = Vec::new();
    former.wake(Instant::START, UNIX_NANOS - YEAR.as_nanos(), &mut out);
    out[0].bytes().to_vec()
}

/// Given a terminal that is gone, when an attacker sends one of its old initiations each 100 ms for 20 s, then the hub sends
/// nothing to the attacker, and to the terminal's last address 5 initiations from 0 s and 5 from 10 s on.
#[test]
fn replays_cause_few_handshakes_and_none_with_the_attacker() {
    let mut network = connected_pair();
    network.set_fate(|_| vec![]);
    network.run_until(ms(10_000));
    for number in 0..200 {
        let answer = network.arrive(1, address("203.0.113.1:1"), &old_initiation(number));
        assert_eq!(answer, None);
        network.run_until(network.now + Duration::from_millis(100));
    }
    let sent: Vec<_> = network.sent.iter().filter(|sent| sent.at >= ms(10_000)).collect();
    assert!(sent.iter().all(|sent| sent.to == terminal_address() && sent.bytes[0] == 1));
    let early = sent.iter().filter(|sent| sent.at < ms(15_000)).count();
    let late = sent.iter().filter(|sent| sent.at >= ms(20_000)).count();
    assert_eq!((sent.len(), early, late), (10, 5, 5));
    assert_eq!(network.ends[1].tunnel.outdated_handshakes(PEER), 200);
}

/// Given traffic with the terminal, when an attacker sends its old initiations, then no handshake begins.
#[test]
fn replays_beside_traffic_start_no_handshake() {
    let mut network = connected_pair();
    traffic(&mut network, 1);
    let start = network.now;
    for number in 0..50 {
        network.arrive(1, address("203.0.113.1:1"), &old_initiation(number));
        traffic(&mut network, 1);
    }
    assert!(network.log(start).iter().all(|&(kind, ..)| kind >= 4));
    assert_eq!(network.ends[1].tunnel.outdated_handshakes(PEER), 50);
}

/// Given a terminal that starts in 1970, whose hub knows its former timestamps and cannot reach it, when its clock is set
/// 10 s later, then its next initiation, within 1.25 s, is accepted: a session after 0.6 s more.
#[test]
fn an_initiation_has_the_clock_of_its_time() {
    let mut network = connected_pair();
    network.set_fate(|sent| {
        let is_initiation_of_hub = sent.from == hub_address() && sent.bytes[0] == 1;
        if is_initiation_of_hub { vec![] } else { vec![ONE_WAY] }
    });
    network.ends[0].clock_behind = Duration::from_nanos(UNIX_NANOS);
    network.restart(0, terminal());
    network.run_until(network.now + Duration::from_secs(10));
    assert!(!network.ends[0].tunnel.has_session(PEER, Instant::from_millis(10_000)));
    assert!(network.ends[1].tunnel.outdated_handshakes(PEER) >= 8);
    network.ends[0].clock_behind = Duration::ZERO;
    network.run_until(network.now + Duration::from_millis(1_850));
    assert!(network.ends[0].tunnel.has_session(PEER, Instant::from_millis(11_850)));
}

/// Given a running terminal whose clock is set back by a year, then its renewals are accepted.
#[test]
fn a_clock_may_go_back_while_the_terminal_runs() {
    let limits = Limits { renew_packets: 60, ..Limits::DEFAULT };
    let mut network = pair_with(limits);
    network.run_until(ms(2_000));
    traffic(&mut network, 5);
    network.ends[0].clock_behind = YEAR;
    let before = network.ends[0].tunnel.statistics().sessions_as_initiator;
    traffic(&mut network, 10);
    let after = network.ends[0].tunnel.statistics().sessions_as_initiator;
    assert!(after >= before + 2, "{before} {after}");
    assert_eq!(network.ends[1].tunnel.outdated_handshakes(PEER), 0);
}
