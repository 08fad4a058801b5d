//! Hops in a row without hosts: what a loop in real time runs, with packets from outside.
//!
//! ```text
//! world  -> [hub processor]      -> forward -> [terminal processor] -> next hop ... -> island
//! island -> [terminal processor] -> return  -> [hub processor]      -> hop before ... -> world
//! ```

use bentpipe_core::graph::Graph;
use bentpipe_core::link::Direction;
use bentpipe_core::packet::Port;
use bentpipe_core::trace::NodeId;

use super::{Socket, link};
use crate::node::{INNER, Node, OUTER, Place};
use crate::plan::{Plan, PlanError, Queue};

/// A side of the hop: where hosts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Side {
    /// Behind the hub.
    World,
    /// Behind the user terminal.
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

/// One or more hops in a row: a graph whose two ends lead outside.
pub struct Chain {
    /// The engines. Packets go in by [`Graph::inject`] and come out by [`Graph::drain_egress`].
    pub graph: Graph<Node>,
    /// What the engines are called, by their number: `forward`, `return`, `hub-processor`,
    /// `terminal-1-processor`, and with several hops `2.forward` and so on.
    pub names: Vec<String>,
    /// Of each hop, the forward direction and the return.
    pub directions: Vec<[NodeId; 2]>,
    entrances: [Socket; 2],
    exits: [Socket; 2],
}

impl Chain {
    /// Builds the hops of checked plans, the first next to the world. What the plans say of traffic
    /// has no part in it. The first hop's streams of chance are those of a simulation with that seed.
    ///
    /// # Errors
    /// If there is no plan, or one has several terminals, or needs the flows' classes.
    pub fn new(plans: &[Plan], seed: u64) -> Result<Self, PlanError> {
        let mut graph = Graph::default();
        let (mut names, mut directions) = (Vec::new(), Vec::new());
        let (mut ends, mut before) = (None, None);
        for (plan, number) in plans.iter().zip(1..) {
            check(plan)?;
            let prefix = hop_prefix(number);
            let mut place = |node, name: String| {
                names.push(format!("{prefix}{name}"));
                graph.add(node)
            };
            let both: Vec<_> = link::directions(plan, &format!("{prefix}link"), seed)
                .zip(plan.direction_names())
                .map(|(direction, name)| place(direction.into(), name))
                .collect();
            let mut of_functions = plan.place_names().into_iter().skip(both.len());
            let mut functions: [Vec<NodeId>; 2] = Default::default();
            for (number, gateway) in (0..).zip(&plan.gateways) {
                let at = Place { plan, gateway: number };
                for (function, name) in gateway.functions.iter().zip(&mut of_functions) {
                    functions[number as usize].push(place(Node::function(function, &at), name));
                }
            }
            let (away, back) = (both[0], both[1]);
            directions.push([away, back]);
            let hub = end(&mut graph, &functions[0], away, back);
            let terminal = end(&mut graph, &functions[1], back, away);
            if let Some(End { entrance, exit }) = before {
                graph.connect(exit, hub.entrance);
                graph.connect(hub.exit, entrance);
            }
            before = Some(terminal);
            ends.get_or_insert([hub, terminal])[1] = terminal;
        }
        let ends = ends.ok_or_else(|| problem("link", "there must be one at least"))?;
        let (entrances, exits) = (ends.map(|end| end.entrance), ends.map(|end| end.exit));
        Ok(Self { graph, names, directions, entrances, exits })
    }

    /// Where packets from a side go in.
    #[must_use]
    pub fn entrance(&self, from: Side) -> (NodeId, Port) {
        self.entrances[from as usize]
    }

    /// Where packets come out.
    #[must_use]
    pub fn exits(&self) -> Exits {
        Exits { world: self.exits[Side::World as usize] }
    }
}

/// Where packets come out of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Exits {
    world: Socket,
}

impl Exits {
    /// The side to which a packet comes out that left by a port of an engine.
    #[must_use]
    pub fn side(self, node: NodeId, port: Port) -> Side {
        if (node, port) == self.world { Side::World } else { Side::Island }
    }
}

/// Where packets go into a hop at one of its ends, and where they come out.
#[derive(Clone, Copy)]
struct End {
    entrance: Socket,
    exit: Socket,
}

/// Wires an end of a hop: the functions of its gateway between the outside and two directions.
fn end(graph: &mut Graph<Node>, functions: &[NodeId], away: NodeId, back: NodeId) -> End {
    let (Some(&first), Some(&last)) = (functions.first(), functions.last()) else {
        return End { entrance: (away, Direction::IN), exit: (back, Direction::OUT) };
    };
    for pair in functions.windows(2) {
        graph.connect((pair[0], OUTER), (pair[1], INNER));
        graph.connect((pair[1], INNER), (pair[0], OUTER));
    }
    graph.connect((last, OUTER), (away, Direction::IN));
    graph.connect((back, Direction::OUT), (last, OUTER));
    let outside = (first, INNER);
    End { entrance: outside, exit: outside }
}

/// What the names of a hop's engines begin with; hops count from 1.
pub(crate) fn hop_prefix(number: usize) -> String {
    if number == 1 { String::new() } else { format!("{number}.") }
}

fn check(plan: &Plan) -> Result<(), PlanError> {
    if plan.terminals() != 1 {
        return Err(problem("terminals", "must be 1 in real time"));
    }
    if !plan.hosts.is_empty() {
        return Err(problem("hosts", "have no distance of their own in real time"));
    }
    if plan.branches().next().is_some() {
        return Err(problem("link.terminal_paths", "is not served in real time"));
    }
    let mut functions = plan.gateways.iter().flat_map(|gateway| &gateway.functions);
    if let Some(function) = functions.find(|function| !function.runs_in_real_time()) {
        let name = function.name();
        return Err(problem("gateways", &format!("{name} is not run in real time yet")));
    }
    for (number, direction) in plan.directions.iter().enumerate() {
        if let Queue::StrictPriority { .. } = direction.queue {
            let queue = format!("directions.{number}.queue");
            return Err(problem(&queue, "strict_priority is not served in real time"));
        }
    }
    Ok(())
}

fn problem(field: &str, problem: &str) -> PlanError {
    PlanError { field: field.to_owned(), problem: problem.to_owned() }
}
