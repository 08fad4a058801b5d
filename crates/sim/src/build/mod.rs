//! Plan to graph. Nodes and wires are data; there is one rule for each kind of wire:
//!
//! ```text
//! flow end - [way to its host] - gateway: function ... function - direction - [branch] - next gateway
//! ```
//!
//! What leaves a gateway for its hosts, and what leaves a direction that several gateways share, is
//! routed by the destination of each packet.

mod chain;
mod hosts;
mod link;

use std::sync::Arc;

use bentpipe_core::engine::Engine;
use bentpipe_core::graph::Graph;
use bentpipe_core::link::{Access, Direction, TerminalPath};
use bentpipe_core::packet::{FlowId, Port};
use bentpipe_core::time::Instant;
use bentpipe_core::trace::NodeId;

use crate::node::{INNER, Node, OUTER, Place};
use crate::plan::{self, HUB, Plan};
pub(crate) use chain::hop_prefix;
pub use chain::{Chain, Host, InterfaceId, Network, NextHop, Side};
use hosts::Hosts;

/// Where the engines of a built plan are.
#[derive(Debug)]
pub struct Layout {
    /// The directions, in the plan's order.
    pub directions: Vec<NodeId>,
    /// The functions of each gateway, in the plan's order.
    pub functions: Vec<Vec<NodeId>>,
    /// The branches that differ from their directions: the direction's number, the gateway's, and the
    /// engine.
    pub branches: Vec<(u32, u32, NodeId)>,
    /// The ways to hosts at some distance, in the plan's order.
    pub accesses: Vec<NodeId>,
    /// Both ends of each flow, in the plan's order.
    pub flows: Vec<Ends>,
}

impl Layout {
    /// Where what hosts send goes into their gateway.
    fn entry_for_hosts(&self, gateway: u32) -> Socket {
        let first = self.functions[gateway as usize].first();
        // Each gateway has one direction that leads away, with its own number.
        let away = (self.directions[gateway as usize], Direction::IN);
        first.map_or(away, |&function| (function, INNER))
    }
}

/// The two ends of a flow, and when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The terminal that the flow goes by.
    pub terminal: u32,
    /// The end from which the flow's data goes.
    pub sender: NodeId,
    /// The end to which it goes.
    pub receiver: NodeId,
    /// When the flow starts.
    pub start: Instant,
}

/// An engine and one of its ports.
type Socket = (NodeId, Port);

/// An end of a flow, or a host whose packets come from outside: its address is its place in the list of
/// them.
#[derive(Clone, Copy, Debug)]
struct Station {
    socket: Socket,
    gateway: u32,
    /// The host that it runs on, if that is at some distance.
    host: Option<u32>,
}

/// Flow ends have one port; engines agree on its number.
const NET: Port = Port(0);

pub(crate) fn build(plan: &Plan, seed: u64) -> (Graph<Node>, Layout) {
    build_with(plan, seed, |node| node)
}

/// Builds a checked plan with every engine wrapped, so that a check can listen to it.
pub fn build_with<E: Engine>(
    plan: &Plan,
    seed: u64,
    mut wrap: impl FnMut(Node) -> E,
) -> (Graph<E>, Layout) {
    let mut graph = Graph::default();
    let mut add = |node: Node| graph.add(wrap(node));
    // A flow's ends have two addresses, one after the other.
    let terminals: Vec<_> = plan.flows.iter().flat_map(|flow| [1 + flow.terminal; 2]).collect();
    let first_tunnel = FlowId(plan.flows.len() as u32);
    let mut layout = places(plan, "link", seed, (&terminals, first_tunnel), &mut add);
    let mut hosts = Hosts::new(plan, seed);
    let flows = plan.flows.iter().zip(0..);
    layout.flows = flows.map(|(flow, id)| hosts.add(flow, FlowId(id), &mut add)).collect();
    let stations = hosts.into_stations();
    let mut wiring = Wiring { graph: &mut graph, plan, layout: &layout, stations };
    wiring.connect(layout.entry_for_hosts(HUB));
    wiring.connect_accesses(|wiring, gateway| Next::One(wiring.layout.entry_for_hosts(gateway)));
    wiring.connect_stations();
    (graph, layout)
}

/// Adds the engines between hosts, in the order of [`Plan::place_names`]: the first one's are numbered as
/// their places. `link` names the hop to the random streams; see [`Place`] for the tunnels.
fn places(
    plan: &Plan,
    link: &str,
    seed: u64,
    (terminals, first_tunnel): (&[u32], FlowId),
    add: &mut impl FnMut(Node) -> NodeId,
) -> Layout {
    let directions = link::directions(plan, link, seed).map(|direction| add(direction.into()));
    let directions = directions.collect();
    let functions = (0..).zip(&plan.gateways).map(|(gateway, of_plan)| {
        let place = Place { gateway, terminals, first_tunnel };
        of_plan.functions.iter().map(|function| add(Node::function(function, &place))).collect()
    });
    let functions = functions.collect();
    let branches = link::branches(plan, link, seed)
        .map(|(direction, gateway, branch)| (direction, gateway, add(branch.into())))
        .collect();
    let accesses = plan.hosts.iter().map(|host| add(link::access(host, seed).into())).collect();
    Layout { directions, functions, branches, accesses, flows: Vec::new() }
}

/// Where packets go, by destination.
type Routes = Arc<[Option<Socket>]>;
/// Where packets go that leave a gateway for its hosts: the hub's, and any terminal's.
type Nearby = [Routes; 2];

fn of(nearby: &Nearby, gateway: u32) -> Routes {
    Arc::clone(&nearby[usize::from(gateway != HUB)])
}

/// What the wires are made from.
struct Wiring<'a, E> {
    graph: &'a mut Graph<E>,
    plan: &'a Plan,
    layout: &'a Layout,
    stations: Vec<Station>,
}

impl<E: Engine> Wiring<'_, E> {
    /// Wires the functions and the directions. What comes over the link to the hub for another terminal
    /// goes to `turn`.
    fn connect(&mut self, turn: Socket) {
        let nearby = |station| Some(self.last_hop(station));
        let nearby: Routes = self.stations.iter().map(nearby).collect();
        let at_hub = |station: &Station| match station.gateway {
            HUB => self.last_hop(station),
            _ => turn,
        };
        let at_hub: Routes = self.stations.iter().map(at_hub).map(Some).collect();
        let nearby = [at_hub, nearby];
        for gateway in 0..self.plan.gateways.len() as u32 {
            self.connect_functions(gateway, &nearby);
        }
        for (number, direction) in (0..).zip(&self.plan.directions) {
            self.connect_direction(number, direction, &nearby);
        }
    }

    /// Where a packet goes from its destination's gateway.
    fn last_hop(&self, station: &Station) -> Socket {
        let far = |host: u32| (self.layout.accesses[host as usize], Access::NET);
        station.host.map_or(station.socket, far)
    }

    fn connect_functions(&mut self, gateway: u32, nearby: &Nearby) {
        let functions = &self.layout.functions[gateway as usize];
        let (Some(&first), Some(&last)) = (functions.first(), functions.last()) else { return };
        self.graph.connect_by_destination((first, INNER), of(nearby, gateway));
        for pair in functions.windows(2) {
            self.graph.connect((pair[0], OUTER), (pair[1], INNER));
            self.graph.connect((pair[1], INNER), (pair[0], OUTER));
        }
        let away = self.layout.directions[gateway as usize];
        self.graph.connect((last, OUTER), (away, Direction::IN));
    }

    /// Where what comes over the link for a station goes into its gateway.
    fn entry_for_link(&self, station: &Station) -> Socket {
        let last = self.layout.functions[station.gateway as usize].last();
        last.map_or_else(|| self.last_hop(station), |&function| (function, OUTER))
    }

    fn connect_direction(&mut self, number: u32, direction: &plan::Direction, nearby: &Nearby) {
        let out = (self.layout.directions[number as usize], Direction::OUT);
        let is_branched = self.layout.branches.iter().any(|branch| branch.0 == number);
        if let ([only], false) = (&direction.to[..], is_branched) {
            match self.layout.functions[only.gateway as usize].last() {
                Some(&function) => self.graph.connect(out, (function, OUTER)),
                None => self.graph.connect_by_destination(out, of(nearby, only.gateway)),
            }
            return;
        }
        let mut branch_of = vec![None; self.plan.gateways.len()];
        for &(_, gateway, node) in self.layout.branches.iter().filter(|of| of.0 == number) {
            branch_of[gateway as usize] = Some(node);
            match self.layout.functions[gateway as usize].last() {
                Some(&function) => self.graph.connect((node, TerminalPath::OUT), (function, OUTER)),
                None => {
                    let nearby = of(nearby, gateway);
                    self.graph.connect_by_destination((node, TerminalPath::OUT), nearby);
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

    /// Wires the ways to distant hosts: `local` is where what such a host sends goes from its gateway.
    fn connect_accesses(&mut self, mut local: impl FnMut(&Self, u32) -> Next) {
        let here: Routes = self.stations.iter().map(|station| Some(station.socket)).collect();
        for (host, &access) in self.plan.hosts.iter().zip(&self.layout.accesses) {
            match local(self, host.gateway) {
                Next::One(socket) => self.graph.connect((access, Access::NET), socket),
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
            self.graph.connect(station.socket, next);
        }
    }
}

/// Where packets go that come to a gateway from a distant host of its own.
enum Next {
    /// All to one place.
    One(Socket),
    /// Also to other hosts of the same gateway.
    ByDestination(Routes),
}
