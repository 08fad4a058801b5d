//! Wording that all messages share: values as they were written, and suggestions of names.

use std::collections::BTreeMap;
use std::io;

use toml::Value;

const SHOWN_CHARACTERS_MAX: usize = 60;
/// A longer word is no misspelt name; comparing it would take a time that grows with its length.
const COMPARED_CHARACTERS_MAX: usize = 100;
/// The smallest similarity of a suggestion.
const CUTOFF: f64 = 0.6;

/// A value as it was written, shortened.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => shown_text(text),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(value) => value.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    }
}

/// A text in quotes, shortened.
pub(crate) fn shown_text(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS_MAX) {
        Some((end, _)) => format!("\"{}...\"", &text[..end]),
        None => format!("\"{text}\""),
    }
}

/// What was read, what is allowed, and the nearest allowed spelling.
pub(crate) fn choice<S: AsRef<str>>(read: &Value, allowed: &[S]) -> String {
    let names: Vec<_> = allowed.iter().map(AsRef::as_ref).collect();
    let near = read.as_str().map_or_else(String::new, |word| did_you_mean(word, allowed));
    format!("read {}; allowed: {}{near}", shown(read), names.join(", "))
}

/// The end of a message that asks for the nearest allowed spelling, if one is near.
pub(crate) fn did_you_mean<S: AsRef<str>>(word: &str, allowed: &[S]) -> String {
    nearest(word, allowed).map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"))
}

/// The allowed spelling that is nearest to a word, if one is near. Case does not count.
pub(crate) fn nearest<'a, S: AsRef<str>>(word: &str, allowed: &'a [S]) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let letters: Vec<_> = lower.chars().collect();
    if letters.len() > COMPARED_CHARACTERS_MAX {
        return None;
    }
    // The later one of two spellings that differ in their case.
    let by_lower: BTreeMap<_, _> =
        allowed.iter().map(|name| (name.as_ref().to_lowercase(), name.as_ref())).collect();
    let similar = by_lower
        .iter()
        .map(|(name, spelling)| (similarity(&name.chars().collect::<Vec<_>>(), &letters), spelling))
        .filter(|(similarity, _)| *similarity >= CUTOFF)
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    let begins = || by_lower.iter().find(|(name, _)| name.starts_with(&format!("{lower}_")));
    similar.map(|(_, spelling)| *spelling).or_else(|| begins().map(|(_, spelling)| *spelling))
}

/// The share of the characters of two words that are in common blocks (Ratcliff and Obershelp's gestalt pattern matching).
fn similarity(one: &[char], other: &[char]) -> f64 {
    let count = one.len() + other.len();
    if count == 0 { 1.0 } else { 2.0 * common(one, other) as f64 / count as f64 }
}

/// The characters of the longest common block, and of those before and after it.
fn common(one: &[char], other: &[char]) -> usize {
    let mut longest = (0, 0, 0);
    let mut ends = vec![0; other.len() + 1];
    for (i, letter) in one.iter().enumerate() {
        let mut next = vec![0; other.len() + 1];
        for (j, candidate) in other.iter().enumerate() {
            if letter == candidate {
                let length = ends[j] + 1;
                next[j + 1] = length;
                if length > longest.2 {
                    longest = (i + 1 - length, j + 1 - length, length);
                }
            }
        }
        ends = next;
    }
    let (i, j, length) = longest;
    if length == 0 {
        return 0;
    }
    common(&one[..i], &other[..j]) + length + common(&one[i + length..], &other[j + length..])
}

/// A number of things: `1 peer`, `1,200 peers`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A number with a comma after each group of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The kernel's text of an error, without its number.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.find(" (os error ").map_or(text.clone(), |end| text[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given misspelt names, expect the nearest; given one that is far from all, expect none.
    #[test]
    fn a_misspelt_name_has_a_suggestion() {
        for (word, names, near) in [
            ("lann", ["name", "lan", "link"], Some("lan")),
            ("connection", ["connections", "connect_limit", "ports"], Some("connections")),
            ("HYBL", ["cubic", "bbr", "hybla"], Some("hybla")),
            (
                "receive",
                ["receive_buffer_initial_size", "sack", "mss"],
                Some("receive_buffer_initial_size"),
            ),
            ("xyz", ["cubic", "bbr", "hybla"], None),
            ("", ["cubic", "bbr", "hybla"], None),
        ] {
            assert_eq!(nearest(word, &names), near, "{word}");
        }
        assert_eq!(nearest(&"a".repeat(101), &["a"]), None);
    }

    /// Given long texts with characters of several bytes, expect 60 characters; given large numbers, expect groups.
    #[test]
    fn values_are_shown_as_they_are_written() {
        assert_eq!(shown_text(&"µ".repeat(61)), format!("\"{}...\"", "µ".repeat(60)));
        assert_eq!(shown_text(&"µ".repeat(60)), format!("\"{}\"", "µ".repeat(60)));
        assert_eq!(shown(&Value::Float(1.5)), "1.5");
        assert_eq!((counted(1, "peer"), counted(0, "peer")), ("1 peer".into(), "0 peers".into()));
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(123), "123");
    }
}
