//! What a tunnel counts.

use std::net::SocketAddr;

use serde::Serialize;

use bentpipe_core::engine::Count;
use bentpipe_core::tunnel::{OrderCounts, PeerCounts, TitratorCounts};

use crate::tunnel::Statistics;

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// The bytes of their IP packets.
    pub bytes: u64,
}

impl Traffic {
    pub(super) fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

impl From<Count> for Traffic {
    fn from(Count { packets, bytes }: Count) -> Self {
        Self { packets, bytes }
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// A struct of counters, and the sum of two.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct $name { $($(#[$doc])* pub $field: $type,)* }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// The traffic with one peer, or with all.
    PeerTraffic {
        /// Packets of hosts for the peer.
        from_hosts: Traffic,
        /// Packets of the peer for hosts.
        to_hosts: Traffic,
        /// Packets of hosts that were sent as part of a symbol.
        coded: Traffic,
        /// Packets of hosts that were sent without code.
        uncoded: Traffic,
        /// Datagrams sent to the peer, with their IP headers; without those of handshakes.
        datagrams_sent: Traffic,
        /// Payloads received from the peer, with the IP headers of their datagrams.
        datagrams_received: Traffic,
        /// Those of them that arrived marked CE.
        ce_datagrams: u64,
        /// Packets in them that are not ECN-capable, and were delivered unmarked.
        unmarked_packets: u64,
        /// Packets that a lost symbol contained and that were decoded.
        decoded_packets: u64,
        /// Decoded packets marked CE.
        marked_packets: u64,
        /// Decoded packets that were not delivered, so that their flow notices the loss.
        withheld_packets: u64,
        /// Packets of hosts dropped because there was no session and the queue for it was full.
        dropped_no_session: u64,
        /// Datagrams that could not be sealed: the session ended during a batch, or repair or feedback was due without one.
        unsealed_datagrams: u64,
        /// Packets of the peer from an address that is not in its networks.
        refused_sources: u64,
        /// Packets of the peer that are no IP packets.
        refused_packets: u64,
        /// Messages and symbols of the peer that are malformed.
        refused_messages: u64,
        /// Feedback of the peer that was old, or of another stream.
        refused_feedback: u64,
        /// Symbols of the peer's former stream.
        outdated_symbols: u64,
    }
}

counters! {
    /// The code and its policies, for one peer or for all.
    CodeCounters {
        /// Source symbols sent.
        sources_sent: u64,
        /// Repair symbols sent.
        repairs_sent: u64,
        /// Source symbols received that were new.
        sources_received: u64,
        /// Source symbols received that were known already.
        sources_redundant: u64,
        /// Source symbols received after they had been given up.
        sources_late: u64,
        /// Repair symbols received.
        repairs_received: u64,
        /// Those of them that were new equations.
        repairs_innovative: u64,
        /// Source symbols that were lost and decoded.
        recovered: u64,
        /// Source symbols that were never known.
        given_up: u64,
        /// Source symbols that are missing now.
        missing: u64,
        /// Messages of the decoder sent.
        feedback_sent: u64,
        /// Messages of decoders read.
        feedback_received: u64,
        /// The times that a stream began anew.
        restarts: u64,
    }
}

impl From<PeerCounts> for CodeCounters {
    fn from(counts: PeerCounts) -> Self {
        Self {
            sources_sent: counts.sources_sent,
            repairs_sent: counts.repairs_sent,
            sources_received: counts.sources_received,
            sources_redundant: counts.sources_redundant,
            sources_late: counts.sources_late,
            repairs_received: counts.repairs_received,
            repairs_innovative: counts.repairs_innovative,
            recovered: counts.recovered,
            given_up: counts.given_up,
            missing: counts.missing,
            feedback_sent: counts.feedback_sent,
            feedback_received: counts.feedback_received,
            restarts: counts.restarts,
        }
    }
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerReport {
    /// Its name.
    pub name: String,
    /// Where it is, if known.
    pub endpoint: Option<SocketAddr>,
    /// Whether there is a session.
    pub has_session: bool,
    /// The time since its handshake, in nanoseconds; `None` without one.
    pub session_age_ns: Option<u64>,
    /// Its handshake initiations that were refused for an old timestamp.
    pub outdated_handshakes: u64,
    /// Packets that wait for one.
    pub waiting_packets: u64,
    /// Repair for each source symbol now, in millionths.
    pub redundancy_ppm: u64,
    /// The loss that it is made for, in billionths.
    pub loss_ppb: u64,
    /// Its traffic.
    pub traffic: PeerTraffic,
    /// The code.
    pub code: CodeCounters,
}

/// Packets that belong to no peer, and answers to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostCounters {
    /// Packets of hosts for an address of no peer.
    pub dropped_no_route: u64,
    /// Packets of hosts that are no IP packets.
    pub dropped_malformed: u64,
    /// Packets of hosts above the MTU.
    pub dropped_too_big: u64,
    /// Answers to them.
    pub too_big_answers: u64,
}

/// Repair that was made, by what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairCounters {
    /// Made.
    pub offered: Traffic,
    /// Sent.
    pub released: Traffic,
    /// Not sent by its deadline.
    pub expired: Traffic,
    /// Not needed any more.
    pub obsolete: Traffic,
    /// Dropped because too much waited.
    pub overflowed: Traffic,
    /// Not sent because none is to be sent.
    pub refused: Traffic,
    /// Waiting now.
    pub held: Traffic,
    /// Released, but the symbols it covers had left the sender's memory.
    pub outdated: u64,
}

impl RepairCounters {
    pub(super) fn new(counts: &TitratorCounts, outdated: u64) -> Self {
        Self {
            offered: counts.offered.into(),
            released: counts.released.into(),
            expired: counts.expired.into(),
            obsolete: counts.obsolete.into(),
            overflowed: counts.overflowed.into(),
            refused: counts.refused.into(),
            held: counts.held.into(),
            outdated,
        }
    }
}

/// Packets in the order of their flows. Received = delivered + held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OrderCounters {
    /// Coded packets received or decoded.
    pub received: Traffic,
    /// Those that left.
    pub delivered: Traffic,
    /// Those that wait for earlier ones of their flow.
    pub held: Traffic,
    /// Those that had waited.
    pub waited_packets: u64,
    /// The sum of their waiting times.
    pub wait_sum_ns: u64,
    /// The longest of them.
    pub wait_max_ns: u64,
    /// Delivered behind a later one.
    pub late_packets: u64,
    /// Not waited for any longer.
    pub skipped_packets: u64,
    /// Delivered early because too many waited.
    pub forced_packets: u64,
}

impl From<OrderCounts> for OrderCounters {
    fn from(counts: OrderCounts) -> Self {
        Self {
            received: counts.received.into(),
            delivered: counts.delivered.into(),
            held: counts.held.into(),
            waited_packets: counts.waited_packets,
            wait_sum_ns: counts.wait_sum.as_nanos(),
            wait_max_ns: counts.wait_max.as_nanos(),
            late_packets: counts.late_packets,
            skipped_packets: counts.skipped_packets,
            forced_packets: counts.forced_packets,
        }
    }
}

/// The sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionCounters {
    /// Started by this end and completed.
    pub as_initiator: u64,
    /// First messages of peers that were answered.
    pub answered_handshakes: u64,
    /// Cookies given to addresses under load.
    pub cookie_replies: u64,
    /// Datagrams that were refused: malformed, forged, replayed, of no session, or over a limit.
    pub refused_datagrams: u64,
}

impl From<Statistics> for SessionCounters {
    fn from(statistics: Statistics) -> Self {
        Self {
            as_initiator: statistics.sessions_as_initiator,
            answered_handshakes: statistics.answered_handshakes,
            cookie_replies: statistics.cookie_replies,
            refused_datagrams: statistics.refused_datagrams,
        }
    }
}

/// All counters of a path, since its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathCounters {
    /// The traffic with all peers.
    pub traffic: PeerTraffic,
    /// The code towards and from all peers.
    pub code: CodeCounters,
    /// Packets that belong to no peer.
    pub hosts: HostCounters,
    /// Repair.
    pub repair: RepairCounters,
    /// The order of flows.
    pub order: OrderCounters,
    /// The sessions.
    pub sessions: SessionCounters,
    /// The estimate of the link's input queue, in bytes.
    pub queue_bytes: u64,
    /// Each peer, in the order of the plan.
    pub peers: Vec<PeerReport>,
}
