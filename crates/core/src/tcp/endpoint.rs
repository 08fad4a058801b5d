//! One end of a connection: a sender and a receiver, the handshake (RFC 9293, section 3.5) and wire
//! sequence numbers. Each half closes with its own FIN. TIME-WAIT needs no timer here, because it
//! only acknowledges retransmitted FINs.
//!
//! Not modelled: simultaneous open, reset, urgent data, checksums (the channel decides which
//! packets are corrupted), and options other than those of [`Segment`].

mod emitting;

use super::config::Config;
use super::exchange::Ack;
use super::receiver::{Receiver, WINDOW_SHIFT_MAX};
use super::sender::Sender;
use crate::engine::{Count, Cx, Engine, Ledger};
use crate::packet::segment::{
    Flags, SACK_BLOCKS_MAX, Segment, SynOptions, TIMESTAMP_OPTION_BYTES, Timestamps,
};
use crate::packet::seq::{Position, SeqNumber};
use crate::packet::{Address, Class, Ecn, FlowId, Origin, Packet, PacketId, Payload, Port};
use crate::rng::Rng;
use crate::time::{Duration, Instant};

/// Statistics of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// When the handshake completed at this end.
    pub established: Option<Instant>,
    /// When SND.UNA last advanced over data.
    pub last_ack: Option<Instant>,
    /// When data first arrived in order.
    pub first_delivery: Option<Instant>,
    /// When data last arrived in order.
    pub last_delivery: Option<Instant>,
    /// Segments sent without data, SYN or FIN.
    pub acks_sent: u64,
    /// Data segments received.
    pub data_segments_received: u64,
    /// Sum of the one-way delays of received data segments.
    pub one_way_delay_sum: Duration,
    /// Maximum one-way delay of a received data segment.
    pub one_way_delay_max: Duration,
}

/// The negotiated options that every segment needs.
#[derive(Clone, Copy, Debug, Default)]
struct Negotiated {
    timestamps: bool,
    peer_shift: u8,
}

/// State of the handshake (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Handshake {
    /// LISTEN.
    Listen,
    /// SYN-SENT.
    SynSent,
    /// The peer's SYN was received.
    SynReceived,
    /// ESTABLISHED and later.
    Established,
}

/// See the module's description. The cost of a packet is the number of cache lines (64 bytes) that
/// it touches, so fields are grouped into lines by the segments that use them, here and in the two
/// halves. Every segment uses the first line, the receiver's first and the sender's first.
#[derive(Debug)]
#[repr(C)]
pub struct Endpoint {
    /// The application's timer; independent of the connection's timers.
    app_timer: Option<Instant>,
    packets_received: u64,
    bytes_received: u64,
    bytes_sent: u64,
    next_id: PacketId,
    initial: SeqNumber,
    /// The peer's initial sequence number, once its SYN was received.
    peer_initial: SeqNumber,
    /// The host at the other end.
    peer: Address,
    /// TS.Recent (RFC 7323, section 4.3): the value to echo.
    ts_recent: u32,
    connection: u16,
    negotiated: Negotiated,
    handshake: Handshake,
    /// ECN codepoint of new data: ECT(0) if ECN was negotiated.
    ecn: Ecn,
    /// ECE from the arrival of a CE mark until that of CWR; CWR until the next new data segment.
    ecn_flags: Flags,
    class: Class,
    receiver: Receiver,
    sender: Sender,
    /// Whether SACK was negotiated.
    sack: bool,
    established: Option<Instant>,
    first_id: PacketId,
    syns_sent: u64,
    config: Config,
    origin: Origin,
    /// Disables the fast paths: tests compare such an endpoint with a regular one.
    #[cfg(test)]
    slow_path_only: bool,
}

impl Endpoint {
    /// The port towards the network.
    pub const NET: Port = Port(0);

    /// An endpoint in LISTEN; [`Endpoint::open`] sends a SYN. `initial` is its initial sequence
    /// number.
    #[must_use]
    pub fn new(config: Config, flow: FlowId, origin: Origin, initial: SeqNumber) -> Self {
        Self {
            config,
            peer: Address::default(),
            class: Class::default(),
            connection: 0,
            origin,
            initial,
            peer_initial: SeqNumber::default(),
            handshake: Handshake::Listen,
            ecn: Ecn::NotEct,
            ecn_flags: Flags::default(),
            negotiated: Negotiated::default(),
            sack: false,
            sender: Sender::new(&config),
            receiver: Receiver::new(&config),
            ts_recent: 0,
            app_timer: None,
            first_id: PacketId::new(flow, origin, 0),
            next_id: PacketId::new(flow, origin, 0),
            established: None,
            syns_sent: 0,
            packets_received: 0,
            bytes_received: 0,
            bytes_sent: 0,
            #[cfg(test)]
            slow_path_only: false,
        }
    }

    /// Makes this endpoint one of several connections of its flow. Earlier connections created
    /// `packets_before` packets at this end. Each connection has its own block of 2^24 packet
    /// serials, after those of the earlier ones and a reserve for their late packets.
    #[must_use]
    pub fn of_connection(mut self, connection: u16, packets_before: u64) -> Self {
        let block =
            u64::from(connection) + ((packets_before + LATE_PACKETS) >> CONNECTION_SERIAL_BITS);
        let serial = block << CONNECTION_SERIAL_BITS;
        self.connection = connection;
        self.first_id = PacketId::new(self.next_id.flow(), self.origin, serial);
        self.next_id = self.first_id;
        self
    }

    /// Sets the destination and the class of the packets that this endpoint sends.
    #[must_use]
    pub fn toward(mut self, peer: Address, class: Class) -> Self {
        self.peer = peer;
        self.class = class;
        self
    }

    /// Sets the random stream that BBR draws the initial phase of its gain cycle from.
    #[must_use]
    pub fn with_rng(mut self, rng: Rng) -> Self {
        self.sender.set_rng(rng);
        self
    }

    /// Disables the fast paths.
    #[cfg(test)]
    pub(super) fn slow_path_only(mut self) -> Self {
        self.slow_path_only = true;
        self
    }

    /// Whether the fast paths are enabled; always true outside of tests.
    #[inline(always)]
    fn may_take_fast_path(&self) -> bool {
        #[cfg(test)]
        return !self.slow_path_only;
        #[cfg(not(test))]
        true
    }

    /// Opens the connection by sending a SYN.
    pub fn open(&mut self, cx: &mut Cx<'_>) {
        self.handshake = self.handshake.max(Handshake::SynSent);
        self.flush(cx);
    }

    /// Writes `bytes` of application data. Data written before the connection is established is
    /// queued.
    pub fn write(&mut self, cx: &mut Cx<'_>, bytes: u64) {
        self.sender.write(cx.now(), bytes);
        self.flush(cx);
    }

    /// Closes the sending side: a FIN follows the written data.
    pub fn close(&mut self, cx: &mut Cx<'_>) {
        self.sender.close();
        self.flush(cx);
    }

    /// Stops sending: unsent data is discarded, and a FIN follows the data sent so far.
    pub fn stop(&mut self, cx: &mut Cx<'_>) {
        self.sender.stop();
        self.flush(cx);
    }

    /// Sets whether the application reads data as soon as it is in order (the default).
    pub fn set_auto_read(&mut self, cx: &mut Cx<'_>, enabled: bool) {
        self.receiver.set_auto_read(enabled);
        self.flush(cx);
    }

    /// The sender.
    #[must_use]
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The receiver.
    #[must_use]
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Statistics of the connection so far.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        let data_stats = self.receiver.data_stats();
        EndpointStats {
            established: self.established,
            last_ack: self.sender.last_advance(),
            first_delivery: data_stats.first_delivery,
            last_delivery: data_stats.last_delivery,
            acks_sent: self.packets_sent() - self.sender.counters().segments - self.syns_sent,
            data_segments_received: data_stats.segments,
            one_way_delay_sum: data_stats.delay_sum,
            one_way_delay_max: data_stats.delay_max,
        }
    }

    /// Packets have consecutive serials, which wrap.
    fn packets_sent(&self) -> u64 {
        self.next_id.0.wrapping_sub(self.first_id.0) % PACKET_SERIALS
    }

    /// Sets the application's timer, or stops it. [`Engine::next_wake`] includes it. It is stored
    /// here because both deadlines are read together.
    pub fn set_app_timer(&mut self, at: Option<Instant>) {
        self.app_timer = at;
    }

    /// The expiry of the application's timer.
    #[must_use]
    pub fn app_timer(&self) -> Option<Instant> {
        self.app_timer
    }

    /// Processes a received packet. Header prediction (Jacobson 1990): the next in-order data at a
    /// host with nothing to send, and the next ACK at a host that receives nothing, take a fast
    /// path.
    #[inline]
    pub fn on_packet(&mut self, cx: &mut Cx<'_>, packet: &Packet) {
        self.packets_received += 1;
        self.bytes_received += u64::from(packet.bytes);
        // A datagram of this flow indicates a wiring error; a host ignores it.
        let Payload::Tcp(segment) = &packet.payload else { return };
        if segment.connection != self.connection {
            return;
        }
        let is_plain = segment.flags == Flags::default() && packet.ecn != Ecn::Ce;
        if !is_plain || self.handshake != Handshake::Established || !self.may_take_fast_path() {
            self.on_segment(cx, packet, segment);
        } else if segment.payload > 0 {
            self.on_data(cx, packet, segment);
        } else {
            self.on_ack(cx, packet, segment);
        }
    }

    /// A data segment on an established connection. It takes a fast path if its ACK field carries
    /// no new information, and a shorter one if it is also the next in-order data.
    #[inline(never)]
    fn on_data(&mut self, cx: &mut Cx<'_>, packet: &Packet, segment: &Segment) {
        let (now, next) = (cx.now(), self.receiver.next());
        let window = u64::from(segment.window) << self.negotiated.peer_shift;
        let una = SeqNumber::from_position(self.sender.una(), self.initial);
        // A SACK block may be a D-SACK even with nothing outstanding.
        let is_expected = segment.ack == Some(una) && segment.sack.is_empty();
        if !is_expected || !self.sender.on_window_update(now, self.sender.una(), window) {
            self.on_segment(cx, packet, segment);
            return;
        }
        let payload = u64::from(segment.payload);
        let is_next = segment.seq == SeqNumber::from_position(next, self.peer_initial);
        if !is_next || !self.receiver.accepts_in_order(payload) {
            self.on_unexpected_data(now, packet, segment);
        } else {
            self.receiver.on_in_order_data(now, payload);
            self.receiver.record_data(now, now.saturating_since(packet.created_at), true);
            if let Some(timestamps) = segment.timestamps {
                self.update_ts_recent(timestamps, next);
            }
            if self.receiver.window_may_grow() {
                self.receiver.tune(cx.now(), self.sender.rtt().srtt());
            }
        }
        self.respond(cx);
    }

    /// Out-of-order or duplicate data.
    #[inline(never)]
    fn on_unexpected_data(&mut self, now: Instant, packet: &Packet, segment: &Segment) {
        let position = segment.seq.to_position(self.peer_initial, self.receiver.next());
        if let Some(timestamps) = segment.timestamps {
            self.update_ts_recent(timestamps, position);
        }
        self.receive(now, position, packet, segment);
    }

    /// Passes a segment with data, SYN or FIN to the receiver.
    fn receive(&mut self, now: Instant, position: Position, packet: &Packet, segment: &Segment) {
        let delivered = self.receiver.delivered();
        self.receiver.on_segment(now, position, segment, self.sender.rtt().srtt());
        if segment.payload > 0 {
            let more = self.receiver.delivered() > delivered;
            self.receiver.record_data(now, now.saturating_since(packet.created_at), more);
        }
    }

    /// A segment without data on an established connection. The next in-order ACK takes a fast
    /// path.
    #[inline(never)]
    fn on_ack(&mut self, cx: &mut Cx<'_>, packet: &Packet, segment: &Segment) {
        let now = cx.now();
        let una = self.sender.una();
        let window = u64::from(segment.window) << self.negotiated.peer_shift;
        let ahead = |ack: SeqNumber| ack.ahead_of(SeqNumber::from_position(una, self.initial));
        let acked = segment.ack.and_then(|ack| u64::try_from(ahead(ack)).ok());
        let Some(acked) = acked.filter(|acked| una + acked <= self.sender.max()) else {
            self.on_segment(cx, packet, segment);
            return;
        };
        let echo = segment.timestamps.filter(|_| self.negotiated.timestamps);
        let rtt = echo.map(|timestamps| since_tick(now, timestamps.echo));
        let is_next = acked > 0 && segment.sack.is_empty();
        if !is_next || !self.sender.on_ack_fast_path(now, acked, window, rtt) {
            self.process_ack(now, segment, una + acked);
        }
        if let Some(timestamps) = segment.timestamps {
            let next = self.receiver.next();
            self.update_ts_recent(timestamps, segment.seq.to_position(self.peer_initial, next));
        }
        self.respond(cx);
    }

    /// RFC 7323, 4.3: updates TS.Recent if the segment covers Last.ACK.sent.
    fn update_ts_recent(&mut self, timestamps: Timestamps, position: Position) {
        if position <= self.receiver.acked_to() && self.is_recent(timestamps.value) {
            self.ts_recent = timestamps.value;
        }
    }

    #[inline(never)]
    fn on_segment(&mut self, cx: &mut Cx<'_>, packet: &Packet, segment: &Segment) {
        if segment.flags.syn() && !self.syn_received() {
            self.on_syn(segment);
        }
        if !self.syn_received() {
            return;
        }
        let peer_initial = self.peer_initial;
        let now = cx.now();
        // RFC 9293, 3.10.7.4, and RFC 5961, 4 and 5: an unexpected SYN and an ACK of unsent data
        // are answered with a challenge ACK and otherwise ignored.
        let unexpected_syn = segment.flags.syn() && segment.seq != peer_initial;
        let una = self.sender.una();
        let ack = segment.ack.map(|ack| ack.to_position(self.initial, una));
        if unexpected_syn || ack.is_some_and(|ack| ack > self.sender.max()) {
            self.receiver.acknowledge_now();
            self.flush(cx);
            return;
        }
        let position = segment.seq.to_position(peer_initial, self.receiver.next());
        match segment.timestamps {
            Some(first) if segment.flags.syn() => self.ts_recent = first.value,
            Some(timestamps) => self.update_ts_recent(timestamps, position),
            None => {}
        }
        if self.ecn == Ecn::Ect0 && !segment.flags.syn() {
            self.process_ecn(packet.ecn, segment, ack);
        }
        if let Some(ack) = ack {
            self.process_ack(now, segment, ack);
        }
        if self.handshake != Handshake::Established && self.sender.is_established() {
            self.handshake = Handshake::Established;
            self.established = Some(now);
        }
        if segment.sequence_length() > 0 {
            self.receive(now, position, packet, segment);
        }
        self.flush(cx);
    }

    /// ECN processing at both halves (RFC 3168, section 6.1). A CE mark and a CWR are acknowledged
    /// immediately, since the peer's window may be small (Linux, `tcp_data_ecn_check` and
    /// `tcp_ecn_accept_cwr`).
    #[cold]
    #[inline(never)]
    fn process_ecn(&mut self, ecn: Ecn, segment: &Segment, ack: Option<Position>) {
        if segment.payload > 0 && segment.flags.contains(Flags::CWR) {
            self.ecn_flags = self.ecn_flags.without(Flags::ECE);
            self.receiver.acknowledge_now();
        }
        if ecn == Ecn::Ce && segment.payload > 0 && !self.ecn_flags.contains(Flags::ECE) {
            self.ecn_flags |= Flags::ECE;
            self.receiver.acknowledge_now();
        }
        if segment.flags.contains(Flags::ECE) && ack.is_some_and(|ack| self.sender.on_ecn_echo(ack))
        {
            self.ecn_flags |= Flags::CWR;
        }
    }

    /// Whether the peer's SYN was received.
    fn syn_received(&self) -> bool {
        self.handshake >= Handshake::SynReceived
    }

    /// RFC 7323, 4.3: a value older than TS.Recent comes from a reordered segment.
    fn is_recent(&self, value: u32) -> bool {
        value.wrapping_sub(self.ts_recent) <= u32::MAX / 2
    }

    /// The peer's first SYN determines the negotiated options.
    fn on_syn(&mut self, segment: &Segment) {
        // RFC 3168, section 6.1.1: an ECN-setup SYN has ECE and CWR, an ECN-setup SYN-ACK has ECE
        // only.
        let expected =
            if self.handshake == Handshake::SynSent { Flags::ECE } else { Flags::ECE | Flags::CWR };
        let found = segment.flags.without(Flags::SYN | Flags::FIN);
        self.ecn = if self.config.ecn && found == expected { Ecn::Ect0 } else { Ecn::NotEct };
        self.handshake = Handshake::SynReceived;
        self.peer_initial = segment.seq;
        let no_options = SynOptions { mss: MSS_WITHOUT_OPTION, ..SynOptions::default() };
        let offered = segment.syn_options.unwrap_or(no_options);
        let scaling = self.config.window_scaling && offered.window_shift.is_some();
        self.negotiated = Negotiated {
            timestamps: self.config.timestamps && segment.timestamps.is_some(),
            peer_shift: offered.window_shift.filter(|_| scaling).unwrap_or(0).min(WINDOW_SHIFT_MAX),
        };
        let options =
            if self.negotiated.timestamps { u64::from(TIMESTAMP_OPTION_BYTES) } else { 0 };
        let payload = u64::from(self.config.mss.min(offered.mss.max(MSS_MIN))) - options;
        self.sack = self.config.sack && offered.sack;
        self.sender.negotiated(payload, self.sack, self.negotiated.timestamps, &self.config);
        self.receiver.negotiated(scaling, payload, self.sack);
    }

    #[inline(never)]
    fn process_ack(&mut self, now: Instant, segment: &Segment, position: Position) {
        let anchor = self.sender.una();
        let shift = if segment.flags.syn() { 0 } else { self.negotiated.peer_shift };
        let window = u64::from(segment.window) << shift;
        // A SACK block may be a D-SACK even with nothing outstanding.
        if segment.sack.is_empty() && self.sender.on_window_update(now, position, window) {
            return;
        }
        let mut dsack = None;
        let mut blocks = [(0, 0); SACK_BLOCKS_MAX];
        let mut count = 0;
        if self.sack && !segment.sack.is_empty() {
            for (block, (start, end)) in blocks.iter_mut().zip(segment.sack.iter()) {
                let at = |number: SeqNumber| number.to_position(self.initial, anchor);
                *block = (at(start), at(end));
                count += 1;
            }
            dsack = find_dsack(&blocks[..count], position);
            if dsack.is_some() {
                blocks.copy_within(1..count, 0);
                count -= 1;
            }
            // RACK would take blocks in descending order for reordering.
            blocks[..count].sort_unstable();
        }
        let echo = segment.timestamps.filter(|_| self.negotiated.timestamps);
        self.sender.on_ack(
            now,
            &Ack {
                position,
                window,
                sack: &blocks[..count],
                dsack,
                timestamp_rtt: echo.map(|timestamps| since_tick(now, timestamps.echo)),
                pure: segment.sequence_length() == 0,
            },
        );
    }

    /// Sends everything that may be sent now.
    fn flush(&mut self, cx: &mut Cx<'_>) {
        if self.syn_received() {
            self.respond(cx);
        } else if self.handshake == Handshake::SynSent {
            self.send(cx);
        }
    }
}

impl Engine for Endpoint {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        self.on_packet(cx, &packet);
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        if self.sender.deadline().is_some_and(|deadline| deadline <= cx.now()) {
            self.sender.on_timer(cx.now());
        }
        self.flush(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        let connection = earlier(self.sender.deadline(), self.receiver.ack_deadline());
        earlier(connection, self.app_timer)
    }

    /// A host consumes and sends immediately; it holds no packets.
    fn ledger(&self) -> Ledger {
        let received = Count { packets: self.packets_received, bytes: self.bytes_received };
        let sent = Count { packets: self.packets_sent(), bytes: self.bytes_sent };
        Ledger { received, consumed: received, created: sent, sent, ..Ledger::default() }
    }
}

/// The first block, if it is a D-SACK (RFC 2883, 4): it lies below the cumulative ACK or within the
/// second block.
fn find_dsack(
    blocks: &[(Position, Position)],
    acknowledged: Position,
) -> Option<(Position, Position)> {
    let first = *blocks.first()?;
    let is_below = first.0 < acknowledged;
    let is_within = blocks.get(1).is_some_and(|second| second.0 <= first.0 && first.1 <= second.1);
    (is_below || is_within).then_some(first)
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// See [`PacketId::new`].
const PACKET_SERIALS: u64 = 1 << 40;
/// Bits of a packet's serial within its connection.
const CONNECTION_SERIAL_BITS: u32 = 24;
/// Reserve for packets that earlier connections may still send: ACKs and retransmissions.
const LATE_PACKETS: u64 = 1 << 20;
/// RFC 9293, 3.7.1: the default MSS.
const MSS_WITHOUT_OPTION: u16 = 536;
/// Lower limit for the peer's MSS option, as in Linux (TCP_MIN_MSS): options would leave no
/// payload.
const MSS_MIN: u16 = 88;

/// A timestamp clock of one millisecond (RFC 7323, section 5.4, allows 1 ms to 1 s).
const TICK_NANOS: u64 = 1_000_000;

#[expect(clippy::cast_possible_truncation, reason = "the clock wraps, modulo 2^32")]
fn tick(now: Instant) -> u32 {
    (now.as_nanos() / TICK_NANOS) as u32
}

fn since_tick(now: Instant, echo: u32) -> Duration {
    Duration::from_millis(tick(now).wrapping_sub(echo).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn the_receiver_starts_on_a_cache_line() {
        assert_eq!(align_of::<Endpoint>(), 64);
        assert_eq!(
            offset_of!(Endpoint, receiver),
            64,
            "the endpoint's own hot fields fill one line"
        );
    }
}
