//! From peers to hosts.

use bentpipe_core::coding::Arrival;
use bentpipe_core::coding::framing::Unpacker;
use bentpipe_core::packet::Ecn;
use bentpipe_core::packet::symbol::{RepairHeader, SourceHeader, StreamId};
use bentpipe_core::time::Instant;
use bentpipe_core::tunnel::message::Message;
use bentpipe_core::tunnel::{CongestionSignal, LossSignal, OrderCounts, OrderRestorer, Shown};
use bentpipe_core::wire::ecn;

use super::buffers::{Pool, Slot};
use super::counters::PeerTraffic;
use super::inner::{self, FlowHasher};
use super::routes::Routes;
use super::{Path, Peer};

/// The way from one peer.
pub(super) struct Receiver {
    span: usize,
    unpacker: Unpacker,
    /// The stream whose packets the unpacker joins.
    stream: Option<StreamId>,
    signal: LossSignal,
}

impl Receiver {
    pub(super) fn new(span: usize, signal: CongestionSignal) -> Self {
        Self { span, unpacker: Unpacker::new(span), stream: None, signal: LossSignal::new(signal) }
    }

    pub(super) fn set_signal(&mut self, signal: CongestionSignal) {
        self.signal = LossSignal::new(signal);
    }

    /// The present stream of the peer. If it is new, packets that the former one left incomplete are lost.
    fn follow(&mut self, present: Option<StreamId>) {
        if self.stream != present && std::mem::replace(&mut self.stream, present).is_some() {
            self.unpacker = Unpacker::new(self.span);
        }
    }
}

/// A packet to be delivered; without a buffer it only takes its place in the order of its flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    slot: Option<Slot>,
    /// The sender; `None` for an answer of this end.
    peer: Option<usize>,
}

/// What came from all peers.
pub(super) struct Inbound {
    order: OrderRestorer<Item>,
    ready: Vec<Item>,
    /// Buffers of packets that wait for earlier ones or to be delivered.
    held_buffers: usize,
}

impl Inbound {
    pub(super) fn new(order: OrderRestorer<Item>) -> Self {
        Self { order, ready: Vec::new(), held_buffers: 0 }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.order.next_wake()
    }

    pub(super) fn wake(&mut self, now: Instant) {
        self.order.wake(now, &mut self.ready);
    }

    pub(super) fn ready(&self) -> impl Iterator<Item = Slot> {
        self.ready.iter().filter_map(|item| item.slot)
    }

    /// Takes the packets that were delivered, each with its peer.
    pub(super) fn take_ready(&mut self) -> impl Iterator<Item = (Slot, Option<usize>)> {
        self.held_buffers -= self.ready.iter().filter(|item| item.slot.is_some()).count();
        self.ready.drain(..).filter_map(|item| Some((item.slot?, item.peer)))
    }

    pub(super) fn order_counts(&self) -> OrderCounts {
        self.order.counts()
    }

    pub(super) fn held_buffers(&self) -> usize {
        self.held_buffers
    }

    /// Delivers an answer of this end to a host.
    pub(super) fn deliver_answer(&mut self, slot: Slot) {
        self.held_buffers += 1;
        self.ready.push(Item { slot: Some(slot), peer: None });
    }
}

/// Where a packet was.
#[derive(Clone, Copy, Debug)]
enum Outer {
    /// In a datagram with this ECN field.
    Datagram(Ecn),
    /// In a symbol that was lost and decoded.
    Decoded,
}

/// What the packets of one message share.
struct Delivery<'a> {
    now: Instant,
    number: usize,
    stream: StreamId,
    outer: Outer,
    mtu: u16,
    routes: &'a Routes,
    hasher: FlowHasher,
    pool: &'a mut Pool,
    inbound: &'a mut Inbound,
    traffic: &'a mut PeerTraffic,
    signal: &'a mut LossSignal,
}

impl Delivery<'_> {
    /// Delivers a packet behind its sequence number, in the order of its flow.
    fn coded(&mut self, numbered: &[u8]) {
        let Some((sequence, packet)) = numbered.split_first_chunk() else {
            self.traffic.refused_packets += 1;
            return;
        };
        let Some((slot, context)) = self.store(packet) else { return };
        let mut item = Item { slot: Some(slot), peer: Some(self.number) };
        if let Outer::Decoded = self.outer {
            self.traffic.decoded_packets += 1;
            match self.signal.next(ecn::of(packet)) {
                Shown::Hidden => {}
                Shown::Marked => {
                    self.traffic.marked_packets += 1;
                    ecn::mark(self.pool.bytes_mut(slot));
                }
                Shown::Withheld => {
                    self.traffic.withheld_packets += 1;
                    self.pool.free(slot);
                    self.inbound.held_buffers -= 1;
                    item.slot = None;
                }
            }
        }
        let Inbound { order, ready, .. } = &mut *self.inbound;
        let sequence = u32::from_be_bytes(*sequence);
        order.push(self.now, context, sequence, packet.len() as u32, item, ready);
    }

    fn uncoded(&mut self, packet: &[u8]) {
        if let Some((slot, _)) = self.store(packet) {
            self.inbound.ready.push(Item { slot: Some(slot), peer: Some(self.number) });
        }
    }

    /// Copies a packet that the peer may send, marked as its datagram was (RFC 6040, section 4.2). Returns it with the key
    /// of its flow.
    ///
    /// A packet that is not ECN-capable is delivered unmarked, as in the simulator; RFC 6040 drops it. Its datagram was not
    /// ECN-capable either, so the mark is no sign of a queue that would have dropped it.
    fn store(&mut self, packet: &[u8]) -> Option<(Slot, u64)> {
        let Some(headers) = inner::headers(packet) else {
            self.traffic.refused_packets += 1;
            return None;
        };
        if self.routes.peer(headers.tuple.source) != Some(self.number) {
            self.traffic.refused_sources += 1;
            return None;
        }
        let slot = self.pool.store(packet);
        self.inbound.held_buffers += 1;
        inner::clamp_mss(self.pool.bytes_mut(slot), &headers, self.mtu);
        if let Outer::Datagram(Ecn::Ce) = self.outer {
            self.traffic.unmarked_packets += u64::from(!ecn::of(packet).is_capable());
            ecn::mark(self.pool.bytes_mut(slot));
        }
        // The sequence numbers of another stream are others.
        let context = (self.number as u64) << 16 | u64::from(self.stream.0);
        Some((slot, self.hasher.key(context, &headers.tuple)))
    }
}

impl Path {
    /// Takes a payload of a peer, with the ECN field of its datagram.
    pub(super) fn on_message(&mut self, now: Instant, number: usize, (payload, ecn): (&[u8], Ecn)) {
        match Message::parse(payload) {
            Err(_) => self.peers[number].traffic.refused_messages += 1,
            Ok(Message::Uncoded(packet)) => {
                let outer = Outer::Datagram(ecn);
                self.with_delivery((now, number, StreamId::default(), outer), |delivery, _| {
                    delivery.uncoded(packet);
                });
            }
            Ok(Message::Source(header, symbol)) => {
                self.on_source(now, number, header, (symbol, ecn));
            }
            Ok(Message::Repair(header, symbol)) => self.on_repair(now, number, header, symbol),
            Ok(Message::Feedback(header, feedback)) => {
                if self.endpoint.on_feedback(now, number, header, feedback).is_err() {
                    self.peers[number].traffic.refused_feedback += 1;
                }
            }
        }
    }

    fn on_source(
        &mut self,
        now: Instant,
        number: usize,
        header: SourceHeader,
        (symbol, ecn): (&[u8], Ecn),
    ) {
        let SourceHeader { stream, id, .. } = header;
        let outer = Outer::Datagram(ecn);
        let arrival = self.endpoint.on_source(now, number, header, symbol);
        let is_present = self.is_present(number, stream);
        match arrival {
            Arrival::Stale if !is_present => {
                self.peers[number].traffic.outdated_symbols += 1;
                self.with_delivery((now, number, stream, outer), |delivery, _| {
                    // Whole packets are delivered; the parts of others are lost.
                    let _ = Unpacker::new(1).on_symbol(id, symbol, |packet| delivery.coded(packet));
                });
            }
            Arrival::Innovative | Arrival::Stale => {
                self.with_delivery((now, number, stream, outer), |delivery, unpacker| {
                    if unpacker.on_symbol(id, symbol, |packet| delivery.coded(packet)).is_err() {
                        delivery.traffic.refused_messages += 1;
                    }
                });
            }
            Arrival::Redundant => {}
            Arrival::Refused => self.peers[number].traffic.refused_messages += 1,
        }
        self.deliver_recovered(now, number, stream);
    }

    fn on_repair(&mut self, now: Instant, number: usize, header: RepairHeader, symbol: &[u8]) {
        let arrival = self.endpoint.on_repair(now, number, header, symbol);
        let is_present = self.is_present(number, header.stream);
        let traffic = &mut self.peers[number].traffic;
        match arrival {
            Arrival::Refused => traffic.refused_messages += 1,
            Arrival::Stale if !is_present => traffic.outdated_symbols += 1,
            _ => {}
        }
        self.deliver_recovered(now, number, header.stream);
    }

    /// Whether a stream is the present one of a peer, after a symbol of it.
    fn is_present(&mut self, number: usize, stream: StreamId) -> bool {
        let present = self.endpoint.their_stream(number);
        self.peers[number].receiver.follow(present);
        present == Some(stream)
    }

    /// Delivers the packets of the symbols that the last one made known.
    fn deliver_recovered(&mut self, now: Instant, number: usize, stream: StreamId) {
        for place in 0..self.endpoint.recovered(number).len() {
            let id = self.endpoint.recovered(number)[place];
            let mut copy = std::mem::take(&mut self.scratch);
            copy.clear();
            copy.extend_from_slice(self.endpoint.symbol(number, id).unwrap_or_default());
            self.with_delivery((now, number, stream, Outer::Decoded), |delivery, unpacker| {
                if unpacker.on_symbol(id, &copy, |packet| delivery.coded(packet)).is_err() {
                    delivery.traffic.refused_messages += 1;
                }
            });
            self.scratch = copy;
        }
    }

    /// Borrows what delivery needs.
    fn with_delivery(
        &mut self,
        (now, number, stream, outer): (Instant, usize, StreamId, Outer),
        act: impl FnOnce(&mut Delivery<'_>, &mut Unpacker),
    ) {
        let Peer { receiver: Receiver { unpacker, signal, .. }, traffic, .. } =
            &mut self.peers[number];
        let mut delivery = Delivery {
            now,
            number,
            stream,
            outer,
            mtu: self.mtu,
            routes: &self.routes,
            hasher: self.hasher,
            pool: &mut self.pool,
            inbound: &mut self.inbound,
            traffic,
            signal,
        };
        act(&mut delivery, unpacker);
    }
}
