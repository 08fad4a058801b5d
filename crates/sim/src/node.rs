//! The engines of a simulation: a closed list, so that the inner loop calls them by static
//! dispatch. A new engine adds a line here; a gateway function adds another one in
//! [`Node::function`].

use std::collections::BTreeSet;
use std::sync::Arc;

use bentpipe_core::aggregation::{Aggregator, AggregatorConfig};
use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::link::{Access, Direction, Processor, ProcessorConfig, TerminalPath};
use bentpipe_core::packet::{Address, Class, FlowId, Origin, Packet, PacketId, Port};
use bentpipe_core::pep::{LegConfig, Pep, PepConfig};
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::tunnel::{Tunnel, TunnelConfig, TunnelPeer, TunnelSettings};

use crate::build::address;
use crate::plan::{self, Function, HUB, Tcp};
use crate::workload::{
    BulkReceiver, BulkSender, ChannelClient, ChannelServer, Client, ConstantRate, DatagramSink,
    Participant, Reflector, Server, WebClient, WebServer,
};

/// Defines [`Node`] from the list of engines, and a `match` over it.
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

/// The context of a gateway function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayContext<'a> {
    /// The function's gateway: an index into the plan's gateways.
    pub(crate) gateway: u32,
    /// The gateway's name, for random streams.
    pub(crate) name: &'a str,
    /// The seed of the run.
    pub(crate) seed: u64,
    /// The terminal gateway that packets from and to each address pass.
    pub(crate) terminals: &'a [u32],
    /// The flow of tunnel packets between the hub and the first terminal; those of the other
    /// terminals follow in order.
    pub(crate) first_tunnel: FlowId,
    /// A host of the hub, and one of the terminal, of a flow that passes each terminal, the first of them first; of a
    /// terminal without flows any hosts.
    pub(crate) ends: &'a [[Address; 2]],
    /// The flows that a PEP cannot split.
    pub(crate) unsplittable: &'a Arc<BTreeSet<FlowId>>,
}

/// The port of a gateway function to the hosts. Packets that enter one of the two ports leave by
/// the other, unless they are held or dropped.
pub const INNER: Port = Processor::LAN;
/// The port of a gateway function to the link; see [`INNER`].
pub const OUTER: Port = Processor::LINK;

impl GatewayContext<'_> {
    /// The tunnel flow between the gateway and its peer, for each destination, and the gateway's
    /// end of it.
    fn tunnels(&self) -> (Vec<FlowId>, Origin) {
        let of_terminal = |gateway: u32| FlowId(self.first_tunnel.0 + gateway - 1);
        if self.gateway != HUB {
            return (vec![of_terminal(self.gateway)], Origin::Receiver);
        }
        (self.terminals.iter().copied().map(of_terminal).collect(), Origin::Sender)
    }
}

fn tunnel(settings: &TunnelSettings, at: &GatewayContext<'_>) -> Tunnel {
    let flow = |terminal: usize| FlowId(at.first_tunnel.0 + terminal as u32);
    let (peers, peer_of, origin) = if at.gateway == HUB {
        let of_terminal = |(terminal, ends): (usize, &[Address; 2])| TunnelPeer {
            flow: flow(terminal),
            address: ends[1],
        };
        let peers = at.ends.iter().enumerate().map(of_terminal).collect();
        (peers, at.terminals.iter().map(|gateway| gateway - 1).collect(), Origin::Sender)
    } else {
        let terminal = at.gateway as usize - 1;
        let hub = TunnelPeer { flow: flow(terminal), address: at.ends[terminal][0] };
        (vec![hub], Arc::default(), Origin::Receiver)
    };
    let (settings, first_serial) = (settings.clone(), PacketId::HOST_SERIALS);
    Tunnel::new(TunnelConfig { settings, peers, peer_of, origin, first_serial })
        .expect("a plan has a terminal")
}

/// Serial numbers of packets that no host and no other PEP on the path uses: the upper half, of which
/// that of the hub is the first.
fn first_serial(gateway: u32) -> u64 {
    PacketId::HOST_SERIALS + if gateway == HUB { 0 } else { Pep::SERIALS }
}

fn pep(plan: &plan::Pep, at: &GatewayContext<'_>) -> Pep {
    let leg =
        |tcp: &Tcp| LegConfig { tcp: tcp.config(), unsent_low_water: plan.notsent_lowat_bytes };
    Pep::new(PepConfig {
        lan: leg(&plan.lan_tcp),
        link: leg(&plan.link_tcp),
        buffer_bytes: plan.buffer_bytes,
        connections_max: usize::try_from(plan.connections).unwrap_or(usize::MAX),
        early_accept: plan.early_accept,
        unsplittable: Arc::clone(at.unsplittable),
        address,
        first_serial: first_serial(at.gateway),
        rng: Rng::stream(at.seed, &format!("{}.pep", at.name)),
    })
}

impl Node {
    /// The engine of a gateway function of a valid plan.
    pub(crate) fn function(plan: &Function, at: &GatewayContext<'_>) -> Self {
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
            Function::Pep(plan) => pep(plan, at).into(),
            Function::Tunnel(settings) => tunnel(settings, at).into(),
            Function::Processor(plan) => Processor::new(ProcessorConfig {
                packets_per_second: plan.packets_per_second,
                per_byte: Duration::from_nanos(plan.per_byte_ns),
                buffer_packets: plan.buffer_packets,
            })
            .expect("checked with the plan")
            .into(),
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
