//! From hosts to peers.

use std::collections::VecDeque;

use bentpipe_core::coding::framing::{self, Packer};
use bentpipe_core::coding::{ByteRows, RepairId, SymbolId};
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::tunnel::message::uncoded_header;
use bentpipe_core::tunnel::{Endpoint, FlowKey};
use bentpipe_core::wire::Headers;

use super::buffers::{Datagrams, Slot};
use super::counters::PeerTraffic;
use super::{HEADROOM, Path, Peer, inner, sizes};
use crate::tunnel::{OVERHEAD_BYTES, PeerId, Tunnel};

/// The most packets that wait for a session with a peer: some initial windows, but less than a second of a fast link.
const WAITING_PACKETS_MAX: usize = 128;

/// How long they wait: a handshake over GEO with two lost messages. TCP and DNS have repeated older ones.
const WAITING_TIMEOUT: Duration = Duration::from_secs(4);

/// The way to one peer.
pub(super) struct Sender {
    packer: Packer,
    symbol_bytes: usize,
    /// The flows of the symbol that is begun, and its traffic class.
    begun_flows: Vec<FlowKey>,
    begun_class: u8,
    sent: SentClasses,
    /// Packets behind [`HEADROOM`] bytes that wait for a session, each with the time of its arrival.
    waiting: VecDeque<(Instant, Slot)>,
}

impl Sender {
    /// For symbols of at most so many bytes, of which repair covers the last `memory` at most.
    pub(super) fn new(symbol_bytes: usize, memory: usize) -> Self {
        Self {
            packer: Packer::new(symbol_bytes),
            symbol_bytes,
            begun_flows: Vec::new(),
            begun_class: 0,
            sent: SentClasses(vec![0; memory.next_power_of_two()]),
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn waiting_packets(&self) -> u64 {
        self.waiting.len() as u64
    }
}

/// The traffic classes of the last symbols sent, each at the place of its id.
struct SentClasses(Vec<u8>);

impl SentClasses {
    fn place(&mut self, id: SymbolId) -> &mut u8 {
        let place = id.0 as usize & (self.0.len() - 1);
        &mut self.0[place]
    }

    /// The traffic class of a repair symbol: the DSCP of the newest symbol that it covers, not ECN-capable.
    fn of_repair(&mut self, id: RepairId) -> u8 {
        *self.place(id.last()) & inner::DSCP_MASK
    }
}

/// What was made for all peers.
#[derive(Default)]
pub(super) struct Outbound {
    pub(super) datagrams: Datagrams,
    /// Peers with a symbol that is begun.
    begun: Vec<usize>,
    /// Peers with packets that wait for a session.
    waiting: Vec<usize>,
}

impl Outbound {
    /// Seals a message in two parts, with a traffic class. Returns the size of the IP packet, if there is a session.
    pub(super) fn seal(
        &mut self,
        now: Instant,
        tunnel: &mut Tunnel,
        (number, traffic, class): (usize, &mut PeerTraffic, u8),
        parts: [&[u8]; 2],
    ) -> Option<u32> {
        match self.datagrams.seal(now, tunnel, PeerId(number), class, parts) {
            Ok((bytes, to)) => {
                let ip_bytes = sizes::ip_bytes(to, bytes);
                traffic.datagrams_sent.add(ip_bytes as usize);
                Some(ip_bytes)
            }
            Err(_) => {
                traffic.unsealed_datagrams += 1;
                None
            }
        }
    }

    fn send_symbol(
        &mut self,
        now: Instant,
        (tunnel, endpoint): (&mut Tunnel, &mut Endpoint<ByteRows>),
        to: (usize, &mut PeerTraffic, u8),
        (sent, symbol): (&mut SentClasses, &[u8]),
    ) {
        let number = to.0;
        let header = endpoint.on_source_sent(now, number, symbol);
        *sent.place(header.id) = to.2;
        if let Some(ip_bytes) = self.seal(now, tunnel, to, [&header.to_bytes(), symbol]) {
            endpoint.on_sent(now, ip_bytes, Some(number));
        }
    }
}

impl Path {
    /// Sends a packet to a peer with a session, or begins a symbol with it.
    pub(super) fn send(
        &mut self,
        now: Instant,
        number: usize,
        buffer: &mut [u8],
        headers: &Headers,
    ) {
        let (sequence_bytes, packet) = buffer.split_at_mut(HEADROOM);
        let flow = self.hasher.key(number as u64, &headers.tuple);
        let class = inner::traffic_class(packet);
        match self.endpoint.classify(now, flow, class >> 2, packet.len() as u32) {
            Some(sequence) => {
                sequence_bytes.copy_from_slice(&sequence.to_be_bytes());
                self.peers[number].traffic.coded.add(packet.len());
                self.send_coded(now, number, (flow, class), buffer);
            }
            None => {
                if self.peers[number].sender.begun_flows.contains(&flow) {
                    // Else it would overtake an earlier packet of its flow.
                    self.flush_symbol(now, number);
                }
                let traffic = &mut self.peers[number].traffic;
                traffic.uncoded.add(packet.len());
                let parts = [&uncoded_header()[..], packet];
                let (tunnel, to) = (&mut self.tunnel, (number, traffic, class));
                if let Some(ip_bytes) = self.outbound.seal(now, tunnel, to, parts) {
                    self.endpoint.on_sent(now, ip_bytes, None);
                }
            }
        }
        self.send_repair(now);
    }

    fn send_coded(
        &mut self,
        now: Instant,
        number: usize,
        (flow, class): (FlowKey, u8),
        numbered: &[u8],
    ) {
        let Peer { sender, traffic, .. } = &mut self.peers[number];
        let (tunnel, endpoint) = (&mut self.tunnel, &mut self.endpoint);
        let outbound = &mut self.outbound;
        let mut joint_class = class;
        if sender.begun_flows.is_empty() {
            outbound.begun.push(number);
        } else {
            joint_class = inner::joint_class(sender.begun_class, class);
        }
        // A packet that is larger than a symbol may begin in the symbol that is sent first.
        let is_split = framing::HEADER_BYTES + numbered.len() > sender.symbol_bytes;
        let mut class_to_send = if is_split { joint_class } else { sender.begun_class };
        let mut was_sent = false;
        let Sender { packer, sent, .. } = sender;
        packer.push(numbered, |symbol| {
            was_sent = true;
            let to = (number, &mut *traffic, class_to_send);
            outbound.send_symbol(now, (tunnel, endpoint), to, (sent, symbol));
            class_to_send = class;
        });
        if was_sent {
            // What is begun now is this packet.
            sender.begun_flows.clear();
            joint_class = class;
        }
        sender.begun_class = joint_class;
        if !sender.begun_flows.contains(&flow) {
            sender.begun_flows.push(flow);
        }
    }

    /// Sends the symbol of a peer that is begun, if any.
    fn flush_symbol(&mut self, now: Instant, number: usize) {
        let Peer { sender, traffic, .. } = &mut self.peers[number];
        let (tunnel, endpoint) = (&mut self.tunnel, &mut self.endpoint);
        let outbound = &mut self.outbound;
        let Sender { packer, sent, begun_class, .. } = sender;
        packer.flush(|symbol| {
            let to = (number, &mut *traffic, *begun_class);
            outbound.send_symbol(now, (tunnel, endpoint), to, (sent, symbol));
        });
        sender.begun_flows.clear();
    }

    /// Sends all symbols that are begun.
    pub(super) fn flush_symbols(&mut self, now: Instant) {
        while let Some(number) = self.outbound.begun.pop() {
            self.flush_symbol(now, number);
            self.send_repair(now);
        }
    }

    /// Sends the repair that is due.
    pub(super) fn send_repair(&mut self, now: Instant) {
        while let Some((number, header, symbol)) = self.endpoint.next_repair(now) {
            let Peer { sender, traffic, .. } = &mut self.peers[number];
            let to = (number, traffic, sender.sent.of_repair(header.id));
            let parts = [&header.to_bytes()[..], symbol];
            if let Some(ip_bytes) = self.outbound.seal(now, &mut self.tunnel, to, parts) {
                self.endpoint.on_sent(now, ip_bytes, None);
            }
        }
    }

    /// Keeps a packet until there is a session; the oldest one makes room.
    pub(super) fn hold(&mut self, now: Instant, number: usize, buffer: &[u8]) {
        // A handshake begins, if none is under way.
        let _ = self.tunnel.output(PeerId(number), &mut [0; OVERHEAD_BYTES], now);
        let Peer { sender, traffic, .. } = &mut self.peers[number];
        if sender.waiting.is_empty() {
            self.outbound.waiting.push(number);
        }
        if sender.waiting.len() == WAITING_PACKETS_MAX
            && let Some((_, oldest)) = sender.waiting.pop_front()
        {
            traffic.dropped_no_session += 1;
            self.pool.free(oldest);
        }
        sender.waiting.push_back((now, self.pool.store(buffer)));
    }

    /// Sends what waited for a session that now exists.
    pub(super) fn send_waiting(&mut self, now: Instant) {
        let mut place = 0;
        while let Some(&number) = self.outbound.waiting.get(place) {
            if !self.tunnel.has_session(PeerId(number), now) {
                place += 1;
                continue;
            }
            self.outbound.waiting.swap_remove(place);
            while let Some((arrived_at, slot)) = self.peers[number].sender.waiting.pop_front() {
                if now.saturating_since(arrived_at) > WAITING_TIMEOUT {
                    self.peers[number].traffic.dropped_no_session += 1;
                    self.pool.free(slot);
                    continue;
                }
                let mut buffer = self.pool.take(slot);
                if let Some(headers) = inner::headers(&buffer[HEADROOM..]) {
                    self.send(now, number, &mut buffer, &headers);
                }
                self.pool.put_back(slot, buffer);
            }
        }
    }
}
