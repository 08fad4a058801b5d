//! Property tests of one direction of a link: the conformance kit, and a reference that computes the
//! times of each packet exactly, by brute force, from the rules that `link` states. `PROPTEST_CASES` and
//! `PROPTEST_RNG_SEED` run more cases, or the same ones again; a failure prints the setup.

use bentpipe_core::conformance::{ArrivalPattern, Guarantees, Script, check};
use bentpipe_core::engine::{Count, Cx, Engine, Ledger, Outbox};
use bentpipe_core::graph::Graph;
use bentpipe_core::link::{
    Channel, ChannelState, CoDel, CoDelConfig, Counters, Direction, DirectionConfig, DropAtDequeue,
    DropAtEnqueue, DropTail, ErrorRates, Framing, Limit, Queue, Transmission,
};
use bentpipe_core::packet::{FlowId, Packet, PacketId};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, Event, EventKind, NodeId, VecTrace};
use bentpipe_core::units::{BitRate, Bits, Probability};
use proptest::prelude::*;

proptest! {
    #![proptest_config(configured())]

    #[test]
    fn every_direction_keeps_the_invariants(setup in setups()) {
        let delay_min = setup.delay.values().min().expect("a profile has a value");
        let guarantees =
            Guarantees { minimum_delay: vec![(Direction::OUT, delay_min)], ..Guarantees::default() };
        let verdict = check(|| setup.direction(), &guarantees, &setup.script());
        prop_assert!(verdict.is_ok(), "{}", verdict.expect_err("it is an error"));
    }

    #[test]
    fn every_packet_has_the_times_of_the_reference(setup in setups()) {
        let (script, mut trace) = (setup.script(), VecTrace::default());
        let all = reference(&setup, &script);
        let (mut graph, node) = graph(&setup);
        for (at, port, packet) in &script {
            graph.inject(*at, (node, *port), packet.clone(), Some(&mut trace));
        }
        graph.run_until(END, Some(&mut trace));
        let egress = graph.drain_egress();
        let outputs: Vec<_> = egress.map(|(at, _, _, packet)| (at, packet)).collect();
        let delivered = all.iter().filter(|times| times.is_delivered());
        let expected: Vec<_> = delivered.map(|times| (times.arrival(), times.packet.clone())).collect();
        prop_assert_eq!(outputs, expected, "in FIFO order");
        prop_assert_eq!(in_order(trace.0), in_order(events(&all)));
        let found = graph.engine_mut(node).counters_at(END);
        prop_assert_eq!(found, counters(&setup, &all, END));
        prop_assert_eq!(graph.engine(node).ledger(), ledger(&all, END));
    }

    #[test]
    fn counters_are_exact_at_any_time_and_reading_them_changes_nothing(setup in setups()) {
        let script = setup.script();
        let all = reference(&setup, &script);
        let (mut observed, node) = graph(&setup);
        let (mut unobserved, _) = graph(&setup);
        let mut arrivals = script.iter().peekable();
        for instant in observation_times(&setup, &all) {
            while let Some((at, port, packet)) = arrivals.next_if(|arrival| arrival.0 <= instant) {
                observed.inject(*at, (node, *port), packet.clone(), None);
                unobserved.inject(*at, (node, *port), packet.clone(), None);
            }
            observed.run_until(instant, None);
            let expected = counters(&setup, &all, instant);
            prop_assert_eq!(observed.engine(node).ledger(), ledger(&all, instant), "at {}", instant);
            prop_assert_eq!(observed.engine_mut(node).counters_at(instant), expected, "at {}", instant);
            prop_assert_eq!(observed.engine_mut(node).counters_at(instant), expected, "read twice");
            prop_assert_eq!(observed.engine(node).ledger(), ledger(&all, instant), "at {}", instant);
        }
        unobserved.run_until(END, None);
        prop_assert!(observed.drain_egress().eq(unobserved.drain_egress()));
    }

    /// `CoDel` with a target that no sojourn time reaches is a FIFO with the same room at the same times.
    #[test]
    fn codel_without_a_reachable_target_is_drop_tail(setup in setups()) {
        let queue = match setup.queue {
            // A discipline that drops at dequeue also holds the packet that is sent at once.
            Limit::Packets(max) => Limit::Packets(max.max(1)),
            _ => Limit::Unlimited,
        };
        let setup = Setup { queue, ..setup };
        let (script, mut traces) = (setup.script(), [VecTrace::default(), VecTrace::default()]);
        let codel = DirectionConfig { queue: codel_without_drops(queue), ..setup.config() };
        let (mut codel, mut drop_tail) = (graph_of(codel), graph_of(setup.config()));
        let mut arrivals = script.iter().peekable();
        for instant in observation_times(&setup, &reference(&setup, &script)) {
            while let Some((at, port, packet)) = arrivals.next_if(|arrival| arrival.0 <= instant) {
                codel.inject(*at, (NodeId(0), *port), packet.clone(), Some(&mut traces[0]));
                drop_tail.inject(*at, (NodeId(0), *port), packet.clone(), Some(&mut traces[1]));
            }
            let [codel, drop_tail] = [(&mut codel, 0), (&mut drop_tail, 1)].map(|(graph, number)| {
                graph.run_until(instant, Some(&mut traces[number]));
                let counters = graph.engine_mut(NodeId(0)).counters_at(instant);
                (Counters { queue_max_bytes: 0, ..counters }, graph.engine(NodeId(0)).ledger())
            });
            prop_assert_eq!(codel, drop_tail, "at {}", instant);
        }
        codel.run_until(END, Some(&mut traces[0]));
        drop_tail.run_until(END, Some(&mut traces[1]));
        prop_assert!(codel.drain_egress().eq(drop_tail.drain_egress()));
        let [codel, drop_tail] = traces.map(|trace| in_order(trace.0));
        prop_assert_eq!(codel, drop_tail);
    }

    /// A profile whose steps all have one rate is equivalent to that rate.
    #[test]
    fn steps_of_one_rate_are_a_constant_rate(
        setup in setups(), rate in rates(), gaps in proptest::collection::vec(scaled(999, 9), 0..9),
    ) {
        let gaps = gaps.into_iter().map(|gap| (gap, rate));
        let constant = Setup { rate: Profile::Constant(rate), ..setup.clone() };
        let steps = Setup { rate: profile(rate, gaps), ..setup };
        let script = constant.script();
        prop_assert_eq!(reference(&constant, &script), reference(&steps, &script));
        let outputs = [constant, steps].map(|setup| {
            let (mut graph, node) = graph(&setup);
            for (at, port, packet) in &script {
                graph.inject(*at, (node, *port), packet.clone(), None);
            }
            graph.run_until(END, None);
            graph.drain_egress().collect::<Vec<_>>()
        });
        prop_assert_eq!(&outputs[0], &outputs[1]);
    }
}

/// Given 100 bit/s and a second of delay, at most one frame of 36 bytes or more is in flight; with the one
/// being sent and 20 waiting, 22 are held. 20,000 packets in a week are twice the rate.
#[test]
fn a_week_of_overload_stays_within_the_limit() {
    let setup = Setup { rate: Profile::Constant(BitRate(100)), ..error_free(Limit::Packets(20)) };
    let guarantees = Guarantees { held_packets_max: Some(22), ..Guarantees::default() };
    let script = ArrivalPattern::week(vec![Direction::IN], 20_000).script(1);
    assert_eq!(check(|| setup.direction(), &guarantees, &script), Ok(()));
    let all = reference(&setup, &script);
    let lost = all.iter().filter(|times| times.link.is_none()).count();
    assert!(lost > 8_000, "{lost}");
}

/// Given 2,000 packets in a week, expect no more than a burst of 25 at a time.
#[test]
fn a_week_of_light_load_holds_few_packets() {
    let setup = error_free(Limit::Unlimited);
    let guarantees = Guarantees { held_packets_max: Some(50), ..Guarantees::default() };
    for seed in 0..3 {
        let script = ArrivalPattern::week(vec![Direction::IN], 2_000).script(seed);
        assert_eq!(check(|| setup.direction(), &guarantees, &script), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_rate_that_ends_at_zero_is_rejected() {
    let rate = Profile::steps(vec![(Instant::START, BitRate(1)), (END, BitRate(0))]);
    let setup = Setup { rate: rate.expect("increases"), ..error_free(Limit::Unlimited) };
    assert!(Direction::new(setup.config()).is_none());
}

#[test]
fn received_packets_are_counted() {
    let setup = error_free(Limit::Packets(0));
    let (mut graph, node) = graph(&setup);
    let mut expected = Count::default();
    for (at, port, packet) in setup.script() {
        expected.add(packet.bytes);
        graph.inject(at, (node, port), packet, None);
    }
    assert_eq!(graph.engine(node).received(), expected);
}

/// The loop may deliver a packet before it wakes the direction at the same instant.
#[test]
fn a_packet_that_arrives_as_the_transmitter_becomes_free_finds_room() {
    // A thousand bytes with their framing take 8 ms, and one packet may wait.
    let one = Limit::Packets(1);
    for queue in [codel_without_drops(one), error_free(one).config().queue] {
        let config = DirectionConfig { queue, ..error_free(one).config() };
        let mut direction = Direction::new(config).expect("a rate above zero");
        let mut outbox = Outbox::new();
        for (millis, serial) in [(0, 0), (0, 1), (8, 2)] {
            let created_at = Instant::from_millis(millis);
            let (id, flow) = (PacketId(serial), FlowId(0));
            let packet = Packet { id, created_at, flow, bytes: 992, ..Packet::default() };
            let mut cx = Cx::new(created_at, NodeId(0), &mut outbox, None);
            direction.input(&mut cx, Direction::IN, Box::new(packet));
        }
        let found = direction.counters_at(Instant::from_millis(8));
        assert_eq!((found.queue_packets, found.dropped), (1, Default::default()));
    }
}

/// Later than all events of a setup: 120 frames of 9,100 bytes at 1 bit/s take 100 days.
const END: Instant = Instant::from_nanos(1 << 62);

fn configured() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let cases = from_environment.cases.max(1_000);
    ProptestConfig { cases, failure_persistence: None, ..from_environment }
}

#[derive(Clone, Debug)]
enum Errors {
    Constant(Probability),
    TwoStates(ChannelState, ChannelState),
    Series(Profile<ErrorRates>),
}

/// A direction and its input.
#[derive(Clone, Debug)]
struct Setup {
    rate: Profile<BitRate>,
    delay: Profile<Duration>,
    framing_overhead: u32,
    queue: Limit,
    errors: Errors,
    pattern: ArrivalPattern,
    seed: u64,
}

impl Setup {
    fn script(&self) -> Script {
        self.pattern.script(self.seed)
    }

    fn channel(&self) -> Channel {
        let stream = |name| Rng::stream(self.seed, name);
        match &self.errors {
            Errors::Constant(rate) => Channel::bit_errors(*rate, stream("link.forward")),
            Errors::TwoStates(good, bad) => {
                Channel::gilbert_elliott(*good, *bad, stream("states"), stream("link.forward"))
            }
            Errors::Series(errors) => Channel::series(errors, stream("link.forward")),
        }
    }

    fn config(&self) -> DirectionConfig {
        DirectionConfig {
            rate: self.rate.clone(),
            delay: self.delay.clone(),
            framing: Framing::overhead(self.framing_overhead),
            queue: Queue::DropAtEnqueue(DropAtEnqueue::DropTail(DropTail::new(self.queue))),
            channel: self.channel(),
        }
    }

    fn direction(&self) -> Direction {
        Direction::new(self.config()).expect("the last rate is above zero")
    }
}

/// 1 Mbit/s and a second of delay, without errors.
fn error_free(queue: Limit) -> Setup {
    Setup {
        rate: Profile::Constant(BitRate(1_000_000)),
        delay: Profile::Constant(Duration::from_secs(1)),
        framing_overhead: 8,
        queue,
        errors: Errors::Constant(Probability::default()),
        pattern: ArrivalPattern::mixed(vec![Direction::IN]),
        seed: 1,
    }
}

fn graph(setup: &Setup) -> (Graph<Direction>, NodeId) {
    let mut graph = Graph::default();
    let node = graph.add(setup.direction());
    (graph, node)
}

fn graph_of(config: DirectionConfig) -> Graph<Direction> {
    let mut graph = Graph::default();
    graph.add(Direction::new(config).expect("the last rate is above zero"));
    graph
}

fn codel_without_drops(limit: Limit) -> Queue {
    let (target, interval) = (Duration::from_nanos(u64::MAX), Duration::from_secs(1));
    let config = CoDelConfig { limit, target, interval, ecn: false };
    Queue::DropAtDequeue(Box::new(DropAtDequeue::CoDel(CoDel::new(config))))
}

/// `1..=mantissa_max` times a power of ten up to `exponent_max`: as many small as large numbers.
fn scaled(mantissa_max: u64, exponent_max: u32) -> impl Strategy<Value = u64> {
    (1..=mantissa_max, 0..=exponent_max)
        .prop_map(|(mantissa, exponent)| mantissa * 10u64.pow(exponent))
}

/// From 1 bit/s to 10 Tbit/s, most of them not an integer number of nanoseconds per byte.
fn rates() -> impl Strategy<Value = BitRate> {
    scaled(9_999, 9).prop_map(BitRate)
}

fn delays() -> impl Strategy<Value = Duration> {
    let some = scaled(999, 6).prop_map(Duration::from_nanos);
    prop_oneof![1 => Just(Duration::ZERO), 4 => some]
}

/// A profile that starts with `first` and changes after each gap, in nanoseconds.
fn profile<T: Copy>(first: T, changes: impl IntoIterator<Item = (u64, T)>) -> Profile<T> {
    let mut steps = vec![(Instant::START, first)];
    for (gap, value) in changes {
        let last = steps[steps.len() - 1].0;
        steps.push((last + Duration::from_nanos(gap), value));
    }
    Profile::steps(steps).expect("gaps are above zero")
}

fn rate_profiles() -> impl Strategy<Value = Profile<BitRate>> {
    let or_outage = || prop_oneof![1 => Just(BitRate(0)), 3 => rates()];
    let changes = proptest::collection::vec((scaled(999, 7), or_outage()), 0..8);
    let steps = (or_outage(), changes, (scaled(999, 7), rates()));
    prop_oneof![
        rates().prop_map(Profile::Constant),
        steps.prop_map(|(first, changes, last)| profile(first, changes.into_iter().chain([last]))),
    ]
}

fn delay_profiles() -> impl Strategy<Value = Profile<Duration>> {
    let changes = proptest::collection::vec((scaled(999, 7), delays()), 0..6);
    prop_oneof![
        delays().prop_map(Profile::Constant),
        (delays(), changes).prop_map(|(first, changes)| profile(first, changes)),
    ]
}

fn limits() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (0u64..40_000).prop_map(Limit::Bytes),
        (0u64..40).prop_map(Limit::Packets),
        delays().prop_map(Limit::Time),
        Just(Limit::Unlimited),
    ]
}

fn probabilities() -> impl Strategy<Value = Probability> {
    let some = (1u32..10, 0i32..8).prop_map(|(mantissa, exponent)| {
        f64::from(mantissa) * libm::pow(0.1, f64::from(1 + exponent))
    });
    prop_oneof![3 => Just(0.0), 1 => Just(1.0), 5 => some]
        .prop_map(|value| Probability::new(value).expect("a probability"))
}

fn error_rates() -> impl Strategy<Value = ErrorRates> {
    (probabilities(), probabilities())
        .prop_map(|(bit_error_rate, loss_rate)| ErrorRates { bit_error_rate, loss_rate })
}

/// Sojourn times of 100 ms to 1,000 s: shorter ones would be many over the months of the slowest rates.
fn states() -> impl Strategy<Value = ChannelState> {
    let means = scaled(999, 3).prop_map(|mean| Duration::from_millis(100 * mean));
    (error_rates(), means)
        .prop_map(|(errors, mean_duration)| ChannelState { errors, mean_duration })
}

fn errors() -> impl Strategy<Value = Errors> {
    let changes = proptest::collection::vec((scaled(999, 7), error_rates()), 0..8);
    prop_oneof![
        2 => probabilities().prop_map(Errors::Constant),
        1 => (states(), states()).prop_map(|(good, bad)| Errors::TwoStates(good, bad)),
        1 => (error_rates(), changes)
            .prop_map(|(first, changes)| Errors::Series(profile(first, changes))),
    ]
}

fn patterns() -> impl Strategy<Value = ArrivalPattern> {
    (1u64..120, scaled(999, 7), scaled(99, 5), 1u64..40, 1u32..9_000).prop_map(
        |(packets, span, pause, burst_packets_max, bytes_max)| ArrivalPattern {
            packets,
            span: Duration::from_nanos(span),
            pause_max: Duration::from_nanos(pause),
            burst_packets_max,
            bytes: 1..=bytes_max,
            ..ArrivalPattern::mixed(vec![Direction::IN])
        },
    )
}

fn setups() -> impl Strategy<Value = Setup> {
    let framing = prop_oneof![Just(0u32), Just(8), Just(100)];
    let parts = (rate_profiles(), delay_profiles(), framing, limits(), errors(), patterns());
    (parts, any::<u64>()).prop_map(
        |((rate, delay, framing_overhead, queue, errors, pattern), seed)| Setup {
            rate,
            delay,
            framing_overhead,
            queue,
            errors,
            pattern,
            seed,
        },
    )
}

/// The times of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Times {
    arrived: Instant,
    packet: Packet,
    /// `None` if the queue was full.
    link: Option<LinkTimes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinkTimes {
    start: Instant,
    departure: Instant,
    arrival: Instant,
    corrupted: bool,
}

impl Times {
    fn is_delivered(&self) -> bool {
        self.link.is_some_and(|link| !link.corrupted)
    }

    fn arrival(&self) -> Instant {
        self.link.expect("it was accepted").arrival
    }
}

/// The work that a link with this rate can do from the start of the run to `nanos`, in billionths of a bit:
/// an integer at every nanosecond.
fn work_until(rate: &Profile<BitRate>, nanos: u64) -> u128 {
    let steps = match rate {
        Profile::Constant(rate) => &vec![(Instant::START, *rate)],
        Profile::Steps(steps) => steps,
    };
    let ends = steps.iter().skip(1).map(|step| step.0.as_nanos()).chain([u64::MAX]);
    let pieces = steps.iter().zip(ends).map(|(step, end)| {
        let time = nanos.min(end).saturating_sub(step.0.as_nanos());
        u128::from(time) * u128::from(step.1.0)
    });
    pieces.sum()
}

/// The time at which that work is done, rounded down to a nanosecond, by bisection.
fn done(rate: &Profile<BitRate>, work: u128) -> Instant {
    let (mut low, mut high) = (0, END.as_nanos());
    while low < high {
        let middle = low + (high - low) / 2;
        if work_until(rate, middle) >= work {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let exactly = work_until(rate, low) == work;
    Instant::from_nanos(if exactly { low } else { low - 1 })
}

/// The times of each packet. The transmitter conserves work: from the arrival of a packet that finds it
/// idle, it sends at the full rate, without rounding, until nothing waits.
fn reference(setup: &Setup, script: &Script) -> Vec<Times> {
    let mut channel = setup.channel();
    let (mut work, mut free_at, mut last_arrival) = (0, Instant::START, Instant::START);
    let mut all: Vec<Times> = Vec::new();
    for (arrived, _, packet) in script {
        let packet = Packet { transmitted: true, ..packet.clone() };
        let mut times = Times { arrived: *arrived, packet, link: None };
        if admits(setup.queue, &all, &times, free_at) {
            let frame = u64::from(times.packet.bytes + setup.framing_overhead);
            let start = free_at.max(*arrived);
            work = work.max(work_until(&setup.rate, arrived.as_nanos()))
                + u128::from(frame) * 8 * 1_000_000_000;
            let departure = done(&setup.rate, work);
            let arrival = last_arrival.max(departure + setup.delay.at(departure));
            let corrupted =
                channel.corrupts(*arrived, Transmission { start, departure }, Bits(8 * frame));
            times.link = Some(LinkTimes { start, departure, arrival, corrupted });
            (free_at, last_arrival) = (departure, arrival);
        }
        all.push(times);
    }
    all
}

/// Whether the packet is within the limit; a packet that starts at once always is.
fn admits(limit: Limit, before: &[Times], times: &Times, free_at: Instant) -> bool {
    if free_at <= times.arrived {
        return true;
    }
    let (bytes, packets) = waiting(before, times.arrived);
    match limit {
        Limit::Bytes(max) => bytes + u64::from(times.packet.bytes) <= max,
        Limit::Packets(max) => packets < max,
        Limit::Time(max) => free_at - times.arrived <= max,
        Limit::Unlimited => true,
        Limit::LinkBytes(_) => unreachable!("not among the setups"),
    }
}

/// IP bytes and packets that arrived by `now` and start after it.
fn waiting(all: &[Times], now: Instant) -> (u64, u64) {
    let count = count(all, |times, link| times.arrived <= now && link.start > now);
    (count.bytes, count.packets)
}

/// Counts the accepted packets that satisfy a predicate.
fn count(all: &[Times], predicate: impl Fn(&Times, &LinkTimes) -> bool) -> Count {
    let mut count = Count::default();
    for times in all {
        if times.link.as_ref().is_some_and(|link| predicate(times, link)) {
            count.add(times.packet.bytes);
        }
    }
    count
}

fn dropped(all: &[Times], now: Instant) -> [Count; DropCause::ALL.len()] {
    let mut queue_full = Count::default();
    for times in all.iter().filter(|times| times.arrived <= now && times.link.is_none()) {
        queue_full.add(times.packet.bytes);
    }
    let mut dropped = [Count::default(); DropCause::ALL.len()];
    dropped[DropCause::QueueFull as usize] = queue_full;
    dropped[DropCause::BitError as usize] =
        count(all, |_, link| link.corrupted && link.arrival <= now);
    dropped
}

fn counters(setup: &Setup, all: &[Times], now: Instant) -> Counters {
    let sent = count(all, |_, link| link.departure <= now);
    let arrived = || all.iter().filter(|times| times.arrived <= now);
    let busy = arrived().filter_map(|times| times.link).filter(|link| link.departure <= now);
    let (queue_bytes, queue_packets) = waiting(all, now);
    // The queue is longest just after an arrival.
    let max = (0..arrived().count()).map(|n| waiting(&all[..=n], all[n].arrived).0);
    Counters {
        marked: Count::default(),
        sent_packets: sent.packets,
        sent_bits: 8 * (sent.bytes + sent.packets * u64::from(setup.framing_overhead)),
        delivered: count(all, |_, link| !link.corrupted && link.arrival <= now),
        dropped: dropped(all, now),
        busy: busy.fold(Duration::ZERO, |sum, link| sum + (link.departure - link.start)),
        queue_bytes,
        queue_packets,
        queue_max_bytes: max.max().unwrap_or(0),
        sending_bytes: count(all, |times, link| {
            times.arrived <= now && link.start <= now && now < link.departure
        })
        .bytes,
        in_flight_bytes: count(all, |_, link| link.departure <= now && now < link.arrival).bytes,
    }
}

fn ledger(all: &[Times], now: Instant) -> Ledger {
    let mut received = Count::default();
    let arrived = all.iter().filter(|times| times.arrived <= now);
    arrived.for_each(|times| received.add(times.packet.bytes));
    Ledger {
        received,
        sent: count(all, |_, link| !link.corrupted && link.arrival <= now),
        dropped: dropped(all, now),
        held: count(all, |times, link| times.arrived <= now && now < link.arrival),
        ..Ledger::default()
    }
}

/// The events that a direction should report for these packets.
fn events(all: &[Times]) -> Vec<Event> {
    let mut events = Vec::new();
    for Times { arrived, packet, link } in all {
        let mut event = |at, kind| {
            let (flow, bytes) = (packet.flow, packet.bytes);
            events.push(Event { at, node: NodeId(0), kind, flow, packet: packet.id, bytes });
        };
        let Some(link) = link else {
            event(*arrived, EventKind::Dropped(DropCause::QueueFull));
            continue;
        };
        event(*arrived, EventKind::Enqueued);
        event(link.start, EventKind::Transmitted);
        let corrupted = EventKind::Dropped(DropCause::BitError);
        event(link.arrival, if link.corrupted { corrupted } else { EventKind::Delivered });
    }
    events
}

fn in_order(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_key(|event| (event.at, event.packet, event.kind.number()));
    events
}

/// Times of events and those just before and after, and some at random.
fn observation_times(setup: &Setup, all: &[Times]) -> Vec<Instant> {
    let mut rng = Rng::stream(setup.seed, "moments");
    let mut observation_times = vec![Instant::START, END];
    for link in all.iter().filter_map(|times| times.link) {
        if rng.below(4) > 0 {
            continue;
        }
        for event in [link.start, link.departure, link.arrival].map(Instant::as_nanos) {
            let nanos = [event.saturating_sub(1), event, event + 1, rng.below(event + 1)];
            observation_times.extend(nanos.map(Instant::from_nanos));
        }
    }
    observation_times.sort_unstable();
    observation_times
}
