//! Whatever a network does with datagrams, each payload is delivered as it was sent, at most once.

use std::collections::BTreeSet;

use bentpipe_core::rng::Rng;
use bentpipe_core::time::Duration;
use bentpipe_gate::tunnel::{Limits, Settings};
use proptest::prelude::*;

use crate::network::{
    Network, ONE_WAY, PEER, address, hub_address, ms, settings, terminal_address,
};

/// What happens in 10 to 400 ms.
#[derive(Clone, Debug)]
enum Step {
    /// An end sends some payloads at once.
    Send(usize, u8),
    /// An attacker sends one of the last datagrams to an end, from some address.
    Replay(usize, u8),
    /// The terminal moves.
    Roam(u8),
    /// An end restarts.
    Restart(usize),
    /// Nothing.
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<(Step, u64)>> {
    let step = prop_oneof![
        12 => (0..2_usize, 1..20_u8).prop_map(|(end, count)| Step::Send(end, count)),
        3 => (0..2_usize, any::<u8>()).prop_map(|(end, which)| Step::Replay(end, which)),
        1 => (0..4_u8).prop_map(Step::Roam),
        1 => (0..2_usize).prop_map(Step::Restart),
        2 => Just(Step::Wait),
    ];
    prop::collection::vec((step, 10..400_u64), 1..120)
}

/// Probabilities of loss and of a second copy in percent, and the greatest delay in milliseconds.
type Path = (u64, u64, u64);

fn impaired(seed: u64, (loss, copies, delay): Path) -> Network {
    let mut network = Network::new();
    let limits = Limits { renew_packets: 40, end_packets: 400, ..Limits::DEFAULT };
    for end in [0, 1] {
        network.add(
            [terminal_address(), hub_address()][end],
            Settings { limits, ..own_settings(end) },
        );
    }
    let mut rng = Rng::stream(seed, "path");
    network.set_fate(move |_| {
        let mut delays = Vec::new();
        if rng.below(100) >= loss {
            delays.push(Duration::from_millis(1 + rng.below(delay)));
        }
        if rng.below(100) < copies {
            delays.push(Duration::from_millis(1 + rng.below(2 * delay)));
        }
        delays
    });
    network
}

/// Both know the other's address at first, so handshakes of both cross.
fn own_settings(end: usize) -> Settings {
    if end == 0 {
        settings("terminal", &[("hub", Some(hub_address()))])
    } else {
        Settings { ..settings("hub", &[("terminal", Some(terminal_address()))]) }
    }
}

proptest! {
    // Each case is up to a minute of virtual time with dozens of handshakes.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 8,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn payloads_are_delivered_at_most_once(
        seed: u64,
        path in (0..40_u64, 0..30_u64, 2..900_u64),
        steps in steps(),
    ) {
        let mut network = impaired(seed, path);
        let mut sent = [BTreeSet::new(), BTreeSet::new()];
        let mut number = 0_u32;
        for (step, pause) in steps {
            match step {
                Step::Send(end, count) => for _ in 0..count {
                    number += 1;
                    if network.send(end, PEER, &number.to_be_bytes()) {
                        sent[end].insert(number.to_be_bytes().to_vec());
                    }
                },
                Step::Replay(end, which) => {
                    if let Some(past) = network.sent.iter().rev().nth(usize::from(which)).cloned() {
                        network.arrive(end, address("203.0.113.1:1"), &past.bytes);
                    }
                }
                Step::Roam(host) => {
                    network.ends[0].address = address(&format!("192.0.2.{}:4000", 100 + host));
                }
                Step::Restart(end) => network.restart(end, own_settings(end)),
                Step::Wait => {}
            }
            network.run_until(network.now + Duration::from_millis(pause));
        }
        for end in [0, 1] {
            let mut delivered = BTreeSet::new();
            for payload in network.ends[end].payloads() {
                prop_assert!(sent[1 - end].contains(payload), "never sent: {payload:?}");
                prop_assert!(delivered.insert(payload.to_vec()), "delivered twice: {payload:?}");
            }
        }
        // When the network works again, traffic flows within 3 s, where the terminal is found: it sends, too.
        network.set_fate(|_| vec![ONE_WAY]);
        network.run_until(network.now + Duration::from_millis(2_000));
        network.ends.iter_mut().for_each(|end| end.delivered.clear());
        for _ in 0..60 {
            network.send(0, PEER, b"after");
            network.send(1, PEER, b"after");
            network.run_until(network.now + Duration::from_millis(50));
        }
        network.run_until(network.now + ONE_WAY);
        for end in &network.ends {
            prop_assert!(end.payloads().contains(&&b"after"[..]));
        }
    }
}

/// Given 10 % losses, copies and delays of up to 400 ms, with renewals each 40 packets, then all payloads whose datagram
/// arrived are delivered: the sessions lose none.
#[test]
fn sessions_lose_nothing_that_arrives() {
    let limits = Limits { renew_packets: 40, end_packets: 4_000, ..Limits::DEFAULT };
    let mut network = crate::network::pair_with(limits);
    network.run_until(ms(2_000));
    let mut rng = Rng::stream(5, "path");
    let arriving = std::rc::Rc::new(std::cell::Cell::new([0_u32; 2]));
    let counts = arriving.clone();
    network.set_fate(move |sent| {
        if rng.below(10) == 0 {
            return vec![];
        }
        if sent.bytes[0] == 4 {
            let mut now = counts.get();
            now[usize::from(sent.from == terminal_address())] += 1;
            counts.set(now);
        }
        let delay = Duration::from_millis(1 + rng.below(400));
        if rng.below(10) == 0 { vec![delay, delay + ONE_WAY] } else { vec![delay] }
    });
    for number in 0..5_000_u32 {
        for end in [0, 1] {
            assert!(network.send(end, PEER, &number.to_be_bytes()));
        }
        network.run_until(network.now + Duration::from_millis(10));
    }
    network.run_until(network.now + Duration::from_secs(1));
    let handshakes = network.ends[0].tunnel.statistics().sessions_as_initiator;
    assert!(handshakes > 20, "{handshakes}");
    let delivered = [0, 1].map(|end| network.ends[end].delivered.len() as u32);
    assert_eq!(delivered, arriving.get());
}
