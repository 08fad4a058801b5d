use super::*;
use crate::conformance::{ArrivalPattern, Guarantees, check};
use crate::engine::Outbox;
use crate::packet::Address;
use crate::trace::NodeId;
use proptest::prelude::*;

const FRAME_BYTES: u32 = 331;
const HOLD: u64 = 5_000_000;
const TUNNELS: [FlowId; 3] = [FlowId(70), FlowId(71), FlowId(71)];

fn config() -> AggregatorConfig {
    AggregatorConfig {
        frame_bytes_max: FRAME_BYTES,
        packet_bytes_max: 200,
        hold_time: Duration::from_nanos(HOLD),
        classes: None,
        tunnels: Arc::from(TUNNELS),
        origin: Origin::Sender,
    }
}

fn packet(sequence: u64, bytes: u32) -> Packet {
    let id = PacketId::new(FlowId(0), Origin::Sender, sequence);
    let payload = Payload::Datagram { source: FlowId(0), sequence };
    Packet { id, bytes, payload, ..Packet::default() }
}

fn to(destination: u32, packet: Packet) -> Packet {
    Packet { destination: Address(destination), ..packet }
}

/// A packet that was sent: the port, the size, and the sequence numbers in it, in order.
type Sent = (Port, u32, Vec<u64>);

/// An aggregator that a test calls directly.
struct Run {
    engine: Aggregator,
    outbox: Outbox,
    /// The packets sent by the last call.
    last: Vec<Packet>,
}

impl Run {
    fn new(config: AggregatorConfig) -> Self {
        let engine = Aggregator::new(config).expect("tunnels is not empty");
        Self { engine, outbox: Outbox::new(), last: Vec::new() }
    }

    fn call(&mut self, nanos: u64, call: impl FnOnce(&mut Aggregator, &mut Cx<'_>)) -> Vec<Sent> {
        let now = Instant::from_nanos(nanos);
        call(&mut self.engine, &mut Cx::new(now, NodeId(0), &mut self.outbox, None));
        assert_eq!(self.engine.ledger().check(), Ok(()));
        let sent: Vec<_> = self.outbox.drain().collect();
        self.last = sent.iter().map(|(_, _, packet)| packet.clone()).collect();
        sent.into_iter().map(|(_, port, packet)| (port, packet.bytes, sequences(&packet))).collect()
    }

    fn inner(&mut self, nanos: u64, packet: Packet) -> Vec<Sent> {
        self.call(nanos, |engine, cx| engine.input(cx, Aggregator::INNER, Box::new(packet)))
    }

    fn outer(&mut self, nanos: u64, packet: Packet) -> Vec<Sent> {
        self.call(nanos, |engine, cx| engine.input(cx, Aggregator::OUTER, Box::new(packet)))
    }

    fn wake(&mut self, nanos: u64) -> Vec<Sent> {
        self.call(nanos, |engine, cx| engine.wake(cx))
    }

    fn next_wake(&self) -> Option<u64> {
        self.engine.next_wake().map(Instant::as_nanos)
    }

    fn statistic(&self, name: &str) -> u64 {
        let all = self.engine.statistics();
        all.into_iter().find(|statistic| statistic.0 == name).expect("it is counted").1
    }
}

/// The ids of the packets in a frame, or of the packet itself: the sender of flow 0 counts from zero.
fn sequences(packet: &Packet) -> Vec<u64> {
    let is_frame = TUNNELS.contains(&packet.flow);
    let all = if is_frame { packet.nested() } else { std::slice::from_ref(packet) };
    all.iter().map(|packet| packet.id.0).collect()
}

const OUT: Port = Aggregator::OUTER;
const IN: Port = Aggregator::INNER;

/// Given frames of at most 331 bytes, expect one of 28 + (3 + 99) + (1 + 99) + (1 + 99) = 330 bytes with three
/// packets of 99, and the fourth packet in the next frame.
#[test]
fn a_frame_leaves_when_the_next_packet_does_not_fit() {
    let mut run = Run::new(config());
    for sequence in 0..3 {
        assert_eq!(run.inner(sequence, packet(sequence, 99)), []);
    }
    assert_eq!(run.inner(3, packet(3, 99)), [(OUT, 330, vec![0, 1, 2])]);
    assert_eq!(run.next_wake(), Some(3 + HOLD), "the fourth begins a frame");
}

/// Given at most 331 bytes, expect a third packet of 100 to fill the frame exactly; one of 101 does not fit.
#[test]
fn a_frame_is_filled_to_the_last_byte() {
    for (third, frame) in [(100, (OUT, 331, vec![0, 1, 2])), (101, (OUT, 230, vec![0, 1]))] {
        let mut run = Run::new(config());
        let mut sent = Vec::new();
        for (sequence, bytes) in [(0, 99), (1, 99), (2, third), (3, 200)] {
            sent.extend(run.inner(0, packet(sequence, bytes)));
        }
        assert_eq!(sent[0], frame);
    }
}

/// Given a packet at 0 and one at 4 ms, expect both in a frame at 5 ms: 28 + (2 + 40) + (1 + 60).
#[test]
fn a_frame_leaves_when_its_first_packet_has_waited_for_the_hold_time() {
    let mut run = Run::new(config());
    assert_eq!(run.inner(0, packet(0, 40)), []);
    assert_eq!(run.inner(4_000_000, packet(1, 60)), []);
    assert_eq!(run.next_wake(), Some(HOLD));
    assert_eq!(run.wake(HOLD - 1), []);
    assert_eq!(run.wake(HOLD), [(OUT, 131, vec![0, 1])]);
    assert_eq!(run.next_wake(), None);
    assert_eq!(run.wake(HOLD), [], "a second wake-up finds nothing to do");
    assert_eq!(run.statistic("hold_time_sum_ns"), 5_000_000 + 1_000_000);
    assert_eq!(run.statistic("hold_time_max_ns"), 5_000_000);
}

/// Given a frame that is due when a packet arrives, expect the packet in the next frame, whether the loop wakes
/// the aggregator or delivers the packet first.
#[test]
fn a_due_frame_is_sent_before_a_packet_of_the_same_instant_is_added() {
    for wakes_before in [true, false] {
        let mut run = Run::new(config());
        run.inner(0, packet(0, 40));
        run.inner(1, packet(1, 40));
        let mut sent = if wakes_before { run.wake(HOLD) } else { Vec::new() };
        sent.extend(run.inner(HOLD, packet(2, 40)));
        assert_eq!(sent, [(OUT, 28 + 42 + 41, vec![0, 1])]);
        assert_eq!(run.next_wake(), Some(2 * HOLD));
    }
}

#[test]
fn a_lone_packet_is_sent_unchanged() {
    let mut run = Run::new(config());
    run.inner(7, packet(9, 40));
    assert_eq!(run.wake(7 + HOLD), [(OUT, 40, vec![9])]);
    assert_eq!(run.last, [packet(9, 40)]);
    assert_eq!((run.statistic("single_packets"), run.statistic("sent_frames")), (1, 0));
    assert_eq!(run.engine.ledger().nested, Nested::default());
}

/// Given a hold time of zero, expect packets of one instant unaggregated: each finds the previous one due.
#[test]
fn a_hold_time_of_zero_aggregates_nothing() {
    let mut run = Run::new(AggregatorConfig { hold_time: Duration::ZERO, ..config() });
    assert_eq!(run.inner(3, packet(0, 40)), []);
    assert_eq!(run.next_wake(), Some(3));
    assert_eq!(run.inner(3, packet(1, 40)), [(OUT, 40, vec![0])]);
    assert_eq!(run.wake(3), [(OUT, 40, vec![1])]);
}

/// Given a packet of 201 bytes after two small ones, expect the small ones first, and no deadline left.
#[test]
fn a_packet_too_large_to_join_does_not_overtake() {
    let mut run = Run::new(config());
    run.inner(0, packet(0, 40));
    run.inner(1, packet(1, 40));
    let sent = run.inner(2, packet(2, 201));
    assert_eq!(sent, [(OUT, 111, vec![0, 1]), (OUT, 201, vec![2])]);
    assert_eq!(run.next_wake(), None);
}

/// Given a packet within `packet_bytes_max` that does not fit an empty frame, expect it unchanged.
#[test]
fn a_packet_too_large_for_a_frame_is_forwarded() {
    let mut run = Run::new(AggregatorConfig { packet_bytes_max: 1_500, ..config() });
    // 28 + (3 + 300) is 331; one byte more is too much.
    assert_eq!(run.inner(0, packet(0, 301)), [(OUT, 301, vec![0])]);
    assert_eq!(run.inner(0, packet(1, 300)), []);
}

/// Given destination 0 behind one gateway and 1 and 2 behind another, expect a frame for each gateway, with the
/// flow of its tunnel and its own hold time.
#[test]
fn each_gateway_has_its_own_frame() {
    let mut run = Run::new(config());
    for (at, destination) in [(0, 0), (10, 1), (20, 0), (30, 2)] {
        assert_eq!(run.inner(at, to(destination, packet(at, 40))), []);
    }
    assert_eq!(run.wake(HOLD), [(OUT, 111, vec![0, 20])]);
    assert_eq!((run.last[0].flow, run.last[0].destination), (FlowId(70), Address(0)));
    assert_eq!(run.next_wake(), Some(HOLD + 10));
    assert_eq!(run.wake(HOLD + 10), [(OUT, 111, vec![10, 30])]);
    assert_eq!((run.last[0].flow, run.last[0].destination), (FlowId(71), Address(1)));
    assert_ne!(
        run.last[0].id,
        PacketId::new(FlowId(71), Origin::Sender, 0),
        "serial numbers continue"
    );
}

/// Given destinations beyond the list, expect them in the first tunnel: a terminal has only one.
#[test]
fn the_first_tunnel_serves_all_other_destinations() {
    let mut run = Run::new(AggregatorConfig { tunnels: Arc::from([FlowId(5)]), ..config() });
    run.inner(0, to(8, packet(0, 40)));
    run.inner(0, to(9, packet(1, 40)));
    run.wake(HOLD);
    assert_eq!((run.last.len(), run.last[0].flow), (1, FlowId(5)));
    let none = Arc::from([]);
    assert!(Aggregator::new(AggregatorConfig { tunnels: none, ..config() }).is_none());
}

/// Given alternating packets of classes 0 and 1, expect a frame of each class.
#[test]
fn each_class_has_its_own_frame() {
    let mut run = Run::new(config());
    for sequence in 0..4u8 {
        let class = Class(sequence % 2);
        run.inner(0, Packet { class, ..packet(sequence.into(), 40) });
    }
    assert_eq!(run.wake(HOLD), [(OUT, 111, vec![0, 2]), (OUT, 111, vec![1, 3])]);
    assert_eq!([run.last[0].class, run.last[1].class], [Class(0), Class(1)]);
}

/// Given only class 1 in the list, expect packets of class 0 at once and those of class 1 to wait on.
#[test]
fn classes_that_are_not_listed_are_forwarded() {
    let mut run = Run::new(AggregatorConfig { classes: Some(vec![Class(1)]), ..config() });
    assert_eq!(run.inner(0, Packet { class: Class(1), ..packet(0, 40) }), []);
    assert_eq!(run.inner(0, packet(1, 40)), [(OUT, 40, vec![1])]);
    assert_eq!(run.next_wake(), Some(HOLD));
}

/// Given a frame from the link, expect its packets unchanged and at once; other packets are forwarded.
#[test]
fn a_frame_is_unpacked_in_order() {
    let mut near = Run::new(config());
    let given = [packet(0, 40), to(0, packet(1, 60)), packet(2, 99)];
    given.iter().for_each(|packet| assert_eq!(near.inner(0, packet.clone()), []));
    near.wake(HOLD);
    let mut far = Run::new(config());
    let frame = near.last.remove(0);
    assert_eq!(far.outer(9, frame), [(IN, 40, vec![0]), (IN, 60, vec![1]), (IN, 99, vec![2])]);
    assert_eq!(far.last, given);
    assert_eq!(far.outer(9, packet(3, 1_500)), [(IN, 1_500, vec![3])]);
    assert_eq!(far.next_wake(), None);
    let counted = ["received_frames", "unpacked_packets", "unpacked_bytes", "packed_packets"];
    assert_eq!(counted.map(|name| far.statistic(name)), [1, 3, 199, 0]);
}

/// Given packets of 40 and 60 bytes in a frame of 131 and one of 99 that waits, expect a ledger that balances: the
/// frame was created here, and the packets in it consumed.
#[test]
fn the_ledger_counts_frames_and_their_packets() {
    let mut run = Run::new(config());
    run.inner(0, packet(0, 40));
    run.inner(0, packet(1, 60));
    run.wake(HOLD);
    run.inner(HOLD, packet(2, 99));
    let count = |packets, bytes| Count { packets, bytes };
    let nested = Nested { packed: count(2, 100), ..Nested::default() };
    let expected = Ledger {
        received: count(3, 199),
        created: count(1, 131),
        sent: count(1, 131),
        consumed: count(2, 100),
        held: count(1, 99),
        nested,
        ..Ledger::default()
    };
    assert_eq!(run.engine.ledger(), expected);
    let statistics = [
        ("sent_frames", 1),
        ("received_frames", 0),
        ("packed_packets", 2),
        ("packed_bytes", 100),
        ("unpacked_packets", 0),
        ("unpacked_bytes", 0),
        ("single_packets", 0),
        ("hold_time_sum_ns", 2 * HOLD),
        ("hold_time_max_ns", HOLD),
    ];
    assert_eq!(run.engine.statistics(), statistics);
}

/// Given a packet that carries one of 50 bytes, expect the inner one to be counted where it was packed, not here.
#[test]
fn nested_packets_are_counted_once() {
    let payload = Payload::Nested(vec![packet(7, 50)]);
    let tunnelled = Packet { payload, ..packet(0, 80) };
    let mut run = Run::new(config());
    run.inner(0, tunnelled);
    let held = Count { packets: 1, bytes: 50 };
    assert_eq!(run.engine.ledger().nested, Nested { held, ..Nested::default() });
    run.inner(0, packet(1, 40));
    assert_eq!(run.wake(HOLD), [(OUT, 28 + 83 + 41, vec![0, 1])]);
    let packed = Count { packets: 2, bytes: 120 };
    assert_eq!(run.engine.ledger().nested, Nested { packed, ..Nested::default() });
}

/// Given packets of several sizes, expect the frame size of the bytes that `FrameWriter` writes.
#[test]
fn a_frame_is_as_large_as_its_bytes() {
    let mut run = Run::new(AggregatorConfig { frame_bytes_max: 1_500, ..config() });
    let mut bytes = FrameWriter::default();
    for (sequence, size) in [(0, 64), (1, 127), (2, 128), (3, 200), (4, 20)] {
        assert!(bytes.push(&vec![0; size as usize]));
        run.inner(0, packet(sequence, size));
    }
    let frame = bytes.take().len() as u32 + FRAME_HEADER_BYTES;
    assert_eq!(run.wake(HOLD), [(OUT, frame, vec![0, 1, 2, 3, 4])]);
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Given any packets on both ports, expect the contract of every engine to hold.
    #[test]
    fn the_contract_holds(
        seed in any::<u64>(), frame in 68..1_500u32, packet in 20..1_500u32, hold in 0..20_000_000u64,
    ) {
        let config = AggregatorConfig {
            frame_bytes_max: frame,
            packet_bytes_max: packet,
            hold_time: Duration::from_nanos(hold),
            ..config()
        };
        let build = || Aggregator::new(config.clone()).expect("tunnels is not empty");
        let script = ArrivalPattern::mixed(vec![IN, OUT]).script(seed);
        prop_assert_eq!(check(build, &Guarantees::default(), &script), Ok(()));
    }
}
