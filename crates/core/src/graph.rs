//! Engines, the wires between them, and the one loop that runs them.
//!
//! Rules that define results:
//! 1. Order is (instant, insertion number): ties are first come, first served.
//! 2. At an instant the due engine is woken, then everything it sent is delivered, breadth first,
//!    until the graph is quiet.
//! 3. After each call that engine alone is asked for its next wake-up.
//! 4. A deadline in the past, or more than [`CALLS_AT_ONE_INSTANT_MAX`] calls within one instant,
//!    is a bug and panics.
//! 5. Time never goes back.

use std::sync::Arc;

use crate::engine::{Cx, Engine, Outbox};
use crate::packet::{FlowId, Packet, Port};
use crate::time::Instant;
use crate::trace::{NodeId, Trace};
use crate::wakes::Wakes;

/// A loop of zero delay would never end. A slow-start burst over the largest window that TCP can
/// express (1 GiB of 512-byte segments) makes some 6 million calls at one instant.
pub const CALLS_AT_ONE_INSTANT_MAX: u64 = 50_000_000;

/// Ports of an engine are numbered below this.
pub const PORTS_MAX: usize = 4;

/// Where packets sent out of one port go.
#[derive(Clone, Copy, Debug, Default)]
enum Wire {
    /// Nobody is there: the packet leaves the graph.
    #[default]
    Egress,
    /// To one port of one engine.
    To(NodeId, Port),
    /// To the engine that serves the packet's flow, by flow number, in the table with this number.
    ByFlow(u32),
}

/// A set of engines and their wires.
pub struct Graph<E> {
    engines: Vec<E>,
    wires: Vec<[Wire; PORTS_MAX]>,
    tables: Vec<Arc<[(NodeId, Port)]>>,
    wakes: Wakes,
    outbox: Outbox,
    egress: Vec<(Instant, NodeId, Port, Packet)>,
    now: Instant,
    last_event: Instant,
    calls: u64,
    /// More calls than this before the clock moves are a loop.
    calls_limit: u64,
    calls_at_one_instant_max: u64,
}

impl<E: Engine> Default for Graph<E> {
    fn default() -> Self {
        Self {
            engines: Vec::new(),
            wires: Vec::new(),
            tables: Vec::new(),
            wakes: Wakes::default(),
            outbox: Outbox::new(),
            egress: Vec::new(),
            now: Instant::START,
            last_event: Instant::START,
            calls: 0,
            calls_limit: CALLS_AT_ONE_INSTANT_MAX,
            calls_at_one_instant_max: CALLS_AT_ONE_INSTANT_MAX,
        }
    }
}

impl<E: Engine> Graph<E> {
    /// Adds an engine. Its first wake-up is taken from [`Engine::next_wake`].
    ///
    /// # Panics
    /// If the graph already holds 2^24 engines.
    pub fn add(&mut self, engine: E) -> NodeId {
        let node = NodeId(u32::try_from(self.engines.len()).expect("at most 2^24 engines"));
        self.wakes.add();
        self.wakes.ask(node, engine.next_wake());
        self.engines.push(engine);
        self.wires.push(Default::default());
        node
    }

    /// Wires a port to a port. A port without a wire leads out of the graph.
    pub fn connect(&mut self, from: (NodeId, Port), to: (NodeId, Port)) {
        *self.wire(from) = Wire::To(to.0, to.1);
    }

    /// Wires a port to one destination for each flow, by flow number. Wires with equal destinations
    /// may share one table: with a thousand terminals, a table each would not fit in memory.
    pub fn connect_by_flow(&mut self, from: (NodeId, Port), to: impl Into<Arc<[(NodeId, Port)]>>) {
        let table = u32::try_from(self.tables.len()).expect("fewer tables than ports of engines");
        self.tables.push(to.into());
        *self.wire(from) = Wire::ByFlow(table);
    }

    fn wire(&mut self, from: (NodeId, Port)) -> &mut Wire {
        &mut self.wires[from.0.0 as usize][usize::from(from.1.0)]
    }

    /// The moment the graph has reached.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The moment of the last call of an engine; the clock may have moved on since.
    #[must_use]
    pub fn last_event(&self) -> Instant {
        self.last_event
    }

    /// How many calls of engines were made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// One of the engines.
    #[must_use]
    pub fn engine(&self, node: NodeId) -> &E {
        &self.engines[node.0 as usize]
    }

    /// One of the engines, to settle its statistics. Changing what it will do next is not allowed.
    pub fn engine_mut(&mut self, node: NodeId) -> &mut E {
        &mut self.engines[node.0 as usize]
    }

    /// Every engine, in the order they were added.
    pub fn engines(&self) -> impl Iterator<Item = &E> {
        self.engines.iter()
    }

    /// When something will happen next, if ever.
    pub fn next_event(&mut self) -> Option<Instant> {
        self.first().map(|(at, _)| at)
    }

    /// The engine that is due next. A key that is found too early is set anew, by whoever looks, and
    /// always before any engine is called: so turns do not depend on who looks.
    fn first(&mut self) -> Option<(Instant, NodeId)> {
        loop {
            let (at, node) = self.wakes.first()?;
            if !self.wakes.is_stale(node) {
                return Some((at, node));
            }
            self.wakes.set(node, self.engines[node.0 as usize].next_wake());
        }
    }

    /// Runs everything due up to and including `limit`, and moves the clock there. A limit that was
    /// already passed changes nothing.
    pub fn run_until(&mut self, limit: Instant, trace: Option<&mut (dyn Trace + 'static)>) {
        self.with_context(trace, |graph, cx| graph.run(limit, cx));
    }

    /// Hands a packet to an engine at `at`, after everything due until then.
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
        assert!(at >= self.now, "a packet for {at} comes when it is already {}", self.now);
        self.with_context(trace, |graph, cx| {
            graph.run(at, cx);
            graph.last_event = at;
            let packet = cx.boxed(packet);
            graph.deliver(to, packet, cx);
            graph.settle(cx);
        });
    }

    /// Wakes every engine at the present moment, due or not. By the contract of
    /// [`Engine::wake`] this changes nothing that is not due; checks use it to catch an engine whose
    /// state moves on when it is merely looked at.
    pub fn wake_all(&mut self, trace: Option<&mut (dyn Trace + 'static)>) {
        self.first();
        self.with_context(trace, |graph, cx| {
            for number in 0..graph.engines.len() {
                let node = NodeId(u32::try_from(number).expect("at most 2^24 engines"));
                cx.turn(graph.now, node);
                graph.engines[number].wake(cx);
                graph.wakes.ask(node, graph.engines[number].next_wake());
            }
            graph.settle(cx);
        });
    }

    /// One context serves all calls: making one for each would cost more than some engines do.
    fn with_context(
        &mut self,
        trace: Option<&mut (dyn Trace + 'static)>,
        body: impl FnOnce(&mut Self, &mut Cx<'_>),
    ) {
        let mut outbox = std::mem::take(&mut self.outbox);
        let mut cx = Cx::new(self.now, NodeId(0), &mut outbox, trace.map(|trace| trace as _));
        body(self, &mut cx);
        self.outbox = outbox;
    }

    fn run(&mut self, limit: Instant, cx: &mut Cx<'_>) {
        while let Some((at, node)) = self.first() {
            if at > limit {
                break;
            }
            self.move_clock(at);
            self.last_event = at;
            self.count_call();
            cx.turn(at, node);
            let next = self.engines[node.0 as usize].wake_and_ask(cx);
            assert!(next.is_none_or(|next| next > at), "a wake-up at {at} left work undone");
            self.wakes.set(node, next);
            self.settle(cx);
        }
        self.move_clock(limit.max(self.now));
    }

    /// Takes what left the graph: when, from which engine and port, and the packet.
    pub fn drain_egress(&mut self) -> Vec<(Instant, NodeId, Port, Packet)> {
        std::mem::take(&mut self.egress)
    }

    fn move_clock(&mut self, to: Instant) {
        assert!(to >= self.now, "time went back from {} to {to}", self.now);
        if to > self.now {
            self.now = to;
            self.calls_limit = self.calls + self.calls_at_one_instant_max;
        }
    }

    fn count_call(&mut self) {
        self.calls += 1;
        assert!(
            self.calls <= self.calls_limit,
            "engines call each other without end at {}",
            self.now
        );
    }

    fn deliver(&mut self, (node, port): (NodeId, Port), packet: Box<Packet>, cx: &mut Cx<'_>) {
        self.count_call();
        cx.turn(self.now, node);
        let next = self.engines[node.0 as usize].input_and_ask(cx, port, packet);
        debug_assert!(next.is_none_or(|next| next >= self.now), "a deadline in the past");
        self.wakes.ask(node, next);
    }

    /// Breadth first: packets are delivered in the order in which they were sent.
    fn settle(&mut self, cx: &mut Cx<'_>) {
        while let Some((from, port, packet)) = cx.next_sent() {
            match self.destination(from, port, packet.flow) {
                Some(to) => self.deliver(to, packet, cx),
                None => self.egress.push((self.now, from, port, *packet)),
            }
        }
    }

    fn destination(&self, from: NodeId, port: Port, flow: FlowId) -> Option<(NodeId, Port)> {
        match self.wires[from.0 as usize][usize::from(port.0)] {
            Wire::Egress => None,
            Wire::To(node, port) => Some((node, port)),
            Wire::ByFlow(table) => Some(self.tables[table as usize][flow.0 as usize]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Ledger;
    use crate::packet::{Body, FlowId, PacketId};

    /// Sends back at once whatever it is given.
    struct Mirror;

    impl Engine for Mirror {
        fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
            cx.pass(port, packet);
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
        let body = Body::Datagram { sequence: 0 };
        Packet { id: PacketId(0), born: Instant::START, flow: FlowId(0), bytes: 40, body }
    }

    #[test]
    #[should_panic(expected = "call each other without end at 0.005")]
    fn a_loop_of_zero_delay_is_caught() {
        let mut graph = Graph { calls_at_one_instant_max: 1_000, ..Graph::default() };
        let (port, one, other) = (Port(0), graph.add(Mirror), graph.add(Mirror));
        graph.connect((one, port), (other, port));
        graph.connect((other, port), (one, port));
        graph.inject(Instant::from_millis(5), (one, port), packet(), None);
    }

    #[test]
    fn many_calls_at_many_instants_are_no_loop() {
        let mut graph = Graph { calls_at_one_instant_max: 2, ..Graph::default() };
        let (port, node) = (Port(0), graph.add(Mirror));
        for millis in [0, 0, 1, 1, 2, 2] {
            graph.inject(Instant::from_millis(millis), (node, port), packet(), None);
        }
        assert_eq!(graph.calls(), 6);
    }
}
