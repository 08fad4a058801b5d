//! The `events` table: what happened to each packet, where and when.

use bentpipe_core::trace::{Event, EventKind, Trace};

use super::{Cell, Kind, Table};

/// What a row of the table takes. While the log grows, its old and its new place, which is twice as
/// large; then the log and the row in the table, of 35 bytes, whose columns double as well; then the
/// table and its copies.
pub(crate) const EVENT_BYTES: u64 = 2 * size_of::<Event>() as u64 + 2 * 35;

/// Keeps what happened to packets for the `events` table. Engines that are
/// places have the place's number in the graph.
#[derive(Debug, Default)]
pub(crate) struct EventLog(Vec<Event>);

impl Trace for EventLog {
    fn record(&mut self, event: &Event) {
        self.0.push(*event);
    }
}

impl EventLog {
    pub(crate) fn memory_bytes(&self) -> u64 {
        EVENT_BYTES * self.0.len() as u64
    }

    /// The table in order of time; a direction reports the start of a transmission ahead.
    pub(crate) fn table(mut self) -> Table {
        self.0.sort_by_key(|event| event.at);
        let mut table = Table::new(
            "events",
            &[
                ("time_ns", Kind::U64),
                ("place", Kind::U32),
                ("kind", Kind::U8),
                ("cause", Kind::MaybeU8),
                ("flow", Kind::U32),
                ("packet", Kind::U64),
                ("bytes", Kind::U64),
            ],
        );
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
