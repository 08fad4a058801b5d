//! An endpoint with fast paths behaves like one without them.

use super::network::{Impairments, Network, SeedOnPanic, random_config, stress};
use crate::engine::Engine;
use crate::packet::Packet;
use crate::rng::Rng;
use crate::tcp::config::Config;
use crate::tcp::endpoint::Endpoint;
use crate::time::{Duration, Instant};

/// Given an endpoint and one without fast paths with the same history, expect the same segments,
/// timers and statistics.
pub(super) fn check(now: Instant, fast: (&Endpoint, &[Packet]), slow: (&Endpoint, &[Packet])) {
    assert_eq!(fast.1, slow.1, "sent at {now} by {:?}", fast.0);
    let (fast, slow) = (fast.0, slow.0);
    assert_eq!(fast.next_wake(), slow.next_wake(), "timers at {now} of {fast:?}");
    assert_eq!(statistics(fast), statistics(slow), "at {now} of {fast:?}");
}

/// All public state of an endpoint.
fn statistics(end: &Endpoint) -> impl PartialEq + core::fmt::Debug {
    let (sender, receiver) = (end.sender(), end.receiver());
    let (control, rtt) = (sender.control(), sender.rtt());
    let window = (control.cwnd(), control.ssthresh(), sender.in_flight(), control.in_slow_start());
    let edges = (sender.una(), sender.max(), sender.acked_bytes(), sender.sent_bytes());
    let received = (receiver.next(), receiver.delivered(), receiver.ack_deadline());
    let ended = (sender.is_established(), sender.finished(), receiver.finished());
    let round_trip = (rtt.srtt(), rtt.min(), rtt.rto(), rtt.total());
    let counted = (end.stats(), sender.counters(), end.ledger());
    (window, edges, received, ended, round_trip, counted)
}

/// A network with many impairments, or with few.
fn random_impairments(rng: &mut Rng) -> Impairments {
    let impairments = Impairments::random(rng);
    if rng.below(2) == 0 {
        return impairments;
    }
    let Impairments { lost, duplicated, reordered, marked, .. } = impairments;
    let rare = |thousandths: u64| thousandths.div_ceil(16);
    Impairments {
        lost: rare(lost),
        duplicated: rare(duplicated),
        reordered: rare(reordered),
        marked: rare(marked),
        ..impairments
    }
}

/// Two random hosts. In half of the cases both support the same options and have large buffers, so
/// that most segments may take a fast path.
fn random_hosts(rng: &mut Rng) -> [Config; 2] {
    let hosts = [random_config(rng), random_config(rng)];
    if rng.below(2) == 0 {
        return hosts;
    }
    let [one, other] = hosts;
    let large = |host: Config| Config {
        mss: host.mss.max(500),
        sack: one.sack,
        timestamps: one.timestamps,
        window_scaling: true,
        ecn: one.ecn,
        send_buffer: 1 << 20,
        receive_buffer: host.receive_buffer.max(1 << 20),
        ..host
    };
    [large(one), large(other)]
}

/// Random writes and reads of the applications at both ends.
fn exchange(seed: u64) {
    let mut rng = Rng::stream(seed, "tcp fast path");
    let (hosts, impairments) = (random_hosts(&mut rng), random_impairments(&mut rng));
    let mut network = Network::new(hosts, impairments, Rng::stream(seed, "network"));
    let mut written = [0, 0];
    let pause_bits = 12 + rng.below(12);
    let one_way = rng.below(2) == 0;
    network.call(0, Endpoint::open);
    for _ in 0..8 + rng.below(40) {
        let end = usize::from(!one_way && rng.below(2) == 0);
        match rng.below(8) {
            0 => network.call(1 - end, |endpoint, cx| endpoint.set_auto_read(cx, false)),
            1 | 2 => network.call(1 - end, |endpoint, cx| endpoint.set_auto_read(cx, true)),
            _ => {
                let bits = rng.below(17);
                let bytes = 1 + rng.below(1 << bits);
                written[end] += bytes;
                network.call(end, |endpoint, cx| endpoint.write(cx, bytes));
            }
        }
        let until = network.now + Duration::from_micros(rng.below(1 << pause_bits));
        while network.next().is_some_and(|next| next <= until) {
            network.step();
        }
        network.now = until;
    }
    for end in 0..2 {
        network.call(end, |endpoint, cx| endpoint.set_auto_read(cx, true));
        network.call(end, Endpoint::close);
    }
    let mut steps = 0u32;
    while network.step() {
        steps += 1;
        assert!(steps < 2_000_000, "the transfer does not end");
    }
    network.check();
    for (end, bytes) in written.into_iter().enumerate() {
        assert_eq!(network.ends[1 - end].receiver().delivered(), bytes);
        assert!(network.ends[end].sender().finished());
    }
}

/// Given random hosts, applications and impairments, expect that fast paths change nothing:
/// [`check`] compares the ends after each segment, timer and call.
#[test]
fn fast_paths_change_nothing() {
    for seed in 0..10_000 * stress() {
        let on_panic = SeedOnPanic("exchange", seed);
        exchange(seed);
        drop(on_panic);
    }
}
