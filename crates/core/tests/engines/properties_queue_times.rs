//! Property tests of the statistics of a queue: the delays of packets, and the times for which the queue
//! was empty and full, against a replay of the packet events.

use bentpipe_core::engine::{Cx, Engine, Outbox};
use bentpipe_core::link::{
    Channel, CoDel, CoDelConfig, Direction, DirectionConfig, DropAtDequeue, DropAtEnqueue,
    DropTail, EarlyPacketDiscard, FqCoDel, FqCoDelConfig, Framing, Limit, PerFlow, Queue,
    QueueStatistics, Ratio, SelectiveDrop, SharedRate, SharingClass, StrictPriority,
};
use bentpipe_core::packet::{Class, FlowId, Origin, Packet, PacketId, Port};
use bentpipe_core::profile::Profile;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{Event, EventKind, NodeId, VecTrace};
use bentpipe_core::units::BitRate;
use proptest::prelude::*;

proptest! {
    #![proptest_config(configured())]

    /// Given any queue, constant or varying rate and packets, expect the statistics of a replay at the end and
    /// at any time before.
    #[test]
    fn queue_statistics_are_those_of_a_replay(
        (limit, queue) in queues(),
        steps in prop::collection::vec((0..3_000u64, 0..4u32, 1..1_500u32), 1..200),
        rate in prop::sample::select(vec![500_000u64, 4_000_000, 40_000_000]),
        varies in any::<bool>(),
        stop in 0..200usize,
    ) {
        let second = (Instant::from_millis(20), BitRate(rate / 3));
        let steps_of_rate = || vec![(Instant::START, BitRate(rate)), second];
        let rate = match varies {
            true => Profile::steps(steps_of_rate()).expect("in order"),
            false => Profile::Constant(BitRate(rate)),
        };
        let mut run = Run::new(queue, rate);
        for (number, (gap_micros, flow, bytes)) in steps.into_iter().enumerate() {
            run.advance(run.now + Duration::from_micros(gap_micros));
            run.offer(flow, bytes);
            if number == stop {
                run.read()?;
            }
        }
        run.advance(run.now + Duration::from_millis(5));
        run.read()?;
        run.finish();
        run.read()?;
        run.check(limit)?;
    }
}

fn configured() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let cases = from_environment.cases.max(500);
    ProptestConfig { cases, failure_persistence: None, ..from_environment }
}

/// A limit, and a queue with it.
fn queues() -> impl Strategy<Value = (Limit, Queue)> {
    let limits = prop_oneof![
        (0..12u64).prop_map(Limit::Packets),
        (0..9_000u64).prop_map(Limit::Bytes),
        (0..9_000u64).prop_map(Limit::LinkBytes),
        Just(Limit::Unlimited),
        (0..40u64).prop_map(|millis| Limit::Time(Duration::from_millis(millis))),
    ];
    (limits, 0..8u32).prop_map(|(limit, discipline)| {
        let ratio = |value| Ratio::new(value).expect("in range");
        let (target, interval) = (Duration::from_millis(5), Duration::from_millis(30));
        let counted = limit.counted().is_some();
        let in_time = matches!(limit, Limit::Time(_));
        let queue = match discipline {
            1 => {
                Queue::DropAtEnqueue(DropAtEnqueue::PerFlow(PerFlow::new(limit, Limit::Packets(5))))
            }
            2 if counted => {
                let queue = EarlyPacketDiscard::new(limit, ratio(0.8));
                Queue::DropAtEnqueue(DropAtEnqueue::EarlyPacketDiscard(queue))
            }
            3 if counted => {
                let queue = SelectiveDrop::new(limit, ratio(0.5), ratio(1.2));
                Queue::DropAtEnqueue(DropAtEnqueue::SelectiveDrop(queue))
            }
            4 if !in_time => {
                let config = CoDelConfig { limit, target, interval, ecn: false };
                Queue::DropAtDequeue(Box::new(DropAtDequeue::CoDel(CoDel::new(config))))
            }
            5 if !in_time => {
                let (quantum_bytes, queues, ecn) = (1_500, 8, false);
                let config = FqCoDelConfig { limit, target, interval, quantum_bytes, queues, ecn };
                Queue::DropAtDequeue(Box::new(DropAtDequeue::FqCoDel(FqCoDel::new(config, 3))))
            }
            6 if !in_time => {
                let queue = StrictPriority::new(limit, 1);
                Queue::DropAtDequeue(Box::new(DropAtDequeue::StrictPriority(queue)))
            }
            7 if !in_time => {
                let queue = DropAtDequeue::StrictPriority(StrictPriority::new(limit, 1));
                let class = SharingClass {
                    queue,
                    reserved: Some(BitRate(100_000)),
                    weight: 1,
                    ceiling: None,
                };
                let queue = SharedRate::new([class]);
                Queue::DropAtDequeue(Box::new(DropAtDequeue::SharedRate(queue)))
            }
            _ => Queue::DropAtEnqueue(DropAtEnqueue::DropTail(DropTail::new(limit))),
        };
        (limit, queue)
    })
}

const OVERHEAD: u32 = 7;

struct Arrival {
    packet: PacketId,
    at: Instant,
    bytes: u32,
}

/// A direction with its events.
struct Run {
    direction: Direction,
    drops_at_enqueue: bool,
    now: Instant,
    outbox: Outbox,
    trace: VecTrace,
    arrivals: Vec<Arrival>,
    /// What was read, when, and after how many arrivals.
    read: Vec<(Instant, usize, QueueStatistics)>,
}

impl Run {
    fn new(queue: Queue, rate: Profile<BitRate>) -> Self {
        let drops_at_enqueue = matches!(queue, Queue::DropAtEnqueue(_));
        let direction = Direction::new(DirectionConfig {
            rate,
            delay: Profile::Constant(Duration::from_millis(3)),
            framing: Framing::overhead(OVERHEAD),
            queue,
            channel: Channel::clear(),
        });
        Self {
            direction: direction.expect("the rate is above zero"),
            drops_at_enqueue,
            now: Instant::START,
            outbox: Outbox::new(),
            trace: VecTrace::default(),
            arrivals: Vec::new(),
            read: Vec::new(),
        }
    }

    fn advance(&mut self, until: Instant) {
        while let Some(due) = self.direction.next_wake().filter(|&due| due <= until) {
            self.wake(due);
        }
        self.now = until;
    }

    fn finish(&mut self) {
        while let Some(due) = self.direction.next_wake() {
            self.wake(due);
            self.now = due;
        }
    }

    fn wake(&mut self, at: Instant) {
        let mut cx = Cx::new(at, NodeId(0), &mut self.outbox, Some(&mut self.trace));
        self.direction.wake(&mut cx);
    }

    fn offer(&mut self, flow: u32, bytes: u32) {
        let id = PacketId::new(FlowId(flow), Origin::Sender, self.arrivals.len() as u64);
        let packet = Packet { id, flow: FlowId(flow), bytes, ..Packet::default() };
        let packet = Packet { class: Class(0), created_at: self.now, ..packet };
        let mut cx = Cx::new(self.now, NodeId(0), &mut self.outbox, Some(&mut self.trace));
        self.direction.input(&mut cx, Port(0), Box::new(packet));
        self.arrivals.push(Arrival { packet: id, at: self.now, bytes });
    }

    /// Reads the statistics, to be compared when all events are known.
    fn read(&mut self) -> Result<(), TestCaseError> {
        let found = self.direction.queue_statistics(self.now);
        prop_assert_eq!(self.direction.queue_statistics(self.now), found, "read twice");
        self.read.push((self.now, self.arrivals.len(), found));
        Ok(())
    }

    fn check(&self, limit: Limit) -> Result<(), TestCaseError> {
        for &(at, arrivals, found) in &self.read {
            let replay = Replay::of(self, limit, at, &self.arrivals[..arrivals]);
            prop_assert_eq!((found.empty, found.full), (replay.empty, replay.full), "at {}", at);
            for (delay, percent) in found.delays.into_iter().zip([50, 95, 99]) {
                let expected = replay.percentile(percent);
                prop_assert_eq!(delay.is_some(), expected.is_some());
                let nanos = |delay: Option<Duration>| delay.map_or(0.0, |at| at.as_nanos() as f64);
                let error = (nanos(delay) - nanos(expected)).abs();
                let tolerance = nanos(expected) * 0.002;
                prop_assert!(error <= tolerance, "p{percent}: {delay:?}, not {expected:?}");
            }
        }
        Ok(())
    }
}

/// What the events say.
struct Replay {
    delays: Vec<Duration>,
    empty: Duration,
    full: Duration,
}

impl Replay {
    /// The events up to `end`, of the packets that had arrived. More may arrive at `end`.
    fn of(run: &Run, limit: Limit, end: Instant, arrivals: &[Arrival]) -> Self {
        let mut replay = Self { delays: Vec::new(), empty: Duration::ZERO, full: Duration::ZERO };
        let mut frames = run.frames();
        frames.retain(|frame| arrivals.iter().any(|arrival| arrival.packet == frame.packet));
        let instants = instants(run, end);
        for pair in instants.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let known = frames.iter().filter(|frame| frame.enqueued <= from);
            let waiting: Vec<u32> =
                known.clone().filter(|frame| frame.left > from).map(|frame| frame.bytes).collect();
            if waiting.is_empty() {
                replay.empty += to - from;
            }
            let sent = known.filter_map(|frame| frame.sent);
            let free_at = sent.map(|sent| sent.1).max().unwrap_or(Instant::START);
            let so_far = arrivals.iter().filter(|arrival| arrival.at <= from);
            let largest = so_far.map(|arrival| arrival.bytes).max().unwrap_or(0);
            replay.full += run.full_time(limit, (from, to), &waiting, largest, free_at);
        }
        for frame in &frames {
            // A FIFO knows the delay of a packet when it arrives.
            let sent = frame.sent.filter(|sent| run.drops_at_enqueue || sent.0 <= end);
            replay.delays.extend(sent.map(|sent| sent.0 - frame.enqueued));
        }
        replay.delays.sort_unstable();
        replay
    }

    fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.delays.len() * percent).div_ceil(100).max(1);
        self.delays.get(rank - 1).copied()
    }
}

/// The instants from the start to `end` at which something happened.
fn instants(run: &Run, end: Instant) -> Vec<Instant> {
    let events = run.trace.0.iter().map(|event| event.at);
    let arrivals = run.arrivals.iter().map(|arrival| arrival.at);
    let mut all: Vec<_> = events.chain(arrivals).filter(|at| *at < end).collect();
    all.extend([Instant::START, end]);
    all.sort_unstable();
    all.dedup();
    all
}

/// A packet that the queue accepted.
struct Frame {
    packet: PacketId,
    enqueued: Instant,
    bytes: u32,
    /// When it left the queue, sent or dropped.
    left: Instant,
    /// The start and the end of its transmission.
    sent: Option<(Instant, Instant)>,
}

impl Run {
    /// The packets that were accepted, once all events are known.
    fn frames(&self) -> Vec<Frame> {
        let events = &self.trace.0;
        let at = |packet: PacketId, wanted: fn(EventKind) -> bool| {
            let mut own = events.iter().filter(|event| event.packet == packet);
            own.find(|event| wanted(event.kind)).map(|event| event.at)
        };
        let accepted = events.iter().filter(|event| event.kind == EventKind::Enqueued);
        let frame = |event: &Event| {
            let start = at(event.packet, |kind| kind == EventKind::Transmitted);
            let arrival = at(event.packet, |kind| kind == EventKind::Delivered);
            let dropped = at(event.packet, |kind| matches!(kind, EventKind::Dropped(_)));
            let departure = arrival
                .map(|at| Instant::from_nanos(at.as_nanos() - Duration::from_millis(3).as_nanos()));
            Frame {
                packet: event.packet,
                enqueued: event.at,
                bytes: event.bytes,
                left: start.or(dropped).expect("it was sent or dropped"),
                sent: start.zip(departure),
            }
        };
        accepted.map(frame).collect()
    }

    /// For how long of an interval without events the largest packet would be dropped for lack of room.
    fn full_time(
        &self,
        limit: Limit,
        (from, to): (Instant, Instant),
        waiting: &[u32],
        largest: u32,
        free_at: Instant,
    ) -> Duration {
        let sum = |extra: u32| waiting.iter().map(|bytes| u64::from(bytes + extra)).sum::<u64>();
        let is_full = match limit {
            Limit::Packets(limit) => waiting.len() as u64 >= limit,
            Limit::Bytes(limit) => sum(0) + u64::from(largest) > limit,
            Limit::LinkBytes(limit) => sum(OVERHEAD) + u64::from(largest + OVERHEAD) > limit,
            Limit::Time(limit) => {
                // The wait of an arriving packet decreases with time.
                let end = free_at.saturating_since(Instant::START).saturating_sub(limit);
                return (Instant::START + end).min(to).saturating_since(from);
            }
            Limit::Unlimited => false,
        };
        // In a FIFO, a packet that finds the transmitter idle needs no room.
        let to = if self.drops_at_enqueue { to.min(free_at.max(from)) } else { to };
        // Before the first packet, no size is known.
        if is_full && largest > 0 { to - from } else { Duration::ZERO }
    }
}
