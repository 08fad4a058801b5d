//! A script from life: what an engine was given while it talked to others.

use super::Script;
use crate::engine::{Cx, Engine, Ledger};
use crate::packet::{Packet, Port};
use crate::time::Instant;

/// An engine that also writes down its input.
///
/// A TCP endpoint fed random segments does little of what it can. Put into a graph in its place, a
/// recorder hears a whole conversation; its script then drives the endpoint alone.
///
/// What is due at the instant of an input is done before it, as in the runs of [`super::check`]. A
/// graph leaves that order to chance, and an endpoint that repeats a segment just before the ACK of
/// it, and not just after, would need an ACK more than the script has.
#[derive(Debug)]
pub struct Recorder<E> {
    engine: E,
    script: Script,
}

impl<E: Engine> Recorder<E> {
    /// Listens to what `engine` is given.
    #[must_use]
    pub fn new(engine: E) -> Self {
        Self { engine, script: Script::new() }
    }

    /// Everything the engine was given, in order.
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
