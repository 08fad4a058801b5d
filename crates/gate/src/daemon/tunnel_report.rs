//! What the tunnel of a daemon counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelReport {
    /// Memory of the process.
    pub memory_bytes: u64,
    /// Time of the processors that it used.
    pub cpu_ns: u64,
    /// The MTU of the device.
    pub mtu_bytes: u16,
    /// Datagrams that were refused: malformed, forged, replayed, of no session, or over a limit.
    pub refused_datagrams: u64,
    /// Datagrams that the kernel did not send.
    pub unsent_datagrams: u64,
    /// Packets of hosts to an address of no peer.
    pub unroutable_packets: u64,
    /// Packets of hosts that are no IP packets, or could not be segmented.
    pub malformed_packets: u64,
    /// Packets of hosts above the MTU.
    pub too_big_packets: u64,
    /// The estimate of the link's input queue.
    pub queue_bytes: u64,
    /// Counts of all peers together, with the names of the simulated tunnel.
    pub statistics: BTreeMap<String, u64>,
    /// The peers, in the order of the plan.
    pub peers: Vec<TunnelPeerReport>,
}

/// Counts of one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelPeerReport {
    /// Its name.
    pub name: String,
    /// Its address and port, if known.
    #[serde(deserialize_with = "Option::deserialize")]
    pub endpoint: Option<String>,
    /// The age of the session; `null` without one.
    #[serde(deserialize_with = "Option::deserialize")]
    pub session_age_ns: Option<u64>,
    /// Its handshake initiations that were refused for an old timestamp: its clock went back, or they are replays.
    pub outdated_handshakes: u64,
    /// Packets of hosts that were sent to the peer.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets of the peer that were delivered to hosts.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Bytes of the datagrams sent, with their IP headers.
    pub sent_datagram_bytes: u64,
    /// Bytes of the datagrams received, with their IP headers.
    pub received_datagram_bytes: u64,
    /// Datagrams received that the network marked CE.
    pub ce_datagrams: u64,
    /// Packets in them that are not ECN-capable, and were delivered unmarked.
    pub unmarked_packets: u64,
    /// Packets of hosts that were dropped because there was no session.
    pub dropped_packets: u64,
    /// Packets of the peer that were refused: from a network that is not the peer's, or malformed,
    /// messages and symbols included.
    pub refused_packets: u64,
    /// Source symbols sent.
    pub sources_sent: u64,
    /// Repair symbols sent.
    pub repairs_sent: u64,
    /// Source symbols received.
    pub sources_received: u64,
    /// Repair symbols received.
    pub repairs_received: u64,
    /// Source symbols that were lost and decoded.
    pub sources_recovered: u64,
    /// Source symbols that were lost and not decoded.
    pub sources_lost: u64,
    /// The times that a stream of symbols began anew, in either direction.
    pub restarts: u64,
    /// The present repair symbols for each source symbol, in millionths.
    pub redundancy_ppm: u64,
    /// The loss before decoding on the way to the peer, as it reports it, in billionths.
    pub loss_ppb: u64,
}
