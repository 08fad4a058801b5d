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

mod connection;
mod finished;
mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::{Count, Cx, Engine, Ledger};
use crate::packet::{Address, FlowId, Origin, Packet, Port};
use crate::rng::Rng;
use crate::tcp::{Config, Totals};
use crate::time::Instant;
use crate::trace::NodeId;
use crate::wake_queue::{Deadline, WakeQueue};
use connection::{Connection, End};
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

/// The place of a connection; it keeps its number while the connection is open.
#[derive(Debug)]
struct Slot {
    connection: Option<Box<Connection>>,
    deadline: Deadline,
}

/// Counters of connections.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    split: u64,
    unsplit: u64,
    refused: u64,
    reset: u64,
    expired: u64,
    max_open: u64,
    max_buffered_bytes: u64,
}

/// See the module's description.
#[derive(Debug)]
pub struct Pep {
    config: PepConfig,
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

    /// Checks that each leg was given what the other one received, but for what is buffered, and that
    /// no buffer holds more than its size.
    ///
    /// # Errors
    /// Describes the first connection for which that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut connections = self.slots.iter().filter_map(|slot| slot.connection.as_ref());
        connections.try_for_each(|connection| connection.check(&self.config))
    }

    /// Splits the connection that a SYN requests, or passes the SYN on.
    #[cold]
    fn on_syn(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>, key: Key) {
        let is_known_unsplit = self.finished.end_of(cx.now(), key) == Some(End::Unsplit);
        if is_known_unsplit || self.index.len() >= self.config.connections_max {
            self.counters.unsplit += u64::from(!is_known_unsplit);
            // A retransmitted SYN must not be split.
            self.finished.insert(cx.now(), key, End::Unsplit);
            self.pass(cx, port, packet);
            return;
        }
        self.finished.remove(cx.now(), key);
        // Not by the number of the connection: it is split again if its SYN is retransmitted after
        // its end.
        let offset = (self.counters.split << LEG_SERIAL_BITS) % (Self::SERIALS / 2);
        let serial = self.config.first_serial + offset;
        self.counters.split += 1;
        self.consumed.add(packet.bytes);
        let connection = Box::new(Connection::open(cx, &mut self.config, port, packet, serial));
        let slot = self.free.pop().unwrap_or_else(|| {
            let deadline = self.wakes.add();
            self.slots.push(Slot { connection: None, deadline });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^24 connections")
        });
        self.slots[slot as usize].connection = Some(connection);
        self.index.insert(key, slot);
        self.counters.max_open = self.counters.max_open.max(self.index.len() as u64);
        self.after_call(cx, slot, None);
    }

    /// Updates the deadline of a connection after a call, and removes it if it has ended.
    fn after_call(&mut self, cx: &mut Cx<'_>, slot: u32, end: Option<End>) {
        if let Some(end) = end {
            self.remove(cx, slot, end);
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

    #[cold]
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
        match end {
            End::Closed | End::Unsplit => {}
            End::Refused => counters.refused += 1,
            End::Reset => counters.reset += 1,
            End::Expired => counters.expired += 1,
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
        let end = self.finished.end_of(cx.now(), key).filter(|end| *end != End::Unsplit);
        let Some(end) = end else {
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
        let end = connection.and_then(|connection| connection.input(cx, port, &packet));
        cx.discard(packet);
        self.after_call(cx, slot, end);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        while let Some(due) = self.wakes.first_at()
            && due <= cx.now()
        {
            let slot = u32::try_from(self.wakes.first()).expect("fewer than 2^24 connections");
            let connection = self.slots[slot as usize].connection.as_mut();
            let end = connection.and_then(|connection| connection.wake(cx));
            self.after_call(cx, slot, end);
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
        let Counters { split, unsplit, refused, reset, expired, max_open, max_buffered_bytes } =
            self.counters;
        let connections = self.slots.iter().filter_map(|slot| slot.connection.as_ref());
        let max_open_bytes = connections.map(|each| each.max_buffered_bytes()).max().unwrap_or(0);
        vec![
            ("split_connections", split),
            ("unsplit_connections", unsplit),
            ("refused_connections", refused),
            ("reset_connections", reset),
            ("expired_connections", expired),
            ("max_open_connections", max_open),
            ("max_buffered_bytes", max_buffered_bytes.max(max_open_bytes)),
        ]
    }
}
