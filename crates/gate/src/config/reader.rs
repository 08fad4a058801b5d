//! Tables of TOML, read field by field: all mistakes are collected, each with the path of its field.

use std::cell::RefCell;
use std::fmt;

use toml::{Table, Value};

use super::quantity::{Kind, Quantity};
use super::wording::{choice, did_you_mean, nearest, shown};

/// A file of another format would give hundreds.
const PROBLEMS_MAX: usize = 100;

/// A mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line of a file that is no TOML.
    pub line: Option<usize>,
    /// The path of the field, such as `lan.interfaces.0`; empty for the whole.
    pub field: String,
    /// What was read, and what is allowed.
    pub message: String,
}

/// The mistakes in a file, a line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// The path of the file, as it was given.
    pub source: String,
    /// One at least.
    pub problems: Vec<Problem>,
}

impl Problems {
    pub(crate) fn of_file(source: &str, message: impl Into<String>, line: Option<usize>) -> Self {
        let problem = Problem { line, field: String::new(), message: message.into() };
        Self { source: source.to_owned(), problems: vec![problem] }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, Problem { line, field, message }) in
            self.problems.iter().take(PROBLEMS_MAX).enumerate()
        {
            let separator = if place == 0 { "" } else { "\n" };
            let line = line.map_or_else(String::new, |line| format!(":{line}"));
            let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
            write!(f, "{separator}{}{line}: {field}{message}", self.source)?;
        }
        match self.problems.len().saturating_sub(PROBLEMS_MAX) {
            0 => Ok(()),
            1 => write!(f, "\n{}: and 1 more problem", self.source),
            more => write!(f, "\n{}: and {more} more problems", self.source),
        }
    }
}

impl std::error::Error for Problems {}

/// Collects mistakes.
#[derive(Debug, Default)]
pub(super) struct Mistakes(RefCell<Vec<Problem>>);

impl Mistakes {
    pub(super) fn add(&self, field: impl Into<String>, message: impl Into<String>) {
        let problem = Problem { line: None, field: field.into(), message: message.into() };
        self.0.borrow_mut().push(problem);
    }

    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn into_problems(self, source: &str) -> Result<(), Problems> {
        let problems = self.0.into_inner();
        if problems.is_empty() {
            return Ok(());
        }
        Err(Problems { source: source.to_owned(), problems })
    }
}

/// The fields of one table.
pub(super) struct Fields<'a> {
    table: &'a Table,
    path: String,
    mistakes: &'a Mistakes,
    /// The mistakes before this table.
    before: usize,
    /// Fields that unknown ones are thought to be.
    misspelt: Vec<&'static str>,
}

/// What a value is read as, or the end of a message.
pub(super) type Read<T> = Result<T, String>;

impl<'a> Fields<'a> {
    /// Refuses fields that are none of `names`.
    pub(super) fn new(
        table: &'a Table,
        path: String,
        mistakes: &'a Mistakes,
        names: &[&'static str],
    ) -> Self {
        let mut fields =
            Self { table, path, mistakes, before: mistakes.count(), misspelt: Vec::new() };
        for name in table.keys().filter(|name| !names.contains(&name.as_str())) {
            let near = did_you_mean(name, names);
            let here = names.join(", ");
            fields.refuse(name, format!("unknown field{near} (fields here: {here})"));
            let meant = nearest(name, names);
            fields.misspelt.extend(names.iter().find(|name| meant == Some(*name)));
        }
        fields
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(super) fn refuse(&self, name: &str, message: impl Into<String>) {
        self.mistakes.add(self.path_of(name), message);
    }

    /// Refuses the table as a whole.
    pub(super) fn refuse_whole(&self, message: impl Into<String>) {
        self.mistakes.add(self.path.clone(), message);
    }

    /// Whether all fields that were read are right.
    pub(super) fn are_right(&self) -> bool {
        self.mistakes.count() == self.before
    }

    /// A field that may be left out.
    pub(super) fn read<T>(&self, name: &str, read: impl Fn(&Value) -> Read<T>) -> Option<T> {
        let value = self.table.get(name)?;
        read(value).map_err(|message| self.refuse(name, message)).ok()
    }

    /// A field without a default.
    pub(super) fn required<T>(&self, name: &str, read: impl Fn(&Value) -> Read<T>) -> Option<T> {
        self.require(name);
        self.read(name, read)
    }

    /// Refuses a missing field, unless one was misspelt.
    fn require(&self, name: &str) {
        if !self.has(name) && !self.misspelt.contains(&name) {
            self.refuse(name, "missing; it has no default");
        }
    }

    /// The entries of a list, which are `min` at least and `max` at most.
    pub(super) fn list<T>(
        &self,
        name: &str,
        min: usize,
        max: usize,
        read: impl Fn(&Value) -> Read<T>,
    ) -> Option<Vec<T>> {
        let entries = self.entries(name, min, max)?;
        let read_entry = |(place, value)| {
            let refuse = |message| self.refuse(&format!("{name}.{place}"), message);
            read(value).map_err(refuse).ok()
        };
        Some(entries.iter().enumerate().filter_map(read_entry).collect())
    }

    /// A list with one entry at least.
    pub(super) fn required_list<T>(
        &self,
        name: &str,
        read: impl Fn(&Value) -> Read<T>,
    ) -> Option<Vec<T>> {
        self.require(name);
        self.list(name, 1, usize::MAX, read)
    }

    fn entries(&self, name: &str, min: usize, max: usize) -> Option<&'a Vec<Value>> {
        let entries = match self.table.get(name)? {
            Value::Array(entries) => entries,
            other => {
                self.refuse(name, format!("read {}; expected a list", shown(other)));
                return None;
            }
        };
        if entries.len() < min {
            self.refuse(name, "is empty; expected at least one entry");
        } else if entries.len() > max {
            let count = entries.len();
            self.refuse(name, format!("has {count} entries; at most {max} are allowed"));
        }
        Some(entries)
    }

    /// A table in this one, which may be left out.
    pub(super) fn table(&self, name: &str, names: &[&'static str]) -> Option<Fields<'a>> {
        self.inner(self.table.get(name)?, self.path_of(name), names)
    }

    /// A list of tables.
    pub(super) fn required_tables(
        &self,
        name: &str,
        max: usize,
        names: &[&'static str],
    ) -> Vec<Fields<'a>> {
        self.require(name);
        let path = self.path_of(name);
        let entries = self.entries(name, 1, max).into_iter().flatten().enumerate();
        entries
            .filter_map(|(place, value)| self.inner(value, format!("{path}.{place}"), names))
            .collect()
    }

    fn inner(&self, value: &'a Value, path: String, names: &[&'static str]) -> Option<Fields<'a>> {
        match value {
            Value::Table(table) => Some(Fields::new(table, path, self.mistakes, names)),
            other => {
                let read = shown(other);
                self.mistakes.add(path, format!("read {read}; expected a table (name = value)"));
                None
            }
        }
    }
}

/// Reads a text.
pub(super) fn text(value: &Value) -> Read<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("read {}; expected text", shown(value)))
}

/// Reads `true` or `false`.
pub(super) fn boolean(value: &Value) -> Read<bool> {
    value.as_bool().ok_or_else(|| format!("read {}; expected true or false", shown(value)))
}

/// Reads an integer from `min` to `max`.
pub(super) fn integer(min: i64, max: i64) -> impl Fn(&Value) -> Read<i64> {
    move |value| {
        let read = shown(value);
        match value.as_integer() {
            None => Err(format!("read {read}; expected an integer")),
            Some(number) if number < min => Err(format!("read {read}; must be at least {min}")),
            Some(number) if number > max => Err(format!("read {read}; must be at most {max}")),
            Some(number) => Ok(number),
        }
    }
}

/// Reads a number from `min` to `max`.
pub(super) fn number(min: f64, max: f64) -> impl Fn(&Value) -> Read<f64> {
    move |value| {
        let read = shown(value);
        match value.as_float().or_else(|| value.as_integer().map(|number| number as f64)) {
            Some(number) if number < min => Err(format!("read {read}; must be at least {min}")),
            Some(number) if number > max => Err(format!("read {read}; must be at most {max}")),
            Some(number) if number.is_finite() => Ok(number),
            _ => Err(format!("read {read}; expected a number")),
        }
    }
}

/// Reads one of some words.
pub(super) fn word(allowed: &'static [&'static str]) -> impl Fn(&Value) -> Read<&'static str> {
    move |value| {
        let read = value.as_str();
        let word = allowed.iter().copied().find(|word| read == Some(word));
        word.ok_or_else(|| choice(value, allowed))
    }
}

/// Reads a quantity.
pub(super) fn quantity(kind: &'static Kind) -> impl Fn(&Value) -> Read<Quantity> {
    move |value| kind.read(value)
}

/// Reads a quantity above zero.
pub(super) fn above_zero(kind: &'static Kind) -> impl Fn(&Value) -> Read<Quantity> {
    move |value| match kind.read(value)? {
        Quantity { text, value: 0 } => Err(format!("read \"{text}\": must be above zero")),
        quantity => Ok(quantity),
    }
}
