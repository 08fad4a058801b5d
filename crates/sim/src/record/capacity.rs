//! The `capacity` table: how the transmitter of a direction was used in the time of each TCP flow.

use std::sync::Arc;

use bentpipe_core::graph::Graph;
use bentpipe_core::link::FlowUse;
use bentpipe_core::packet::{FlowId, LimitedBy};
use bentpipe_core::time::{Duration, Instant};

use super::flows::TcpFlow;
use super::{Cell, ColumnSchema, Table, TableSchema};
use crate::build::{Ends, Layout};
use crate::node::Node;

type Column = ColumnSchema;

/// A direction that carries the data of more TCP flows does not count its use by each: that takes some
/// instructions per packet, and results show so many flows by entry only.
const FLOWS_MAX: usize = 12;

/// Makes the directions count their use by the TCP flows whose data they carry.
pub(crate) fn count_use(graph: &mut Graph<Node>, layout: &Layout) {
    let mut starts = vec![Vec::new(); layout.directions.len()];
    let mut account_of = Vec::new();
    for ends in &layout.flows {
        let is_counted = graph.engine(ends.sender).end().counts_use();
        let starts: &mut Vec<Instant> = &mut starts[ends.direction as usize];
        account_of.push(if is_counted { starts.len() as u32 } else { u32::MAX });
        starts.extend(is_counted.then_some(ends.start));
    }
    let account_of: Arc<[u32]> = account_of.into();
    for starts in &mut starts {
        if starts.len() > FLOWS_MAX {
            starts.clear();
        }
    }
    for (&node, starts) in layout.directions.iter().zip(&starts) {
        if !starts.is_empty() {
            graph.engine_mut(node).direction().count_use(starts, Arc::clone(&account_of));
        }
    }
}

/// One row for each TCP flow that started before the end of the run, at `end`.
pub(crate) fn capacity_table(graph: &mut Graph<Node>, layout: &Layout, end: Instant) -> Table {
    let mut table = Table::new(capacity_schema());
    for (flow, &ends) in (0..).map(FlowId).zip(&layout.flows) {
        if ends.start < end
            && let Some(row) = row(graph, layout, flow, ends, end)
        {
            table.push(row);
        }
    }
    table
}

fn row(
    graph: &mut Graph<Node>,
    layout: &Layout,
    flow: FlowId,
    ends: Ends,
    end: Instant,
) -> Option<Vec<Cell>> {
    let TcpFlow { sender, receiver, finished } = TcpFlow::of(graph, ends, end)?;
    let dropped_bytes = graph.drops().transmitted_payload_bytes(flow);
    let recovered_bytes = graph.drops().recovered_payload_bytes(flow);
    let direction = graph.engine_mut(layout.directions[ends.direction as usize]).direction();
    let last_delivery = receiver.last_delivery.filter(|_| finished.is_some());
    let (used, last_delay) = match last_delivery {
        Some(last) => {
            let used = direction.use_of_finished(flow)?;
            (used, last.saturating_since(used.until))
        }
        None => (direction.use_of_unfinished(flow, end, sender.limited_by)?, Duration::ZERO),
    };
    let FlowUse { sending, sent_bits, payload_bytes, idle, others, outage, until } = used;
    let mut cells: Vec<Cell> = vec![
        u64::from(flow.0).into(),
        (until + last_delay).as_nanos().into(),
        sending.as_nanos().into(),
        others.as_nanos().into(),
        outage.as_nanos().into(),
        last_delay.as_nanos().into(),
    ];
    cells.extend(idle.map(|time| Cell::from(time.as_nanos())));
    let discarded_bytes = receiver.discarded_bytes;
    let counts = [sent_bits, payload_bytes, dropped_bytes, recovered_bytes, discarded_bytes];
    cells.extend(counts.map(Cell::from));
    Some(cells)
}

pub(super) fn capacity_schema() -> TableSchema {
    let mut columns = vec![
        Column::u32("flow", "index", "Index of the flow in the plan."),
        Column::u64(
            "until_ns",
            "ns",
            "End of the flow's time: its last delivery, or the end of the run. The times add up to the time from its start.",
        ),
        Column::u64("sending_ns", "ns", "Time for which packets of the flow were sent."),
        Column::u64("other_traffic_ns", "ns", "Time for which other packets were sent."),
        Column::u64("outage_ns", "ns", "Time for which the rate was zero."),
        Column::u64(
            "last_delay_ns",
            "ns",
            "Time from the end of the flow's last data packet to its delivery.",
        ),
    ];
    columns.extend(LimitedBy::ALL.map(|limit| {
        let by = match limit {
            LimitedBy::Application => "the application",
            LimitedBy::Handshake => "the handshake",
            LimitedBy::ReceiveWindow => "the receiver's window",
            LimitedBy::SendBuffer => "the send buffer",
            LimitedBy::SlowStart => "slow start",
            LimitedBy::CongestionAvoidance => "congestion control after slow start",
            LimitedBy::Recovery => "loss recovery",
            LimitedBy::Gateway => "the packet processor of a gateway",
            LimitedBy::AccessLine => "the access line of a host",
        };
        let meaning = format!("Time for which nothing was sent, because {by} limited the flow.");
        Column::u64(format!("idle_{}_ns", limit.name()), "ns", meaning)
    }));
    let app = "application bytes";
    columns.extend([
        Column::u64("sent_bits", "link bits", "Sent for the flow, framing included."),
        Column::u64("payload_bytes", app, "Sent for the flow, retransmissions included."),
        Column::u64("dropped_bytes", app, "Dropped after the link had sent them."),
        Column::u64(
            "recovered_bytes",
            app,
            "Dropped anywhere, and recovered by the decoder of a tunnel.",
        ),
        Column::u64(
            "discarded_bytes",
            app,
            "Discarded by the receiver: duplicates, and data beyond the window.",
        ),
    ]);
    TableSchema {
        name: "capacity",
        row: "the use of the link's transmitter in the time of one TCP flow",
        columns,
    }
}
