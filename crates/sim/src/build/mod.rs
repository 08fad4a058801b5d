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
use bentpipe_core::link::{Access, Branch, Direction};
use bentpipe_core::packet::{FlowId, Port};
use bentpipe_core::time::Instant;
use bentpipe_core::trace::NodeId;

use crate::node::{INNER, Node, OUTER, Place};
use crate::plan::{self, Plan};
pub(crate) use chain::hop_prefix;
pub use chain::{Chain, Side};
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
    /// Both ends of each flow, in the plan's order.
    pub flows: Vec<Ends>,
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

/// The end of a flow: its address is its place in the list of them.
#[derive(Clone, Copy, Debug)]
struct Station {
    node: NodeId,
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
    // In the order of `Plan::place_names`: the numbers of these engines are those of their places.
    let directions = link::directions(plan, "link", seed).map(|direction| add(direction.into()));
    let directions = directions.collect();
    let functions = (0..).zip(&plan.gateways).map(|(number, gateway)| {
        let place = Place { plan, gateway: number };
        gateway.functions.iter().map(|function| add(Node::function(function, &place))).collect()
    });
    let functions = functions.collect();
    let branches = link::branches(plan, "link", seed)
        .map(|(direction, gateway, branch)| (direction, gateway, add(branch.into())))
        .collect();
    let accesses: Vec<_> =
        plan.hosts.iter().map(|host| add(link::access(host, seed).into())).collect();
    let mut hosts = Hosts::new(plan, seed);
    let flows = plan.flows.iter().zip(0..);
    let flows = flows.map(|(flow, id)| hosts.add(flow, FlowId(id), &mut add)).collect();
    let stations = hosts.into_stations();
    let layout = Layout { directions, functions, branches, flows };
    Wiring { graph: &mut graph, plan, layout: &layout, accesses, stations }.connect();
    (graph, layout)
}

/// Where packets go, by destination.
type Routes = Arc<[Option<Socket>]>;

/// What the wires are made from.
struct Wiring<'a, E> {
    graph: &'a mut Graph<E>,
    plan: &'a Plan,
    layout: &'a Layout,
    accesses: Vec<NodeId>,
    stations: Vec<Station>,
}

impl<E: Engine> Wiring<'_, E> {
    fn connect(&mut self) {
        let nearby: Routes =
            self.stations.iter().map(|station| Some(self.last_hop(station))).collect();
        for gateway in 0..self.plan.gateways.len() as u32 {
            self.connect_functions(gateway, &nearby);
        }
        for (number, direction) in (0..).zip(&self.plan.directions) {
            self.connect_direction(number, direction, &nearby);
        }
        self.connect_hosts();
    }

    /// Where a packet goes from its destination's gateway.
    fn last_hop(&self, station: &Station) -> Socket {
        let far = |host: u32| (self.accesses[host as usize], Access::NET);
        station.host.map_or((station.node, NET), far)
    }

    /// Where what hosts send goes into their gateway.
    fn entry_for_hosts(&self, gateway: u32) -> Socket {
        let first = self.layout.functions[gateway as usize].first();
        // Each gateway has one direction that leads away, with its own number.
        let away = (self.layout.directions[gateway as usize], Direction::IN);
        first.map_or(away, |&function| (function, INNER))
    }

    fn connect_functions(&mut self, gateway: u32, nearby: &Routes) {
        let functions = &self.layout.functions[gateway as usize];
        let (Some(&first), Some(&last)) = (functions.first(), functions.last()) else { return };
        self.graph.connect_by_destination((first, INNER), Arc::clone(nearby));
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

    fn connect_direction(&mut self, number: u32, direction: &plan::Direction, nearby: &Routes) {
        let out = (self.layout.directions[number as usize], Direction::OUT);
        let is_branched = self.layout.branches.iter().any(|branch| branch.0 == number);
        if let ([only], false) = (&direction.to[..], is_branched) {
            match self.layout.functions[only.gateway as usize].last() {
                Some(&function) => self.graph.connect(out, (function, OUTER)),
                None => self.graph.connect_by_destination(out, Arc::clone(nearby)),
            }
            return;
        }
        let mut branch_of = vec![None; self.plan.gateways.len()];
        for &(_, gateway, node) in self.layout.branches.iter().filter(|of| of.0 == number) {
            branch_of[gateway as usize] = Some(node);
            match self.layout.functions[gateway as usize].last() {
                Some(&function) => self.graph.connect((node, Branch::OUT), (function, OUTER)),
                None => {
                    self.graph.connect_by_destination((node, Branch::OUT), Arc::clone(nearby));
                }
            }
        }
        let mut reached = vec![false; self.plan.gateways.len()];
        direction.to.iter().for_each(|branch| reached[branch.gateway as usize] = true);
        let next = |station: &Station| {
            let branch = branch_of[station.gateway as usize].map(|node| (node, Branch::IN));
            let next = branch.unwrap_or_else(|| self.entry_for_link(station));
            reached[station.gateway as usize].then_some(next)
        };
        let routes: Routes = self.stations.iter().map(next).collect();
        self.graph.connect_by_destination(out, routes);
    }

    fn connect_hosts(&mut self) {
        let here = self.stations.iter().map(|station| Some((station.node, NET)));
        let here: Routes = here.collect();
        for (host, &access) in self.plan.hosts.iter().zip(&self.accesses) {
            self.graph.connect((access, Access::NET), self.entry_for_hosts(host.gateway));
            self.graph.connect_by_destination((access, Access::HOST), Arc::clone(&here));
        }
        for station in &self.stations {
            let far = |host: u32| (self.accesses[host as usize], Access::HOST);
            let next = station.host.map_or_else(|| self.entry_for_hosts(station.gateway), far);
            self.graph.connect((station.node, NET), next);
        }
    }
}
