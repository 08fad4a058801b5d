//! Plan to graph: the directions of the hop, the processors at its ends, and two ends for each flow.
//!
//! ```text
//! world hosts  -> [hub processor]      -> forward  -> [terminal processor] -> island hosts
//! island hosts -> [terminal processor] -> return t -> [hub processor]      -> world hosts
//! ```

mod chain;
mod hosts;
mod link;

use std::sync::Arc;

use bentpipe_core::engine::Engine;
use bentpipe_core::graph::Graph;
use bentpipe_core::link::{Direction, Processor};
use bentpipe_core::packet::{FlowId, Port};
use bentpipe_core::time::Instant;
use bentpipe_core::trace::NodeId;

use crate::plan::{Flow, Heading, Plan};
use crate::workload::Node;
pub(crate) use chain::hop_prefix;
pub use chain::{Chain, Side};
use hosts::Hosts;

/// Where the engines of a built plan are.
#[derive(Debug)]
pub struct Layout {
    /// Forward, then the return of each terminal.
    pub directions: Vec<NodeId>,
    /// The processors that exist, by number: 0 is the hub's, 1 + t that of terminal t.
    pub processors: Vec<(u32, NodeId)>,
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

/// Hosts have one port; engines agree on its number.
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
    let mut add = |node| graph.add(wrap(node));
    // Directions, then processors: their numbers in the graph are those of their places.
    let directions = link::directions(plan, "link", seed)
        .map(|direction| add(Node::Direction(Box::new(direction))))
        .collect();
    let processors = link::processors(plan)
        .map(|(number, processor)| (number, add(Node::Processor(Box::new(processor)))))
        .collect();
    let mut hosts = Hosts::new(plan, seed);
    let flows = plan.flows.iter().zip(0..);
    let flows = flows.map(|(flow, id)| hosts.add(flow, FlowId(id), &mut add)).collect();
    let layout = Layout { directions, processors, flows };
    connect(&mut graph, plan, &layout);
    (graph, layout)
}

/// The ends of a flow by the side of the hop on which they are: the world's and the island's.
fn sides(flow: &Flow, ends: &Ends) -> (NodeId, NodeId) {
    match flow.direction {
        Heading::Forward => (ends.sender, ends.receiver),
        Heading::Return => (ends.receiver, ends.sender),
    }
}

/// Where packets for hosts on one side of the hop go, by flow.
type Table = Arc<[Socket]>;

fn connect<E: Engine>(graph: &mut Graph<E>, plan: &Plan, layout: &Layout) {
    let flows = || plan.flows.iter().zip(&layout.flows);
    let world: Table = flows().map(|(flow, ends)| (sides(flow, ends).0, NET)).collect();
    let island: Table = flows().map(|(flow, ends)| (sides(flow, ends).1, NET)).collect();
    let (&forward, returns) = layout.directions.split_first().expect("forward is the first");
    let mut processors = vec![None; layout.directions.len()];
    for &(number, node) in &layout.processors {
        processors[number as usize] = Some(node);
    }
    let (hub, terminals) = processors.split_first().expect("as many as directions");

    let hub_entrance = connect_gateway(graph, *hub, forward, &world);
    let entrances: Vec<_> = terminals
        .iter()
        .zip(returns)
        .map(|(&terminal, &back)| connect_gateway(graph, terminal, back, &island))
        .collect();
    let arrivals = flows().zip(&island[..]).map(|((flow, _), &host)| {
        let terminal = terminals[flow.terminal as usize];
        terminal.map_or(host, |processor| (processor, Processor::LINK))
    });
    graph.connect_by_flow((forward, Direction::OUT), arrivals.collect::<Table>());
    for &back in returns {
        match hub {
            Some(hub) => graph.connect((back, Direction::OUT), (*hub, Processor::LINK)),
            None => graph.connect_by_flow((back, Direction::OUT), Arc::clone(&world)),
        }
    }
    for (flow, ends) in flows() {
        let (world, island) = sides(flow, ends);
        graph.connect((world, NET), hub_entrance);
        graph.connect((island, NET), entrances[flow.terminal as usize]);
    }
}

/// Wires one end of the hop: its processor, if there is one, between the hosts of its side and the
/// direction that leads away. Returns where these hosts send to.
fn connect_gateway<E: Engine>(
    graph: &mut Graph<E>,
    processor: Option<NodeId>,
    away: NodeId,
    hosts: &Table,
) -> Socket {
    let Some(processor) = processor else { return (away, Direction::IN) };
    graph.connect((processor, Processor::LINK), (away, Direction::IN));
    graph.connect_by_flow((processor, Processor::LAN), Arc::clone(hosts));
    (processor, Processor::LAN)
}
