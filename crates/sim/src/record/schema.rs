//! The schema of the result tables: the only list of their columns, with units and meanings.

use std::borrow::Cow;

/// A result table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSchema {
    /// The table's name.
    pub name: &'static str,
    /// What a row describes.
    pub row: &'static str,
    /// The columns, in the order in which they are written.
    pub columns: Vec<ColumnSchema>,
}

/// A column of a result table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnSchema {
    /// The column's name.
    pub name: Cow<'static, str>,
    /// The type of its values.
    pub dtype: Dtype,
    /// Whether values can be missing. A missing value means that the event did not happen.
    pub nullable: bool,
    /// The unit of its values.
    pub unit: &'static str,
    /// What a value means, in one line.
    pub meaning: Cow<'static, str>,
}

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the types of Rust")]
pub enum Dtype {
    U8,
    U32,
    U64,
    F64,
}

impl Dtype {
    /// The type's name in Rust.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::F64 => "f64",
        }
    }

    /// The size of a value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U32 => 4,
            Self::U64 | Self::F64 => 8,
        }
    }
}

impl ColumnSchema {
    pub(super) fn u8(
        name: &'static str,
        unit: &'static str,
        meaning: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(name, Dtype::U8, unit, meaning)
    }

    pub(super) fn u32(
        name: &'static str,
        unit: &'static str,
        meaning: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(name, Dtype::U32, unit, meaning)
    }

    pub(super) fn u64(
        name: impl Into<Cow<'static, str>>,
        unit: &'static str,
        meaning: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(name, Dtype::U64, unit, meaning)
    }

    pub(super) fn f64(
        name: &'static str,
        unit: &'static str,
        meaning: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(name, Dtype::F64, unit, meaning)
    }

    /// The same column, whose values can be missing.
    pub(super) fn nullable(self) -> Self {
        Self { nullable: true, ..self }
    }

    fn new(
        name: impl Into<Cow<'static, str>>,
        dtype: Dtype,
        unit: &'static str,
        meaning: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { name: name.into(), dtype, nullable: false, unit, meaning: meaning.into() }
    }
}
