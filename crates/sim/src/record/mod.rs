//! Result tables: typed, contiguous columns.

mod capacity;
mod classes;
mod events;
mod exchanges;
mod flows;
mod legs;
mod link;
pub mod packed;
mod pages;
mod samples;
mod schema;

use std::borrow::Cow;

pub(crate) use capacity::{capacity_table, count_use};
pub(crate) use classes::classes_table;
pub(crate) use events::{EVENT_BYTES, EventLog};
pub(crate) use exchanges::{EXCHANGE_BYTES, exchanges_table};
pub(crate) use flows::flows_table;
pub(crate) use legs::{is_split, legs_table};
pub(crate) use link::{
    DirectionFacts, DirectionSamples, direction_sample_bytes, directions_table, processors_table,
    statistics_table,
};
pub(crate) use pages::{PAGE_BYTES, pages_table};
pub(crate) use samples::{DatagramSamples, FlowSamples, datagram_sample_bytes, flow_sample_bytes};

pub use classes::class_values;
pub use link::{drop_causes, processor_values, queue_values};

pub use schema::{ColumnSchema, Dtype, TableSchema};

/// The schema of every table that a run can write, in the order in which they are written. A run
/// without packet events writes no `events`.
#[must_use]
pub fn table_schema() -> Vec<TableSchema> {
    vec![
        flows::flows_schema(),
        exchanges::exchanges_schema(),
        pages::pages_schema(),
        legs::legs_schema(),
        capacity::capacity_schema(),
        link::directions_schema(),
        classes::classes_schema(),
        link::processors_schema(),
        link::statistics_schema(),
        samples::flow_samples_schema(),
        samples::datagram_samples_schema(),
        link::direction_samples_schema(),
        events::events_schema(),
    ]
}

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Indices into short lists of names: kinds of events, causes of drops.
    U8(Vec<u8>),
    /// Indices: of flows, hosts, gateways, directions, places.
    U32(Vec<u32>),
    /// Times, sizes, counts.
    U64(Vec<u64>),
    /// Means.
    F64(Vec<f64>),
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The column's name; that of a cause of drops or of a percentile is made at run time.
    pub name: Cow<'static, str>,
    /// The values; 0 for a missing value.
    pub values: Values,
    /// Validity of a nullable column: one byte per row, 0 for a missing value.
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

/// One value of a row. Real ones are means, which are missing without a sample.
#[derive(Clone, Copy, Debug)]
enum Cell {
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
    fn new(TableSchema { name, columns, .. }: TableSchema) -> Self {
        Self { name, columns: columns.into_iter().map(Column::new).collect() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the row does not match the schema.
    fn push(&mut self, row: impl IntoIterator<Item = Cell>) {
        let mut cells = row.into_iter();
        for column in &mut self.columns {
            column.push(cells.next().expect("a cell for each column"));
        }
        assert!(cells.next().is_none(), "the row has more cells than table {}", self.name);
    }

    /// Memory of a row, in three copies: while a column grows, its old allocation and the new one of
    /// twice the size; later the table, its copy for Python and the copy in the data frame.
    pub(crate) fn row_bytes(&self) -> u64 {
        const COPIES: u64 = 3;
        let width = |column: &Column| {
            let value = match &column.values {
                Values::U8(_) => 1,
                Values::U32(_) => 4,
                Values::U64(_) | Values::F64(_) => 8,
            };
            value + u64::from(column.present.is_some())
        };
        COPIES * self.columns.iter().map(width).sum::<u64>()
    }

    /// The number of rows.
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
    fn new(ColumnSchema { name, dtype, nullable, .. }: ColumnSchema) -> Self {
        let values = match dtype {
            Dtype::U8 => Values::U8(Vec::new()),
            Dtype::U32 => Values::U32(Vec::new()),
            Dtype::U64 => Values::U64(Vec::new()),
            Dtype::F64 => Values::F64(Vec::new()),
        };
        Self { name, values, present: nullable.then(Vec::new) }
    }

    fn push(&mut self, cell: Cell) {
        let (integer, real, is_present) = match cell {
            Cell::Integer(value) => (value, 0.0, true),
            Cell::MaybeInteger(value) => (value.unwrap_or(0), 0.0, value.is_some()),
            Cell::MaybeReal(value) => (0, value.unwrap_or(0.0), value.is_some()),
        };
        let is_real = matches!(cell, Cell::MaybeReal(_));
        assert_eq!(
            is_real,
            matches!(self.values, Values::F64(_)),
            "a real for column {}",
            self.name
        );
        match &mut self.values {
            Values::U8(values) => values.push(u8::try_from(integer).expect("fits its column")),
            Values::U32(values) => values.push(u32::try_from(integer).expect("fits its column")),
            Values::U64(values) => values.push(integer),
            Values::F64(values) => values.push(real),
        }
        match &mut self.present {
            Some(present) => present.push(is_present.into()),
            None => assert!(is_present, "column {} is not nullable", self.name),
        }
    }

    /// The integer of a row; `None` if it is missing, the column holds floats, or there is no such row.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Given the columns of all tables, expect one line of meaning each, that ends in a full stop,
    /// and the unit that the name says.
    #[test]
    fn columns_are_described() {
        for table in table_schema() {
            for ColumnSchema { name, unit, meaning, .. } in &table.columns {
                let at = format!("{}.{name}", table.name);
                assert!(meaning.ends_with('.') && !meaning.contains('\n'), "{at}: {meaning}");
                assert_eq!(name.split('_').any(|part| part == "ns"), *unit == "ns", "{at}: {unit}");
                let is_in_bytes = name.split('_').any(|part| part == "bytes");
                assert_eq!(is_in_bytes, unit.ends_with(" bytes"), "{at}: {unit}");
            }
        }
    }

    #[test]
    fn columns_of_a_table_have_different_names() {
        for table in table_schema() {
            let mut names: Vec<_> = table.columns.iter().map(|column| &column.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), table.columns.len(), "{}", table.name);
        }
    }
}
