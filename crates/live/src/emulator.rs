//! The link with real packets: their bytes are in a store while their headers pass through the
//! graph. There is no clock and no I/O: the driver passes packets and times as arguments, so tests
//! need neither.

use std::collections::BTreeMap;

use bentpipe_core::engine::Engine;
use bentpipe_core::link::Counters;
use bentpipe_core::packet::{Address, Class, Ecn, FlowId, Packet, PacketId, Payload};
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, Event, EventKind, HashTrace, NodeId, Trace};
use bentpipe_core::wire::ecn;
use bentpipe_sim::node::Node;
use bentpipe_sim::plan::{Plan, PlanError, Workload};
use bentpipe_sim::record::{class_values, processor_values};
use bentpipe_sim::{Chain, Host, InterfaceId, Network, NextHop};

use crate::addresses;
use crate::capture::{Captured, Recorder};
use crate::changes::{LinkChange, RateSchedules};
use crate::flows::{FLOWS_MAX, Flows};
use crate::lateness::Limits;
use crate::ports::{PortCounts, Ports};
use crate::store::{Slot, Store};

/// The arrival of a packet. Arrivals, changes, plan and seed determine a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The arrival time, or the time of the read if that is unknown.
    pub at: Instant,
    /// The interface that it arrived on.
    pub from: InterfaceId,
    /// The destination host.
    pub to: Address,
    /// Its flow.
    pub flow: FlowId,
    /// Its class, for queues with priorities.
    pub class: Class,
    /// Its size at the IP layer.
    pub bytes: u32,
    /// Its ECN field.
    pub ecn: Ecn,
}

/// A change and when it was applied.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedChange {
    /// When it was applied.
    pub at: Instant,
    /// How many packets had arrived before.
    pub arrivals: u64,
    /// The change.
    pub change: LinkChange,
}

/// What determines a run, besides plans and seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Whether packets left the graph at gateways; see [`Options::gateways`].
    pub gateways: bool,
    /// All arrivals, in order.
    pub arrivals: Vec<Arrival>,
    /// All changes, in order.
    pub changes: Vec<AppliedChange>,
}

/// A packet that is due at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// When its last bit arrives at the interface.
    pub due: Instant,
    /// The interface that it leaves by.
    pub to: InterfaceId,
    /// The slot of its bytes.
    pub slot: Slot,
    /// Its length in bytes.
    pub bytes: u32,
    /// Whether it crossed the link. Packets that bypassed the link are not counted.
    pub on_link: bool,
}

/// What a class of a queue has sent and lost, by the names of columns of a result.
pub type ClassValues = BTreeMap<String, Option<u64>>;

/// The counters of a gateway function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Its full name: the gateway's name and its own.
    pub name: String,
    /// The index of its gateway; 0 is the hub's.
    pub gateway: u32,
    /// The counters of a processor, by the names of their columns in results.
    pub processor: Option<Vec<(String, u64)>>,
    /// Its other counters, by name.
    pub statistics: Vec<(&'static str, u64)>,
}

/// Settings of an emulator.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The MTU: the longest IP packet, in bytes.
    pub packet_bytes_max: usize,
    /// The memory limit of the packet store, in bytes.
    pub store_bytes_max: usize,
    /// Whether to record all arrivals and changes, and a hash of all events, for a replay.
    pub tap: bool,
    /// The first and the last server port of measuring programs. The first TCP connection to each
    /// bypasses the link; see [`Ports`].
    pub control_ports: Option<(u16, u16)>,
    /// Whether packets leave the graph at gateways and re-enter it; see [`Chain`].
    pub gateways: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            packet_bytes_max: 1_500,
            store_bytes_max: 1 << 30,
            tap: false,
            control_ports: None,
            gateways: false,
        }
    }
}

/// Control connections of measuring programs bypass the link and must not wait for long.
const CONTROL_DELAY: Duration = Duration::from_micros(200);

/// The hops, and the packets in transit.
pub struct Emulator {
    chain: Chain,
    store: Store,
    flows: Flows,
    ports: Ports,
    trace: EmulatorTrace,
    rate_schedules: RateSchedules,
    record: Option<Record>,
    departures: Vec<Departure>,
    serial: u64,
    store_full: u64,
}

/// A lost packet.
#[derive(Clone, Copy, Debug)]
struct Lost {
    cause: DropCause,
    packet: PacketId,
    destination: Address,
    bytes: u32,
}

/// Collects lost packets, whose slots are then freed, and records events.
#[derive(Debug, Default)]
struct EmulatorTrace {
    lost: Vec<Lost>,
    hash: Option<HashTrace>,
    capture: Option<Box<Recorder>>,
}

impl Trace for EmulatorTrace {
    fn record(&mut self, _: &Event) {
        unreachable!("engines call record_packet");
    }

    fn record_packet(&mut self, event: &Event, packet: &Packet) {
        if let EventKind::Dropped(cause) = event.kind {
            self.on_drop(cause, packet);
        }
        if let Some(capture) = &mut self.capture {
            // A frame between gateways has no bytes of its own; its first packet represents it.
            let shown = packet.nested().first().unwrap_or(packet);
            capture.on_event(&Event { packet: shown.id, ..*event });
        }
        if let Some(hash) = &mut self.hash {
            // The slot depends on the timing of reads; the serial number does not.
            let packet = PacketId(event.packet.0 >> Store::INDEX_BITS);
            hash.record(&Event { packet, ..*event });
        }
    }
}

impl EmulatorTrace {
    /// Records that a packet was dropped, with all packets in it.
    fn on_drop(&mut self, cause: DropCause, packet: &Packet) {
        match packet.nested() {
            [] => {
                let &Packet { id, destination, bytes, .. } = packet;
                self.lost.push(Lost { cause, packet: id, destination, bytes });
            }
            nested => nested.iter().for_each(|inner| self.on_drop(cause, inner)),
        }
    }

    /// Records that a packet left the link.
    #[inline]
    fn on_departure(&mut self, packet: PacketId) {
        if let Some(capture) = &mut self.capture {
            capture.on_departure(packet);
        }
    }
}

fn header(arrival: &Arrival, serial: u64, slot: Slot) -> Packet {
    Packet {
        id: slot.packet_id(serial),
        created_at: arrival.at,
        flow: arrival.flow,
        destination: arrival.to,
        class: arrival.class,
        bytes: arrival.bytes,
        ecn: arrival.ecn,
        payload: Payload::Datagram { source: arrival.flow, sequence: serial },
        ..Packet::default()
    }
}

impl Emulator {
    /// Builds the hops of checked plans; the first is next to the world.
    ///
    /// # Errors
    /// If the plans cannot run in real time; see [`Chain::new`].
    pub fn new(plans: &[Plan], seed: u64, options: Options) -> Result<Self, PlanError> {
        let mut ports = options
            .control_ports
            .map_or_else(Ports::default, |(first, last)| Ports::new(first, last));
        // The flows of a plan have consecutive ports.
        for (index, flow) in plans.iter().flat_map(|plan| &plan.flows).enumerate() {
            match flow.workload {
                Workload::Voice { jitter_buffer_ns, .. } => {
                    ports.set_jitter_buffer(index, Duration::from_nanos(jitter_buffer_ns));
                }
                Workload::Channel(_) => ports.count_all(index),
                _ => {}
            }
        }
        let chain = Chain::new(plans, seed, FlowId(FLOWS_MAX), options.gateways)?;
        if chain.network.hosts.iter().any(|host| host.is_gateway) {
            ports.follow_through_gateways();
        }
        Ok(Self {
            chain,
            store: Store::new(options.packet_bytes_max, options.store_bytes_max),
            flows: Flows::default(),
            ports,
            trace: EmulatorTrace {
                hash: options.tap.then(HashTrace::default),
                ..EmulatorTrace::default()
            },
            rate_schedules: RateSchedules::new(plans, seed),
            record: options.tap.then(|| Record { gateways: options.gateways, ..Record::default() }),
            departures: Vec::new(),
            serial: 0,
            store_full: 0,
        })
    }

    /// Captures all packet events on the link from now on.
    pub fn capture(&mut self, recorder: Recorder) {
        self.trace.capture = Some(Box::new(recorder));
    }

    /// The state of the capture, if there is one. Hands the recorded events to the writer.
    pub fn captured(&mut self) -> Option<Captured> {
        let capture = self.trace.capture.as_mut()?;
        capture.flush(self.chain.graph.now());
        Some(capture.captured())
    }

    /// Ends the capture, if there is one, with the events until `at`, and waits for the file.
    pub fn end_capture(&mut self, at: Instant) {
        if let Some(capture) = &mut self.trace.capture {
            capture.end(at);
        }
    }

    /// Allocates a slot for one packet, to be passed to [`Emulator::arrive`] or [`Emulator::free`].
    /// `None` if the store is full.
    pub fn alloc(&mut self) -> Option<Slot> {
        self.store.alloc()
    }

    /// Counts a packet that arrived while the store was full.
    pub fn count_refused(&mut self) {
        self.store_full += 1;
    }

    /// The MTU in bytes.
    #[must_use]
    pub fn packet_bytes_max(&self) -> usize {
        self.store.packet_bytes()
    }

    /// The buffer of a slot. It is longer than the MTU, so that longer packets are detected.
    pub fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        self.store.bytes_mut(slot)
    }

    /// The bytes of a packet that is due.
    #[must_use]
    pub fn bytes(&self, departure: &Departure) -> &[u8] {
        self.store.bytes(departure.slot, departure.bytes as usize)
    }

    /// Frees a slot.
    pub fn free(&mut self, slot: Slot) {
        self.store.free(slot);
    }

    /// Processes a packet that arrived on an interface and was written to `slot`. A time before
    /// that of the previous call counts as that time.
    pub fn arrive(&mut self, at: Instant, from: impl Into<InterfaceId>, slot: Slot, bytes: usize) {
        let (at, from) = (at.max(self.chain.graph.now()), from.into());
        let packet = self.store.bytes(slot, bytes);
        let network = &self.chain.network;
        let (owner, is_inner) = network.owner(from);
        let Host { side, is_gateway, .. } = network.hosts[owner.0 as usize];
        // What a gateway sends to its hosts is from the other side.
        let side = if is_inner { side.other() } else { side };
        let fallback = if is_inner { network.host_at(owner) } else { network.default_route(owner) };
        let Some(to) = addresses::destination(packet, fallback, network.hosts.len()) else {
            self.store.free(slot);
            return;
        };
        let next_hop = network.ingress(from, to);
        let is_control = !is_gateway && self.ports.is_control(at, side, packet);
        let flow = if is_control { FlowId(0) } else { self.flows.id_of(side, packet) };
        let bytes = u32::try_from(bytes).expect("a packet is shorter than 64 KiB");
        let bypass = match next_hop {
            _ if is_control => Some(to.into()),
            NextHop::Interface(to) => Some(to),
            _ => None,
        };
        if let Some(to) = bypass {
            if is_gateway {
                self.ports.delivered(at, at, side, self.store.bytes(slot, bytes as usize));
            }
            self.departures.push(Departure { due: at, to, slot, bytes, on_link: false });
            return;
        }
        let class = addresses::class(packet, self.chain.network.classes);
        let arrival = Arrival { at, from, to, flow, class, bytes, ecn: ecn::of(packet) };
        if let Some(record) = &mut self.record {
            record.arrivals.push(arrival);
        }
        let packet = header(&arrival, self.serial, slot);
        self.serial += 1;
        if let Some(capture) = &mut self.trace.capture {
            let content = self.store.bytes(slot, bytes as usize);
            capture.on_arrival(packet.id, content, self.chain.graph.now());
        }
        match next_hop {
            NextHop::Engine(node, port) => {
                self.chain.graph.inject(at, (node, port), packet, Some(&mut self.trace));
            }
            // The destination does not exist. (A packet of a host to itself stays in its kernel.)
            NextHop::Interface(_) | NextHop::Unreachable => {
                self.trace.on_drop(DropCause::NoRoute, &packet);
            }
        }
        self.collect();
    }

    /// Applies changes to the link and returns when they took effect. A time before that of the
    /// previous call counts as that time.
    ///
    /// # Errors
    /// If one of the changes is impossible; then none is applied.
    pub fn apply(&mut self, at: Instant, changes: &[LinkChange]) -> Result<Instant, PlanError> {
        for change in changes {
            self.rate_schedules.check(change)?;
        }
        let at = at.max(self.chain.graph.now());
        for change in changes {
            apply(&mut self.chain, &mut self.rate_schedules, &mut self.trace, at, change);
            if let Some(record) = &mut self.record {
                record.changes.push(AppliedChange {
                    at,
                    arrivals: self.serial,
                    change: change.clone(),
                });
            }
        }
        self.collect();
        Ok(at)
    }

    /// Runs the link until `now`.
    pub fn run_until(&mut self, now: Instant) {
        self.chain.graph.run_until(now, Some(&mut self.trace));
        self.collect();
    }

    /// The time that the link has reached.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.chain.graph.now()
    }

    /// The shortest delay of a packet that arrives from now on.
    #[must_use]
    pub fn shortest_delay(&self) -> Duration {
        let over_links =
            self.rate_schedules.shortest_delay().min(self.chain.network.min_local_delay);
        if self.ports().is_empty() { over_links } else { over_links.min(CONTROL_DELAY) }
    }

    /// The limits of lateness of packets from now on. With programs at gateways, connections may end at
    /// a gateway: then no round trip is known.
    #[must_use]
    pub fn limits(&self) -> Limits {
        if self.chain.network.hosts.iter().any(|host| host.is_gateway) {
            return Limits::default();
        }
        let (round_trip, jitter) = self.rate_schedules.round_trip();
        Limits::of_link(round_trip, jitter)
    }

    /// The time of the next event, if any.
    pub fn next_event(&mut self) -> Option<Instant> {
        self.chain.graph.next_event()
    }

    /// Takes the packets that are due, in order of time. Free each after writing it. Pass the same
    /// buffer to each call to reuse its memory.
    pub fn take_departures(&mut self, last: &mut Vec<Departure>) {
        last.clear();
        std::mem::swap(last, &mut self.departures);
    }

    /// The hosts and their interfaces.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.chain.network
    }

    /// The names of the engines, by node ID.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.chain.names
    }

    /// The counters of each direction, with its name, at the time that the link has reached. Not at
    /// a later time: packets not read yet may have arrived before it, and would find a queue that
    /// had already advanced.
    pub fn counters(&mut self) -> Vec<(String, Counters)> {
        let directions = self.chain.directions.concat();
        let now = self.chain.graph.now();
        let counters_of = |node| self.chain.graph.engine_mut(node).direction().counters_at(now);
        let names: Vec<_> =
            directions.iter().map(|node| self.chain.names[node.0 as usize].clone()).collect();
        names.into_iter().zip(directions.into_iter().map(counters_of)).collect()
    }

    /// What the classes of all queues have sent and lost, with the numbers of their directions and their own; none
    /// without a shared rate.
    pub fn classes(&mut self) -> Vec<ClassValues> {
        let mut rows = Vec::new();
        for (direction, node) in (0u64..).zip(self.chain.directions.concat()) {
            let classes = self.chain.graph.engine_mut(node).direction().class_uses();
            for (class, usage) in (0u64..).zip(&classes) {
                let numbers = [("direction", direction), ("class", class)];
                let numbers = numbers.map(|(name, number)| (name.to_owned(), Some(number)));
                rows.push(numbers.into_iter().chain(class_values(usage)).collect());
            }
        }
        rows
    }

    /// The counters of the gateway functions.
    #[must_use]
    pub fn functions(&self) -> Vec<Function> {
        let hops = self.chain.functions.iter();
        let gateways = hops.flat_map(|hop| (0..).zip(hop));
        let nodes = gateways.flat_map(|(gateway, nodes)| nodes.iter().map(move |n| (gateway, *n)));
        let function = |(gateway, node): (u32, NodeId)| {
            let engine = self.chain.graph.engine(node);
            let processor = match engine {
                Node::Processor(processor) => Some(processor_values(&processor.counters())),
                _ => None,
            };
            let (name, statistics) =
                (self.chain.names[node.0 as usize].clone(), engine.statistics());
            Function { name, gateway, processor, statistics }
        };
        nodes.map(function).collect()
    }

    /// The traffic of the ports of [`Options::control_ports`].
    #[must_use]
    pub fn ports(&self) -> &PortCounts {
        self.ports.counts()
    }

    /// The number of packets that arrived while the store was full. The link would have carried or
    /// dropped them, so the run is invalid if there are any.
    #[must_use]
    pub fn store_full(&self) -> u64 {
        self.store_full
    }

    /// The number of packets in the store.
    #[must_use]
    pub fn stored(&self) -> usize {
        self.store.used()
    }

    /// The record and the hash of all events, if [`Options::tap`] is set.
    #[must_use]
    pub fn into_record(self) -> Option<(Record, HashTrace)> {
        self.record.zip(self.trace.hash)
    }

    fn collect(&mut self) {
        let network = &self.chain.network;
        while let Some(Lost { cause, packet, destination, bytes }) = self.trace.lost.pop() {
            // A packet to a host that does not exist has no side.
            if let Some(host) = network.hosts.get(destination.0 as usize) {
                let content = self.store.bytes(Slot::of(packet), bytes as usize);
                self.ports.dropped(cause, host.side.other(), content);
            }
            self.store.free(Slot::of(packet));
            self.trace.on_departure(packet);
        }
        for (due, node, port, packet) in self.chain.graph.drain_egress() {
            let (slot, bytes) = (Slot::of(packet.id), packet.bytes);
            let to = network.egress(node, port, packet.destination);
            let side = network.hosts[packet.destination.0 as usize].side;
            if packet.ecn == Ecn::Ce {
                ecn::mark(self.store.bytes_mut(slot));
            }
            // At a gateway that is a host it has not arrived yet.
            if to == packet.destination.into() {
                let content = self.store.bytes(slot, bytes as usize);
                self.ports.delivered(packet.created_at, due, side.other(), content);
            }
            self.departures.push(Departure { due, to, slot, bytes, on_link: true });
            self.trace.on_departure(packet.id);
        }
    }
}

fn apply(
    chain: &mut Chain,
    rate_schedules: &mut RateSchedules,
    trace: &mut EmulatorTrace,
    at: Instant,
    change: &LinkChange,
) {
    for direction in chain.directions_from(change.hop, change.from) {
        let node = chain.directions[change.hop][direction];
        let named = (direction, chain.names[node.0 as usize].as_str());
        let profiles = rate_schedules.apply(at, change, named);
        let queue = rate_schedules.new_queue(change, named);
        let changed = chain.graph.alter(at, node, Some(trace), |node, cx| {
            let direction = node.direction();
            let changed = direction.change(at, profiles);
            if let Some(queue) = queue {
                direction.replace_queue(cx, queue);
            }
            changed
        });
        changed.expect("the last rate of a checked schedule is above zero");
    }
}

/// Repeats a recorded run in virtual time, until `end`. The hash equals that of the recorded run.
///
/// # Errors
/// The errors of [`Emulator::new`], or that a recorded change is impossible for these plans.
pub fn replay(
    plans: &[Plan],
    seed: u64,
    record: &Record,
    end: Instant,
) -> Result<HashTrace, PlanError> {
    let mut chain = Chain::new(plans, seed, FlowId(FLOWS_MAX), record.gateways)?;
    let mut rate_schedules = RateSchedules::new(plans, seed);
    let mut trace = EmulatorTrace { hash: Some(HashTrace::default()), ..EmulatorTrace::default() };
    let mut changes = record.changes.iter().peekable();
    for serial in 0..=record.arrivals.len() as u64 {
        while let Some(AppliedChange { at, change, .. }) =
            changes.next_if(|applied| applied.arrivals <= serial)
        {
            rate_schedules.check(change)?;
            apply(&mut chain, &mut rate_schedules, &mut trace, *at, change);
        }
        let Some(arrival) = record.arrivals.get(serial as usize) else { break };
        let packet = header(arrival, serial, Slot(0));
        if let NextHop::Engine(node, port) = chain.network.ingress(arrival.from, arrival.to) {
            chain.graph.inject(arrival.at, (node, port), packet, Some(&mut trace));
        }
        chain.graph.drain_egress();
        trace.lost.clear();
    }
    chain.graph.run_until(end, Some(&mut trace));
    Ok(trace.hash.expect("set above"))
}
