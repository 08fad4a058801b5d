//! Replacement of a direction's queue while packets wait.

use crate::queues::red;
use bentpipe_core::engine::Engine;
use bentpipe_core::graph::Graph;
use bentpipe_core::link::{
    Channel, CoDel, CoDelConfig, Counters, Direction, DirectionConfig, DropAtDequeue,
    DropAtEnqueue, DropTail, EarlyPacketDiscard, FqCoDel, FqCoDelConfig, Framing, Limit, PerFlow,
    Queue, Ratio, Red, SelectiveDrop, SharedRate, SharingClass, StrictPriority,
};
use bentpipe_core::packet::{FlowId, Packet, PacketId};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, NodeId};
use bentpipe_core::units::BitRate;
use proptest::prelude::*;

const NODE: NodeId = NodeId(0);
const END: Instant = Instant::from_millis(100_000);

fn drop_tail(limit: Limit) -> Queue {
    Queue::DropAtEnqueue(DropAtEnqueue::DropTail(DropTail::new(limit)))
}

fn fq_codel() -> Queue {
    let (target, interval) = (Duration::from_millis(5), Duration::from_millis(100));
    let limit = Limit::Packets(30);
    let config =
        FqCoDelConfig { limit, target, interval, quantum_bytes: 1_000, queues: 16, ecn: false };
    Queue::DropAtDequeue(Box::new(DropAtDequeue::FqCoDel(FqCoDel::new(config, 7))))
}

/// One queue of each kind.
fn queue(number: usize) -> Queue {
    let limit = Limit::Packets(20);
    let (target, interval) = (Duration::from_millis(5), Duration::from_millis(100));
    let ratio = |value| Ratio::new(value).expect("in range");
    let codel = CoDelConfig { limit, target, interval, ecn: true };
    let tail = Queue::DropAtEnqueue;
    let head = |discipline| Queue::DropAtDequeue(Box::new(discipline));
    match number {
        0 => drop_tail(Limit::Unlimited),
        1 => drop_tail(limit),
        2 => tail(DropAtEnqueue::Red(Red::new(red(limit), Rng::stream(1, "red")))),
        3 => tail(DropAtEnqueue::PerFlow(PerFlow::new(limit, Limit::Packets(8)))),
        4 => tail(DropAtEnqueue::SelectiveDrop(SelectiveDrop::new(limit, ratio(0.5), ratio(0.8)))),
        5 => tail(DropAtEnqueue::EarlyPacketDiscard(EarlyPacketDiscard::new(limit, ratio(0.5)))),
        6 => head(DropAtDequeue::CoDel(CoDel::new(codel))),
        7 => fq_codel(),
        8 => head(DropAtDequeue::StrictPriority(StrictPriority::new(limit, 1))),
        _ => {
            let queue = DropAtDequeue::StrictPriority(StrictPriority::new(limit, 1));
            let (reserved, ceiling) = (Some(BitRate(300_000)), Some(BitRate(600_000)));
            let class = SharingClass { queue, reserved, weight: 1, ceiling };
            head(DropAtDequeue::SharedRate(SharedRate::new([class])))
        }
    }
}

/// Packets of 1,000 bytes at 1 Mbit/s, 8 ms each, with 100 ms of delay.
struct Link(Graph<Direction>);

impl Link {
    fn new(queue: Queue) -> Self {
        let config = DirectionConfig {
            rate: Profile::Constant(BitRate(1_000_000)),
            delay: Profile::Constant(Duration::from_millis(100)),
            framing: Framing::overhead(0),
            queue,
            channel: Channel::clear(),
        };
        let mut graph = Graph::default();
        graph.add(Direction::new(config).expect("a rate above zero"));
        Self(graph)
    }

    fn inject(&mut self, at: Instant, flow: u32, serial: u64, bytes: u32) {
        let (id, flow) = (PacketId(serial), FlowId(flow));
        let packet = Packet { id, flow, created_at: at, bytes, ..Packet::default() };
        self.0.inject(at, (NODE, Direction::IN), packet, None);
    }

    fn replace(&mut self, at: Instant, queue: Queue) {
        self.0.alter(at, NODE, None, |direction, cx| direction.replace_queue(cx, queue));
    }

    fn counters(&mut self, at: Instant) -> Counters {
        self.0.engine_mut(NODE).counters_at(at)
    }

    /// The packets that leave: the time in ms, and the number.
    fn out(&mut self) -> Vec<(u64, u64)> {
        self.0.run_until(END, None);
        let out = self.0.drain_egress();
        out.map(|(at, _, _, packet)| (at.as_nanos() / 1_000_000, packet.id.0)).collect()
    }
}

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Given 10 packets at 0 and a limit of 3 at 20 ms, when two and a half are sent, expect the first three
/// that wait to stay, in time, and the last four to be dropped.
#[test]
fn packets_that_exceed_the_new_limit_are_dropped() {
    let mut link = Link::new(drop_tail(Limit::Unlimited));
    (0..10).for_each(|serial| link.inject(ms(0), 0, serial, 1_000));
    link.replace(ms(20), drop_tail(Limit::Packets(3)));
    let counters = link.counters(ms(20));
    assert_eq!((counters.queue_packets, counters.queue_max_bytes), (3, 9_000));
    assert_eq!(counters.dropped[DropCause::QueueFull as usize].packets, 4);
    let times = [108, 116, 124, 132, 140, 148];
    assert_eq!(link.out(), (0..).zip(times).map(|(n, at)| (at, n)).collect::<Vec<_>>());
}

/// Given six packets of one flow and then two of another in a FIFO, and FQ-CoDel at 4 ms, expect the two
/// flows to alternate after the packet being sent.
#[test]
fn the_new_discipline_serves_the_packets_that_wait() {
    let mut link = Link::new(drop_tail(Limit::Unlimited));
    (0..6).for_each(|serial| link.inject(ms(0), 0, serial, 1_000));
    (6..8).for_each(|serial| link.inject(ms(0), 1, serial, 1_000));
    link.replace(ms(4), fq_codel());
    let order: Vec<u64> = link.out().into_iter().map(|(_, serial)| serial).collect();
    assert_eq!(order[0], 0);
    let place = |serial| order.iter().position(|each| *each == serial).expect("it is sent");
    assert!(place(6) < place(3) && place(7) < place(4), "{order:?}");
    assert_eq!(order.len(), 8);
}

/// Given FQ-CoDel with two flows, expect a FIFO to send in the order of arrival what waits.
#[test]
fn a_fifo_sends_in_the_order_of_arrival() {
    let mut link = Link::new(fq_codel());
    (0..8).for_each(|serial| link.inject(ms(serial), (serial % 2) as u32, serial, 1_000));
    link.replace(ms(7), drop_tail(Limit::Unlimited));
    let out = link.out();
    let times = (0..8).map(|n| (108 + 8 * n, n)).collect::<Vec<_>>();
    assert_eq!(out, times);
}

/// Given 10 packets at 0, of which the last waits 72 ms, and other queues at 4 and 20 ms, expect nine
/// delays: 8 to 72 ms in a FIFO, and those until 4 ms with another discipline. Percentiles are within 0.2 %.
#[test]
fn a_packet_that_changes_its_queue_is_counted_once() {
    let delays = |first: Queue, [second, third]: [Queue; 2]| {
        let mut link = Link::new(first);
        (0..10).for_each(|serial| link.inject(ms(0), 0, serial, 1_000));
        link.replace(ms(4), second);
        link.replace(ms(20), third);
        link.out();
        let delays = link.0.engine_mut(NODE).queue_statistics(END).delays;
        delays.map(|delay| (delay.expect("packets were sent").as_nanos() + 500_000) / 1_000_000)
    };
    let fifo = || drop_tail(Limit::Unlimited);
    // The ten delays are 0, 8, 16, ..., 72: p50 is the fifth.
    assert_eq!(delays(fifo(), [fifo(), fifo()]), [32, 72, 72]);
    assert_eq!(delays(fifo(), [fq_codel(), fifo()]), [32, 72, 72]);
    assert_eq!(delays(fifo(), [fq_codel(), fq_codel()]), [32, 72, 72]);
    // Nine packets had waited 4 ms, and the first was sent at once.
    assert_eq!(delays(fq_codel(), [fifo(), fq_codel()]), [4, 4, 4]);
}

proptest! {
    /// Given an unlimited FIFO that is replaced by its like at any times, expect the same packets at the
    /// same times.
    #[test]
    fn replacing_a_fifo_by_its_like_changes_nothing(
        arrivals in prop::collection::vec((0..40_000_000_u64, 28..1_500_u32), 1..60),
        replacements in prop::collection::vec(0..800_000_000_u64, 0..8),
    ) {
        let run = |replacements: &[u64]| {
            let mut link = Link::new(queue(0));
            let (mut now, mut rest) = (0, replacements.iter().copied().peekable());
            for (serial, &(gap, bytes)) in (0..).zip(&arrivals) {
                now += gap;
                while let Some(at) = rest.next_if(|at| *at <= now) {
                    link.replace(Instant::from_nanos(at), queue(0));
                }
                link.inject(Instant::from_nanos(now), 0, serial, bytes);
            }
            rest.for_each(|at| link.replace(Instant::from_nanos(at.max(now)), queue(0)));
            link.0.run_until(END, None);
            link.0.drain_egress().map(|(at, _, _, packet)| (at, packet.id)).collect::<Vec<_>>()
        };
        let mut replacements = replacements;
        replacements.sort_unstable();
        prop_assert_eq!(run(&replacements), run(&[]));
    }

    /// Given any queues after each other, expect every packet to be accounted for, flows to stay in order,
    /// counters not to decrease, and all packets to leave in the end.
    #[test]
    fn packets_are_accounted_for_and_stay_in_order(
        first in 0..10_usize,
        steps in prop::collection::vec(
            (0..30_000_000_u64, 0..3_u32, 28..1_500_u32, prop::option::weighted(0.2, 0..10_usize)), 1..120
        ),
    ) {
        let mut link = Link::new(queue(first));
        let (mut now, mut last) = (Instant::START, Counters::default());
        for (serial, (gap, flow, bytes, replacement)) in (0..).zip(steps) {
            now += Duration::from_nanos(gap);
            link.inject(now, flow, serial, bytes);
            if let Some(number) = replacement {
                link.replace(now, queue(number));
            }
            let counters = link.counters(now);
            let ledger = link.0.engine(NODE).ledger();
            prop_assert_eq!(ledger.check(), Ok(()), "at {}", now);
            let held = counters.queue_bytes + counters.sending_bytes + counters.in_flight_bytes;
            prop_assert_eq!(ledger.held.bytes, held, "at {}", now);
            prop_assert!(counters.sent_packets >= last.sent_packets, "at {}", now);
            prop_assert!(counters.busy >= last.busy, "at {}", now);
            prop_assert!(counters.queue_max_bytes >= last.queue_max_bytes, "at {}", now);
            last = counters;
        }
        link.0.run_until(END, None);
        let outputs: Vec<_> = link.0.drain_egress().map(|(at, _, _, packet)| (at, packet)).collect();
        let ledger = link.0.engine(NODE).ledger();
        prop_assert_eq!(ledger.check(), Ok(()));
        prop_assert_eq!((ledger.held.packets, ledger.sent.packets), (0, outputs.len() as u64));
        prop_assert!(outputs.is_sorted_by_key(|(at, _)| *at));
        for flow in (0..3).map(FlowId) {
            let serials = outputs.iter().filter(|(_, packet)| packet.flow == flow);
            prop_assert!(serials.map(|(_, packet)| packet.id).is_sorted_by(|one, other| one.0 < other.0));
        }
    }
}
