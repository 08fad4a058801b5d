//! The table of the classes of queues with a shared rate.

use bentpipe_core::link::{ClassUse, QUEUE_DELAY_PERCENTILES};
use bentpipe_core::time::Duration;

use super::{Cell, ColumnSchema as Column, Table, TableSchema};

pub(super) fn classes_schema() -> TableSchema {
    let direction = "The direction, as an index into names.directions.";
    let mut columns = vec![
        Column::u32("direction", "name", direction),
        Column::u32("class", "number", "Number of the class."),
    ];
    columns.extend(class_columns());
    let row = "one class of a `shared_rate` queue over the whole run";
    TableSchema { name: "classes", row, columns }
}

/// The columns of [`class_values`].
fn class_columns() -> Vec<Column> {
    let reserved = "Its reserved rate, framing included; null without one.";
    let mut columns = vec![
        Column::u64("reserved_bps", "bit/s", reserved).nullable(),
        Column::u64("sent_packets", "packets", "Transmitted."),
        Column::u64("sent_bytes", "link bytes", "Transmitted, framing included."),
        Column::u64("reserved_bytes", "link bytes", "Transmitted at the reserved rate."),
        Column::u64("dropped_packets", "packets", "Dropped by the queue of the class."),
        Column::u64("dropped_bytes", "IP bytes", "Dropped by the queue of the class."),
    ];
    columns.extend(QUEUE_DELAY_PERCENTILES.map(|percent| {
        let meaning = format!("{percent}th percentile of the delays in its queue.");
        Column::u64(format!("queue_delay_p{percent}_ns"), "ns", meaning).nullable()
    }));
    columns
}

/// What a class has sent and lost, by column name.
#[must_use]
pub fn class_values(usage: &ClassUse) -> Vec<(String, Option<u64>)> {
    let names = class_columns().into_iter().map(|column| column.name.into_owned());
    let counts = [
        usage.reserved_rate.map(|rate| rate.0),
        Some(usage.sent.packets),
        Some((usage.reserved.0 + usage.borrowed.0) / 8),
        Some(usage.reserved.0 / 8),
        Some(usage.dropped.packets),
        Some(usage.dropped.bytes),
    ];
    let delays = QUEUE_DELAY_PERCENTILES.map(|percent| usage.delay(percent));
    let delays = delays.map(|delay| delay.map(Duration::as_nanos));
    names.zip(counts.into_iter().chain(delays)).collect()
}

/// One row per class of each direction, by number.
pub(crate) fn classes_table(directions: impl Iterator<Item = Vec<ClassUse>>) -> Table {
    let mut table = Table::new(classes_schema());
    for (direction, classes) in (0u64..).zip(directions) {
        for (class, usage) in (0u64..).zip(classes) {
            let values = class_values(&usage).into_iter().map(|(_, value)| Cell::from(value));
            table.push([direction, class].map(Cell::from).into_iter().chain(values));
        }
    }
    table
}
