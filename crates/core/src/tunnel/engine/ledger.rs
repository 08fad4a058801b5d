//! The accounts of a tunnel: packets by what became of them.

use super::Tunnel;
use crate::engine::{Count, Ledger, Nested};
use crate::packet::Packet;
use crate::tunnel::{PeerCounts, Shown};

/// See [`Ledger`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accounts {
    received: Count,
    created: Count,
    sent: Count,
    consumed: Count,
    nested: Nested,
    /// Packets nested in those that were unpacked here and not sent yet.
    waiting_nested: Count,
    duplicate_packets: u64,
}

impl Accounts {
    pub(super) fn receive(&mut self, bytes: u32) {
        self.received.add(bytes);
    }

    pub(super) fn forward(&mut self, bytes: u32) {
        self.sent.add(bytes);
    }

    pub(super) fn create(&mut self, bytes: u32) {
        self.created.add(bytes);
        self.sent.add(bytes);
    }

    pub(super) fn consume(&mut self, bytes: u32) {
        self.consumed.add(bytes);
    }

    /// A packet goes into another one. Packets nested in it were counted where they were packed.
    pub(super) fn pack(&mut self, bytes: u32) {
        self.consumed.add(bytes);
        self.nested.packed.add(bytes);
    }

    /// A packet comes out of another one.
    pub(super) fn unpack(&mut self, inner: &Packet) {
        self.nested.unpacked.add(inner.bytes);
        self.created.add(inner.bytes);
        self.waiting_nested.add_nested(inner);
    }

    /// A packet that was lost with the one that carried it is decoded.
    pub(super) fn recover(&mut self, inner: &Packet) {
        self.nested.recovered.add(inner.bytes);
        self.nested.recovered.add_nested(inner);
        self.unpack(inner);
    }

    /// A decoded packet is not delivered: an empty one takes its place in the order of its flow.
    pub(super) fn withhold(&mut self) {
        self.created.add(0);
    }

    /// A packet came that is known already.
    pub(super) fn lose(&mut self, inner: &Packet) {
        self.nested.lost.add(inner.bytes);
        self.nested.lost.add_nested(inner);
        self.duplicate_packets += 1;
    }

    /// A packet that was unpacked leaves.
    pub(super) fn deliver(&mut self, packet: &Packet) {
        self.sent.add(packet.bytes);
        self.waiting_nested.remove_nested(packet);
    }

    pub(super) fn ledger(&self, held: Count) -> Ledger {
        Ledger {
            received: self.received,
            created: self.created,
            sent: self.sent,
            consumed: self.consumed,
            held,
            nested: Nested { held: self.waiting_nested, ..self.nested },
            ..Ledger::default()
        }
    }
}

/// The counters of a tunnel, summed over its peers.
pub(super) fn statistics(tunnel: &Tunnel) -> Vec<(&'static str, u64)> {
    let all: Vec<PeerCounts> =
        (0..tunnel.endpoint.peers()).map(|peer| tunnel.endpoint.peer(peer)).collect();
    let sum = |of: fn(&PeerCounts) -> u64| all.iter().map(of).sum::<u64>();
    let (titrator, order) = (tunnel.endpoint.titrator(), tunnel.order.counts());
    vec![
        ("sources_sent_packets", sum(|peer| peer.sources_sent)),
        ("uncoded_packets", tunnel.uncoded.packets),
        ("uncoded_bytes", tunnel.uncoded.bytes),
        ("oversized_packets", tunnel.oversized_packets),
        ("repairs_sent_packets", tunnel.repairs.packets),
        ("repairs_sent_bytes", tunnel.repairs.bytes),
        ("feedback_sent_packets", tunnel.feedback.packets),
        ("feedback_sent_bytes", tunnel.feedback.bytes),
        ("sources_received_packets", sum(|peer| peer.sources_received)),
        ("sources_lost_packets", sum(|peer| peer.recovered + peer.given_up + peer.missing)),
        ("recovered_packets", sum(|peer| peer.recovered)),
        ("given_up_packets", sum(|peer| peer.given_up)),
        ("missing_packets", sum(|peer| peer.missing)),
        ("duplicate_packets", tunnel.accounts.duplicate_packets),
        ("repairs_received_packets", sum(|peer| peer.repairs_received)),
        ("repairs_innovative_packets", sum(|peer| peer.repairs_innovative)),
        ("feedback_received_packets", sum(|peer| peer.feedback_received)),
        ("refused_packets", tunnel.refused_packets),
        ("titrator_released_packets", titrator.released.packets),
        ("titrator_released_bytes", titrator.released.bytes),
        ("titrator_expired_packets", titrator.expired.packets),
        ("titrator_expired_bytes", titrator.expired.bytes),
        ("titrator_obsolete_packets", titrator.obsolete.packets),
        ("titrator_obsolete_bytes", titrator.obsolete.bytes),
        ("titrator_overflowed_packets", titrator.overflowed.packets),
        ("titrator_overflowed_bytes", titrator.overflowed.bytes),
        ("titrator_outdated_packets", tunnel.endpoint.outdated_repairs()),
        ("marked_packets", tunnel.signal.count(Shown::Marked)),
        ("withheld_packets", tunnel.signal.count(Shown::Withheld)),
        ("order_waited_packets", order.waited_packets),
        ("order_wait_sum_ns", order.wait_sum.as_nanos()),
        ("order_wait_max_ns", order.wait_max.as_nanos()),
        ("order_late_packets", order.late_packets),
        ("order_skipped_packets", order.skipped_packets),
    ]
}
