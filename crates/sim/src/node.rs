//! Every engine that a simulation contains: a closed list, so that the inner loop calls them without a
//! pointer in between. A new engine is one line here, and a gateway function one more in
//! [`Node::function`].

use bentpipe_core::aggregation::{Aggregator, AggregatorConfig};
use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::link::{Access, Direction, Processor, ProcessorConfig, TerminalPath};
use bentpipe_core::packet::{Class, FlowId, Origin, Packet, Port};
use bentpipe_core::time::{Duration, Instant};

use crate::plan::{Function, HUB};
use crate::workload::{
    BulkReceiver, BulkSender, Client, ConstantRate, DatagramSink, Participant, Reflector, Server,
};

/// The list, and the calls of each.
macro_rules! engines {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// An engine of a simulation.
        #[derive(Debug)]
        pub enum Node {
            $($(#[$doc])* $name(Box<$name>),)*
        }

        $(impl From<$name> for Node {
            fn from(engine: $name) -> Self {
                Self::$name(Box::new(engine))
            }
        })*

        macro_rules! each {
            ($node:expr, $engine:ident => $call:expr) => {
                match $node {
                    $(Node::$name($engine) => $call,)*
                }
            };
        }
    };
}

engines! {
    /// One direction of the link.
    Direction,
    /// The aggregator of a gateway.
    Aggregator,
    /// The processor of a gateway.
    Processor,
    /// What lies between a shared direction and one of its terminals.
    TerminalPath,
    /// The way between a gateway and a host.
    Access,
    /// The end of a transfer that opens and sends.
    BulkSender,
    /// The end of a transfer that receives.
    BulkReceiver,
    /// A source of datagrams.
    ConstantRate,
    /// A sink of datagrams.
    DatagramSink,
    /// The end of requests and responses that asks.
    Client,
    /// The end that answers.
    Server,
    /// A participant of a conference.
    Participant,
    /// What its participants send to.
    Reflector,
}

/// Where a gateway function stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The function's gateway, an index into the plan's.
    pub(crate) gateway: u32,
    /// The terminal's gateway that packets for each address, or from it, go by.
    pub(crate) terminals: &'a [u32],
    /// What travels between the hub's gateway and the first terminal's is of this flow, between it and
    /// the next one's of the next.
    pub(crate) first_tunnel: FlowId,
}

/// The sides of a gateway function: packets that come in at one leave at the other, unless they are
/// held or dropped.
pub const INNER: Port = Processor::LAN;
/// See [`INNER`].
pub const OUTER: Port = Processor::LINK;

impl Place<'_> {
    /// The flow of what travels between a gateway and its peer at the other end of the link, for each
    /// destination, and which end of it the gateway is.
    fn tunnels(&self) -> (Vec<FlowId>, Origin) {
        let of_terminal = |gateway: u32| FlowId(self.first_tunnel.0 + gateway - 1);
        if self.gateway != HUB {
            return (vec![of_terminal(self.gateway)], Origin::Receiver);
        }
        (self.terminals.iter().copied().map(of_terminal).collect(), Origin::Sender)
    }
}

impl Node {
    /// The engine of a gateway function of a checked plan.
    pub(crate) fn function(plan: &Function, at: &Place<'_>) -> Self {
        match plan {
            Function::Aggregator(plan) => {
                let (tunnels, origin) = at.tunnels();
                let classes = plan.classes.as_ref();
                Aggregator::new(AggregatorConfig {
                    frame_bytes_max: plan.frame_size_bytes,
                    packet_bytes_max: plan.packet_size_bytes,
                    hold_time: Duration::from_nanos(plan.hold_time_ns),
                    classes: classes.map(|all| all.iter().copied().map(Class).collect()),
                    tunnels: tunnels.into(),
                    origin,
                })
                .expect("a plan has flows")
                .into()
            }
            Function::Processor(plan) => Processor::new(ProcessorConfig {
                packets_per_second: plan.packets_per_second,
                per_byte: Duration::from_nanos(plan.per_byte_ns),
                buffer_packets: plan.buffer_packets,
            })
            .expect("checked with the plan")
            .into(),
        }
    }

    /// [`Engine::input_and_next_wake`] of what is no direction. Apart from it, the directions' code, where most
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

    /// [`Engine::wake_and_next_wake`], likewise.
    #[inline(never)]
    fn wake_of_others(&mut self, cx: &mut Cx<'_>) -> Option<Instant> {
        each!(self, engine => wake_apart(&mut **engine, cx))
    }
}

/// Nothing of one engine is put up where another is called.
#[inline(never)]
fn input_apart<E: Engine>(
    engine: &mut E,
    cx: &mut Cx<'_>,
    port: Port,
    packet: Box<Packet>,
) -> Option<Instant> {
    engine.input_and_next_wake(cx, port, packet)
}

#[inline(never)]
fn wake_apart<E: Engine>(engine: &mut E, cx: &mut Cx<'_>) -> Option<Instant> {
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
