//! Traffic: engines that make packets and take them in.

mod bulk;
mod conference;
mod connections;
mod constant_rate;
mod draw;
mod request_response;

use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::link::{Direction, Processor};
use bentpipe_core::packet::{Packet, Port};
use bentpipe_core::time::Instant;

pub use bulk::{BulkReceiver, BulkSender, Until};
pub use conference::{Participant, Reflector};
pub use connections::Totals;
pub use constant_rate::{ConstantRate, DatagramSink};
pub use draw::Draws;
pub use request_response::{Client, Exchange, Exchanges, Host, Schedule, Server};

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
    /// The end of requests and responses that asks.
    Client(Box<Client>),
    /// The end that answers.
    Server(Box<Server>),
    /// A participant of a conference.
    Participant(Box<Participant>),
    /// What its participants send to.
    Reflector(Box<Reflector>),
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
            Node::Client($engine) => $call,
            Node::Server($engine) => $call,
            Node::Participant($engine) => $call,
            Node::Reflector($engine) => $call,
        }
    };
}

/// Nothing of one engine is put up where another is called.
#[inline(never)]
fn input_apart<E: Engine>(
    engine: &mut E,
    cx: &mut Cx<'_>,
    port: Port,
    packet: Box<Packet>,
) -> Option<Instant> {
    engine.input_and_ask(cx, port, packet)
}

#[inline(never)]
fn wake_apart<E: Engine>(engine: &mut E, cx: &mut Cx<'_>) -> Option<Instant> {
    engine.wake_and_ask(cx)
}

impl Node {
    /// [`Engine::input_and_ask`] of what is no direction. Apart from it, the directions' code, where most
    /// calls go, keeps its values in registers, and what chooses among the others is not asked.
    #[inline(never)]
    fn input_of_others(
        &mut self,
        cx: &mut Cx<'_>,
        port: Port,
        packet: Box<Packet>,
    ) -> Option<Instant> {
        each!(self, engine => input_apart(&mut **engine, cx, port, packet))
    }

    /// [`Engine::wake_and_ask`], likewise.
    #[inline(never)]
    fn wake_of_others(&mut self, cx: &mut Cx<'_>) -> Option<Instant> {
        each!(self, engine => wake_apart(&mut **engine, cx))
    }
}

impl Engine for Node {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        each!(self, engine => engine.input(cx, port, packet));
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        each!(self, engine => engine.wake(cx));
    }

    fn next_wake(&self) -> Option<Instant> {
        each!(self, engine => engine.next_wake())
    }

    fn input_and_ask(
        &mut self,
        cx: &mut Cx<'_>,
        port: Port,
        packet: Box<Packet>,
    ) -> Option<Instant> {
        match self {
            Self::Direction(direction) => direction.input_and_ask(cx, port, packet),
            other => other.input_of_others(cx, port, packet),
        }
    }

    fn wake_and_ask(&mut self, cx: &mut Cx<'_>) -> Option<Instant> {
        match self {
            Self::Direction(direction) => direction.wake_and_ask(cx),
            other => other.wake_of_others(cx),
        }
    }

    fn ledger(&self) -> Ledger {
        each!(self, engine => engine.ledger())
    }
}
