//! The rows as tables of 80 columns, and as JSON.

use bentpipe_live::measure::DelayErrors;
use serde_json::{Value, json};

use crate::rows::{Rounds, Row};

/// The heading of the figures.
pub(crate) fn figures_heading(peer: &str) -> String {
    format!("{:36}{:>12}{:>12}{:>14}", "", "bentpipe", peer, "goal")
}

/// One figure of each emulator, with `digits` decimals.
pub(crate) fn figure(name: &str, figures: [Option<f64>; 2], digits: usize, goal: &str) -> String {
    let [ours, other] = figures
        .map(|value| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}")));
    format!("{name:36}{ours:>12}{other:>12}{goal:>14}")
}

/// The heading of the delay errors.
pub(crate) fn errors_heading() -> String {
    let [min, median, p99, p999, max] = ["earliest", "median", "99 %", "99.9 %", "latest"];
    format!("{:30}{min:>10}{median:>10}{p99:>10}{p999:>10}{max:>10}", "delay errors in us")
}

/// The delay errors of one load, a line for each emulator, and why rounds are invalid.
pub(crate) fn errors(name: &str, peer: &str, row: &Row<DelayErrors>, goal: &str) -> String {
    let mut lines = vec![format!("{name}{goal:>width$}", width = 80 - name.len())];
    lines.extend(errors_lines("bentpipe", &row.ours));
    lines.extend(verdict(&row.ours));
    lines.extend(row.peer.iter().flat_map(|rounds| errors_lines(peer, rounds)));
    lines.join("\n")
}

fn errors_lines(emulator: &str, rounds: &Rounds<DelayErrors>) -> Vec<String> {
    let DelayErrors { packets, lost, packets_per_second, .. } = rounds.best;
    let [min, p50, p99, p999, max] = micros(&rounds.best).map(|micros| format!("{micros:>10.1}"));
    let mut lines = vec![format!("  {emulator:28}{min}{p50}{p99}{p999}{max}")];
    if lost > 0 {
        lines.push(format!(
            "    {lost} of {packets} packets lost, {packets_per_second:.0} sent a second"
        ));
    }
    lines
}

fn micros(errors: &DelayErrors) -> [f64; 5] {
    let DelayErrors { min_ns, p50_ns, p99_ns, p999_ns, max_ns, .. } = *errors;
    [min_ns, p50_ns, p99_ns, p999_ns, max_ns].map(|nanos| nanos as f64 / 1e3)
}

/// The verdict on the rounds of an emulator.
pub(crate) fn verdict<T>(rounds: &Rounds<T>) -> Vec<String> {
    let Rounds { count, valid, invalid, .. } = rounds;
    let text = match invalid {
        None => "VALID".to_owned(),
        Some(why) if *valid == 0 => format!("INVALID: {why}"),
        Some(why) => format!("VALID in {valid} of {count} rounds; INVALID: {why}"),
    };
    let (mut lines, mut line) = (Vec::new(), String::from("   "));
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > 80 {
            lines.push(std::mem::replace(&mut line, String::from("   ")));
        }
        line += " ";
        line += word;
    }
    lines.push(line);
    lines
}

/// Delay errors as JSON.
pub(crate) fn errors_json(name: &str, emulator: &str, rounds: &Rounds<DelayErrors>) -> Value {
    let errors = &rounds.best;
    let [min, p50, p99, p999, max] = micros(errors);
    json!({
        "load": name, "emulator": emulator,
        "packets": errors.packets, "packets_per_second": errors.packets_per_second,
        "lost": errors.lost,
        "error_us": { "min": min, "p50": p50, "p99": p99, "p999": p999, "max": max },
        "rate_error_percent": errors.rate_error * 100.0,
        "cpu_percent": errors.cpu_share * 100.0,
        "rounds": rounds.count, "valid_rounds": rounds.valid, "invalid": rounds.invalid,
    })
}

/// A figure of both emulators as JSON.
pub(crate) fn figure_json(row: &Row<f64>) -> Value {
    let ours = &row.ours;
    json!({
        "bentpipe": ours.best, "peer": row.peer.as_ref().map(|peer| peer.best),
        "rounds": ours.count, "valid_rounds": ours.valid, "invalid": ours.invalid,
    })
}
