//! What the tunnel of a daemon counts.

use std::collections::BTreeMap;

use crate::counts::{Counts, report};

report! {
    /// Counts since the start.
    pub struct TunnelReport {
        /// Counts of all peers together, with the names of the simulated tunnel.
        pub statistics: BTreeMap<String, u64>,
        /// The peers, in the order of the plan.
        pub peers: Vec<TunnelPeerReport>,
    }
    counts {
        unroutable_packets: "Packets of hosts to an address of no peer." counter "unroutable_packets_total"
            as "packets to no peer",
        malformed_packets: "Packets of hosts that are no IP packets, or could not be segmented."
            counter "malformed_packets_total",
        too_big_packets: "Packets of hosts above the MTU." counter "too_big_packets_total" as "packets above the MTU",
        refused_datagrams: "Datagrams that were refused: malformed, forged, replayed, of no session, or over a limit."
            counter "refused_datagrams_total" as "datagrams refused",
        unsent_datagrams: "Datagrams that the kernel did not send." counter "unsent_datagrams_total"
            as "datagrams not sent",
        queue_bytes: "The estimate of the bytes in the link's input queue." gauge "queue_bytes",
        mtu_bytes: "The MTU of the device." gauge "mtu_bytes",
        memory_bytes: "Memory of the process." gauge "memory_bytes",
        cpu_ns: "Time of the processors that the process used." counter "cpu_seconds_total" / 1e9,
    }
}

report! {
    /// Counts of one peer.
    pub struct TunnelPeerReport {
        /// Its name.
        pub name: String,
        /// Its address and port, if known.
        #[serde(deserialize_with = "Option::deserialize")]
        pub endpoint: Option<String>,
        /// The age of the session; `null` without one.
        #[serde(deserialize_with = "Option::deserialize")]
        pub session_age_ns: Option<u64>,
    }
    counts {
        outdated_handshakes: "Handshakes refused for an old timestamp: the peer's clock went back, or they are replays."
            counter "outdated_handshakes_total",
        sent_packets: "Packets of hosts that were sent to the peer." counter "sent_packets_total",
        sent_bytes: "Bytes of these packets." counter "sent_bytes_total",
        received_packets: "Packets of the peer that were delivered to hosts." counter "received_packets_total",
        received_bytes: "Bytes of these packets." counter "received_bytes_total",
        sent_datagram_bytes: "Bytes of the datagrams sent, with their IP headers." counter "sent_datagram_bytes_total",
        received_datagram_bytes: "Bytes of the datagrams received, with their IP headers."
            counter "received_datagram_bytes_total",
        ce_datagrams: "Datagrams received that the network marked CE." counter "ce_datagrams_total",
        unmarked_packets: "Packets in these that are not ECN-capable, and were delivered unmarked."
            counter "unmarked_packets_total",
        dropped_packets: "Packets of hosts that were dropped because there was no session."
            counter "dropped_packets_total",
        refused_packets: "Packets of the peer that were refused: not from its networks, or malformed, messages and symbols included."
            counter "refused_packets_total",
        sources_sent: "Source symbols sent." counter "source_symbols_sent_total",
        repairs_sent: "Repair symbols sent." counter "repair_symbols_sent_total",
        sources_received: "Source symbols received." counter "source_symbols_received_total",
        repairs_received: "Repair symbols received." counter "repair_symbols_received_total",
        sources_recovered: "Source symbols that were lost and decoded." counter "source_symbols_recovered_total",
        sources_lost: "Source symbols that were lost and not decoded." counter "source_symbols_lost_total",
        restarts: "Times that a stream of symbols began anew, in either direction." counter "stream_restarts_total",
        redundancy_ppm: "Repair symbols for each source symbol, now." gauge "redundancy_ratio" / 1e6,
        loss_ppb: "Loss before decoding on the way to the peer, as it reports it." gauge "loss_ratio" / 1e9,
    }
}

report! {
    /// How the worker of a tunnel is.
    #[derive(Copy)]
    pub struct TunnelWorker {
    }
    counts {
        missing: "Workers that do not report, because they have ended, hang or are starting: 0 or 1."
            gauge "missing_workers",
        failures: "Times that the worker has ended or hung, after which another process is started."
            counter "worker_failures_total",
    }
}

/// A count of `statistics` that is a maximum, and no sum.
const MAX: &str = "order_wait_max_ns";

impl TunnelReport {
    /// Adds what earlier processes have counted. Their sessions, queue and memory are gone.
    pub(super) fn add_earlier(&mut self, earlier: &Self) {
        self.add_counters(earlier);
        for (name, &value) in &earlier.statistics {
            let sum = self.statistics.entry(name.clone()).or_default();
            *sum = if name == MAX { value.max(*sum) } else { sum.saturating_add(value) };
        }
        for (peer, earlier) in self.peers.iter_mut().zip(&earlier.peers) {
            peer.add_counters(earlier);
        }
    }

    /// The process has ended, and with it its sessions.
    pub(super) fn end(&mut self) {
        self.clear_gauges();
        for peer in &mut self.peers {
            peer.clear_gauges();
            (peer.endpoint, peer.session_age_ns) = (None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of one peer with so many packets, as many bytes in the queue, and a session.
    fn report(packets: u64) -> TunnelReport {
        let statistics = ["repairs_sent_packets", MAX].map(|name| (name.to_owned(), packets));
        let peer = TunnelPeerReport {
            name: "hub".to_owned(),
            endpoint: Some("192.0.2.1:51871".to_owned()),
            session_age_ns: Some(1),
            sent_packets: packets,
            loss_ppb: packets,
            ..TunnelPeerReport::default()
        };
        TunnelReport {
            statistics: statistics.into(),
            peers: vec![peer],
            too_big_packets: packets,
            queue_bytes: packets,
            ..TunnelReport::default()
        }
    }

    /// Given a process that has counted 9 and ended, expect its counters, and neither a session nor a queue; given one in its
    /// place that has counted 2, expect 11, the queue and the loss of the second alone, and the larger maximum.
    #[test]
    fn the_counts_of_a_tunnel_go_on_in_its_next_process() {
        let mut earlier = report(9);
        earlier.end();
        let [peer] = &earlier.peers[..] else { panic!("one peer") };
        assert_eq!((earlier.too_big_packets, earlier.queue_bytes), (9, 0));
        assert_eq!((peer.sent_packets, peer.loss_ppb), (9, 0));
        assert_eq!((&peer.endpoint, peer.session_age_ns), (&None, None));
        let mut present = report(2);
        present.add_earlier(&earlier);
        let [peer] = &present.peers[..] else { panic!("one peer") };
        assert_eq!((present.too_big_packets, present.queue_bytes), (11, 2));
        assert_eq!((peer.sent_packets, peer.loss_ppb, peer.session_age_ns), (11, 2, Some(1)));
        assert_eq!((present.statistics["repairs_sent_packets"], present.statistics[MAX]), (11, 9));
    }
}
