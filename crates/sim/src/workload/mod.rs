//! Traffic: engines that make packets and take them in.

mod bulk;
mod constant_rate;

use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::link::{Direction, Processor};
use bentpipe_core::packet::{Packet, Port};
use bentpipe_core::time::Instant;

pub use bulk::{BulkReceiver, BulkSender, Until};
pub use constant_rate::{ConstantRate, DatagramSink};

/// Every engine that a simulation contains: a closed list, so that the inner loop calls them
/// without a pointer in between.
#[derive(Debug)]
pub enum Node {
    /// One direction of the link.
    Direction(Box<Direction>),
    /// The processor of a gateway.
    Processor(Box<Processor>),
    /// The end of a transfer that opens and sends.
    BulkSender(Box<BulkSender>),
    /// The end of a transfer that receives.
    BulkReceiver(Box<BulkReceiver>),
    /// A source of datagrams.
    ConstantRate(Box<ConstantRate>),
    /// A sink of datagrams.
    DatagramSink(Box<DatagramSink>),
}

macro_rules! each {
    ($node:expr, $engine:ident => $call:expr) => {
        match $node {
            Node::Direction($engine) => $call,
            Node::Processor($engine) => $call,
            Node::BulkSender($engine) => $call,
            Node::BulkReceiver($engine) => $call,
            Node::ConstantRate($engine) => $call,
            Node::DatagramSink($engine) => $call,
        }
    };
}

impl Engine for Node {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: &Packet) {
        each!(self, engine => engine.input(cx, port, packet));
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        each!(self, engine => engine.wake(cx));
    }

    fn next_wake(&self) -> Option<Instant> {
        each!(self, engine => engine.next_wake())
    }

    fn ledger(&self) -> Ledger {
        each!(self, engine => engine.ledger())
    }
}
