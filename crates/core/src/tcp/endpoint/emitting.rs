//! Building segments from the state of the connection.

use super::{Endpoint, tick};
use crate::engine::Cx;
use crate::header_bytes;
use crate::packet::segment::{
    Flags, SACK_BLOCKS_MAX, SackBlocks, Segment, SynOptions, TIMESTAMP_OPTION_BYTES, Timestamps,
};
use crate::packet::seq::{Position, SeqNumber};
use crate::packet::{Ecn, LimitedBy, Origin, Packet, PacketId};
use crate::tcp::exchange::{Outgoing, Run};
use crate::time::Instant;

/// Header fields that the segments sent at one instant share.
#[derive(Clone, Copy, Debug)]
struct Template {
    ack: SeqNumber,
    window: u16,
    timestamps: Option<Timestamps>,
    /// IP packet size without payload.
    bytes: u32,
    /// ECE if set. CWR is added to the first segment of a run only.
    flags: Flags,
    ecn: Ecn,
    limited_by: Option<LimitedBy>,
}

impl Endpoint {
    /// [`Endpoint::flush`] once the peer's SYN was received. Every segment carries the latest
    /// acknowledgement, so a pure ACK is only needed if nothing else was sent.
    #[inline]
    pub(super) fn respond(&mut self, cx: &mut Cx<'_>) {
        if !self.sender.is_idle() || !self.may_take_fast_path() {
            self.send(cx);
        }
        if self.receiver.wants_ack(cx.now()) {
            self.emit_ack(cx);
        }
    }

    #[inline(never)]
    pub(super) fn send(&mut self, cx: &mut Cx<'_>) {
        if self.receiver.has_blocks() {
            self.send_with_blocks(cx);
            return;
        }
        if !self.may_take_fast_path() {
            self.send_one_by_one(cx);
            return;
        }
        let run = self.sender.take_full_segments(cx.now());
        if run.count > 0 {
            self.emit_run(cx, run);
        }
        if !run.complete {
            self.send_one_by_one(cx);
        }
    }

    #[inline(never)]
    fn send_one_by_one(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        loop {
            let max = self.sender.max();
            let Some(outgoing) = self.sender.next_segment(now) else { break };
            if outgoing.syn {
                self.emit_syn(cx);
            } else {
                self.emit_segment(cx, outgoing, outgoing.position >= max);
            }
        }
    }

    /// SACK blocks reduce the payload of new data, so that no packet exceeds the path MTU (RFC
    /// 6691; Linux, `tcp_established_options` and `tcp_current_mss`).
    #[cold]
    #[inline(never)]
    fn send_with_blocks(&mut self, cx: &mut Cx<'_>) {
        let blocks = self.receiver.block_count().min(self.blocks_max());
        let reserved = if self.sack { SackBlocks::bytes_of(blocks) } else { 0 };
        self.sender.reserve_options(reserved.into());
        self.send_one_by_one(cx);
        self.sender.reserve_options(0);
    }

    /// The number of SACK blocks that fit into 40 bytes of options: four, or three with timestamps
    /// (RFC 2018, section 3).
    fn blocks_max(&self) -> usize {
        if self.negotiated.timestamps { SACK_BLOCKS_MAX - 1 } else { SACK_BLOCKS_MAX }
    }

    #[inline(always)]
    fn emit_run(&mut self, cx: &mut Cx<'_>, run: Run) {
        let Run { start: mut position, mut count, payload, .. } = run;
        if self.ecn_flags.contains(Flags::CWR) {
            self.emit_first(cx, run);
            position += u64::from(payload);
            count -= 1;
        }
        let mut template = self.template(cx.now());
        template.ecn = self.ecn;
        template.limited_by = self.of_data(run.limited_by);
        let mut id = self.next_id;
        for _ in 0..count {
            let packet = self.write_segment(cx, id, &template, position, payload);
            cx.forward(Self::NET, packet);
            id = id.next();
            position += u64::from(payload);
        }
        self.next_id = id;
        self.bytes_sent += count * u64::from(template.bytes + u32::from(payload));
    }

    /// The limit of a data packet; `None` at the receiver of a flow, whose data are not counted.
    #[inline]
    fn of_data(&self, limited_by: LimitedBy) -> Option<LimitedBy> {
        if self.origin == Origin::Sender { Some(limited_by) } else { None }
    }

    /// Sends the first segment of a run, which carries CWR.
    #[cold]
    #[inline(never)]
    fn emit_first(&mut self, cx: &mut Cx<'_>, run: Run) {
        let Run { start: position, payload, limited_by, .. } = run;
        let outgoing = Outgoing { position, payload, syn: false, fin: false, limited_by };
        self.emit_segment(cx, outgoing, true);
    }

    /// Sends one segment with data or a FIN. Only new data is ECN-capable (RFC 3168, sections 6.1.4
    /// to 6.1.6; Linux, `tcp_ecn_send`).
    fn emit_segment(&mut self, cx: &mut Cx<'_>, outgoing: Outgoing, is_new: bool) {
        let Outgoing { position, payload, fin, limited_by, .. } = outgoing;
        let ack_is_due = self.receiver.wants_ack(cx.now());
        let mut template = self.template(cx.now());
        template.limited_by = self.of_data(limited_by).filter(|_| payload > 0);
        let mut packet = self.write_segment(cx, self.next_id, &template, position, payload);
        packet.segment_mut().flags |= Flags::FIN.when(fin);
        if is_new && payload > 0 && self.ecn == Ecn::Ect0 {
            packet.ecn = self.ecn;
            packet.segment_mut().flags |= self.take_cwr();
        }
        if self.receiver.has_blocks() && self.sack {
            let room = self.receiver.segment_bytes().saturating_sub(payload.into());
            let max_blocks = SackBlocks::fitting(room).min(self.blocks_max());
            // A retransmission keeps its length. If the blocks do not fit, a pure ACK follows.
            if ack_is_due && max_blocks < self.receiver.block_count().min(self.blocks_max()) {
                self.receiver.acknowledge_now();
            }
            self.report_blocks(&mut packet, max_blocks);
        }
        self.transmit(cx, packet);
    }

    /// Returns CWR if the next new data must carry it, and clears it.
    #[inline]
    fn take_cwr(&mut self) -> Flags {
        let cwr = Flags::CWR.when(self.ecn_flags.contains(Flags::CWR));
        self.ecn_flags = self.ecn_flags.without(Flags::CWR);
        cwr
    }

    #[inline(never)]
    fn emit_ack(&mut self, cx: &mut Cx<'_>) {
        let template = self.template(cx.now());
        let mut packet = self.write_segment(cx, self.next_id, &template, self.sender.max(), 0);
        if self.receiver.has_blocks() {
            self.report_blocks(&mut packet, self.blocks_max());
        }
        self.transmit(cx, packet);
    }

    /// Adds the SACK option with at most `max_blocks` blocks.
    #[inline(never)]
    fn report_blocks(&mut self, packet: &mut Packet, max_blocks: usize) {
        if self.sack && max_blocks > 0 {
            let blocks = &mut packet.segment_mut().sack;
            self.receiver.report_blocks(blocks, max_blocks, self.peer_initial);
            let bytes = blocks.option_bytes();
            packet.bytes += bytes;
        }
    }

    /// The header template of segments sent now.
    #[inline(always)]
    fn template(&mut self, now: Instant) -> Template {
        let (ack, window) = self.receiver.acknowledge();
        let timestamped = self.negotiated.timestamps;
        Template {
            ack: SeqNumber::from_position(ack, self.peer_initial),
            window,
            timestamps: if timestamped { Some(self.timestamps(now)) } else { None },
            bytes: header_bytes::SEGMENT + if timestamped { TIMESTAMP_OPTION_BYTES } else { 0 },
            flags: self.ecn_flags.without(Flags::CWR),
            ecn: Ecn::NotEct,
            limited_by: None,
        }
    }

    /// Writes a segment field by field into its final memory. Building it elsewhere and copying it
    /// stalls the processor on store forwarding.
    #[inline(always)]
    fn write_segment(
        &self,
        cx: &mut Cx<'_>,
        id: PacketId,
        template: &Template,
        position: Position,
        payload: u16,
    ) -> Box<Packet> {
        let mut packet = cx.new_packet();
        packet.id = id;
        packet.created_at = cx.now();
        packet.flow = id.flow();
        packet.destination = self.peer;
        packet.class = self.class;
        packet.ecn = template.ecn;
        packet.limited_by = template.limited_by;
        packet.transmitted = false;
        packet.bytes = template.bytes + u32::from(payload);
        let segment = packet.segment_mut();
        // `syn_options` lies in another cache line.
        if segment.flags.syn() {
            segment.syn_options = None;
        }
        segment.flags = template.flags;
        segment.connection = self.connection;
        segment.seq = SeqNumber::from_position(position, self.initial);
        segment.payload = payload;
        segment.ack = Some(template.ack);
        segment.window = template.window;
        segment.timestamps = template.timestamps;
        segment.sack.clear();
        packet
    }

    fn timestamps(&self, now: Instant) -> Timestamps {
        Timestamps { value: tick(now), echo: self.ts_recent }
    }

    /// Sends a SYN or a SYN-ACK.
    #[cold]
    #[inline(never)]
    fn emit_syn(&mut self, cx: &mut Cx<'_>) {
        self.syns_sent += 1;
        let now = cx.now();
        let timestamped = self.negotiated.timestamps || self.offers_timestamps();
        let mut packet = cx.new_packet();
        packet.id = self.next_id;
        packet.created_at = now;
        packet.flow = self.next_id.flow();
        packet.destination = self.peer;
        packet.class = self.class;
        packet.ecn = Ecn::NotEct;
        packet.limited_by = None;
        packet.transmitted = false;
        let flags = Flags::SYN | self.ecn_of_syn();
        let segment = packet.segment_mut();
        *segment = Segment {
            connection: self.connection,
            seq: self.initial,
            flags,
            window: self.receiver.unscaled_window(),
            syn_options: Some(self.syn_options()),
            timestamps: timestamped.then(|| self.timestamps(now)),
            ..Segment::default()
        };
        if self.syn_received() {
            let (ack, window) = self.receiver.acknowledge_syn();
            segment.ack = Some(SeqNumber::from_position(ack, self.peer_initial));
            segment.window = window;
        }
        packet.bytes = segment.ip_bytes();
        self.transmit(cx, packet);
    }

    #[inline(always)]
    fn transmit(&mut self, cx: &mut Cx<'_>, packet: Box<Packet>) {
        self.next_id = self.next_id.next();
        self.bytes_sent += u64::from(packet.bytes);
        cx.forward(Self::NET, packet);
    }

    /// A SYN offers all supported options, a SYN-ACK those that both ends support (RFC 7323,
    /// section 2.2).
    fn syn_options(&self) -> SynOptions {
        SynOptions {
            mss: self.config.mss,
            window_shift: self.receiver.scales().then_some(self.receiver.shift()),
            sack: if self.syn_received() { self.sack } else { self.config.sack },
        }
    }

    /// The ECN flags of a SYN or SYN-ACK (RFC 3168, section 6.1.1). A retransmitted SYN does not
    /// request ECN, because the first one may have been lost for requesting it (Linux,
    /// `tcp_ecn_fallback`).
    fn ecn_of_syn(&self) -> Flags {
        if self.syn_received() {
            Flags::ECE.when(self.ecn == Ecn::Ect0)
        } else {
            (Flags::ECE | Flags::CWR).when(self.config.ecn && self.syns_sent == 1)
        }
    }

    fn offers_timestamps(&self) -> bool {
        self.config.timestamps && !self.syn_received()
    }
}
