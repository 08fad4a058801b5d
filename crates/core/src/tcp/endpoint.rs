//! One end of a connection: the two halves joined, the handshake (RFC 9293, section 3.5), and the
//! numbers on the wire. The close is the FIN of each half; what follows it (TIME-WAIT) only answers
//! repeated FINs, so it needs no timer here.
//!
//! Not modelled: simultaneous open, reset, urgent data, checksums (the channel decides what is
//! damaged), and options other than those of [`Segment`].

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

/// What happened on a connection, for results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// When the handshake was complete at this end.
    pub established: Option<Instant>,
    /// When the left edge of this end's data last moved.
    pub last_ack: Option<Instant>,
    /// When data first arrived in order.
    pub first_delivery: Option<Instant>,
    /// When data last arrived in order.
    pub last_delivery: Option<Instant>,
    /// Segments without data, SYN or FIN that were sent.
    pub acks_sent: u64,
    /// Segments with data that arrived.
    pub data_segments_received: u64,
    /// One-way delays of segments with data, added up, and the largest.
    pub one_way_delay_sum: Duration,
    /// The largest one-way delay of a segment with data.
    pub one_way_delay_max: Duration,
}

/// What both ends can do, as far as every segment needs it.
#[derive(Clone, Copy, Debug, Default)]
struct Agreed {
    timestamps: bool,
    peer_shift: u8,
}

/// How far the handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Handshake {
    /// This end waits for a SYN.
    Listening,
    /// It sends one.
    Opening,
    /// The peer's was heard.
    Heard,
    /// It is complete at this end.
    Complete,
}

/// See the module's description.
///
/// With many connections, what counts is how many lines of the cache (64 bytes) a packet touches. So
/// fields lie in lines by the segments that need them, here and in the parts: all segments need the
/// first line, the first one of the receiving half and the first one of the sending half.
#[derive(Debug)]
#[repr(C)]
pub struct Endpoint {
    /// When the application wants its turn, whatever the connection does.
    reminder: Option<Instant>,
    packets_received: u64,
    bytes_received: u64,
    bytes_sent: u64,
    next_id: PacketId,
    initial: SeqNumber,
    /// Numbers the peer's SYN, once that was heard.
    peer_initial: SeqNumber,
    /// The host at the other end.
    peer: Address,
    /// RFC 7323, section 4.3: the value to echo.
    timestamp_recent: u32,
    connection: u16,
    agreed: Agreed,
    handshake: Handshake,
    /// Of new data: ECN-capable, if both ends agreed on ECN.
    ecn: Ecn,
    /// ECE from the arrival of a mark until that of CWR; CWR until the next new data.
    ecn_flags: Flags,
    class: Class,
    receiver: Receiver,
    sender: Sender,
    /// Whether both ends can do SACK.
    sack: bool,
    established: Option<Instant>,
    first_id: PacketId,
    syns_sent: u64,
    config: Config,
    origin: Origin,
    /// Whether no segment takes a fast path: tests compare such an end with a usual one.
    #[cfg(test)]
    slow_path_only: bool,
}

impl Endpoint {
    /// The port to the network.
    pub const NET: Port = Port(0);

    /// An end that waits for a SYN; [`Endpoint::open`] makes it send one. `initial` numbers its SYN.
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
            handshake: Handshake::Listening,
            ecn: Ecn::NotEct,
            ecn_flags: Flags::default(),
            agreed: Agreed::default(),
            sack: false,
            sender: Sender::new(&config),
            receiver: Receiver::new(&config),
            timestamp_recent: 0,
            reminder: None,
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

    /// The same end as one of several connections of its flow; it ignores segments of the others.
    /// The connections before it made `packets_before` packets at this end. Each begins a block of
    /// 2^24 serials of its own, behind those that earlier ones needed and some for their last ACKs.
    #[must_use]
    pub fn of_connection(mut self, connection: u16, packets_before: u64) -> Self {
        let block =
            u64::from(connection) + ((packets_before + LAST_ACKS) >> CONNECTION_SERIAL_BITS);
        let serial = block << CONNECTION_SERIAL_BITS;
        self.connection = connection;
        self.first_id = PacketId::new(self.next_id.flow(), self.origin, serial);
        self.next_id = self.first_id;
        self
    }

    /// The same end, whose packets are for the host `peer` and of this class.
    #[must_use]
    pub fn toward(mut self, peer: Address, class: Class) -> Self {
        self.peer = peer;
        self.class = class;
        self
    }

    /// The same end with draws of its own: in which phase of its cycle BBR begins.
    #[must_use]
    pub fn with_chance(mut self, chance: Rng) -> Self {
        self.sender.set_chance(chance);
        self
    }

    /// The same end without fast paths.
    #[cfg(test)]
    pub(super) fn slow_path_only(mut self) -> Self {
        self.slow_path_only = true;
        self
    }

    /// Whether fast paths may be taken: always, but for tests.
    #[inline(always)]
    fn may_take_fast_path(&self) -> bool {
        #[cfg(test)]
        return !self.slow_path_only;
        #[cfg(not(test))]
        true
    }

    /// Opens the connection: sends the SYN.
    pub fn open(&mut self, cx: &mut Cx<'_>) {
        self.handshake = self.handshake.max(Handshake::Opening);
        self.flush(cx);
    }

    /// The application writes `bytes`. Before the connection is open, they wait for it.
    pub fn write(&mut self, cx: &mut Cx<'_>, bytes: u64) {
        self.sender.write(cx.now(), bytes);
        self.flush(cx);
    }

    /// The application is done: a FIN follows what was written.
    pub fn close(&mut self, cx: &mut Cx<'_>) {
        self.sender.close();
        self.flush(cx);
    }

    /// The application stops sending: a FIN follows what was sent so far.
    pub fn stop(&mut self, cx: &mut Cx<'_>) {
        self.sender.stop();
        self.flush(cx);
    }

    /// Whether the application takes data as soon as it is in order, as it does at first.
    pub fn reads_at_once(&mut self, cx: &mut Cx<'_>, at_once: bool) {
        self.receiver.reads_at_once(at_once);
        self.flush(cx);
    }

    /// The sending half.
    #[must_use]
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The receiving half.
    #[must_use]
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// What happened so far.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let arrivals = self.receiver.arrivals();
        Facts {
            established: self.established,
            last_ack: self.sender.last_advance(),
            first_delivery: arrivals.first_delivery,
            last_delivery: arrivals.last_delivery,
            acks_sent: self.packets_sent() - self.sender.counters().segments - self.syns_sent,
            data_segments_received: arrivals.segments,
            one_way_delay_sum: arrivals.delay_sum,
            one_way_delay_max: arrivals.delay_max,
        }
    }

    /// Each packet has the serial after the last one's, and serials wrap.
    fn packets_sent(&self) -> u64 {
        self.next_id.0.wrapping_sub(self.first_id.0) % PACKET_SERIALS
    }

    /// The application wants its turn at `at`, if at all, besides when the connection does: kept here,
    /// because both are asked for together.
    pub fn remind(&mut self, at: Option<Instant>) {
        self.reminder = at;
    }

    /// When the application wants its turn.
    #[must_use]
    pub fn reminder(&self) -> Option<Instant> {
        self.reminder
    }

    /// Takes in what a packet says.
    ///
    /// Header prediction (Jacobson 1990): what a transfer mostly consists of takes a short way, which
    /// is the next data for a host that has nothing to send, and the next ACK for one to which nothing
    /// is sent.
    #[inline]
    pub fn hear(&mut self, cx: &mut Cx<'_>, packet: &Packet) {
        self.packets_received += 1;
        self.bytes_received += u64::from(packet.bytes);
        // A datagram of this flow would be somebody's mistake in wiring; a host ignores it.
        let Payload::Tcp(segment) = &packet.payload else { return };
        if segment.connection != self.connection {
            return;
        }
        let is_plain = segment.flags == Flags::default() && packet.ecn != Ecn::Ce;
        if !is_plain || self.handshake != Handshake::Complete || !self.may_take_fast_path() {
            self.on_segment(cx, packet, segment);
        } else if segment.payload > 0 {
            self.hear_data(cx, packet, segment);
        } else {
            self.hear_ack(cx, packet, segment);
        }
    }

    /// Data on an open connection; a short way if it says nothing about what was sent here, and a
    /// shorter one if it is the next.
    #[inline(never)]
    fn hear_data(&mut self, cx: &mut Cx<'_>, packet: &Packet, segment: &Segment) {
        let (now, next) = (cx.now(), self.receiver.next());
        let window = u64::from(segment.window) << self.agreed.peer_shift;
        let una = SeqNumber::from_position(self.sender.una(), self.initial);
        // A SACK block tells of a duplicate, even with nothing outstanding.
        let is_expected = segment.ack == Some(una) && segment.sack.is_empty();
        if !is_expected || !self.sender.only_window(now, self.sender.una(), window) {
            self.on_segment(cx, packet, segment);
            return;
        }
        let payload = u64::from(segment.payload);
        let is_next = segment.seq == SeqNumber::from_position(next, self.peer_initial);
        if !is_next || !self.receiver.expects(payload) {
            self.hear_other_data(now, packet, segment);
        } else {
            self.receiver.on_next(now, payload);
            self.receiver.note_arrival(now, now.saturating_since(packet.created_at), true);
            if let Some(timestamps) = segment.timestamps {
                self.note_timestamp(timestamps, next);
            }
            if self.receiver.window_may_grow() {
                self.receiver.tune(cx.now(), self.sender.rtt().srtt());
            }
        }
        self.respond(cx);
    }

    /// Data beyond a hole, or repeated.
    #[inline(never)]
    fn hear_other_data(&mut self, now: Instant, packet: &Packet, segment: &Segment) {
        let position = segment.seq.to_position(self.peer_initial, self.receiver.next());
        if let Some(timestamps) = segment.timestamps {
            self.note_timestamp(timestamps, position);
        }
        self.take_in(now, position, packet, segment);
    }

    /// What a segment with data, a SYN or a FIN means for the receiving half.
    fn take_in(&mut self, now: Instant, position: Position, packet: &Packet, segment: &Segment) {
        let delivered = self.receiver.delivered();
        self.receiver.on_segment(now, position, segment, self.sender.rtt().srtt());
        if segment.payload > 0 {
            let more = self.receiver.delivered() > delivered;
            self.receiver.note_arrival(now, now.saturating_since(packet.created_at), more);
        }
    }

    /// A segment without data on an open connection; a short way if it is the next ACK.
    #[inline(never)]
    fn hear_ack(&mut self, cx: &mut Cx<'_>, packet: &Packet, segment: &Segment) {
        let now = cx.now();
        let una = self.sender.una();
        let window = u64::from(segment.window) << self.agreed.peer_shift;
        let ahead = |ack: SeqNumber| ack.ahead_of(SeqNumber::from_position(una, self.initial));
        let acked = segment.ack.and_then(|ack| u64::try_from(ahead(ack)).ok());
        let Some(acked) = acked.filter(|acked| una + acked <= self.sender.max()) else {
            self.on_segment(cx, packet, segment);
            return;
        };
        let echo = segment.timestamps.filter(|_| self.agreed.timestamps);
        let rtt = echo.map(|timestamps| since_tick(now, timestamps.echo));
        let is_next = acked > 0 && segment.sack.is_empty();
        if !is_next || !self.sender.on_next_ack(now, acked, window, rtt) {
            self.on_ack(now, segment, una + acked);
        }
        if let Some(timestamps) = segment.timestamps {
            let next = self.receiver.next();
            self.note_timestamp(timestamps, segment.seq.to_position(self.peer_initial, next));
        }
        self.respond(cx);
    }

    /// RFC 7323, 4.3: the value to echo comes from the segment that the next ACK is for.
    fn note_timestamp(&mut self, timestamps: Timestamps, position: Position) {
        if position <= self.receiver.acked_to() && self.is_recent(timestamps.value) {
            self.timestamp_recent = timestamps.value;
        }
    }

    #[inline(never)]
    fn on_segment(&mut self, cx: &mut Cx<'_>, packet: &Packet, segment: &Segment) {
        if segment.flags.syn() && !self.has_heard() {
            self.on_syn(segment);
        }
        if !self.has_heard() {
            return;
        }
        let peer_initial = self.peer_initial;
        let now = cx.now();
        // RFC 9293, 3.10.7.4: a SYN that does not repeat the first one, and an ACK of what was never
        // sent, are answered by what is true and otherwise ignored.
        let strange_syn = segment.flags.syn() && segment.seq != peer_initial;
        let una = self.sender.una();
        let ack = segment.ack.map(|ack| ack.to_position(self.initial, una));
        if strange_syn || ack.is_some_and(|ack| ack > self.sender.max()) {
            self.receiver.acknowledge_at_once();
            self.flush(cx);
            return;
        }
        let position = segment.seq.to_position(peer_initial, self.receiver.next());
        match segment.timestamps {
            Some(first) if segment.flags.syn() => self.timestamp_recent = first.value,
            Some(timestamps) => self.note_timestamp(timestamps, position),
            None => {}
        }
        if self.ecn == Ecn::Ect0 && !segment.flags.syn() {
            self.notice_congestion(packet.ecn, segment, ack);
        }
        if let Some(ack) = ack {
            self.on_ack(now, segment, ack);
        }
        if self.handshake != Handshake::Complete && self.sender.opened() {
            self.handshake = Handshake::Complete;
            self.established = Some(now);
        }
        if segment.sequence_length() > 0 {
            self.take_in(now, position, packet, segment);
        }
        self.flush(cx);
    }

    /// RFC 3168, section 6.1: what a segment says about congestion, either way. A mark, and the CWR that
    /// answers its echo, are acknowledged at once, since the peer's window may be small (Linux,
    /// `tcp_data_ecn_check` and `tcp_ecn_accept_cwr`).
    #[cold]
    #[inline(never)]
    fn notice_congestion(&mut self, ecn: Ecn, segment: &Segment, ack: Option<Position>) {
        if segment.payload > 0 && segment.flags.contains(Flags::CWR) {
            self.ecn_flags = self.ecn_flags.without(Flags::ECE);
            self.receiver.acknowledge_at_once();
        }
        if ecn == Ecn::Ce && segment.payload > 0 && !self.ecn_flags.contains(Flags::ECE) {
            self.ecn_flags |= Flags::ECE;
            self.receiver.acknowledge_at_once();
        }
        if segment.flags.contains(Flags::ECE) && ack.is_some_and(|ack| self.sender.on_ecn_echo(ack))
        {
            self.ecn_flags |= Flags::CWR;
        }
    }

    /// Whether the peer's SYN has arrived.
    fn has_heard(&self) -> bool {
        self.handshake >= Handshake::Heard
    }

    /// RFC 7323, 4.3: an older value than the last one echoed comes from a segment that was overtaken.
    fn is_recent(&self, value: u32) -> bool {
        value.wrapping_sub(self.timestamp_recent) <= u32::MAX / 2
    }

    /// The peer's first SYN settles what both ends can do.
    fn on_syn(&mut self, segment: &Segment) {
        // RFC 3168, section 6.1.1: a SYN asks with both flags, the answer agrees with ECE alone.
        let wanted =
            if self.handshake == Handshake::Opening { Flags::ECE } else { Flags::ECE | Flags::CWR };
        let found = segment.flags.without(Flags::SYN | Flags::FIN);
        self.ecn = if self.config.ecn && found == wanted { Ecn::Ect0 } else { Ecn::NotEct };
        self.handshake = Handshake::Heard;
        self.peer_initial = segment.seq;
        let no_options = SynOptions { mss: MSS_WITHOUT_OPTION, ..SynOptions::default() };
        let offer = segment.syn_options.unwrap_or(no_options);
        let scaling = self.config.window_scaling && offer.window_shift.is_some();
        self.agreed = Agreed {
            timestamps: self.config.timestamps && segment.timestamps.is_some(),
            peer_shift: offer.window_shift.filter(|_| scaling).unwrap_or(0).min(WINDOW_SHIFT_MAX),
        };
        let options = if self.agreed.timestamps { u64::from(TIMESTAMP_OPTION_BYTES) } else { 0 };
        let payload = u64::from(self.config.mss.min(offer.mss.max(MSS_LEAST))) - options;
        self.sack = self.config.sack && offer.sack;
        self.sender.negotiated(payload, self.sack, self.agreed.timestamps, &self.config);
        self.receiver.negotiated(scaling, payload, self.sack);
    }

    #[inline(never)]
    fn on_ack(&mut self, now: Instant, segment: &Segment, position: Position) {
        let anchor = self.sender.una();
        let shift = if segment.flags.syn() { 0 } else { self.agreed.peer_shift };
        let window = u64::from(segment.window) << shift;
        // Even with nothing outstanding, a block may tell of a duplicate.
        if segment.sack.is_empty() && self.sender.only_window(now, position, window) {
            return;
        }
        let mut duplicate = None;
        let mut blocks = [(0, 0); SACK_BLOCKS_MAX];
        let mut count = 0;
        if self.sack && !segment.sack.is_empty() {
            for (block, (start, end)) in blocks.iter_mut().zip(segment.sack.iter()) {
                let place = |wire: SeqNumber| wire.to_position(self.initial, anchor);
                *block = (place(start), place(end));
                count += 1;
            }
            duplicate = duplicate_among(&blocks[..count], position);
            if duplicate.is_some() {
                blocks.copy_within(1..count, 0);
                count -= 1;
            }
            // In ascending order, what one ACK newly tells does not look like reordering.
            blocks[..count].sort_unstable();
        }
        let echo = segment.timestamps.filter(|_| self.agreed.timestamps);
        self.sender.on_ack(
            now,
            &Ack {
                position,
                window,
                sack: &blocks[..count],
                duplicate,
                timestamp_rtt: echo.map(|timestamps| since_tick(now, timestamps.echo)),
                pure: segment.sequence_length() == 0,
            },
        );
    }

    /// Sends all that may leave now.
    fn flush(&mut self, cx: &mut Cx<'_>) {
        if self.has_heard() {
            self.respond(cx);
        } else if self.handshake == Handshake::Opening {
            self.send(cx);
        }
    }
}

impl Engine for Endpoint {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        self.hear(cx, &packet);
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        if self.sender.deadline().is_some_and(|deadline| deadline <= cx.now()) {
            self.sender.on_time(cx.now());
        }
        self.flush(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        let connection = earlier(self.sender.deadline(), self.receiver.ack_deadline());
        earlier(connection, self.reminder)
    }

    /// A host takes in what arrives and sends what it makes, at once.
    fn ledger(&self) -> Ledger {
        let received = Count { packets: self.packets_received, bytes: self.bytes_received };
        let sent = Count { packets: self.packets_sent(), bytes: self.bytes_sent };
        Ledger { received, consumed: received, created: sent, sent, ..Ledger::default() }
    }
}

/// The first block, if it tells of a duplicate (RFC 2883, 4): it lies below the acknowledgement, or within
/// the second block.
fn duplicate_among(
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
/// Serials of a connection's packets within those of its flow.
const CONNECTION_SERIAL_BITS: u32 = 24;
/// What earlier connections may yet send when a new one begins: answers, and what is retransmitted.
const LAST_ACKS: u64 = 1 << 20;
/// RFC 9293, 3.7.1: assumed of a SYN without the MSS option.
const MSS_WITHOUT_OPTION: u16 = 536;
/// What a peer offers below this is not believed, as Linux does: options would leave no payload.
const MSS_LEAST: u16 = 88;

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
    fn each_half_begins_with_a_line() {
        assert_eq!(align_of::<Endpoint>(), 64);
        assert_eq!(offset_of!(Endpoint, receiver), 64, "the endpoint's own fields are one line");
    }
}
