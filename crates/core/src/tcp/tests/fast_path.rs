//! An endpoint whose segments take fast paths does what one without them does.

use super::network::{Weather, Witness, World, random_config};
use crate::engine::Engine;
use crate::packet::Packet;
use crate::rng::Rng;
use crate::tcp::config::Config;
use crate::tcp::endpoint::Endpoint;
use crate::time::{Duration, Instant};

/// Given what an end and one without fast paths were told so far, and sent now, expect the same
/// segments, the same timers and the same statistics.
pub(super) fn check(now: Instant, fast: (&Endpoint, &[Packet]), slow: (&Endpoint, &[Packet])) {
    assert_eq!(fast.1, slow.1, "sent at {now} by {:?}", fast.0);
    let (fast, slow) = (fast.0, slow.0);
    assert_eq!(fast.next_wake(), slow.next_wake(), "timers at {now} of {fast:?}");
    assert_eq!(statistics(fast), statistics(slow), "at {now} of {fast:?}");
}

/// All that an endpoint tells of itself.
fn statistics(end: &Endpoint) -> impl PartialEq + core::fmt::Debug {
    let (sender, receiver) = (end.sender(), end.receiver());
    let (control, rtt) = (sender.control(), sender.rtt());
    let window = (control.cwnd(), control.ssthresh(), sender.in_flight(), control.in_slow_start());
    let edges = (sender.una(), sender.max(), sender.acked_bytes(), sender.sent_bytes());
    let received = (receiver.next(), receiver.delivered(), receiver.ack_deadline());
    let ended = (sender.opened(), sender.finished(), receiver.finished());
    let round_trip = (rtt.srtt(), rtt.min(), rtt.rto(), rtt.total());
    let counted = (end.facts(), sender.counters(), end.ledger());
    (window, edges, received, ended, round_trip, counted)
}

/// A network that is worse than most, or one that seldom does anything to a packet.
fn random_weather(rng: &mut Rng) -> Weather {
    let weather = Weather::random(rng);
    if rng.below(2) == 0 {
        return weather;
    }
    let Weather { lost, repeated, reordered, marked, .. } = weather;
    let seldom = |thousandths: u64| thousandths.div_ceil(16);
    Weather {
        lost: seldom(lost),
        repeated: seldom(repeated),
        reordered: seldom(reordered),
        marked: seldom(marked),
        ..weather
    }
}

/// Two random hosts. As often as not both can do the same and have room for many segments, so that most
/// are what the fast paths are for.
fn random_hosts(rng: &mut Rng) -> [Config; 2] {
    let hosts = [random_config(rng), random_config(rng)];
    if rng.below(2) == 0 {
        return hosts;
    }
    let [one, other] = hosts;
    let roomy = |host: Config| Config {
        mss: host.mss.max(500),
        sack: one.sack,
        timestamps: one.timestamps,
        window_scaling: true,
        ecn: one.ecn,
        send_buffer: 1 << 20,
        receive_buffer: host.receive_buffer.max(1 << 20),
        ..host
    };
    [roomy(one), roomy(other)]
}

/// Applications at both ends write, pause, stop to read and read on; the story is the seed.
fn conversation(seed: u64) {
    let mut rng = Rng::stream(seed, "tcp fast path");
    let (hosts, weather) = (random_hosts(&mut rng), random_weather(&mut rng));
    let mut world = World::new(hosts, weather, Rng::stream(seed, "network"));
    let mut written = [0, 0];
    let pause_bits = 12 + rng.below(12);
    let one_way = rng.below(2) == 0;
    world.call(0, Endpoint::open);
    for _ in 0..8 + rng.below(40) {
        let end = usize::from(!one_way && rng.below(2) == 0);
        match rng.below(8) {
            0 => world.call(1 - end, |endpoint, cx| endpoint.reads_at_once(cx, false)),
            1 | 2 => world.call(1 - end, |endpoint, cx| endpoint.reads_at_once(cx, true)),
            _ => {
                let bits = rng.below(17);
                let bytes = 1 + rng.below(1 << bits);
                written[end] += bytes;
                world.call(end, |endpoint, cx| endpoint.write(cx, bytes));
            }
        }
        let until = world.now + Duration::from_micros(rng.below(1 << pause_bits));
        while world.next().is_some_and(|next| next <= until) {
            world.step();
        }
        world.now = until;
    }
    for end in 0..2 {
        world.call(end, |endpoint, cx| endpoint.reads_at_once(cx, true));
        world.call(end, Endpoint::close);
    }
    let mut steps = 0u32;
    while world.step() {
        steps += 1;
        assert!(steps < 2_000_000, "no end in sight");
    }
    world.check();
    for (end, bytes) in written.into_iter().enumerate() {
        assert_eq!(world.ends[1 - end].receiver().delivered(), bytes);
        assert!(world.ends[end].sender().finished());
    }
}

/// Given any two hosts that both write and read as they like, and any weather, expect that fast paths
/// change nothing: what [`check`] compares is equal after each segment, timer and call.
#[test]
fn fast_paths_change_nothing() {
    for seed in 0..30_000 {
        let witness = Witness("conversation", seed);
        conversation(seed);
        drop(witness);
    }
}
