//! Hops in a row whose hosts are outside: what a loop in real time runs, with packets from outside.
//!
//! ```text
//! world  -> hub's functions      -> forward -> terminal's functions -> next hop ... -> island
//! island -> terminal's functions -> return  -> hub's functions      -> hop before ... -> world
//! ```
//!
//! Distant hosts of the world are behind the first hop's hub, those of the island behind the last hop's
//! terminals, of which there may be several.

use std::ops::Range;

use bentpipe_core::graph::{Graph, OUTSIDE};
use bentpipe_core::link::Access;
use bentpipe_core::packet::{Address, FlowId, Port};
use bentpipe_core::trace::NodeId;

use super::{Layout, Next, Routes, Station, Wiring, places};
use crate::node::Node;
use crate::plan::{Function, HUB, Plan, PlanError};

/// A side of the link: where hosts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Side {
    /// Behind the hub.
    World,
    /// Behind a user terminal.
    Island,
}

impl Side {
    /// Both, the world first.
    pub const ALL: [Self; 2] = [Self::World, Self::Island];

    /// The name used in the command line, in columns and docs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::World => "world",
            Self::Island => "island",
        }
    }

    /// Where packets from here go.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::World => Self::Island,
            Self::Island => Self::World,
        }
    }
}

impl From<Side> for Address {
    /// That of the host right at the gateway: the hub's, or the first terminal's.
    fn from(side: Side) -> Self {
        Self(side as u32)
    }
}

/// A host outside the graph. Its address is its place in the list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// `world`, `island` (with several terminals `island-1` and so on), or its name in the plan.
    pub name: String,
    /// Where it is.
    pub side: Side,
    /// Its gateway, in the plan of the hop that it is next to.
    gateway: u32,
    /// The way to it, if it is at some distance.
    access: Option<u32>,
}

/// One or more hops in a row: a graph whose hosts are outside.
pub struct Chain {
    /// The engines. Packets go in by [`Graph::inject`] and come out by [`Graph::drain_egress`], for the
    /// host that is their destination.
    pub graph: Graph<Node>,
    /// What the engines are called, by their number: as [`Plan::place_names`], and with several hops
    /// `2.forward` and so on.
    pub names: Vec<String>,
    /// Of each hop, the directions in the plan's order: forward, then the terminals' returns.
    pub directions: Vec<Vec<NodeId>>,
    /// The hosts by address: that of the hub, those of the terminals, and the distant ones.
    pub hosts: Vec<Host>,
    /// How many classes of packets the queues and functions tell apart.
    pub classes: u8,
    /// Where a packet goes in, by the host that it is from and by its destination.
    entrances: Vec<Routes>,
}

impl Chain {
    /// The most hosts: each is a namespace of its own.
    pub const HOSTS_MAX: usize = 250;
    /// The most classes of packets.
    pub const CLASSES_MAX: u8 = 8;

    /// Builds the hops of checked plans, the first next to the world. What the plans say of traffic
    /// has no part in it. The first hop's streams of chance are those of a simulation with that seed.
    /// Frames between gateways are of the flows from `first_tunnel` on.
    ///
    /// # Errors
    /// If there is no plan, or there are hosts or terminals where another hop follows, or too many.
    pub fn new(plans: &[Plan], seed: u64, first_tunnel: FlowId) -> Result<Self, PlanError> {
        check(plans)?;
        let hosts = hosts(plans)?;
        let mut graph = Graph::default();
        let (mut names, mut layouts) = (Vec::new(), Vec::new());
        for (hop, plan) in plans.iter().enumerate() {
            let prefix = hop_prefix(hop + 1);
            names.extend(plan.place_names().iter().map(|name| format!("{prefix}{name}")));
            let is_last = hop + 1 == plans.len();
            let gateway = |host: &Host| host.gateway_at(is_last).max(1);
            let terminals: Vec<_> = hosts.iter().map(gateway).collect();
            let link = format!("{prefix}link");
            let mut add = |node| graph.add(node);
            layouts.push(places(plan, &link, seed, (&terminals, first_tunnel), &mut add));
        }
        let hops = Hops { plans, layouts: &layouts, hosts: &hosts };
        let mut entrances = vec![Routes::default(); hosts.len()];
        for hop in 0..plans.len() {
            hops.wire(hop, &mut graph, &mut entrances);
        }
        let directions = layouts.into_iter().map(|layout| layout.directions).collect();
        Ok(Self { graph, names, directions, hosts, classes: classes(plans)?, entrances })
    }

    /// Where a packet of a host goes in that is for another. `None` for what never leaves a host.
    #[must_use]
    pub fn entrance(&self, from: Address, to: Address) -> Option<(NodeId, Port)> {
        let entrance = *self.entrances.get(from.0 as usize)?.get(to.0 as usize)?;
        entrance.filter(|&socket| socket != OUTSIDE)
    }

    /// The directions of a hop that lead away from a side, by number.
    #[must_use]
    pub fn directions_from(&self, hop: usize, side: Side) -> Range<usize> {
        match side {
            Side::World => 0..1,
            Side::Island => 1..self.directions[hop].len(),
        }
    }
}

impl Host {
    /// The gateway of a hop that leads to it: of a hop before the last, the one terminal's.
    fn gateway_at(&self, is_last: bool) -> u32 {
        match self.side {
            Side::World => HUB,
            Side::Island if is_last => self.gateway,
            Side::Island => 1,
        }
    }
}

struct Hops<'a> {
    plans: &'a [Plan],
    layouts: &'a [Layout],
    hosts: &'a [Host],
}

impl Hops<'_> {
    /// Wires one hop, to its neighbours too, and says where packets of its hosts go in.
    fn wire(&self, hop: usize, graph: &mut Graph<Node>, entrances: &mut [Routes]) {
        let is_last = hop + 1 == self.plans.len();
        let stations: Vec<_> = self.hosts.iter().map(|host| self.station(hop, host)).collect();
        let (plan, layout) = (&self.plans[hop], &self.layouts[hop]);
        let mut wiring = Wiring { graph, plan, layout, stations };
        wiring.connect();
        wiring.connect_accesses(|wiring, gateway| Next::ByDestination(local(wiring, gateway)));
        let is_here = |host: &Host| if host.side == Side::World { hop == 0 } else { is_last };
        for (host, entrance) in self.hosts.iter().zip(entrances).filter(|(host, _)| is_here(host)) {
            *entrance = match host.access {
                Some(access) => {
                    let far = Some((layout.accesses[access as usize], Access::HOST));
                    vec![far; self.hosts.len()].into()
                }
                None => local(&wiring, host.gateway),
            };
        }
    }

    /// A host as a hop knows it: what is beyond the next hop is where that one begins.
    fn station(&self, hop: usize, host: &Host) -> Station {
        let is_last = hop + 1 == self.plans.len();
        let gateway = host.gateway_at(is_last);
        let neighbour = match host.side {
            Side::World => hop.checked_sub(1).map(|before| (before, 1)),
            Side::Island => (!is_last).then_some((hop + 1, HUB)),
        };
        let beyond = |(hop, gateway): (usize, u32)| self.layouts[hop].entry_for_hosts(gateway);
        let host_here = if neighbour.is_none() { host.access } else { None };
        Station { socket: neighbour.map_or(OUTSIDE, beyond), gateway, host: host_here }
    }
}

/// Where packets go that a gateway has from its hosts: to another of them, or over the link.
fn local(wiring: &Wiring<'_, Node>, gateway: u32) -> Routes {
    let away = wiring.layout.entry_for_hosts(gateway);
    let next = |station: &Station| {
        if station.gateway == gateway { wiring.last_hop(station) } else { away }
    };
    wiring.stations.iter().map(next).map(Some).collect()
}

/// All hosts, those right at gateways first.
fn hosts(plans: &[Plan]) -> Result<Vec<Host>, PlanError> {
    let (Some(first), Some(last)) = (plans.first(), plans.last()) else {
        return Err(problem("link", "there must be one at least"));
    };
    let near = |name: String, side, gateway| Host { name, side, gateway, access: None };
    let mut hosts = vec![near(Side::World.name().to_owned(), Side::World, HUB)];
    hosts.extend((1..=last.terminals() as u32).map(|gateway| {
        let island = Side::Island.name();
        let name =
            if last.terminals() == 1 { island.to_owned() } else { format!("{island}-{gateway}") };
        near(name, Side::Island, gateway)
    }));
    for (plan, side) in [(first, Side::World), (last, Side::Island)] {
        let of_side = |gateway: u32| (gateway == HUB) == (side == Side::World);
        let distant = (0..).zip(&plan.hosts).filter(|(_, host)| of_side(host.gateway));
        hosts.extend(distant.map(|(number, host)| Host {
            access: Some(number),
            ..near(host.name.clone(), side, host.gateway)
        }));
    }
    if hosts.len() > Chain::HOSTS_MAX {
        let problem_text = format!(
            "make {} hosts with those right at gateways; at most {} run in real time",
            hosts.len(),
            Chain::HOSTS_MAX
        );
        return Err(problem("hosts", &problem_text));
    }
    for (number, host) in hosts.iter().enumerate() {
        let is_known = |other: &Host| other.name == host.name || host.name == Side::Island.name();
        if host.access.is_some() && hosts[..number].iter().any(is_known) {
            let text = format!("\"{}\" is the name of another host in real time", host.name);
            return Err(problem("hosts", &text));
        }
    }
    Ok(hosts)
}

/// How many classes there are: the precedence of a real packet has three bits, so that at most eight can
/// be told apart.
fn classes(plans: &[Plan]) -> Result<u8, PlanError> {
    let directions = plans.iter().flat_map(|plan| &plan.directions);
    let of_queues = directions.filter_map(|direction| direction.queue.classes());
    let gateways = plans.iter().flat_map(|plan| &plan.gateways);
    let of_functions =
        gateways.flat_map(|gateway| &gateway.functions).filter_map(Function::classes);
    let classes = of_queues.chain(of_functions).max().unwrap_or(1);
    if classes > Chain::CLASSES_MAX {
        let text = "tell apart more classes than the 8 precedences that real packets have";
        return Err(problem("link", text));
    }
    Ok(classes)
}

/// What the names of a hop's engines begin with; hops count from 1.
pub(crate) fn hop_prefix(number: usize) -> String {
    if number == 1 { String::new() } else { format!("{number}.") }
}

fn check(plans: &[Plan]) -> Result<(), PlanError> {
    for (hop, plan) in plans.iter().enumerate() {
        let (is_first, is_last) = (hop == 0, hop + 1 == plans.len());
        if plan.terminals() != 1 && !is_last {
            return Err(problem("terminals", "must be 1 where another link follows"));
        }
        let is_between = |gateway: u32| if gateway == HUB { !is_first } else { !is_last };
        if plan.hosts.iter().any(|host| is_between(host.gateway)) {
            return Err(problem("hosts", "have no place between two links"));
        }
    }
    Ok(())
}

fn problem(field: &str, problem: &str) -> PlanError {
    PlanError { field: field.to_owned(), problem: problem.to_owned() }
}
