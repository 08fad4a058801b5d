//! The tables of one run as bytes (a record), and the tables of many records as columns.
//!
//! A record begins with whether all traffic ended, the time of the end in ns, the packet-hops and
//! the rows of each table. Then each table has one byte per column, which says whether the column
//! has a validity, and its columns: values, then validity. Numbers are little-endian. Samples and
//! events are left out. A record is read by the version that wrote it.

use std::borrow::Cow;
use std::fmt;

use bentpipe_core::time::Instant;

use super::{Column, ColumnSchema, Dtype, Table, TableSchema, Values, table_schema};

const LEFT_OUT: [&str; 4] = ["flow_samples", "datagram_samples", "direction_samples", "events"];

/// A column as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawColumn {
    /// The column's name.
    pub name: Cow<'static, str>,
    /// The type of its values.
    pub dtype: Dtype,
    /// The values, little-endian; 0 for a missing value.
    pub data: Vec<u8>,
    /// One byte per row, 0 for a missing value; `None` if no value is missing.
    pub present: Option<Vec<u8>>,
}

/// A record that [`pack`] has not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordError;

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the record of a run is damaged")
    }
}

impl std::error::Error for RecordError {}

impl From<Column> for RawColumn {
    fn from(Column { name, values, present }: Column) -> Self {
        let (dtype, data) = match values {
            Values::U8(values) => (Dtype::U8, values),
            Values::U32(values) => (Dtype::U32, bytes(&values, |value| value.to_le_bytes())),
            Values::U64(values) => (Dtype::U64, bytes(&values, |value| value.to_le_bytes())),
            Values::F64(values) => (Dtype::F64, bytes(&values, |value| value.to_le_bytes())),
        };
        Self { name, dtype, data, present }
    }
}

fn bytes<T: Copy, const N: usize>(values: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut data = Vec::with_capacity(N * values.len());
    values.iter().for_each(|&value| data.extend_from_slice(&to_bytes(value)));
    data
}

/// The tables of a record, in order.
pub fn record_schema() -> impl Iterator<Item = TableSchema> {
    table_schema().into_iter().filter(|table| !LEFT_OUT.contains(&table.name))
}

/// The record of a run.
#[must_use]
pub(crate) fn pack(completed: bool, end: Instant, packet_hops: u64, tables: Vec<Table>) -> Vec<u8> {
    let tables = tables.into_iter().filter(|table| !LEFT_OUT.contains(&table.name));
    let columns = tables.flat_map(|table| table.columns).map(RawColumn::from);
    let columns: Vec<_> = columns.map(|column| (column.data, column.present)).collect();
    pack_columns(completed, end.as_nanos(), packet_hops, &columns)
        .expect("a run has the columns of the schema")
}

/// The record of a run from its columns: the bytes and the validity of each, in the order of
/// [`record_schema`].
///
/// # Errors
/// There are fewer or more columns.
pub fn pack_columns<B: AsRef<[u8]>>(
    completed: bool,
    end_ns: u64,
    packet_hops: u64,
    columns: &[(B, Option<B>)],
) -> Result<Vec<u8>, RecordError> {
    let mut record = vec![completed.into()];
    record.extend(end_ns.to_le_bytes());
    record.extend(packet_hops.to_le_bytes());
    let mut body = Vec::new();
    let mut rest = columns;
    for TableSchema { columns: schema, .. } in record_schema() {
        let (table, others) = rest.split_at_checked(schema.len()).ok_or(RecordError)?;
        rest = others;
        let rows = table[0].0.as_ref().len() / schema[0].dtype.bytes();
        record.extend(u32::try_from(rows).map_err(|_| RecordError)?.to_le_bytes());
        body.extend(table.iter().map(|(_, present)| u8::from(present.is_some())));
        for (data, present) in table {
            body.extend_from_slice(data.as_ref());
            present.iter().for_each(|present| body.extend_from_slice(present.as_ref()));
        }
    }
    record.append(&mut body);
    if rest.is_empty() { Ok(record) } else { Err(RecordError) }
}

/// The columns of many records: first a table `runs` with a row per record, then those of
/// [`record_schema`] with the index of the record in front, as column `run`.
///
/// # Errors
/// A record is damaged.
pub fn unpack<R: AsRef<[u8]>>(
    records: &[R],
) -> Result<Vec<(&'static str, Vec<RawColumn>)>, RecordError> {
    let column = |name, dtype| RawColumn::empty(Cow::Borrowed(name), dtype);
    let mut runs = [("completed", Dtype::U8), ("end_ns", Dtype::U64), ("packet_hops", Dtype::U64)]
        .map(|(name, dtype)| column(name, dtype));
    let mut tables: Vec<(_, Vec<_>)> = record_schema()
        .map(|TableSchema { name, columns, .. }| {
            let own = columns
                .into_iter()
                .map(|ColumnSchema { name, dtype, .. }| RawColumn::empty(name, dtype));
            (name, std::iter::once(column("run", Dtype::U32)).chain(own).collect())
        })
        .collect();
    for (run, record) in (0u32..).zip(records) {
        let mut reader = Reader(record.as_ref());
        for fact in &mut runs {
            fact.data.extend_from_slice(reader.take(fact.dtype.bytes())?);
        }
        let mut rows = Reader(reader.take(Dtype::U32.bytes() * tables.len())?);
        for (_, columns) in &mut tables {
            let rows = rows.u32()? as usize;
            let (index, columns) = columns.split_first_mut().ok_or(RecordError)?;
            index.data.extend(std::iter::repeat_n(run.to_le_bytes(), rows).flatten());
            let flags = reader.take(columns.len())?;
            for (column, &has_validity) in columns.iter_mut().zip(flags) {
                column.read(&mut reader, rows, has_validity != 0)?;
            }
        }
        if !reader.0.is_empty() {
            return Err(RecordError);
        }
    }
    tables.insert(0, ("runs", runs.into()));
    Ok(tables)
}

impl RawColumn {
    fn empty(name: Cow<'static, str>, dtype: Dtype) -> Self {
        Self { name, dtype, data: Vec::new(), present: None }
    }

    /// Appends the rows of a record.
    fn read(
        &mut self,
        reader: &mut Reader<'_>,
        rows: usize,
        has_validity: bool,
    ) -> Result<(), RecordError> {
        let before = self.data.len() / self.dtype.bytes();
        self.data.extend_from_slice(reader.take(rows * self.dtype.bytes())?);
        if has_validity {
            let present = self.present.get_or_insert_with(|| vec![1; before]);
            present.extend_from_slice(reader.take(rows)?);
        } else if let Some(present) = &mut self.present {
            present.resize(before + rows, 1);
        }
        Ok(())
    }
}

/// The bytes of a record that were not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], RecordError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(RecordError)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        let bytes = self.take(4)?.try_into().map_err(|_| RecordError)?;
        Ok(u32::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Columns = Vec<(Vec<u8>, Option<Vec<u8>>)>;

    /// The columns of a run with one flow, whose `column` has a validity, and no other rows.
    fn columns(column: usize, present: Option<u8>) -> Columns {
        let mut tables = record_schema();
        let flows = tables.next().map(|table| table.columns).unwrap_or_default();
        let row = |column: ColumnSchema| (vec![7; column.dtype.bytes()], None);
        let mut columns: Columns = flows.into_iter().map(row).collect();
        columns[column].1 = present.map(|present| vec![present]);
        columns.extend(tables.flat_map(|table| table.columns).map(|_| (Vec::new(), None)));
        columns
    }

    fn flows(records: &[Vec<u8>]) -> Vec<RawColumn> {
        let tables = unpack(records).expect("records of this version");
        tables.into_iter().find(|&(name, _)| name == "flows").expect("a table of flows").1
    }

    #[test]
    fn records_are_joined_with_their_index_and_their_validity() {
        let of = |present| pack_columns(true, 1, 2, &columns(3, present)).expect("all columns");
        let flows = flows(&[of(None), of(Some(0)), of(None), of(Some(1))]);
        assert_eq!(flows[0].data, [0u32, 1, 2, 3].map(u32::to_le_bytes).concat());
        // The column of the index is in front.
        assert_eq!(flows[4].present, Some(vec![1, 0, 1, 1]));
        assert_eq!(flows[4].data.len(), 4 * flows[4].dtype.bytes());
        assert_eq!(flows[5].present, None);
    }

    #[test]
    fn the_facts_of_runs_are_a_table() {
        let record = |ended, end_ns| pack_columns(ended, end_ns, 5, &columns(0, None));
        let records = [record(true, 3).expect("a record"), record(false, 4).expect("a record")];
        let tables = unpack(&records).expect("records of this version");
        let (name, runs) = &tables[0];
        assert_eq!(*name, "runs");
        assert_eq!(runs[0].data, [1, 0]);
        assert_eq!(runs[1].data, [3u64, 4].map(u64::to_le_bytes).concat());
        assert_eq!(runs[2].data, [5u64, 5].map(u64::to_le_bytes).concat());
    }

    #[test]
    fn a_record_of_any_other_length_is_damaged() {
        let record = pack_columns(true, 1, 2, &columns(0, Some(1))).expect("all columns");
        for length in 0..record.len() {
            assert_eq!(unpack(&[&record[..length]]), Err(RecordError), "{length} bytes");
        }
        assert_eq!(unpack(&[[record, vec![0]].concat()]), Err(RecordError));
    }

    #[test]
    fn a_run_has_all_columns_and_no_others() {
        let mut columns = columns(0, None);
        columns.push((Vec::new(), None));
        assert_eq!(pack_columns(true, 1, 2, &columns), Err(RecordError));
        columns.truncate(columns.len() - 2);
        assert_eq!(pack_columns(true, 1, 2, &columns), Err(RecordError));
    }
}
