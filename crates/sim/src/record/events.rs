//! The `events` table.

use bentpipe_core::trace::{Event, EventKind, Trace};

use super::{Cell, ColumnSchema, Table, TableSchema};

/// Memory of an event: while the log grows, its old allocation and the new one, of twice the size;
/// then the log and the table, whose columns also double, with rows of 35 bytes; then the table and
/// its copies.
pub(crate) const EVENT_BYTES: u64 = 2 * size_of::<Event>() as u64 + 2 * 35;

/// A trace sink that records packet events. Places have the numbers of their engines.
#[derive(Debug, Default)]
pub(crate) struct EventLog(Vec<Event>);

impl Trace for EventLog {
    fn record(&mut self, event: &Event) {
        self.0.push(*event);
    }
}

pub(super) fn events_schema() -> TableSchema {
    type Column = ColumnSchema;
    TableSchema {
        name: "events",
        row: "one event of one packet; only if the scenario sets `packet_events`",
        columns: vec![
            Column::u64("time_ns", "ns", "Time of the event."),
            Column::u32("place", "name", "Where it happened, as an index into names.places."),
            Column::u8("kind", "name", "What happened, as an index into names.event_kinds."),
            Column::u8("cause", "name", "Cause of a drop, as an index into names.drop_causes.")
                .nullable(),
            Column::u32("flow", "index", "Index of the flow in the plan."),
            Column::u64("packet", "number", "The packet's number within the run."),
            Column::u64("bytes", "IP bytes", "Size of the packet."),
        ],
    }
}

impl EventLog {
    pub(crate) fn memory_bytes(&self) -> u64 {
        EVENT_BYTES * self.0.len() as u64
    }

    /// The table in order of time. Events are recorded out of order: a direction reports the start
    /// of a transmission in advance.
    pub(crate) fn table(mut self) -> Table {
        self.0.sort_by_key(|event| event.at);
        let mut table = Table::new(events_schema());
        for event in self.0 {
            let cause = match event.kind {
                EventKind::Dropped(cause) => Some(cause as u64),
                EventKind::Enqueued
                | EventKind::Transmitted
                | EventKind::Delivered
                | EventKind::Marked => None,
            };
            let row: [Cell; 7] = [
                event.at.as_nanos().into(),
                u64::from(event.node.0).into(),
                u64::from(event.kind.number()).into(),
                cause.into(),
                u64::from(event.flow.0).into(),
                event.packet.0.into(),
                u64::from(event.bytes).into(),
            ];
            table.push(row);
        }
        table
    }
}
