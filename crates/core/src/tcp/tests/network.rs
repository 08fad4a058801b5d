//! Two endpoints with random settings over a network that loses, delays, reorders, duplicates and
//! marks packets.

use std::collections::{BTreeMap, VecDeque};

use super::{fast_path, fast_path_state, plain};
use crate::engine::{Cx, Engine, Outbox};
use crate::packet::seq::SeqNumber;
use crate::packet::{Ecn, FlowId, Origin, Packet};
use crate::rng::Rng;
use crate::tcp::config::{
    AckPolicy, AvoidanceCounting, BufferCounts, Config, CongestionName, RtoConfig, RtoMinBounds,
    StackVariant,
};
use crate::tcp::endpoint::Endpoint;
use crate::time::{Duration, Instant};
use crate::trace::NodeId;

/// A random host within the limits of a plan, with buffers of up to some hundred segments.
pub(super) fn random_config(rng: &mut Rng) -> Config {
    let mut flag = || rng.below(2) == 0;
    let base = Config {
        sack: flag(),
        timestamps: flag(),
        window_scaling: flag(),
        limited_transmit: flag(),
        rack_tlp: flag(),
        prr: flag(),
        hystart: flag(),
        stack: if flag() { StackVariant::Linux } else { StackVariant::Rfc },
        ecn: flag(),
        ..plain()
    };
    let mss = 88 + u16::try_from(rng.below(1_400)).expect("small");
    let pick = |rng: &mut Rng, min: u64| {
        let bits = 4 + rng.below(16);
        min + rng.below(1 << bits)
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

/// Impairments in thousandths of packets, and delays.
#[derive(Debug)]
pub(super) struct Impairments {
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    pub(super) marked: u64,
    pub(super) delay_us: u64,
    pub(super) gap_us: u64,
}

impl Impairments {
    pub(super) fn random(rng: &mut Rng) -> Self {
        let maybe = |rng: &mut Rng, max: u64| rng.below(2) * rng.below(max);
        Self {
            lost: maybe(rng, 250),
            duplicated: maybe(rng, 100),
            reordered: maybe(rng, 200),
            marked: maybe(rng, 300),
            delay_us: 1 + rng.below(600_000),
            gap_us: rng.below(3_000),
        }
    }
}

/// Two endpoints and the packets in transit between them.
pub(super) struct Network {
    pub(super) ends: [Endpoint; 2],
    /// Twins without fast paths, which get the same input and must behave identically.
    twins: [Endpoint; 2],
    /// Packets whose memory the next ones of `ends` reuse.
    freed: VecDeque<Packet>,
    pub(super) now: Instant,
    impairments: Impairments,
    rng: Rng,
    in_transit: BTreeMap<(Instant, u64), (usize, Packet)>,
    free: [Instant; 2],
    serial: u64,
}

impl Network {
    /// A network before its first event.
    pub(super) fn new(configs: [Config; 2], impairments: Impairments, mut rng: Rng) -> Self {
        let initial =
            [0, 1].map(|_| SeqNumber(u32::try_from(rng.next_u64() >> 32).expect("32 bits")));
        let origins = [Origin::Sender, Origin::Receiver];
        let ends = || [0, 1].map(|n| Endpoint::new(configs[n], FlowId(0), origins[n], initial[n]));
        Self {
            ends: ends(),
            twins: ends().map(Endpoint::slow_path_only),
            freed: VecDeque::new(),
            now: Instant::START,
            impairments,
            rng,
            in_transit: BTreeMap::new(),
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
        let Impairments { lost, duplicated, reordered, marked, delay_us, gap_us } =
            self.impairments;
        let mut happens = |thousandths| self.rng.below(1_000) < thousandths;
        if happens(lost) {
            return;
        }
        if packet.ecn.is_capable() && happens(marked) {
            packet.ecn = Ecn::Ce;
        }
        let copies = if happens(duplicated) { 2 } else { 1 };
        let late = if happens(reordered) { delay_us } else { 0 };
        for _ in 0..copies {
            self.free[to] = self.free[to].max(self.now) + Duration::from_micros(gap_us);
            let late = if late == 0 { 0 } else { self.rng.below(late) };
            let arrival = self.free[to] + Duration::from_micros(delay_us + late);
            self.serial += 1;
            self.in_transit.insert((arrival, self.serial), (to, packet.clone()));
        }
    }

    fn next_arrival(&self) -> Option<Instant> {
        self.in_transit.keys().next().map(|key| key.0)
    }

    fn next_timer(&self) -> Option<Instant> {
        self.ends.iter().filter_map(Endpoint::next_wake).min()
    }

    /// Time of the next arrival or timer.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next_arrival().into_iter().chain(self.next_timer()).min()
    }

    /// Processes the next event. Returns false if there is none.
    pub(super) fn step(&mut self) -> bool {
        let (arrival, timer) = (self.next_arrival(), self.next_timer());
        if let Some(at) = arrival.filter(|&at| timer.is_none_or(|timer| at <= timer)) {
            self.now = at;
            let (_, (to, packet)) = self.in_transit.pop_first().expect("there is an arrival");
            self.call(to, |endpoint, cx| endpoint.on_packet(cx, &packet));
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

/// Packets kept for reuse of their memory.
const FREED_MAX: usize = 8;

/// Calls an endpoint, which reuses the memory of freed packets. Returns the packets that it sent.
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

/// A transfer in one or both directions, determined by the seed.
fn transfer(seed: u64) {
    let mut rng = Rng::stream(seed, "tcp network");
    let configs = [random_config(&mut rng), random_config(&mut rng)];
    let impairments = Impairments::random(&mut rng);
    let bits = 8 + rng.below(13);
    let amounts = [rng.below(1 << bits), rng.below(2) * rng.below(30_000)];
    let setup = format!("seed {seed}: {amounts:?} bytes, {impairments:?}, {configs:?}");
    let mut network = Network::new(configs, impairments, rng);
    for (end, amount) in amounts.into_iter().enumerate() {
        network.call(end, |endpoint, cx| endpoint.write(cx, amount));
        network.call(end, Endpoint::close);
    }
    network.call(0, Endpoint::open);
    let mut steps = 0u32;
    while network.step() {
        steps += 1;
        if steps.is_multiple_of(64) {
            network.check();
        }
        if steps.is_multiple_of(8) {
            let rng = &mut Rng::stream(seed, &format!("fast paths {steps}"));
            for end in &network.ends {
                fast_path_state::check(end, network.now, rng);
            }
        }
        assert!(steps < 2_000_000, "the transfer does not end: {setup}");
    }
    network.check();
    for (end, amount) in amounts.into_iter().enumerate() {
        let (sender, receiver) = (network.ends[end].sender(), network.ends[1 - end].receiver());
        assert_eq!(receiver.delivered(), amount, "{setup}");
        assert!(receiver.finished() && sender.finished(), "{setup}");
        assert_eq!((sender.acked_bytes(), sender.in_flight()), (amount, 0), "{setup}");
    }
}

/// Prints the seed of a failing case on panic.
pub(super) struct SeedOnPanic(pub(super) &'static str, pub(super) u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = format!("{}({}) failed\n", self.0, self.1);
            let _ = std::io::Write::write_all(&mut std::io::stderr(), message.as_bytes());
        }
    }
}

/// How many times as many random cases as usual: `BENTPIPE_STRESS`.
#[allow(clippy::disallowed_methods, reason = "the number of random cases of a test")]
pub(super) fn stress() -> u64 {
    std::env::var("BENTPIPE_STRESS").map_or(1, |text| text.parse().expect("a number"))
}

/// Given random hosts and impairments, expect every byte to be delivered exactly once, both ends to
/// finish, and no event to be left.
#[test]
fn every_transfer_completes() {
    for seed in 0..500 * stress() {
        let on_panic = SeedOnPanic("transfer", seed);
        transfer(seed);
        drop(on_panic);
    }
}
