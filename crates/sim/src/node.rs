//! The engines of a simulation: a closed list, so that the inner loop calls them by static
//! dispatch. A new engine adds a line here; a gateway function adds another one in
//! `build/functions.rs`.

use bentpipe_core::aggregation::Aggregator;
use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::link::{Access, Direction, Processor, TerminalPath};
use bentpipe_core::packet::{Packet, Port};
use bentpipe_core::pep::Pep;
use bentpipe_core::time::Instant;
use bentpipe_core::tunnel::Tunnel;

use crate::workload::{
    BulkReceiver, BulkSender, ChannelClient, ChannelServer, Client, ConstantRate, DatagramSink,
    FlowEnd, Participant, Reflector, Server, WebClient, WebServer,
};

/// Defines [`Node`] from the lists of engines, on paths and at the ends of flows, and a `match` over it.
macro_rules! engines {
    ($($(#[$path_doc:meta])* $path:ident,)* --- $($(#[$end_doc:meta])* $end:ident,)*) => {
        /// An engine of a simulation.
        #[derive(Debug)]
        pub enum Node {
            $($(#[$path_doc])* $path(Box<$path>),)*
            $($(#[$end_doc])* $end(Box<$end>),)*
        }

        engines!(from $($path)* $($end)*);

        macro_rules! each {
            ($node:expr, $engine:ident => $call:expr) => {
                match $node {
                    $(Node::$path($engine) => $call,)*
                    $(Node::$end($engine) => $call,)*
                }
            };
        }

        macro_rules! end_of {
            ($node:expr) => {
                match $node {
                    $(Node::$path(_) => &NoEnd,)*
                    $(Node::$end(end) => &**end,)*
                }
            };
        }
    };
    (from $($name:ident)*) => {
        $(impl From<$name> for Node {
            fn from(engine: $name) -> Self {
                Self::$name(Box::new(engine))
            }
        })*
    };
}

engines! {
    /// One direction of the link.
    Direction,
    /// The aggregator of a gateway.
    Aggregator,
    /// The PEP of a gateway.
    Pep,
    /// The processor of a gateway.
    Processor,
    /// The coded tunnel of a gateway.
    Tunnel,
    /// The path between a shared direction and one of its terminals.
    TerminalPath,
    /// The access line between a gateway and a host.
    Access,
    ---
    /// The sender of a bulk transfer.
    BulkSender,
    /// The receiver of a bulk transfer.
    BulkReceiver,
    /// A source of datagrams.
    ConstantRate,
    /// A sink of datagrams.
    DatagramSink,
    /// A client that sends requests.
    Client,
    /// A server that sends responses.
    Server,
    /// A client that loads web pages.
    WebClient,
    /// A server of web pages.
    WebServer,
    /// The client of a channel.
    ChannelClient,
    /// The servers of a channel.
    ChannelServer,
    /// A participant of a conference.
    Participant,
    /// The reflector of a conference.
    Reflector,
}

/// An engine that is no end of a flow.
struct NoEnd;

impl FlowEnd for NoEnd {}

impl Node {
    /// The end of a flow that this engine is. Other engines have nothing of one.
    #[must_use]
    pub fn end(&self) -> &dyn FlowEnd {
        end_of!(self)
    }

    /// The direction of the link that this engine is.
    ///
    /// # Panics
    /// If it is another engine.
    pub fn direction(&mut self) -> &mut Direction {
        match self {
            Self::Direction(direction) => direction,
            _ => unreachable!("an engine of a list of directions"),
        }
    }

    /// [`Engine::input_and_next_wake`] of all engines but directions. It is not inlined, so that
    /// the hot path of directions keeps its values in registers and skips the `match` over the
    /// other engines.
    #[inline(never)]
    fn input_of_others(
        &mut self,
        cx: &mut Cx<'_>,
        port: Port,
        packet: Box<Packet>,
    ) -> Option<Instant> {
        each!(self, engine => input_not_inlined(&mut **engine, cx, port, packet))
    }

    /// [`Engine::wake_and_next_wake`] of all engines but directions.
    #[inline(never)]
    fn wake_of_others(&mut self, cx: &mut Cx<'_>) -> Option<Instant> {
        each!(self, engine => wake_not_inlined(&mut **engine, cx))
    }
}

/// Not inlined, so that the stack frame of one engine is not set up in the call of another.
#[inline(never)]
fn input_not_inlined<E: Engine>(
    engine: &mut E,
    cx: &mut Cx<'_>,
    port: Port,
    packet: Box<Packet>,
) -> Option<Instant> {
    engine.input_and_next_wake(cx, port, packet)
}

#[inline(never)]
fn wake_not_inlined<E: Engine>(engine: &mut E, cx: &mut Cx<'_>) -> Option<Instant> {
    engine.wake_and_next_wake(cx)
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

    fn input_and_next_wake(
        &mut self,
        cx: &mut Cx<'_>,
        port: Port,
        packet: Box<Packet>,
    ) -> Option<Instant> {
        match self {
            Self::Direction(direction) => direction.input_and_next_wake(cx, port, packet),
            other => other.input_of_others(cx, port, packet),
        }
    }

    fn wake_and_next_wake(&mut self, cx: &mut Cx<'_>) -> Option<Instant> {
        match self {
            Self::Direction(direction) => direction.wake_and_next_wake(cx),
            other => other.wake_of_others(cx),
        }
    }

    fn ledger(&self) -> Ledger {
        each!(self, engine => engine.ledger())
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        each!(self, engine => engine.statistics())
    }
}
