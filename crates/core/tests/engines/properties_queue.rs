//! Property tests of all queue disciplines: every packet is accounted for, flows stay in order, limits
//! hold, and a direction with any of them passes the conformance kit.
//!
//! `PROPTEST_CASES` and `PROPTEST_RNG_SEED` (read by proptest) run more cases, or the same ones again; a
//! failure prints the setup.

use bentpipe_core::conformance::{ArrivalPattern, Guarantees, check};
use bentpipe_core::engine::{Count, Cx, Engine, Outbox};
use bentpipe_core::link::{
    Channel, CoDel, CoDelConfig, Direction, DirectionConfig, DropAtDequeue, DropAtEnqueue,
    EarlyPacketDiscard, FqCoDel, FqCoDelConfig, Framing, Limit, Occupancy, PerFlow, Queue,
    QueuedPacket, Ratio, Red, RedConfig, SelectiveDrop, SharedRate, SharingClass, StrictPriority,
    Unit,
};
use bentpipe_core::packet::{Class, Ecn, FlowId, Origin, Packet, PacketId, Payload};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, EventKind, NodeId, VecTrace};
use bentpipe_core::units::{BitRate, Probability};
use proptest::prelude::*;
use std::collections::BTreeSet;

proptest! {
    #![proptest_config(configured())]

    #[test]
    fn every_packet_is_accounted_for(queue in drop_at_dequeue(), steps in steps()) {
        let (mut queue, limit, ecn) = queue;
        let (mut accounting, mut now) = (Accounting { ecn, ..Accounting::default() }, Instant::START);
        for step in steps {
            now += Duration::from_micros(step.gap_micros);
            match step.arrival {
                Some((flow, bytes)) => accounting.enqueue(&mut queue, now, flow, bytes),
                None => accounting.dequeue(&mut queue, now),
            }
            let held = *queue.occupancy();
            prop_assert_eq!(Count { packets: held.packets, bytes: held.bytes }, accounting.held());
            prop_assert_eq!(held.link_bytes, accounting.link_bytes);
            prop_assert!(held.bytes <= held.bytes_max);
            prop_assert_eq!(queue.is_empty(), held.packets == 0);
            prop_assert!(is_within(limit, &held), "{:?} in {:?}", held, limit);
        }
        while !queue.is_empty() {
            accounting.dequeue(&mut queue, now);
        }
        prop_assert_eq!(accounting.held(), Count::default());
        prop_assert_eq!(queue.dequeue(now, &mut |_, _| panic!("the queue is empty")), None);
        prop_assert_eq!(queue.occupancy().link_bytes, 0);
    }

    /// Given packets of every ECN value, expect those that are ECN-capable to be sent unchanged or marked,
    /// the others unchanged, marks to be counted once, and no marked packet to be dropped.
    #[test]
    fn only_ecn_capable_packets_are_marked_and_then_not_dropped(
        queue in queues(), steps in steps(), rate in 1u64..100_000,
    ) {
        let mut direction = Direction::new(DirectionConfig {
            rate: Profile::Constant(BitRate(rate * 1_000)),
            delay: Profile::Constant(Duration::from_millis(1)),
            framing: framing(),
            queue,
            channel: Channel::clear(),
        }).expect("the rate is above zero");
        let (mut outbox, mut trace, mut now) = (Outbox::new(), VecTrace::default(), Instant::START);
        let (mut sent, mut serial) = (Vec::new(), 0);
        for step in steps {
            let until = now + Duration::from_micros(step.gap_micros);
            while let Some(due) = direction.next_wake().filter(|&due| due <= until) {
                direction.wake(&mut Cx::new(due, NodeId(0), &mut outbox, Some(&mut trace)));
            }
            now = until;
            if let Some((flow, bytes)) = step.arrival {
                let id = PacketId::new(FlowId(flow), Origin::Sender, serial);
                let (flow, ecn) = (FlowId(flow), ecn_of(serial));
                let payload = Payload::Datagram { source: FlowId(0), sequence: serial };
                let packet = Packet { id, flow, bytes, ecn, payload, ..Packet::default() };
                let mut cx = Cx::new(now, NodeId(0), &mut outbox, Some(&mut trace));
                direction.input(&mut cx, Direction::IN, Box::new(packet));
                serial += 1;
            }
        }
        while let Some(due) = direction.next_wake() {
            now = due;
            direction.wake(&mut Cx::new(due, NodeId(0), &mut outbox, Some(&mut trace)));
        }
        sent.extend(outbox.drain().map(|(_, _, packet)| packet));
        let events = |wanted: EventKind| trace.0.iter().filter(move |event| event.kind == wanted);
        let marked: BTreeSet<_> = events(EventKind::Marked).map(|event| event.packet).collect();
        for packet in &sent {
            let before = ecn_of(packet.datagram().expect("a datagram"));
            let is_marked = marked.contains(&packet.id);
            prop_assert_eq!(packet.ecn, if is_marked { Ecn::Ce } else { before });
            prop_assert!(!is_marked || before.is_capable());
        }
        let bytes = events(EventKind::Marked).map(|event| u64::from(event.bytes)).sum();
        let count = Count { packets: events(EventKind::Marked).count() as u64, bytes };
        prop_assert_eq!(direction.counters_at(now).marked, count);
        prop_assert_eq!(marked.len() as u64, count.packets, "each once");
        let sent_marked = sent.iter().filter(|packet| marked.contains(&packet.id)).count();
        prop_assert_eq!(sent_marked, marked.len(), "a marked packet was dropped");
        prop_assert_eq!(direction.ledger().check(), Ok(()));
    }

    #[test]
    fn a_direction_keeps_the_invariants_with_every_queue(
        queue in queues(), rate in 1u64..1_000_000, seed in any::<u64>(),
    ) {
        let config = || DirectionConfig {
            rate: Profile::Constant(BitRate(rate * 100)),
            delay: Profile::Constant(Duration::from_millis(270)),
            framing: Framing::overhead(8),
            queue: queue.clone(),
            channel: Channel::clear(),
        };
        let build = || Direction::new(config()).expect("the rate is above zero");
        let script = ArrivalPattern::mixed(vec![Direction::IN]).script(seed);
        let verdict = check(build, &Guarantees::default(), &script);
        prop_assert!(verdict.is_ok(), "{}", verdict.expect_err("just seen"));
    }
}

fn configured() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let cases = from_environment.cases.max(1_000);
    ProptestConfig { cases, failure_persistence: None, ..from_environment }
}

const FLOWS: u32 = 6;

/// The packets that were enqueued, dequeued and dropped.
#[derive(Debug, Default)]
struct Accounting {
    /// Whether the queue marks packets.
    ecn: bool,
    enqueued: Count,
    dequeued: Count,
    dropped: Count,
    /// Bytes on the link of the packets held.
    link_bytes: u64,
    /// The serial number after the last packet of each flow that left the queue, sent or dropped at its
    /// head.
    next: [u64; FLOWS as usize],
}

impl Accounting {
    fn enqueue(&mut self, queue: &mut DropAtDequeue, now: Instant, flow: u32, bytes: u32) {
        let serial = self.enqueued.packets;
        let id = PacketId::new(FlowId(flow), Origin::Sender, serial);
        let payload = Payload::Datagram { source: FlowId(0), sequence: serial };
        let packet =
            Packet { id, created_at: now, flow: FlowId(flow), bytes, payload, ..Packet::default() };
        let class = Class((flow % 3) as u8);
        let packet = Packet { class, ecn: ecn_of(serial), ..packet };
        self.enqueued.add(bytes);
        self.link_bytes += link_bytes(bytes);
        let frame = framing().frame(bytes);
        queue.enqueue(
            now,
            QueuedPacket { packet: Box::new(packet), frame, enqueued_at: now, marked: false },
            &mut |cause, dropped| {
                assert_eq!(cause, DropCause::QueueFull, "at enqueue");
                self.dropped.add(dropped.bytes);
                self.link_bytes -= link_bytes(dropped.bytes);
                // A packet dropped at enqueue leaves the older ones of its flow in the queue.
                if dropped.id != id {
                    check_order(&mut self.next, dropped);
                }
            },
        );
    }

    fn dequeue(&mut self, queue: &mut DropAtDequeue, now: Instant) {
        let held = queue.occupancy().packets;
        let sent = queue.dequeue(now, &mut |cause, dropped| {
            assert_eq!(cause, DropCause::Codel, "at dequeue");
            assert_eq!(
                dropped.ecn,
                ecn_of(dropped.datagram().expect("a datagram")),
                "a dropped packet is not marked"
            );
            assert!(
                !(self.ecn && dropped.ecn.is_capable()),
                "an ECN-capable packet is marked instead"
            );
            self.dropped.add(dropped.bytes);
            self.link_bytes -= link_bytes(dropped.bytes);
            check_order(&mut self.next, dropped);
        });
        assert_eq!(sent.is_some(), held > 0, "{held} were held");
        if let Some(sent) = sent {
            self.dequeued.add(sent.packet.bytes);
            self.link_bytes -= link_bytes(sent.packet.bytes);
            check_order(&mut self.next, &sent.packet);
            assert_eq!(sent.enqueued_at, sent.packet.created_at);
            let before = ecn_of(sent.packet.datagram().expect("a datagram"));
            assert_eq!(sent.packet.ecn, if sent.marked { Ecn::Ce } else { before });
            assert!(!sent.marked || (self.ecn && before.is_capable()), "{before:?} was marked");
        }
    }

    fn held(&self) -> Count {
        Count {
            packets: self.enqueued.packets - self.dequeued.packets - self.dropped.packets,
            bytes: self.enqueued.bytes - self.dequeued.bytes - self.dropped.bytes,
        }
    }
}

/// The ECN values take turns.
fn ecn_of(serial: u64) -> Ecn {
    Ecn::of_traffic_class((serial % 4) as u8)
}

fn check_order(next: &mut [u64; FLOWS as usize], packet: &Packet) {
    let Payload::Datagram { sequence, .. } = packet.payload else {
        unreachable!("only datagrams are sent")
    };
    let next = &mut next[packet.flow.0 as usize];
    assert!(*next <= sequence, "{packet:?} left after a later one of its flow");
    *next = sequence + 1;
}

fn framing() -> Framing {
    Framing::overhead(8)
}

fn link_bytes(bytes: u32) -> u64 {
    framing().frame(bytes).bytes_rounded_up().0
}

fn is_within(limit: Limit, held: &Occupancy) -> bool {
    match limit {
        Limit::Bytes(max) => held.bytes <= max && held.bytes_max <= max,
        Limit::LinkBytes(max) => held.link_bytes <= max,
        Limit::Packets(max) => held.packets <= max,
        Limit::Time(_) | Limit::Unlimited => true,
    }
}

/// An arrival, or a transmitter that becomes free, after a gap.
#[derive(Clone, Copy, Debug)]
struct Step {
    gap_micros: u64,
    arrival: Option<(u32, u32)>,
}

/// More arrivals than departures, so that queues fill and sojourn times grow.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes =
        prop_oneof![1 => Just(0u32), 4 => 40u32..100, 6 => 1_000u32..1_501, 1 => 0u32..9_001];
    let arrival = (0..FLOWS, bytes).prop_map(Some);
    let arrivals = prop_oneof![3 => arrival, 2 => Just(None)];
    let gap = prop_oneof![1 => Just(0u64), 8 => 0u64..3_000, 1 => 0u64..200_000];
    let step = (gap, arrivals).prop_map(|(gap_micros, arrival)| Step { gap_micros, arrival });
    proptest::collection::vec(step, 0..400)
}

/// Limits on the backlog.
fn limits() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (0u64..60_000).prop_map(Limit::Bytes),
        (0u64..60_000).prop_map(Limit::LinkBytes),
        (0u64..60).prop_map(Limit::Packets),
        Just(Limit::Unlimited),
    ]
}

/// A discipline that drops at dequeue, its limit, and whether it marks packets.
fn drop_at_dequeue() -> impl Strategy<Value = (DropAtDequeue, Limit, bool)> {
    let millis = || (0u64..20).prop_map(Duration::from_millis);
    let parts = (limits(), millis(), millis(), any::<bool>());
    let codel = parts.prop_map(|(limit, target, interval, ecn)| {
        let config = CoDelConfig { limit, target, interval, ecn };
        (DropAtDequeue::CoDel(CoDel::new(config)), limit, ecn)
    });
    let parts = (limits(), millis(), millis(), 1u32..3_000, 1u32..9, any::<u64>(), any::<bool>());
    let fq_codel = parts.prop_map(|(limit, target, interval, quantum_bytes, queues, salt, ecn)| {
        let config = FqCoDelConfig { limit, target, interval, quantum_bytes, queues, ecn };
        (DropAtDequeue::FqCoDel(FqCoDel::new(config, salt)), limit, ecn)
    });
    let priority = (limits(), 1usize..4).prop_map(|(limit, classes)| {
        (
            DropAtDequeue::StrictPriority(StrictPriority::new(limit, classes)),
            Limit::Unlimited,
            false,
        )
    });
    let shared = shared_rates(Just(None)).prop_map(|queue| (queue, Limit::Unlimited, false));
    prop_oneof![codel, fq_codel, priority, shared]
}

/// Classes with or without a reserved rate, the ceilings of which may be lower.
fn shared_rates(
    ceilings: impl Strategy<Value = Option<BitRate>>,
) -> impl Strategy<Value = DropAtDequeue> {
    let reserved = proptest::option::of((1u64..5_000).prop_map(|kbps| BitRate(kbps * 1_000)));
    let class = (limits(), any::<bool>(), reserved, 1u16..5, ceilings);
    let class = class.prop_map(|(limit, is_managed, reserved, weight, ceiling)| {
        let (target, interval) = (Duration::from_millis(5), Duration::from_millis(30));
        let codel = CoDelConfig { limit, target, interval, ecn: false };
        let queue = if is_managed {
            DropAtDequeue::CoDel(CoDel::new(codel))
        } else {
            DropAtDequeue::StrictPriority(StrictPriority::new(limit, 1))
        };
        SharingClass { queue, reserved, weight, ceiling }
    });
    proptest::collection::vec(class, 1..4)
        .prop_map(|classes| DropAtDequeue::SharedRate(SharedRate::new(classes)))
}

fn ratios(max: f64) -> impl Strategy<Value = Ratio> {
    (0.0..max).prop_map(|value| Ratio::new(value).expect("in range"))
}

fn queues() -> impl Strategy<Value = Queue> {
    prop_oneof![
        drop_at_enqueue().prop_map(Queue::DropAtEnqueue),
        drop_at_dequeue().prop_map(|(queue, ..)| Queue::DropAtDequeue(Box::new(queue))),
        shared_rates(proptest::option::of((1u64..5_000).prop_map(|kbps| BitRate(kbps * 1_000))))
            .prop_map(|queue| Queue::DropAtDequeue(Box::new(queue))),
    ]
}

fn drop_at_enqueue() -> impl Strategy<Value = DropAtEnqueue> {
    let counted =
        || limits().prop_filter("a ratio needs a limit", |limit| limit.counted().is_some());
    prop_oneof![
        (reds(), any::<u64>()).prop_map(|(config, seed)| DropAtEnqueue::Red(Red::new(
            config,
            Rng::stream(seed, "red")
        ))),
        (limits(), limits())
            .prop_map(|(all, each)| DropAtEnqueue::PerFlow(PerFlow::new(all, each))),
        (counted(), ratios(1.0)).prop_map(|(limit, threshold)| {
            DropAtEnqueue::EarlyPacketDiscard(EarlyPacketDiscard::new(limit, threshold))
        }),
        (counted(), ratios(1.0), ratios(2.0)).prop_map(|(limit, threshold, load_ratio)| {
            DropAtEnqueue::SelectiveDrop(SelectiveDrop::new(limit, threshold, load_ratio))
        }),
    ]
}

fn reds() -> impl Strategy<Value = RedConfig> {
    let probability = || (0.0..=1.0).prop_map(|p| Probability::new(p).expect("a probability"));
    let counts = prop_oneof![
        (Just(Unit::Packets), 0u64..20, 1u64..40),
        (Just(Unit::Bytes), 0u64..20_000, 1u64..40_000),
    ];
    let parts = (limits(), counts, probability(), probability(), any::<[bool; 2]>());
    parts.prop_map(
        |(limit, (unit, min_threshold, more), max_probability, weight, [gentle, ecn])| RedConfig {
            limit,
            unit,
            min_threshold,
            max_threshold: min_threshold + more,
            max_probability,
            weight,
            gentle,
            ecn,
            mean_packet_bytes: 500,
            mean_frame: framing().frame(500),
        },
    )
}
