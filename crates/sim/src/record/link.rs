//! The tables of the hop: its directions, and the processors at its ends.

use bentpipe_core::engine::Count;
use bentpipe_core::link::{Counters, ProcessorCounters};
use bentpipe_core::time::Instant;
use bentpipe_core::trace::DropCause;

use super::{Cell, Kind, Table};

/// What can happen to a packet in a direction.
fn causes() -> impl Iterator<Item = DropCause> {
    let elsewhere = [DropCause::ProcessorOverload, DropCause::NoRoute];
    DropCause::ALL.into_iter().filter(move |cause| !elsewhere.contains(cause))
}

fn dropped_packets(cause: DropCause) -> (String, Kind) {
    (format!("dropped_packets_{}", cause.name()), Kind::U64)
}

fn dropped_bytes(cause: DropCause) -> (String, Kind) {
    (format!("dropped_bytes_{}", cause.name()), Kind::U64)
}

/// The `direction_samples` table.
pub(crate) struct DirectionSamples(Table);

impl DirectionSamples {
    pub(crate) fn new() -> Self {
        let head = Table::new(
            "direction_samples",
            &[
                ("time_ns", Kind::U64),
                ("direction", Kind::U32),
                ("queue_bytes", Kind::U64),
                ("queue_packets", Kind::U64),
                ("in_flight_bytes", Kind::U64),
                ("sent_bytes", Kind::U64),
                ("sent_packets", Kind::U64),
                ("delivered_bytes", Kind::U64),
                ("marked_packets", Kind::U64),
            ],
        );
        Self(head.with(causes().map(dropped_packets)))
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
        let dropped = causes().map(|cause| counters.dropped[cause as usize].packets.into());
        self.0.push(row.into_iter().chain(dropped));
    }

    pub(crate) fn rows(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn table(self) -> Table {
        self.0
    }
}

/// What a row of samples takes.
pub(crate) fn direction_sample_bytes() -> u64 {
    DirectionSamples::new().0.row_bytes()
}

/// What a direction did: what came in, what is held, and its counters.
pub(crate) struct DirectionFacts {
    pub(crate) received: Count,
    pub(crate) held: Count,
    pub(crate) counters: Counters,
}

/// One row a direction, in the order of their numbers.
pub(crate) fn directions_table(directions: &[DirectionFacts]) -> Table {
    let head = Table::new(
        "directions",
        &[
            ("direction", Kind::U32),
            ("received_packets", Kind::U64),
            ("received_bytes", Kind::U64),
            ("sent_packets", Kind::U64),
            ("sent_bytes", Kind::U64),
            ("delivered_packets", Kind::U64),
            ("delivered_bytes", Kind::U64),
            ("marked_packets", Kind::U64),
            ("marked_bytes", Kind::U64),
        ],
    );
    let dropped = causes().flat_map(|cause| [dropped_packets(cause), dropped_bytes(cause)]);
    let rest = ["held_packets", "held_bytes", "busy_ns", "queue_bytes_max"];
    let rest = rest.map(|name| (name.to_owned(), Kind::U64));
    let mut table = head.with(dropped).with(rest);
    for (number, DirectionFacts { received, held, counters }) in (0u64..).zip(directions) {
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
        let dropped = causes().flat_map(|cause| cells(counters.dropped[cause as usize]));
        let rest: [Cell; 4] = [
            held.packets.into(),
            held.bytes.into(),
            counters.busy.as_nanos().into(),
            counters.queue_bytes_max.into(),
        ];
        table.push(row.into_iter().chain(dropped).chain(rest));
    }
    table
}

/// What a processor counted, by the names of columns.
#[must_use]
pub fn processor_values(counters: &ProcessorCounters) -> Vec<(String, u64)> {
    let mut values = Vec::new();
    let ProcessorCounters { received, forwarded, dropped, .. } = counters;
    for (what, sides) in [("received", received), ("forwarded", forwarded), ("dropped", dropped)] {
        for (side, count) in ["lan", "link"].into_iter().zip(sides) {
            values.push((format!("{what}_packets_{side}"), count.packets));
            values.push((format!("{what}_bytes_{side}"), count.bytes));
        }
    }
    let rest = [
        ("held_packets", counters.held.packets),
        ("held_bytes", counters.held.bytes),
        ("busy_ns", counters.busy.as_nanos()),
    ];
    values.extend(rest.map(|(name, value)| (name.to_owned(), value)));
    values
}

/// One row a processor that exists: 0 is the hub's, 1 + t that of terminal t.
pub(crate) fn processors_table(
    processors: impl Iterator<Item = (u32, ProcessorCounters)>,
) -> Table {
    let names = processor_values(&ProcessorCounters::default()).into_iter().map(|value| value.0);
    let columns = names.map(|name| (name, Kind::U64));
    let mut table = Table::new("processors", &[("processor", Kind::U32)]).with(columns);
    for (number, counters) in processors {
        let values = processor_values(&counters).into_iter().map(|value| value.1);
        table.push([u64::from(number)].into_iter().chain(values).map(Cell::from));
    }
    table
}

/// What functions of gateways count besides: a row each statistic of each, and the names of statistics.
pub(crate) fn statistics_table(
    engines: impl Iterator<Item = (u64, Vec<(&'static str, u64)>)>,
) -> (Table, Vec<&'static str>) {
    let columns = [("place", Kind::U32), ("statistic", Kind::U32), ("value", Kind::U64)];
    let (mut table, mut names) = (Table::new("function_statistics", &columns), Vec::new());
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
