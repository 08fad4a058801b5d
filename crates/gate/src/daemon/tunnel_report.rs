//! What the tunnel of a daemon counts.

use std::collections::BTreeMap;

use crate::counts::report;

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
