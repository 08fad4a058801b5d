//! The `pages` table: one row per web page, in order of their starts.

use bentpipe_core::graph::Graph;
use bentpipe_core::time::Instant;

use super::{Cell, ColumnSchema, Table, TableSchema};
use crate::build::Ends;
use crate::node::Node;
use crate::workload::Page;

/// Memory of a page: while a client's list grows, its old allocation and the new one, of twice the
/// size; then the list, the sorted rows, and the table with rows of 89 bytes.
pub(crate) const PAGE_BYTES: u64 =
    2 * size_of::<Page>() as u64 + size_of::<(u64, u64, Page)>() as u64 + 2 * 89;

pub(crate) fn pages_table(graph: &Graph<Node>, flows: &[Ends]) -> Table {
    let mut rows: Vec<(u64, u64, Page)> = Vec::new();
    for (flow, ends) in (0..).zip(flows) {
        let pages = (0..).zip(graph.engine(ends.receiver).end().pages());
        rows.extend(pages.map(|(number, page)| (flow, number, *page)));
    }
    // The sort is stable: simultaneous pages are in the order of their flows.
    rows.sort_by_key(|row| row.2.start);
    let mut table = Table::new(pages_schema());
    for (flow, number, page) in rows {
        let at = |instant: Option<Instant>| instant.map(Instant::as_nanos);
        let row: [Cell; 11] = [
            flow.into(),
            number.into(),
            page.start.as_nanos().into(),
            at(page.resolved).into(),
            at(page.established).into(),
            at(page.first_byte).into(),
            at(page.document).into(),
            at(page.finished).into(),
            page.objects.into(),
            page.connections.into(),
            page.response_bytes.into(),
        ];
        table.push(row);
    }
    table
}

pub(super) fn pages_schema() -> TableSchema {
    type Column = ColumnSchema;
    let time = |name, meaning| Column::u64(name, "ns", meaning).nullable();
    TableSchema {
        name: "pages",
        row: "one web page, in order of their starts",
        columns: vec![
            Column::u32("flow", "index", "Index of the flow in the plan."),
            Column::u64("page", "number", "Number of the page in its flow, from 0."),
            Column::u64("start_ns", "ns", "The click."),
            time("resolved_ns", "Arrival of the answer of the DNS; null without a lookup."),
            time(
                "established_ns",
                "End of the handshakes of TCP and TLS at the client, on the first connection.",
            ),
            time("first_byte_ns", "First byte of the document, at the client."),
            time("document_ns", "Last byte of the document, at the client."),
            time("finished_ns", "Last byte of the last object, at the client."),
            Column::u64("objects", "objects", "Objects beside the document."),
            Column::u64("connections", "connections", "Connections opened for the page."),
            Column::u64(
                "response_bytes",
                "application bytes",
                "Size of the document and of the objects that were requested.",
            ),
        ],
    }
}
