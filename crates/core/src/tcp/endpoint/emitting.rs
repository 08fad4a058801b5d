//! Making segments: what of the connection's state goes into which field.

use super::{Endpoint, tick};
use crate::engine::Cx;
use crate::packet::segment::{
    Flags, HEADER_BYTES, SACK_BLOCKS_MAX, SackBlocks, Segment, SynOptions, TIMESTAMP_OPTION_BYTES,
    Timestamps,
};
use crate::packet::seq::{Position, SeqNumber};
use crate::packet::{Ecn, Packet, PacketId};
use crate::tcp::exchange::{Outgoing, Run};
use crate::time::Instant;

/// What the segments have in common that leave at one moment.
#[derive(Clone, Copy, Debug)]
struct Heading {
    ack: SeqNumber,
    window: u16,
    timestamps: Option<Timestamps>,
    /// Size at the IP layer without payload.
    bytes: u32,
    /// ECE or nothing, and CWR on the first segment of a run.
    flags: Flags,
    ecn: Ecn,
}

impl Endpoint {
    /// [`Endpoint::flush`] once the peer was heard. Every segment carries the latest acknowledgement,
    /// so an ACK of its own follows only if nothing else went out.
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
            self.send_singly(cx);
            return;
        }
        let run = self.sender.full_segments(cx.now());
        if run.count > 0 {
            self.emit_run(cx, run);
        }
        if !run.is_all {
            self.send_singly(cx);
        }
    }

    #[inline(never)]
    fn send_singly(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        loop {
            let max = self.sender.max();
            let Some(outgoing) = self.sender.next_segment(now) else { break };
            if outgoing.syn {
                self.emit_syn(cx);
            } else {
                self.emit_alone(cx, outgoing, outgoing.position >= max);
            }
        }
    }

    /// SACK blocks take their room from the payload of new data, so that no packet exceeds the path's
    /// MTU (RFC 6691; Linux, `tcp_established_options` and `tcp_current_mss`).
    #[cold]
    #[inline(never)]
    fn send_with_blocks(&mut self, cx: &mut Cx<'_>) {
        let blocks = self.receiver.block_count().min(self.blocks_max());
        let reserved = if self.sack { SackBlocks::bytes_of(blocks) } else { 0 };
        self.sender.reserve(reserved.into());
        self.send_singly(cx);
        self.sender.reserve(0);
    }

    /// The most blocks that 40 bytes of options have room for: four, or three beside timestamps
    /// (RFC 2018, section 3).
    fn blocks_max(&self) -> usize {
        if self.agreed.timestamps { SACK_BLOCKS_MAX - 1 } else { SACK_BLOCKS_MAX }
    }

    #[inline(always)]
    fn emit_run(&mut self, cx: &mut Cx<'_>, run: Run) {
        let Run { start: mut position, mut count, payload, .. } = run;
        if self.ecn_flags.contains(Flags::CWR) {
            self.emit_first(cx, run);
            position += u64::from(payload);
            count -= 1;
        }
        let mut heading = self.heading(cx.now());
        heading.ecn = self.ecn;
        let mut id = self.next_id;
        for _ in 0..count {
            let packet = self.written(cx, id, &heading, position, payload);
            cx.forward(Self::NET, packet);
            id = id.next();
            position += u64::from(payload);
        }
        self.next_id = id;
        self.bytes_sent += count * u64::from(heading.bytes + u32::from(payload));
    }

    /// The first segment of a run, which says what the others do not.
    #[cold]
    #[inline(never)]
    fn emit_first(&mut self, cx: &mut Cx<'_>, run: Run) {
        let Run { start: position, payload, .. } = run;
        self.emit_alone(cx, Outgoing { position, payload, syn: false, fin: false }, true);
    }

    /// One segment with data or a FIN. Only data that is sent for the first time is ECN-capable (RFC
    /// 3168, sections 6.1.4 to 6.1.6; Linux, `tcp_ecn_send`).
    fn emit_alone(&mut self, cx: &mut Cx<'_>, outgoing: Outgoing, is_new: bool) {
        let Outgoing { position, payload, fin, .. } = outgoing;
        let ack_is_due = self.receiver.wants_ack(cx.now());
        let heading = self.heading(cx.now());
        let mut packet = self.written(cx, self.next_id, &heading, position, payload);
        packet.segment_mut().flags |= Flags::FIN.when(fin);
        if is_new && payload > 0 && self.ecn == Ecn::Ect0 {
            packet.ecn = self.ecn;
            packet.segment_mut().flags |= self.take_cwr();
        }
        if self.receiver.has_blocks() && self.sack {
            let room = self.receiver.segment_bytes().saturating_sub(payload.into());
            let most = SackBlocks::fitting(room).min(self.blocks_max());
            // What is repeated keeps its length. Where it leaves no room, an ACK of its own follows.
            if ack_is_due && most < self.receiver.block_count().min(self.blocks_max()) {
                self.receiver.acknowledge_at_once();
            }
            self.report_blocks(&mut packet, most);
        }
        self.pass(cx, packet);
    }

    /// CWR, if the next new data is to carry it.
    #[inline]
    fn take_cwr(&mut self) -> Flags {
        let cwr = Flags::CWR.when(self.ecn_flags.contains(Flags::CWR));
        self.ecn_flags = self.ecn_flags.without(Flags::CWR);
        cwr
    }

    #[inline(never)]
    fn emit_ack(&mut self, cx: &mut Cx<'_>) {
        let heading = self.heading(cx.now());
        let mut packet = self.written(cx, self.next_id, &heading, self.sender.max(), 0);
        if self.receiver.has_blocks() {
            self.report_blocks(&mut packet, self.blocks_max());
        }
        self.pass(cx, packet);
    }

    /// Adds the SACK option with at most so many blocks.
    #[inline(never)]
    fn report_blocks(&mut self, packet: &mut Packet, most: usize) {
        if self.sack && most > 0 {
            let blocks = &mut packet.segment_mut().sack;
            self.receiver.report_blocks(blocks, most, self.peer_initial);
            let bytes = blocks.option_bytes();
            packet.bytes += bytes;
        }
    }

    /// What the segments of one moment have in common.
    #[inline(always)]
    fn heading(&mut self, now: Instant) -> Heading {
        let (ack, window) = self.receiver.acknowledge();
        let stamped = self.agreed.timestamps;
        Heading {
            ack: SeqNumber::from_position(ack, self.peer_initial),
            window,
            timestamps: if stamped { Some(self.timestamps(now)) } else { None },
            bytes: HEADER_BYTES + if stamped { TIMESTAMP_OPTION_BYTES } else { 0 },
            flags: self.ecn_flags.without(Flags::CWR),
            ecn: Ecn::NotEct,
        }
    }

    /// A segment written in its place, field by field: one that is put together elsewhere and copied
    /// at once stalls the processor until its parts have reached memory.
    #[inline(always)]
    fn written(
        &self,
        cx: &mut Cx<'_>,
        id: PacketId,
        heading: &Heading,
        position: Position,
        payload: u16,
    ) -> Box<Packet> {
        let mut packet = cx.new_packet();
        packet.id = id;
        packet.created_at = cx.now();
        packet.flow = id.flow();
        packet.destination = self.peer;
        packet.class = self.class;
        packet.ecn = heading.ecn;
        packet.bytes = heading.bytes + u32::from(payload);
        let segment = packet.segment_mut();
        // The offer is in another line of the cache.
        if segment.flags.syn() {
            segment.syn_options = None;
        }
        segment.flags = heading.flags;
        segment.connection = self.connection;
        segment.seq = SeqNumber::from_position(position, self.initial);
        segment.payload = payload;
        segment.ack = Some(heading.ack);
        segment.window = heading.window;
        segment.timestamps = heading.timestamps;
        segment.sack.clear();
        packet
    }

    fn timestamps(&self, now: Instant) -> Timestamps {
        Timestamps { value: tick(now), echo: self.timestamp_recent }
    }

    /// Sends the SYN, or the answer to one.
    #[cold]
    #[inline(never)]
    fn emit_syn(&mut self, cx: &mut Cx<'_>) {
        self.syns_sent += 1;
        let now = cx.now();
        let stamped = self.agreed.timestamps || self.offers_timestamps();
        let mut packet = cx.new_packet();
        packet.id = self.next_id;
        packet.created_at = now;
        packet.flow = self.next_id.flow();
        packet.destination = self.peer;
        packet.class = self.class;
        packet.ecn = Ecn::NotEct;
        let flags = Flags::SYN | self.ecn_of_syn();
        let segment = packet.segment_mut();
        *segment = Segment {
            connection: self.connection,
            seq: self.initial,
            flags,
            window: self.receiver.unscaled_window(),
            syn_options: Some(self.offer()),
            timestamps: stamped.then(|| self.timestamps(now)),
            ..Segment::default()
        };
        if self.has_heard() {
            let (ack, window) = self.receiver.acknowledge_syn();
            segment.ack = Some(SeqNumber::from_position(ack, self.peer_initial));
            segment.window = window;
        }
        packet.bytes = segment.ip_bytes();
        self.pass(cx, packet);
    }

    #[inline(always)]
    fn pass(&mut self, cx: &mut Cx<'_>, packet: Box<Packet>) {
        self.next_id = self.next_id.next();
        self.bytes_sent += u64::from(packet.bytes);
        cx.forward(Self::NET, packet);
    }

    /// A SYN offers everything; the answer to one offers what both can do (RFC 7323, section 2.2).
    fn offer(&self) -> SynOptions {
        SynOptions {
            mss: self.config.mss,
            window_shift: self.receiver.scales().then_some(self.receiver.shift()),
            sack: if self.has_heard() { self.sack } else { self.config.sack },
        }
    }

    /// RFC 3168, section 6.1.1: what a SYN asks for, and the answer. A SYN that is repeated no longer
    /// asks, since the first may have been lost for it (Linux, `tcp_ecn_fallback`).
    fn ecn_of_syn(&self) -> Flags {
        if self.has_heard() {
            Flags::ECE.when(self.ecn == Ecn::Ect0)
        } else {
            (Flags::ECE | Flags::CWR).when(self.config.ecn && self.syns_sent == 1)
        }
    }

    fn offers_timestamps(&self) -> bool {
        self.config.timestamps && !self.has_heard()
    }
}
