//! The contract of every engine: `input`, `wake` and `next_wake`.

use std::collections::VecDeque;

use crate::drop_counts::DropCounts;
use crate::packet::{Packet, Port};
use crate::time::Instant;
use crate::trace::{DropCause, Event, EventKind, NodeId, Trace};
use crate::wires::EnginePort;

/// A component without I/O and without a clock.
///
/// An engine stores state (when things happened, which data are outstanding) and derives its
/// deadlines from it, so no stale timer can remain. It keeps no output queue: it sends packets through
/// [`Cx::send`] or [`Cx::forward`] within the call.
pub trait Engine {
    /// Handles a packet that arrives on `port` at `cx.now()`. The engine owns the packet: it holds,
    /// forwards or discards it.
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>);

    /// Does everything that is due at `cx.now()`. An early or repeated call has no effect.
    fn wake(&mut self, cx: &mut Cx<'_>);

    /// The earliest instant at which [`Engine::wake`] would do something, or `None` if only input
    /// can change that. Runs in constant time. The result changes only by `input` or `wake`.
    fn next_wake(&self) -> Option<Instant>;

    /// Calls [`Engine::input`] and then [`Engine::next_wake`]. Event loops use this, so that an
    /// engine chosen at run time is dispatched once.
    fn input_and_next_wake(
        &mut self,
        cx: &mut Cx<'_>,
        port: Port,
        packet: Box<Packet>,
    ) -> Option<Instant> {
        self.input(cx, port, packet);
        self.next_wake()
    }

    /// Calls [`Engine::wake`] and then [`Engine::next_wake`].
    fn wake_and_next_wake(&mut self, cx: &mut Cx<'_>) -> Option<Instant> {
        self.wake(cx);
        self.next_wake()
    }

    /// The packets received, sent, dropped and held, as of the last call.
    fn ledger(&self) -> Ledger;

    /// Further counters of the engine by name. A name ends in the unit; the set of names is fixed.
    fn statistics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The environment of an engine during a call: the time, the outbox and the trace.
pub struct Cx<'a> {
    now: Instant,
    /// The engine that is being called, and the port that stands for its port 0 (see [`Cx::through`]).
    engine_port: EnginePort,
    /// Held by value and not by reference, since each packet passes through it.
    outbox: Outbox,
    /// The outbox of the caller; it gets `outbox` back when the context is dropped.
    callers_outbox: &'a mut Outbox,
    trace: Option<&'a mut dyn Trace>,
}

impl Drop for Cx<'_> {
    fn drop(&mut self) {
        *self.callers_outbox = std::mem::take(&mut self.outbox);
    }
}

/// Packets that were sent but not yet delivered, in order, and a free list of packet allocations.
///
/// A packet is written once, by the host that creates it, and passed on by address: copying a
/// hundred bytes from engine to engine costs more than most engines do.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    /// The packet sent first. Most calls send at most one packet, which then needs no list.
    first: Option<(EnginePort, Box<Packet>)>,
    /// The packet sent second, as often in the response to an ACK; `None` if `first` is.
    second: Option<(EnginePort, Box<Packet>)>,
    /// The packets sent after that; empty if `second` is `None`.
    rest: VecDeque<(EnginePort, Box<Packet>)>,
    #[expect(clippy::vec_box, reason = "the boxes are reused")]
    free: Vec<Box<Packet>>,
    /// The number of allocated packets, whether in use or on the free list.
    allocated: u64,
    /// Packets dropped, and those of them that were recovered, by flow.
    drops: DropCounts,
}

impl Outbox {
    /// An empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the packets sent, each with its engine and port.
    pub fn drain(&mut self) -> impl Iterator<Item = (NodeId, Port, Packet)> + '_ {
        std::iter::from_fn(|| self.next())
            .map(|(engine_port, packet)| (engine_port.node(), engine_port.port(), *packet))
    }

    #[inline]
    pub(crate) fn next(&mut self) -> Option<(EnginePort, Box<Packet>)> {
        let first = self.first.take()?;
        if self.second.is_some() {
            self.shift();
        }
        Some(first)
    }

    #[inline(never)]
    fn shift(&mut self) {
        self.first = self.second.take();
        if !self.rest.is_empty() {
            self.second = self.rest.pop_front();
        }
    }

    #[inline]
    fn push(&mut self, from: EnginePort, packet: Box<Packet>) {
        if self.first.is_none() {
            self.first = Some((from, packet));
        } else if self.second.is_none() {
            self.second = Some((from, packet));
        } else {
            self.rest.push_back((from, packet));
        }
    }

    /// Moves a packet to the heap, into a freed allocation if there is one.
    pub(crate) fn boxed(&mut self, packet: Packet) -> Box<Packet> {
        match self.free.pop() {
            Some(mut slot) => {
                *slot = packet;
                slot
            }
            None => self.allocate(packet),
        }
    }

    #[cold]
    fn allocate(&mut self, packet: Packet) -> Box<Packet> {
        self.allocated += 1;
        Box::new(packet)
    }

    /// Counts dropped packets by flow, from now on.
    pub(crate) fn count_drops(&mut self, flows: usize) {
        self.drops = DropCounts::of_flows(flows);
    }

    /// Packets dropped, by flow.
    pub(crate) fn drops(&self) -> &DropCounts {
        &self.drops
    }

    /// The number of packets that memory is allocated for.
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }
}

impl<'a> Cx<'a> {
    /// A context for one call of the engine `node` at `now`. Only event loops create contexts.
    #[must_use]
    pub fn new(
        now: Instant,
        node: NodeId,
        outbox: &'a mut Outbox,
        trace: Option<&'a mut dyn Trace>,
    ) -> Self {
        let engine_port = EnginePort::of(node);
        Self { now, engine_port, outbox: std::mem::take(outbox), callers_outbox: outbox, trace }
    }

    /// Sets the time.
    #[inline]
    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Sets the time and the engine that is called next.
    #[inline]
    pub(crate) fn switch_to(&mut self, now: Instant, engine_port: EnginePort) {
        self.now = now;
        self.switch_engine(engine_port);
    }

    /// Sets the engine that is called next, at the same instant.
    #[inline]
    pub(crate) fn switch_engine(&mut self, engine_port: EnginePort) {
        self.engine_port = engine_port.first();
    }

    /// The engine that is being called.
    #[inline]
    pub(crate) fn node(&self) -> NodeId {
        self.engine_port.node()
    }

    /// Takes the next packet sent, with the port that it was sent from.
    #[inline]
    pub(crate) fn next_sent(&mut self) -> Option<(EnginePort, Box<Packet>)> {
        self.outbox.next()
    }

    /// Moves a packet to the heap.
    pub(crate) fn boxed(&mut self, packet: Packet) -> Box<Packet> {
        self.outbox.boxed(packet)
    }

    /// The time of this call.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Allocates a packet. A reused allocation still contains the previous packet.
    pub fn new_packet(&mut self) -> Box<Packet> {
        match self.outbox.free.pop() {
            Some(slot) => slot,
            None => self.outbox.allocate(Packet::default()),
        }
    }

    /// Sends a packet that this engine created, out of `port`, now.
    pub fn send(&mut self, port: Port, packet: Packet) {
        let packet = self.boxed(packet);
        self.forward(port, packet);
    }

    /// Sends a packet that this engine received, out of `port`, now.
    pub fn forward(&mut self, port: Port, packet: Box<Packet>) {
        self.outbox.push(self.engine_port.shifted(port), packet);
    }

    /// Calls `body`, in which port 0 stands for `port`: an engine with one port, inside another one, sends
    /// by a port of that one.
    pub fn through<R>(&mut self, port: Port, body: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.engine_port;
        self.engine_port = outer.shifted(port);
        let result = body(self);
        self.engine_port = outer;
        result
    }

    /// Frees a packet and keeps its allocation for reuse. Dropping the box returns the memory
    /// instead.
    pub fn discard(&mut self, packet: Box<Packet>) {
        self.outbox.free.push(packet);
    }

    /// Records that a packet was dropped without [`Cx::discard`], which freed its memory.
    pub(crate) fn note_freed(&mut self) {
        self.outbox.allocated = self.outbox.allocated.saturating_sub(1);
    }

    /// Counts a dropped packet for its flow, and records the event.
    pub(crate) fn record_drop(&mut self, cause: DropCause, packet: &Packet) {
        self.outbox.drops.add(cause, packet);
        self.trace(self.now, EventKind::Dropped(cause), packet);
    }

    /// Counts a packet as recovered by a decoder, for its flow; `dropped` is why it was lost, if it was.
    pub(crate) fn record_recovery(&mut self, packet: &Packet, dropped: Option<DropCause>) {
        self.outbox.drops.recover(packet, dropped);
    }

    /// The number of packets sent but not yet delivered.
    pub(crate) fn pending(&self) -> u64 {
        let Outbox { first, second, rest, .. } = &self.outbox;
        u64::from(first.is_some()) + u64::from(second.is_some()) + rest.len() as u64
    }

    /// Whether [`Cx::trace`] records anything.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// Records an event of `packet` that happened at `at`.
    #[inline]
    pub fn trace(&mut self, at: Instant, kind: EventKind, packet: &Packet) {
        if self.is_traced() {
            self.report(at, kind, packet);
        }
    }

    /// Out of line, so that an untraced run builds no event.
    #[inline(never)]
    fn report(&mut self, at: Instant, kind: EventKind, packet: &Packet) {
        if let Some(trace) = self.trace.as_deref_mut() {
            let event = Event {
                at,
                node: self.engine_port.node(),
                kind,
                flow: packet.flow,
                packet: packet.id,
                bytes: packet.bytes,
            };
            trace.record_packet(&event, packet);
        }
    }
}

/// A number of packets and the sum of their IP bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// IP bytes.
    pub bytes: u64,
}

impl Count {
    /// Adds one packet of `bytes`.
    pub fn add(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }

    /// Subtracts the packets nested in `packet`, at every depth.
    ///
    /// # Panics
    /// If they were never counted.
    pub fn remove_nested(&mut self, packet: &Packet) {
        for inner in packet.nested() {
            self.remove(inner.bytes);
            self.remove_nested(inner);
        }
    }

    /// Adds the packets nested in `packet`, at every depth.
    pub fn add_nested(&mut self, packet: &Packet) {
        for inner in packet.nested() {
            self.add(inner.bytes);
            self.add_nested(inner);
        }
    }

    /// Subtracts one packet of `bytes`.
    ///
    /// # Panics
    /// If the packet was never counted.
    pub fn remove(&mut self, bytes: u32) {
        let (packets, bytes) = (self.packets.checked_sub(1), self.bytes.checked_sub(bytes.into()));
        self.packets = packets.expect("only a packet that was counted can be removed");
        self.bytes = bytes.expect("only bytes that were counted can be removed");
    }

    /// The sum of both counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

/// The packet accounting of an engine: `received + created = sent + consumed + dropped + held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Received by [`Engine::input`].
    pub received: Count,
    /// Created here, by a traffic source or a TCP.
    pub created: Count,
    /// Sent by [`Cx::send`] or [`Cx::forward`].
    pub sent: Count,
    /// Consumed by an end host.
    pub consumed: Count,
    /// Dropped here, by [`DropCause`].
    pub dropped: [Count; DropCause::ALL.len()],
    /// Held by the engine.
    pub held: Count,
    /// The accounting of packets nested in these packets.
    pub nested: Nested,
}

/// The accounting of packets nested in other packets. Over all engines of a graph,
/// `packed + recovered = unpacked + lost + held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nested {
    /// Packed into other packets here.
    pub packed: Count,
    /// Lost on their way and recovered here, by a decoder.
    pub recovered: Count,
    /// Unpacked from other packets here, and recovered ones.
    pub unpacked: Count,
    /// Dropped here with the packet that carried them.
    pub lost: Count,
    /// Nested in packets that are held here.
    pub held: Count,
}

impl Nested {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            packed: self.packed.plus(other.packed),
            recovered: self.recovered.plus(other.recovered),
            unpacked: self.unpacked.plus(other.unpacked),
            lost: self.lost.plus(other.lost),
            held: self.held.plus(other.held),
        }
    }

    /// Checks conservation over all engines of a graph.
    ///
    /// # Errors
    /// Describes both sides of the balance if they differ.
    pub fn check(&self) -> Result<(), String> {
        let Self { packed, recovered, unpacked, lost, held } = *self;
        if packed.plus(recovered) == unpacked.plus(lost).plus(held) {
            return Ok(());
        }
        Err(format!(
            "packed {packed:?}, recovered {recovered:?}, but unpacked {unpacked:?}, lost {lost:?}, held {held:?}"
        ))
    }
}

impl Ledger {
    /// Checks conservation in packets and bytes.
    ///
    /// # Errors
    /// Describes both sides of the balance if they differ.
    pub fn check(&self) -> Result<(), String> {
        let credit = self.received.plus(self.created);
        let lost = self.dropped.into_iter().fold(Count::default(), Count::plus);
        let debit = self.sent.plus(self.consumed).plus(lost).plus(self.held);
        if credit == debit {
            return Ok(());
        }
        Err(format!("received + created is {credit:?}, sent + consumed + dropped + held {debit:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_the_outbox_in_the_order_sent() {
        let (mut outbox, mut sent, mut drained) = (Outbox::new(), 0, 0);
        for (sends, takes) in [(1, 1), (2, 1), (3, 2), (5, 1), (0, 4), (1, 0), (2, 6)] {
            for _ in 0..sends {
                let packet = Packet { bytes: sent, ..Packet::default() };
                outbox.push(EnginePort::of(NodeId(sent)), Box::new(packet));
                sent += 1;
            }
            for (node, _, packet) in outbox.drain().take(takes) {
                assert_eq!((node, packet.bytes), (NodeId(drained), drained));
                drained += 1;
            }
        }
        assert_eq!((sent, drained), (14, 14));
        assert!(outbox.next().is_none());
    }

    #[test]
    fn a_ledger_balances_in_packets_and_in_bytes() {
        let mut ledger = Ledger::default();
        ledger.received.add(100);
        ledger.received.add(40);
        assert!(ledger.check().is_err());
        ledger.sent.add(100);
        ledger.dropped[DropCause::BitError as usize].add(40);
        assert_eq!(ledger.check(), Ok(()));
        ledger.held = Count { packets: 0, bytes: 1 };
        let message = ledger.check().expect_err("one byte too many");
        assert!(message.contains("141"), "{message}");
    }

    #[test]
    #[should_panic(expected = "only a packet that was counted")]
    fn removing_a_packet_that_was_not_counted_panics() {
        Count::default().remove(1);
    }
}
