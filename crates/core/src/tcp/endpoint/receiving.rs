//! Processing received segments.

use super::{Endpoint, Handshake, Negotiated, since_tick};
use crate::engine::Cx;
use crate::packet::segment::{
    Flags, SACK_BLOCKS_MAX, Segment, SynOptions, TIMESTAMP_OPTION_BYTES, Timestamps,
};
use crate::packet::seq::{Position, SeqNumber};
use crate::packet::{Ecn, Packet, Payload};
use crate::tcp::exchange::Ack;
use crate::tcp::receiver::WINDOW_SHIFT_MAX;
use crate::time::Instant;

/// RFC 9293, 3.7.1: the default MSS.
const MSS_WITHOUT_OPTION: u16 = 536;
/// Lower limit for the peer's MSS option (TCP_MIN_MSS in Linux). Below it, options could leave no
/// payload.
const MSS_MIN: u16 = 88;
/// How much older than TS.Recent a timestamp may be, as in Linux (TCP_PAWS_WINDOW).
const PAWS_TICKS: i32 = 1;

impl Endpoint {
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
            // A late packet of an earlier connection of this flow.
            return;
        }
        if self.is_outdated(segment) {
            self.on_outdated(cx, packet, segment);
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

    /// RFC 7323, 5.3, R1 (PAWS): whether the timestamp is older than TS.Recent, by more than the
    /// tick that Linux allows (`tcp_paws_check`). A SYN or RST is handled by other rules.
    #[inline]
    fn is_outdated(&self, segment: &Segment) -> bool {
        let Some(timestamps) = segment.timestamps else { return false };
        self.ts_recent.wrapping_sub(timestamps.value).cast_signed() > PAWS_TICKS
            && self.negotiated.timestamps
            && self.handshake == Handshake::Established
            && !segment.flags.syn()
            && !segment.flags.rst()
    }

    /// Discards an outdated segment, as Linux's `tcp_validate_incoming` does: data and FIN are
    /// acknowledged at once. An ACK without data is processed if it may have a new SACK block: at
    /// RCV.NXT, and of SND.UNA (`tcp_disordered_ack_check`). Any other is discarded in silence, where
    /// Linux may send a duplicate ACK.
    #[cold]
    #[inline(never)]
    fn on_outdated(&mut self, cx: &mut Cx<'_>, packet: &Packet, segment: &Segment) {
        let (now, next, una) = (cx.now(), self.receiver.next(), self.sender.una());
        let position = segment.seq.to_position(self.peer_initial, next);
        let ack = segment.ack.map(|ack| ack.to_position(self.initial, una));
        if segment.sequence_length() == 0 {
            if position == next && ack == Some(una) {
                self.on_segment(cx, packet, segment);
            }
            return;
        }
        self.receiver.discard(position, segment);
        if segment.payload > 0 {
            self.receiver.record_data(now, now.saturating_since(packet.created_at), false);
        }
        self.flush(cx);
    }

    /// A data segment on an established connection. It takes a fast path if its ACK field carries
    /// no new information and nothing is outstanding, and a shorter one if it is also the next
    /// in-order data.
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

    /// Data that is not the next, is beyond the window, or comes while blocks or a FIN are pending.
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
            let in_order = self.receiver.delivered() > delivered;
            self.receiver.record_data(now, now.saturating_since(packet.created_at), in_order);
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

    /// RFC 7323, 4.3: updates TS.Recent if the segment starts at or before Last.ACK.sent, and is not
    /// older.
    fn update_ts_recent(&mut self, timestamps: Timestamps, position: Position) {
        if position <= self.receiver.acked_to() && self.is_recent(timestamps.value) {
            self.ts_recent = timestamps.value;
        }
    }

    /// The slow path: every other segment.
    #[inline(never)]
    fn on_segment(&mut self, cx: &mut Cx<'_>, packet: &Packet, segment: &Segment) {
        if segment.flags.rst() || self.handshake > Handshake::Established {
            self.on_reset_or_closed(cx, segment);
            return;
        }
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
            // Before the ACK: an echo is about what was outstanding.
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
        // CWR first: a segment with CWR and a CE mark begins the next echo.
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
    pub(super) fn syn_received(&self) -> bool {
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
        let ecn_flags = segment.flags.without(Flags::SYN | Flags::FIN);
        self.ecn = if self.config.ecn && ecn_flags == expected { Ecn::Ect0 } else { Ecn::NotEct };
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

    /// Processes the ACK field, the window and the SACK blocks.
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
            // RACK takes the order of the wire, the newest block first, for reordering.
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
}

/// The first block, if it is a D-SACK (RFC 2883, 4): it starts below the cumulative ACK or lies within the
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
