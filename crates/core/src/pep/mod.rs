//! A split-TCP performance-enhancing proxy (PEP, RFC 3135): it ends each TCP connection that passes
//! it, opens another one to the same destination, and relays the data between the two.
//!
//! It is transparent: both connections keep the addresses and ports of the original one. A
//! connection is split when its SYN passes. The leg to the destination is opened first, and the leg
//! to the origin is accepted when that succeeded, so a closed port is refused end to end. With early
//! accept it is the other way round, and a closed port resets an established connection.
//!
//! Data wait in four places of bounded size: the receive buffer of one leg, the relay, and the send
//! buffer of the other leg, which counts unsent and unacknowledged data. If the last is full, the
//! relay fills, then the receive buffer, whose window closes.
//!
//! A FIN is passed on behind the data before it, a reset at once. Packets that are not TCP or that the
//! PEP cannot read as TCP (QUIC, VPNs), segments of connections that were open before, and connections
//! beyond the maximum pass unchanged.

mod admission;
mod connection;
mod finished;
mod index;
mod side;

pub use admission::{
    Abandoned, Admission, AdmissionConfig, AdmissionCounters, Answer, BYPASS_MEMORY, ConnectionKey,
    Decision, Reply,
};
pub use side::Side;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::{Count, Cx, Engine, Ledger};
use crate::packet::{Address, FlowId, Origin, Packet, Port};
use crate::rng::Rng;
use crate::tcp::{Config, Totals};
use crate::time::{Duration, Instant};
use crate::trace::NodeId;
use crate::wake_queue::{Deadline, WakeQueue};
use connection::{Connection, End, Event, HANDSHAKE_MAX};
use finished::Finished;
use index::Index;

/// The settings of one leg.
#[derive(Clone, Copy, Debug)]
pub struct LegConfig {
    /// Its TCP.
    pub tcp: Config,
    /// The most unsent data in its send buffer; `None` for no limit but that of the buffer.
    pub unsent_low_water: Option<u64>,
}

/// The settings of a PEP.
#[derive(Clone, Debug)]
pub struct PepConfig {
    /// The legs to the hosts behind the gateway.
    pub lan: LegConfig,
    /// The legs over the link.
    pub link: LegConfig,
    /// The most data that the relay holds for each direction of a connection.
    pub buffer_bytes: u64,
    /// The most connections that are split at the same time.
    pub connections_max: usize,
    /// Whether the leg to the origin is accepted at once, and the other one opened when that is
    /// established (as PEPsal, whose `accept(2)` returns then).
    pub early_accept: bool,
    /// Flows that only look like TCP here: QUIC, or TCP inside a VPN. They pass unchanged.
    pub unsplittable: Arc<BTreeSet<FlowId>>,
    /// The address of an end of a flow.
    pub address: fn(FlowId, Origin) -> Address,
    /// The first serial number of its packets; it uses [`Pep::SERIALS`].
    pub first_serial: u64,
    /// The random stream of initial sequence numbers and BBR.
    pub rng: Rng,
}

/// Statistics of the legs of one flow, over all its connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowLegs {
    /// The connections that were split.
    pub connections: u64,
    /// The legs to the hosts behind the gateway.
    pub lan: Totals,
    /// The legs over the link.
    pub link: Totals,
}

/// The flow of a connection and its number in that flow.
type Key = (FlowId, u16);

impl ConnectionKey for Key {
    type Hosts = FlowId;

    fn hosts(&self) -> FlowId {
        self.0
    }

    fn first_of(flow: FlowId) -> Self {
        (flow, 0)
    }
}

/// The place of a connection; it keeps its number while the connection is open.
#[derive(Debug)]
struct Slot {
    connection: Option<Box<Connection>>,
    deadline: Deadline,
}

/// Counters of connections that were accepted.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    reset: u64,
    /// Those with early accept whose destination did not answer.
    expired: u64,
    max_buffered_bytes: u64,
}

/// See the module's description.
#[derive(Debug)]
pub struct Pep {
    config: PepConfig,
    admission: Admission<Key>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    index: Index,
    wakes: WakeQueue,
    finished: Finished,
    /// The closed connections of each flow.
    closed: BTreeMap<FlowId, FlowLegs>,
    counters: Counters,
    received: Count,
    consumed: Count,
    passed: Count,
    /// Sent by legs of closed connections.
    closed_sent: Count,
    answered: Count,
}

impl Pep {
    /// The port towards the hosts.
    pub const LAN: Port = Port(0);
    /// The port towards the link.
    pub const LINK: Port = Port(1);

    /// The serial numbers that a PEP uses: the lower half for legs, the upper half for
    /// [answers](finished::answer).
    pub const SERIALS: u64 = 1 << 38;

    /// A PEP without connections.
    #[must_use]
    pub fn new(config: PepConfig) -> Self {
        Self {
            admission: Admission::new(AdmissionConfig {
                connections_max: config.connections_max,
                waiting_max: usize::MAX,
                // A connection knows when its near host was last active.
                handshake_max: HANDSHAKE_MAX,
                early_accept: config.early_accept,
                // The PEP sees all segments of a connection, so that it answers a delayed one by how that ended.
                started_memory: Duration::ZERO,
                may_be_asymmetric: false,
                remembered_max: usize::MAX,
            }),
            config,
            slots: Vec::new(),
            free: Vec::new(),
            index: Index::default(),
            wakes: WakeQueue::default(),
            finished: Finished::default(),
            closed: BTreeMap::new(),
            counters: Counters::default(),
            received: Count::default(),
            consumed: Count::default(),
            passed: Count::default(),
            closed_sent: Count::default(),
            answered: Count::default(),
        }
    }

    /// The memory of an open connection.
    pub const CONNECTION_BYTES: usize = size_of::<Connection>() + size_of::<Slot>();

    /// The number of open connections.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.index.len()
    }

    /// Statistics of the legs of a flow at `now`; `None` if none of its connections was split.
    #[must_use]
    pub fn legs(&self, flow: FlowId, now: Instant) -> Option<FlowLegs> {
        let mut legs = self.closed.get(&flow).copied().unwrap_or_default();
        for slot in self.index.of_flow(flow) {
            if let Some(connection) = &self.slots[slot as usize].connection {
                connection.add_to(&mut legs, now);
            }
        }
        (legs.connections > 0).then_some(legs)
    }

    /// Checks that each leg was given what the other one received, but for what is buffered, that no
    /// buffer holds more than its size, and that the admission counts the open connections.
    ///
    /// # Errors
    /// Describes the first connection for which that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let (admitted, open) = (self.admission.connections(), self.index.len());
        if admitted != open {
            return Err(format!("{admitted} connections admitted, {open} open"));
        }
        let mut connections = self.slots.iter().filter_map(|slot| slot.connection.as_ref());
        connections.try_for_each(|connection| connection.check(&self.config))
    }

    /// Splits the connection that a SYN requests, or passes the SYN on.
    #[cold]
    fn on_syn(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>, key: Key) {
        let (now, side) = (cx.now(), if port == Self::LAN { Side::Lan } else { Side::Link });
        let number = packet.segment().map_or(0, |segment| segment.seq.0);
        let split_before = self.admission.counters().split;
        let decision = self.admission.on_syn(key, number, side, now);
        self.finished.remove(now, key);
        // Of the others none is possible: the SYN is of no open connection.
        if !matches!(decision, Decision::Open | Decision::Accept) {
            self.pass(cx, port, packet);
            return;
        }
        // Not by the number of the connection: it is split again if its SYN is retransmitted after
        // its end.
        let offset = (split_before << LEG_SERIAL_BITS) % (Self::SERIALS / 2);
        let serial = self.config.first_serial + offset;
        self.consumed.add(packet.bytes);
        let connection = Box::new(Connection::open(cx, &mut self.config, port, packet, serial));
        if decision == Decision::Accept {
            self.admission.on_started(&key, (), now);
        } else {
            self.admission.on_opened(&key, (), now);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            let deadline = self.wakes.add();
            self.slots.push(Slot { connection: None, deadline });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^24 connections")
        });
        self.slots[slot as usize].connection = Some(connection);
        self.index.insert(key, slot);
        self.after_call(cx, slot, None);
    }

    /// Handles what a call of a connection led to, and updates its deadline.
    fn after_call(&mut self, cx: &mut Cx<'_>, slot: u32, event: Option<Event>) {
        if let Some(event) = event {
            self.on_event(cx, slot, event);
        }
        let Slot { connection, deadline } = &mut self.slots[slot as usize];
        let next = connection.as_ref().and_then(|connection| connection.next_wake());
        self.wakes.request(NodeId(slot), deadline, next);
        self.refresh_first();
    }

    /// Requeues the first key until it matches the deadline of its connection.
    fn refresh_first(&mut self) {
        while let Some(slot) = self.slots.get_mut(self.wakes.first())
            && slot.deadline.is_stale()
        {
            self.wakes.requeue_first(&mut slot.deadline);
        }
    }

    /// Advances the handshake of a connection as its admission decides, or removes a connection that has ended.
    #[cold]
    fn on_event(&mut self, cx: &mut Cx<'_>, slot: u32, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next
            && let Some(connection) = &mut self.slots[slot as usize].connection
        {
            let key = connection.key();
            next = match event {
                Event::Answered(answer) => match self.admission.on_answer(&key, answer, cx.now()) {
                    Some((Reply::SendOn, ())) => connection.accept(cx),
                    Some((Reply::Reset, ())) => connection.refuse(cx),
                    Some((Reply::Unreachable | Reply::Nothing, ())) | None => None,
                },
                Event::Accepted => {
                    self.admission.on_accepted(&key);
                    connection.on_accepted(cx)
                }
                Event::Ended(end) => {
                    self.remove(cx, slot, end);
                    None
                }
            };
        }
    }

    fn remove(&mut self, cx: &mut Cx<'_>, slot: u32, end: End) {
        let Some(mut connection) = self.slots[slot as usize].connection.take() else { return };
        if let Some(syn) = connection.take_syn() {
            cx.discard(syn);
        }
        let key = connection.key();
        self.free.push(slot);
        self.index.remove(key);
        // The last limit of a sender began before and has no end.
        connection.add_to(self.closed.entry(key.0).or_default(), Instant::START);
        self.closed_sent = self.closed_sent.plus(connection.sent());
        let counters = &mut self.counters;
        counters.max_buffered_bytes =
            counters.max_buffered_bytes.max(connection.max_buffered_bytes());
        let was_open = match end {
            End::Closed => true,
            // Its admission has ended it.
            End::Refused => false,
            End::Reset => !self.admission.on_abandoned(&key, Abandoned::Reset),
            End::Expired => !self.admission.on_abandoned(&key, Abandoned::Expired),
        };
        if was_open {
            self.admission.on_ended();
            counters.reset += u64::from(end == End::Reset);
            counters.expired += u64::from(end == End::Expired);
        }
        self.finished.insert(cx.now(), key, end);
    }

    /// Sends a packet on unchanged.
    fn pass(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.passed.add(packet.bytes);
        cx.forward(opposite(port), packet);
    }

    /// A segment of no open connection: of one that has ended, or of one that is not split.
    #[cold]
    fn on_unknown(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>, key: Key) {
        let Some(end) = self.finished.end_of(cx.now(), key) else {
            self.pass(cx, port, packet);
            return;
        };
        self.consumed.add(packet.bytes);
        let first = self.config.first_serial + Self::SERIALS / 2;
        let serial = first + self.answered.packets % (Self::SERIALS / 2);
        if let Some(answer) = finished::answer(cx.now(), &packet, end, serial, self.config.address)
        {
            self.answered.add(answer.bytes);
            cx.send(port, answer);
        }
        cx.discard(packet);
    }
}

/// Bits of a packet's serial within its leg. Packets of longer legs have serials of the connection that
/// is split next.
const LEG_SERIAL_BITS: u32 = 21;

fn opposite(port: Port) -> Port {
    if port == Pep::LAN { Pep::LINK } else { Pep::LAN }
}

impl Engine for Pep {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.received.add(packet.bytes);
        let Some(segment) =
            packet.segment().filter(|_| !self.config.unsplittable.contains(&packet.flow))
        else {
            self.pass(cx, port, packet);
            return;
        };
        let key = (packet.flow, segment.connection);
        let Some(slot) = self.index.get(key) else {
            let is_first = segment.flags.syn() && segment.ack.is_none() && !segment.flags.rst();
            if is_first {
                self.on_syn(cx, port, packet, key);
            } else {
                self.on_unknown(cx, port, packet, key);
            }
            return;
        };
        self.consumed.add(packet.bytes);
        let connection = self.slots[slot as usize].connection.as_mut();
        let event = connection.and_then(|connection| connection.input(cx, port, &packet));
        cx.discard(packet);
        self.after_call(cx, slot, event);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        while let Some(due) = self.wakes.first_at()
            && due <= cx.now()
        {
            let slot = u32::try_from(self.wakes.first()).expect("fewer than 2^24 connections");
            let connection = self.slots[slot as usize].connection.as_mut();
            let event = connection.and_then(|connection| connection.wake(cx));
            self.after_call(cx, slot, event);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.wakes.first_at()
    }

    /// It consumes the segments of the connections that it splits and creates those of their legs.
    fn ledger(&self) -> Ledger {
        let connections = self.slots.iter().filter_map(|slot| slot.connection.as_ref());
        let created = connections
            .fold(self.closed_sent.plus(self.answered), |sum, each| sum.plus(each.sent()));
        Ledger {
            received: self.received,
            consumed: self.consumed,
            created,
            sent: created.plus(self.passed),
            ..Ledger::default()
        }
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let Counters { reset, expired, max_buffered_bytes } = self.counters;
        let admission = self.admission.counters();
        let connections = self.slots.iter().filter_map(|slot| slot.connection.as_ref());
        let max_open_bytes = connections.map(|each| each.max_buffered_bytes()).max().unwrap_or(0);
        vec![
            ("split_connections", admission.split),
            ("unsplit_connections", admission.unsplit),
            ("refused_connections", admission.refused),
            ("reset_connections", admission.reset + reset),
            ("expired_connections", admission.expired + expired),
            ("max_open_connections", self.admission.max_connections() as u64),
            ("max_buffered_bytes", max_buffered_bytes.max(max_open_bytes)),
        ]
    }
}
