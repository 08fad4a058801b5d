//! The metrics of a tunnel.

use super::metrics_text::Text;
use super::tunnel_report::{TunnelReport, TunnelWorker};

/// Writes the metrics of a tunnel.
pub(super) fn of_tunnel(report: &TunnelReport, worker: TunnelWorker) -> String {
    let mut out = Text::new("bentpipe_tunnel");
    let label = |name: &str| format!("{{peer=\"{}\"}}", escaped(name));
    let peers: Vec<_> = report.peers.iter().map(|peer| (label(&peer.name), peer)).collect();
    let name = "session_age_seconds";
    out.head(name, "Age of the session; absent without one.", "gauge");
    for (label, peer) in &peers {
        if let Some(age_ns) = peer.session_age_ns {
            out.line(name, label, age_ns as f64 / 1e9);
        }
    }
    out.counts(&peers);
    out.counts(&[(String::new(), report)]);
    out.counts(&[(String::new(), &worker)]);
    out.text
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::TunnelPeerReport;

    /// Given a peer with a session and one without, whose name has quotes, expect the lines of each.
    #[test]
    fn each_peer_has_a_label() {
        let with = TunnelPeerReport {
            name: "hub".to_owned(),
            session_age_ns: Some(1_500_000_000),
            sources_recovered: 7,
            restarts: 3,
            outdated_handshakes: 4,
            loss_ppb: 20_000_000,
            ce_datagrams: 9,
            ..TunnelPeerReport::default()
        };
        let without =
            TunnelPeerReport { name: "a \"b\"\\".to_owned(), ..TunnelPeerReport::default() };
        let report = TunnelReport { peers: vec![with, without], ..TunnelReport::default() };
        let text = of_tunnel(&report, TunnelWorker { missing: 0, failures: 2 });
        for line in [
            "# TYPE bentpipe_tunnel_source_symbols_recovered_total counter",
            "bentpipe_tunnel_source_symbols_recovered_total{peer=\"hub\"} 7",
            "bentpipe_tunnel_stream_restarts_total{peer=\"hub\"} 3",
            "bentpipe_tunnel_outdated_handshakes_total{peer=\"hub\"} 4",
            "bentpipe_tunnel_ce_datagrams_total{peer=\"hub\"} 9",
            "bentpipe_tunnel_session_age_seconds{peer=\"hub\"} 1.5",
            "bentpipe_tunnel_loss_ratio{peer=\"hub\"} 0.02",
            "bentpipe_tunnel_sent_bytes_total{peer=\"a \\\"b\\\"\\\\\"} 0",
            "bentpipe_tunnel_refused_datagrams_total 0",
            "bentpipe_tunnel_missing_workers 0",
            "bentpipe_tunnel_worker_failures_total 2",
        ] {
            assert!(text.lines().any(|each| each == line), "{line} in {text}");
        }
        assert_eq!(text.matches("session_age_seconds{").count(), 1);
    }
}
