//! The memory of a run: counted during the run, and estimated from the plan beforehand.
//!
//! The count does not query the operating system, so that a limit ends the same plan at the same
//! event on every machine. It adds up what grows during a run: packets and recorded rows. The size
//! of an item includes its type, the spare capacity of growing containers, and the copies of a row
//! until it is in a file.

use bentpipe_core::delays::{DelayHistogram, Jitter};
use bentpipe_core::drop_counts::FlowDrops;
use bentpipe_core::header_bytes;
use bentpipe_core::link::{Access, Direction as DirectionEngine, FlowUse, Processor, TerminalPath};
use bentpipe_core::packet::{FlowId, Packet};
use bentpipe_core::pep::Pep as PepEngine;
use bentpipe_core::tunnel::Tunnel;

use crate::plan::{
    Amount, Direction, DownloadChannel, Draw, Flow, Function, Gateway, HUB, Heading, Limit, Media,
    Pep, Plan, Queue, Series, Tcp, WebPage, Workload,
};
use crate::record::{
    EVENT_BYTES, EXCHANGE_BYTES, PAGE_BYTES, datagram_sample_bytes, direction_sample_bytes,
    flow_sample_bytes,
};
use crate::workload::{
    BulkReceiver, BulkSender, ChannelClient, ChannelServer, Client, ConstantRate, DatagramSink,
    Participant, Player, Server, WebClient, WebServer,
};

/// Overhead of an allocation (glibc's `malloc`: 8 bytes, rounded up to 16).
const ALLOCATION_BYTES: u64 = 16;

/// A packet with its entries of 32 bytes in the propagation queue of a direction and in the list of
/// outstanding segments of its sender. Both containers double when they are full.
pub const PACKET_BYTES: u64 = size_of::<Packet>() as u64 + ALLOCATION_BYTES + 2 * 64;

/// Name, wires, random streams and the text of the plan, for each flow.
const FLOW_BYTES: u64 = 4_096;
/// Memory of an idle direction in addition to its engine.
const DIRECTION_BYTES: u64 = 2_048;
/// A participant of a conference keeps the jitter of each source; a list doubles when it is full.
pub(crate) const SOURCE_BYTES: u64 = 2 * size_of::<(FlowId, Jitter)>() as u64;
/// A class of a shared rate without its delays, in a vector that may have doubled.
const CLASS_BYTES: u64 = 1_000;
/// FQ-CoDel stores the index of each hash value's queue.
const HASH_VALUE_BYTES: u64 = size_of::<Option<usize>>() as u64;

/// Ports from which packets are routed by destination: that of each side of the link, those of
/// access lines, and that of servers.
const ROUTING_TABLES: usize = 5;

/// UDP and IPv4 headers; TCP and IPv4 headers.
const DATAGRAM_HEADER_BYTES: u64 = header_bytes::DATAGRAM as u64;
const SEGMENT_HEADER_BYTES: u64 = header_bytes::SEGMENT as u64;

/// The expected memory of a run, in bytes. All fields but `fixed` are estimates, for traffic
/// without losses and of maximum duration, with typical response sizes and think times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Memory at the start: engines, queues, flows.
    pub fixed: u64,
    /// Packets that exist at the same time, at most.
    pub packets: u64,
    /// Rows of samples.
    pub samples: u64,
    /// Rows of packet events.
    pub events: u64,
    /// Rows of exchanges and pages.
    pub exchanges: u64,
}

impl MemoryEstimate {
    /// Estimates the memory of a valid plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let traffic = Traffic::of(plan);
        Self {
            fixed: fixed_bytes(plan),
            packets: traffic.packets_alive(plan).saturating_mul(PACKET_BYTES),
            samples: samples_bytes(plan),
            events: if plan.packet_events {
                traffic.events(plan).saturating_mul(EVENT_BYTES)
            } else {
                0
            },
            exchanges: traffic
                .exchanges
                .saturating_mul(EXCHANGE_BYTES)
                .saturating_add(traffic.pages.saturating_mul(PAGE_BYTES)),
        }
    }

    /// The bytes, each with the name of its use.
    #[must_use]
    pub const fn by_use(&self) -> [(&'static str, u64); 5] {
        let Self { fixed, packets, samples, events, exchanges } = *self;
        [
            ("fixed", fixed),
            ("packets", packets),
            ("samples", samples),
            ("events", events),
            ("exchanges", exchanges),
        ]
    }

    /// The sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_use().iter().fold(0, |sum, &(_, bytes)| sum.saturating_add(bytes))
    }
}

/// The flow queues of a queue.
fn hash_values(queue: &Queue) -> u64 {
    match queue {
        Queue::FqCodel { queues, .. } => u64::from(*queues),
        Queue::SharedRate { classes, .. } => {
            classes.iter().filter_map(|class| class.queue.as_ref()).map(hash_values).sum()
        }
        _ => 0,
    }
}

/// The memory of a plan and its engines at the start.
pub(crate) fn fixed_bytes(plan: &Plan) -> u64 {
    let directions = plan.directions.iter().map(|direction| {
        let hash_values = hash_values(&direction.queue);
        let engines = size_of::<DirectionEngine>() + size_of::<Processor>();
        let delays = DelayHistogram::TYPICAL_BYTES as u64;
        let classes = match &direction.queue {
            Queue::SharedRate { classes, .. } => classes.len() as u64,
            _ => 0,
        };
        // A class has a queue and a histogram of delays, as a direction has.
        let of_classes = classes * (CLASS_BYTES + delays);
        DIRECTION_BYTES + engines as u64 + delays + of_classes + HASH_VALUE_BYTES * hash_values
    });
    let flows = plan.flows.iter().map(|flow| {
        let delays = DelayHistogram::TYPICAL_BYTES;
        let ends = match flow.workload {
            Workload::Bulk { .. } => size_of::<BulkSender>() + size_of::<BulkReceiver>(),
            Workload::ConstantRate { .. } | Workload::Voice { .. } => {
                size_of::<ConstantRate>() + size_of::<DatagramSink>() + delays
            }
            Workload::Conference { .. } => size_of::<Participant>() + delays,
            // An open connection has two endpoints.
            Workload::WebPage(ref page) => {
                let connections = page.connections_max() as usize;
                let ends = size_of::<BulkSender>() + size_of::<BulkReceiver>();
                size_of::<WebClient>() + size_of::<WebServer>() + connections * ends
            }
            // While one connection closes, the next one is open; each has two endpoints. A routing
            // table has an entry of 16 bytes for each address and one of 4 bytes in the graph.
            Workload::Channel(ref channel) => {
                let ends = size_of::<BulkSender>() + size_of::<BulkReceiver>();
                let sizes = 16 * channel.sizes.len();
                let routes = 20 * ROUTING_TABLES * channel.addresses();
                size_of::<ChannelClient>() + size_of::<ChannelServer>() + 2 * ends + sizes + routes
            }
            // One open connection has two endpoints.
            Workload::RequestResponse { .. } | Workload::Video { .. } => {
                size_of::<Client>()
                    + size_of::<Server>()
                    + size_of::<Player>()
                    + size_of::<BulkSender>()
                    + size_of::<BulkReceiver>()
            }
        };
        let drops = size_of::<FlowDrops>();
        let split = peps(plan, flow).count() as u64 * split_bytes(flow);
        FLOW_BYTES + (ends + drops + size_of::<FlowUse>()) as u64 + 2 * ALLOCATION_BYTES + split
    });
    let hosts = plan.hosts.len() * size_of::<Access>()
        + plan.branches().count() * size_of::<TerminalPath>();
    directions.sum::<u64>() + flows.sum::<u64>() + hosts as u64 + tunnels_bytes(plan)
}

/// The PEPs on the path of a flow.
fn peps<'a>(plan: &'a Plan, flow: &Flow) -> impl Iterator<Item = &'a Pep> {
    let gateways = [HUB as usize, 1 + flow.terminal as usize];
    let functions = gateways.into_iter().flat_map(|gateway| &plan.gateways[gateway].functions);
    functions.filter_map(|function| match function {
        Function::Pep(pep) => Some(&**pep),
        Function::Aggregator(_) | Function::Processor(_) | Function::Tunnel(_) => None,
    })
}

/// The memory of tunnels: at each of their ends, that of the code with the peer.
fn tunnels_bytes(plan: &Plan) -> u64 {
    let functions = plan.gateways.iter().flat_map(|gateway| &gateway.functions);
    let of_pair = |function: &Function| match function {
        Function::Tunnel(settings) => Tunnel::peer_bytes(settings),
        Function::Aggregator(_) | Function::Pep(_) | Function::Processor(_) => 0,
    };
    // The hub has a peer for each terminal, which is one of the gateways.
    2 * functions.map(of_pair).sum::<u64>()
}

/// The memory of a connection at a PEP; a flow of datagrams has none.
fn split_bytes(flow: &Flow) -> u64 {
    if is_tcp(flow) { PepEngine::CONNECTION_BYTES as u64 + ALLOCATION_BYTES } else { 0 }
}

fn is_tcp(flow: &Flow) -> bool {
    match flow.workload {
        Workload::Bulk { .. }
        | Workload::RequestResponse { .. }
        | Workload::Video { .. }
        | Workload::WebPage(_)
        | Workload::Channel(_) => true,
        Workload::ConstantRate { .. } | Workload::Voice { .. } | Workload::Conference { .. } => {
            false
        }
    }
}

/// The largest window of a transfer on the link: that of its hosts, or of the leg of a PEP.
fn window_bytes(plan: &Plan, flow: &Flow, sender: &Tcp, receiver: &Tcp) -> u64 {
    let legs = peps(plan, flow).map(|pep| &pep.link_tcp);
    let window = |tcp: &Tcp| tcp.send_buffer_bytes.min(receiver.receive_buffer_bytes);
    legs.map(window).max().unwrap_or_else(|| window(sender))
}

fn samples_bytes(plan: &Plan) -> u64 {
    let Some(interval_ns) = plan.sample_interval_ns else { return 0 };
    let of_flow = |flow| if is_tcp(flow) { flow_sample_bytes() } else { datagram_sample_bytes() };
    let flows: u64 = plan.flows.iter().map(of_flow).sum();
    let directions = plan.directions.len() as u64;
    let row = flows + directions * direction_sample_bytes();
    (plan.stop_ns / interval_ns.max(1) + 1).saturating_mul(row)
}

/// The traffic offered to one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Offered {
    /// The rate of datagrams in IP bits per second, while they are sent.
    datagram_bps: u64,
    /// Datagrams over the whole run.
    datagrams: u64,
    /// The smallest packet with data; 0 if there is none.
    packet_bytes: u64,
    /// Segments in flight at the same time, as limited by windows.
    window_segments: u64,
    /// Segments over the whole run.
    segments: u64,
}

struct Traffic {
    /// By number of the direction.
    offered: Vec<Offered>,
    exchanges: u64,
    pages: u64,
}

impl Traffic {
    fn of(plan: &Plan) -> Self {
        let mut traffic = Self { offered: Vec::new(), exchanges: 0, pages: 0 };
        traffic.offered.resize(plan.directions.len(), Offered::default());
        for flow in &plan.flows {
            traffic.add(plan, flow);
        }
        traffic
    }

    fn add(&mut self, plan: &Plan, flow: &Flow) {
        let own_return = 1 + flow.terminal as usize;
        let number = match flow.direction {
            Heading::Forward => 0,
            Heading::Return => own_return,
        };
        let left_ns = plan.stop_ns - flow.start_ns;
        let round_trip_ns = min_of(&plan.directions[0].delay_ns)
            .saturating_add(min_of(&plan.directions[own_return].delay_ns));
        match &flow.workload {
            Workload::Bulk { amount, sender, receiver } => {
                let mss = u64::from(sender.mss_bytes.min(receiver.mss_bytes));
                let window = window_bytes(plan, flow, sender, receiver);
                let bytes = match *amount {
                    Amount::Bytes(bytes) => bytes,
                    Amount::DurationNs(_) => u64::MAX,
                };
                self.offered[number].stream(mss, window.min(bytes), bytes);
            }
            Workload::ConstantRate { rate_bps, payload_bytes, duration_ns }
            | Workload::Voice { rate_bps, payload_bytes, duration_ns, .. } => {
                let active_ns = (*duration_ns).min(left_ns);
                self.offered[number].datagrams(*rate_bps, *payload_bytes, active_ns, 1);
            }
            Workload::Conference { conference, rate_bps, payload_bytes, duration_ns } => {
                let active_ns = (*duration_ns).min(left_ns);
                self.offered[number].datagrams(*rate_bps, *payload_bytes, active_ns, 1);
                let others = participants(plan, *conference) - 1;
                self.offered[0].datagrams(*rate_bps, *payload_bytes, active_ns, others);
            }
            Workload::WebPage(page) => self.add_pages(number, page, round_trip_ns, left_ns),
            Workload::Channel(channel) => self.add_channel(number, channel, round_trip_ns, left_ns),
            Workload::RequestResponse {
                response_bytes,
                think_ns,
                exchanges,
                keep_connection,
                server,
                client,
                ..
            } => {
                let round_trips = if *keep_connection { 1 } else { 2 };
                let each_ns = round_trip_ns.saturating_mul(round_trips) + mean(think_ns);
                let number_of = (left_ns / each_ns.max(1)).min(exchanges.unwrap_or(u64::MAX));
                self.exchanges = self.exchanges.saturating_add(number_of);
                let mss = u64::from(server.mss_bytes.min(client.mss_bytes));
                let window = server.send_buffer_bytes.min(client.receive_buffer_bytes);
                let bytes = mean(response_bytes).max(1);
                let all_bytes = number_of.saturating_mul(bytes.max(mss));
                self.offered[number].stream(mss, window.min(bytes), all_bytes);
            }
            Workload::Video { media, server, client, .. } => {
                // A player fetches at most what is played in the run, and a buffer more.
                let media_ns = left_ns.saturating_add(media.buffer_ns).min(media.duration_ns);
                self.exchanges = self.exchanges.saturating_add(media_ns.div_ceil(media.segment_ns));
                let mss = u64::from(server.mss_bytes.min(client.mss_bytes));
                let window = server.send_buffer_bytes.min(client.receive_buffer_bytes);
                let segment_bytes = Media::bytes(media.rate_bps, media.segment_ns);
                let all_bytes = Media::bytes(media.rate_bps, media_ns);
                self.offered[number].stream(mss, window.min(segment_bytes), all_bytes);
            }
        }
    }

    /// Adds the pages of a flow. A page takes three round trips at least: the handshake of TCP, the
    /// document, and its objects.
    fn add_pages(&mut self, number: usize, page: &WebPage, round_trip_ns: u64, left_ns: u64) {
        let each_ns = round_trip_ns.saturating_mul(3) + mean(&page.think_ns);
        let pages = (left_ns / each_ns.max(1)).min(page.pages.unwrap_or(u64::MAX));
        self.pages = self.pages.saturating_add(pages);
        let (server, client) = (&page.server, &page.client);
        let mss = u64::from(server.mss_bytes.min(client.mss_bytes));
        let window = server.send_buffer_bytes.min(client.receive_buffer_bytes);
        let objects_bytes = mean(&page.objects).saturating_mul(mean(&page.object_bytes).max(1));
        let bytes = mean(&page.document_bytes).max(1).saturating_add(objects_bytes);
        let window = window.saturating_mul(page.connections_max().into());
        let all_bytes = pages.saturating_mul(bytes.max(mss));
        self.offered[number].stream(mss, window.min(bytes), all_bytes);
    }

    /// Adds the downloads of a channel. A download takes two round trips at least: the handshake, and
    /// the data.
    fn add_channel(
        &mut self,
        number: usize,
        channel: &DownloadChannel,
        round_trip_ns: u64,
        left_ns: u64,
    ) {
        let downloads = left_ns / round_trip_ns.saturating_mul(2).max(1);
        let downloads = downloads.min(channel.connections.unwrap_or(u64::MAX));
        self.exchanges = self.exchanges.saturating_add(downloads);
        let (server, client) = (&channel.server, &channel.client);
        let mss = u64::from(server.mss_bytes.min(client.mss_bytes));
        let window = server.send_buffer_bytes.min(client.receive_buffer_bytes);
        let largest = channel.sizes.iter().map(|size| size.0).max().unwrap_or(0);
        let mean = channel.mean_bytes();
        self.offered[number].stream(mss, window.min(largest), downloads.saturating_mul(mean));
    }

    /// The maximum number of packets that exist at the same time.
    fn packets_alive(&self, plan: &Plan) -> u64 {
        let all = plan.directions.iter().zip(&self.offered);
        all.map(|(direction, offered)| offered.packets_alive(direction, plan.stop_ns))
            .fold(0, u64::saturating_add)
    }

    /// Three events per packet in a direction (enqueued, transmitted, delivered), and three on its
    /// branch, on each of its two access lines and in each traced gateway function; one ACK per two
    /// segments.
    fn events(&self, plan: &Plan) -> u64 {
        let functions = |gateway: &Gateway| {
            gateway.functions.iter().filter(|function| function.is_traced()).count() as u64
        };
        let (hub, terminals) = plan.gateways.split_at(plan.gateways.len().min(1));
        let hub: u64 = hub.iter().map(functions).sum();
        let terminal = terminals.iter().map(functions).max().unwrap_or(0);
        let branch = u64::from(plan.branches().next().is_some());
        let hosts = if plan.hosts.is_empty() { 0 } else { 2 };
        let each = 3 * (1 + branch + hosts + hub + terminal);
        let all = plan.directions.iter().zip(&self.offered);
        let packets = all.map(|(direction, offered)| offered.packets(direction, plan.stop_ns));
        packets.fold(0, u64::saturating_add).saturating_mul(each)
    }
}

fn participants(plan: &Plan, number: u32) -> u64 {
    let takes_part = |flow: &&Flow| matches!(flow.workload, Workload::Conference { conference, .. } if conference == number);
    plan.flows.iter().filter(takes_part).count() as u64
}

impl Offered {
    fn smallest(&mut self, bytes: u64) {
        let known = self.packet_bytes;
        self.packet_bytes = if known == 0 { bytes } else { known.min(bytes) };
    }

    fn datagrams(&mut self, rate_bps: u64, payload_bytes: u32, active_ns: u64, copies: u64) {
        let payload = u64::from(payload_bytes);
        self.smallest(payload + DATAGRAM_HEADER_BYTES);
        let count = per(rate_bps, active_ns, payload).saturating_add(1);
        self.datagrams = self.datagrams.saturating_add(count.saturating_mul(copies));
        let ip_bps = rate_bps.saturating_mul(payload + DATAGRAM_HEADER_BYTES) / payload;
        self.datagram_bps = self.datagram_bps.saturating_add(ip_bps.saturating_mul(copies));
    }

    fn stream(&mut self, mss_bytes: u64, window_bytes: u64, bytes: u64) {
        self.smallest(mss_bytes + SEGMENT_HEADER_BYTES);
        self.window_segments =
            self.window_segments.saturating_add(window_bytes.div_ceil(mss_bytes));
        self.segments = self.segments.saturating_add(bytes.div_ceil(mss_bytes));
    }

    /// The maximum number of packets in flight and in the queue.
    fn packets_alive(&self, direction: &Direction, stop_ns: u64) -> u64 {
        if self.packet_bytes == 0 {
            return 0;
        }
        let rate_bps = max_of(&direction.rate_bps);
        let delay_ns = max_of(&direction.delay_ns).min(stop_ns);
        let waiting = self.capacity(direction);
        // Datagrams are queued at the rate by which they exceed the link's.
        let in_flight = per(self.datagram_bps.min(rate_bps), delay_ns, self.packet_bytes);
        let over_bps = self.datagram_bps.saturating_sub(rate_bps);
        let queued = per(over_bps, stop_ns, self.packet_bytes).min(waiting);
        let datagrams = in_flight.saturating_add(queued).min(self.datagrams);
        let path = per(rate_bps, delay_ns, self.packet_bytes).saturating_add(waiting);
        let segments = self.window_segments.min(path);
        datagrams.saturating_add(segments)
    }

    /// The capacity of the queue in packets.
    fn capacity(&self, direction: &Direction) -> u64 {
        self.capacity_of(&direction.queue, max_of(&direction.rate_bps))
    }

    /// The capacity of a queue in packets, at this rate.
    fn capacity_of(&self, queue: &Queue, rate_bps: u64) -> u64 {
        let limit = match queue {
            Queue::SharedRate { limit, classes } => {
                let default = Queue::DropTail { limit: *limit };
                let queues = classes.iter().map(|class| class.queue.as_ref().unwrap_or(&default));
                let rooms = queues.map(|queue| self.capacity_of(queue, rate_bps));
                return rooms.fold(0, u64::saturating_add);
            }
            Queue::DropTail { limit }
            | Queue::Red { limit, .. }
            | Queue::Codel { limit, .. }
            | Queue::FqCodel { limit, .. }
            | Queue::PerFlowDropTail { limit, .. }
            | Queue::EarlyPacketDiscard { limit, .. }
            | Queue::SelectiveDrop { limit, .. }
            | Queue::StrictPriority { limit, .. } => *limit,
        };
        match limit {
            Limit::Bytes(bytes) | Limit::LinkBytes(bytes) => bytes.div_ceil(self.packet_bytes),
            Limit::Packets(packets) => packets,
            Limit::TimeNs(nanos) => per(rate_bps, nanos, self.packet_bytes),
            Limit::Unlimited => u64::MAX,
        }
    }

    /// Packets over the whole run: all offered datagrams, and as many segments as the link can
    /// send.
    fn packets(&self, direction: &Direction, stop_ns: u64) -> u64 {
        if self.packet_bytes == 0 {
            return 0;
        }
        let sent = per(max_of(&direction.rate_bps), stop_ns, self.packet_bytes);
        let segments = self.segments.min(sent);
        self.datagrams.saturating_add(segments).saturating_add(segments / 2)
    }
}

/// The number of packets of a size that are sent at a rate in a time.
fn per(rate_bps: u64, nanos: u64, packet_bytes: u64) -> u64 {
    let bits = u128::from(rate_bps) * u128::from(nanos) / 1_000_000_000;
    u64::try_from(bits / (8 * u128::from(packet_bytes.max(1)))).unwrap_or(u64::MAX)
}

fn numbers(series: &Series) -> impl Iterator<Item = u64> {
    let (one, steps) = match series {
        Series::Constant { value } => (Some(*value), &[][..]),
        Series::Steps { steps } => (None, &steps[..]),
    };
    one.into_iter().chain(steps.iter().map(|step| step.1))
}

fn max_of(series: &Series) -> u64 {
    numbers(series).max().unwrap_or(0)
}

fn min_of(series: &Series) -> u64 {
    numbers(series).min().unwrap_or(0)
}

/// The mean of a distribution, or a typical number.
fn mean(draw: &Draw) -> u64 {
    match *draw {
        Draw::Constant { value } => value,
        Draw::Exponential { mean } => mean,
        Draw::Pareto { min, .. } => min,
        Draw::Lognormal { median, .. } => median,
    }
}
