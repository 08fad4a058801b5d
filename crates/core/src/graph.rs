//! Engines, the wires between them, and the event loop.
//!
//! Rules that define results:
//! 1. Wake-ups are ordered by (instant, insertion number): ties are served in FIFO order.
//! 2. At each instant the loop wakes the engine that is due, then delivers everything it sent, breadth
//!    first, until no packet is left to deliver.
//! 3. After each call the loop reads the next wake-up of that engine, and of no other.
//! 4. A deadline in the past or a zero-delay loop is a bug and panics: see `call_counter.rs`.
//! 5. Time is monotonic.

use std::sync::Arc;

use crate::call_counter::{CallCounter, Step};
use crate::drop_counts::DropCounts;
use crate::engine::{Count, Cx, Engine, Outbox};
use crate::packet::{Packet, Port};
use crate::time::Instant;
use crate::trace::{DropCause, NodeId, Trace};
use crate::wake_queue::{Deadline, WakeQueue};
use crate::wires::{EnginePort, UNROUTED, Wires};

pub use crate::wires::{EGRESS, PORTS_MAX};

/// The most engines in a graph: an engine and its port fit in one word.
pub const ENGINES_MAX: usize = 1 << 24;

/// A packet that left the graph: when, and from which engine and port.
pub type Egress = (Instant, NodeId, Port, Packet);

/// An engine and its deadline.
struct Slot<E> {
    engine: E,
    deadline: Deadline,
}

/// A set of engines and their wires.
pub struct Graph<E> {
    slots: Vec<Slot<E>>,
    wires: Wires,
    wakes: WakeQueue,
    outbox: Outbox,
    egress: Vec<Egress>,
    unrouted: Count,
    now: Instant,
    last_event: Instant,
    calls: CallCounter,
}

impl<E: Engine> Default for Graph<E> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            wires: Wires::default(),
            wakes: WakeQueue::default(),
            outbox: Outbox::new(),
            egress: Vec::new(),
            unrouted: Count::default(),
            now: Instant::START,
            last_event: Instant::START,
            calls: CallCounter::default(),
        }
    }
}

impl<E: Engine> Graph<E> {
    /// Adds an engine. [`Engine::next_wake`] gives its first wake-up.
    ///
    /// # Panics
    /// If the graph already holds 2^24 engines.
    pub fn add(&mut self, engine: E) -> NodeId {
        assert!(self.slots.len() < ENGINES_MAX, "at most 2^24 engines");
        let node = NodeId(self.slots.len() as u32);
        let mut deadline = self.wakes.add();
        self.wakes.request(node, &mut deadline, engine.next_wake());
        self.slots.push(Slot { engine, deadline });
        self.calls.set_engines(self.slots.len());
        self.wires.add();
        node
    }

    /// Connects a port to a port. An unconnected port leads to [`EGRESS`].
    pub fn connect(&mut self, from: (NodeId, Port), to: (NodeId, Port)) {
        self.wires.connect(from.into(), to.into());
    }

    /// Connects a port to a next hop for each destination. A packet for a destination without one is
    /// dropped as [`DropCause::NoRoute`]. Wires with equal routes may share one table: a thousand
    /// terminals with a table each would not fit in memory.
    pub fn connect_by_destination(
        &mut self,
        from: (NodeId, Port),
        to: impl Into<Arc<[Option<(NodeId, Port)>]>>,
    ) {
        self.wires.connect_by_destination(from.into(), to.into());
    }

    /// The current time of the graph.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The time of the last call of an engine; `now` may be later.
    #[must_use]
    pub fn last_event(&self) -> Instant {
        self.last_event
    }

    /// Packets dropped because their destination has no route.
    #[must_use]
    pub fn unrouted(&self) -> Count {
        self.unrouted
    }

    /// Counts dropped packets by flow, from now on: the flows from 0 to `flows` - 1.
    pub fn count_drops(&mut self, flows: usize) {
        self.outbox.count_drops(flows);
    }

    /// Packets dropped, by flow; none without [`Graph::count_drops`].
    #[must_use]
    pub fn drops(&self) -> &DropCounts {
        self.outbox.drops()
    }

    /// The number of calls of engines so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.made()
    }

    /// Returns an engine.
    #[must_use]
    pub fn engine(&self, node: NodeId) -> &E {
        &self.slots[node.0 as usize].engine
    }

    /// Returns an engine, to read statistics that it computes on demand. The caller must not change
    /// what the engine does next.
    pub fn engine_mut(&mut self, node: NodeId) -> &mut E {
        &mut self.slots[node.0 as usize].engine
    }

    /// All engines, in the order in which they were added.
    pub fn engines(&self) -> impl Iterator<Item = &E> {
        self.slots.iter().map(|slot| &slot.engine)
    }

    /// The time of the next event, if there is one.
    pub fn next_event(&mut self) -> Option<Instant> {
        self.refresh_first();
        self.wakes.first_at()
    }

    /// Requeues the first key until it matches the deadline of its engine. A key that is too early is
    /// always requeued before any engine is called, so the order of ties does not depend on calls of
    /// [`Graph::next_event`].
    fn refresh_first(&mut self) {
        while let Some(slot) = self.slots.get_mut(self.wakes.first())
            && slot.deadline.is_stale()
        {
            self.wakes.requeue_first(&mut slot.deadline);
        }
    }

    /// Runs everything due up to and including `limit`, and sets the clock to `limit`. Does nothing if
    /// that has passed.
    pub fn run_until(&mut self, limit: Instant, trace: Option<&mut (dyn Trace + 'static)>) {
        self.run_paused(limit, u64::MAX, trace);
    }

    /// Like [`Graph::run_until`], but pauses before the next wake-up after `calls` calls of engines.
    /// Returns whether the limit was reached. Pauses change no result.
    pub fn run_paused(
        &mut self,
        limit: Instant,
        calls: u64,
        trace: Option<&mut (dyn Trace + 'static)>,
    ) -> bool {
        self.calls.pause_after(calls);
        let reached = self.with_context(trace, |graph, cx| graph.run(limit, cx));
        self.calls.never_pause();
        reached
    }

    /// The number of packets that memory is allocated for: those in the graph and those on the free
    /// list.
    #[must_use]
    pub fn packets_allocated(&self) -> u64 {
        self.outbox.allocated()
    }

    /// Delivers a packet to an engine at `at`, after everything due until then.
    ///
    /// # Panics
    /// If the graph has passed `at`.
    pub fn inject(
        &mut self,
        at: Instant,
        to: (NodeId, Port),
        packet: Packet,
        trace: Option<&mut (dyn Trace + 'static)>,
    ) {
        assert!(at >= self.now, "a packet for {at} is injected at {}", self.now);
        self.with_context(trace, |graph, cx| {
            graph.run(at, cx);
            graph.last_event = at;
            let packet = cx.boxed(packet);
            let to = EnginePort::from(to);
            assert!((to.node().0 as usize) < graph.slots.len(), "there is no engine {to:?}");
            graph.calls.end_chain();
            graph.deliver(to, packet, cx);
            graph.deliver_sent(cx);
        });
    }

    /// Modifies an engine from outside at `at`, after everything due until then, and updates its
    /// deadline.
    ///
    /// # Panics
    /// If the graph has passed `at`.
    #[cold]
    pub fn alter<R>(
        &mut self,
        at: Instant,
        node: NodeId,
        trace: Option<&mut (dyn Trace + 'static)>,
        how: impl FnOnce(&mut E, &mut Cx<'_>) -> R,
    ) -> R {
        assert!(at >= self.now, "a change for {at} is made at {}", self.now);
        let mut trace = trace;
        self.run_until(at, trace.as_deref_mut());
        self.last_event = at;
        self.with_context(trace, |graph, cx| {
            cx.switch_to(at, EnginePort::of(node));
            let slot = &mut graph.slots[node.0 as usize];
            let result = how(&mut slot.engine, cx);
            graph.wakes.request(node, &mut slot.deadline, slot.engine.next_wake());
            graph.deliver_sent(cx);
            result
        })
    }

    /// Wakes every engine at the current time, due or not. By the contract of [`Engine::wake`] this
    /// has no effect on an engine that is not due; checks use it to find engines that break the
    /// contract.
    pub fn wake_all(&mut self, trace: Option<&mut (dyn Trace + 'static)>) {
        self.refresh_first();
        self.with_context(trace, |graph, cx| {
            for (number, slot) in graph.slots.iter_mut().enumerate() {
                let node = NodeId(u32::try_from(number).expect("at most 2^24 engines"));
                cx.switch_to(graph.now, EnginePort::of(node));
                slot.engine.wake(cx);
                graph.wakes.request(node, &mut slot.deadline, slot.engine.next_wake());
            }
            graph.deliver_sent(cx);
        });
    }

    /// Runs `body` with one context for all calls: a context for each would cost more than some engines do.
    fn with_context<R>(
        &mut self,
        trace: Option<&mut (dyn Trace + 'static)>,
        body: impl FnOnce(&mut Self, &mut Cx<'_>) -> R,
    ) -> R {
        let mut outbox = std::mem::take(&mut self.outbox);
        let mut cx = Cx::new(self.now, NodeId(0), &mut outbox, trace.map(|trace| trace as _));
        let result = body(self, &mut cx);
        drop(cx);
        self.outbox = outbox;
        result
    }

    /// Returns whether `limit` was reached without a pause. Inlined into the function that creates the
    /// context: the loop then accesses context and outbox directly, which saves 5 % of the instructions
    /// of a run.
    #[inline(always)]
    fn run(&mut self, limit: Instant, cx: &mut Cx<'_>) -> bool {
        let calls = self.calls.made();
        let mut reached = true;
        while let Some(slot) = self.slots.get_mut(self.wakes.first()) {
            if slot.deadline.is_stale() {
                self.wakes.requeue_first(&mut slot.deadline);
                continue;
            }
            let Some(at) = self.wakes.first_until(limit) else { break };
            if at < cx.now() {
                time_went_back(cx.now(), at);
            }
            if self.calls.count() && self.calls.check(at, Step::Wake) {
                reached = false;
                break;
            }
            cx.switch_to(at, EnginePort::of(NodeId(self.wakes.first() as u32)));
            let next = slot.engine.wake_and_next_wake(cx);
            if next.is_some_and(|next| next <= cx.now()) {
                wake_left_work(cx.now());
            }
            self.wakes.reschedule_first(&mut slot.deadline, next);
            self.deliver_sent(cx);
        }
        if self.calls.made() > calls {
            self.last_event = cx.now();
        }
        self.now = if reached { limit.max(self.now) } else { cx.now() };
        cx.set_now(self.now);
        reached
    }

    /// Takes the packets that left the graph, in order. The buffer keeps its capacity, so a driver in
    /// steady state allocates nothing.
    pub fn drain_egress(&mut self) -> std::vec::Drain<'_, Egress> {
        self.egress.drain(..)
    }

    /// Delivers packets in the order in which they were sent (breadth first).
    fn deliver_sent(&mut self, cx: &mut Cx<'_>) {
        while let Some((from, packet)) = cx.next_sent() {
            let to = self.wires.next_hop(from, packet.destination);
            if let Some(packet) = self.deliver(to, packet, cx) {
                self.egress_or_drop(from, to, packet, cx);
            }
        }
    }

    /// Moves a packet out of the graph, or drops it if it has no route.
    #[cold]
    #[inline(never)]
    fn egress_or_drop(
        &mut self,
        from: EnginePort,
        to: EnginePort,
        mut packet: Box<Packet>,
        cx: &mut Cx<'_>,
    ) {
        if to == UNROUTED {
            self.unrouted.add(packet.bytes);
            cx.switch_engine(from);
            cx.record_drop(DropCause::NoRoute, &packet);
        } else {
            self.egress.push((cx.now(), from.node(), from.port(), std::mem::take(&mut *packet)));
        }
        cx.discard(packet);
    }

    /// Delivers a packet; returns it if there is no such engine.
    fn deliver(
        &mut self,
        to: EnginePort,
        packet: Box<Packet>,
        cx: &mut Cx<'_>,
    ) -> Option<Box<Packet>> {
        let Some(slot) = self.slots.get_mut(to.node().0 as usize) else { return Some(packet) };
        cx.switch_engine(to);
        if self.calls.count() {
            self.calls.check(cx.now(), Step::Deliver { pending: cx.pending() });
        }
        let next = slot.engine.input_and_next_wake(cx, to.port(), packet);
        debug_assert!(next.is_none_or(|next| next >= cx.now()), "a deadline in the past");
        self.wakes.request(cx.node(), &mut slot.deadline, next);
        None
    }
}

#[cold]
#[inline(never)]
fn time_went_back(from: Instant, to: Instant) -> ! {
    panic!("time went back from {from} to {to}");
}

#[cold]
#[inline(never)]
fn wake_left_work(at: Instant) -> ! {
    panic!("a wake-up at {at} left work undone");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Ledger;
    use crate::packet::{FlowId, PacketId, Payload};

    /// Sends each packet back at once.
    struct Mirror;

    impl Engine for Mirror {
        fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
            cx.forward(port, packet);
        }

        fn wake(&mut self, _: &mut Cx<'_>) {}

        fn next_wake(&self) -> Option<Instant> {
            None
        }

        fn ledger(&self) -> Ledger {
            Ledger::default()
        }
    }

    fn packet() -> Packet {
        let payload = Payload::Datagram { source: FlowId(0), sequence: 0 };
        Packet {
            id: PacketId(0),
            created_at: Instant::START,
            flow: FlowId(0),
            bytes: 40,
            payload,
            ..Packet::default()
        }
    }

    /// Sends this many copies of each packet.
    struct Fanout(u32);

    impl Engine for Fanout {
        fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
            for _ in 0..self.0 {
                cx.send(port, (*packet).clone());
            }
            cx.discard(packet);
        }

        fn wake(&mut self, _: &mut Cx<'_>) {}

        fn next_wake(&self) -> Option<Instant> {
            None
        }

        fn ledger(&self) -> Ledger {
            Ledger::default()
        }
    }

    /// Holds a packet until it is woken, at the same instant.
    #[derive(Default)]
    struct Bouncer {
        held: Option<(Instant, Box<Packet>)>,
    }

    impl Engine for Bouncer {
        fn input(&mut self, cx: &mut Cx<'_>, _: Port, packet: Box<Packet>) {
            self.held = Some((cx.now(), packet));
        }

        fn wake(&mut self, cx: &mut Cx<'_>) {
            if let Some((_, packet)) = self.held.take() {
                cx.forward(Port(0), packet);
            }
        }

        fn next_wake(&self) -> Option<Instant> {
            self.held.as_ref().map(|held| held.0)
        }

        fn ledger(&self) -> Ledger {
            Ledger::default()
        }
    }

    /// Two engines that send to each other, with a packet sent at 5 ms.
    fn two_engines_in_a_loop<E: Engine>(engines: [E; 2]) -> Graph<E> {
        let mut graph = Graph { calls: CallCounter::watching_after(1_000), ..Graph::default() };
        let port = Port(0);
        let [one, other] = engines.map(|engine| graph.add(engine));
        graph.connect((one, port), (other, port));
        graph.connect((other, port), (one, port));
        graph.inject(Instant::from_millis(5), (one, port), packet(), None);
        graph
    }

    #[test]
    #[should_panic(expected = "send each other packets without end at 0.005")]
    fn a_zero_delay_loop_panics() {
        two_engines_in_a_loop([Mirror, Mirror]);
    }

    #[test]
    #[should_panic(expected = "wake each other without end at 0.005")]
    fn a_wake_up_loop_panics() {
        let mut graph = two_engines_in_a_loop([Bouncer::default(), Bouncer::default()]);
        graph.run_until(Instant::from_millis(6), None);
    }

    /// Given 100 packets at one instant that each become 10,000 copies, as in a conference in which all
    /// participants send at once, and a watch that begins after 1,000 calls at one instant, expect the
    /// million calls, in chains of two, not to be taken for a loop.
    #[test]
    fn a_burst_is_not_taken_for_a_loop() {
        let mut graph = Graph { calls: CallCounter::watching_after(1_000), ..Graph::default() };
        let (port, fanout, last) = (Port(0), graph.add(Fanout(10_000)), graph.add(Fanout(0)));
        graph.connect((fanout, port), (last, port));
        for _ in 0..100 {
            graph.inject(Instant::from_millis(5), (fanout, port), packet(), None);
        }
        assert_eq!(graph.calls(), 100 * 10_001);
        assert_eq!(graph.packets_allocated(), 10_001, "a packet and its copies, in reused memory");
    }

    #[test]
    fn many_calls_at_many_instants_are_not_taken_for_a_loop() {
        let mut graph = Graph { calls: CallCounter::watching_after(1), ..Graph::default() };
        let (port, node) = (Port(0), graph.add(Mirror));
        for millis in [0, 0, 1, 1, 2, 2] {
            graph.inject(Instant::from_millis(millis), (node, port), packet(), None);
        }
        assert_eq!(graph.calls(), 6);
    }

    /// Given engines that are due at 1, 2 and 3 ms and a pause after each call, expect one call in each
    /// run, the clock to stop at it, and the limit to be reached by the fourth run.
    #[test]
    fn a_run_pauses_between_two_wake_ups() {
        let mut graph = Graph::default();
        for millis in 1..=3 {
            let held = Some((Instant::from_millis(millis), Box::new(packet())));
            graph.add(Bouncer { held });
        }
        let limit = Instant::from_millis(10);
        for millis in 1..=3 {
            let reached = graph.run_paused(limit, 1, None);
            let now = if reached { limit } else { Instant::from_millis(millis) };
            assert_eq!((graph.calls(), graph.now()), (millis, now));
            assert_eq!(graph.last_event(), Instant::from_millis(millis));
        }
        assert_eq!((graph.run_paused(limit, 1, None), graph.calls()), (true, 3));
        assert_eq!(graph.now(), limit);
    }
}
