//! Resets: aborting a connection, refusing one, and resets from the peer.

use super::{Endpoint, Handshake};
use crate::engine::Cx;
use crate::packet::segment::{Flags, Segment};
use crate::packet::seq::SeqNumber;
use crate::packet::{Packet, Payload};

/// The reset that answers `segment` if there is no such connection (RFC 9293, section 3.10.7.1);
/// `None` for a reset.
#[must_use]
pub fn reset_for(segment: &Segment) -> Option<Segment> {
    if segment.flags.rst() {
        return None;
    }
    let connection = segment.connection;
    let reset = Segment { connection, flags: Flags::RST, ..Segment::default() };
    Some(match segment.ack {
        Some(seq) => Segment { seq, ..reset },
        None => Segment { ack: Some(end_of(segment)), ..reset },
    })
}

/// The ACK that answers a retransmitted `segment` in TIME-WAIT (RFC 9293, section 3.10.7.4). Its
/// numbers follow from the segment. `None` for a pure ACK and a reset.
#[must_use]
pub fn time_wait_ack(segment: &Segment) -> Option<Segment> {
    let seq = segment.ack.filter(|_| !segment.flags.rst() && segment.sequence_length() > 0)?;
    let (connection, window) = (segment.connection, segment.window);
    Some(Segment { connection, seq, ack: Some(end_of(segment)), window, ..Segment::default() })
}

/// The sequence number after the segment.
fn end_of(segment: &Segment) -> SeqNumber {
    SeqNumber::from_position(segment.sequence_length(), segment.seq)
}

impl Endpoint {
    /// Aborts the connection: discards all data, and sends a reset unless only a SYN was sent or
    /// both directions are closed (Linux, `tcp_need_reset`).
    pub fn abort(&mut self, cx: &mut Cx<'_>) {
        if self.handshake > Handshake::Established {
            return;
        }
        let is_open = self.syn_received() && !self.is_closed();
        self.handshake = Handshake::Aborted;
        self.sender.abort(cx.now());
        if is_open {
            self.emit_reset(cx);
        }
        self.receiver.abort();
    }

    /// Refuses the connection that the SYN `packet` requests, as a closed port does.
    pub fn refuse(&mut self, cx: &mut Cx<'_>, packet: &Packet) {
        debug_assert_eq!(self.handshake, Handshake::Listen, "only a listening port refuses");
        self.handshake = Handshake::Aborted;
        self.sender.abort(cx.now());
        if let Some(segment) = packet.segment() {
            self.answer_with_reset(cx, segment);
        }
    }

    /// A reset, or a segment of a connection that is no longer open.
    #[cold]
    #[inline(never)]
    pub(super) fn on_reset_or_closed(&mut self, cx: &mut Cx<'_>, segment: &Segment) {
        match self.handshake {
            Handshake::Aborted => self.answer_with_reset(cx, segment),
            // RFC 9293, section 3.10.7.3: the reset must acknowledge the SYN.
            Handshake::SynSent => {
                let syn = SeqNumber::from_position(1, self.initial);
                if segment.ack == Some(syn) {
                    self.on_reset(cx);
                }
            }
            Handshake::SynReceived | Handshake::Established => {
                let next = self.receiver.next();
                let position = segment.seq.to_position(self.peer_initial, next);
                // RFC 5961, section 3.2: exactly RCV.NXT; elsewhere in the window, a challenge ACK.
                if position == next {
                    self.on_reset(cx);
                } else if self.receiver.is_in_window(position) {
                    self.receiver.acknowledge_now();
                    self.flush(cx);
                }
            }
            Handshake::Listen | Handshake::Reset => {}
        }
    }

    fn on_reset(&mut self, cx: &Cx<'_>) {
        self.handshake = Handshake::Reset;
        self.sender.abort(cx.now());
        self.receiver.abort();
    }

    /// Sends a reset at SND.NXT (Linux, `tcp_send_active_reset`).
    fn emit_reset(&mut self, cx: &mut Cx<'_>) {
        let next = self.receiver.next();
        let reset = Segment {
            connection: self.connection,
            seq: SeqNumber::from_position(self.sender.max(), self.initial),
            ack: Some(SeqNumber::from_position(next, self.peer_initial)),
            flags: Flags::RST,
            ..Segment::default()
        };
        self.send_reset(cx, reset);
    }

    fn answer_with_reset(&mut self, cx: &mut Cx<'_>, segment: &Segment) {
        if let Some(reset) = reset_for(segment) {
            self.send_reset(cx, reset);
        }
    }

    #[cold]
    #[inline(never)]
    fn send_reset(&mut self, cx: &mut Cx<'_>, reset: Segment) {
        let packet = cx.boxed(Packet {
            id: self.next_id,
            created_at: cx.now(),
            flow: self.next_id.flow(),
            destination: self.peer,
            class: self.class,
            bytes: reset.ip_bytes(),
            payload: Payload::Tcp(reset),
            ..Packet::default()
        });
        self.next_id = self.next_id.next();
        self.bytes_sent += u64::from(packet.bytes);
        cx.forward(Self::NET, packet);
    }
}
