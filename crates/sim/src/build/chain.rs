//! Hops in series whose hosts are outside: what a loop in real time runs, with packets from outside.
//!
//! ```text
//! world  -> hub's functions      -> forward -> terminal's functions -> next hop ... -> island
//! island -> terminal's functions -> return  -> hub's functions      -> hop before ... -> world
//! ```
//!
//! Distant hosts of the world are behind the first hop's hub, those of the island behind the last hop's
//! terminals, of which there may be several. Gateways can be hosts, too: then packets leave the graph
//! there and come in again, so that programs can work on them.

use std::ops::Range;

use bentpipe_core::graph::{EGRESS, Graph};
use bentpipe_core::link::Access;
use bentpipe_core::packet::{Address, FlowId, Port};
use bentpipe_core::time::Duration;
use bentpipe_core::trace::NodeId;

use super::{Layout, Next, Routes, Socket, Station, Wiring, places};
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
    pub gateway: u32,
    /// Whether it is this gateway.
    pub is_gateway: bool,
    /// The way to it, if it is at some distance.
    access: Option<u32>,
}

/// An interface of a host, where packets leave the graph and come in. Each host has one that has its
/// address as its number; those of gateways to their hosts come after these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u32);

impl<T: Into<Address>> From<T> for InterfaceId {
    fn from(host: T) -> Self {
        Self(host.into().0)
    }
}

/// Where a packet goes that comes in at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// To a port of an engine.
    Engine(NodeId, Port),
    /// Out at once, at another interface.
    Interface(InterfaceId),
    /// Nobody there is its destination.
    Unreachable,
}

/// Which interface a packet has reached that left the graph by an engine.
#[derive(Clone, Copy, Debug)]
enum EgressTo {
    /// That of its destination.
    Destination,
    /// That of a gateway to the link.
    Gateway(u32),
    /// That of the gateway before its destination to the link.
    GatewayOfDestination,
    /// From the way to a host: that of the host, or of a gateway to its hosts.
    Access(u32),
}

/// One or more hops in series: a graph whose hosts are outside.
pub struct Chain {
    /// The engines. Packets go in by [`Graph::inject`] and come out by [`Graph::drain_egress`], for the
    /// host that is their destination.
    pub graph: Graph<Node>,
    /// What the engines are called, by their number: as [`Plan::place_names`], and with several hops
    /// `2.forward` and so on.
    pub names: Vec<String>,
    /// Of each hop, the directions in the plan's order: forward, then the terminals' returns.
    pub directions: Vec<Vec<NodeId>>,
    /// Of each hop, the functions of each gateway.
    pub functions: Vec<Vec<Vec<NodeId>>>,
    /// What is outside, and how packets get there.
    pub network: Network,
}

/// The hosts outside a graph, and where packets come in and leave.
#[derive(Clone, Debug)]
pub struct Network {
    /// The hosts by address: that of the hub, those of the terminals, the distant ones, and the gateways
    /// if they are hosts.
    pub hosts: Vec<Host>,
    /// The gateways' interfaces to their hosts: each is that of the gateway with this address.
    pub inner: Vec<Address>,
    /// How many classes of packets the queues and functions tell apart.
    pub classes: u8,
    /// The shortest time that a packet takes that does not go over the link: between hosts of one gateway,
    /// or to a gateway that is a host.
    pub shortest_aside: Duration,
    /// By the interface where a packet comes in, and by its destination.
    entrances: Vec<Vec<NextHop>>,
    /// By engine.
    exits: Vec<EgressTo>,
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
    pub fn new(
        plans: &[Plan],
        seed: u64,
        first_tunnel: FlowId,
        with_gateways: bool,
    ) -> Result<Self, PlanError> {
        check(plans)?;
        let hosts = hosts(plans, with_gateways)?;
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
        let gateways = (0..).map(Address).zip(&hosts).filter(|(_, host)| host.is_gateway);
        let inner: Vec<_> = gateways.map(|(address, _)| address).collect();
        let hops = Hops { plans, layouts: &layouts, hosts: &hosts, inner: &inner };
        let mut entrances =
            vec![vec![NextHop::Unreachable; hosts.len()]; hosts.len() + inner.len()];
        for hop in 0..plans.len() {
            hops.wire(hop, &mut graph, &mut entrances);
        }
        let exits = hops.exits(names.len());
        let of_hop = |layout: Layout| (layout.directions, layout.functions);
        let (directions, functions) = layouts.into_iter().map(of_hop).unzip();
        let classes = classes(plans)?;
        let shortest_aside = if with_gateways {
            Duration::ZERO
        } else {
            let distant = plans.iter().flat_map(|plan| &plan.hosts).map(|host| host.delay_ns).min();
            Duration::from_nanos(distant.unwrap_or(u64::MAX))
        };
        let network = Network { hosts, inner, classes, shortest_aside, entrances, exits };
        Ok(Self { graph, names, directions, functions, network })
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

impl Network {
    /// Where a packet goes that comes in at an interface.
    #[must_use]
    pub fn entrance(&self, from: InterfaceId, to: Address) -> NextHop {
        let entrance = self.entrances.get(from.0 as usize).and_then(|by| by.get(to.0 as usize));
        entrance.copied().unwrap_or(NextHop::Unreachable)
    }

    /// The interface that a packet has reached which left the graph by a port of an engine.
    #[must_use]
    pub fn exit(&self, node: NodeId, port: Port, to: Address) -> InterfaceId {
        let gateway = |number: u32| InterfaceId(self.inner[number as usize].0);
        match self.exits[node.0 as usize] {
            EgressTo::Destination => to.into(),
            EgressTo::Gateway(number) => gateway(number),
            EgressTo::GatewayOfDestination => gateway(self.hosts[to.0 as usize].gateway),
            EgressTo::Access(_) if port == Access::HOST => to.into(),
            EgressTo::Access(number) => InterfaceId(self.hosts.len() as u32 + number),
        }
    }

    /// Who leads on what a host sends to strangers: the world's, which knows the outside, does so for the
    /// others.
    #[must_use]
    pub fn beyond(&self, host: Address) -> Address {
        let Host { gateway, is_gateway, .. } = self.hosts[host.0 as usize];
        let is_of_world = host == Side::World.into() || (is_gateway && gateway == HUB);
        if is_of_world { Side::Island.into() } else { Side::World.into() }
    }

    /// The host right at a gateway, for which it leads on what is for strangers.
    #[must_use]
    pub fn nearest(&self, gateway: Address) -> Address {
        // The first hosts are those at gateways, in the order of these.
        Address(self.hosts[gateway.0 as usize].gateway)
    }

    /// The host that an interface belongs to, and whether it is a gateway's to its hosts.
    #[must_use]
    pub fn owner(&self, interface: InterfaceId) -> (Address, bool) {
        match (interface.0 as usize).checked_sub(self.hosts.len()) {
            Some(gateway) => (self.inner[gateway], true),
            None => (Address(interface.0), false),
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
    /// The gateways, if they are hosts.
    inner: &'a [Address],
}

impl Hops<'_> {
    /// Wires one hop, to its neighbours too, and says where packets of its hosts go in.
    fn wire(&self, hop: usize, graph: &mut Graph<Node>, entrances: &mut [Vec<NextHop>]) {
        let is_last = hop + 1 == self.plans.len();
        let stations: Vec<_> = self.hosts.iter().map(|host| self.station(hop, host)).collect();
        let (plan, layout) = (&self.plans[hop], &self.layouts[hop]);
        let mut wiring = Wiring { graph, plan, layout, stations };
        let has_gateways = !self.inner.is_empty();
        let is_open = has_gateways && hop == 0;
        wiring.connect(if is_open { EGRESS } else { layout.entry_for_hosts(HUB) });
        wiring.connect_accesses(|wiring, gateway| match has_gateways {
            true => Next::One(EGRESS),
            false => Next::ByDestination(local(wiring, gateway)),
        });
        let engine = |(node, port)| NextHop::Engine(node, port);
        let is_here = |host: &Host| if host.side == Side::World { hop == 0 } else { is_last };
        for (number, host) in self.hosts.iter().enumerate().filter(|(_, host)| is_here(host)) {
            let entrance = &mut entrances[number];
            if host.is_gateway {
                entrance.fill(engine(layout.entry_for_hosts(host.gateway)));
            } else if let Some(access) = host.access {
                entrance.fill(engine((layout.accesses[access as usize], Access::HOST)));
            } else if has_gateways {
                entrance.fill(NextHop::Interface(self.inner_interface(host.gateway)));
            } else {
                let local = local(&wiring, host.gateway);
                let next = |socket: &Option<Socket>| match *socket {
                    Some(socket) if socket != EGRESS => engine(socket),
                    _ => NextHop::Unreachable,
                };
                *entrance = local.iter().map(next).collect();
            }
            if has_gateways && !host.is_gateway {
                let from_gateway = &mut entrances[self.inner_interface(host.gateway).0 as usize];
                let far = |access: u32| engine((layout.accesses[access as usize], Access::NET));
                let near = NextHop::Interface(InterfaceId(number as u32));
                from_gateway[number] = host.access.map_or(near, far);
            }
        }
    }

    /// The interface of a gateway to its hosts.
    fn inner_interface(&self, gateway: u32) -> InterfaceId {
        InterfaceId(self.hosts.len() as u32 + gateway)
    }

    /// A host as a hop knows it: what is beyond the next hop, or a gateway that is a host, is where that
    /// one begins.
    fn station(&self, hop: usize, host: &Host) -> Station {
        let is_last = hop + 1 == self.plans.len();
        let gateway = host.gateway_at(is_last);
        let neighbour = match host.side {
            Side::World => hop.checked_sub(1).map(|before| (before, 1)),
            Side::Island => (!is_last).then_some((hop + 1, HUB)),
        };
        let beyond = |(hop, gateway): (usize, u32)| self.layouts[hop].entry_for_hosts(gateway);
        let is_direct = neighbour.is_none() && self.inner.is_empty();
        let host_here = if is_direct { host.access } else { None };
        Station { socket: neighbour.map_or(EGRESS, beyond), gateway, host: host_here }
    }

    /// By engine, of which there are so many.
    fn exits(&self, engines: usize) -> Vec<EgressTo> {
        let mut exits = vec![EgressTo::Destination; engines];
        if self.inner.is_empty() {
            return exits;
        }
        exits.fill(EgressTo::GatewayOfDestination);
        for (plan, layout) in self.plans.iter().zip(self.layouts) {
            for node in &layout.directions[1..] {
                exits[node.0 as usize] = EgressTo::Gateway(HUB);
            }
            for (nodes, gateway) in layout.functions.iter().zip(0..) {
                nodes.iter().for_each(|node| exits[node.0 as usize] = EgressTo::Gateway(gateway));
            }
            for &(_, gateway, node) in &layout.branches {
                exits[node.0 as usize] = EgressTo::Gateway(gateway);
            }
            for (host, node) in plan.hosts.iter().zip(&layout.accesses) {
                exits[node.0 as usize] = EgressTo::Access(host.gateway);
            }
        }
        exits
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

/// All hosts, those right at gateways first and the gateways last.
fn hosts(plans: &[Plan], with_gateways: bool) -> Result<Vec<Host>, PlanError> {
    let (Some(first), Some(last)) = (plans.first(), plans.last()) else {
        return Err(problem("link", "there must be one at least"));
    };
    let near = |name: String, side, gateway| {
        let (is_gateway, access) = (false, None);
        Host { name, side, gateway, is_gateway, access }
    };
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
    if with_gateways {
        let hub = first.gateways.first().map(|hub| (hub, Side::World, HUB));
        let terminals = last.gateways.iter().zip(0..).skip(1);
        let terminals = terminals.map(|(terminal, number)| (terminal, Side::Island, number));
        hosts.extend(hub.into_iter().chain(terminals).map(|(gateway, side, number)| Host {
            is_gateway: true,
            ..near(gateway.name.clone(), side, number)
        }));
    }
    if hosts.len() > Chain::HOSTS_MAX {
        let problem_text = format!(
            "there would be {}, with one right at each gateway; at most {} run in real time",
            hosts.len(),
            Chain::HOSTS_MAX
        );
        return Err(problem("hosts", &problem_text));
    }
    for (number, host) in hosts.iter().enumerate() {
        let is_known = |other: &Host| other.name == host.name || host.name == Side::Island.name();
        let is_named = host.access.is_some() || host.is_gateway;
        if is_named && hosts[..number].iter().any(is_known) {
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
