//! The metrics of a tunnel.

use super::metrics_text::Text;
use super::tunnel_report::{TunnelPeerReport, TunnelReport};

/// The name of a metric of each peer, its type, its description and its value.
type PeerMetric = (&'static str, &'static str, &'static str, fn(&TunnelPeerReport) -> Option<f64>);

const PEER_METRICS: &[PeerMetric] = &[
    ("session_age_seconds", "gauge", "Age of the session; absent without one.", |peer| {
        Some(peer.session_age_ns? as f64 / 1e9)
    }),
    ("outdated_handshakes_total", "counter", "Handshakes refused for an old timestamp.", |peer| {
        Some(peer.outdated_handshakes as f64)
    }),
    ("sent_packets_total", "counter", "Packets for the networks of the peer.", |peer| {
        Some(peer.sent_packets as f64)
    }),
    ("sent_bytes_total", "counter", "Bytes of these packets.", |peer| Some(peer.sent_bytes as f64)),
    ("received_packets_total", "counter", "Packets delivered from the peer.", |peer| {
        Some(peer.received_packets as f64)
    }),
    ("received_bytes_total", "counter", "Bytes of these packets.", |peer| {
        Some(peer.received_bytes as f64)
    }),
    ("dropped_packets_total", "counter", "Packets dropped without a session.", |peer| {
        Some(peer.dropped_packets as f64)
    }),
    ("refused_packets_total", "counter", "Packets of the peer that were refused.", |peer| {
        Some(peer.refused_packets as f64)
    }),
    ("sent_datagram_bytes_total", "counter", "Bytes sent, with IP headers.", |peer| {
        Some(peer.sent_datagram_bytes as f64)
    }),
    ("received_datagram_bytes_total", "counter", "Bytes received, with IP headers.", |peer| {
        Some(peer.received_datagram_bytes as f64)
    }),
    ("ce_datagrams_total", "counter", "Datagrams received marked CE.", |peer| {
        Some(peer.ce_datagrams as f64)
    }),
    ("unmarked_packets_total", "counter", "Packets in these that are not ECN-capable.", |peer| {
        Some(peer.unmarked_packets as f64)
    }),
    ("source_symbols_sent_total", "counter", "Source symbols sent.", |peer| {
        Some(peer.sources_sent as f64)
    }),
    ("repair_symbols_sent_total", "counter", "Repair symbols sent.", |peer| {
        Some(peer.repairs_sent as f64)
    }),
    ("source_symbols_received_total", "counter", "Source symbols received.", |peer| {
        Some(peer.sources_received as f64)
    }),
    ("repair_symbols_received_total", "counter", "Repair symbols received.", |peer| {
        Some(peer.repairs_received as f64)
    }),
    ("source_symbols_recovered_total", "counter", "Lost source symbols decoded.", |peer| {
        Some(peer.sources_recovered as f64)
    }),
    ("source_symbols_lost_total", "counter", "Lost source symbols not decoded.", |peer| {
        Some(peer.sources_lost as f64)
    }),
    ("stream_restarts_total", "counter", "Streams of symbols begun anew.", |peer| {
        Some(peer.restarts as f64)
    }),
    ("redundancy_ratio", "gauge", "Repair symbols for each source symbol, now.", |peer| {
        Some(peer.redundancy_ppm as f64 / 1e6)
    }),
    ("loss_ratio", "gauge", "Loss before decoding that the peer reports.", |peer| {
        Some(peer.loss_ppb as f64 / 1e9)
    }),
];

/// Writes the metrics of a tunnel.
pub(super) fn of_tunnel(report: &TunnelReport) -> String {
    let mut out = Text::new("bentpipe_tunnel");
    for &(name, kind, help, value) in PEER_METRICS {
        out.head(name, help, kind);
        for peer in &report.peers {
            if let Some(value) = value(peer) {
                out.line(name, &format!("{{peer=\"{}\"}}", escaped(&peer.name)), value);
            }
        }
    }
    for (name, value, help) in [
        ("refused_datagrams", report.refused_datagrams, "Datagrams that were refused."),
        ("unsent_datagrams", report.unsent_datagrams, "Datagrams that the kernel did not send."),
        ("unroutable_packets", report.unroutable_packets, "Packets to an address of no peer."),
        ("malformed_packets", report.malformed_packets, "Packets that are no IP packets."),
        ("too_big_packets", report.too_big_packets, "Packets above the MTU."),
    ] {
        out.one(&format!("{name}_total"), help, "counter", value);
    }
    let help = "Estimate of the bytes in the link's input queue.";
    out.one("queue_bytes", help, "gauge", report.queue_bytes);
    out.one("mtu_bytes", "MTU of the device.", "gauge", report.mtu_bytes);
    out.one("memory_bytes", "Memory of the process.", "gauge", report.memory_bytes);
    let help = "Time of the processors that the process used.";
    out.one("cpu_seconds_total", help, "counter", report.cpu_ns as f64 / 1e9);
    out.text
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let text = of_tunnel(&report);
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
        ] {
            assert!(text.lines().any(|each| each == line), "{line} in {text}");
        }
        assert_eq!(text.matches("session_age_seconds{").count(), 1);
    }
}
