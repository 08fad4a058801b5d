//! One direction of a link, in every variant: through the conformance kit, and against a reference
//! that computes each packet's way exactly, by brute force, from the rules that `link` states.
//! `PROPTEST_CASES` and `PROPTEST_RNG_SEED` (read by proptest) run more cases, or the same ones; a
//! failure prints the set-up that shows it.

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
    fn every_direction_keeps_the_laws(setup in setups()) {
        let delay_min = setup.delay.values().min().expect("a profile has a value");
        let guarantees =
            Guarantees { minimum_delay: vec![(Direction::OUT, delay_min)], ..Guarantees::default() };
        let verdict = check(|| setup.direction(), &guarantees, &setup.script());
        prop_assert!(verdict.is_ok(), "{}", verdict.expect_err("just seen"));
    }

    #[test]
    fn every_packet_goes_the_way_of_the_reference(setup in setups()) {
        let (script, mut trace) = (setup.script(), VecTrace::default());
        let ways = reference(&setup, &script);
        let (mut graph, node) = graph(&setup);
        for (at, port, packet) in &script {
            graph.inject(*at, (node, *port), packet.clone(), Some(&mut trace));
        }
        graph.run_until(END, Some(&mut trace));
        let egress = graph.drain_egress();
        let outputs: Vec<_> = egress.map(|(at, _, _, packet)| (at, packet)).collect();
        let delivered = ways.iter().filter(|way| way.arrives_whole());
        let expected: Vec<_> = delivered.map(|way| (way.arrival(), way.packet.clone())).collect();
        prop_assert_eq!(outputs, expected, "in first-in first-out order");
        prop_assert_eq!(in_order(trace.0), in_order(facts(&ways)));
        let found = graph.engine_mut(node).counters_at(END);
        prop_assert_eq!(found, counters(&setup, &ways, END));
        prop_assert_eq!(graph.engine(node).ledger(), ledger(&ways, END));
    }

    #[test]
    fn counters_are_right_at_any_moment_and_asking_changes_nothing(setup in setups()) {
        let script = setup.script();
        let ways = reference(&setup, &script);
        let (mut asked, node) = graph(&setup);
        let (mut left_alone, _) = graph(&setup);
        let mut arrivals = script.iter().peekable();
        for moment in moments(&setup, &ways) {
            while let Some((at, port, packet)) = arrivals.next_if(|arrival| arrival.0 <= moment) {
                asked.inject(*at, (node, *port), packet.clone(), None);
                left_alone.inject(*at, (node, *port), packet.clone(), None);
            }
            asked.run_until(moment, None);
            let expected = counters(&setup, &ways, moment);
            prop_assert_eq!(asked.engine(node).ledger(), ledger(&ways, moment), "at {}", moment);
            prop_assert_eq!(asked.engine_mut(node).counters_at(moment), expected, "at {}", moment);
            prop_assert_eq!(asked.engine_mut(node).counters_at(moment), expected, "asked twice");
            prop_assert_eq!(asked.engine(node).ledger(), ledger(&ways, moment), "at {}", moment);
        }
        left_alone.run_until(END, None);
        prop_assert!(asked.drain_egress().eq(left_alone.drain_egress()));
    }

    /// `CoDel` with a target that no wait reaches is first in, first out, and has room at the same
    /// moments.
    #[test]
    fn a_head_that_drops_at_arrival_only_is_a_tail(setup in setups()) {
        let queue = match setup.queue {
            // A head also holds the packet that is let out at once.
            Limit::Packets(most) => Limit::Packets(most.max(1)),
            _ => Limit::Unlimited,
        };
        let setup = Setup { queue, ..setup };
        let (script, mut traces) = (setup.script(), [VecTrace::default(), VecTrace::default()]);
        let head = DirectionConfig { queue: patient_codel(queue), ..setup.config() };
        let (mut head, mut tail) = (graph_of(head), graph_of(setup.config()));
        let mut arrivals = script.iter().peekable();
        for moment in moments(&setup, &reference(&setup, &script)) {
            while let Some((at, port, packet)) = arrivals.next_if(|arrival| arrival.0 <= moment) {
                head.inject(*at, (NodeId(0), *port), packet.clone(), Some(&mut traces[0]));
                tail.inject(*at, (NodeId(0), *port), packet.clone(), Some(&mut traces[1]));
            }
            let [head, tail] = [(&mut head, 0), (&mut tail, 1)].map(|(graph, number)| {
                graph.run_until(moment, Some(&mut traces[number]));
                let counters = graph.engine_mut(NodeId(0)).counters_at(moment);
                (Counters { queue_bytes_max: 0, ..counters }, graph.engine(NodeId(0)).ledger())
            });
            prop_assert_eq!(head, tail, "at {}", moment);
        }
        head.run_until(END, Some(&mut traces[0]));
        tail.run_until(END, Some(&mut traces[1]));
        prop_assert!(head.drain_egress().eq(tail.drain_egress()));
        let [head, tail] = traces.map(|trace| in_order(trace.0));
        prop_assert_eq!(head, tail);
    }

    /// A staircase whose steps all have one rate is that rate.
    #[test]
    fn steps_that_change_nothing_change_nothing(
        setup in setups(), rate in rates(), gaps in proptest::collection::vec(scaled(999, 9), 0..9),
    ) {
        let gaps = gaps.into_iter().map(|gap| (gap, rate));
        let constant = Setup { rate: Profile::Constant(rate), ..setup.clone() };
        let steps = Setup { rate: staircase(rate, gaps), ..setup };
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

/// At 100 bit/s and a second of delay at most one frame of 36 bytes or more is in flight; with the
/// one being sent and 20 that wait, 22 are held. 20,000 packets in a week are twice the rate.
#[test]
fn a_week_of_overload_stays_within_the_limit() {
    let setup = Setup { rate: Profile::Constant(BitRate(100)), ..quiet(Limit::Packets(20)) };
    let guarantees = Guarantees { held_packets_max: Some(22), ..Guarantees::default() };
    let script = ArrivalPattern::week(vec![Direction::IN], 20_000).script(1);
    assert_eq!(check(|| setup.direction(), &guarantees, &script), Ok(()));
    let ways = reference(&setup, &script);
    let lost = ways.iter().filter(|way| way.on_the_link.is_none()).count();
    assert!(lost > 8_000, "{lost}");
}

/// 2,000 packets in a week, never more than a burst of 25 at a time.
#[test]
fn a_week_of_little_holds_little() {
    let setup = quiet(Limit::Unlimited);
    let guarantees = Guarantees { held_packets_max: Some(50), ..Guarantees::default() };
    for seed in 0..3 {
        let script = ArrivalPattern::week(vec![Direction::IN], 2_000).script(seed);
        assert_eq!(check(|| setup.direction(), &guarantees, &script), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_direction_that_ends_in_an_outage_is_refused() {
    let rate = Profile::steps(vec![(Instant::START, BitRate(1)), (END, BitRate(0))]);
    let setup = Setup { rate: rate.expect("rises"), ..quiet(Limit::Unlimited) };
    assert!(Direction::new(setup.config()).is_none());
}

#[test]
fn a_direction_says_what_it_received() {
    let setup = quiet(Limit::Packets(0));
    let (mut graph, node) = graph(&setup);
    let mut expected = Count::default();
    for (at, port, packet) in setup.script() {
        expected.add(packet.bytes);
        graph.inject(at, (node, port), packet, None);
    }
    assert_eq!(graph.engine(node).received(), expected);
}

/// The loop may hand a packet over before it wakes the direction at the same instant.
#[test]
fn who_comes_as_the_transmitter_becomes_free_finds_room() {
    // A thousand bytes with their framing take 8 ms, and one packet may wait.
    let one = Limit::Packets(1);
    for queue in [patient_codel(one), quiet(one).config().queue] {
        let config = DirectionConfig { queue, ..quiet(one).config() };
        let mut direction = Direction::new(config).expect("a rate");
        let mut outbox = Outbox::new();
        for (millis, serial) in [(0, 0), (0, 1), (8, 2)] {
            let created_at = Instant::from_millis(millis);
            let (id, flow) = (PacketId(serial), FlowId(0));
            let packet = Packet { id, created_at, flow, bytes: 992, ..Packet::default() };
            let mut cx = Cx::new(created_at, NodeId(0), &mut outbox, None);
            direction.input(&mut cx, Direction::IN, Box::new(packet));
        }
        let Counters { queue_packets, dropped, .. } =
            direction.counters_at(Instant::from_millis(8));
        assert_eq!((queue_packets, dropped), (1, Default::default()));
    }
}

/// Later than anything that a set-up can do: 120 frames of 9,100 bytes at 1 bit/s take 100 days.
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

/// A direction and what it is fed.
#[derive(Clone, Debug)]
struct Setup {
    rate: Profile<BitRate>,
    delay: Profile<Duration>,
    framing_overhead: u32,
    queue: Limit,
    errors: Errors,
    shape: ArrivalPattern,
    seed: u64,
}

impl Setup {
    fn script(&self) -> Script {
        self.shape.script(self.seed)
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

/// A megabit a second and a second of delay, without errors.
fn quiet(queue: Limit) -> Setup {
    Setup {
        rate: Profile::Constant(BitRate(1_000_000)),
        delay: Profile::Constant(Duration::from_secs(1)),
        framing_overhead: 8,
        queue,
        errors: Errors::Constant(Probability::default()),
        shape: ArrivalPattern::mixed(vec![Direction::IN]),
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

fn patient_codel(limit: Limit) -> Queue {
    let (target, interval) = (Duration::from_nanos(u64::MAX), Duration::from_secs(1));
    let config = CoDelConfig { limit, target, interval, ecn: false };
    Queue::DropAtDequeue(Box::new(DropAtDequeue::CoDel(CoDel::new(config))))
}

/// `1..=mantissa_max` times a power of ten up to `exponent_max`: as many small as large numbers.
fn scaled(mantissa_max: u64, exponent_max: u32) -> impl Strategy<Value = u64> {
    (1..=mantissa_max, 0..=exponent_max)
        .prop_map(|(mantissa, exponent)| mantissa * 10u64.pow(exponent))
}

/// From 1 bit/s to 10 Tbit/s, most of them no round number of nanoseconds a byte.
fn rates() -> impl Strategy<Value = BitRate> {
    scaled(9_999, 9).prop_map(BitRate)
}

fn delays() -> impl Strategy<Value = Duration> {
    let some = scaled(999, 6).prop_map(Duration::from_nanos);
    prop_oneof![1 => Just(Duration::ZERO), 4 => some]
}

/// A profile that starts with `first` and changes after each gap, in nanoseconds.
fn staircase<T: Copy>(first: T, changes: impl IntoIterator<Item = (u64, T)>) -> Profile<T> {
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
        steps
            .prop_map(|(first, changes, last)| staircase(first, changes.into_iter().chain([last]))),
    ]
}

fn delay_profiles() -> impl Strategy<Value = Profile<Duration>> {
    let changes = proptest::collection::vec((scaled(999, 7), delays()), 0..6);
    prop_oneof![
        delays().prop_map(Profile::Constant),
        (delays(), changes).prop_map(|(first, changes)| staircase(first, changes)),
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

/// Sojourns of 100 ms to 1,000 s: shorter ones would be many over the months of the slowest rates.
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
            .prop_map(|(first, changes)| Errors::Series(staircase(first, changes))),
    ]
}

fn shapes() -> impl Strategy<Value = ArrivalPattern> {
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
    let parts = (rate_profiles(), delay_profiles(), framing, limits(), errors(), shapes());
    (parts, any::<u64>()).prop_map(
        |((rate, delay, framing_overhead, queue, errors, shape), seed)| Setup {
            rate,
            delay,
            framing_overhead,
            queue,
            errors,
            shape,
            seed,
        },
    )
}

/// What becomes of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    came: Instant,
    packet: Packet,
    /// `None` if the queue was full.
    on_the_link: Option<OnTheLink>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OnTheLink {
    start: Instant,
    departure: Instant,
    arrival: Instant,
    corrupted: bool,
}

impl Way {
    fn arrives_whole(&self) -> bool {
        self.on_the_link.is_some_and(|link| !link.corrupted)
    }

    fn arrival(&self) -> Instant {
        self.on_the_link.expect("it was let in").arrival
    }
}

/// The work that a link with this rate can do from the start of the run to `nanos`, in billionths
/// of a bit: a whole number at every nanosecond.
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

/// The moment at which that work is done, rounded down to a nanosecond, by bisection.
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

/// Each packet's way. The transmitter conserves work: from the moment a packet finds it idle it
/// does all the work that the rate allows, without a rounding, until nothing waits.
fn reference(setup: &Setup, script: &Script) -> Vec<Way> {
    let mut channel = setup.channel();
    let (mut work, mut free_at, mut last_arrival) = (0, Instant::START, Instant::START);
    let mut ways: Vec<Way> = Vec::new();
    for (came, _, packet) in script {
        let mut way = Way { came: *came, packet: packet.clone(), on_the_link: None };
        if admits(setup.queue, &ways, &way, free_at) {
            let frame = u64::from(packet.bytes + setup.framing_overhead);
            let start = free_at.max(*came);
            work = work.max(work_until(&setup.rate, came.as_nanos()))
                + u128::from(frame) * 8 * 1_000_000_000;
            let departure = done(&setup.rate, work);
            let arrival = last_arrival.max(departure + setup.delay.at(departure));
            let corrupted =
                channel.corrupts(*came, Transmission { start, departure }, Bits(8 * frame));
            way.on_the_link = Some(OnTheLink { start, departure, arrival, corrupted });
            (free_at, last_arrival) = (departure, arrival);
        }
        ways.push(way);
    }
    ways
}

/// Whether the limit lets the packet in; who waits for nobody always comes in.
fn admits(limit: Limit, before: &[Way], way: &Way, free_at: Instant) -> bool {
    if free_at <= way.came {
        return true;
    }
    let (bytes, packets) = waiting(before, way.came);
    match limit {
        Limit::Bytes(most) => bytes + u64::from(way.packet.bytes) <= most,
        Limit::Packets(most) => packets < most,
        Limit::Time(most) => free_at - way.came <= most,
        Limit::Unlimited => true,
        Limit::LinkBytes(_) => unreachable!("not among the setups"),
    }
}

/// IP bytes and packets that came and were not started at `now`.
fn waiting(ways: &[Way], now: Instant) -> (u64, u64) {
    let count = count(ways, |way, link| way.came <= now && link.start > now);
    (count.bytes, count.packets)
}

/// Counts the packets that were let in and for which the question holds.
fn count(ways: &[Way], question: impl Fn(&Way, &OnTheLink) -> bool) -> Count {
    let mut count = Count::default();
    for way in ways {
        if way.on_the_link.as_ref().is_some_and(|link| question(way, link)) {
            count.add(way.packet.bytes);
        }
    }
    count
}

fn dropped(ways: &[Way], now: Instant) -> [Count; DropCause::ALL.len()] {
    let mut queue_full = Count::default();
    for way in ways.iter().filter(|way| way.came <= now && way.on_the_link.is_none()) {
        queue_full.add(way.packet.bytes);
    }
    let mut dropped = [Count::default(); DropCause::ALL.len()];
    dropped[DropCause::QueueFull as usize] = queue_full;
    dropped[DropCause::BitError as usize] =
        count(ways, |_, link| link.corrupted && link.arrival <= now);
    dropped
}

fn counters(setup: &Setup, ways: &[Way], now: Instant) -> Counters {
    let sent = count(ways, |_, link| link.departure <= now);
    let came = || ways.iter().filter(|way| way.came <= now);
    let busy = came().filter_map(|way| way.on_the_link).filter(|link| link.departure <= now);
    let (queue_bytes, queue_packets) = waiting(ways, now);
    // The queue is longest just after somebody joined it.
    let most = (0..came().count()).map(|n| waiting(&ways[..=n], ways[n].came).0);
    Counters {
        marked: Count::default(),
        sent_packets: sent.packets,
        sent_bits: 8 * (sent.bytes + sent.packets * u64::from(setup.framing_overhead)),
        delivered: count(ways, |_, link| !link.corrupted && link.arrival <= now),
        dropped: dropped(ways, now),
        busy: busy.fold(Duration::ZERO, |sum, link| sum + (link.departure - link.start)),
        queue_bytes,
        queue_packets,
        queue_bytes_max: most.max().unwrap_or(0),
        sending_bytes: count(ways, |way, link| {
            way.came <= now && link.start <= now && now < link.departure
        })
        .bytes,
        in_flight_bytes: count(ways, |_, link| link.departure <= now && now < link.arrival).bytes,
    }
}

fn ledger(ways: &[Way], now: Instant) -> Ledger {
    let mut received = Count::default();
    ways.iter().filter(|way| way.came <= now).for_each(|way| received.add(way.packet.bytes));
    Ledger {
        received,
        sent: count(ways, |_, link| !link.corrupted && link.arrival <= now),
        dropped: dropped(ways, now),
        held: count(ways, |way, link| way.came <= now && now < link.arrival),
        ..Ledger::default()
    }
}

/// What a direction should report about these packets.
fn facts(ways: &[Way]) -> Vec<Event> {
    let mut facts = Vec::new();
    for Way { came, packet, on_the_link } in ways {
        let mut fact = |at, kind| {
            let (flow, bytes) = (packet.flow, packet.bytes);
            facts.push(Event { at, node: NodeId(0), kind, flow, packet: packet.id, bytes });
        };
        let Some(link) = on_the_link else {
            fact(*came, EventKind::Dropped(DropCause::QueueFull));
            continue;
        };
        fact(*came, EventKind::Enqueued);
        fact(link.start, EventKind::Transmitted);
        let corrupted = EventKind::Dropped(DropCause::BitError);
        fact(link.arrival, if link.corrupted { corrupted } else { EventKind::Delivered });
    }
    facts
}

fn in_order(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_key(|event| (event.at, event.packet, event.kind.number()));
    events
}

/// Moments at which something happens and those just beside them, and some at random.
fn moments(setup: &Setup, ways: &[Way]) -> Vec<Instant> {
    let mut rng = Rng::stream(setup.seed, "moments");
    let mut moments = vec![Instant::START, END];
    for link in ways.iter().filter_map(|way| way.on_the_link) {
        if rng.below(4) > 0 {
            continue;
        }
        for event in [link.start, link.departure, link.arrival].map(Instant::as_nanos) {
            let nanos = [event.saturating_sub(1), event, event + 1, rng.below(event + 1)];
            moments.extend(nanos.map(Instant::from_nanos));
        }
    }
    moments.sort_unstable();
    moments
}
