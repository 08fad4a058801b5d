//! Property tests of changes of a running direction: against a direction whose profiles contain the
//! changes from the start, and against the invariants of any direction.
//!
//! `PROPTEST_CASES` and `PROPTEST_RNG_SEED` (read by proptest) run more cases, or the same ones again; a
//! failure prints the setup.

use crate::queues::red;
use bentpipe_core::conformance::ArrivalPattern;
use bentpipe_core::engine::Engine;
use bentpipe_core::graph::{Egress, Graph};
use bentpipe_core::link::{
    Change, Channel, ChannelState, CoDel, CoDelConfig, Counters, Direction, DirectionConfig,
    DropAtDequeue, DropAtEnqueue, DropTail, ErrorRates, FqCoDel, FqCoDelConfig, Framing, Limit,
    PerFlow, Queue, Ratio, Red, SelectiveDrop,
};
use bentpipe_core::packet::{FlowId, Packet, PacketId};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, NodeId};
use bentpipe_core::units::{BitRate, Probability};
use proptest::prelude::*;

proptest! {
    #![proptest_config(configured())]

    /// Given changes of rate and delay and outages at random times, expect the behaviour of a direction
    /// that was built with all of them in its profiles.
    #[test]
    fn a_change_is_a_step_of_the_profile(setup in setups(changes(false))) {
        let mut seen = Vec::new();
        let outcome = run(&setup, |graph, now, fed| {
            let counters = graph.engine_mut(NODE).counters_at(now);
            // A profile includes a step at its instant: only the last observation at an instant, after
            // the change, can agree with it.
            seen.pop_if(|(instant, so_far, _)| (*instant, *so_far) == (now, fed));
            seen.push((now, fed, counters));
        });
        let mut reference = graph(&setup, outcome.profiles);
        let mut seen = seen.into_iter().peekable();
        for ((at, packet), fed) in outcome.fed.into_iter().zip(0..) {
            while let Some((instant, _, counters)) = seen.next_if(|(_, so_far, _)| *so_far <= fed) {
                reference.run_until(instant, None);
                prop_assert_eq!(reference.engine_mut(NODE).counters_at(instant), counters, "at {}", instant);
            }
            reference.inject(at, (NODE, Direction::IN), packet, None);
        }
        reference.run_until(END, None);
        prop_assert_eq!(reference.drain_egress().map(out).collect::<Vec<_>>(), outcome.outputs);
        let [changed, reference] = [outcome.graph, reference].map(|mut it| it.engine_mut(NODE).counters_at(END));
        prop_assert_eq!(changed, reference);
    }

    /// Given any queue, and changes of the channel too, expect packets to be accounted for and not
    /// duplicated, flows to stay in order, all packets to leave in the end, and counters never to decrease.
    #[test]
    fn packets_are_accounted_for_and_stay_in_order(
        setup in setups(changes(true)), queue in queues(),
    ) {
        let setup = Setup { queue, ..setup };
        let mut last = Counters::default();
        let Outcome { graph, outputs, .. } = run(&setup, |graph, now, _| {
            let counters = graph.engine_mut(NODE).counters_at(now);
            let ledger = graph.engine(NODE).ledger();
            assert_eq!(ledger.check(), Ok(()), "at {now}");
            let held = counters.queue_bytes + counters.sending_bytes + counters.in_flight_bytes;
            assert_eq!(ledger.held.bytes, held, "at {now}");
            assert!(counters.sent_packets >= last.sent_packets, "at {now}");
            assert!(counters.sent_bits >= last.sent_bits, "at {now}");
            assert!(counters.busy >= last.busy, "at {now}");
            last = counters;
        });
        let ledger = graph.engine(NODE).ledger();
        prop_assert_eq!(ledger.check(), Ok(()));
        prop_assert_eq!(ledger.held.packets, 0);
        prop_assert_eq!(ledger.sent.packets, outputs.len() as u64);
        prop_assert!(outputs.is_sorted_by_key(|(at, _)| *at));
        for flow in 0..FLOWS {
            let of_flow = || outputs.iter().filter(|(_, packet)| packet.flow == FlowId(flow));
            prop_assert!(of_flow().is_sorted_by_key(|(_, packet)| packet.created_at));
            let mut serials: Vec<_> = of_flow().map(|(_, packet)| packet.id).collect();
            let all = serials.len();
            serials.dedup();
            prop_assert_eq!(serials.len(), all);
        }
    }
}

const MS: u64 = 1_000_000;

/// Packets of 1,000 bytes at 1 Mbit/s, 8 ms each, with 100 ms of delay.
struct Example(Graph<Direction>);

impl Example {
    fn of(packets: u64) -> Self {
        let delay = Profile::Constant(Duration::from_millis(100));
        Self::with(Profile::Constant(BitRate(1_000_000)), delay, packets)
    }

    fn with(rate: Profile<BitRate>, delay: Profile<Duration>, packets: u64) -> Self {
        let config = DirectionConfig {
            rate,
            delay,
            framing: Framing::overhead(0),
            queue: drop_tail(Limit::Unlimited),
            channel: Channel::clear(),
        };
        let mut graph = Graph::default();
        graph.add(Direction::new(config).expect("a rate above zero"));
        let mut example = Self(graph);
        (0..packets).for_each(|serial| example.inject(0, serial));
        example
    }

    fn inject(&mut self, millis: u64, serial: u64) {
        let (at, id) = (Instant::from_millis(millis), PacketId(serial));
        let packet = Packet { id, created_at: at, bytes: 1_000, ..Packet::default() };
        self.0.inject(at, (NODE, Direction::IN), packet, None);
    }

    fn change(&mut self, millis: u64, change: Change) -> Option<()> {
        let at = Instant::from_millis(millis);
        self.0.alter(at, NODE, None, |direction, _| direction.change(at, change))
    }

    fn rate(&mut self, millis: u64, steps: &[(u64, u64)]) -> Option<()> {
        let rate = steps_profile(steps.iter().map(|&(at, bps)| (at * MS, BitRate(bps))));
        self.change(millis, Change { rate: Some(rate), ..Change::default() })
    }

    fn delay(&mut self, millis: u64, delay_millis: u64) {
        let delay = Some(Profile::Constant(Duration::from_millis(delay_millis)));
        self.change(millis, Change { delay, ..Change::default() }).expect("the rate is unchanged");
    }

    /// The times in ms at which packets leave; corrupted packets do not.
    fn out_ms(mut self) -> Vec<u64> {
        self.0.run_until(END, None);
        self.0.drain_egress().map(|(at, ..)| at.as_nanos() / MS).collect()
    }
}

/// At 20 ms two packets and half of the third are sent. At 500 kbit/s its other half takes 8 ms, and each
/// packet that waits 16.
#[test]
fn waiting_packets_are_sent_at_the_new_rate() {
    let mut example = Example::of(5);
    example.rate(20, &[(0, 500_000)]).expect("above zero");
    assert_eq!(example.out_ms(), [108, 116, 128, 144, 160]);
    let mut example = Example::of(5);
    example.rate(20, &[(0, 4_000_000)]).expect("above zero");
    assert_eq!(example.out_ms(), [108, 116, 121, 123, 125]);
}

/// Given a packet of 8,000 bits at 1 Mbit/s without delay, and 10 Gbit/s from 1 ns before its end on: a
/// thousandth of a bit is left, which takes 0.1 ps, so it ends in the nanosecond of the change. Expect it to
/// be still in transmission just before the change, and sent and delivered just after it and with the step
/// in the profile.
#[test]
fn a_frame_that_ends_in_the_nanosecond_of_a_change_is_sent_after_it() {
    let at = Instant::from_nanos(8 * MS - 1);
    let steps = [(0, BitRate(1_000_000)), (at.as_nanos(), BitRate(10_000_000_000))];
    let rate = steps_profile(steps.into_iter());
    let counters = |example: &mut Example| {
        example.0.run_until(at, None);
        let counters = example.0.engine_mut(NODE).counters_at(at);
        (counters.sent_packets, counters.sending_bytes, counters.delivered.packets)
    };
    let no_delay = Profile::Constant(Duration::ZERO);
    let mut example = Example::with(Profile::Constant(BitRate(1_000_000)), no_delay.clone(), 1);
    assert_eq!(counters(&mut example), (0, 1_000, 0));
    let change = Change { rate: Some(rate.clone()), ..Change::default() };
    let changed = example.0.alter(at, NODE, None, |direction, _| direction.change(at, change));
    changed.expect("above zero");
    assert_eq!(counters(&mut example), (1, 0, 1));
    assert_eq!(counters(&mut Example::with(rate, no_delay, 1)), (1, 0, 1));
}

/// Nothing is sent from 20 to 520 ms: the second half of the third packet is sent from 520 to 524.
#[test]
fn an_outage_stops_only_the_transmitter() {
    let mut example = Example::of(4);
    example.rate(20, &[(0, 0), (520, 1_000_000)]).expect("above zero in the end");
    example.inject(300, 4);
    assert_eq!(example.out_ms(), [108, 116, 624, 632, 640]);
}

/// An outage of 500 ms that is ended after 100.
#[test]
fn an_outage_may_be_ended_early() {
    let mut example = Example::of(4);
    example.rate(20, &[(0, 0), (520, 1_000_000)]).expect("above zero in the end");
    example.rate(120, &[(0, 1_000_000)]).expect("above zero");
    assert_eq!(example.out_ms(), [108, 116, 224, 232]);
}

/// By 20 ms two packets were sent, which arrive at 108 and 116. With a delay of 50 ms from then on the third
/// one, which leaves at 24, would arrive at 74, before them.
#[test]
fn a_shorter_delay_does_not_reorder() {
    let mut example = Example::of(10);
    example.delay(20, 50);
    assert_eq!(example.out_ms(), [108, 116, 116, 116, 116, 116, 116, 116, 122, 130]);
    let mut example = Example::of(4);
    example.delay(20, 200);
    assert_eq!(example.out_ms(), [108, 116, 224, 232]);
}

/// Given a delay that was shortened on an idle link, and a packet that arrives while the last one with the
/// long delay is in flight, expect no reordering.
#[test]
fn a_packet_after_a_change_is_not_reordered() {
    let mut example = Example::of(1);
    example.delay(20, 10);
    example.inject(30, 1);
    example.inject(300, 2);
    assert_eq!(example.out_ms(), [108, 108, 318]);
}

/// Given bit errors in every bit from 20 ms on, expect packets whose first bit was sent by then to arrive.
#[test]
fn a_worse_channel_corrupts_frames_that_have_not_started() {
    let mut example = Example::of(5);
    let all = Probability::new(1.0).expect("a probability");
    let channel = Some(Channel::bit_errors(all, Rng::stream(1, "worse")));
    example.change(20, Change { channel, ..Change::default() }).expect("the rate is unchanged");
    let counters = example.0.engine_mut(NODE).counters_at(Instant::from_millis(20));
    assert_eq!(counters.dropped[DropCause::BitError as usize].packets, 0, "they arrive corrupted");
    assert_eq!(example.out_ms(), [108, 116, 124]);
}

/// Given a channel that loses every frame whose first bit is sent from 20 ms on, and packets that start at 0,
/// 8, 16, 24 and 32 ms, expect the first three to arrive. At 4 Mbit/s from 10 ms on they start at 0, 8, 11.5
/// (the second has 6 ms left, which take 1.5), 13.5 and 15.5 ms, and all arrive; at 500 kbit/s the third
/// starts at 22 ms and is lost.
#[test]
fn waiting_packets_use_the_channel_at_their_transmission() {
    let all = Probability::new(1.0).expect("a probability");
    let lossy = ErrorRates { loss_rate: all, ..ErrorRates::default() };
    let errors = steps_profile([(0, ErrorRates::default()), (20 * MS, lossy)].into_iter());
    let example = || {
        let mut example = Example::of(0);
        let channel = Some(Channel::series(&errors, Rng::stream(1, "errors")));
        example.change(0, Change { channel, ..Change::default() }).expect("the rate is unchanged");
        (0..5).for_each(|serial| example.inject(0, serial));
        example
    };
    assert_eq!(example().out_ms(), [108, 116, 124]);
    let mut faster = example();
    faster.rate(10, &[(0, 4_000_000)]).expect("above zero");
    assert_eq!(faster.out_ms(), [108, 111, 113, 115, 117]);
    let mut slower = example();
    slower.rate(10, &[(0, 500_000)]).expect("above zero");
    assert_eq!(slower.out_ms(), [108, 122]);
}

/// Given two states with mean sojourn times of 10 ms that lose all or nothing, and a change to the current
/// rate while 200 packets wait, expect the same losses as without it: states depend on the times of
/// transmission only.
#[test]
fn rescheduling_finds_the_same_channel_states() {
    let state = |loss| ChannelState {
        errors: ErrorRates {
            loss_rate: Probability::new(loss).expect("a probability"),
            ..ErrorRates::default()
        },
        mean_duration: Duration::from_millis(10),
    };
    for seed in 0..50 {
        let example = || {
            let stream = |name| Rng::stream(seed, name);
            let channel = Channel::gilbert_elliott(
                state(0.0),
                state(1.0),
                stream("states"),
                stream("errors"),
            );
            let mut example = Example::of(0);
            let change = Change { channel: Some(channel), ..Change::default() };
            example.change(0, change).expect("the rate is unchanged");
            (0..200).for_each(|serial| example.inject(0, serial));
            example
        };
        let unchanged = example().out_ms();
        let mut rescheduled = example();
        rescheduled.rate(5, &[(0, 1_000_000)]).expect("above zero");
        rescheduled.rate(777, &[(0, 1_000_000)]).expect("above zero");
        assert!((20..180).contains(&unchanged.len()), "{} arrive", unchanged.len());
        assert_eq!(rescheduled.out_ms(), unchanged, "seed {seed}");
    }
}

#[test]
fn a_rate_that_ends_at_zero_is_rejected_without_a_change() {
    let mut example = Example::of(3);
    assert_eq!(example.rate(20, &[(0, 4_000_000), (30, 0)]), None);
    assert_eq!(example.out_ms(), [108, 116, 124]);
}

const NODE: NodeId = NodeId(0);
const FLOWS: u32 = 3;
/// Later than all events of a setup.
const END: Instant = Instant::from_nanos(1 << 62);

fn configured() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let cases = from_environment.cases.max(1_000);
    ProptestConfig { cases, failure_persistence: None, ..from_environment }
}

/// A change, and the time since the previous one.
#[derive(Clone, Debug)]
struct TimedChange {
    gap_ns: u64,
    kind: ChangeKind,
}

#[derive(Clone, Copy, Debug)]
enum ChangeKind {
    Rate(BitRate),
    /// Nothing is sent for this long, and then at the same rate again.
    Outage(Duration),
    Delay(Duration),
    BitErrorRate(f64),
}

#[derive(Clone, Debug)]
struct Setup {
    rate: BitRate,
    delay: Duration,
    queue: Queue,
    bit_error_rate: f64,
    pattern: ArrivalPattern,
    changes: Vec<TimedChange>,
    seed: u64,
}

impl Setup {
    fn script(&self) -> Vec<(Instant, Packet)> {
        let script = self.pattern.script(self.seed);
        script.into_iter().map(|(at, _, packet)| (at, packet)).collect()
    }

    /// Random times of observation.
    fn observation_times(&self) -> Vec<Instant> {
        let mut rng = Rng::stream(self.seed, "moments");
        let span = self.pattern.span.as_nanos();
        let mut observation_times: Vec<_> =
            (0..20).map(|_| Instant::from_nanos(rng.below(2 * span + 1))).collect();
        observation_times.sort_unstable();
        observation_times
    }
}

/// The rate and the delay as functions of time.
struct Profiles {
    rate: Vec<(u64, BitRate)>,
    delay: Vec<(u64, Duration)>,
}

impl Profiles {
    fn of(setup: &Setup) -> Self {
        Self { rate: vec![(0, setup.rate)], delay: vec![(0, setup.delay)] }
    }

    /// Adds a change to the profiles and returns it.
    fn apply(&mut self, at: Instant, kind: ChangeKind, channel: &mut Rng) -> Change {
        let nanos = at.as_nanos();
        let mut change = Change::default();
        match kind {
            ChangeKind::Rate(rate) => {
                self.from(nanos);
                self.rate.push((nanos, rate));
                change.rate = Some(steps_profile(self.rate.iter().copied()));
            }
            ChangeKind::Outage(time) => {
                let (_, last) = *self.rate.last().expect("there is one");
                self.from(nanos);
                self.rate.extend([(nanos, BitRate(0)), (nanos + time.as_nanos(), last)]);
                change.rate = Some(steps_profile(self.rate.iter().copied()));
            }
            ChangeKind::Delay(delay) => {
                self.delay.retain(|&(at, _)| at < nanos);
                self.delay.push((nanos, delay));
                change.delay = Some(Profile::Constant(delay));
            }
            ChangeKind::BitErrorRate(rate) => {
                let rate = Probability::new(rate).expect("a probability");
                let rng = Rng::stream(channel.next_u64(), "channel");
                change.channel = Some(Channel::bit_errors(rate, rng));
            }
        }
        change
    }

    /// Removes steps from this time on.
    fn from(&mut self, nanos: u64) {
        self.rate.retain(|&(at, _)| at < nanos);
    }
}

fn steps_profile<T: Copy>(steps: impl Iterator<Item = (u64, T)>) -> Profile<T> {
    let steps = steps.map(|(at, value)| (Instant::from_nanos(at), value));
    Profile::steps(steps.collect()).expect("increases from zero")
}

fn graph(setup: &Setup, profiles: Profiles) -> Graph<Direction> {
    let mut graph = Graph::default();
    let errors = Probability::new(setup.bit_error_rate).expect("a probability");
    let direction = Direction::new(DirectionConfig {
        rate: steps_profile(profiles.rate.into_iter()),
        delay: steps_profile(profiles.delay.into_iter()),
        framing: Framing::overhead(8),
        queue: setup.queue.clone(),
        channel: Channel::bit_errors(errors, Rng::stream(setup.seed, "channel")),
    });
    graph.add(direction.expect("the rate ends above zero"));
    graph
}

/// A direction that was changed.
struct Outcome {
    graph: Graph<Direction>,
    /// The profiles that contain all changes.
    profiles: Profiles,
    fed: Vec<(Instant, Packet)>,
    outputs: Vec<(Instant, Packet)>,
}

fn out((at, _, _, packet): Egress) -> (Instant, Packet) {
    (at, packet)
}

/// Feeds a direction and changes it, and calls `observe` now and then.
fn run(setup: &Setup, mut observe: impl FnMut(&mut Graph<Direction>, Instant, usize)) -> Outcome {
    let (mut graph, mut profiles) = (graph(setup, Profiles::of(setup)), Profiles::of(setup));
    let mut channel = Rng::stream(setup.seed, "orders");
    let mut script = setup.script().into_iter().peekable();
    let mut observation_times = setup.observation_times().into_iter().peekable();
    let (mut changed_at, mut changes, mut fed) = (Instant::START, setup.changes.iter(), Vec::new());
    loop {
        let timed = changes.next();
        let until = timed.map_or(END, |timed| changed_at + Duration::from_nanos(timed.gap_ns));
        while let Some((at, packet)) = script.next_if(|(at, _)| *at <= until) {
            while let Some(instant) = observation_times.next_if(|&instant| instant <= at) {
                let instant = instant.max(graph.now());
                graph.run_until(instant, None);
                observe(&mut graph, instant, fed.len());
            }
            let at = at.max(graph.now());
            fed.push((at, packet.clone()));
            graph.inject(at, (NODE, Direction::IN), packet, None);
        }
        let Some(timed) = timed else { break };
        changed_at = time_without_frame_end(&mut graph, until);
        observe(&mut graph, changed_at, fed.len());
        let change = profiles.apply(changed_at, timed.kind, &mut channel);
        let changed = graph.alter(changed_at, NODE, None, |it, _| it.change(changed_at, change));
        changed.expect("the rate ends above zero");
        // At a higher rate the frame on the transmitter may end at once, and without a delay arrive.
        graph.run_until(changed_at, None);
        observe(&mut graph, changed_at, fed.len());
    }
    graph.run_until(END, None);
    let outputs = graph.drain_egress().map(out).collect();
    Outcome { graph, profiles, fed, outputs }
}

/// The first time from `from` on in whose nanosecond no frame ends. Whether the remaining fraction of a
/// nanosecond of such a frame counts as before the change or after it depends on rounding: with a profile it
/// is after, with a change before.
fn time_without_frame_end(graph: &mut Graph<Direction>, from: Instant) -> Instant {
    let mut at = from;
    let mut sent = |at| {
        graph.run_until(at, None);
        graph.engine_mut(NODE).counters_at(at).sent_packets
    };
    let mut before = sent(at);
    loop {
        at += Duration::from_nanos(1);
        let after = sent(at);
        if before == after {
            return at;
        }
        before = after;
    }
}

/// `1..=mantissa_max` times a power of ten up to `exponent_max`: as many small as large numbers.
fn scaled(mantissa_max: u64, exponent_max: u32) -> impl Strategy<Value = u64> {
    (1..=mantissa_max, 0..=exponent_max)
        .prop_map(|(mantissa, exponent)| mantissa * 10u64.pow(exponent))
}

/// From 10 bit/s to 10 Gbit/s.
fn rates() -> impl Strategy<Value = BitRate> {
    scaled(9_999, 6).prop_map(|rate| BitRate(10 * rate))
}

fn delays() -> impl Strategy<Value = Duration> {
    let some = scaled(999, 6).prop_map(Duration::from_nanos);
    prop_oneof![1 => Just(Duration::ZERO), 4 => some]
}

fn error_rates() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.0), Just(1e-3), Just(1e-5)]
}

fn changes(channel_too: bool) -> impl Strategy<Value = Vec<TimedChange>> {
    let kind = prop_oneof![
        3 => rates().prop_map(ChangeKind::Rate),
        2 => scaled(999, 7).prop_map(Duration::from_nanos).prop_map(ChangeKind::Outage),
        2 => delays().prop_map(ChangeKind::Delay),
        u32::from(channel_too) => error_rates().prop_map(ChangeKind::BitErrorRate),
    ];
    let change = (scaled(999, 7), kind).prop_map(|(gap_ns, kind)| TimedChange { gap_ns, kind });
    proptest::collection::vec(change, 1..8)
}

fn drop_tail(limit: Limit) -> Queue {
    Queue::DropAtEnqueue(DropAtEnqueue::DropTail(DropTail::new(limit)))
}

/// Limits that do not depend on the future rate, which a profile contains and a change does not.
fn limits() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (0u64..40_000).prop_map(Limit::Bytes),
        (0u64..40).prop_map(Limit::Packets),
        Just(Limit::Unlimited),
    ]
}

fn queues() -> impl Strategy<Value = Queue> {
    let (target, interval) = (Duration::from_millis(5), Duration::from_millis(100));
    let limit = Limit::Packets(30);
    let ratio = |value| Ratio::new(value).expect("in range");
    let at_enqueue = Queue::DropAtEnqueue;
    let at_dequeue = |discipline| Queue::DropAtDequeue(Box::new(discipline));
    let fq = FqCoDelConfig { limit, target, interval, quantum_bytes: 1_514, queues: 16, ecn: true };
    prop_oneof![
        limits().prop_map(drop_tail),
        delays().prop_map(Limit::Time).prop_map(drop_tail),
        Just(at_enqueue(DropAtEnqueue::Red(Red::new(red(limit), Rng::stream(1, "red"))))),
        Just(at_enqueue(DropAtEnqueue::PerFlow(PerFlow::new(limit, Limit::Packets(8))))),
        Just(at_enqueue(DropAtEnqueue::SelectiveDrop(SelectiveDrop::new(
            limit,
            ratio(0.5),
            ratio(0.8)
        )))),
        Just(at_dequeue(DropAtDequeue::CoDel(CoDel::new(CoDelConfig {
            limit,
            target,
            interval,
            ecn: true
        })))),
        Just(at_dequeue(DropAtDequeue::FqCoDel(FqCoDel::new(fq, 7)))),
    ]
}

fn setups(changes: impl Strategy<Value = Vec<TimedChange>>) -> impl Strategy<Value = Setup> {
    let patterns = (1u64..120, scaled(999, 7), scaled(99, 5), 1u64..40, 28u32..9_000).prop_map(
        |(packets, span, pause, burst_packets_max, bytes_max)| ArrivalPattern {
            packets,
            span: Duration::from_nanos(span),
            pause_max: Duration::from_nanos(pause),
            burst_packets_max,
            flows: FLOWS,
            bytes: 28..=bytes_max,
            ..ArrivalPattern::mixed(vec![Direction::IN])
        },
    );
    let parts = (rates(), delays(), limits(), error_rates(), patterns, changes, any::<u64>());
    parts.prop_map(|(rate, delay, limit, bit_error_rate, pattern, changes, seed)| Setup {
        rate,
        delay,
        queue: drop_tail(limit),
        bit_error_rate,
        pattern,
        changes,
        seed,
    })
}
