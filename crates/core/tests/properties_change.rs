//! A direction that is altered while it runs: against one whose profiles said so from the start, and
//! against the laws that hold whatever happens.
//!
//! `PROPTEST_CASES` and `PROPTEST_RNG_SEED` (read by proptest) run more cases, or the same ones; a
//! failure prints the set-up that shows it.

use bentpipe_core::conformance::ArrivalPattern;
use bentpipe_core::engine::Engine;
use bentpipe_core::graph::{Egress, Graph};
use bentpipe_core::link::{
    Change, Channel, ChannelState, CoDel, CoDelConfig, Counters, Direction, DirectionConfig,
    DropAtDequeue, DropAtEnqueue, DropTail, ErrorRates, FqCoDel, FqCoDelConfig, Framing, Limit,
    PerFlow, Queue, Ratio, Red, RedConfig, SelectiveDrop, Unit,
};
use bentpipe_core::packet::{FlowId, Packet, PacketId};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, NodeId};
use bentpipe_core::units::{BitRate, Bits, Probability};
use proptest::prelude::*;

proptest! {
    #![proptest_config(configured())]

    /// Given changes of rate and delay and outages at random moments, expect what a direction does
    /// that was built with all of them as its profiles.
    #[test]
    fn a_change_is_a_step_of_the_profile(setup in setups(orders(false))) {
        let mut seen = Vec::new();
        let ran = run(&setup, |graph, now, fed| {
            let counters = graph.engine_mut(NODE).counters_at(now);
            // A profile knows of a step at the instant itself: only the last look of an instant, which
            // is the one after the change, can agree with it.
            seen.pop_if(|(moment, so_far, _)| (*moment, *so_far) == (now, fed));
            seen.push((now, fed, counters));
        });
        let mut known = graph(&setup, ran.profiles);
        let mut seen = seen.into_iter().peekable();
        for ((at, packet), fed) in ran.fed.into_iter().zip(0..) {
            while let Some((moment, _, counters)) = seen.next_if(|(_, so_far, _)| *so_far <= fed) {
                known.run_until(moment, None);
                prop_assert_eq!(known.engine_mut(NODE).counters_at(moment), counters, "at {}", moment);
            }
            known.inject(at, (NODE, Direction::IN), packet, None);
        }
        known.run_until(END, None);
        prop_assert_eq!(known.drain_egress().map(out).collect::<Vec<_>>(), ran.outputs);
        let [altered, known] = [ran.graph, known].map(|mut it| it.engine_mut(NODE).counters_at(END));
        prop_assert_eq!(altered, known);
    }

    /// Given any queue, and changes of the channel among the others, expect that packets are neither
    /// lost unseen nor doubled, that none overtakes another of its flow, that all leave in the end,
    /// and that counters never run backwards.
    #[test]
    fn nothing_is_lost_unseen_and_order_holds(
        setup in setups(orders(true)), queue in queues(),
    ) {
        let setup = Setup { queue, ..setup };
        let mut last = Counters::default();
        let Ran { graph, outputs, .. } = run(&setup, |graph, now, _| {
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

/// A line of packets of 1,000 bytes at 1 Mbit/s, 8 ms each, and 100 ms of delay.
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
        graph.add(Direction::new(config).expect("a rate"));
        let mut example = Self(graph);
        (0..packets).for_each(|serial| example.comes(0, serial));
        example
    }

    fn comes(&mut self, millis: u64, serial: u64) {
        let (at, id) = (Instant::from_millis(millis), PacketId(serial));
        let packet = Packet { id, created_at: at, bytes: 1_000, ..Packet::default() };
        self.0.inject(at, (NODE, Direction::IN), packet, None);
    }

    fn change(&mut self, millis: u64, change: Change) -> Option<()> {
        let at = Instant::from_millis(millis);
        self.0.alter(at, NODE, None, |direction| direction.change(at, change))
    }

    fn rate(&mut self, millis: u64, steps: &[(u64, u64)]) -> Option<()> {
        let rate = staircase(steps.iter().map(|&(at, bps)| (at * MS, BitRate(bps))));
        self.change(millis, Change { rate: Some(rate), ..Change::default() })
    }

    fn delay(&mut self, millis: u64, delay_millis: u64) {
        let delay = Some(Profile::Constant(Duration::from_millis(delay_millis)));
        self.change(millis, Change { delay, ..Change::default() }).expect("the rate stays");
    }

    /// When packets come out, in ms; those that are corrupted do not.
    fn out_ms(mut self) -> Vec<u64> {
        self.0.run_until(END, None);
        self.0.drain_egress().map(|(at, ..)| at.as_nanos() / MS).collect()
    }
}

/// At 20 ms two packets are out and half of the third. At 500 kbit/s its other half takes 8 ms, and
/// each of those that wait 16.
#[test]
fn what_waits_leaves_at_the_new_rate() {
    let mut example = Example::of(5);
    example.rate(20, &[(0, 500_000)]).expect("above zero");
    assert_eq!(example.out_ms(), [108, 116, 128, 144, 160]);
    let mut example = Example::of(5);
    example.rate(20, &[(0, 4_000_000)]).expect("above zero");
    assert_eq!(example.out_ms(), [108, 116, 121, 123, 125]);
}

/// Given a packet of 8,000 bits at 1 Mbit/s without delay, and 10 Gbit/s from 1 ns before its end on:
/// a thousandth of a bit is left, which takes 0.1 ps, so it ends in the nanosecond of the change. Just
/// before an order the direction cannot know of it and still sends; just after it, and at that moment
/// with the step as its profile, the packet is sent and has arrived.
#[test]
fn a_frame_that_ends_in_the_nanosecond_of_a_change_is_sent_once_the_change_is_made() {
    let at = Instant::from_nanos(8 * MS - 1);
    let steps = [(0, BitRate(1_000_000)), (at.as_nanos(), BitRate(10_000_000_000))];
    let rate = staircase(steps.into_iter());
    let counters = |example: &mut Example| {
        example.0.run_until(at, None);
        let counters = example.0.engine_mut(NODE).counters_at(at);
        (counters.sent_packets, counters.sending_bytes, counters.delivered.packets)
    };
    let no_delay = Profile::Constant(Duration::ZERO);
    let mut ordered = Example::with(Profile::Constant(BitRate(1_000_000)), no_delay.clone(), 1);
    assert_eq!(counters(&mut ordered), (0, 1_000, 0));
    let change = Change { rate: Some(rate.clone()), ..Change::default() };
    let altered = ordered.0.alter(at, NODE, None, |direction| direction.change(at, change));
    altered.expect("above zero");
    assert_eq!(counters(&mut ordered), (1, 0, 1));
    assert_eq!(counters(&mut Example::with(rate, no_delay, 1)), (1, 0, 1));
}

/// From 20 to 520 ms nothing is sent: the third packet's second half leaves from 520 to 524.
#[test]
fn an_outage_holds_the_transmitter_and_nothing_else() {
    let mut example = Example::of(4);
    example.rate(20, &[(0, 0), (520, 1_000_000)]).expect("above zero in the end");
    example.comes(300, 4);
    assert_eq!(example.out_ms(), [108, 116, 624, 632, 640]);
}

/// An outage of 500 ms that is called off after 100.
#[test]
fn an_outage_may_end_sooner_than_was_said() {
    let mut example = Example::of(4);
    example.rate(20, &[(0, 0), (520, 1_000_000)]).expect("above zero in the end");
    example.rate(120, &[(0, 1_000_000)]).expect("above zero");
    assert_eq!(example.out_ms(), [108, 116, 224, 232]);
}

/// Sent by 20 ms: two packets, which are to arrive at 108 and 116. With 50 ms from then on the third
/// leaves at 24 and would arrive at 74, before them.
#[test]
fn a_shorter_delay_lets_nobody_overtake() {
    let mut example = Example::of(10);
    example.delay(20, 50);
    assert_eq!(example.out_ms(), [108, 116, 116, 116, 116, 116, 116, 116, 122, 130]);
    let mut example = Example::of(4);
    example.delay(20, 200);
    assert_eq!(example.out_ms(), [108, 116, 224, 232]);
}

/// A delay that was shortened on an idle link, and a packet that comes while the last one with the
/// long delay is on its way.
#[test]
fn who_comes_after_a_change_does_not_overtake_either() {
    let mut example = Example::of(1);
    example.delay(20, 10);
    example.comes(30, 1);
    example.comes(300, 2);
    assert_eq!(example.out_ms(), [108, 108, 318]);
}

/// Every bit is wrong from 20 ms on: the packets of which a bit was sent by then are through.
#[test]
fn a_worse_channel_damages_what_is_not_being_sent() {
    let mut example = Example::of(5);
    let all = Probability::new(1.0).expect("a probability");
    let channel = Some(Channel::bit_errors(all, Rng::stream(1, "worse")));
    example.change(20, Change { channel, ..Change::default() }).expect("the rate stays");
    let counters = example.0.engine_mut(NODE).counters_at(Instant::from_millis(20));
    assert_eq!(counters.dropped[DropCause::BitError as usize].packets, 0, "they arrive corrupted");
    assert_eq!(example.out_ms(), [108, 116, 124]);
}

/// Given a channel that loses every frame whose first bit is sent from 20 ms on, and packets that start
/// at 0, 8, 16, 24 and 32 ms, expect that the first three arrive. At 4 Mbit/s from 10 ms on they start
/// at 0, 8, 11.5 (the second has 6 ms left, which take 1.5), 13.5 and 15.5 ms, and all arrive; at
/// 500 kbit/s the third starts at 22 ms and is lost.
#[test]
fn what_waits_meets_the_channel_of_the_moment_when_it_is_sent() {
    let all = Probability::new(1.0).expect("a probability");
    let lossy = ErrorRates { loss_rate: all, ..ErrorRates::default() };
    let errors = staircase([(0, ErrorRates::default()), (20 * MS, lossy)].into_iter());
    let example = || {
        let mut example = Example::of(0);
        let channel = Some(Channel::series(&errors, Rng::stream(1, "errors")));
        example.change(0, Change { channel, ..Change::default() }).expect("the rate stays");
        (0..5).for_each(|serial| example.comes(0, serial));
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

/// Given two states that last 10 ms in the mean and lose all or nothing, and a change to the rate that
/// holds already while 200 packets wait, expect the same losses as without it: the states are those of
/// the times when frames are sent, however often they are asked about.
#[test]
fn asking_anew_finds_the_same_states() {
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
            example.change(0, change).expect("the rate stays");
            (0..200).for_each(|serial| example.comes(0, serial));
            example
        };
        let left_alone = example().out_ms();
        let mut asked = example();
        asked.rate(5, &[(0, 1_000_000)]).expect("above zero");
        asked.rate(777, &[(0, 1_000_000)]).expect("above zero");
        assert!((20..180).contains(&left_alone.len()), "{} arrive", left_alone.len());
        assert_eq!(asked.out_ms(), left_alone, "seed {seed}");
    }
}

#[test]
fn a_rate_that_ends_at_zero_is_refused_and_changes_nothing() {
    let mut example = Example::of(3);
    assert_eq!(example.rate(20, &[(0, 4_000_000), (30, 0)]), None);
    assert_eq!(example.out_ms(), [108, 116, 124]);
}

const NODE: NodeId = NodeId(0);
const FLOWS: u32 = 3;
/// Later than anything that a set-up can do.
const END: Instant = Instant::from_nanos(1 << 62);

fn configured() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let cases = from_environment.cases.max(1_000);
    ProptestConfig { cases, failure_persistence: None, ..from_environment }
}

/// What is ordered, and how long after the order before.
#[derive(Clone, Debug)]
struct Order {
    gap_ns: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Rate(BitRate),
    /// Nothing is sent for so long, and then again at the rate that was.
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
    shape: ArrivalPattern,
    orders: Vec<Order>,
    seed: u64,
}

impl Setup {
    fn script(&self) -> Vec<(Instant, Packet)> {
        let script = self.shape.script(self.seed);
        script.into_iter().map(|(at, _, packet)| (at, packet)).collect()
    }

    /// Some to look at.
    fn moments(&self) -> Vec<Instant> {
        let mut rng = Rng::stream(self.seed, "moments");
        let span = self.shape.span.as_nanos();
        let mut moments: Vec<_> =
            (0..20).map(|_| Instant::from_nanos(rng.below(2 * span + 1))).collect();
        moments.sort_unstable();
        moments
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

    /// Notes an order, and says what it changes.
    fn order(&mut self, at: Instant, what: What, channel: &mut Rng) -> Change {
        let nanos = at.as_nanos();
        let mut change = Change::default();
        match what {
            What::Rate(rate) => {
                self.from(nanos);
                self.rate.push((nanos, rate));
                change.rate = Some(staircase(self.rate.iter().copied()));
            }
            What::Outage(time) => {
                let (_, last) = *self.rate.last().expect("there is one");
                self.from(nanos);
                self.rate.extend([(nanos, BitRate(0)), (nanos + time.as_nanos(), last)]);
                change.rate = Some(staircase(self.rate.iter().copied()));
            }
            What::Delay(delay) => {
                self.delay.retain(|&(at, _)| at < nanos);
                self.delay.push((nanos, delay));
                change.delay = Some(Profile::Constant(delay));
            }
            What::BitErrorRate(rate) => {
                let rate = Probability::new(rate).expect("a probability");
                let rng = Rng::stream(channel.next_u64(), "channel");
                change.channel = Some(Channel::bit_errors(rate, rng));
            }
        }
        change
    }

    /// Forgets what was to come.
    fn from(&mut self, nanos: u64) {
        self.rate.retain(|&(at, _)| at < nanos);
    }
}

fn staircase<T: Copy>(steps: impl Iterator<Item = (u64, T)>) -> Profile<T> {
    let steps = steps.map(|(at, value)| (Instant::from_nanos(at), value));
    Profile::steps(steps.collect()).expect("rises from zero")
}

fn graph(setup: &Setup, profiles: Profiles) -> Graph<Direction> {
    let mut graph = Graph::default();
    let errors = Probability::new(setup.bit_error_rate).expect("a probability");
    let direction = Direction::new(DirectionConfig {
        rate: staircase(profiles.rate.into_iter()),
        delay: staircase(profiles.delay.into_iter()),
        framing: Framing::overhead(8),
        queue: setup.queue.clone(),
        channel: Channel::bit_errors(errors, Rng::stream(setup.seed, "channel")),
    });
    graph.add(direction.expect("the rate ends above zero"));
    graph
}

/// A direction that was altered.
struct Ran {
    graph: Graph<Direction>,
    /// What its profiles would have said.
    profiles: Profiles,
    fed: Vec<(Instant, Packet)>,
    outputs: Vec<(Instant, Packet)>,
}

fn out((at, _, _, packet): Egress) -> (Instant, Packet) {
    (at, packet)
}

/// Feeds a direction and alters it, and has it looked at now and then.
fn run(setup: &Setup, mut look: impl FnMut(&mut Graph<Direction>, Instant, usize)) -> Ran {
    let (mut graph, mut profiles) = (graph(setup, Profiles::of(setup)), Profiles::of(setup));
    let mut channel = Rng::stream(setup.seed, "orders");
    let mut script = setup.script().into_iter().peekable();
    let mut moments = setup.moments().into_iter().peekable();
    let (mut ordered, mut orders, mut fed) = (Instant::START, setup.orders.iter(), Vec::new());
    loop {
        let order = orders.next();
        let until = order.map_or(END, |order| ordered + Duration::from_nanos(order.gap_ns));
        while let Some((at, packet)) = script.next_if(|(at, _)| *at <= until) {
            while let Some(moment) = moments.next_if(|&moment| moment <= at) {
                let moment = moment.max(graph.now());
                graph.run_until(moment, None);
                look(&mut graph, moment, fed.len());
            }
            let at = at.max(graph.now());
            fed.push((at, packet.clone()));
            graph.inject(at, (NODE, Direction::IN), packet, None);
        }
        let Some(order) = order else { break };
        ordered = quiet_moment(&mut graph, until);
        look(&mut graph, ordered, fed.len());
        let change = profiles.order(ordered, order.what, &mut channel);
        let altered = graph.alter(ordered, NODE, None, |it| it.change(ordered, change));
        altered.expect("the rate ends above zero");
        // At a higher rate the frame on the transmitter may end at once, and without a delay arrive.
        graph.run_until(ordered, None);
        look(&mut graph, ordered, fed.len());
    }
    graph.run_until(END, None);
    let outputs = graph.drain_egress().map(out).collect();
    Ran { graph, profiles, fed, outputs }
}

/// The first moment from one on in whose nanosecond no frame ends. Whether the fraction of a nanosecond
/// that such a frame may be short of its end counts as before the change or after it is a matter of
/// rounding: a profile says after, an order that comes then says before.
fn quiet_moment(graph: &mut Graph<Direction>, from: Instant) -> Instant {
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

fn orders(channel_too: bool) -> impl Strategy<Value = Vec<Order>> {
    let what = prop_oneof![
        3 => rates().prop_map(What::Rate),
        2 => scaled(999, 7).prop_map(Duration::from_nanos).prop_map(What::Outage),
        2 => delays().prop_map(What::Delay),
        u32::from(channel_too) => error_rates().prop_map(What::BitErrorRate),
    ];
    let order = (scaled(999, 7), what).prop_map(|(gap_ns, what)| Order { gap_ns, what });
    proptest::collection::vec(order, 1..8)
}

fn drop_tail(limit: Limit) -> Queue {
    Queue::DropAtEnqueue(DropAtEnqueue::DropTail(DropTail::new(limit)))
}

/// With limits that do not look ahead: an order is no news to a profile.
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
    let red = RedConfig {
        limit,
        unit: Unit::Packets,
        min_threshold: 5,
        max_threshold: 15,
        max_probability: Probability::new(0.1).expect("a probability"),
        weight: Probability::new(0.1).expect("a probability"),
        gentle: true,
        ecn: true,
        mean_packet_bytes: 1_000,
        mean_frame: Bits(8 * 1_000),
    };
    let ratio = |value| Ratio::new(value).expect("in range");
    let tail = Queue::DropAtEnqueue;
    let head = |head| Queue::DropAtDequeue(Box::new(head));
    let fq = FqCoDelConfig { limit, target, interval, quantum_bytes: 1_514, queues: 16, ecn: true };
    prop_oneof![
        limits().prop_map(drop_tail),
        delays().prop_map(Limit::Time).prop_map(drop_tail),
        Just(tail(DropAtEnqueue::Red(Red::new(red, Rng::stream(1, "red"))))),
        Just(tail(DropAtEnqueue::PerFlow(PerFlow::new(limit, Limit::Packets(8))))),
        Just(tail(DropAtEnqueue::SelectiveDrop(SelectiveDrop::new(limit, ratio(0.5), ratio(0.8))))),
        Just(head(DropAtDequeue::CoDel(CoDel::new(CoDelConfig {
            limit,
            target,
            interval,
            ecn: true
        })))),
        Just(head(DropAtDequeue::FqCoDel(FqCoDel::new(fq, 7)))),
    ]
}

fn setups(orders: impl Strategy<Value = Vec<Order>>) -> impl Strategy<Value = Setup> {
    let shapes = (1u64..120, scaled(999, 7), scaled(99, 5), 1u64..40, 28u32..9_000).prop_map(
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
    let parts = (rates(), delays(), limits(), error_rates(), shapes, orders, any::<u64>());
    parts.prop_map(|(rate, delay, limit, bit_error_rate, shape, orders, seed)| Setup {
        rate,
        delay,
        queue: drop_tail(limit),
        bit_error_rate,
        shape,
        orders,
        seed,
    })
}
