//! The engines of gateway functions.

use std::collections::BTreeSet;
use std::sync::Arc;

use bentpipe_core::aggregation::{Aggregator, AggregatorConfig};
use bentpipe_core::link::{Processor, ProcessorConfig};
use bentpipe_core::packet::{Address, Class, FlowId, Origin, PacketId, Port};
use bentpipe_core::pep::{LegConfig, Pep, PepConfig};
use bentpipe_core::rng::Rng;
use bentpipe_core::time::Duration;
use bentpipe_core::tunnel::{Tunnel, TunnelConfig, TunnelPeer, TunnelSettings};

use super::address;
use crate::node::Node;
use crate::plan::{self, Function, HUB, Tcp};

/// The context of a gateway function.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatewayContext<'a> {
    /// The function's gateway: an index into the plan's gateways.
    pub(super) gateway: u32,
    /// The gateway's name, for random streams.
    pub(super) name: &'a str,
    /// The seed of the run.
    pub(super) seed: u64,
    /// The terminal gateway that packets from and to each address pass.
    pub(super) terminals: &'a [u32],
    /// The flow of tunnel packets between the hub and the first terminal; those of the other
    /// terminals follow in order.
    pub(super) first_tunnel: FlowId,
    /// A host of the hub, and one of the terminal, of a flow that passes each terminal, the first of them first; of a
    /// terminal without flows any hosts.
    pub(super) ends: &'a [[Address; 2]],
    /// The flows that a PEP cannot split.
    pub(super) unsplittable: &'a Arc<BTreeSet<FlowId>>,
}

/// The port of a gateway function to the hosts. Packets that enter one of the two ports leave by
/// the other, unless they are held or dropped.
pub(super) const INNER: Port = Processor::LAN;
/// The port of a gateway function to the link; see [`INNER`].
pub(super) const OUTER: Port = Processor::LINK;

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

/// The engine of a gateway function of a valid plan.
pub(super) fn function(plan: &Function, at: &GatewayContext<'_>) -> Node {
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
