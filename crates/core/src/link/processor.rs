//! The interface processor of a gateway: one CPU that handles the packets of both directions.
//!
//! A box between a local network and a satellite modem (a SnIP, for example) is often limited by packets
//! per second rather than bits per second. Packets arrive at two ports, wait in the input buffer of their
//! port and are served one at a time by one CPU, which alternates between the ports if packets wait at
//! both. A packet leaves by the other port.

use std::collections::VecDeque;

use crate::engine::{Count, Cx, Engine, Ledger, Nested};
use crate::packet::{LimitedBy, Packet, Port};
use crate::time::{Duration, Instant};
use crate::trace::{DropCause, EventKind};
use crate::units::{BitRate, Bits, Carry, TransmitTime};

/// The parameters of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorConfig {
    /// The packet rate of the CPU, both ports together.
    pub packets_per_second: u64,
    /// Additional service time for each IP byte.
    pub per_byte: Duration,
    /// Packets that may wait at each port, without the one in service.
    pub buffer_packets: u64,
}

/// The counters of a processor, by input port: `[LAN, LINK]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorCounters {
    /// Packets received, with their IP bytes.
    pub received: [Count; 2],
    /// Packets forwarded to the other port.
    pub forwarded: [Count; 2],
    /// Packets dropped because the input buffer was full.
    pub dropped: [Count; 2],
    /// Packets waiting or in service, both ports together.
    pub held: Count,
    /// CPU time spent on the packets forwarded.
    pub busy: Duration,
}

/// The packet in service.
#[derive(Debug)]
struct Service {
    side: usize,
    start: Instant,
    end: Instant,
    packet: Box<Packet>,
}

/// An interface processor. See the module's description.
#[derive(Debug)]
pub struct Processor {
    /// A packet is one "bit" at the packet rate, so that the remainder of a nanosecond is carried through
    /// a busy period as on a transmitter.
    per_packet: TransmitTime,
    per_byte: Duration,
    buffer_packets: u64,
    /// The input buffers. Both are empty if no packet is in service.
    waiting: [VecDeque<Box<Packet>>; 2],
    service: Option<Service>,
    free_at: Instant,
    carry: Carry,
    counters: ProcessorCounters,
    nested_lost: Count,
}

impl Processor {
    /// The port of the local network.
    pub const LAN: Port = Port(0);
    /// The port of the satellite link.
    pub const LINK: Port = Port(1);

    /// An idle processor. `None` if the packet rate is zero: packets would never leave.
    #[must_use]
    pub fn new(config: ProcessorConfig) -> Option<Self> {
        let rate = Some(BitRate(config.packets_per_second)).filter(|rate| rate.0 > 0)?;
        Some(Self {
            per_packet: TransmitTime::new(rate, Bits(1)),
            per_byte: config.per_byte,
            buffer_packets: config.buffer_packets,
            waiting: [VecDeque::new(), VecDeque::new()],
            service: None,
            free_at: Instant::START,
            carry: Carry::default(),
            counters: ProcessorCounters::default(),
            nested_lost: Count::default(),
        })
    }

    /// The counters, as of the last call.
    #[must_use]
    pub fn counters(&self) -> ProcessorCounters {
        self.counters
    }

    /// Serves a packet on the idle CPU, without credit or carry from before an idle time.
    fn start(&mut self, cx: &mut Cx<'_>, at: Instant, side: usize, packet: Box<Packet>) {
        if at > self.free_at {
            self.carry = Carry::default();
        }
        let (per_packet, carry) = self.per_packet.after(self.carry);
        let end = at + per_packet + self.per_byte.saturating_mul(packet.bytes.into());
        self.free_at = end;
        self.carry = carry;
        cx.trace(at, EventKind::Transmitted, &packet);
        self.service = Some(Service { side, start: at, end, packet });
    }

    /// The packet to serve after one of `side`: from the other side if a packet waits there.
    fn next_after(&mut self, side: usize) -> Option<(usize, Box<Packet>)> {
        [1 - side, side]
            .into_iter()
            .find_map(|side| self.waiting[side].pop_front().map(|packet| (side, packet)))
    }

    fn finish_due(&mut self, cx: &mut Cx<'_>) {
        while let Some(done) = self.service.take_if(|service| service.end <= cx.now()) {
            let Service { side, start, end, packet } = done;
            self.counters.forwarded[side].add(packet.bytes);
            self.counters.held.remove(packet.bytes);
            self.counters.busy += end - start;
            cx.trace(end, EventKind::Delivered, &packet);
            cx.forward([Self::LINK, Self::LAN][side], packet);
            if let Some((side, mut packet)) = self.next_after(side) {
                packet.delayed_by(LimitedBy::Gateway);
                self.start(cx, end, side, packet);
            }
        }
    }
}

impl Engine for Processor {
    /// A packet that arrives as another leaves can use its buffer space, in either order of the calls.
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        debug_assert!(port == Self::LAN || port == Self::LINK, "a processor has two ports");
        self.finish_due(cx);
        let side = usize::from(port.0);
        self.counters.received[side].add(packet.bytes);
        let waiting = self.waiting[side].len() as u64;
        if self.service.is_some() && waiting >= self.buffer_packets {
            self.counters.dropped[side].add(packet.bytes);
            self.nested_lost.add_nested(&packet);
            cx.record_drop(DropCause::ProcessorOverload, &packet);
            cx.discard(packet);
            return;
        }
        self.counters.held.add(packet.bytes);
        cx.trace(cx.now(), EventKind::Enqueued, &packet);
        if self.service.is_some() {
            self.waiting[side].push_back(packet);
            return;
        }
        self.start(cx, cx.now(), side, packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.finish_due(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.service.as_ref().map(|service| service.end)
    }

    fn ledger(&self) -> Ledger {
        let both = |[lan, link]: [Count; 2]| lan.plus(link);
        let mut dropped = [Count::default(); DropCause::ALL.len()];
        dropped[DropCause::ProcessorOverload as usize] = both(self.counters.dropped);
        let mut nested = Nested { lost: self.nested_lost, ..Nested::default() };
        let served = self.service.iter().map(|service| &service.packet);
        let waiting = self.waiting.iter().flatten();
        served.chain(waiting).for_each(|packet| nested.held.add_nested(packet));
        Ledger {
            received: both(self.counters.received),
            sent: both(self.counters.forwarded),
            dropped,
            held: self.counters.held,
            nested,
            ..Ledger::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Outbox;
    use crate::graph::Graph;
    use crate::packet::{FlowId, Origin, PacketId, Payload};
    use crate::trace::{Event, NodeId, VecTrace};

    const LAN: usize = 0;
    const LINK: usize = 1;

    #[test]
    fn three_packets_at_6000_a_second_take_half_a_millisecond() {
        let mut run = Run::new(snip(50));
        for sequence in 0..3 {
            run.input(0, Processor::LAN, sequence, 40);
        }
        assert_eq!(
            run.outputs(),
            [
                (166_666, Processor::LINK, 0),
                (333_333, Processor::LINK, 1),
                (500_000, Processor::LINK, 2)
            ]
        );
        assert_eq!(run.counters().busy, Duration::from_nanos(500_000));
    }

    /// 5,400 packets per second for a million packets: 185.185... s, not 185.185 s.
    #[test]
    fn a_busy_period_does_not_drift() {
        let config = ProcessorConfig { packets_per_second: 5_400, ..snip(u64::MAX) };
        let mut run = Run::new(config);
        for sequence in 0..1_000_000 {
            run.input(0, Processor::LINK, sequence, 40);
        }
        let last = run.outputs().last().copied();
        assert_eq!(last, Some((185_185_185_185, Processor::LAN, 999_999)));
    }

    #[test]
    fn neither_idle_time_nor_the_remainder_is_credited() {
        let mut run = Run::new(snip(50));
        for (at, sequence) in [(0, 0), (166_667, 1), (1_000_000, 2)] {
            run.input(at, Processor::LAN, sequence, 40);
        }
        let ends: Vec<_> = run.outputs().into_iter().map(|output| output.0).collect();
        assert_eq!(ends, [166_666, 333_333, 1_166_666]);
    }

    #[test]
    fn each_byte_adds_service_time() {
        let config = ProcessorConfig { per_byte: Duration::from_nanos(10), ..snip(50) };
        let mut run = Run::new(config);
        run.input(0, Processor::LAN, 0, 1_500);
        run.input(0, Processor::LINK, 1, 40);
        // 166,666.67 + 15,000, then 166,666.67 + 400.
        let outputs = [(181_666, Processor::LINK, 0), (348_733, Processor::LAN, 1)];
        assert_eq!(run.outputs(), outputs);
    }

    #[test]
    fn the_sides_alternate_when_both_wait() {
        let mut run = Run::new(snip(50));
        for sequence in 0..3 {
            run.input(0, Processor::LAN, sequence, 40);
        }
        for sequence in 3..5 {
            run.input(0, Processor::LINK, sequence, 40);
        }
        let order: Vec<_> = run.outputs().into_iter().map(|output| output.2).collect();
        assert_eq!(order, [0, 3, 1, 4, 2]);
    }

    /// Given 10,000 packets per second at each port and a CPU of 6,000, expect 3,000 from each.
    #[test]
    fn equal_overload_is_shared_equally() {
        let mut run = Run::new(snip(50));
        let offered = run.offer([10_000, 10_000]);
        let counters = run.counters();
        assert_eq!(counters.received.map(|side| side.packets), offered);
        assert_eq!(counters.forwarded.map(|side| side.packets), [3_000, 3_000]);
        // The rest was dropped, except one in service and those waiting: 50 at one port and 49 at the
        // other, whose 50th replaced the packet that left at the very end.
        let dropped = counters.dropped[LAN].packets + counters.dropped[LINK].packets;
        assert_eq!((dropped, counters.held.packets), (20_000 - 6_000 - 100, 100));
    }

    /// Given 1,000 packets per second at one port, below its share of 3,000, expect no drops there and the
    /// other 5,000 for the other port.
    #[test]
    fn the_lightly_loaded_side_loses_nothing() {
        let mut run = Run::new(snip(50));
        run.offer([1_000, 10_000]);
        let counters = run.counters();
        assert_eq!(counters.dropped[LAN], Count::default());
        // Its last packet may still be in service: it arrived less than a millisecond ago.
        assert!((999..=1_000).contains(&counters.forwarded[LAN].packets));
        assert_eq!(counters.forwarded[LAN].packets + counters.forwarded[LINK].packets, 6_000);
        // 10,000 arrived, 5,000 or 5,001 left, at most 51 are held.
        assert!((4_948..=5_000).contains(&counters.dropped[LINK].packets));
    }

    /// Given 70 packets at once, expect one in service, 50 waiting and 19 dropped, at this port only.
    #[test]
    fn a_burst_is_dropped_beyond_the_buffer() {
        let mut run = Run::new(snip(50));
        for sequence in 0..70 {
            run.input(0, Processor::LAN, sequence, 100);
        }
        run.input(0, Processor::LINK, 70, 100);
        assert_eq!(run.counters().held, Count { packets: 52, bytes: 5_200 });
        assert_eq!(run.outputs().len(), 52);
        let counters = run.counters();
        assert_eq!(counters.forwarded.map(|side| side.packets), [51, 1]);
        assert_eq!(counters.dropped, [Count { packets: 19, bytes: 1_900 }, Count::default()]);
        let dropped = run
            .trace
            .0
            .iter()
            .filter(|event| event.kind == EventKind::Dropped(DropCause::ProcessorOverload));
        assert_eq!(dropped.count(), 19);
    }

    /// The loop may deliver a packet before it wakes the processor at the same instant.
    #[test]
    fn buffer_space_is_free_as_a_packet_leaves() {
        let config = ProcessorConfig { packets_per_second: 1_000, ..snip(1) };
        let mut processor = Processor::new(config).expect("a rate");
        let mut outbox = Outbox::new();
        for (at, sequence) in [(0, 0), (0, 1), (1, 2)] {
            let now = Instant::from_millis(at);
            let mut cx = Cx::new(now, NodeId(0), &mut outbox, None);
            processor.input(&mut cx, Processor::LAN, Box::new(packet(now, sequence, 40)));
        }
        assert_eq!(outbox.drain().count(), 1);
        assert_eq!(processor.counters().dropped[LAN], Count::default());
    }

    #[test]
    fn the_events_of_a_packet_that_waits() {
        let mut run = Run::new(snip(50));
        run.input(0, Processor::LAN, 0, 40);
        run.input(100, Processor::LINK, 1, 40);
        run.outputs();
        let second = run.trace.0.iter().filter(|event| event.packet == packet_id(1));
        let events: Vec<_> =
            second.map(|event: &Event| (event.at.as_nanos(), event.kind)).collect();
        let expected = [
            (100, EventKind::Enqueued),
            (166_666, EventKind::Transmitted),
            (333_333, EventKind::Delivered),
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn a_packet_rate_of_zero_is_rejected() {
        assert!(Processor::new(ProcessorConfig { packets_per_second: 0, ..snip(50) }).is_none());
    }

    /// 6,000 packets per second, whatever their size.
    fn snip(buffer_packets: u64) -> ProcessorConfig {
        ProcessorConfig { packets_per_second: 6_000, per_byte: Duration::ZERO, buffer_packets }
    }

    fn packet_id(sequence: u64) -> PacketId {
        PacketId::new(FlowId(0), Origin::Sender, sequence)
    }

    fn packet(created_at: Instant, sequence: u64, bytes: u32) -> Packet {
        let payload = Payload::Datagram { source: FlowId(0), sequence };
        Packet { id: packet_id(sequence), created_at, bytes, payload, ..Packet::default() }
    }

    /// A graph with only a processor.
    struct Run {
        graph: Graph<Processor>,
        node: NodeId,
        trace: VecTrace,
    }

    impl Run {
        fn new(config: ProcessorConfig) -> Self {
            let mut graph = Graph::default();
            let node = graph.add(Processor::new(config).expect("a rate"));
            Self { graph, node, trace: VecTrace::default() }
        }

        fn input(&mut self, nanos: u64, port: Port, sequence: u64, bytes: u32) {
            let at = Instant::from_nanos(nanos);
            let packet = packet(at, sequence, bytes);
            self.graph.inject(at, (self.node, port), packet, Some(&mut self.trace));
        }

        /// Feeds each port at a constant rate for one second.
        fn offer(&mut self, per_second: [u64; 2]) -> [u64; 2] {
            let [lan, link] = per_second;
            let second = 1_000_000_000;
            let side = |rate: u64, port| (0..rate).map(move |n| (n * second / rate, port));
            let mut arrivals: Vec<_> =
                side(lan, Processor::LAN).chain(side(link, Processor::LINK)).collect();
            arrivals.sort_unstable();
            for ((nanos, port), sequence) in arrivals.into_iter().zip(0..) {
                self.input(nanos, port, sequence, 40);
            }
            self.graph.run_until(Instant::from_nanos(second), Some(&mut self.trace));
            per_second
        }

        /// Runs until idle and returns when and by which port each packet left, and its number.
        fn outputs(&mut self) -> Vec<(u64, Port, u64)> {
            while let Some(at) = self.graph.next_event() {
                self.graph.run_until(at, Some(&mut self.trace));
            }
            let egress = self.graph.drain_egress();
            let numbered = egress.map(|(at, _, port, packet)| {
                let Payload::Datagram { sequence, .. } = packet.payload else {
                    panic!("not a datagram")
                };
                (at.as_nanos(), port, sequence)
            });
            numbered.collect()
        }

        fn counters(&self) -> ProcessorCounters {
            self.graph.engine(self.node).counters()
        }
    }
}
