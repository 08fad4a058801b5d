//! Quantities as they are written, such as `16 Mbit/s`, and values as quantities.
//!
//! A number is read exactly, as a decimal fraction: a quantity that is not an integer in its base unit (nanosecond, byte,
//! bit/s) is refused. Ambiguous spellings (`KB`, `mbps`, a bare number) are refused with a suggestion.
//! `tests/test_gateway_shared.py` compares the units and the messages with those of `bentpipe.units`.

use std::sync::LazyLock;

use toml::Value;

use super::wording::{nearest, shown};

/// So that a sum of two values fits into 64 bits.
const LARGEST: u128 = i64::MAX as u128;
const LONGEST_TEXT: usize = 64;
const LARGEST_EXPONENT: i64 = 30;
/// `u128` holds any number of as many digits.
const DIGITS_MAX: usize = 38;

const KI: u64 = 1 << 10;
const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;
const S: u64 = 1_000_000_000;
const G: u64 = 1_000_000_000;
const T: u64 = 1_000_000_000_000;

/// Refused spellings in lower case, and the units that each may stand for; the Python package reads the same table.
static SPELLINGS: LazyLock<Vec<(&str, Vec<&str>)>> = LazyLock::new(|| {
    let rows = include_str!("../../../../python/bentpipe/spellings.csv").lines();
    let rows = rows.filter(|row| !row.starts_with('#')).skip(1);
    rows.filter_map(|row| row.split_once(','))
        .map(|(spelling, units)| (spelling, units.split_whitespace().collect()))
        .collect()
});

/// A quantity as it was written, with its value in the base unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quantity {
    pub(crate) text: String,
    pub(crate) value: u64,
}

/// A kind of quantity.
pub(crate) struct Kind {
    noun: &'static str,
    base: &'static str,
    units: &'static [(&'static str, u64)],
    /// The units that messages name.
    shown: &'static [&'static str],
    example: &'static str,
    /// The units to format with, the largest first.
    scales: &'static [(&'static str, f64)],
}

pub(crate) static RATE: Kind = Kind {
    noun: "a rate",
    base: "bit/s",
    units: &[
        ("bit/s", 1),
        ("kbit/s", 1_000),
        ("Mbit/s", 1_000_000),
        ("Gbit/s", G),
        ("Tbit/s", T),
        ("bps", 1),
        ("kbps", 1_000),
        ("Mbps", 1_000_000),
        ("Gbps", G),
        ("Tbps", T),
        ("B/s", 8),
        ("kB/s", 8_000),
        ("MB/s", 8_000_000),
        ("GB/s", 8 * G),
        ("TB/s", 8 * T),
        ("KiB/s", 8 * KI),
        ("MiB/s", 8 * MI),
        ("GiB/s", 8 * GI),
    ],
    shown: &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "kB/s", "MB/s"],
    example: "16 Mbit/s",
    scales: &[("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)],
};
pub(crate) static DURATION: Kind = Kind {
    noun: "a time",
    base: "ns",
    units: &[
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("ms", 1_000_000),
        ("s", S),
        ("min", 60 * S),
        ("h", 3_600 * S),
    ],
    shown: &["ns", "us", "ms", "s", "min", "h"],
    example: "275 ms",
    scales: &[("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)],
};
pub(crate) static SIZE: Kind = Kind {
    noun: "a size",
    base: "byte",
    units: &[
        ("B", 1),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", G),
        ("TB", T),
        ("KiB", KI),
        ("MiB", MI),
        ("GiB", GI),
    ],
    shown: &["B", "kB", "MB", "GB", "KiB", "MiB", "GiB"],
    example: "120 kB",
    scales: &[("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)],
};
/// Units of a scenario that are none of a rate, a time or a size.
const OTHER_UNITS: [&str; 6] = ["packet", "packets", "pkt", "cell", "cells", "bdp"];

impl Kind {
    /// Reads a quantity.
    ///
    /// # Errors
    /// The end of a message: it is not of this kind, negative, not an integer in its base unit, or over 2^63-1.
    pub(crate) fn read(&self, value: &Value) -> Result<Quantity, String> {
        let what = self.what();
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => format!("{number:?}"),
            _ => return Err(format!("read {}: {what}", shown(value))),
        };
        let characters = text.chars().count();
        if characters > LONGEST_TEXT {
            return Err(format!("read a text of {characters} characters: {what}"));
        }
        let read = format!("read {}", shown(value));
        let refused = |why: &str| Err(format!("{read}: {why}"));
        let Some((number, unit)) = split(text.trim()) else { return refused(&what) };
        let Some((_, factor)) = self.units.iter().find(|(name, _)| *name == unit) else {
            return refused(&self.unit_advice(number, unit));
        };
        let decimal = Decimal::of(number);
        if decimal.exponent.abs() > LARGEST_EXPONENT {
            return refused(&format!("the exponent is beyond {LARGEST_EXPONENT}"));
        }
        if decimal.is_negative {
            return refused("must not be negative");
        }
        match decimal.times(*factor) {
            Scaled::Fraction => {
                refused(&format!("not an integer in its finest unit ({})", self.base))
            }
            Scaled::Integer(value) => Ok(Quantity { text, value }),
            Scaled::TooLarge => {
                refused(&format!("beyond 64 bits; the largest is {LARGEST} {}", self.base))
            }
        }
    }

    /// A value in the base unit, with four digits.
    pub(crate) fn format(&self, value: f64) -> String {
        // Rounded first: 999999.9 bit/s is "1 Mbit/s", not "1000 kbit/s".
        let rounded = four_digits(value);
        let larger = self.scales.iter().find(|(_, scale)| rounded.abs() >= *scale);
        let (unit, scale) = larger.or(self.scales.last()).copied().unwrap_or((self.base, 1.0));
        format!("{} {unit}", four_digits(value / scale))
    }

    fn what(&self) -> String {
        format!("{} is a number and a unit, such as \"{}\"", self.noun, self.example)
    }

    fn unit_advice(&self, number: &str, unit: &str) -> String {
        let spelt = |units: &[&str]| {
            either(&units.iter().map(|unit| format!("\"{number} {unit}\"")).collect::<Vec<_>>())
        };
        let noun = self.noun.trim_start_matches("a ");
        let allowed = self.shown.join(", ");
        let Some(first) = unit.chars().next() else {
            return format!("the unit is missing; write {}", spelt(&self.shown[..4]));
        };
        if !first.is_alphabetic() {
            return format!("{}, without separators in the number", self.what());
        }
        let mut known = [&RATE, &DURATION, &SIZE].into_iter().flat_map(|kind| kind.units);
        if known.any(|(name, _)| *name == unit) || OTHER_UNITS.contains(&unit) {
            return format!("\"{unit}\" is not a unit of {noun}; units of {noun}: {allowed}");
        }
        let candidates = self.readings(unit);
        let problem = match candidates.len() {
            0 => return format!("no unit \"{unit}\"; units of {noun}: {allowed}"),
            1 => format!("no unit \"{unit}\""),
            _ => format!("\"{unit}\" can be read in two ways"),
        };
        format!("{problem}; write {} (units: {allowed})", spelt(&candidates))
    }

    /// The allowed units that may be meant by a refused spelling, the best first.
    fn readings(&self, unit: &str) -> Vec<&'static str> {
        let folded = unit.replace(' ', "").to_lowercase();
        let is_own = |name: &&str| self.units.iter().any(|(own, _)| own == name);
        let meant: Vec<_> = SPELLINGS
            .iter()
            .find(|(spelling, _)| *spelling == folded)
            .map(|(_, units)| units.iter().copied().filter(is_own).collect())
            .unwrap_or_default();
        if !meant.is_empty() {
            return meant;
        }
        let same: Vec<_> =
            self.shown.iter().copied().filter(|name| name.to_lowercase() == folded).collect();
        if same.is_empty() { nearest(unit, self.shown).into_iter().collect() } else { same }
    }
}

fn either(choices: &[String]) -> String {
    match choices {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// A value with four digits, as a number that prints them.
fn four_digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// The number at the beginning of a text, and the rest without white space around it.
fn split(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let digits =
        |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let sign = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let whole = digits(sign);
    let mut end = sign + whole;
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    } else if whole == 0 {
        return None;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    Some((&text[..end], text[end..].trim()))
}

/// A decimal number: digits without zeros at either end, times a power of ten.
struct Decimal {
    digits: String,
    power: i64,
    /// The exponent as it was written.
    exponent: i64,
    is_negative: bool,
}

enum Scaled {
    Integer(u64),
    Fraction,
    TooLarge,
}

impl Decimal {
    /// The number that [`split`] has found.
    fn of(number: &str) -> Self {
        let is_negative = number.starts_with('-');
        let plain = number.trim_start_matches(['+', '-']).to_lowercase();
        let (mantissa, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
        // One of more digits is beyond any limit.
        let exponent: i64 = exponent.parse().unwrap_or(i64::MAX / 2);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let stripped = digits.trim_end_matches('0');
        let zeros = (digits.len() - stripped.len()) as i64;
        let power = exponent.saturating_add(zeros - fraction.len() as i64);
        let digits = stripped.trim_start_matches('0').to_owned();
        let is_negative = is_negative && !digits.is_empty();
        Self { digits, power, exponent, is_negative }
    }

    fn times(&self, factor: u64) -> Scaled {
        if self.digits.is_empty() {
            return Scaled::Integer(0);
        }
        if self.digits.len() > DIGITS_MAX {
            return if self.power < 0 { Scaled::Fraction } else { Scaled::TooLarge };
        }
        let mut value: u128 = self.digits.parse().unwrap_or(u128::MAX);
        let mut factor = u128::from(factor);
        // A product of both may be too large; each power of ten is a two and a five of either.
        for _ in self.power..0 {
            for prime in [2, 5] {
                if factor.is_multiple_of(prime) {
                    factor /= prime;
                } else if value.is_multiple_of(prime) {
                    value /= prime;
                } else {
                    return Scaled::Fraction;
                }
            }
        }
        let power = u32::try_from(self.power.max(0)).unwrap_or(u32::MAX);
        let product = 10_u128.checked_pow(power).and_then(|ten| ten.checked_mul(factor));
        match product.and_then(|factor| value.checked_mul(factor)) {
            Some(value) if value <= LARGEST => Scaled::Integer(value as u64),
            _ => Scaled::TooLarge,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: &Kind, text: &str) -> Result<u64, String> {
        kind.read(&Value::from(text)).map(|quantity| quantity.value)
    }

    /// Given exact quantities in several units, expect integers in the base unit.
    #[test]
    fn a_quantity_is_read_exactly() {
        for (kind, text, value) in [
            (&RATE, "16 Mbit/s", 16_000_000),
            (&RATE, "1.5kB/s", 12_000),
            (&DURATION, "0.1 us", 100),
            (&DURATION, " 124 min ", 7_440_000_000_000),
            (&DURATION, "1e-9 s", 1),
            (&DURATION, ".5e0 h", 1_800_000_000_000),
            (&DURATION, "0.00000000000000000000000000000000000000000 s", 0),
            (&SIZE, "64 KiB", 65_536),
            (&SIZE, "0.0009765625 KiB", 1),
            (&SIZE, "-0 B", 0),
            (&SIZE, "9223372036854775807 B", i64::MAX as u64),
        ] {
            assert_eq!(read(kind, text), Ok(value), "{text}");
        }
    }

    /// Given a wrong quantity, expect the reason, and the spelling that may be meant.
    #[test]
    fn a_wrong_quantity_is_refused_with_a_suggestion() {
        for (kind, text, message) in [
            (&SIZE, "64", "the unit is missing; write \"64 B\", \"64 kB\", \"64 MB\" or \"64 GB\""),
            (
                &SIZE,
                "64 KB",
                "\"KB\" can be read in two ways; write \"64 kB\" or \"64 KiB\" (units: ",
            ),
            (&SIZE, "64 ms", "\"ms\" is not a unit of size; units of size: B, kB"),
            (&SIZE, "64 packets", "\"packets\" is not a unit of size"),
            (&SIZE, "1,000 B", "without separators in the number"),
            (&SIZE, "0.5 B", "not an integer in its finest unit (byte)"),
            (&SIZE, "-1 B", "must not be negative"),
            (
                &SIZE,
                "9223372036854775808 B",
                "beyond 64 bits; the largest is 9223372036854775807 b",
            ),
            (&SIZE, "1e31 B", "the exponent is beyond 30"),
            (&SIZE, "1e99999999999999999999 B", "the exponent is beyond 30"),
            (&SIZE, "many", "a size is a number and a unit, such as \"120 kB\""),
            (&DURATION, "5 sec", "no unit \"sec\"; write \"5 s\" (units: ns, us, ms, s, min, h)"),
            (&RATE, "1 xyz", "no unit \"xyz\"; units of rate: bit/s"),
            (&RATE, "", "a rate is a number and a unit"),
            (&RATE, ".", "a rate is a number and a unit"),
        ] {
            let error = read(kind, text).expect_err(text);
            assert!(error.contains(message), "{error}");
        }
        let long = read(&RATE, &"1".repeat(65)).expect_err("too long");
        assert!(long.starts_with("read a text of 65 characters: a rate is"), "{long}");
        let list = RATE.read(&Value::Array(Vec::new())).expect_err("no text");
        assert!(list.starts_with("read a list: a rate is"), "{list}");
    }

    #[test]
    fn a_value_is_formatted_with_four_digits() {
        for (kind, value, text) in [
            (&SIZE, 123_456_789_012.0, "123.5 GB"),
            (&SIZE, 9_876_543_210_987.0, "9877 GB"),
            (&SIZE, 0.0, "0 B"),
            (&RATE, 999_999.9, "1 Mbit/s"),
            (&DURATION, 1_500_000.0, "1.5 ms"),
            (&DURATION, 35e9, "35 s"),
        ] {
            assert_eq!(kind.format(value), text);
        }
    }
}
