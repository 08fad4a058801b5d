//! A run as a capture file: every packet at every point where something happened to it, in the order
//! of time. The points are those of [`points`].
//!
//! Packets have headers, made from what the simulator carries; nobody carries payload, so it is cut
//! off, and the checksums are those of zeros. Addresses are private (RFC 1918): the world's host of
//! flow f is 10.0.0.1 + f, the island's one of the hosts 10.(64 + t / 256).(t mod 256).0/24 of its
//! terminal t. A connection is told from others of its flow by the port of the end that opens it.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::BTreeSet;

use bentpipe_core::packet::{FlowId, Origin, Packet, PacketId};
use bentpipe_core::time::Instant;
use bentpipe_core::trace::{Event, EventKind, Trace};
use bentpipe_core::wire::{self, FiveTuple, TCP, UDP, ipv4, pcapng, tcp, udp};

use crate::plan::{Flow, Heading, Plan, Queue, Workload};
use crate::points;

/// The longest headers: IPv4 20 bytes, TCP 60.
const SNAP_LENGTH: u32 = 80;
/// Of 10.0.0.0/16 all hosts but the network's own address and that of broadcasts.
const WORLD_HOSTS: u32 = (1 << 16) - 2;
/// Likewise of a terminal's /24.
const ISLAND_HOSTS: u32 = (1 << 8) - 2;
/// The port of the end that is opened. A world's host serves several flows, on ports of their own, if
/// there are more flows than hosts: 100,000 need two.
const SERVICE_PORT: u16 = 5_201;
/// Where the ports of ends that open begin (RFC 6335, section 6); they are used again after as many.
const DYNAMIC_PORT: u16 = 49_152;
const DYNAMIC_PORTS: u16 = 1 << 14;
/// Linux's `ip_default_ttl`.
const TIME_TO_LIVE: u8 = 64;

/// What of a flow its packets' addresses follow from.
#[derive(Clone, Copy, Debug)]
struct Route {
    /// Which way the sender's packets go.
    heading: Heading,
    terminal: u32,
    /// The end that opens.
    opener: Origin,
}

impl Route {
    fn of(flow: &Flow) -> Self {
        let opener = match flow.workload {
            Workload::RequestResponse { .. } => Origin::Receiver,
            Workload::Bulk { .. } | Workload::ConstantRate { .. } | Workload::Conference { .. } => {
                Origin::Sender
            }
        };
        Self { heading: flow.direction, terminal: flow.terminal, opener }
    }

    /// That of the packets which `origin` makes.
    fn tuple(
        self,
        FlowId(flow): FlowId,
        origin: Origin,
        connection: u16,
        protocol: u8,
    ) -> FiveTuple {
        let Self { heading, terminal, opener } = self;
        let world = Ipv4Addr::from_bits(0x0a00_0001 + flow % WORLD_HOSTS);
        let network = 0x0a40_0000 + (terminal << 8);
        let island = Ipv4Addr::from_bits(network + 1 + flow % ISLAND_HOSTS);
        let (source, destination) = match (heading, origin) {
            (Heading::Forward, Origin::Sender) | (Heading::Return, Origin::Receiver) => {
                (world, island)
            }
            (Heading::Return, Origin::Sender) | (Heading::Forward, Origin::Receiver) => {
                (island, world)
            }
        };
        // At most 100,000 flows: the second port at most.
        let service = SERVICE_PORT + (flow / WORLD_HOSTS) as u16;
        let dynamic = DYNAMIC_PORT + connection % DYNAMIC_PORTS;
        let (source_port, destination_port) =
            if origin == opener { (dynamic, service) } else { (service, dynamic) };
        let (source, destination) = (source.into(), destination.into());
        FiveTuple { source, destination, protocol, source_port, destination_port }
    }
}

/// A packet at a point.
#[derive(Debug)]
struct Seen {
    at: Instant,
    interface: u32,
    comment: Option<&'static str>,
    packet: Packet,
}

/// Writes what happens to packets. See the module's description.
#[derive(Debug)]
pub(crate) struct Capture {
    routes: Vec<Route>,
    /// By place: what waits in a queue that may drop it in favour of another packet, for a cause that
    /// also refuses packets.
    waiting: Vec<Option<BTreeSet<PacketId>>>,
    /// What is not written: of the stretch that is run, and what is known to happen later.
    seen: Vec<Seen>,
    written: Vec<u8>,
    headers: Vec<u8>,
}

impl Capture {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut written = Vec::new();
        points::begin(&mut written, std::slice::from_ref(plan), SNAP_LENGTH);
        let queues = plan.directions.iter();
        let mut waiting: Vec<_> = queues
            .map(|direction| match direction.queue {
                Queue::FqCodel { .. } => Some(BTreeSet::new()),
                Queue::DropTail { .. }
                | Queue::Red { .. }
                | Queue::PerFlowDropTail { .. }
                | Queue::EarlyPacketDiscard { .. }
                | Queue::SelectiveDrop { .. }
                | Queue::Codel { .. }
                | Queue::StrictPriority { .. } => None,
            })
            .collect();
        waiting.resize(plan.place_names().len(), None);
        let routes = plan.flows.iter().map(Route::of).collect();
        Self { routes, waiting, seen: Vec::new(), written, headers: Vec::new() }
    }

    /// Writes what happened until `now`; nothing that happened until then may come later.
    pub(crate) fn write_until(&mut self, now: Instant) {
        // What happens at one moment stays in the order in which it was told.
        self.seen.sort_by_key(|seen| seen.at);
        let due = self.seen.partition_point(|seen| seen.at <= now);
        let (routes, headers, written) = (&self.routes, &mut self.headers, &mut self.written);
        for Seen { at, interface, comment, packet } in self.seen.drain(..due) {
            headers.clear();
            emit(headers, routes, &packet);
            headers.truncate(packet.bytes as usize);
            let (at_ns, original_bytes) = (at.as_nanos(), packet.bytes);
            let seen = pcapng::Packet { interface, at_ns, bytes: headers, original_bytes, comment };
            pcapng::packet(written, &seen);
        }
    }

    /// What is kept of packets that are not written.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let waiting: usize = self.waiting.iter().flatten().map(BTreeSet::len).sum();
        // A list doubles as it grows; a set's nodes of eleven are half full at least.
        3 * (self.seen.len() * size_of::<Seen>()) as u64
            + 3 * (waiting * size_of::<PacketId>()) as u64
            + 2 * self.written.len() as u64
    }

    /// What was written since the last time: whole blocks.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.written)
    }
}

impl Trace for Capture {
    /// A fact without its packet shows nothing.
    fn record(&mut self, _event: &Event) {}

    fn record_packet(&mut self, event: &Event, packet: &Packet) {
        let Event { at, node, kind, .. } = *event;
        // Engines that are places have the place's number in the graph.
        let mut has_waited = false;
        if let Some(waiting) = &mut self.waiting[node.0 as usize] {
            has_waited = match kind {
                EventKind::Enqueued => waiting.insert(packet.id),
                EventKind::Transmitted | EventKind::Dropped(_) => waiting.remove(&packet.id),
                EventKind::Delivered | EventKind::Marked => false,
            };
        }
        let Some(interface) = points::interface(node, kind, has_waited) else { return };
        let comment = points::comment(kind);
        self.seen.push(Seen { at, interface, comment, packet: packet.clone() });
    }
}

/// Appends the headers of a packet.
fn emit(out: &mut Vec<u8>, routes: &[Route], packet: &Packet) {
    let segment = packet.segment();
    let (protocol, connection) = segment.map_or((UDP, 0), |segment| (TCP, segment.connection));
    // A packet between gateways goes the way of what it carries.
    let shown = packet.nested().first().unwrap_or(packet);
    let Some(route) = routes.get(shown.flow.0 as usize) else { return };
    let tuple = route.tuple(shown.flow, shown.id.origin(), connection, protocol);
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (tuple.source, tuple.destination) else {
        unreachable!("the plan of addresses has those of version 4");
    };
    ipv4::Header {
        source,
        destination,
        protocol,
        traffic_class: packet.ecn as u8,
        // Counts what its end made, so that a packet is known again at the next point.
        identification: (packet.id.0 & 0xffff) as u16,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        time_to_live: TIME_TO_LIVE,
        total_bytes: u16::try_from(packet.bytes).unwrap_or(u16::MAX),
    }
    .emit(out);
    let rest = (packet.bytes as usize).saturating_sub(ipv4::HEADER_BYTES);
    if let Some(segment) = segment {
        let headers = tcp::HEADER_BYTES + segment.option_bytes() as usize;
        let payload = wire::Payload::Zeros(rest.saturating_sub(headers));
        tcp::emit(out, &tuple, segment, payload);
    } else {
        let payload = wire::Payload::Zeros(rest.saturating_sub(udp::HEADER_BYTES));
        udp::emit(out, &tuple, payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_core::packet::Payload;
    use bentpipe_core::packet::segment::{Segment, Timestamps};
    use bentpipe_core::trace::NodeId;
    use bentpipe_core::wire::Headers;

    /// Given a segment of 52 bytes with headers in packets that say 30, 52 and 1,500, expect that length
    /// in the file and in the IP header, and no more bytes than there are.
    #[test]
    fn the_length_of_a_packet_is_the_packets() {
        for (bytes, captured) in [(30u32, 30), (52, 52), (1_500, 52)] {
            let timestamps = Some(Timestamps::default());
            let payload = Payload::Tcp(Segment { timestamps, ..Segment::default() });
            let packet = Packet { bytes, payload, ..Packet::default() };
            let mut capture = Capture {
                routes: vec![route(Heading::Forward, 0, Origin::Sender)],
                waiting: vec![None],
                seen: Vec::new(),
                written: Vec::new(),
                headers: Vec::new(),
            };
            let (at, node, kind) = (Instant::START, NodeId(0), EventKind::Delivered);
            let event = Event { at, node, kind, flow: packet.flow, packet: packet.id, bytes };
            capture.record_packet(&event, &packet);
            capture.write_until(Instant::START);
            let block = capture.take();
            let number = |from: usize| {
                u32::from_le_bytes(block[from..from + 4].try_into().expect("four bytes"))
            };
            assert_eq!(
                (number(8), number(20), number(24)),
                (points::interface(node, kind, false).expect("a point"), captured, bytes)
            );
            let headers = Headers::of(&block[28..28 + captured as usize]).expect("whole");
            assert_eq!(headers.total_bytes, bytes as usize);
        }
    }

    fn route(heading: Heading, terminal: u32, opener: Origin) -> Route {
        Route { heading, terminal, opener }
    }

    fn text(tuple: FiveTuple) -> String {
        let FiveTuple { source, destination, source_port, destination_port, .. } = tuple;
        format!("{source}:{source_port} {destination}:{destination_port}")
    }

    /// Given flow 2 of terminal 300, expect the world at 10.0.0.3 and the island in network
    /// 10.(64 + 1).(300 - 256).0, at its third host; the end that opens has the dynamic port.
    #[test]
    fn addresses_follow_the_flow_and_its_terminal() {
        let download = route(Heading::Forward, 300, Origin::Receiver);
        let tuple = |origin| download.tuple(FlowId(2), origin, 5, TCP);
        assert_eq!(text(tuple(Origin::Sender)), "10.0.0.3:5201 10.65.44.3:49157");
        assert_eq!(tuple(Origin::Receiver), tuple(Origin::Sender).reversed());
        let upload = route(Heading::Return, 0, Origin::Sender);
        let tuple = upload.tuple(FlowId(0), Origin::Sender, 0, UDP);
        assert_eq!(text(tuple), "10.64.0.1:49152 10.0.0.1:5201");
    }

    /// The most flows that a plan may have, on terminals of the highest numbers, whoever opens.
    #[test]
    fn flows_are_distinct() {
        let mut known = BTreeSet::new();
        let mut flows = 0;
        for flow in 0..100_000 {
            let opener = if flow % 2 == 0 { Origin::Sender } else { Origin::Receiver };
            let heading = if flow % 3 == 0 { Heading::Forward } else { Heading::Return };
            let route = route(heading, 9_999 - flow % 7, opener);
            let tuple = route.tuple(FlowId(flow), Origin::Sender, 0, TCP);
            known.insert(tuple);
            known.insert(tuple.reversed());
            flows += 1;
        }
        assert_eq!(known.len(), 2 * flows);
        let last = route(Heading::Forward, 9_999, Origin::Sender);
        let tuple = last.tuple(FlowId(99_999), Origin::Sender, u16::MAX, TCP);
        assert_eq!(text(tuple), "10.0.134.162:65535 10.103.15.178:5202");
    }
}
