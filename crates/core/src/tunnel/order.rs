//! Restores the order of each flow behind a decoder.
//!
//! A decoded symbol comes after later ones that were not lost. TCP would take the gap for a loss, so
//! packets behind a gap wait for it, at most for the hold time. Then the gap is skipped; what comes for
//! it later is delivered at once, late, as a network would. Packets of other flows never wait.
//!
//! The sequence of a flow begins at 0 at the encoder and counts its packets modulo 2^32.

use std::collections::{BTreeMap, BTreeSet};

use super::flow_table::{FlowKey, FlowTable};
use super::pacer::Pacer;
use crate::engine::Count;
use crate::time::{Duration, Instant};
use crate::units::BitRate;

/// An unknown flow is taken for one whose first packets are missing if it begins below this number,
/// else for one that was forgotten.
const START_SPAN: u32 = 64;
/// A packet further back than this is the first of a sequence that began anew: no window of RFC 8681 is
/// longer than 4,095 symbols, so none comes that late.
const RESTART_SPAN: u64 = 4_096;

/// How packets are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// At once.
    Unordered,
    /// In the order of their flow; a packet waits at most this long.
    Ordered(Duration),
}

/// The settings of an [`OrderRestorer`].
#[derive(Clone, Copy, Debug)]
pub struct OrderConfig {
    /// How packets are delivered.
    pub delivery: Delivery,
    /// The highest rate at which each flow leaves, so that what waited does not leave at once; any if `None`.
    pub pace: Option<BitRate>,
    /// The most packets that wait, over all flows. Beyond it the one that has waited longest goes.
    pub held_packets_max: usize,
    /// The most bytes that wait, over all flows.
    pub held_bytes_max: u64,
    /// The most flows whose sequence is known.
    pub flows_max: usize,
    /// A flow without packets for this long is forgotten.
    pub idle_timeout: Duration,
}

/// What became of packets. Received = delivered + held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderCounts {
    /// Packets received.
    pub received: Count,
    /// Packets delivered.
    pub delivered: Count,
    /// Packets that wait now, for those before them or for their pace.
    pub held: Count,
    /// Delivered packets that had waited.
    pub waited_packets: u64,
    /// The sum of their waiting times.
    pub wait_sum: Duration,
    /// The longest of them.
    pub wait_max: Duration,
    /// Packets delivered behind a later one of their flow, duplicates among them.
    pub late_packets: u64,
    /// Packets that were not waited for any longer.
    pub skipped_packets: u64,
    /// Packets delivered before their time because the memory was full.
    pub forced_packets: u64,
}

#[derive(Clone, Debug)]
struct Held<T> {
    since: Instant,
    bytes: u32,
    item: T,
}

#[derive(Clone, Debug)]
struct Flow<T> {
    /// The next position in order; `None` until the first packet.
    next: Option<u64>,
    /// What waits, by position: the sequence number without its wrap.
    held: BTreeMap<u64, Held<T>>,
    /// When its next packet may leave.
    next_departure: Instant,
}

impl<T> Default for Flow<T> {
    fn default() -> Self {
        Self { next: None, held: BTreeMap::new(), next_departure: Instant::START }
    }
}

/// The position of sequence number 0 of a new flow: positions before it stay above zero.
const ORIGIN: u64 = 1 << 32;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct OrderRestorer<T> {
    config: OrderConfig,
    flows: FlowTable<Flow<T>>,
    /// Every packet that waits, by the time since which it does.
    waiting: BTreeSet<(Instant, FlowKey, u64)>,
    pacer: Option<Pacer<T>>,
    counts: OrderCounts,
}

impl<T> OrderRestorer<T> {
    /// Nothing waits.
    #[must_use]
    pub fn new(config: OrderConfig) -> Self {
        Self {
            config,
            flows: FlowTable::new(config.flows_max, config.idle_timeout),
            waiting: BTreeSet::new(),
            pacer: match config.delivery {
                Delivery::Ordered(hold_time) => config.pace.map(|rate| Pacer::new(rate, hold_time)),
                Delivery::Unordered => None,
            },
            counts: OrderCounts::default(),
        }
    }

    /// Takes a packet and appends what can be delivered now to `out`, in order.
    ///
    /// `sequence` is its number in the flow `key`.
    pub fn push(
        &mut self,
        now: Instant,
        key: FlowKey,
        sequence: u32,
        bytes: u32,
        item: T,
        out: &mut Vec<T>,
    ) {
        self.counts.received.add(bytes);
        let Delivery::Ordered(_) = self.config.delivery else {
            self.counts.delivered.add(bytes);
            out.push(item);
            return;
        };
        self.wake(now, out);
        while let Some((key, flow)) = self.flows.pop_idle(now) {
            self.flush(now, key, flow, out);
        }
        if let Some((key, flow)) = self.flows.make_room(key) {
            self.flush(now, key, flow, out);
        }
        let flow = self.flows.touch(now, key);
        let mut position = position_of(sequence, flow.next);
        if flow.next.is_some_and(|next| position + RESTART_SPAN < next) {
            let old = std::mem::take(flow);
            let next_departure = self.flush(now, key, old, out);
            self.flows.touch(now, key).next_departure = next_departure;
            position = position_of(sequence, None);
        }
        self.place(now, key, position, Held { since: now, bytes, item }, out);
        self.shrink(now, out);
    }

    /// Delivers what has waited for the hold time, skipping the gaps before it.
    pub fn wake(&mut self, now: Instant, out: &mut Vec<T>) {
        self.release_paced(now, out);
        let Delivery::Ordered(hold_time) = self.config.delivery else { return };
        while let Some(&(since, key, position)) = self.waiting.first()
            && since + hold_time <= now
        {
            self.skip_to(now, key, position, out);
        }
    }

    /// When the hold time of the packet that has waited longest ends, or one leaves at its pace.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        let Delivery::Ordered(hold_time) = self.config.delivery else { return None };
        let skip = self.waiting.first().map(|&(since, ..)| since + hold_time);
        let leave = self.pacer.as_ref().and_then(Pacer::next_wake);
        skip.into_iter().chain(leave).min()
    }

    /// The counts.
    #[must_use]
    pub fn counts(&self) -> OrderCounts {
        let mut counts = self.counts;
        let paced = self.pacer.as_ref().map_or(Count::default(), Pacer::held);
        counts.held.packets += paced.packets;
        counts.held.bytes += paced.bytes;
        counts
    }

    /// Delivers a packet in order or late, or lets it wait.
    fn place(
        &mut self,
        now: Instant,
        key: FlowKey,
        position: u64,
        held: Held<T>,
        out: &mut Vec<T>,
    ) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let next = *flow.next.get_or_insert_with(|| first_position(position));
        if position > next && !flow.held.contains_key(&position) {
            self.counts.held.add(held.bytes);
            self.waiting.insert((now, key, position));
            flow.held.insert(position, held);
            return;
        }
        if position != next {
            self.counts.late_packets += 1;
            self.counts.delivered.add(held.bytes);
            out.push(held.item);
            return;
        }
        flow.next = Some(next + 1);
        self.deliver_of(now, key, held.bytes, held.item, out);
        self.deliver_run(now, key, out);
    }

    /// Delivers what waits at the next position of a flow, and what follows it without a gap.
    fn deliver_run(&mut self, now: Instant, key: FlowKey, out: &mut Vec<T>) {
        while let Some(flow) = self.flows.get_mut(key)
            && let Some(next) = flow.next
            && let Some(held) = flow.held.remove(&next)
        {
            flow.next = Some(next + 1);
            self.deliver_held(now, key, next, held, out);
        }
    }

    /// Delivers all that waits up to `position`, in order, and what follows without a gap.
    fn skip_to(&mut self, now: Instant, key: FlowKey, position: u64, out: &mut Vec<T>) {
        while let Some(flow) = self.flows.get_mut(key)
            && let Some(first) = flow.held.first_entry()
            && *first.key() <= position
        {
            let (at, held) = first.remove_entry();
            self.counts.skipped_packets += at - flow.next.unwrap_or(at);
            flow.next = Some(at + 1);
            self.deliver_held(now, key, at, held, out);
        }
        self.deliver_run(now, key, out);
    }

    /// Delivers all that waits of a flow that is forgotten. Returns when a next packet of it would leave.
    fn flush(
        &mut self,
        now: Instant,
        key: FlowKey,
        mut flow: Flow<T>,
        out: &mut Vec<T>,
    ) -> Instant {
        let mut next = flow.next;
        for (position, held) in flow.held {
            self.counts.skipped_packets += position - next.unwrap_or(position);
            next = Some(position + 1);
            self.count_held(now, key, position, &held);
            self.deliver(now, &mut flow.next_departure, held.bytes, held.item, out);
        }
        flow.next_departure
    }

    fn deliver_held(
        &mut self,
        now: Instant,
        key: FlowKey,
        position: u64,
        held: Held<T>,
        out: &mut Vec<T>,
    ) {
        self.count_held(now, key, position, &held);
        self.deliver_of(now, key, held.bytes, held.item, out);
    }

    /// Counts what does not wait for those before it any longer.
    fn count_held(&mut self, now: Instant, key: FlowKey, position: u64, held: &Held<T>) {
        self.waiting.remove(&(held.since, key, position));
        let wait = now.saturating_since(held.since);
        let counts = &mut self.counts;
        counts.held.remove(held.bytes);
        counts.waited_packets += 1;
        counts.wait_sum += wait;
        counts.wait_max = counts.wait_max.max(wait);
    }

    /// Delivers a packet that is next in its flow, at once or at its pace.
    fn deliver_of(&mut self, now: Instant, key: FlowKey, bytes: u32, item: T, out: &mut Vec<T>) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let mut next_departure = flow.next_departure;
        self.deliver(now, &mut next_departure, bytes, item, out);
        if let Some(flow) = self.flows.get_mut(key) {
            flow.next_departure = next_departure;
        }
    }

    fn deliver(
        &mut self,
        now: Instant,
        next_departure: &mut Instant,
        bytes: u32,
        item: T,
        out: &mut Vec<T>,
    ) {
        let item = match &mut self.pacer {
            Some(pacer) => pacer.push(now, next_departure, bytes, item),
            None => Some(item),
        };
        if let Some(item) = item {
            self.counts.delivered.add(bytes);
            out.push(item);
        }
    }

    /// Delivers what leaves now at its pace.
    fn release_paced(&mut self, now: Instant, out: &mut Vec<T>) {
        while let Some((bytes, item)) = self.pacer.as_mut().and_then(|pacer| pacer.pop(now)) {
            self.counts.delivered.add(bytes);
            out.push(item);
        }
    }

    /// Keeps what waits within the bounds: first goes what waits for its pace alone.
    fn shrink(&mut self, now: Instant, out: &mut Vec<T>) {
        let OrderConfig { held_packets_max, held_bytes_max, .. } = self.config;
        while let Count { packets, bytes } = self.counts().held
            && (packets > held_packets_max as u64 || bytes > held_bytes_max)
        {
            let paced = self.pacer.as_mut().and_then(|pacer| pacer.pop_first());
            if let Some((bytes, item)) = paced {
                self.counts.delivered.add(bytes);
                out.push(item);
            } else if let Some(&(_, key, position)) = self.waiting.first() {
                let before = self.waiting.len();
                self.skip_to(now, key, position, out);
                self.counts.forced_packets += (before - self.waiting.len()) as u64;
            } else {
                return;
            }
        }
    }
}

/// The position nearest to the next one with this sequence number.
fn position_of(sequence: u32, next: Option<u64>) -> u64 {
    let Some(next) = next else { return ORIGIN + u64::from(sequence) };
    let ahead = sequence.wrapping_sub(low_bits(next)).cast_signed();
    next.saturating_add_signed(ahead.into())
}

/// Where the sequence of a flow begins whose first packet has this position.
fn first_position(position: u64) -> u64 {
    if position - ORIGIN < u64::from(START_SPAN) { ORIGIN } else { position }
}

#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 is intended")]
fn low_bits(position: u64) -> u32 {
    position as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOLD: Duration = Duration::from_millis(100);
    const CONFIG: OrderConfig = OrderConfig {
        delivery: Delivery::Ordered(HOLD),
        pace: None,
        held_packets_max: 6,
        held_bytes_max: 6_000,
        flows_max: 3,
        idle_timeout: Duration::from_secs(10),
    };

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// A restorer whose packets of 1,000 bytes are their sequence numbers.
    struct Bench(OrderRestorer<u32>);

    impl Bench {
        fn new() -> Self {
            Self(OrderRestorer::new(CONFIG))
        }

        fn push(&mut self, at: u64, flow: FlowKey, sequence: u32) -> Vec<u32> {
            let mut out = Vec::new();
            self.0.push(ms(at), flow, sequence, 1_000, sequence, &mut out);
            out
        }

        fn wake(&mut self, at: u64) -> Vec<u32> {
            let mut out = Vec::new();
            self.0.wake(ms(at), &mut out);
            out
        }
    }

    #[test]
    fn packets_behind_a_gap_wait_for_it() {
        let mut bench = Bench::new();
        assert_eq!(bench.push(0, 1, 0), [0]);
        assert_eq!(bench.push(1, 1, 2), []);
        assert_eq!(bench.push(2, 1, 3), []);
        assert_eq!(bench.push(3, 2, 0), [0], "another flow");
        assert_eq!(bench.push(50, 1, 1), [1, 2, 3]);
        let counts = bench.0.counts();
        assert_eq!((counts.waited_packets, counts.wait_max), (2, Duration::from_millis(49)));
        assert_eq!((counts.late_packets, counts.skipped_packets), (0, 0));
    }

    /// Given 1 and 2 missing and 3 since 10 ms, 5 since 20 ms, expect 3 at 110 ms, 5 at 120 ms, and 2
    /// at once when it comes after that.
    #[test]
    fn a_gap_is_skipped_after_the_hold_time() {
        let mut bench = Bench::new();
        bench.push(0, 1, 0);
        bench.push(10, 1, 3);
        bench.push(20, 1, 5);
        assert_eq!(bench.0.next_wake(), Some(ms(110)));
        assert_eq!(bench.wake(109), []);
        assert_eq!(bench.wake(110), [3]);
        assert_eq!(bench.0.next_wake(), Some(ms(120)));
        assert_eq!(bench.wake(120), [5]);
        assert_eq!(bench.push(121, 1, 2), [2], "late");
        assert_eq!(bench.push(122, 1, 6), [6]);
        let counts = bench.0.counts();
        assert_eq!((counts.late_packets, counts.skipped_packets), (1, 3));
    }

    /// Given 5 since 0 ms and 3 since 20 ms, expect both at 100 ms, in order.
    #[test]
    fn an_earlier_packet_goes_with_the_one_that_has_waited_longer() {
        let mut bench = Bench::new();
        bench.push(0, 1, 5);
        bench.push(20, 1, 3);
        assert_eq!(bench.wake(100), [3, 5]);
        assert_eq!(bench.0.next_wake(), None);
    }

    /// Given room for 6 packets and 7 behind a gap, expect all of one run at once.
    #[test]
    fn full_memory_ends_the_longest_wait() {
        let mut bench = Bench::new();
        for sequence in [2, 3, 5, 7, 9, 11] {
            assert_eq!(bench.push(0, 1, sequence), []);
        }
        assert_eq!(bench.push(1, 1, 13), [2, 3]);
        assert_eq!(bench.0.counts().forced_packets, 2);
    }

    #[test]
    fn sequences_wrap_resume_and_begin_anew() {
        let mut bench = Bench::new();
        let near = u32::MAX - 1;
        assert_eq!(bench.push(0, 1, near), [near], "a flow that was forgotten");
        assert_eq!(bench.push(1, 1, 0), []);
        assert_eq!(bench.push(2, 1, u32::MAX), [u32::MAX, 0]);
        (1..5_000).for_each(|sequence| assert_eq!(bench.push(3, 1, sequence), [sequence]));
        assert_eq!(bench.push(4, 1, 1), [], "4,999 back: the encoder began anew, with 0");
        assert_eq!(bench.push(5, 1, 0), [0, 1]);
        assert_eq!(bench.push(6, 1, 2), [2]);
    }

    #[test]
    fn unordered_packets_pass() {
        let delivery = Delivery::Unordered;
        let mut bench = Bench(OrderRestorer::new(OrderConfig { delivery, ..CONFIG }));
        assert_eq!([bench.push(0, 1, 9), bench.push(0, 1, 3)], [[9], [3]]);
        assert_eq!(bench.0.next_wake(), None);
    }

    /// Given a pace of 1,000 bytes in a millisecond and three packets that wait until 50 ms, expect them to leave then,
    /// at 51 and at 52 ms, one that comes meanwhile behind them, and other flows at once.
    #[test]
    fn a_run_that_has_waited_leaves_at_its_pace() {
        let pace = Some(BitRate(8_000_000));
        let mut bench = Bench(OrderRestorer::new(OrderConfig { pace, ..CONFIG }));
        assert_eq!(bench.push(0, 1, 0), [0]);
        (1..=3).for_each(|sequence| {
            assert_eq!(bench.push(10 + u64::from(sequence), 1, sequence + 1), [])
        });
        assert_eq!(bench.push(50, 1, 1), [1]);
        assert_eq!(bench.0.next_wake(), Some(ms(51)));
        assert_eq!(bench.push(50, 2, 0), [0]);
        assert_eq!(bench.wake(51), [2]);
        assert_eq!(bench.push(51, 1, 5), []);
        assert_eq!(bench.0.counts().held, Count { packets: 3, bytes: 3_000 });
        assert_eq!([bench.wake(52), bench.wake(53), bench.wake(54)], [[3], [4], [5]]);
        assert_eq!(bench.push(100, 1, 6), [6]);
        assert_eq!(bench.0.next_wake(), None);
    }

    #[test]
    fn a_forgotten_flow_leaves_nothing_behind() {
        let mut bench = Bench::new();
        bench.push(0, 1, 1);
        (2..=3).for_each(|flow| drop(bench.push(1, flow, 0)));
        assert_eq!(bench.push(2, 4, 0), [1, 0], "flow 1 made room");
        assert_eq!(bench.0.counts().held, Count::default());
    }

    /// A flow, a sequence number near 0 or the wrap, and the time until the next event; no packet for a
    /// wake that nothing asked for.
    type Event = (Option<(FlowKey, u32)>, u64);

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let sequence = prop_oneof![8 => 0u32..40, 1 => any::<u32>(), 1 => u32::MAX - 20..];
        let packet = prop::option::weighted(0.8, (0u64..5, sequence));
        prop::collection::vec((packet, 0u64..30_000_000), 0..150)
    }

    fn run(
        events: &[Event],
        pace: Option<BitRate>,
        has_extra_wakes: bool,
    ) -> (Vec<(Instant, usize)>, OrderCounts) {
        let mut restorer = OrderRestorer::<usize>::new(OrderConfig { pace, ..CONFIG });
        let (mut now, mut delivered) = (Instant::START, Vec::new());
        let mut out = Vec::new();
        let last = [(None, 1_000_000_000)];
        for (number, &(packet, gap)) in events.iter().chain(&last).enumerate() {
            let end = now + Duration::from_nanos(gap);
            while let Some(wake) = restorer.next_wake().filter(|&wake| wake < end) {
                assert!(wake >= now, "a wake in the past");
                restorer.wake(wake, &mut out);
                assert!(pace.is_some() || !out.is_empty(), "a wake for nothing");
                delivered.extend(out.drain(..).map(|item| (wake, item)));
            }
            now = end;
            match packet {
                Some((flow, sequence)) => {
                    restorer.push(now, flow, sequence, sequence % 1_500, number, &mut out);
                }
                None if has_extra_wakes => restorer.wake(now, &mut out),
                None => continue,
            }
            delivered.extend(out.drain(..).map(|item| (now, item)));
            let counts = restorer.counts();
            assert_eq!(counts.received.packets, counts.delivered.packets + counts.held.packets);
            assert_eq!(counts.received.bytes, counts.delivered.bytes + counts.held.bytes);
            assert!(counts.held.packets <= 6 && counts.held.bytes <= 6_000);
            assert!(counts.wait_max <= HOLD);
            assert_eq!(delivered.len() as u64, counts.delivered.packets);
        }
        (delivered, restorer.counts())
    }

    fn pace() -> impl Strategy<Value = Option<BitRate>> {
        prop::option::of((10_000u64..1_000_000_000).prop_map(BitRate))
    }

    proptest! {
        /// Given any packets, expect each to be delivered once, within the hold time and the memory.
        /// Given wakes that nothing asked for in addition, expect the same at the same nanoseconds.
        #[test]
        fn every_packet_is_delivered_once_and_wakes_are_exact(events in events(), pace in pace()) {
            let quiet = run(&events, pace, false);
            prop_assert_eq!(&run(&events, pace, true), &quiet);
            let mut items: Vec<_> = quiet.0.iter().map(|&(_, item)| item).collect();
            items.sort_unstable();
            let pushed = events.iter().enumerate().filter(|(_, event)| event.0.is_some());
            prop_assert_eq!(items, pushed.map(|(number, _)| number).collect::<Vec<_>>());
        }

        /// Given a flow whose packets are delayed by less than the hold time, expect them in order at any pace, the last one
        /// within another hold time.
        #[test]
        fn order_is_restored_within_the_hold_time(
            delays in prop::collection::vec(0u64..100, 1..60),
            pace in pace(),
        ) {
            let held_bytes_max = 1 << 30;
            let config = OrderConfig { pace, held_packets_max: 1_000, held_bytes_max, ..CONFIG };
            let mut restorer = OrderRestorer::new(config);
            let mut arrivals: Vec<_> =
                (0u32..).zip(&delays).map(|(number, delay)| (u64::from(number) + delay, number)).collect();
            arrivals.sort_unstable();
            let mut out = Vec::new();
            for (at, number) in arrivals {
                restorer.push(ms(at), 1, number, 1_000, number, &mut out);
            }
            let mut last = Instant::START;
            while let Some(wake) = restorer.next_wake() {
                last = wake;
                restorer.wake(wake, &mut out);
            }
            prop_assert!(last <= ms(delays.len() as u64 + 100) + HOLD);
            prop_assert_eq!(out, (0..delays.len() as u32).collect::<Vec<_>>());
            prop_assert_eq!(restorer.counts().late_packets, 0);
        }
    }
}
