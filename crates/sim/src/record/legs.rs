//! The `legs` table: the TCP connections that PEPs split a flow into.

use bentpipe_core::graph::Graph;
use bentpipe_core::packet::FlowId;
use bentpipe_core::pep::FlowLegs;
use bentpipe_core::tcp::Totals;
use bentpipe_core::time::{Duration, Instant};

use super::flows::{TcpFlow, mean_ns};
use super::{Cell, ColumnSchema, Table, TableSchema};
use crate::build::{Ends, Layout};
use crate::node::Node;
use crate::plan::HUB;

type Column = ColumnSchema;

/// One row for each leg of each flow that a PEP has split, in the order of its data.
pub(crate) fn legs_table(graph: &Graph<Node>, layout: &Layout, end: Instant) -> Table {
    let mut table = Table::new(legs_schema());
    for (flow, &ends) in (0..).map(FlowId).zip(&layout.flows) {
        let splits = splits(graph, layout, (flow, ends), end);
        if splits.is_empty() {
            continue;
        }
        if let Some(of_hosts) = TcpFlow::of(graph, ends, end) {
            push_legs(&mut table, flow, &splits, &of_hosts);
        }
    }
    table
}

/// Whether a PEP has split a connection of a flow.
pub(crate) fn is_split(graph: &Graph<Node>, layout: &Layout, flow: FlowId) -> bool {
    let ends = layout.flows[flow.0 as usize];
    !splits(graph, layout, (flow, ends), Instant::START).is_empty()
}

/// A gateway that has split the flow: the legs towards the sender and the receiver of its data.
struct Split {
    gateway: u32,
    connections: u64,
    to_sender: Totals,
    to_receiver: Totals,
}

/// The gateways that have split a flow, in the order of its data.
fn splits(
    graph: &Graph<Node>,
    layout: &Layout,
    (flow, ends): (FlowId, Ends),
    end: Instant,
) -> Vec<Split> {
    let (hub, terminal) = (HUB, 1 + ends.terminal);
    let path = if ends.direction == HUB { [hub, terminal] } else { [terminal, hub] };
    let split = |(gateway, is_first): (u32, bool)| {
        let FlowLegs { connections, lan, link } = layout.functions[gateway as usize]
            .iter()
            .find_map(|&node| match graph.engine(node) {
                Node::Pep(pep) => pep.legs(flow, end),
                _ => None,
            })?;
        let (to_sender, to_receiver) = if is_first { (lan, link) } else { (link, lan) };
        Some(Split { gateway, connections, to_sender, to_receiver })
    };
    path.into_iter().zip([true, false]).filter_map(split).collect()
}

fn push_legs(table: &mut Table, flow: FlowId, splits: &[Split], of_hosts: &TcpFlow) {
    for leg in 0..=splits.len() {
        let (before, after) = (leg.checked_sub(1).map(|at| &splits[at]), splits.get(leg));
        let sender = before.map_or(&of_hosts.sender, |split| &split.to_receiver);
        let receiver = after.map_or(&of_hosts.receiver, |split| &split.to_sender);
        let gateway = |split: &Split| u64::from(split.gateway);
        let at = |instant: Option<Instant>| instant.map(Instant::as_nanos);
        let connections = before.or(after).map_or(0, |split| split.connections);
        let row: [Cell; 20] = [
            u64::from(flow.0).into(),
            (leg as u64).into(),
            before.map(gateway).into(),
            after.map(gateway).into(),
            connections.into(),
            at(sender.established).into(),
            sender.sent_bytes.into(),
            sender.acked_bytes.into(),
            receiver.delivered_bytes.into(),
            at(receiver.first_delivery).into(),
            at(receiver.last_delivery).into(),
            sender.counters.segments.into(),
            sender.counters.retransmitted_segments.into(),
            sender.counters.retransmitted_bytes.into(),
            sender.counters.timeouts.into(),
            sender.counters.fast_recoveries.into(),
            receiver.acks_sent.into(),
            receiver.data_segments_received.into(),
            sender.rtt_min.map(Duration::as_nanos).into(),
            mean_ns(sender.rtt_sum, sender.rtt_samples).into(),
        ];
        table.push(row);
    }
}

pub(super) fn legs_schema() -> TableSchema {
    let app = "application bytes";
    let columns = vec![
        Column::u32("flow", "index", "Index of the flow in the plan."),
        Column::u32("leg", "index", "Number of the leg, from the sender of the flow's data."),
        Column::u32("from_gateway", "index", "Gateway that sends; null for the flow's sender.")
            .nullable(),
        Column::u32("to_gateway", "index", "Gateway that receives; null for the flow's receiver.")
            .nullable(),
        Column::u64("connections", "connections", "Connections that were split."),
        Column::u64("established_ns", "ns", "End of the first handshake, at the leg's sender.")
            .nullable(),
        Column::u64("sent_bytes", app, "Sent, without retransmissions."),
        Column::u64("acked_bytes", app, "Acknowledged to the leg's sender."),
        Column::u64("delivered_bytes", app, "Delivered in order to the leg's receiver."),
        Column::u64("first_delivery_ns", "ns", "First delivery to the leg's receiver.").nullable(),
        Column::u64("last_delivery_ns", "ns", "Last delivery to the leg's receiver.").nullable(),
        Column::u64("sent_segments", "segments", "Data segments sent, with retransmissions."),
        Column::u64("retransmitted_segments", "segments", "Retransmitted data segments."),
        Column::u64("retransmitted_bytes", app, "Payload of the retransmitted segments."),
        Column::u64("timeouts", "events", "Retransmission timeouts."),
        Column::u64("fast_recoveries", "events", "Entries into fast recovery."),
        Column::u64("acks_sent", "segments", "Pure acknowledgements sent by the leg's receiver."),
        Column::u64("received_segments", "segments", "Data segments that arrived."),
        Column::u64("rtt_min_ns", "ns", "Minimum of the round-trip samples.").nullable(),
        Column::f64("rtt_mean_ns", "ns", "Mean of the round-trip samples.").nullable(),
    ];
    TableSchema { name: "legs", row: "one leg of a TCP flow that a PEP has split", columns }
}
