//! Hops in series with hosts outside the graph, for an event loop in real time.
//!
//! ```text
//! world  -> hub's functions      -> forward -> terminal's functions -> next hop ... -> island
//! island -> terminal's functions -> return  -> hub's functions      -> hop before ... -> world
//! ```
//!
//! Distant hosts of the world are behind the hub of the first hop, those of the island behind the
//! terminals of the last hop. Only the last hop may have several terminals. At a gateway that is a
//! host, packets leave the graph and enter it again, so that programs can process them. A gateway
//! with a PEP or a tunnel is one: these are programs there, and no engines.

use std::borrow::Cow;
use std::ops::Range;

use bentpipe_core::graph::{EGRESS, Graph};
use bentpipe_core::link::Access;
use bentpipe_core::packet::{Address, FlowId, Port};
use bentpipe_core::time::Duration;
use bentpipe_core::trace::NodeId;

use super::{EnginePort, Layout, Next, Routes, Station, Wiring, add_network};
use crate::node::Node;
use crate::plan::{Function, Gateway, HUB, Plan, PlanError};

/// A side of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Side {
    /// Behind the hub.
    World,
    /// Behind a user terminal.
    Island,
}

impl Side {
    /// Both sides, the world first.
    pub const ALL: [Self; 2] = [Self::World, Self::Island];

    /// The name on the command line, in columns and in docs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::World => "world",
            Self::Island => "island",
        }
    }

    /// The opposite side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::World => Self::Island,
            Self::Island => Self::World,
        }
    }
}

impl From<Side> for Address {
    /// The address of the host at the hub's or the first terminal's gateway.
    fn from(side: Side) -> Self {
        Self(side as u32)
    }
}

/// A host outside the graph. Its address is its index in [`Network::hosts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// `world`, `island` (with several terminals `island-1` and so on), or its name in the plan.
    pub name: String,
    /// The side of the link that it is on.
    pub side: Side,
    /// Its gateway, in the plan of its hop.
    pub gateway: u32,
    /// Whether the host is this gateway.
    pub is_gateway: bool,
    /// Whether it is a gateway with functions that are programs.
    pub has_programs: bool,
    /// Its access line, if it is distant.
    access: Option<u32>,
}

/// An interface of a host, where packets enter and leave the graph. The first interfaces have the
/// numbers of their hosts' addresses; the interfaces of gateways to their hosts follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u32);

impl<T: Into<Address>> From<T> for InterfaceId {
    fn from(host: T) -> Self {
        Self(host.into().0)
    }
}

/// The next hop of a packet that arrives at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// A port of an engine.
    Engine(NodeId, Port),
    /// Another interface: the packet leaves at once.
    Interface(InterfaceId),
    /// None: the destination is unknown.
    Unreachable,
}

/// The interface that a packet reaches when it leaves the graph, by the engine that it leaves.
#[derive(Clone, Copy, Debug)]
enum EgressTo {
    /// The interface of its destination.
    Destination,
    /// The interface of a gateway to the link.
    Gateway(u32),
    /// The interface of the destination's gateway to the link.
    GatewayOfDestination,
    /// From an access line: the interface of the host, or of a gateway to its hosts.
    Access(u32),
}

/// One or more hops in series, with hosts outside the graph.
pub struct Chain {
    /// The engines. Packets enter by [`Graph::inject`] and leave by [`Graph::drain_egress`].
    pub graph: Graph<Node>,
    /// The names of the engines, by number: those of [`Plan::place_names`]; from the second hop on
    /// with a prefix, as in `2.forward`.
    pub names: Vec<String>,
    /// The directions of each hop, in the plan's order.
    pub directions: Vec<Vec<NodeId>>,
    /// The functions of each gateway, of each hop.
    pub functions: Vec<Vec<Vec<NodeId>>>,
    /// The hosts outside, and the routes from and to them.
    pub network: Network,
}

/// The hosts outside a graph, and where their packets enter and leave.
#[derive(Clone, Debug)]
pub struct Network {
    /// The hosts by address: the host of the hub, the hosts of the terminals, the distant hosts,
    /// and the gateways if they are hosts.
    pub hosts: Vec<Host>,
    /// The interfaces of gateways to their hosts, as the addresses of the gateways.
    pub inner: Vec<Address>,
    /// The index in `inner` of each gateway that is a host, by the gateway's number.
    inner_of: Vec<Option<u32>>,
    /// The number of packet classes that queues and functions distinguish.
    pub classes: u8,
    /// The minimum delay of a packet that does not cross the link: between hosts of one gateway, or
    /// to a gateway that is a host.
    pub min_local_delay: Duration,
    /// By ingress interface and destination.
    ingress: Vec<Vec<NextHop>>,
    /// By engine.
    egress: Vec<EgressTo>,
}

impl Chain {
    /// The maximum number of hosts: each has its own network namespace.
    pub const HOSTS_MAX: usize = 250;
    /// The maximum number of packet classes.
    pub const CLASSES_MAX: u8 = 8;

    /// Builds the hops of valid plans, the first one at the world. The traffic of the plans is
    /// ignored. The first hop has the random streams of a simulation with the same seed. Frames
    /// between gateways belong to the flows from `first_tunnel` on. Gateways with a PEP or a
    /// tunnel are hosts, the others if `with_gateways`.
    ///
    /// # Errors
    /// If there is no plan, if there are hosts, PEPs, tunnels or several terminals between two hops, or too
    /// many hosts or classes.
    pub fn new(
        plans: &[Plan],
        seed: u64,
        first_tunnel: FlowId,
        with_gateways: bool,
    ) -> Result<Self, PlanError> {
        check(plans)?;
        let hosts = hosts(plans, with_gateways)?;
        let classes = classes(plans)?;
        let plans = &*without_programs(plans);
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
            layouts.push(add_network(plan, &link, seed, (&terminals, first_tunnel), &mut add));
        }
        let gateways = (0..).map(Address).zip(&hosts).filter(|(_, host)| host.is_gateway);
        let inner: Vec<_> = gateways.map(|(address, _)| address).collect();
        let inner_of = inner_of(&hosts, &inner);
        let hops = Hops { plans, layouts: &layouts, hosts: &hosts, inner_of: &inner_of };
        let mut ingress = vec![vec![NextHop::Unreachable; hosts.len()]; hosts.len() + inner.len()];
        for hop in 0..plans.len() {
            hops.wire(hop, &mut graph, &mut ingress);
        }
        let egress = hops.egress(names.len());
        let of_hop = |layout: Layout| (layout.directions, layout.functions);
        let (directions, functions) = layouts.into_iter().map(of_hop).unzip();
        let min_local_delay = if !inner.is_empty() {
            Duration::ZERO
        } else {
            let distant = plans.iter().flat_map(|plan| &plan.hosts).map(|host| host.delay_ns).min();
            Duration::from_nanos(distant.unwrap_or(u64::MAX))
        };
        let network = Network { hosts, inner, inner_of, classes, min_local_delay, ingress, egress };
        Ok(Self { graph, names, directions, functions, network })
    }

    /// The numbers of a hop's directions that lead away from a side.
    #[must_use]
    pub fn directions_from(&self, hop: usize, side: Side) -> Range<usize> {
        match side {
            Side::World => 0..1,
            Side::Island => 1..self.directions[hop].len(),
        }
    }
}

impl Network {
    /// The next hop of a packet that arrives at an interface.
    #[must_use]
    pub fn ingress(&self, from: InterfaceId, to: Address) -> NextHop {
        let next_hops = self.ingress.get(from.0 as usize).and_then(|by| by.get(to.0 as usize));
        next_hops.copied().unwrap_or(NextHop::Unreachable)
    }

    /// The interface that a packet reaches when it leaves the graph by a port of an engine.
    #[must_use]
    pub fn egress(&self, node: NodeId, port: Port, to: Address) -> InterfaceId {
        let index_of = |gateway: u32| self.inner_of[gateway as usize];
        // Without a host at the gateway, the packet reaches its destination.
        let link_of = |gateway: u32| Some(self.inner[index_of(gateway)? as usize].into());
        let found = match self.egress[node.0 as usize] {
            EgressTo::Destination => None,
            EgressTo::Gateway(number) => link_of(number),
            EgressTo::GatewayOfDestination => link_of(self.hosts[to.0 as usize].gateway),
            EgressTo::Access(_) if port == Access::HOST => None,
            EgressTo::Access(number) => {
                index_of(number).map(|index| InterfaceId(self.hosts.len() as u32 + index))
            }
        };
        found.unwrap_or(to.into())
    }

    /// The next host for packets to unknown destinations: the world's host, which has the uplink,
    /// for all other hosts.
    #[must_use]
    pub fn default_route(&self, host: Address) -> Address {
        let Host { gateway, is_gateway, .. } = self.hosts[host.0 as usize];
        let is_of_world = host == Side::World.into() || (is_gateway && gateway == HUB);
        if is_of_world { Side::Island.into() } else { Side::World.into() }
    }

    /// The host at a gateway.
    #[must_use]
    pub fn host_at(&self, gateway: Address) -> Address {
        // The first hosts are those at gateways, in the order of the gateways.
        Address(self.hosts[gateway.0 as usize].gateway)
    }

    /// The host of an interface, and whether the interface is that of a gateway to its hosts.
    #[must_use]
    pub fn owner(&self, interface: InterfaceId) -> (Address, bool) {
        match (interface.0 as usize).checked_sub(self.hosts.len()) {
            Some(gateway) => (self.inner[gateway], true),
            None => (Address(interface.0), false),
        }
    }
}

impl Host {
    /// The gateway of a hop that leads to the host. Hops before the last have one terminal.
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
    /// See [`Network`].
    inner_of: &'a [Option<u32>],
}

impl Hops<'_> {
    /// Connects one hop, also to its neighbours, and sets the next hops of packets from its hosts.
    fn wire(&self, hop: usize, graph: &mut Graph<Node>, ingress: &mut [Vec<NextHop>]) {
        let is_last = hop + 1 == self.plans.len();
        let stations: Vec<_> = self.hosts.iter().map(|host| self.station(hop, host)).collect();
        let (plan, layout) = (&self.plans[hop], &self.layouts[hop]);
        let mut wiring = Wiring { graph, plan, layout, stations };
        let is_open = hop == 0 && self.inner_interface(HUB).is_some();
        wiring.connect(if is_open { EGRESS } else { layout.entry_for_hosts(HUB) });
        wiring.connect_accesses(|wiring, gateway| match self.inner_interface(gateway) {
            Some(_) => Next::One(EGRESS),
            None => Next::ByDestination(local(wiring, gateway)),
        });
        let engine = |(node, port)| NextHop::Engine(node, port);
        let is_here = |host: &Host| if host.side == Side::World { hop == 0 } else { is_last };
        for (number, host) in self.hosts.iter().enumerate().filter(|(_, host)| is_here(host)) {
            let inner = self.inner_interface(host.gateway);
            let next_hops = &mut ingress[number];
            if host.is_gateway {
                next_hops.fill(engine(layout.entry_for_hosts(host.gateway)));
            } else if let Some(access) = host.access {
                next_hops.fill(engine((layout.accesses[access as usize], Access::HOST)));
            } else if let Some(inner) = inner {
                next_hops.fill(NextHop::Interface(inner));
            } else {
                let local = local(&wiring, host.gateway);
                let next = |port: &Option<EnginePort>| match *port {
                    Some(port) if port != EGRESS => engine(port),
                    _ => NextHop::Unreachable,
                };
                *next_hops = local.iter().map(next).collect();
            }
            if let Some(inner) = inner.filter(|_| !host.is_gateway) {
                let from_gateway = &mut ingress[inner.0 as usize];
                let far = |access: u32| engine((layout.accesses[access as usize], Access::NET));
                let near = NextHop::Interface(InterfaceId(number as u32));
                from_gateway[number] = host.access.map_or(near, far);
            }
        }
    }

    /// The interface of a gateway to its hosts, if the gateway is a host.
    fn inner_interface(&self, gateway: u32) -> Option<InterfaceId> {
        let index = self.inner_of[gateway as usize]?;
        Some(InterfaceId(self.hosts.len() as u32 + index))
    }

    /// A host in the view of a hop. A host beyond the next hop, or beyond a gateway that is a host,
    /// is reached where that begins.
    fn station(&self, hop: usize, host: &Host) -> Station {
        let is_last = hop + 1 == self.plans.len();
        let gateway = host.gateway_at(is_last);
        let neighbour = match host.side {
            Side::World => hop.checked_sub(1).map(|before| (before, 1)),
            Side::Island => (!is_last).then_some((hop + 1, HUB)),
        };
        let beyond = |(hop, gateway): (usize, u32)| self.layouts[hop].entry_for_hosts(gateway);
        let is_direct = neighbour.is_none() && self.inner_interface(host.gateway).is_none();
        let host_here = if is_direct { host.access } else { None };
        Station {
            port: neighbour.map_or(EGRESS, beyond),
            gateway,
            host: host_here,
            from_host: None,
        }
    }

    /// The interfaces that packets reach when they leave, by engine.
    fn egress(&self, engines: usize) -> Vec<EgressTo> {
        let mut egress = vec![EgressTo::Destination; engines];
        if self.inner_of.iter().all(Option::is_none) {
            return egress;
        }
        egress.fill(EgressTo::GatewayOfDestination);
        for (plan, layout) in self.plans.iter().zip(self.layouts) {
            for node in &layout.directions[1..] {
                egress[node.0 as usize] = EgressTo::Gateway(HUB);
            }
            for (nodes, gateway) in layout.functions.iter().zip(0..) {
                nodes.iter().for_each(|node| egress[node.0 as usize] = EgressTo::Gateway(gateway));
            }
            for &(_, gateway, node) in &layout.branches {
                egress[node.0 as usize] = EgressTo::Gateway(gateway);
            }
            for (host, node) in plan.hosts.iter().zip(&layout.accesses) {
                egress[node.0 as usize] = EgressTo::Access(host.gateway);
            }
        }
        egress
    }
}

/// The next port, at a gateway, of packets from its hosts: another of its hosts, or the link.
fn local(wiring: &Wiring<'_, Node>, gateway: u32) -> Routes {
    let away = wiring.layout.entry_for_hosts(gateway);
    let next = |station: &Station| {
        if station.gateway == gateway { wiring.last_hop(station) } else { away }
    };
    wiring.stations.iter().map(next).map(Some).collect()
}

/// The plans without the functions that are programs: those of the engines of a [`Chain`].
#[must_use]
pub fn without_programs(plans: &[Plan]) -> Cow<'_, [Plan]> {
    let has_programs = |plan: &Plan| plan.gateways.iter().any(Gateway::has_programs);
    if !plans.iter().any(has_programs) {
        return Cow::Borrowed(plans);
    }
    let mut plans = plans.to_vec();
    for gateway in plans.iter_mut().flat_map(|plan| &mut plan.gateways) {
        gateway.functions.retain(|function| !function.is_program());
    }
    Cow::Owned(plans)
}

/// The index in `inner` of each gateway, by its number; see [`Network`].
fn inner_of(hosts: &[Host], inner: &[Address]) -> Vec<Option<u32>> {
    let gateways = hosts.iter().map(|host| host.gateway).max().unwrap_or(HUB) + 1;
    let mut found = vec![None; gateways as usize];
    for (index, address) in (0..).zip(inner) {
        found[hosts[address.0 as usize].gateway as usize] = Some(index);
    }
    found
}

/// All hosts: first the hosts at gateways, last the gateways that are hosts: those with programs,
/// and the others if `with_gateways`.
fn hosts(plans: &[Plan], with_gateways: bool) -> Result<Vec<Host>, PlanError> {
    let (Some(first), Some(last)) = (plans.first(), plans.last()) else {
        return Err(problem("link", "must have at least one hop"));
    };
    let near = |name: String, side, gateway| Host {
        name,
        side,
        gateway,
        is_gateway: false,
        has_programs: false,
        access: None,
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
    let hub = first.gateways.first().map(|hub| (hub, Side::World, HUB));
    let terminals = last.gateways.iter().zip(0..).skip(1);
    let terminals = terminals.map(|(terminal, number)| (terminal, Side::Island, number));
    let gateways = hub.into_iter().chain(terminals);
    let gateways = gateways.filter(|(gateway, ..)| with_gateways || gateway.has_programs());
    hosts.extend(gateways.map(|(gateway, side, number)| Host {
        is_gateway: true,
        has_programs: gateway.has_programs(),
        ..near(gateway.name.clone(), side, number)
    }));
    if hosts.len() > Chain::HOSTS_MAX {
        let problem_text = format!(
            "are {}, including one at each gateway; must be at most {} in real time",
            hosts.len(),
            Chain::HOSTS_MAX
        );
        return Err(problem("hosts", &problem_text));
    }
    for (number, host) in hosts.iter().enumerate() {
        let is_known = |other: &Host| other.name == host.name || host.name == Side::Island.name();
        let is_named = host.access.is_some() || host.is_gateway;
        if is_named && hosts[..number].iter().any(is_known) {
            let text =
                format!("must not use \"{}\": in real time another host has that name", host.name);
            return Err(problem("hosts", &text));
        }
    }
    Ok(hosts)
}

/// The number of packet classes. The IP precedence of a real packet has three bits, for eight
/// classes.
fn classes(plans: &[Plan]) -> Result<u8, PlanError> {
    let directions = plans.iter().flat_map(|plan| &plan.directions);
    let of_queues = directions.filter_map(|direction| direction.queue.classes());
    let gateways = plans.iter().flat_map(|plan| &plan.gateways);
    let of_functions =
        gateways.flat_map(|gateway| &gateway.functions).filter_map(Function::classes);
    let classes = of_queues.chain(of_functions).max().unwrap_or(1);
    if classes > Chain::CLASSES_MAX {
        let text = "must have at most 8 classes: IP precedence has 8 values";
        return Err(problem("link", text));
    }
    Ok(classes)
}

/// The prefix of a hop's engine names; hops are numbered from 1.
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
        for (number, gateway) in (0..).zip(&plan.gateways) {
            if gateway.has_programs() && is_between(number) {
                let end = if number == HUB { "hub" } else { "terminal" };
                let text = "must not be between two links: in real time, a pep is at the first hub or \
                            the last terminal, and a tunnel over a single link";
                let programs = gateway.functions.iter().filter(|function| function.is_program());
                let name = programs.map(Function::name).next().unwrap_or_default();
                return Err(problem(&format!("gateways.{end}.{name}"), text));
            }
        }
        if plan.hosts.iter().any(|host| is_between(host.gateway)) {
            return Err(problem("hosts", "must not be between two links"));
        }
    }
    Ok(())
}

fn problem(field: &str, problem: &str) -> PlanError {
    PlanError { field: field.to_owned(), problem: problem.to_owned() }
}
