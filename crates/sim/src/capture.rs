//! Writes a run as a capture file: every packet at every point where it was observed, in order of
//! time. [`points`] lists the points.
//!
//! Headers are made from the simulated packets. Payload is not simulated, so it is truncated, and
//! checksums are computed over zeros. Addresses are private (RFC 1918): the world's host of flow f
//! is
//! 10.0.0.1 + f; the island's host is in 10.(64 + t / 256).(t mod 256).0/24 of its terminal t.
//! Connections of a flow differ in the port of the end that opens them.

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
/// The hosts of 10.0.0.0/16, without the network and the broadcast address.
const WORLD_HOSTS: u32 = (1 << 16) - 2;
/// The hosts of a terminal's /24, likewise.
const ISLAND_HOSTS: u32 = (1 << 8) - 2;
/// The port of the end that accepts. If there are more flows than hosts of the world, flows share a
/// host and use consecutive ports: 100,000 flows need two.
const SERVICE_PORT: u16 = 5_201;
/// The port of DNS servers (RFC 1035, section 4.2.1).
const DNS_PORT: u16 = 53;
/// The first port of ends that open (RFC 6335, section 6). Ports are reused after
/// [`DYNAMIC_PORTS`].
const DYNAMIC_PORT: u16 = 49_152;
const DYNAMIC_PORTS: u16 = 1 << 14;
/// Linux's `ip_default_ttl`.
const TIME_TO_LIVE: u8 = 64;

/// The properties of a flow that determine the addresses of its packets.
#[derive(Clone, Copy, Debug)]
struct Route {
    /// The direction of the sender's packets.
    heading: Heading,
    terminal: u32,
    /// The end that opens connections.
    opener: Origin,
}

impl Route {
    fn of(flow: &Flow) -> Self {
        let opener = match flow.workload {
            Workload::RequestResponse { .. }
            | Workload::Video { .. }
            | Workload::WebPage(_)
            | Workload::Channel(_) => Origin::Receiver,
            Workload::Bulk { .. }
            | Workload::ConstantRate { .. }
            | Workload::Voice { .. }
            | Workload::Conference { .. } => Origin::Sender,
        };
        Self { heading: flow.direction, terminal: flow.terminal, opener }
    }

    /// The five-tuple of packets from `origin`.
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
        // With at most 100,000 flows this is at most the second port.
        let service = SERVICE_PORT + (flow / WORLD_HOSTS) as u16;
        // The only datagrams of flows whose receiver opens connections are those of the DNS.
        let is_dns = protocol == UDP && opener == Origin::Receiver;
        let service = if is_dns { DNS_PORT } else { service };
        let dynamic = DYNAMIC_PORT + connection % DYNAMIC_PORTS;
        let (source_port, destination_port) =
            if origin == opener { (dynamic, service) } else { (service, dynamic) };
        let (source, destination) = (source.into(), destination.into());
        FiveTuple { source, destination, protocol, source_port, destination_port }
    }
}

/// A packet observed at a point.
#[derive(Debug)]
struct Observation {
    at: Instant,
    interface: u32,
    comment: Option<&'static str>,
    packet: Packet,
}

/// A trace sink that writes a capture; see the module documentation.
#[derive(Debug)]
pub(crate) struct Capture {
    routes: Vec<Route>,
    /// By place: the packets in a queue that drops both at enqueue and at dequeue for the same
    /// cause.
    waiting: Vec<Option<BTreeSet<PacketId>>>,
    /// Observations that are not yet written: those of the current slice, and later ones.
    observed: Vec<Observation>,
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
                Queue::FqCodel { .. } | Queue::SharedRate { .. } => Some(BTreeSet::new()),
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
        Self { routes, waiting, observed: Vec::new(), written, headers: Vec::new() }
    }

    /// Writes all observations until `now`. No earlier observation may follow.
    pub(crate) fn write_until(&mut self, now: Instant) {
        // The sort is stable: simultaneous observations keep their order.
        self.observed.sort_by_key(|observed| observed.at);
        let due = self.observed.partition_point(|observed| observed.at <= now);
        let (routes, headers, written) = (&self.routes, &mut self.headers, &mut self.written);
        for Observation { at, interface, comment, packet } in self.observed.drain(..due) {
            headers.clear();
            emit(headers, routes, &packet);
            headers.truncate(packet.bytes as usize);
            let (at_ns, original_bytes) = (at.as_nanos(), packet.bytes);
            let block =
                pcapng::Packet { interface, at_ns, bytes: headers, original_bytes, comment };
            pcapng::packet(written, &block);
        }
    }

    /// Memory of the packets that are not yet written.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let waiting: usize = self.waiting.iter().flatten().map(BTreeSet::len).sum();
        // A growing `Vec` doubles; the nodes of a `BTreeSet`, of 11 entries, are at least half
        // full.
        3 * (self.observed.len() * size_of::<Observation>()) as u64
            + 3 * (waiting * size_of::<PacketId>()) as u64
            + 2 * self.written.len() as u64
    }

    /// The blocks written since the last call.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.written)
    }
}

impl Trace for Capture {
    /// Ignored: a capture needs the packet.
    fn record(&mut self, _event: &Event) {}

    fn record_packet(&mut self, event: &Event, packet: &Packet) {
        let Event { at, node, kind, .. } = *event;
        // Places have the numbers of their engines.
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
        self.observed.push(Observation { at, interface, comment, packet: packet.clone() });
    }
}

/// Appends the headers of a packet.
fn emit(out: &mut Vec<u8>, routes: &[Route], packet: &Packet) {
    let segment = packet.segment();
    let (protocol, connection) = segment.map_or((UDP, 0), |segment| (TCP, segment.connection));
    // A tunnel packet gets the addresses of its first inner packet.
    let shown = packet.nested().first().unwrap_or(packet);
    let Some(route) = routes.get(shown.flow.0 as usize) else { return };
    let tuple = route.tuple(shown.flow, shown.id.origin(), connection, protocol);
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (tuple.source, tuple.destination) else {
        unreachable!("all addresses are IPv4");
    };
    ipv4::Header {
        source,
        destination,
        protocol,
        traffic_class: packet.ecn as u8,
        // The packet's serial number: it identifies the packet at all points.
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

    /// Given headers of 52 bytes in packets of 30, 52 and 1,500 bytes, expect the packet's length
    /// in the block and in the IP header, and at most 52 captured bytes.
    #[test]
    fn the_length_is_that_of_the_packet() {
        for (bytes, captured) in [(30u32, 30), (52, 52), (1_500, 52)] {
            let timestamps = Some(Timestamps::default());
            let payload = Payload::Tcp(Segment { timestamps, ..Segment::default() });
            let packet = Packet { bytes, payload, ..Packet::default() };
            let mut capture = Capture {
                routes: vec![route(Heading::Forward, 0, Origin::Sender)],
                waiting: vec![None],
                observed: Vec::new(),
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
    /// 10.(64 + 1).(300 - 256).0, at its third host, and the dynamic port at the end that opens.
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

    /// Given a datagram of a user of web pages, expect the port of the DNS at the far end.
    #[test]
    fn queries_go_to_the_port_of_the_dns() {
        let pages = route(Heading::Forward, 0, Origin::Receiver);
        let tuple = pages.tuple(FlowId(0), Origin::Receiver, 0, UDP);
        assert_eq!(text(tuple), "10.64.0.1:49152 10.0.0.1:53");
    }

    /// Given the maximum number of flows on the last terminals, expect distinct five-tuples.
    #[test]
    fn flows_have_distinct_five_tuples() {
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
