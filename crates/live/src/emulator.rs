//! The link with real packets: their bytes wait in a store while their headers go through the graph.
//! No clock and no I/O: what a driver reads and when is an argument, so a test needs neither.

use bentpipe_core::engine::Engine;
use bentpipe_core::link::Counters;
use bentpipe_core::packet::{Address, Class, Ecn, FlowId, Packet, PacketId, Payload};
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{Event, EventKind, HashTrace, NodeId, Trace};
use bentpipe_core::wire::ecn;
use bentpipe_sim::node::Node;
use bentpipe_sim::plan::{Plan, PlanError};
use bentpipe_sim::record::processor_values;
use bentpipe_sim::{Chain, InterfaceId, Network, NextHop};

use crate::addresses;
use crate::capture::{Captured, Recorder};
use crate::flows::{FLOWS_MAX, Flows};
use crate::orders::{Courses, Order};
use crate::ports::Ports;
use crate::store::{Place, Store};

/// What came in, when and from where: all that a run depends on besides its plan and seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it came, as far as that is known, or else was read.
    pub at: Instant,
    /// The interface that it came from.
    pub from: InterfaceId,
    /// The host that it is for.
    pub to: Address,
    /// Its conversation.
    pub flow: FlowId,
    /// What queues that serve by priority know it by.
    pub class: Class,
    /// Its size at the IP layer.
    pub bytes: u32,
    /// Its ECN field: whether a queue may mark it.
    pub ecn: Ecn,
}

/// An order, and when it was followed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Followed {
    /// When.
    pub at: Instant,
    /// How many packets had come by then.
    pub arrivals: u64,
    /// What was ordered.
    pub order: Order,
}

/// All that a run depends on besides its plans and seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Whether packets left the graph at gateways; see [`Options::gateways`].
    pub gateways: bool,
    /// What arrived, in order.
    pub arrivals: Vec<Arrival>,
    /// What was ordered, in order.
    pub orders: Vec<Followed>,
}

/// A packet that is due at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// When its last bit arrives there.
    pub due: Instant,
    /// The interface that it goes to.
    pub to: InterfaceId,
    /// Where its bytes are.
    pub place: Place,
    /// How many they are.
    pub bytes: u32,
    /// Whether it was on the link; what is only passed on counts nowhere.
    pub on_link: bool,
}

/// What a function of a gateway counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// What it is called: its gateway's name and its own.
    pub name: String,
    /// Its gateway: 0 is the hub's.
    pub gateway: u32,
    /// Of a processor, by the names of its columns in results.
    pub processor: Option<Vec<(String, u64)>>,
    /// What else it counts, by name.
    pub statistics: Vec<(&'static str, u64)>,
}

/// What an emulator may keep, and what it is to note.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest packet, in bytes at the IP layer.
    pub packet_bytes_max: usize,
    /// How many bytes of packets may be on their way.
    pub store_bytes_max: usize,
    /// Whether to keep every arrival, and a hash of every event, for a replay.
    pub tap: bool,
    /// First and last server port of measuring programs: the first TCP conversation with each goes
    /// past the link; see [`Ports`].
    pub control_ports: Option<(u16, u16)>,
    /// Whether packets leave the graph at gateways and come in again; see [`Chain`].
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

/// Control conversations of measuring programs go past the link, and are not to wait for long.
const CONTROL_DELAY: Duration = Duration::from_micros(200);

/// The hops, and the packets on their way.
pub struct Emulator {
    chain: Chain,
    store: Store,
    flows: Flows,
    ports: Ports,
    watch: Watch,
    courses: Courses,
    record: Option<Record>,
    departures: Vec<Departure>,
    serial: u64,
    refused: u64,
}

/// Gives the places of lost packets back, and notes what happens.
#[derive(Debug, Default)]
struct Watch {
    lost: Vec<PacketId>,
    hash: Option<HashTrace>,
    capture: Option<Box<Recorder>>,
}

impl Trace for Watch {
    fn record(&mut self, _: &Event) {
        unreachable!("engines show the packet, too");
    }

    fn record_packet(&mut self, event: &Event, packet: &Packet) {
        if let EventKind::Dropped(_) = event.kind {
            self.lose(packet);
        }
        if let Some(capture) = &mut self.capture {
            // A frame between gateways has no bytes of its own: the first packet in it stands for it.
            let shown = packet.nested().first().unwrap_or(packet);
            capture.event(&Event { packet: shown.id, ..*event });
        }
        if let Some(hash) = &mut self.hash {
            // Where bytes lie in the store is chance; the serial is not.
            let packet = PacketId(event.packet.0 >> Store::NUMBER_BITS);
            hash.record(&Event { packet, ..*event });
        }
    }
}

impl Watch {
    /// A packet was lost, with all that is in it.
    fn lose(&mut self, packet: &Packet) {
        match packet.nested() {
            [] => self.lost.push(packet.id),
            nested => nested.iter().for_each(|inner| self.lose(inner)),
        }
    }

    /// A packet has left the link.
    #[inline]
    fn gone(&mut self, packet: PacketId) {
        if let Some(capture) = &mut self.capture {
            capture.gone(packet);
        }
    }
}

/// A packet's identity: its serial, and the place of its bytes.
fn identity(serial: u64, place: Place) -> PacketId {
    PacketId(serial << Store::NUMBER_BITS | u64::from(place.0))
}

pub(crate) fn place_of(packet: PacketId) -> Place {
    Place((packet.0 & ((1 << Store::NUMBER_BITS) - 1)) as u32)
}

fn header(arrival: &Arrival, serial: u64, place: Place) -> Packet {
    Packet {
        id: identity(serial, place),
        created_at: arrival.at,
        flow: arrival.flow,
        destination: arrival.to,
        class: arrival.class,
        bytes: arrival.bytes,
        ecn: arrival.ecn,
        payload: Payload::Datagram { sequence: serial },
    }
}

impl Emulator {
    /// The hops of checked plans, the first next to the world.
    ///
    /// # Errors
    /// If the plans cannot be run in real time; see [`Chain::new`].
    pub fn new(plans: &[Plan], seed: u64, options: Options) -> Result<Self, PlanError> {
        Ok(Self {
            chain: Chain::new(plans, seed, FlowId(FLOWS_MAX), options.gateways)?,
            store: Store::new(options.packet_bytes_max, options.store_bytes_max),
            flows: Flows::default(),
            ports: options
                .control_ports
                .map_or_else(Ports::default, |(first, last)| Ports::new(first, last)),
            watch: Watch { hash: options.tap.then(HashTrace::default), ..Watch::default() },
            courses: Courses::new(plans, seed),
            record: options.tap.then(|| Record { gateways: options.gateways, ..Record::default() }),
            departures: Vec::new(),
            serial: 0,
            refused: 0,
        })
    }

    /// From here on, whatever happens to packets on the link is recorded.
    pub fn capture(&mut self, recorder: Recorder) {
        self.watch.capture = Some(Box::new(recorder));
    }

    /// How the capture fares, if there is one. What was recorded is on its way to the file.
    pub fn captured(&mut self) -> Option<Captured> {
        let capture = self.watch.capture.as_mut()?;
        capture.hand_over(self.chain.graph.now());
        Some(capture.captured())
    }

    /// Ends the capture, if there is one, with what happened until `at`, and waits for the file.
    pub fn end_capture(&mut self, at: Instant) {
        if let Some(capture) = &mut self.watch.capture {
            capture.end(at);
        }
    }

    /// Room for the bytes of one packet, which [`Emulator::arrive`] or [`Emulator::free`] takes, or
    /// none if as much is on its way as may be.
    pub fn room(&mut self) -> Option<Place> {
        self.store.take()
    }

    /// A packet has come for which there was no room.
    pub fn refuse(&mut self) {
        self.refused += 1;
    }

    /// How many bytes a packet may have.
    #[must_use]
    pub fn packet_bytes_max(&self) -> usize {
        self.store.packet_bytes()
    }

    /// The bytes of a place, to be written to: more than a packet may have, so that a longer one is seen.
    pub fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        self.store.bytes_mut(place)
    }

    /// The bytes of a packet that is due.
    #[must_use]
    pub fn bytes(&self, departure: &Departure) -> &[u8] {
        self.store.bytes(departure.place, departure.bytes as usize)
    }

    /// Gives a place back.
    pub fn free(&mut self, place: Place) {
        self.store.free(place);
    }

    /// A packet has come from an interface, whose bytes were written to `place`. A moment before the last
    /// one counts as the last one.
    pub fn arrive(
        &mut self,
        at: Instant,
        from: impl Into<InterfaceId>,
        place: Place,
        bytes: usize,
    ) {
        let (at, from) = (at.max(self.chain.graph.now()), from.into());
        let packet = self.store.bytes(place, bytes);
        let network = &self.chain.network;
        let (owner, is_inner) = network.owner(from);
        let side = network.hosts[owner.0 as usize].side;
        let strangers =
            if is_inner { network.host_at(owner) } else { network.default_route(owner) };
        let Some(to) = addresses::destination(packet, strangers, network.hosts.len()) else {
            self.store.free(place);
            return;
        };
        let entrance = network.ingress(from, to);
        let is_control = self.ports.is_control(at, side, packet);
        let flow = if is_control { FlowId(0) } else { self.flows.number(side, packet) };
        let bytes = u32::try_from(bytes).expect("a packet is shorter than 64 KiB");
        let past = match entrance {
            NextHop::Interface(to) => Some(to),
            _ if is_control => Some(to.into()),
            _ => None,
        };
        if let Some(to) = past {
            self.departures.push(Departure { due: at, to, place, bytes, on_link: false });
            return;
        }
        let class = addresses::class(packet, self.chain.network.classes);
        let arrival = Arrival { at, from, to, flow, class, bytes, ecn: ecn::of(packet) };
        if let Some(record) = &mut self.record {
            record.arrivals.push(arrival);
        }
        let packet = header(&arrival, self.serial, place);
        self.serial += 1;
        if let Some(capture) = &mut self.watch.capture {
            let content = self.store.bytes(place, bytes as usize);
            capture.came(packet.id, content, self.chain.graph.now());
        }
        match entrance {
            NextHop::Engine(node, port) => {
                self.chain.graph.inject(at, (node, port), packet, Some(&mut self.watch));
            }
            // For nobody there: what a host sends to itself never leaves its kernel.
            NextHop::Interface(_) | NextHop::Unreachable => self.watch.lose(&packet),
        }
        self.collect();
    }

    /// Changes the link, and returns when it was: a moment before the last one counts as the last one.
    ///
    /// # Errors
    /// If one of the orders cannot be followed; then none is.
    pub fn order(&mut self, at: Instant, orders: &[Order]) -> Result<Instant, PlanError> {
        for order in orders {
            self.courses.check(order)?;
        }
        let at = at.max(self.chain.graph.now());
        for order in orders {
            follow(&mut self.chain, &mut self.courses, &mut self.watch, at, order);
            if let Some(record) = &mut self.record {
                record.orders.push(Followed { at, arrivals: self.serial, order: *order });
            }
        }
        self.collect();
        Ok(at)
    }

    /// Moves the link on to `now`.
    pub fn run_until(&mut self, now: Instant) {
        self.chain.graph.run_until(now, Some(&mut self.watch));
        self.collect();
    }

    /// The moment that the link has reached.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.chain.graph.now()
    }

    /// A packet that comes from now on is due after so long at the earliest.
    #[must_use]
    pub fn shortest_delay(&self) -> Duration {
        let over_links = self.courses.shortest_delay().min(self.chain.network.min_local_delay);
        if self.ports.is_empty() { over_links } else { over_links.min(CONTROL_DELAY) }
    }

    /// When something will happen next, if ever.
    pub fn next_event(&mut self) -> Option<Instant> {
        self.chain.graph.next_event()
    }

    /// Takes what is due, in order of time; each is to be freed once it is written. `last` is kept
    /// and given back by the next call, so that nothing is allocated.
    pub fn take_departures(&mut self, last: &mut Vec<Departure>) {
        last.clear();
        std::mem::swap(last, &mut self.departures);
    }

    /// The hosts, and their interfaces.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.chain.network
    }

    /// What the engines are called, by number.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.chain.names
    }

    /// What each direction counted until the moment that the link has reached, with its name. Not later:
    /// packets that are still to come may have come before, and would find the queue of a later time.
    pub fn counters(&mut self) -> Vec<(String, Counters)> {
        let directions = self.chain.directions.concat();
        let now = self.chain.graph.now();
        let settle = |node| match self.chain.graph.engine_mut(node) {
            Node::Direction(direction) => direction.counters_at(now),
            _ => unreachable!("the chain names directions"),
        };
        let names: Vec<_> =
            directions.iter().map(|node| self.chain.names[node.0 as usize].clone()).collect();
        names.into_iter().zip(directions.into_iter().map(settle)).collect()
    }

    /// What the functions of gateways counted.
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

    /// What the conversations with the ports of [`Options::control_ports`] carried.
    #[must_use]
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Packets that found no room in the store: the link would have carried or dropped them, so a
    /// run with any does not count.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// How many packets' bytes are in the store.
    #[must_use]
    pub fn stored(&self) -> usize {
        self.store.used()
    }

    /// What arrived and was ordered, and the hash of what happened, if they were to be kept.
    #[must_use]
    pub fn tapped(self) -> Option<(Record, HashTrace)> {
        self.record.zip(self.watch.hash)
    }

    fn collect(&mut self) {
        while let Some(packet) = self.watch.lost.pop() {
            self.store.free(place_of(packet));
            self.watch.gone(packet);
        }
        let network = &self.chain.network;
        for (due, node, port, packet) in self.chain.graph.drain_egress() {
            let (place, bytes) = (place_of(packet.id), packet.bytes);
            let to = network.egress(node, port, packet.destination);
            let side = network.hosts[packet.destination.0 as usize].side;
            if packet.ecn == Ecn::Ce {
                ecn::mark(self.store.bytes_mut(place));
            }
            let content = self.store.bytes(place, bytes as usize);
            self.ports.delivered(packet.created_at, due, side.other(), content);
            self.departures.push(Departure { due, to, place, bytes, on_link: true });
            self.watch.gone(packet.id);
        }
    }
}

fn follow(chain: &mut Chain, courses: &mut Courses, watch: &mut Watch, at: Instant, order: &Order) {
    for direction in chain.directions_from(order.hop, order.from) {
        let node = chain.directions[order.hop][direction];
        let change = courses.follow(at, order, (direction, &chain.names[node.0 as usize]));
        let changed = chain.graph.alter(at, node, Some(watch), |node| match node {
            Node::Direction(direction) => direction.change(at, change),
            _ => unreachable!("the chain names directions"),
        });
        changed.expect("what is allowed ends above zero");
    }
}

/// Runs what was recorded again in virtual time, until `end`: the hash equals that of the run that it
/// is the record of.
///
/// # Errors
/// As [`Emulator::new`], and if the record holds orders that no emulator of these plans follows.
pub fn replay(
    plans: &[Plan],
    seed: u64,
    record: &Record,
    end: Instant,
) -> Result<HashTrace, PlanError> {
    let mut chain = Chain::new(plans, seed, FlowId(FLOWS_MAX), record.gateways)?;
    let mut courses = Courses::new(plans, seed);
    let mut watch = Watch { hash: Some(HashTrace::default()), ..Watch::default() };
    let mut orders = record.orders.iter().peekable();
    for serial in 0..=record.arrivals.len() as u64 {
        while let Some(Followed { at, order, .. }) =
            orders.next_if(|followed| followed.arrivals <= serial)
        {
            courses.check(order)?;
            follow(&mut chain, &mut courses, &mut watch, *at, order);
        }
        let Some(arrival) = record.arrivals.get(serial as usize) else { break };
        let packet = header(arrival, serial, Place(0));
        if let NextHop::Engine(node, port) = chain.network.ingress(arrival.from, arrival.to) {
            chain.graph.inject(arrival.at, (node, port), packet, Some(&mut watch));
        }
        chain.graph.drain_egress();
        watch.lost.clear();
    }
    chain.graph.run_until(end, Some(&mut watch));
    Ok(watch.hash.expect("it was asked for"))
}
