//! The invariants that hold at the end of every run, whatever the plan: packets do not appear or vanish, in
//! an engine or on a wire, and no byte is acknowledged that was not delivered, or delivered that was
//! not sent.

use bentpipe_core::engine::{Count, Engine, Nested};
use bentpipe_core::graph::Graph;

use crate::build::{Ends, Layout};
use crate::node::Node;

/// The balance that does not hold, in words, if there is one.
pub(crate) fn check(graph: &Graph<Node>, layout: &Layout) -> Result<(), String> {
    let (mut sent, mut received, mut nested) =
        (Count::default(), graph.unrouted(), Nested::default());
    for (number, node) in graph.engines().enumerate() {
        let ledger = node.ledger();
        ledger.check().map_err(|error| format!("engine {number}: {error}"))?;
        sent = sent.plus(ledger.sent);
        received = received.plus(ledger.received);
        nested = nested.plus(ledger.nested);
    }
    if sent != received {
        return Err(format!("on the wires, {sent:?} were sent and {received:?} received"));
    }
    nested.check().map_err(|error| format!("inside other packets: {error}"))?;
    check_streams(graph, layout)
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
