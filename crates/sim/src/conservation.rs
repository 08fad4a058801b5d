//! The invariants of every run, checked at its end: engines and wires conserve packets and bytes,
//! and TCP acknowledges no more bytes than it delivered, and delivers no more than it sent.

use bentpipe_core::engine::{Count, Engine, Nested};
use bentpipe_core::graph::Graph;
use bentpipe_core::packet::FlowId;

use crate::build::{Ends, Layout};
use crate::node::Node;
use crate::record::is_split;

/// Checks the invariants. The error describes the first one that does not hold.
pub(crate) fn check(graph: &Graph<Node>, layout: &Layout) -> Result<(), String> {
    let (mut sent, mut received, mut nested) =
        (Count::default(), graph.unrouted(), Nested::default());
    for (number, node) in graph.engines().enumerate() {
        let ledger = node.ledger();
        ledger.check().map_err(|error| format!("engine {number}: {error}"))?;
        sent = sent.plus(ledger.sent);
        received = received.plus(ledger.received);
        nested = nested.plus(ledger.nested);
        if let Node::Pep(pep) = node {
            pep.check().map_err(|error| format!("engine {number}: {error}"))?;
        }
    }
    if sent != received {
        return Err(format!("on the wires: {sent:?} sent, {received:?} received"));
    }
    nested.check().map_err(|error| format!("inside other packets: {error}"))?;
    check_streams(graph, layout)
}

/// Checks that acknowledged <= delivered <= sent, in bytes of each TCP flow. A PEP acknowledges data
/// before they are delivered.
fn check_streams(graph: &Graph<Node>, layout: &Layout) -> Result<(), String> {
    for (flow, &ends) in (0..).zip(&layout.flows) {
        let Some([sent, delivered, acked]) = stream_bytes(graph, ends) else { continue };
        let is_early = acked > delivered && !is_split(graph, layout, FlowId(flow));
        if is_early || delivered > sent || acked > sent {
            return Err(format!(
                "flow {flow}: {sent} bytes sent, {delivered} delivered, {acked} acknowledged"
            ));
        }
    }
    Ok(())
}

/// Bytes sent, delivered and acknowledged of a TCP flow.
fn stream_bytes(graph: &Graph<Node>, ends: Ends) -> Option<[u64; 3]> {
    let bytes = |node| Some(graph.engine(node).end().tcp()?.stream_bytes());
    let (sender, receiver) = (bytes(ends.sender)?, bytes(ends.receiver)?);
    Some([sender.sent, receiver.delivered, sender.acked])
}
