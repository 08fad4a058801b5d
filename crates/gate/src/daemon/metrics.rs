//! The text of the metrics, in the format of Prometheus, version 0.0.4.

use super::memory::Memory;
use super::metrics_text::Text;
use super::tunnel_metrics::of_tunnel;
use super::{PepWorkers, Report, State};
use crate::relay::{LegReport, RTT_LIMITS_US};

/// The type of the text.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What does not change while a PEP runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) connections: u64,
    pub(super) memory: Memory,
}

/// Writes the metrics of all functions; `bounds` are those of a PEP.
pub(super) fn text(state: &State, bounds: Option<&Bounds>) -> String {
    let mut text = String::new();
    if let (Some(report), Some(bounds)) = (&state.pep, bounds) {
        text.push_str(&pep_metrics(report, state.pep_workers.unwrap_or_default(), bounds));
    }
    if let Some(report) = &state.tunnel {
        text.push_str(&of_tunnel(report, state.tunnel_worker.unwrap_or_default()));
    }
    text
}

fn pep_metrics(report: &Report, workers: PepWorkers, bounds: &Bounds) -> String {
    let mut out = Text::new("bentpipe_pep");
    let help = "Whether all new connections are split (1), or some or all pass unsplit (0).";
    out.one("splitting", help, "gauge", u64::from(workers.is_splitting));
    out.counts(&[(String::new(), &workers)]);
    out.counts(&[(String::new(), report)]);
    for (name, help, value) in [
        (
            "open_connections_limit",
            "Connections beyond this number pass unsplit.",
            bounds.connections,
        ),
        (
            "memory_limit_bytes",
            "The most memory of the processes that relay.",
            bounds.memory.processes,
        ),
        (
            "kernel_memory_limit_bytes",
            "The most memory of the kernel for the connections.",
            bounds.memory.kernel,
        ),
    ] {
        out.one(name, help, "gauge", value);
    }
    let legs = [("lan", &report.lan), ("link", &report.link)];
    out.counts(&legs.map(|(side, leg)| (format!("{{leg=\"{side}\"}}"), leg)));
    out.rtt(legs);
    out.text
}

impl Text {
    fn rtt(&mut self, legs: [(&str, &LegReport); 2]) {
        let name = "leg_rtt_seconds";
        let help =
            "Smoothed RTTs of legs, sampled once a second while data are relayed, and at the end.";
        self.head(name, help, "histogram");
        for (side, leg) in legs {
            let mut count = 0_u64;
            let limits = RTT_LIMITS_US.iter().map(|&limit| (limit as f64 / 1e6).to_string());
            let limits = limits.chain(["+Inf".to_owned()]);
            for (limit, value) in limits.zip(leg.rtt_counts) {
                count = count.saturating_add(value);
                self.line(
                    &format!("{name}_bucket"),
                    &format!("{{leg=\"{side}\",le=\"{limit}\"}}"),
                    count,
                );
            }
            let label = format!("{{leg=\"{side}\"}}");
            self.line(&format!("{name}_sum"), &label, leg.rtt_sum_us as f64 / 1e6);
            self.line(&format!("{name}_count"), &label, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::daemon::{TunnelPeerReport, TunnelReport, TunnelWorker};

    const DOCUMENTS: [&str; 2] = [
        include_str!("../../../../docs/monitoring/alerts.yaml"),
        include_str!("../../../../docs/monitoring/dashboard.json"),
    ];

    fn all() -> String {
        let peer = TunnelPeerReport { session_age_ns: Some(0), ..TunnelPeerReport::default() };
        let tunnel = TunnelReport { peers: vec![peer], ..TunnelReport::default() };
        let bounds = Bounds { connections: 9, memory: Memory { processes: 1, kernel: 2 } };
        let state = State {
            pep: Some(Report::default()),
            tunnel: Some(tunnel),
            pep_workers: Some(PepWorkers::default()),
            tunnel_worker: Some(TunnelWorker::default()),
        };
        text(&state, Some(&bounds))
    }

    /// Given the rules and the dashboard that are documented, expect each metric that they name.
    #[test]
    fn documented_metrics_exist() {
        let text = all();
        let known: BTreeSet<_> =
            text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
        for document in DOCUMENTS {
            let named: BTreeSet<_> = document
                .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
                .filter(|word| word.starts_with("bentpipe_"))
                .collect();
            assert!(named.len() > 10, "{named:?}");
            let unknown: Vec<_> = named.difference(&known).collect();
            assert!(unknown.is_empty(), "{unknown:?}");
        }
    }

    /// Given RTTs of up to 100 us and of up to 200 us, expect counts that include those before, their sum in seconds,
    /// and a type of each metric before its lines.
    #[test]
    fn the_text_is_that_of_prometheus() {
        let mut report =
            Report { split_connections: 7, cpu_ns: 1_500_000_000, ..Report::default() };
        report.link.rtt_counts[..2].copy_from_slice(&[2, 3]);
        report.link.rtt_sum_us = 700;
        let bounds = Bounds { connections: 9, memory: Memory { processes: 1, kernel: 2 } };
        let workers = PepWorkers { is_splitting: true, workers: 1, missing: 0, failures: 4 };
        let state = State { pep: Some(report), pep_workers: Some(workers), ..State::default() };
        let text = text(&state, Some(&bounds));
        for line in [
            "# TYPE bentpipe_pep_split_connections_total counter",
            "bentpipe_pep_split_connections_total 7",
            "bentpipe_pep_open_connections_limit 9",
            "bentpipe_pep_splitting 1",
            "bentpipe_pep_missing_workers 0",
            "# TYPE bentpipe_pep_worker_failures_total counter",
            "bentpipe_pep_worker_failures_total 4",
            "bentpipe_pep_cpu_seconds_total 1.5",
            "bentpipe_pep_relayed_bytes_total{direction=\"to_client\"} 0",
            "bentpipe_pep_leg_rtt_seconds_bucket{leg=\"link\",le=\"0.0001\"} 2",
            "bentpipe_pep_leg_rtt_seconds_bucket{leg=\"link\",le=\"0.0002\"} 5",
            "bentpipe_pep_leg_rtt_seconds_bucket{leg=\"link\",le=\"+Inf\"} 5",
            "bentpipe_pep_leg_rtt_seconds_sum{leg=\"link\"} 0.0007",
            "bentpipe_pep_leg_rtt_seconds_count{leg=\"lan\"} 0",
        ] {
            assert!(text.lines().any(|each| each == line), "{line} in {text}");
        }
        let mut typed = BTreeSet::new();
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                typed.insert(kind.split(' ').next().expect("a name"));
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().expect("a name");
                let base =
                    ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                assert!(
                    typed.contains(name) || base.is_some_and(|base| typed.contains(base)),
                    "{line}"
                );
            }
        }
        assert!(text.ends_with('\n'));
    }
}
