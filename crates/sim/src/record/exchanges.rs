//! The `exchanges` table: one row per exchange, in order of their starts.

use bentpipe_core::graph::Graph;
use bentpipe_core::time::Instant;

use super::{Cell, ColumnSchema, Table, TableSchema};
use crate::build::Ends;
use crate::node::Node;
use crate::workload::Exchange;

/// Memory of an exchange: while a client's list grows, its old allocation and the new one, of twice
/// the size; then the list, the sorted rows, and the table with rows of 60 bytes.
pub(crate) const EXCHANGE_BYTES: u64 =
    2 * size_of::<Exchange>() as u64 + size_of::<(u64, u64, Exchange)>() as u64 + 2 * 60;

pub(crate) fn exchanges_table(graph: &Graph<Node>, flows: &[Ends]) -> Table {
    let mut rows: Vec<(u64, u64, Exchange)> = Vec::new();
    for (flow, ends) in (0..).zip(flows) {
        let exchanges = (0..).zip(graph.engine(ends.receiver).end().exchanges());
        rows.extend(exchanges.map(|(number, exchange)| (flow, number, *exchange)));
    }
    // The sort is stable: simultaneous exchanges are in the order of their flows.
    rows.sort_by_key(|row| row.2.start);
    let mut table = Table::new(exchanges_schema());
    for (flow, number, exchange) in rows {
        let at = |instant: Option<Instant>| instant.map(Instant::as_nanos);
        let row: [Cell; 9] = [
            flow.into(),
            number.into(),
            exchange.start.as_nanos().into(),
            at(exchange.established).into(),
            at(exchange.first_byte).into(),
            at(exchange.finished).into(),
            exchange.request_bytes.into(),
            exchange.response_bytes.into(),
            exchange.host.map(u64::from).into(),
        ];
        table.push(row);
    }
    table
}

pub(super) fn exchanges_schema() -> TableSchema {
    type Column = ColumnSchema;
    let app = "application bytes";
    TableSchema {
        name: "exchanges",
        row: "one request and its response, or one connection of a channel, in order of their starts",
        columns: vec![
            Column::u32("flow", "index", "Index of the flow in the plan."),
            Column::u64("exchange", "number", "Number of the exchange in its flow, from 0."),
            Column::u64(
                "start_ns",
                "ns",
                "When the client opened the connection, or sent the request on an open one.",
            ),
            Column::u64(
                "established_ns",
                "ns",
                "End of the handshake at the client; null if the connection was already open.",
            )
            .nullable(),
            Column::u64("first_byte_ns", "ns", "First byte of the response, at the client.")
                .nullable(),
            Column::u64("finished_ns", "ns", "Last byte of the response, at the client.")
                .nullable(),
            Column::u64("request_bytes", app, "Size of the request; 0 in a channel."),
            Column::u64("response_bytes", app, "Size of the response."),
            Column::u32("host", "index", "Host of the server in the plan's `hosts`, if it was drawn for this connection of a channel; null otherwise.").nullable(),
        ],
    }
}
