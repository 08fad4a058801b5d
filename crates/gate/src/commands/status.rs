//! The status of a gateway as text.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::config::quantity::{DURATION, RATE, SIZE};
use crate::config::wording::{counted, grouped};
use crate::config::{Description, SelectionText};
use crate::counts::Counts;
use crate::daemon::{Report, TunnelReport};

/// The daemon writes its counters at least every 0.75 s.
const UNCHANGED_S: f64 = 2.0;
/// It writes them every 1.8 s also while no worker reports.
const SILENT_S: f64 = 4.0;
/// Of 80 columns, those beside the names of rows.
const ROOM: usize = 52;
const MINUTES_FROM_S: f64 = 120.0;

/// What a gateway is and has done.
#[derive(Clone, Debug)]
pub(super) struct Status {
    pub(super) described: Description,
    pub(super) started_unix_s: f64,
    /// The counters of the daemon, with their time.
    pub(super) counters: Value,
}

pub(super) fn now_unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn row(name: &str, text: &str) -> String {
    format!("{name:28}{text}")
}

fn count(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or(0)
}

fn size(bytes: u64) -> String {
    SIZE.format(bytes as f64)
}

impl Status {
    /// Its lines at a time.
    pub(super) fn lines(&self, now_unix_s: f64) -> Vec<String> {
        let described = &self.described;
        let age_s = (now_unix_s - self.counters["unix_s"].as_f64().unwrap_or(0.0)).max(0.0);
        let mut ends = Vec::new();
        if let (Some(lan), Some(link)) = (&described.lan, &described.link) {
            ends.push(format!("{} to {}", lan.join(", "), link.join(", ")));
        }
        if let (Some(device), Some(peers)) = (&described.device, &described.peers) {
            ends.push(format!("{device} to {}", counted(peers.len() as u64, "peer")));
        }
        let mut lines = vec![format!(
            "{}: {}, {}, {}; counters as of {age_s:.1} s ago",
            described.name,
            described.functions.join(", "),
            ends.join(", "),
            up_for((now_unix_s - self.started_unix_s).max(0.0))
        )];
        if described.lan.is_some() {
            lines.extend(splitting_lines(&self.counters["pep_workers"], age_s));
            lines.extend(selection_lines(described));
            let most = described.connections.unwrap_or(0);
            lines.extend(pep_lines(&self.counters["pep"], most));
        }
        if described.device.is_some() {
            lines.extend(tunnel_worker_lines(&self.counters["tunnel_worker"]));
            lines.extend(tunnel_lines(&self.counters["tunnel"]));
        }
        lines
    }
}

fn up_for(seconds: f64) -> String {
    if seconds < MINUTES_FROM_S {
        format!("up for {seconds:.0} s")
    } else {
        format!("up for {:.0} min", seconds / 60.0)
    }
}

/// Which connections are not split, as far as a line has room: JSON has all.
fn selection_lines(described: &Description) -> Vec<String> {
    let lists = [("left out", &described.except), ("only split", &described.only)];
    let rows = lists.into_iter().flat_map(|(title, selection)| {
        let SelectionText { networks, ports, interfaces } = selection.clone().unwrap_or_default();
        let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
        [("networks", networks), ("ports", ports), ("interfaces", interfaces)]
            .map(|(list, entries)| (format!("{title}, {list}"), entries))
    });
    rows.filter(|(_, entries)| !entries.is_empty())
        .map(|(name, entries)| {
            let text = entries.join(", ");
            let fits = text.chars().count() <= ROOM;
            row(&name, &if fits { text } else { format!("{} entries", entries.len()) })
        })
        .collect()
}

/// What keeps new connections from being split, and how often a worker was replaced.
fn splitting_lines(workers: &Value, age_s: f64) -> Vec<String> {
    let mut lines = Vec::new();
    if age_s >= SILENT_S {
        lines.push(row("new connections", &format!("unknown: no counters for {age_s:.0} s")));
    } else if workers["is_splitting"] == false {
        let text = match (count(workers, "missing"), count(workers, "workers")) {
            (0, _) => "pass without the PEP: no rules in force".to_owned(),
            (missing, all) if missing < all => {
                format!("a share passes unsplit: {missing} of {all} workers missing")
            }
            (missing, _) => {
                format!("pass without the PEP: {} missing", counted(missing, "worker"))
            }
        };
        lines.push(row("new connections", &text));
    }
    match count(workers, "failures") {
        0 => {}
        failures => lines.push(row("workers replaced", &grouped(failures))),
    }
    lines
}

fn pep_lines(counters: &Value, most: u64) -> Vec<String> {
    let open = grouped(count(counters, "open_connections"));
    let mut lines = vec![row("open connections", &format!("{open} of {}", grouped(most)))];
    let known = Report::COUNTS
        .iter()
        .filter_map(|count| Some(row(count.status?, &grouped(counters[count.field].as_u64()?))));
    lines.extend(known);
    lines.push(row("to servers", &size(count(counters, "to_server_bytes"))));
    lines.push(row("to clients", &size(count(counters, "to_client_bytes"))));
    for (leg, text) in [("lan", "legs to the hosts"), ("link", "legs over the link")] {
        if counters[leg].is_object() {
            lines.push(row(text, &leg_text(&counters[leg])));
        }
    }
    lines
}

fn leg_text(leg: &Value) -> String {
    let samples: u64 =
        leg["rtt_counts"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
    let rtt = if samples == 0 {
        "not measured".to_owned()
    } else {
        DURATION.format(count(leg, "rtt_sum_us") as f64 * 1_000.0 / samples as f64)
    };
    let retransmitted = counted(count(leg, "retransmitted_segments"), "segment");
    format!("mean RTT {rtt}, {retransmitted} retransmitted")
}

/// What keeps the tunnel from carrying packets, and how often its worker was replaced.
fn tunnel_worker_lines(worker: &Value) -> Vec<String> {
    let missing = (count(worker, "missing") > 0)
        .then(|| row("tunnel", "carries nothing: its worker is missing"));
    let failures = Some(count(worker, "failures")).filter(|&failures| failures > 0);
    let replaced = failures.map(|failures| row("tunnel worker replaced", &grouped(failures)));
    missing.into_iter().chain(replaced).collect()
}

fn tunnel_lines(counters: &Value) -> Vec<String> {
    let peers = counters["peers"].as_array().into_iter().flatten().flat_map(peer_lines);
    let counts = TunnelReport::COUNTS.iter().filter_map(|each| {
        let number = Some(count(counters, each.field)).filter(|&number| number > 0)?;
        Some(row(each.status?, &grouped(number)))
    });
    peers.chain(counts).collect()
}

fn peer_lines(peer: &Value) -> Vec<String> {
    let text = |name: &str| peer[name].as_str().unwrap_or_default();
    let endpoint = peer["endpoint"].as_str().unwrap_or("no address yet");
    // By the second: it is of no use to know it better.
    let session = peer["session_age_ns"].as_u64().map_or_else(
        || "no session".to_owned(),
        |age| format!("session of {}", DURATION.format((age / 1_000_000_000) as f64 * 1e9)),
    );
    let number = |name: &str| count(peer, name);
    let recovered = number("sources_recovered");
    let mut lines = vec![row(&format!("peer {}", text("name")), &format!("{endpoint}, {session}"))];
    if number("outdated_handshakes") > 0 {
        let handshakes = counted(number("outdated_handshakes"), "handshake");
        let refused = format!("{handshakes} with an old timestamp: its clock went back?");
        lines.push(row("  refused", &refused));
    }
    let dropped = format!(
        "{} packets without a session, {} refused",
        grouped(number("dropped_packets")),
        grouped(number("refused_packets"))
    );
    let lost = grouped(recovered + number("sources_lost"));
    let redundancy = number("redundancy_ppm") as f64 / 10_000.0;
    lines.extend([
        row("  sent", &carried(peer, "sent")),
        row("  received", &carried(peer, "received")),
        row("  dropped", &dropped),
        row(
            "  loss before decoding",
            &format!("{:.2} % on the way there", number("loss_ppb") as f64 / 1e7),
        ),
        row("  recovered here", &format!("{} of {lost} lost symbols", grouped(recovered))),
        row(
            "  redundancy",
            &format!("{redundancy:.1} %, {} repair symbols", grouped(number("repairs_sent"))),
        ),
    ]);
    lines
}

fn carried(peer: &Value, direction: &str) -> String {
    let packets = grouped(count(peer, &format!("{direction}_packets")));
    format!("{packets} packets, {}", size(count(peer, &format!("{direction}_bytes"))))
}

/// What a gateway has carried, in one line for each function.
pub(super) fn totals_lines(counters: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let pep = &counters["pep"];
    if pep.is_object() {
        lines.push(format!(
            "{}, {} to servers, {} to clients",
            counted(count(pep, "split_connections"), "connection"),
            size(count(pep, "to_server_bytes")),
            size(count(pep, "to_client_bytes"))
        ));
    }
    if let Some(peers) = counters["tunnel"]["peers"].as_array() {
        let sum = |name| size(peers.iter().map(|peer| count(peer, name)).sum());
        lines.push(format!("{} to peers, {} from peers", sum("sent_bytes"), sum("received_bytes")));
    }
    lines
}

/// The bytes that were carried by direction, by the label of their line.
fn totals(counters: &Value) -> Vec<(String, [(&'static str, u64); 2])> {
    let mut totals = Vec::new();
    let pep = &counters["pep"];
    if pep.is_object() {
        let bytes = [
            ("to servers", count(pep, "to_server_bytes")),
            ("to clients", count(pep, "to_client_bytes")),
        ];
        totals.push(("now".to_owned(), bytes));
    }
    for peer in counters["tunnel"]["peers"].as_array().into_iter().flatten() {
        let name = peer["name"].as_str().unwrap_or_default();
        let bytes =
            [("sent", count(peer, "sent_bytes")), ("received", count(peer, "received_bytes"))];
        totals.push((format!("now, {name}"), bytes));
    }
    totals
}

/// The rates between two statuses.
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// With the time of it, in seconds.
    before: Option<(Value, f64)>,
    lines: Vec<String>,
}

impl Rates {
    /// The rates since the last time that the counters have changed.
    pub(super) fn lines(&mut self, counters: &Value, now_s: f64) -> Vec<String> {
        let Some((before, at)) = &self.before else {
            self.before = Some((counters.clone(), now_s));
            return Vec::new();
        };
        let elapsed_s = now_s - at;
        if before == counters && elapsed_s < UNCHANGED_S {
            return self.lines.clone();
        }
        let known = totals(before);
        let line = |(label, now): (String, [(&str, u64); 2])| {
            let (_, was) = known.iter().find(|(name, _)| *name == label)?;
            let rates = now.iter().zip(was).map(|((word, bytes), (_, was))| {
                let bits = 8.0 * bytes.saturating_sub(*was) as f64;
                format!("{} {word}", RATE.format(bits / elapsed_s))
            });
            Some(row(&label, &rates.collect::<Vec<_>>().join(", ")))
        };
        self.lines = totals(counters).into_iter().filter_map(line).collect();
        self.before = Some((counters.clone(), now_s));
        self.lines.clone()
    }
}

#[cfg(test)]
mod tests;
