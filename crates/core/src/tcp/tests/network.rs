//! Two endpoints over a network that loses, delays, reorders, repeats and marks, with random settings.

use std::collections::{BTreeMap, VecDeque};

use super::{fast_path, plain, short_way};
use crate::engine::{Cx, Engine, Outbox};
use crate::packet::seq::SeqNumber;
use crate::packet::{Ecn, FlowId, Origin, Packet};
use crate::rng::Rng;
use crate::tcp::config::{
    AckPolicy, AvoidanceCounting, BufferCounts, Config, CongestionName, Follows, RtoConfig,
    RtoMinBounds,
};
use crate::tcp::endpoint::Endpoint;
use crate::time::{Duration, Instant};
use crate::trace::NodeId;

/// Any host that a plan may describe, with buffers of up to some hundred segments.
pub(super) fn random_config(rng: &mut Rng) -> Config {
    let mut coin = || rng.below(2) == 0;
    let base = Config {
        sack: coin(),
        timestamps: coin(),
        window_scaling: coin(),
        limited_transmit: coin(),
        rack_tlp: coin(),
        prr: coin(),
        hystart: coin(),
        follows: if coin() { Follows::Linux } else { Follows::Rfc },
        ecn: coin(),
        ..plain()
    };
    let mss = 88 + u16::try_from(rng.below(1_400)).expect("small");
    let pick = |rng: &mut Rng, least: u64| {
        let bits = 4 + rng.below(16);
        least + rng.below(1 << bits)
    };
    let receive_buffer = pick(rng, mss.into());
    let tick = Duration::from_nanos(1 << rng.below(30));
    Config {
        mss,
        initial_window_segments: 1 + u32::try_from(rng.below(12)).expect("small"),
        congestion: CongestionName::ALL[usize::try_from(rng.below(7)).expect("small")].1,
        send_buffer: pick(rng, mss.into()),
        receive_buffer,
        receive_buffer_counts: [BufferCounts::Window, BufferCounts::Memory]
            [usize::from(mss.is_multiple_of(3))],
        receive_buffer_initial: (u64::from(mss) + rng.below(receive_buffer)).min(receive_buffer),
        acks: AckPolicy {
            delayed_segments: 1 + u32::try_from(rng.below(4)).expect("small"),
            delayed_timeout: Duration::from_millis(rng.below(500)),
            quick_segments: u32::try_from(rng.below(20)).expect("small"),
        },
        rto: RtoConfig {
            initial: Duration::from_millis(1_000 + rng.below(2_000)),
            min: Duration::from_millis(1 + rng.below(1_000)),
            max: Duration::from_millis(3_000 + rng.below(60_000)),
            granularity: tick,
            min_bounds: [RtoMinBounds::Timeout, RtoMinBounds::Variance]
                [usize::from(tick.as_nanos().is_multiple_of(4))],
        },
        slow_start_segments_per_ack: 1 + u32::try_from(rng.below(4)).expect("small"),
        avoidance: [AvoidanceCounting::Bytes, AvoidanceCounting::Acks]
            [usize::from(mss.is_multiple_of(2))],
        ..base
    }
}

/// What the network does to packets, in thousandths, and how long they take.
#[derive(Debug)]
pub(super) struct Weather {
    pub(super) lost: u64,
    pub(super) repeated: u64,
    pub(super) reordered: u64,
    pub(super) marked: u64,
    pub(super) delay_us: u64,
    pub(super) gap_us: u64,
}

impl Weather {
    pub(super) fn random(rng: &mut Rng) -> Self {
        let sometimes = |rng: &mut Rng, most: u64| rng.below(2) * rng.below(most);
        Self {
            lost: sometimes(rng, 250),
            repeated: sometimes(rng, 100),
            reordered: sometimes(rng, 200),
            marked: sometimes(rng, 300),
            delay_us: 1 + rng.below(600_000),
            gap_us: rng.below(3_000),
        }
    }
}

/// Two ends and what is on its way between them.
pub(super) struct World {
    pub(super) ends: [Endpoint; 2],
    /// Two like them without fast paths, which are given the same and must do the same.
    twins: [Endpoint; 2],
    /// Packets whose memory the next ones of `ends` are written in.
    freed: VecDeque<Packet>,
    pub(super) now: Instant,
    weather: Weather,
    rng: Rng,
    on_the_way: BTreeMap<(Instant, u64), (usize, Packet)>,
    free: [Instant; 2],
    serial: u64,
}

impl World {
    /// Nothing has happened yet.
    pub(super) fn new(configs: [Config; 2], weather: Weather, mut rng: Rng) -> Self {
        let initial =
            [0, 1].map(|_| SeqNumber(u32::try_from(rng.next_u64() >> 32).expect("32 bits")));
        let origins = [Origin::Sender, Origin::Receiver];
        let ends = || [0, 1].map(|n| Endpoint::new(configs[n], FlowId(0), origins[n], initial[n]));
        Self {
            ends: ends(),
            twins: ends().map(Endpoint::slow_path_only),
            freed: VecDeque::new(),
            now: Instant::START,
            weather,
            rng,
            on_the_way: BTreeMap::new(),
            free: [Instant::START; 2],
            serial: 0,
        }
    }

    pub(super) fn call(&mut self, end: usize, call: impl Fn(&mut Endpoint, &mut Cx<'_>)) {
        let sent = called(&mut self.ends[end], self.now, &self.freed, &call);
        let next = self.ends[end].next_wake();
        assert!(next.is_none_or(|next| next >= self.now), "a deadline in the past");
        let sent_by_twin = called(&mut self.twins[end], self.now, &VecDeque::new(), &call);
        fast_path::check(self.now, (&self.ends[end], &sent), (&self.twins[end], &sent_by_twin));
        for packet in sent {
            self.freed.push_front(packet.clone());
            self.freed.truncate(FREED_MAX);
            self.carry(1 - end, packet);
        }
    }

    fn carry(&mut self, to: usize, mut packet: Packet) {
        let Weather { lost, repeated, reordered, marked, delay_us, gap_us } = self.weather;
        let mut happens = |thousandths| self.rng.below(1_000) < thousandths;
        if happens(lost) {
            return;
        }
        if packet.ecn.is_capable() && happens(marked) {
            packet.ecn = Ecn::Ce;
        }
        let copies = if happens(repeated) { 2 } else { 1 };
        let late = if happens(reordered) { delay_us } else { 0 };
        for _ in 0..copies {
            self.free[to] = self.free[to].max(self.now) + Duration::from_micros(gap_us);
            let late = if late == 0 { 0 } else { self.rng.below(late) };
            let arrival = self.free[to] + Duration::from_micros(delay_us + late);
            self.serial += 1;
            self.on_the_way.insert((arrival, self.serial), (to, packet.clone()));
        }
    }

    fn next_arrival(&self) -> Option<Instant> {
        self.on_the_way.keys().next().map(|key| key.0)
    }

    fn next_timer(&self) -> Option<Instant> {
        self.ends.iter().filter_map(Endpoint::next_wake).min()
    }

    /// When something happens next, if nobody does anything.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next_arrival().into_iter().chain(self.next_timer()).min()
    }

    /// Does what comes next. Whether anything did.
    pub(super) fn step(&mut self) -> bool {
        let (arrival, timer) = (self.next_arrival(), self.next_timer());
        if let Some(at) = arrival.filter(|&at| timer.is_none_or(|timer| at <= timer)) {
            self.now = at;
            let (_, (to, packet)) = self.on_the_way.pop_first().expect("there is an arrival");
            self.call(to, |endpoint, cx| endpoint.hear(cx, &packet));
            return true;
        }
        let Some(at) = timer else { return false };
        self.now = at;
        for end in 0..2 {
            if self.ends[end].next_wake() == Some(at) {
                self.call(end, |endpoint, cx| endpoint.wake(cx));
                let next = self.ends[end].next_wake();
                assert!(next.is_none_or(|next| next > at), "a timer without progress");
            }
        }
        true
    }

    pub(super) fn check(&self) {
        for (end, peer) in [(0, 1), (1, 0)] {
            let (end, peer) = (&self.ends[end], &self.ends[peer]);
            assert_eq!(end.ledger().check(), Ok(()));
            let (acked, sent) = (end.sender().acked_bytes(), end.sender().sent_bytes());
            let delivered = peer.receiver().delivered();
            assert!(acked <= delivered && delivered <= sent, "{acked}, {delivered}, {sent}");
        }
    }
}

/// Packets that are kept for their memory.
const FREED_MAX: usize = 8;

/// Calls an endpoint, which reuses the memory of freed packets: what it sent.
fn called(
    end: &mut Endpoint,
    now: Instant,
    freed: &VecDeque<Packet>,
    call: impl Fn(&mut Endpoint, &mut Cx<'_>),
) -> Vec<Packet> {
    let mut outbox = Outbox::new();
    let mut cx = Cx::new(now, NodeId(0), &mut outbox, None);
    freed.iter().for_each(|packet| cx.discard(Box::new(packet.clone())));
    call(end, &mut cx);
    drop(cx);
    outbox.drain().map(|(_, _, packet)| packet).collect()
}

/// One transfer, or one each way; the story is the seed.
fn transfer(seed: u64) {
    let mut rng = Rng::stream(seed, "tcp network");
    let configs = [random_config(&mut rng), random_config(&mut rng)];
    let weather = Weather::random(&mut rng);
    let bits = 8 + rng.below(13);
    let amounts = [rng.below(1 << bits), rng.below(2) * rng.below(30_000)];
    let scene = format!("seed {seed}: {amounts:?} bytes, {weather:?}, {configs:?}");
    let mut world = World::new(configs, weather, rng);
    for (end, amount) in amounts.into_iter().enumerate() {
        world.call(end, |endpoint, cx| endpoint.write(cx, amount));
        world.call(end, Endpoint::close);
    }
    world.call(0, Endpoint::open);
    let mut steps = 0u32;
    while world.step() {
        steps += 1;
        if steps.is_multiple_of(64) {
            world.check();
        }
        if steps.is_multiple_of(8) {
            let short_ways = &mut Rng::stream(seed, &format!("short ways {steps}"));
            for end in &world.ends {
                short_way::check(end, world.now, short_ways);
            }
        }
        assert!(steps < 2_000_000, "no end in sight: {scene}");
    }
    world.check();
    for (end, amount) in amounts.into_iter().enumerate() {
        let (sender, receiver) = (world.ends[end].sender(), world.ends[1 - end].receiver());
        assert_eq!(receiver.delivered(), amount, "{scene}");
        assert!(receiver.finished() && sender.finished(), "{scene}");
        assert_eq!((sender.acked_bytes(), sender.in_flight()), (amount, 0), "{scene}");
    }
}

/// Prints the seed of a case that fails, and its scene where it is known.
pub(super) struct Witness(pub(super) &'static str, pub(super) u64);

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = format!("{}({}) failed\n", self.0, self.1);
            let _ = std::io::Write::write_all(&mut std::io::stderr(), message.as_bytes());
        }
    }
}

/// Given any two hosts and any weather, expect every byte exactly once, both ends finished, and
/// nothing left to do.
#[test]
fn every_transfer_completes() {
    for seed in 0..1_000 {
        let witness = Witness("transfer", seed);
        transfer(seed);
        drop(witness);
    }
}
