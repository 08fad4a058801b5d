//! The engine of a coded tunnel: packets from the hosts travel over the link as source symbols or uncoded, with
//! repair beside them, and the far gateway recovers lost ones.
//!
//! Sizes are those of the daemon: each packet over the link has an outer IPv4 and UDP header, the header and tag of the
//! encryption, and the header of its message. Each source symbol has one packet. The contents of repair are not
//! modelled: which symbols can be recovered follows from their coefficients.

mod contents;
mod ledger;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use super::message::{
    FEEDBACK_BYTES, Message, PACKET_BYTES, REPAIR_BYTES, ReceiverId, SOURCE_BYTES, UNCODED_BYTES,
};
use super::{Endpoint, EndpointConfig, FlowKey, LossSignal, OrderRestorer, Shown, TunnelSettings};
use crate::coding::{Arrival, SizeRows};
use crate::engine::{Count, Cx, Engine, Ledger};
use crate::header_bytes;
use crate::packet::symbol::{RepairSymbol, SourceSymbol, StreamId};
use crate::packet::{Address, Class, Ecn, FlowId, Origin, Packet, PacketId, Payload, Port};
use crate::time::Instant;
use contents::Contents;
use ledger::Accounts;

/// Header and tag of the encryption.
pub const SESSION_BYTES: u32 = 29;
/// What every message adds to its bytes.
const ENVELOPE_BYTES: u32 = header_bytes::DATAGRAM + SESSION_BYTES;
/// What a maximum segment size does not count (RFC 9293, section 3.7.1).
const MSS_HEADER_BYTES: usize = header_bytes::SEGMENT as usize;

/// A gateway at the other end.
#[derive(Clone, Copy, Debug)]
pub struct TunnelPeer {
    /// The flow of the packets to and from it.
    pub flow: FlowId,
    /// A host behind it, to which packets without a packet in them are addressed.
    pub address: Address,
}

/// The settings of a tunnel.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// The code and the policies.
    pub settings: TunnelSettings,
    /// The far gateways, at least one.
    pub peers: Vec<TunnelPeer>,
    /// The peer behind which each host is, by address; hosts beyond the list are behind the first.
    pub peer_of: Arc<[u32]>,
    /// The end of the peers' flows that this tunnel is.
    pub origin: Origin,
    /// The first serial number of its packets.
    pub first_serial: u64,
}

/// See the module's description.
#[derive(Debug)]
pub struct Tunnel {
    config: TunnelConfig,
    symbol_bytes_max: u32,
    mss_max: u16,
    endpoint: Endpoint<SizeRows>,
    contents: Vec<Contents>,
    /// `None` stands for a packet that is withheld, for which later ones do not wait.
    order: OrderRestorer<Option<Box<Packet>>>,
    signal: LossSignal,
    next_serial: u64,
    uncoded: Count,
    oversized_packets: u64,
    repairs: Count,
    feedback: Count,
    refused_packets: u64,
    accounts: Accounts,
    /// Packets on their way out; empty between calls.
    leaving: Vec<Option<Box<Packet>>>,
}

/// A packet that is put into another one: what that takes over.
#[derive(Clone, Copy)]
struct Outer {
    destination: Address,
    class: Class,
    ecn: Ecn,
}

impl Tunnel {
    /// The port towards the hosts.
    pub const INNER: Port = Port(0);
    /// The port towards the link.
    pub const OUTER: Port = Port(1);

    /// A tunnel that has sent nothing. `None` without peers.
    #[must_use]
    pub fn new(config: TunnelConfig) -> Option<Self> {
        config.peers.first()?;
        let settings = &config.settings;
        let endpoint_config: EndpointConfig = settings.endpoint();
        let mut endpoint = Endpoint::new(&endpoint_config);
        for _ in &config.peers {
            endpoint.add_peer(&endpoint_config, StreamId(0), ReceiverId(0));
        }
        let packet_bytes_max = settings.symbol_size_bytes as usize - PACKET_BYTES;
        Some(Self {
            symbol_bytes_max: settings.symbol_size_bytes,
            mss_max: u16::try_from(packet_bytes_max - MSS_HEADER_BYTES).unwrap_or(u16::MAX),
            endpoint,
            contents: config.peers.iter().map(|_| Contents::new(settings.memory_symbols)).collect(),
            order: OrderRestorer::new(settings.order()),
            signal: LossSignal::new(settings.signal()),
            next_serial: config.first_serial,
            uncoded: Count::default(),
            oversized_packets: 0,
            repairs: Count::default(),
            feedback: Count::default(),
            refused_packets: 0,
            accounts: Accounts::default(),
            leaving: Vec::new(),
            config,
        })
    }

    /// The memory for each peer, at most: of the coefficients of all equations, and of the symbols that are kept at both
    /// ends.
    #[must_use]
    pub fn peer_bytes(settings: &TunnelSettings) -> u64 {
        let memory = usize::from(settings.memory_symbols);
        let symbol = 3 * size_of::<usize>() + size_of::<SourceSymbol>();
        (memory * memory + 4 * memory * symbol) as u64
    }

    fn peer_behind(&self, host: Address) -> usize {
        let peer = self.config.peer_of.get(host.0 as usize).copied().unwrap_or(0);
        peer as usize
    }

    fn peer_of_flow(&self, flow: FlowId) -> Option<usize> {
        // The flows of the peers follow each other; with one peer it is the only one.
        let first = self.config.peers[0].flow.0;
        let index = flow.0.checked_sub(first)? as usize;
        (self.config.peers.get(index)?.flow == flow).then_some(index)
    }

    /// Handles a packet from the hosts.
    fn encapsulate(&mut self, cx: &mut Cx<'_>, mut packet: Box<Packet>) {
        let (now, bytes) = (cx.now(), packet.bytes);
        self.clamp_mss(&mut packet);
        let peer = self.peer_behind(packet.destination);
        let symbol_bytes = bytes + PACKET_BYTES as u32;
        let is_oversized = symbol_bytes > self.symbol_bytes_max;
        self.oversized_packets += u64::from(is_oversized);
        let sequence = if is_oversized {
            None
        } else {
            self.endpoint.classify(now, flow_key(&packet), packet.class.0, bytes)
        };
        let outer = Outer { destination: packet.destination, class: packet.class, ecn: packet.ecn };
        self.accounts.pack(bytes);
        let inner = std::mem::take(&mut *packet);
        cx.discard(packet);
        let Some(sequence) = sequence else {
            self.uncoded.add(bytes);
            let bytes = ENVELOPE_BYTES + UNCODED_BYTES as u32 + bytes;
            self.send(cx, peer, outer, bytes, Payload::Nested(vec![inner]));
            return;
        };
        let header = self.endpoint.on_source_sent(now, peer, &symbol_bytes);
        let symbol =
            Arc::new(SourceSymbol { header, sequence, packet: inner, dropped: OnceLock::new() });
        self.contents[peer].keep(Arc::clone(&symbol));
        let bytes = ENVELOPE_BYTES + SOURCE_BYTES as u32 + symbol_bytes;
        self.send(cx, peer, outer, bytes, Payload::Source(symbol));
    }

    /// Lowers the maximum segment size of a SYN to what fits a symbol, as the daemon does.
    fn clamp_mss(&self, packet: &mut Packet) {
        if let Payload::Tcp(segment) = &mut packet.payload
            && segment.flags.syn()
            && let Some(options) = &mut segment.syn_options
        {
            options.mss = options.mss.min(self.mss_max);
        }
    }

    fn send(&mut self, cx: &mut Cx<'_>, peer: usize, outer: Outer, bytes: u32, payload: Payload) {
        let flow = self.config.peers[peer].flow;
        let source = matches!(payload, Payload::Source(_)).then_some(peer);
        let packet = Packet {
            id: PacketId::new(flow, self.config.origin, self.next_serial),
            created_at: cx.now(),
            flow,
            destination: outer.destination,
            class: outer.class,
            ecn: outer.ecn,
            bytes,
            payload,
            ..Packet::default()
        };
        self.next_serial += 1;
        self.accounts.create(bytes);
        self.endpoint.on_sent(cx.now(), bytes, source);
        cx.send(Self::OUTER, packet);
    }

    /// Sends repair and feedback that are due.
    fn send_due(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        while let Some((peer, header, &symbol_bytes)) = self.endpoint.next_repair(now) {
            let sources = self.contents[peer].from(header.id.first);
            let mut symbols = sources.iter().rev().flat_map(|group| group.iter().rev());
            let newest = symbols.find(|symbol| symbol.header.id == header.id.last());
            let newest = newest.map(|symbol| &symbol.packet);
            let class = newest.map_or(Class::default(), |packet| packet.class);
            let address = newest.map_or(self.config.peers[peer].address, |inner| inner.destination);
            let outer = Outer { destination: address, class, ecn: Ecn::NotEct };
            let bytes = ENVELOPE_BYTES + REPAIR_BYTES as u32 + symbol_bytes;
            self.repairs.add(bytes);
            let repair = RepairSymbol { header, symbol_bytes, sources };
            self.send(cx, peer, outer, bytes, Payload::Repair(Box::new(repair)));
        }
        while let Some((peer, header, feedback)) = self.endpoint.next_feedback(now) {
            let mut message = Vec::with_capacity(FEEDBACK_BYTES + 64);
            header.encode(&feedback, &mut message);
            let destination = self.config.peers[peer].address;
            let outer = Outer { destination, class: Class::default(), ecn: Ecn::NotEct };
            let bytes = ENVELOPE_BYTES + message.len() as u32;
            self.feedback.add(bytes);
            self.send(cx, peer, outer, bytes, Payload::Control(message.into()));
        }
    }

    /// Handles a packet from the link.
    fn decapsulate(&mut self, cx: &mut Cx<'_>, mut packet: Box<Packet>) {
        let Some(peer) = self.peer_of_flow(packet.flow) else {
            self.accounts.forward(packet.bytes);
            cx.forward(Self::INNER, packet);
            return;
        };
        let payload = std::mem::take(&mut packet.payload);
        let (ecn, transmitted) = (packet.ecn, packet.transmitted);
        self.accounts.consume(packet.bytes);
        cx.discard(packet);
        match payload {
            Payload::Source(symbol) => self.on_source(cx, peer, symbol, (ecn, transmitted)),
            Payload::Repair(repair) => self.on_repair(cx, peer, *repair),
            Payload::Control(message) => self.on_message(cx.now(), peer, &message),
            Payload::Nested(packets) => {
                for mut inner in packets {
                    inner.transmitted = transmitted;
                    inner.ecn = combined(inner.ecn, ecn);
                    self.accounts.unpack(&inner);
                    let inner = cx.boxed(inner);
                    self.leaving.push(Some(inner));
                }
            }
            Payload::Tcp(_) | Payload::Datagram { .. } => self.refused_packets += 1,
        }
        self.deliver(cx);
    }

    fn on_source(
        &mut self,
        cx: &mut Cx<'_>,
        peer: usize,
        symbol: Arc<SourceSymbol>,
        (ecn, transmitted): (Ecn, bool),
    ) {
        let bytes = symbol.packet.bytes + PACKET_BYTES as u32;
        let arrival = self.endpoint.on_source(cx.now(), peer, symbol.header, &bytes);
        self.contents[peer].take(symbol.header.id);
        if arrival == Arrival::Redundant {
            // It was recovered before it came.
            self.accounts.lose(&symbol.packet);
        } else {
            let (sequence, mut inner) = taken(symbol);
            inner.transmitted = transmitted;
            inner.ecn = combined(inner.ecn, ecn);
            self.accounts.unpack(&inner);
            self.restore_order(cx, sequence, inner);
        }
        self.recover(cx, peer);
    }

    fn on_repair(&mut self, cx: &mut Cx<'_>, peer: usize, repair: RepairSymbol) {
        let RepairSymbol { header, symbol_bytes, sources } = repair;
        let arrival = self.endpoint.on_repair(cx.now(), peer, header, &symbol_bytes);
        if arrival != Arrival::Innovative {
            return;
        }
        let recovered = self.endpoint.recovered(peer);
        self.contents[peer]
            .learn(&sources, |id| self.endpoint.is_missing(peer, id) || recovered.contains(&id));
        self.recover(cx, peer);
    }

    /// Delivers the symbols that the last one made known.
    fn recover(&mut self, cx: &mut Cx<'_>, peer: usize) {
        let recovered = self.endpoint.recovered(peer).iter();
        let contents = &mut self.contents[peer];
        let symbols: Vec<_> = recovered.filter_map(|&id| contents.take(id)).collect();
        for symbol in symbols {
            let dropped = symbol.dropped.get().copied();
            let (sequence, mut inner) = taken(symbol);
            match self.signal.next(inner.ecn) {
                Shown::Hidden => {}
                Shown::Marked => inner.ecn = Ecn::Ce,
                Shown::Withheld => {
                    self.accounts.withhold();
                    let (now, key) = (cx.now(), flow_key(&inner));
                    self.order.push(now, key, sequence, 0, None, &mut self.leaving);
                    continue;
                }
            }
            inner.transmitted = true;
            self.accounts.recover(&inner);
            cx.record_recovery(&inner, dropped);
            self.restore_order(cx, sequence, inner);
        }
    }

    fn restore_order(&mut self, cx: &mut Cx<'_>, sequence: u32, inner: Packet) {
        let (key, bytes) = (flow_key(&inner), inner.bytes);
        let packet = cx.boxed(inner);
        self.order.push(cx.now(), key, sequence, bytes, Some(packet), &mut self.leaving);
    }

    fn on_message(&mut self, now: Instant, peer: usize, message: &[u8]) {
        let is_taken = match Message::parse(message) {
            Ok(Message::Feedback(header, feedback)) => {
                self.endpoint.on_feedback(now, peer, header, feedback).is_ok()
            }
            _ => false,
        };
        self.refused_packets += u64::from(!is_taken);
    }

    /// Sends what is in order to the hosts.
    fn deliver(&mut self, cx: &mut Cx<'_>) {
        for packet in self.leaving.drain(..) {
            match packet {
                Some(packet) => {
                    self.accounts.deliver(&packet);
                    cx.forward(Self::INNER, packet);
                }
                None => self.accounts.consume(0),
            }
        }
    }
}

/// The flow of a packet within the tunnel: a TCP connection, or the datagrams of one end of a flow.
fn flow_key(packet: &Packet) -> FlowKey {
    const SERIAL_BITS: u32 = 40;
    let end = packet.id.0 >> SERIAL_BITS;
    end << 16 | packet.segment().map_or(0, |segment| u64::from(segment.connection))
}

/// The packet of a symbol. Unless its sender still keeps the symbol, that costs no copy.
fn taken(symbol: Arc<SourceSymbol>) -> (u32, Packet) {
    let SourceSymbol { sequence, packet, .. } = Arc::unwrap_or_clone(symbol);
    (sequence, packet)
}

/// The ECN field of a packet that leaves a tunnel (RFC 6040, section 4.2, for outer headers that are copies).
fn combined(inner: Ecn, outer: Ecn) -> Ecn {
    if outer == Ecn::Ce && inner.is_capable() { Ecn::Ce } else { inner }
}

impl Engine for Tunnel {
    /// What is due is done before the packet that arrives at that instant is handled, whichever of the two calls comes
    /// first.
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.wake(cx);
        self.accounts.receive(packet.bytes);
        if port == Self::OUTER {
            self.decapsulate(cx, packet);
        } else {
            self.encapsulate(cx, packet);
        }
        self.send_due(cx);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.endpoint.wake(cx.now());
        self.order.wake(cx.now(), &mut self.leaving);
        self.deliver(cx);
        self.send_due(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.endpoint.next_wake().into_iter().chain(self.order.next_wake()).min()
    }

    fn ledger(&self) -> Ledger {
        self.accounts.ledger(self.order.counts().held)
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        ledger::statistics(self)
    }
}
