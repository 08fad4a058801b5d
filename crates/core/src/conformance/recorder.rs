//! Records the input of an engine in a graph, to replay it to the engine alone.

use super::Script;
use crate::engine::{Cx, Engine, Ledger};
use crate::packet::{Packet, Port};
use crate::time::Instant;

/// An engine that records its input as a script.
///
/// Random segments exercise little of a TCP endpoint. A recorder takes the place of the endpoint in a
/// graph and records a whole connection; its script then drives the endpoint alone.
///
/// The engine is woken before an input at the instant of its deadline, as in [`super::check`]. In a
/// graph that order depends on insertion. An endpoint that retransmits a segment just before the ACK of
/// it, instead of just after, would need one more ACK than the script has.
#[derive(Debug)]
pub struct Recorder<E> {
    engine: E,
    script: Script,
}

impl<E: Engine> Recorder<E> {
    /// Records the input of `engine`.
    #[must_use]
    pub fn new(engine: E) -> Self {
        Self { engine, script: Script::new() }
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The recorded input, in order.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.script
    }
}

impl<E: Engine> Engine for Recorder<E> {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        if self.engine.next_wake().is_some_and(|due| due <= cx.now()) {
            self.engine.wake(cx);
        }
        self.script.push((cx.now(), port, (*packet).clone()));
        self.engine.input(cx, port, packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.engine.wake(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.engine.next_wake()
    }

    fn ledger(&self) -> Ledger {
        self.engine.ledger()
    }
}
