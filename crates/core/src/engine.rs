//! The contract of every engine: two verbs and a question.

use std::collections::VecDeque;

use crate::packet::{Packet, Port};
use crate::time::Instant;
use crate::trace::{DropCause, Event, EventKind, NodeId, Trace};
use crate::wires::EnginePort;

/// A component without I/O and without a clock.
///
/// An engine stores facts (when things happened, what is outstanding) and derives its deadlines
/// from them, so that nothing can be armed and forgotten. It keeps no output queue: what it sends
/// leaves through [`Cx::send`] or [`Cx::forward`] in the same call.
pub trait Engine {
    /// A packet has arrived on `port`, now. It is the engine's: to hold, to pass on, or to discard.
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>);

    /// Does everything that is due at `cx.now()`. Calling it early, or twice, does nothing.
    fn wake(&mut self, cx: &mut Cx<'_>);

    /// The earliest moment at which [`Engine::wake`] would do something, or `None` if only input
    /// can change that. Constant time; the answer may change only after `input` or `wake`.
    fn next_wake(&self) -> Option<Instant>;

    /// [`Engine::input`], and then the answer of [`Engine::next_wake`]: what a loop does, in one step
    /// for engines that are chosen at run time.
    fn input_and_next_wake(
        &mut self,
        cx: &mut Cx<'_>,
        port: Port,
        packet: Box<Packet>,
    ) -> Option<Instant> {
        self.input(cx, port, packet);
        self.next_wake()
    }

    /// [`Engine::wake`], and then the answer of [`Engine::next_wake`].
    fn wake_and_next_wake(&mut self, cx: &mut Cx<'_>) -> Option<Instant> {
        self.wake(cx);
        self.next_wake()
    }

    /// What came in, went out, was lost and is still held, as of the last call.
    fn ledger(&self) -> Ledger;

    /// What the engine counts besides, by name; the name ends in the unit. Always the same names.
    fn statistics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// All that an engine may touch of the world during a call.
pub struct Cx<'a> {
    now: Instant,
    /// A port of the engine that is called.
    engine_port: EnginePort,
    /// Here, and not behind a reference, since each packet passes through it.
    outbox: Outbox,
    /// Where it goes back to.
    lender: &'a mut Outbox,
    trace: Option<&'a mut dyn Trace>,
}

impl Drop for Cx<'_> {
    fn drop(&mut self) {
        *self.lender = std::mem::take(&mut self.outbox);
    }
}

/// Packets sent and not yet handed to the engine at the other end of their wire, in order; and room
/// of packets that are no more.
///
/// A packet is written once, by the host that makes it, and handed on by its address: copying a
/// hundred bytes from engine to engine cost more than most engines do.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    /// What was sent first. Most calls send one packet at most, which then needs no list.
    first: Option<(EnginePort, Box<Packet>)>,
    /// What was sent after it, as many do that answer an ACK; nothing if there is no first.
    second: Option<(EnginePort, Box<Packet>)>,
    /// What was sent after that; nothing if there is no second.
    rest: VecDeque<(EnginePort, Box<Packet>)>,
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    free: Vec<Box<Packet>>,
    /// Boxes in the world: those that are spare, and those that hold a packet.
    allocated: u64,
}

impl Outbox {
    /// An empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what was sent: by whom, from which port, and the packet.
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

    /// A packet in a place of its own, in that of one that is no more if there is any.
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

    /// How many packets there is memory for.
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }
}

impl<'a> Cx<'a> {
    /// A context for one call of the engine `node` at `now`. Loops make these; engines only use
    /// them.
    #[must_use]
    pub fn new(
        now: Instant,
        node: NodeId,
        outbox: &'a mut Outbox,
        trace: Option<&'a mut dyn Trace>,
    ) -> Self {
        let engine_port = EnginePort::of(node);
        Self { now, engine_port, outbox: std::mem::take(outbox), lender: outbox, trace }
    }

    /// Moves to another moment.
    #[inline]
    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Passes the turn to the engine of `socket`, at `now`.
    #[inline]
    pub(crate) fn switch_to(&mut self, now: Instant, engine_port: EnginePort) {
        self.now = now;
        self.engine_port = engine_port;
    }

    /// Passes the turn to the engine of `socket`, at the same moment.
    #[inline]
    pub(crate) fn switch_engine(&mut self, engine_port: EnginePort) {
        self.engine_port = engine_port;
    }

    /// The engine whose turn it is.
    #[inline]
    pub(crate) fn node(&self) -> NodeId {
        self.engine_port.node()
    }

    /// The next packet of those sent, by whom, from which port.
    #[inline]
    pub(crate) fn next_sent(&mut self) -> Option<(EnginePort, Box<Packet>)> {
        self.outbox.next()
    }

    /// A packet in a place of its own.
    pub(crate) fn boxed(&mut self, packet: Packet) -> Box<Packet> {
        self.outbox.boxed(packet)
    }

    /// The moment of this call.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Room for a packet to be made in; what it says is of one that is no more.
    pub fn new_packet(&mut self) -> Box<Packet> {
        match self.outbox.free.pop() {
            Some(slot) => slot,
            None => self.outbox.allocate(Packet::default()),
        }
    }

    /// Sends a packet that was made here out of `port`, now.
    pub fn send(&mut self, port: Port, packet: Packet) {
        let packet = self.boxed(packet);
        self.forward(port, packet);
    }

    /// Sends a packet that came in out of `port`, now.
    pub fn forward(&mut self, port: Port, packet: Box<Packet>) {
        self.outbox.push(self.engine_port.with(port), packet);
    }

    /// The packet is no more. One that is merely dropped is no more either; this keeps its place for
    /// the next.
    pub fn discard(&mut self, packet: Box<Packet>) {
        self.outbox.free.push(packet);
    }

    /// A packet was dropped without [`Cx::discard`], and its memory was freed.
    pub(crate) fn note_freed(&mut self) {
        self.outbox.allocated = self.outbox.allocated.saturating_sub(1);
    }

    /// How many packets were sent and not handed over.
    pub(crate) fn pending(&self) -> u64 {
        let Outbox { first, second, rest, .. } = &self.outbox;
        u64::from(first.is_some()) + u64::from(second.is_some()) + rest.len() as u64
    }

    /// Whether [`Cx::trace`] records anything.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// Reports a fact about `packet` that became true at `at`.
    #[inline]
    pub fn trace(&mut self, at: Instant, kind: EventKind, packet: &Packet) {
        if self.is_traced() {
            self.report(at, kind, packet);
        }
    }

    /// Out of line, so that an untraced run prepares no event.
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

/// A number of packets and of their IP bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many packets.
    pub packets: u64,
    /// Their sizes at the IP layer, added up.
    pub bytes: u64,
}

impl Count {
    /// Counts one packet of `bytes`.
    pub fn add(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }

    /// Counts the packets inside `packet`, at every depth.
    pub fn add_nested(&mut self, packet: &Packet) {
        for inner in packet.nested() {
            self.add(inner.bytes);
            self.add_nested(inner);
        }
    }

    /// Takes one packet of `bytes` off the count.
    ///
    /// # Panics
    /// If the packet was never counted.
    pub fn remove(&mut self, bytes: u32) {
        let (packets, bytes) = (self.packets.checked_sub(1), self.bytes.checked_sub(bytes.into()));
        self.packets = packets.expect("a packet leaves only after it was counted");
        self.bytes = bytes.expect("bytes leave only after they were counted");
    }

    /// Both counts added up.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

/// The books of one engine. Conservation: `received + created = sent + consumed + dropped + held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Arrived by [`Engine::input`].
    pub received: Count,
    /// Made here (by a traffic source or a TCP).
    pub created: Count,
    /// Left by [`Cx::send`] or [`Cx::forward`].
    pub sent: Count,
    /// Taken in by an end host.
    pub consumed: Count,
    /// Lost here, by [`DropCause`].
    pub dropped: [Count; DropCause::ALL.len()],
    /// Still inside.
    pub held: Count,
    /// Packets inside those packets.
    pub nested: Nested,
}

/// What happened to packets inside other packets. Over all engines of a graph,
/// `packed = unpacked + lost + held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nested {
    /// Put into other packets here.
    pub packed: Count,
    /// Taken out of other packets here.
    pub unpacked: Count,
    /// Dropped here with the packet that carried them.
    pub lost: Count,
    /// Inside packets that are held here.
    pub held: Count,
}

impl Nested {
    /// Both added up.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            packed: self.packed.plus(other.packed),
            unpacked: self.unpacked.plus(other.unpacked),
            lost: self.lost.plus(other.lost),
            held: self.held.plus(other.held),
        }
    }

    /// Checks conservation over all engines of a graph.
    ///
    /// # Errors
    /// Both sides of the balance, in words, if they differ.
    pub fn check(&self) -> Result<(), String> {
        let Self { packed, unpacked, lost, held } = *self;
        if packed == unpacked.plus(lost).plus(held) {
            return Ok(());
        }
        Err(format!("packed {packed:?}, but unpacked {unpacked:?}, lost {lost:?}, held {held:?}"))
    }
}

impl Ledger {
    /// Checks conservation in packets and bytes.
    ///
    /// # Errors
    /// Both sides of the balance, in words, if they differ.
    pub fn check(&self) -> Result<(), String> {
        let credit = self.received.plus(self.created);
        let lost = self.dropped.into_iter().fold(Count::default(), Count::plus);
        let debit = self.sent.plus(self.consumed).plus(lost).plus(self.held);
        if credit == debit {
            return Ok(());
        }
        Err(format!("received and created {credit:?}, but sent, consumed, lost and held {debit:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_the_outbox_in_the_order_sent() {
        let (mut outbox, mut sent, mut came) = (Outbox::new(), 0, 0);
        for (sends, takes) in [(1, 1), (2, 1), (3, 2), (5, 1), (0, 4), (1, 0), (2, 6)] {
            for _ in 0..sends {
                let packet = Packet { bytes: sent, ..Packet::default() };
                outbox.push(EnginePort::of(NodeId(sent)), Box::new(packet));
                sent += 1;
            }
            for (node, _, packet) in outbox.drain().take(takes) {
                assert_eq!((node, packet.bytes), (NodeId(came), came));
                came += 1;
            }
        }
        assert_eq!((sent, came), (14, 14));
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
    #[should_panic(expected = "only after it was counted")]
    fn removing_a_packet_that_was_not_counted_panics() {
        Count::default().remove(1);
    }
}
