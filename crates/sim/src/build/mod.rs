//! Builds the graph of a plan. Each kind of wire has one rule:
//!
//! ```text
//! flow end - [access line] - gateway: function ... function - direction - [terminal path] - next gateway
//! ```
//!
//! Packets from a gateway to its hosts, and from a direction that several gateways share, are
//! routed by destination.

mod chain;
mod functions;
mod hosts;
mod link;

use std::collections::BTreeSet;
use std::sync::Arc;

use bentpipe_core::engine::Engine;
use bentpipe_core::graph::Graph;
use bentpipe_core::link::{Access, Direction, TerminalPath};
use bentpipe_core::packet::{Address, FlowId, Origin, Port};
use bentpipe_core::time::Instant;
use bentpipe_core::trace::NodeId;

use crate::node::Node;
use crate::plan::{self, HUB, Heading, Plan};
pub(crate) use chain::hop_prefix;
pub use chain::{Chain, Host, InterfaceId, Network, NextHop, Side, without_programs};
use functions::{GatewayContext, INNER, OUTER, function};
use hosts::Hosts;
pub(crate) use hosts::address;
pub use link::new_queue;

/// The engines of a built plan.
#[derive(Debug)]
pub struct Layout {
    /// The directions, in the plan's order.
    pub directions: Vec<NodeId>,
    /// The functions of each gateway, in the plan's order.
    pub functions: Vec<Vec<NodeId>>,
    /// The branches with an engine: the number of the direction, that of the gateway, and the
    /// engine.
    pub branches: Vec<(u32, u32, NodeId)>,
    /// The access lines of distant hosts, in the plan's order.
    pub accesses: Vec<NodeId>,
    /// Both ends of each flow, in the plan's order.
    pub flows: Vec<Ends>,
}

impl Layout {
    /// The port by which packets from hosts enter their gateway.
    fn entry_for_hosts(&self, gateway: u32) -> EnginePort {
        let first = self.functions[gateway as usize].first();
        // Each gateway has one outgoing direction, with the gateway's number.
        let away = (self.directions[gateway as usize], Direction::IN);
        first.map_or(away, |&function| (function, INNER))
    }
}

/// The two ends of a flow, and when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The terminal that the flow passes.
    pub terminal: u32,
    /// The end that sends the flow's data.
    pub sender: NodeId,
    /// The end that receives it.
    pub receiver: NodeId,
    /// The direction of the link that carries the data, in the plan's order.
    pub direction: u32,
    /// When the flow starts.
    pub start: Instant,
}

/// An engine and one of its ports.
type EnginePort = (NodeId, Port);

/// An end of a flow, or a host outside the graph. Its address is its index in the list of stations.
#[derive(Clone, Copy, Debug)]
struct Station {
    port: EnginePort,
    gateway: u32,
    /// Its host, if that is distant.
    host: Option<u32>,
    /// The host that the packets to this address come from, if that depends on the address: the
    /// client of a channel has an address for each server.
    from_host: Option<u32>,
}

/// The only port of a flow end.
const NET: Port = Port(0);

pub(crate) fn build(plan: &Plan, seed: u64) -> (Graph<Node>, Layout) {
    build_with(plan, seed, |node| node)
}

/// Builds a valid plan with every engine wrapped, for tests that record calls.
pub fn build_with<E: Engine>(
    plan: &Plan,
    seed: u64,
    mut wrap: impl FnMut(Node) -> E,
) -> (Graph<E>, Layout) {
    let mut graph = Graph::default();
    let mut add = |node: Node| graph.add(wrap(node));
    // The two ends of a flow have consecutive addresses.
    let terminals = plan.flows.iter().flat_map(|flow| [1 + flow.terminal; 2]);
    let terminals: Vec<_> = terminals.chain(plan.channel_terminals()).collect();
    let first_tunnel = FlowId(plan.flows.len() as u32);
    let mut layout = add_network(plan, "link", seed, (&terminals, first_tunnel), &mut add);
    let mut hosts = Hosts::new(plan, seed);
    let flows = plan.flows.iter().zip(0..);
    layout.flows = flows.map(|(flow, id)| hosts.add(flow, FlowId(id), &mut add)).collect();
    let (stations, channel_servers) = hosts.into_stations();
    let mut wiring = Wiring { graph: &mut graph, plan, layout: &layout, stations };
    wiring.connect(layout.entry_for_hosts(HUB));
    wiring.connect_accesses(|wiring, gateway| Next::One(wiring.layout.entry_for_hosts(gateway)));
    wiring.connect_stations();
    wiring.connect_channel_servers(&channel_servers);
    (graph, layout)
}

/// Adds the engines between hosts, in the order of [`Plan::place_names`]. In the first hop, engines
/// have the numbers of their places. `link` is the prefix of the random streams' names. See
/// [`GatewayContext`] for `terminals` and `first_tunnel`.
fn add_network(
    plan: &Plan,
    link: &str,
    seed: u64,
    (terminals, first_tunnel): (&[u32], FlowId),
    add: &mut impl FnMut(Node) -> NodeId,
) -> Layout {
    let directions = link::directions(plan, link, seed).map(|direction| add(direction.into()));
    let directions = directions.collect();
    let flows = plan.flows.iter().zip(0..);
    let unsplittable = flows.filter(|(flow, _)| !flow.splittable).map(|(_, id)| FlowId(id));
    let unsplittable = &Arc::new(unsplittable.collect::<BTreeSet<_>>());
    let ends = ends_of_terminals(plan);
    let functions = (0..).zip(&plan.gateways).map(|(gateway, of_plan)| {
        let name = &of_plan.name;
        let ends = &ends;
        let place =
            GatewayContext { gateway, name, seed, terminals, first_tunnel, ends, unsplittable };
        of_plan.functions.iter().map(|plan| add(function(plan, &place))).collect()
    });
    let functions = functions.collect();
    let branches = link::branches(plan, link, seed)
        .map(|(direction, gateway, branch)| (direction, gateway, add(branch.into())))
        .collect();
    let accesses = plan.hosts.iter().map(|host| add(link::access(host, seed).into())).collect();
    Layout { directions, functions, branches, accesses, flows: Vec::new() }
}

/// See [`GatewayContext::ends`].
fn ends_of_terminals(plan: &Plan) -> Vec<[Address; 2]> {
    let mut ends = vec![[Address(0), Address(1)]; plan.terminals()];
    for (id, flow) in plan.flows.iter().enumerate().rev() {
        let id = id as u32;
        let [sender, receiver] =
            [Origin::Sender, Origin::Receiver].map(|end| address(FlowId(id), end));
        ends[flow.terminal as usize] = match flow.direction {
            Heading::Forward => [sender, receiver],
            Heading::Return => [receiver, sender],
        };
    }
    ends
}

/// The next port, by destination.
type Routes = Arc<[Option<EnginePort>]>;
/// The routes from a gateway to its hosts: those of the hub, and those of any terminal.
type LocalRoutes = [Routes; 2];

fn of(local: &LocalRoutes, gateway: u32) -> Routes {
    Arc::clone(&local[usize::from(gateway != HUB)])
}

/// Connects the engines of a plan.
struct Wiring<'a, E> {
    graph: &'a mut Graph<E>,
    plan: &'a Plan,
    layout: &'a Layout,
    stations: Vec<Station>,
}

impl<E: Engine> Wiring<'_, E> {
    /// Connects functions and directions. Packets from one terminal to another are forwarded by the
    /// hub, through the port `hairpin`.
    fn connect(&mut self, hairpin: EnginePort) {
        let local = |station| Some(self.last_hop(station));
        let local: Routes = self.stations.iter().map(local).collect();
        let at_hub = |station: &Station| match station.gateway {
            HUB => self.last_hop(station),
            _ => hairpin,
        };
        let at_hub: Routes = self.stations.iter().map(at_hub).map(Some).collect();
        let local = [at_hub, local];
        for gateway in 0..self.plan.gateways.len() as u32 {
            self.connect_functions(gateway, &local);
        }
        for (number, direction) in (0..).zip(&self.plan.directions) {
            self.connect_direction(number, direction, &local);
        }
    }

    /// The port after the destination's gateway.
    fn last_hop(&self, station: &Station) -> EnginePort {
        let far = |host: u32| (self.layout.accesses[host as usize], Access::NET);
        station.host.map_or(station.port, far)
    }

    fn connect_functions(&mut self, gateway: u32, local: &LocalRoutes) {
        let functions = &self.layout.functions[gateway as usize];
        let (Some(&first), Some(&last)) = (functions.first(), functions.last()) else { return };
        self.graph.connect_by_destination((first, INNER), of(local, gateway));
        for pair in functions.windows(2) {
            self.graph.connect((pair[0], OUTER), (pair[1], INNER));
            self.graph.connect((pair[1], INNER), (pair[0], OUTER));
        }
        let away = self.layout.directions[gateway as usize];
        self.graph.connect((last, OUTER), (away, Direction::IN));
    }

    /// The port by which packets from the link enter the station's gateway.
    fn entry_for_link(&self, station: &Station) -> EnginePort {
        let last = self.layout.functions[station.gateway as usize].last();
        last.map_or_else(|| self.last_hop(station), |&function| (function, OUTER))
    }

    fn connect_direction(&mut self, number: u32, direction: &plan::Direction, local: &LocalRoutes) {
        let out = (self.layout.directions[number as usize], Direction::OUT);
        let is_branched = self.layout.branches.iter().any(|branch| branch.0 == number);
        if let ([only], false) = (&direction.to[..], is_branched) {
            match self.layout.functions[only.gateway as usize].last() {
                Some(&function) => self.graph.connect(out, (function, OUTER)),
                None => self.graph.connect_by_destination(out, of(local, only.gateway)),
            }
            return;
        }
        let mut branch_of = vec![None; self.plan.gateways.len()];
        for &(_, gateway, node) in self.layout.branches.iter().filter(|of| of.0 == number) {
            branch_of[gateway as usize] = Some(node);
            match self.layout.functions[gateway as usize].last() {
                Some(&function) => self.graph.connect((node, TerminalPath::OUT), (function, OUTER)),
                None => {
                    let local = of(local, gateway);
                    self.graph.connect_by_destination((node, TerminalPath::OUT), local);
                }
            }
        }
        let mut reached = vec![false; self.plan.gateways.len()];
        direction.to.iter().for_each(|branch| reached[branch.gateway as usize] = true);
        let next = |station: &Station| {
            let branch = branch_of[station.gateway as usize].map(|node| (node, TerminalPath::IN));
            let next = branch.unwrap_or_else(|| self.entry_for_link(station));
            reached[station.gateway as usize].then_some(next)
        };
        let routes: Routes = self.stations.iter().map(next).collect();
        self.graph.connect_by_destination(out, routes);
    }

    /// Connects the access lines. `local` gives the next hop, at a gateway, of packets from its
    /// distant hosts.
    fn connect_accesses(&mut self, mut local: impl FnMut(&Self, u32) -> Next) {
        let here: Routes = self.stations.iter().map(|station| Some(station.port)).collect();
        for (host, &access) in self.plan.hosts.iter().zip(&self.layout.accesses) {
            match local(self, host.gateway) {
                Next::One(port) => self.graph.connect((access, Access::NET), port),
                Next::ByDestination(routes) => {
                    self.graph.connect_by_destination((access, Access::NET), routes);
                }
            }
            self.graph.connect_by_destination((access, Access::HOST), Arc::clone(&here));
        }
    }

    fn connect_stations(&mut self) {
        for station in &self.stations {
            let far = |host: u32| (self.layout.accesses[host as usize], Access::HOST);
            let next =
                station.host.map_or_else(|| self.layout.entry_for_hosts(station.gateway), far);
            self.graph.connect(station.port, next);
        }
    }

    /// Connects the servers of channels: packets leave by the access line of the host that the
    /// client's address belongs to.
    fn connect_channel_servers(&mut self, servers: &[NodeId]) {
        let at_hub = self.layout.entry_for_hosts(HUB);
        let next = |station: &Station| {
            let line = |host: u32| (self.layout.accesses[host as usize], Access::HOST);
            Some(station.from_host.map_or(at_hub, line))
        };
        let routes: Routes = self.stations.iter().map(next).collect();
        for &server in servers {
            self.graph.connect_by_destination((server, NET), Arc::clone(&routes));
        }
    }
}

/// The next hop, at a gateway, of packets from its distant hosts.
enum Next {
    /// The same for all packets.
    One(EnginePort),
    /// By destination: hosts of the same gateway are reached directly.
    ByDestination(Routes),
}
