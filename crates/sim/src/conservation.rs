//! The laws that hold at the end of every run, whatever the plan: packets do not appear or vanish, in
//! an engine or on a wire, and no byte is acknowledged that was not delivered, or delivered that was
//! not sent.

use bentpipe_core::engine::{Count, Engine};
use bentpipe_core::graph::Graph;
use bentpipe_core::link::ProcessorCounters;

use crate::build::{Ends, Layout};
use crate::workload::Node;

/// The balance that does not hold, in words, if there is one.
pub(crate) fn check(graph: &Graph<Node>, layout: &Layout) -> Result<(), String> {
    for (number, node) in graph.engines().enumerate() {
        node.ledger().check().map_err(|error| format!("engine {number}: {error}"))?;
    }
    check_wires(graph, layout)?;
    check_streams(graph, layout)
}

/// Packets and bytes at both ends of a kind of wire.
struct Wires {
    between: &'static str,
    sent: Count,
    received: Count,
}

impl Wires {
    fn new(between: &'static str) -> Self {
        Self { between, sent: Count::default(), received: Count::default() }
    }

    fn sent(&mut self, count: Count) {
        self.sent = self.sent.plus(count);
    }

    fn received(&mut self, count: Count) {
        self.received = self.received.plus(count);
    }

    fn check(&self) -> Result<(), String> {
        if self.sent == self.received {
            return Ok(());
        }
        let Self { between, sent, received } = self;
        Err(format!("between {between}, {sent:?} were sent and {received:?} received"))
    }
}

/// Sides of a processor in its counters.
const LAN: usize = 0;
const LINK: usize = 1;

/// What one stage sent, the next one received.
fn check_wires(graph: &Graph<Node>, layout: &Layout) -> Result<(), String> {
    let mut into_network = Wires::new("hosts and the network");
    let mut out_of_network = Wires::new("the network and hosts");
    for node in graph.engines().filter(|node| is_host(node)) {
        into_network.sent(node.ledger().sent);
        out_of_network.received(node.ledger().received);
    }
    for (number, &node) in (0u32..).zip(&layout.directions) {
        let direction = graph.engine(node).ledger();
        out_of_network.sent(direction.sent);
        // The processor in front of a direction has its number: the hub sends forward.
        let Some(processor) = processor(graph, layout, number) else {
            into_network.received(direction.received);
            continue;
        };
        into_network.received(processor.received[LAN]);
        let mut uplink = Wires::new("a processor and its direction");
        uplink.sent(processor.forwarded[LAN]);
        uplink.received(direction.received);
        uplink.check()?;
        // Behind the opposite direction, it takes what that one sent and sends it on.
        out_of_network.received(processor.received[LINK]);
        out_of_network.sent(processor.forwarded[LINK]);
    }
    into_network.check()?;
    out_of_network.check()
}

fn is_host(node: &Node) -> bool {
    !matches!(node, Node::Direction(_) | Node::Processor(_))
}

fn processor(graph: &Graph<Node>, layout: &Layout, number: u32) -> Option<ProcessorCounters> {
    let found = layout.processors.binary_search_by_key(&number, |processor| processor.0).ok()?;
    match graph.engine(layout.processors[found].1) {
        Node::Processor(processor) => Some(processor.counters()),
        _ => unreachable!("the layout names processors"),
    }
}

/// No byte is acknowledged that was not delivered, or delivered that was not sent.
fn check_streams(graph: &Graph<Node>, layout: &Layout) -> Result<(), String> {
    for (flow, &ends) in layout.flows.iter().enumerate() {
        let Some([sent, delivered, acked]) = stream_bytes(graph, ends) else { continue };
        if acked > delivered || delivered > sent {
            return Err(format!(
                "flow {flow}: {sent} bytes sent, {delivered} delivered, {acked} acknowledged"
            ));
        }
    }
    Ok(())
}

/// Bytes sent, delivered and acknowledged, of a flow over TCP.
fn stream_bytes(graph: &Graph<Node>, ends: Ends) -> Option<[u64; 3]> {
    match (graph.engine(ends.sender), graph.engine(ends.receiver)) {
        (Node::BulkSender(sender), Node::BulkReceiver(receiver)) => {
            let half = sender.endpoint().sender();
            let delivered = receiver.endpoint().receiver().delivered();
            Some([half.sent_bytes(), delivered, half.acked_bytes()])
        }
        (Node::Server(server), Node::Client(client)) => {
            let sent = server.totals();
            Some([sent.sent_bytes, client.totals().delivered_bytes, sent.acked_bytes])
        }
        _ => None,
    }
}
