//! Facts as columns: typed, contiguous, ready to be handed over as buffers.

mod flows;
mod heads;

use bentpipe_core::trace::{Event, EventKind, Trace};

pub(crate) use flows::flows_table;
pub(crate) use heads::{direction_samples_table, directions_table, flow_samples_table};

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Small enumerations.
    U8(Vec<u8>),
    /// Identities.
    U32(Vec<u32>),
    /// Times, sizes, counts.
    U64(Vec<u64>),
    /// Means.
    F64(Vec<f64>),
}

/// A named column. Where a value may be missing, `present` has a byte a row: 0 is missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The name ends in the unit.
    pub name: &'static str,
    /// The values; a missing one is 0.
    pub values: Values,
    /// Which values are there; `None` when all are.
    pub present: Option<Vec<u8>>,
}

/// Columns of equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The table's name.
    pub name: &'static str,
    /// Its columns, in order.
    pub columns: Vec<Column>,
}

/// The type of a column and whether values may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    MaybeU8,
    U32,
    U64,
    MaybeU64,
    MaybeF64,
}

/// One value of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell {
    Integer(u64),
    MaybeInteger(Option<u64>),
    MaybeReal(Option<f64>),
}

impl From<u64> for Cell {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<Option<u64>> for Cell {
    fn from(value: Option<u64>) -> Self {
        Self::MaybeInteger(value)
    }
}

impl From<Option<f64>> for Cell {
    fn from(value: Option<f64>) -> Self {
        Self::MaybeReal(value)
    }
}

impl Table {
    pub(crate) fn new(name: &'static str, columns: &[(&'static str, Kind)]) -> Self {
        let columns = columns.iter().map(|&(name, kind)| Column::new(name, kind)).collect();
        Self { name, columns }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If a cell does not fit its column: the row and the table's head disagree.
    pub(crate) fn push<const N: usize>(&mut self, row: [Cell; N]) {
        assert_eq!(N, self.columns.len(), "table {} has other columns", self.name);
        for (column, cell) in self.columns.iter_mut().zip(row) {
            column.push(cell);
        }
    }

    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.first().map_or(0, |column| match &column.values {
            Values::U8(values) => values.len(),
            Values::U32(values) => values.len(),
            Values::U64(values) => values.len(),
            Values::F64(values) => values.len(),
        })
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A column by name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

impl Column {
    fn new(name: &'static str, kind: Kind) -> Self {
        let values = match kind {
            Kind::U8 | Kind::MaybeU8 => Values::U8(Vec::new()),
            Kind::U32 => Values::U32(Vec::new()),
            Kind::U64 | Kind::MaybeU64 => Values::U64(Vec::new()),
            Kind::MaybeF64 => Values::F64(Vec::new()),
        };
        let present = match kind {
            Kind::U8 | Kind::U32 | Kind::U64 => None,
            Kind::MaybeU8 | Kind::MaybeU64 | Kind::MaybeF64 => Some(Vec::new()),
        };
        Self { name, values, present }
    }

    fn push(&mut self, cell: Cell) {
        let (integer, real, there) = match cell {
            Cell::Integer(value) => (value, 0.0, true),
            Cell::MaybeInteger(value) => (value.unwrap_or(0), 0.0, value.is_some()),
            Cell::MaybeReal(value) => (0, value.unwrap_or(0.0), value.is_some()),
        };
        match &mut self.values {
            Values::U8(values) => values.push(u8::try_from(integer).expect("fits its column")),
            Values::U32(values) => values.push(u32::try_from(integer).expect("fits its column")),
            Values::U64(values) => values.push(integer),
            Values::F64(values) => values.push(real),
        }
        match &mut self.present {
            Some(present) => present.push(there.into()),
            None => assert!(there, "column {} has no missing values", self.name),
        }
    }

    /// The integer in a row, if it is there and the column holds integers.
    #[must_use]
    pub fn integer(&self, row: usize) -> Option<u64> {
        if self.present.as_ref().is_some_and(|present| present.get(row) == Some(&0)) {
            return None;
        }
        match &self.values {
            Values::U8(values) => values.get(row).copied().map(u64::from),
            Values::U32(values) => values.get(row).copied().map(u64::from),
            Values::U64(values) => values.get(row).copied(),
            Values::F64(_) => None,
        }
    }
}

/// Keeps the events of the link's directions for the `events` table.
#[derive(Debug, Default)]
pub(crate) struct EventLog(Vec<Event>);

impl Trace for EventLog {
    fn record(&mut self, event: &Event) {
        self.0.push(*event);
    }
}

impl EventLog {
    /// The table in order of time; a direction reports the start of a transmission ahead.
    pub(crate) fn table(mut self) -> Table {
        self.0.sort_by_key(|event| event.at);
        let mut table = Table::new(
            "events",
            &[
                ("time_ns", Kind::U64),
                ("direction", Kind::U8),
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
                EventKind::Enqueued | EventKind::Transmitted | EventKind::Delivered => None,
            };
            table.push([
                event.at.as_nanos().into(),
                u64::from(event.node.0).into(),
                u64::from(event.kind.number()).into(),
                cause.into(),
                u64::from(event.flow.0).into(),
                event.packet.0.into(),
                u64::from(event.bytes).into(),
            ]);
        }
        table
    }
}
