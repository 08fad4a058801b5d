//! Plan to graph: two directions, and two ends for each flow.

use bentpipe_core::engine::Engine;
use bentpipe_core::graph::Graph;
use bentpipe_core::link::{self, Direction, DirectionConfig, DropTail, Framing, Tail};
use bentpipe_core::packet::{FlowId, Maker, Port};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::Endpoint;
use bentpipe_core::tcp::seq::Wire;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::NodeId;
use bentpipe_core::units::{BitRate, Probability};

use crate::plan::{self, Amount, Channel, Heading, Limit, Plan, Queue, Workload};
use crate::workload::{BulkReceiver, BulkSender, ConstantRate, DatagramSink, Node, Until};

/// Where the engines of a built plan are.
#[derive(Debug)]
pub struct Layout {
    /// Forward and return.
    pub directions: [NodeId; 2],
    /// Both ends of each flow, in the plan's order.
    pub flows: Vec<Ends>,
}

/// The two ends of a flow, and when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The end that opens the flow.
    pub sender: NodeId,
    /// The end that accepts it.
    pub receiver: NodeId,
    /// When the flow starts.
    pub start: Instant,
}

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
    let link = [(&plan.link.forward, "link.forward"), (&plan.link.return_, "link.return")];
    let directions = link.map(|(plan, name)| {
        let direction = direction(plan, name, seed);
        graph.add(wrap(Node::Direction(Box::new(direction))))
    });
    let mut flows = Vec::with_capacity(plan.flows.len());
    for (flow, id) in plan.flows.iter().zip(0..) {
        let (sender, receiver) = ends(flow, FlowId(id), seed);
        let start = Instant::from_nanos(flow.start_ns);
        let (sender, receiver) = (graph.add(wrap(sender)), graph.add(wrap(receiver)));
        flows.push(Ends { sender, receiver, start });
    }
    connect(&mut graph, plan, directions, &flows);
    (graph, Layout { directions, flows })
}

/// The sender's packets take the flow's own direction, the receiver's the other one.
fn connect<E: Engine>(graph: &mut Graph<E>, plan: &Plan, directions: [NodeId; 2], flows: &[Ends]) {
    let mut out = [Vec::with_capacity(flows.len()), Vec::with_capacity(flows.len())];
    for (flow, &Ends { sender, receiver, .. }) in plan.flows.iter().zip(flows) {
        let (there, back) = match flow.direction {
            Heading::Forward => (0, 1),
            Heading::Return => (1, 0),
        };
        graph.connect((sender, NET), (directions[there], Direction::IN));
        graph.connect((receiver, NET), (directions[back], Direction::IN));
        out[there].push((receiver, NET));
        out[back].push((sender, NET));
    }
    for (direction, table) in directions.into_iter().zip(out) {
        graph.connect_by_flow((direction, Direction::OUT), table);
    }
}

fn direction(plan: &plan::Direction, name: &str, seed: u64) -> Direction {
    let Queue::DropTail { limit } = &plan.queue;
    let channel = match plan.channel {
        Channel::Clear => link::Channel::Clear,
        Channel::BitErrors { bit_error_rate } => link::Channel::bit_errors(
            Probability::new(bit_error_rate).expect("checked with the plan"),
            Rng::stream(seed, &format!("{name}.channel")),
        ),
    };
    Direction::new(DirectionConfig {
        rate: plan.rate_bps.profile(BitRate).expect("checked with the plan"),
        delay: plan.delay_ns.profile(Duration::from_nanos).expect("checked with the plan"),
        framing: Framing::overhead(u32::try_from(plan.framing_overhead_bytes).expect("checked")),
        queue: Tail::DropTail(DropTail::new(match *limit {
            Limit::Bytes(most) => link::Limit::Bytes(most),
            Limit::Packets(most) => link::Limit::Packets(most),
            Limit::TimeNs(most) => link::Limit::Time(Duration::from_nanos(most)),
            Limit::Unlimited => link::Limit::Unlimited,
        })),
        channel,
    })
    .expect("checked with the plan")
}

fn ends(flow: &plan::Flow, id: FlowId, seed: u64) -> (Node, Node) {
    let start = Instant::from_nanos(flow.start_ns);
    match &flow.workload {
        Workload::Bulk { amount, sender, receiver } => {
            let until = match *amount {
                Amount::Bytes(bytes) => Until::Bytes(bytes),
                Amount::DurationNs(nanos) => Until::Time(start + Duration::from_nanos(nanos)),
            };
            let mut rng = Rng::stream(seed, &format!("flow.{}", flow.name));
            let mut endpoint = |tcp: &plan::Tcp, maker| {
                // RFC 9293, 3.4.1: a host starts anywhere; so the wrap is met in ordinary runs.
                let initial = u32::try_from(rng.next_u64() >> 32).expect("32 bits");
                Endpoint::new(tcp.config(), id, maker, Wire(initial))
            };
            let sending = BulkSender::new(endpoint(sender, Maker::Sender), start, until);
            let receiving = BulkReceiver::new(endpoint(receiver, Maker::Receiver));
            (Node::BulkSender(Box::new(sending)), Node::BulkReceiver(Box::new(receiving)))
        }
        Workload::ConstantRate { rate_bps, payload_bytes, duration_ns } => {
            let end = start + Duration::from_nanos(*duration_ns);
            let source = ConstantRate::new(id, BitRate(*rate_bps), *payload_bytes, start, end);
            let sink = DatagramSink::default();
            (Node::ConstantRate(Box::new(source)), Node::DatagramSink(Box::new(sink)))
        }
    }
}
