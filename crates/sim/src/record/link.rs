//! The tables of directions and of gateway functions.

use bentpipe_core::engine::Count;
use bentpipe_core::link::{Counters, ProcessorCounters, QUEUE_DELAY_PERCENTILES, QueueStatistics};
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::DropCause;

use super::{Cell, ColumnSchema, Table, TableSchema};

type Column = ColumnSchema;

/// The causes for which a direction drops packets, with their meanings.
pub fn drop_causes() -> impl Iterator<Item = (DropCause, &'static str)> {
    let elsewhere = [DropCause::ProcessorOverload, DropCause::NoRoute];
    let of_directions = DropCause::ALL.into_iter().filter(move |cause| !elsewhere.contains(cause));
    of_directions.map(|cause| (cause, meaning_of(cause)))
}

pub(super) fn meaning_of(cause: DropCause) -> &'static str {
    match cause {
        DropCause::QueueFull => "the queue was full",
        DropCause::BitError => "a bit error or a loss on the channel",
        DropCause::ProcessorOverload => "the buffer of a processor was full",
        DropCause::Red => "random early detection",
        DropCause::Codel => "CoDel, at the head of the queue",
        DropCause::EarlyPacketDiscard => "early packet discard",
        DropCause::SelectiveDrop => "selective drop",
        DropCause::NoRoute => "the destination had no route",
    }
}

fn dropped_packets((cause, meaning): (DropCause, &str), when: &str) -> Column {
    let name = format!("dropped_{}_packets", cause.name());
    Column::u64(name, "packets", format!("Dropped{when}: {meaning}."))
}

fn dropped_bytes((cause, meaning): (DropCause, &str)) -> Column {
    let name = format!("dropped_{}_bytes", cause.name());
    Column::u64(name, "IP bytes", format!("Dropped: {meaning}."))
}

fn direction_number() -> Column {
    Column::u32("direction", "name", "The direction, as an index into names.directions.")
}

pub(super) fn direction_samples_schema() -> TableSchema {
    let mut columns = vec![
        Column::u64("time_ns", "ns", "Time of the sample, from the start of the run."),
        direction_number(),
        Column::u64("queue_bytes", "IP bytes", "Waiting in the queue."),
        Column::u64("queue_packets", "packets", "Waiting in the queue."),
        Column::u64("in_flight_bytes", "IP bytes", "Transmitted and still propagating."),
        Column::u64("sent_bytes", "link bytes", "Transmitted so far, framing included."),
        Column::u64("sent_packets", "packets", "Transmitted so far."),
        Column::u64("delivered_bytes", "IP bytes", "Delivered at the far end so far."),
        Column::u64("marked_packets", "packets", "Marked by the queue so far (ECN)."),
    ];
    columns.extend(drop_causes().map(|cause| dropped_packets(cause, " so far")));
    TableSchema { name: "direction_samples", row: "one direction of the link at one time", columns }
}

/// The `direction_samples` table.
pub(crate) struct DirectionSamples(Table);

impl DirectionSamples {
    pub(crate) fn new() -> Self {
        Self(Table::new(direction_samples_schema()))
    }

    pub(crate) fn push(&mut self, now: Instant, direction: u64, counters: &Counters) {
        let row: [Cell; 9] = [
            now.as_nanos().into(),
            direction.into(),
            counters.queue_bytes.into(),
            counters.queue_packets.into(),
            counters.in_flight_bytes.into(),
            (counters.sent_bits / 8).into(),
            counters.sent_packets.into(),
            counters.delivered.bytes.into(),
            counters.marked.packets.into(),
        ];
        let dropped =
            drop_causes().map(|(cause, _)| counters.dropped[cause as usize].packets.into());
        self.0.push(row.into_iter().chain(dropped));
    }

    pub(crate) fn rows(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn table(self) -> Table {
        self.0
    }
}

/// Memory of a row of samples.
pub(crate) fn direction_sample_bytes() -> u64 {
    DirectionSamples::new().0.row_bytes()
}

/// The statistics of a direction over the whole run.
pub(crate) struct DirectionFacts {
    pub(crate) received: Count,
    pub(crate) held: Count,
    pub(crate) counters: Counters,
    pub(crate) queue: QueueStatistics,
}

pub(super) fn directions_schema() -> TableSchema {
    let mut columns = vec![
        direction_number(),
        Column::u64("received_packets", "packets", "Received from the sending gateway."),
        Column::u64("received_bytes", "IP bytes", "Received from the sending gateway."),
        Column::u64("sent_packets", "packets", "Transmitted."),
        Column::u64("sent_bytes", "link bytes", "Transmitted, framing included."),
        Column::u64("delivered_packets", "packets", "Delivered at the far end."),
        Column::u64("delivered_bytes", "IP bytes", "Delivered at the far end."),
        Column::u64("marked_packets", "packets", "Marked by the queue (ECN)."),
        Column::u64("marked_bytes", "IP bytes", "Marked by the queue (ECN)."),
    ];
    columns
        .extend(drop_causes().flat_map(|cause| [dropped_packets(cause, ""), dropped_bytes(cause)]));
    let held = "Queued, being transmitted or in flight at the end.";
    columns.extend([
        Column::u64("held_packets", "packets", held),
        Column::u64("held_bytes", "IP bytes", held),
        Column::u64("busy_ns", "ns", "Time for which the transmitter was sending."),
        Column::u64("queue_max_bytes", "IP bytes", "Largest queue."),
    ]);
    columns.extend(queue_columns());
    TableSchema { name: "directions", row: "one direction of the link over the whole run", columns }
}

/// The columns of [`queue_values`].
fn queue_columns() -> Vec<Column> {
    let percentile = |percent| {
        let meaning = format!("{percent}th percentile of the delays in the queue.");
        Column::u64(format!("queue_delay_p{percent}_ns"), "ns", meaning).nullable()
    };
    let mut columns: Vec<_> = QUEUE_DELAY_PERCENTILES.map(percentile).into();
    columns.extend([
        Column::u64("queue_empty_ns", "ns", "Time for which no packet waited.").nullable(),
        Column::u64(
            "queue_full_ns",
            "ns",
            "Time for which the largest packet so far would have found no room.",
        )
        .nullable(),
    ]);
    columns
}

/// The statistics of a queue, by column name.
#[must_use]
pub fn queue_values(queue: &QueueStatistics) -> Vec<(String, Option<u64>)> {
    let names = queue_columns().into_iter().map(|column| column.name.into_owned());
    let times = [Some(queue.empty), Some(queue.full)];
    let values = queue.delays.into_iter().chain(times);
    names.zip(values.map(|time| time.map(Duration::as_nanos))).collect()
}

/// One row per direction, in the plan's order.
pub(crate) fn directions_table(directions: &[DirectionFacts]) -> Table {
    let mut table = Table::new(directions_schema());
    for (number, DirectionFacts { received, held, counters, queue }) in (0u64..).zip(directions) {
        let row: [Cell; 9] = [
            number.into(),
            received.packets.into(),
            received.bytes.into(),
            counters.sent_packets.into(),
            (counters.sent_bits / 8).into(),
            counters.delivered.packets.into(),
            counters.delivered.bytes.into(),
            counters.marked.packets.into(),
            counters.marked.bytes.into(),
        ];
        let dropped = drop_causes().flat_map(|(cause, _)| cells(counters.dropped[cause as usize]));
        let rest: [Cell; 4] = [
            held.packets.into(),
            held.bytes.into(),
            counters.busy.as_nanos().into(),
            counters.queue_max_bytes.into(),
        ];
        let queue = queue_values(queue).into_iter().map(|(_, value)| Cell::from(value));
        table.push(row.into_iter().chain(dropped).chain(rest).chain(queue));
    }
    table
}

/// The counters of a processor, by column name.
#[must_use]
pub fn processor_values(counters: &ProcessorCounters) -> Vec<(String, u64)> {
    let names = processor_columns().into_iter().map(|column| column.name.into_owned());
    names.zip(processor_counts(counters)).collect()
}

fn processor_counts(counters: &ProcessorCounters) -> Vec<u64> {
    let ProcessorCounters { received, forwarded, dropped, held, busy } = counters;
    let sides = [received, forwarded, dropped].into_iter().flatten();
    let counts = sides.chain([held]).flat_map(|count| [count.packets, count.bytes]);
    counts.chain([busy.as_nanos()]).collect()
}

/// The columns of [`processor_counts`].
fn processor_columns() -> Vec<Column> {
    let mut columns = Vec::new();
    for (what, then) in [
        ("received", ""),
        ("forwarded", " and forwarded"),
        ("dropped", " and dropped because the buffer was full"),
    ] {
        for (side, from) in [("lan", "from the hosts"), ("link", "from the link")] {
            let text = format!("Received {from}{then}.");
            columns.push(Column::u64(format!("{what}_{side}_packets"), "packets", text.clone()));
            columns.push(Column::u64(format!("{what}_{side}_bytes"), "IP bytes", text));
        }
    }
    let held = "Waiting or being processed at the end.";
    columns.extend([
        Column::u64("held_packets", "packets", held),
        Column::u64("held_bytes", "IP bytes", held),
        Column::u64("busy_ns", "ns", "Time for which the processor was busy."),
    ]);
    columns
}

pub(super) fn processors_schema() -> TableSchema {
    let number = "Number of the processor's gateway: 0 is the hub, 1 + t is terminal t.";
    let mut columns = vec![Column::u32("processor", "number", number)];
    columns.extend(processor_columns());
    let row = "one packet processor of a gateway over the whole run";
    TableSchema { name: "processors", row, columns }
}

/// One row per processor.
pub(crate) fn processors_table(
    processors: impl Iterator<Item = (u32, ProcessorCounters)>,
) -> Table {
    let mut table = Table::new(processors_schema());
    for (number, counters) in processors {
        let counts = processor_counts(&counters).into_iter();
        table.push([u64::from(number)].into_iter().chain(counts).map(Cell::from));
    }
    table
}

pub(super) fn statistics_schema() -> TableSchema {
    TableSchema {
        name: "function_statistics",
        row: "one counter of one gateway function over the whole run",
        columns: vec![
            Column::u32("place", "name", "The function, as an index into names.places."),
            Column::u32("statistic", "name", "The counter, as an index into names.statistics."),
            Column::u64("value", "see name", "The count; the counter's name ends in its unit."),
        ],
    }
}

/// The counters of gateway functions beyond those of the other tables, and the names of these
/// counters.
pub(crate) fn statistics_table(
    engines: impl Iterator<Item = (u64, Vec<(&'static str, u64)>)>,
) -> (Table, Vec<&'static str>) {
    let (mut table, mut names) = (Table::new(statistics_schema()), Vec::new());
    for (place, statistics) in engines {
        for (name, value) in statistics {
            let known = names.iter().position(|&known| known == name);
            let number = known.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            table.push([place.into(), (number as u64).into(), value.into()]);
        }
    }
    (table, names)
}

fn cells(count: Count) -> [Cell; 2] {
    [count.packets.into(), count.bytes.into()]
}
