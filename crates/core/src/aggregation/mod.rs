//! Packet aggregation: small packets with the same next gateway and class share a frame over the link,
//! which the far gateway unpacks. A device with a packet rate limit, such as the interface processor of a
//! modem, then handles frames and carries more packets per second. The cost is the hold time, and that a
//! lost frame loses all packets in it.
//!
//! A packet joins the pending frame of its tunnel (the far gateway) and class. The frame is sent
//!
//! - when the next packet does not fit,
//! - when its first packet has waited for the hold time, or
//! - when a packet of that tunnel and class arrives that is too large to join: it must not overtake.
//!
//! A frame of a single packet would only add a header, so that packet is sent unchanged. The format of a
//! frame is that of Simplemux; see [`FrameWriter`].

mod frame;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use frame::{FRAME_HEADER_BYTES, FrameError, FrameReader, FrameWriter, packed_bytes};

use crate::engine::{Count, Cx, Engine, Ledger, Nested};
use crate::packet::{Class, FlowId, Origin, Packet, PacketId, Payload, Port};
use crate::time::{Duration, Instant};

/// The settings of an aggregator.
#[derive(Clone, Debug)]
pub struct AggregatorConfig {
    /// The largest frame size, IP header included.
    pub frame_bytes_max: u32,
    /// The size of the largest packet that joins a frame.
    pub packet_bytes_max: u32,
    /// The longest time that a packet waits for others.
    pub hold_time: Duration,
    /// The classes that are aggregated; `None` for all.
    pub classes: Option<Vec<Class>>,
    /// The flow of the frames to each destination: one for each pair of gateways, which the outer
    /// addresses identify. The first flow also serves all destinations beyond the list.
    pub tunnels: Arc<[FlowId]>,
    /// The end of these flows that this aggregator is.
    pub origin: Origin,
}

/// The tunnel and the class of a frame.
type Key = (FlowId, Class);

/// A frame that is being filled.
#[derive(Debug)]
struct Pending {
    packets: Vec<Packet>,
    /// The size of the frame with these packets.
    bytes: u32,
    /// The arrival of the first packet.
    since: Instant,
    /// The sum of the arrival times of the others relative to the first.
    arrival_offsets: Duration,
}

/// An aggregator: the end of its tunnels. It packs and unpacks. See the module's description.
#[derive(Debug)]
pub struct Aggregator {
    config: AggregatorConfig,
    pending: BTreeMap<Key, Pending>,
    /// The deadline of each pending frame.
    due: BTreeSet<(Instant, Key)>,
    /// The number of frames sent, and the serial number of the next one.
    sent_frames: u64,
    received_frames: u64,
    /// Packets sent alone at the end of the hold time.
    single_packets: u64,
    hold_time_sum: Duration,
    hold_time_max: Duration,
    received: Count,
    sent: Count,
    created: Count,
    consumed: Count,
    held: Count,
    packed: Count,
    unpacked: Count,
}

impl Aggregator {
    /// The port towards the hosts.
    pub const INNER: Port = Port(0);
    /// The port towards the link.
    pub const OUTER: Port = Port(1);

    /// An empty aggregator. `None` if `tunnels` is empty.
    #[must_use]
    pub fn new(config: AggregatorConfig) -> Option<Self> {
        config.tunnels.first()?;
        Some(Self {
            config,
            pending: BTreeMap::new(),
            due: BTreeSet::new(),
            sent_frames: 0,
            received_frames: 0,
            single_packets: 0,
            hold_time_sum: Duration::ZERO,
            hold_time_max: Duration::ZERO,
            received: Count::default(),
            sent: Count::default(),
            created: Count::default(),
            consumed: Count::default(),
            held: Count::default(),
            packed: Count::default(),
            unpacked: Count::default(),
        })
    }

    fn key(&self, packet: &Packet) -> Key {
        let tunnels = &self.config.tunnels;
        let tunnel = tunnels.get(packet.destination.0 as usize).unwrap_or(&tunnels[0]);
        (*tunnel, packet.class)
    }

    fn may_join(&self, packet: &Packet) -> bool {
        let AggregatorConfig { packet_bytes_max, frame_bytes_max, classes, .. } = &self.config;
        packet.bytes <= *packet_bytes_max
            && FRAME_HEADER_BYTES + packed_bytes(packet.bytes, true) <= *frame_bytes_max
            && classes.as_ref().is_none_or(|classes| classes.contains(&packet.class))
    }

    /// Handles a packet from the hosts.
    fn pack(&mut self, cx: &mut Cx<'_>, mut packet: Box<Packet>) {
        let key = self.key(&packet);
        if !self.may_join(&packet) {
            self.flush(cx, key);
            self.forward(cx, Self::OUTER, packet);
            return;
        }
        let (bytes, now) = (packet.bytes, cx.now());
        let added = packed_bytes(bytes, false);
        let frame_bytes_max = self.config.frame_bytes_max;
        if self.pending.get(&key).is_some_and(|frame| frame.bytes + added > frame_bytes_max) {
            self.flush(cx, key);
        }
        self.held.add(bytes);
        let inner = std::mem::take(&mut *packet);
        cx.discard(packet);
        match self.pending.entry(key) {
            Entry::Occupied(mut frame) => {
                let frame = frame.get_mut();
                frame.packets.push(inner);
                frame.bytes += added;
                frame.arrival_offsets += now - frame.since;
            }
            Entry::Vacant(entry) => {
                let bytes = FRAME_HEADER_BYTES + packed_bytes(bytes, true);
                let (packets, arrival_offsets) = (vec![inner], Duration::ZERO);
                entry.insert(Pending { packets, bytes, since: now, arrival_offsets });
                self.due.insert((now + self.config.hold_time, key));
            }
        }
    }

    /// Sends the frame of a tunnel and class, if one is pending.
    fn flush(&mut self, cx: &mut Cx<'_>, key: Key) {
        let Some(frame) = self.pending.remove(&key) else { return };
        self.due.remove(&(frame.since + self.config.hold_time, key));
        let Pending { mut packets, bytes, since, arrival_offsets } = frame;
        let longest = cx.now() - since;
        let longest_sum = longest.saturating_mul(packets.len() as u64);
        self.hold_time_sum += longest_sum.saturating_sub(arrival_offsets);
        self.hold_time_max = self.hold_time_max.max(longest);
        packets.iter().for_each(|packet| self.held.remove(packet.bytes));
        if packets.len() > 1 {
            self.send_frame(cx, key, packets, bytes);
        } else if let Some(packet) = packets.pop() {
            self.single_packets += 1;
            self.sent.add(packet.bytes);
            cx.send(Self::OUTER, packet);
        }
    }

    fn send_frame(
        &mut self,
        cx: &mut Cx<'_>,
        (flow, class): Key,
        packets: Vec<Packet>,
        bytes: u32,
    ) {
        for packet in &packets {
            // Packets nested in these were counted where they were packed.
            self.consumed.add(packet.bytes);
            self.packed.add(packet.bytes);
        }
        let frame = Packet {
            id: PacketId::new(flow, self.config.origin, self.sent_frames),
            created_at: cx.now(),
            flow,
            // All of them have the same next gateway, which unpacks the frame.
            destination: packets[0].destination,
            class,
            bytes,
            payload: Payload::Nested(packets),
            ..Packet::default()
        };
        self.sent_frames += 1;
        self.created.add(bytes);
        self.sent.add(bytes);
        cx.send(Self::OUTER, frame);
    }

    /// Handles a packet from the link.
    fn unpack(&mut self, cx: &mut Cx<'_>, mut packet: Box<Packet>) {
        let Payload::Nested(packets) = &mut packet.payload else {
            self.forward(cx, Self::INNER, packet);
            return;
        };
        self.received_frames += 1;
        self.consumed.add(packet.bytes);
        for mut inner in std::mem::take(packets) {
            inner.transmitted = packet.transmitted;
            self.unpacked.add(inner.bytes);
            self.created.add(inner.bytes);
            self.sent.add(inner.bytes);
            cx.send(Self::INNER, inner);
        }
        cx.discard(packet);
    }

    fn forward(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.sent.add(packet.bytes);
        cx.forward(port, packet);
    }
}

impl Engine for Aggregator {
    /// A frame that is due is sent before the packet that arrives at that instant is added, whichever of
    /// the two calls comes first.
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.wake(cx);
        self.received.add(packet.bytes);
        if port == Self::OUTER {
            self.unpack(cx, packet);
        } else {
            self.pack(cx, packet);
        }
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        while let Some(&(due, key)) = self.due.first()
            && due <= cx.now()
        {
            self.flush(cx, key);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.due.first().map(|&(due, _)| due)
    }

    fn ledger(&self) -> Ledger {
        let mut nested =
            Nested { packed: self.packed, unpacked: self.unpacked, ..Nested::default() };
        let waiting = self.pending.values().flat_map(|frame| &frame.packets);
        waiting.for_each(|packet| nested.held.add_nested(packet));
        Ledger {
            received: self.received,
            created: self.created,
            sent: self.sent,
            consumed: self.consumed,
            held: self.held,
            nested,
            ..Ledger::default()
        }
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("sent_frames", self.sent_frames),
            ("received_frames", self.received_frames),
            ("packed_packets", self.packed.packets),
            ("packed_bytes", self.packed.bytes),
            ("unpacked_packets", self.unpacked.packets),
            ("unpacked_bytes", self.unpacked.bytes),
            ("single_packets", self.single_packets),
            ("hold_time_sum_ns", self.hold_time_sum.as_nanos()),
            ("hold_time_max_ns", self.hold_time_max.as_nanos()),
        ]
    }
}

#[cfg(test)]
mod tests;
