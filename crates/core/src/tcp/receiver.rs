//! The receiving half of a connection: what has arrived, what is acknowledged and when, and how
//! large a window is offered. It knows positions only; the endpoint turns them into segments.

mod compression;

#[cfg(doc)]
use super::config::AckPolicy;
use super::config::{Config, Follows};
use super::reassembly::Reassembly;
use super::receive_buffer::AutoTuning;
use crate::packet::segment::{SackBlocks, Segment};
use crate::packet::seq::{Position, SeqNumber};
use crate::time::{Duration, Instant};
use compression::Compression;

/// The largest shift of the window field (RFC 7323, section 2.3).
pub(super) const WINDOW_SHIFT_MAX: u8 = 14;
/// The largest window that the field can carry unscaled.
pub(super) const UNSCALED_WINDOW_MAX: u64 = 65_535;

/// What came with data, for results.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Arrivals {
    /// Segments with data that arrived.
    pub(super) segments: u64,
    /// Their one-way delays, added up, and the largest.
    pub(super) delay_sum: Duration,
    pub(super) delay_max: Duration,
    /// When data first and last arrived in order.
    pub(super) first_delivery: Option<Instant>,
    pub(super) last_delivery: Option<Instant>,
}

/// What the last segment said.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// The window field.
    field: u16,
    /// Whether the next segment says the same, so that it is not worked out again for each one that
    /// the sending side of a transfer makes.
    holds: bool,
}

/// See the module's description.
///
/// Fields lie in the order of [`Endpoint`](super::Endpoint)'s lines: the first is for every segment,
/// the second for those with data.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Receiver {
    /// The next position expected; 0 until the SYN has arrived.
    next: Position,
    /// The right edge of the window that the peer has been told; it may always send its SYN.
    edge: Position,
    /// Where the FIN lies; [`UNKNOWN`] until it has arrived.
    fin: Position,
    /// When the ACK that is held back is due: counted from the first segment that it is for.
    ack_due: Option<Instant>,
    /// What the last segment acknowledged.
    acked_to: Position,
    /// So many bytes in order are acknowledged at once.
    ack_bytes: u32,
    /// The largest payload received so far, as far as that matters; see [`AckPolicy`].
    segment_seen: u32,
    quick_left: u32,
    told: Told,
    ack_now: bool,
    reads_at_once: bool,
    shift: u8,
    /// Whether the next segment has SACK blocks to report.
    has_blocks: bool,
    delayed_timeout: Duration,
    arrivals: Arrivals,
    buffer: AutoTuning,
    reassembly: Reassembly,
    segment_bytes: u64,
    delayed_segments: u32,
    linux: bool,
    /// What the application had taken when it stopped to read at once.
    read: Position,
    scales: bool,
    /// Whether a range that arrived twice is reported (RFC 2883).
    reports_duplicates: bool,
    /// The range that arrived twice and is not reported yet.
    duplicate: Option<(Position, Position)>,
    /// What of the ACKs of segments beyond a hole is held back.
    compression: Compression,
}

/// What Linux takes for a full segment before one arrived (`tcp_initialize_rcv_mss`: TCP_MSS_DEFAULT,
/// and TCP_MIN_MSS at least).
const MSS_GUESS: u32 = 536;
const MSS_GUESS_MIN: u32 = 88;

/// Beyond any position.
const UNKNOWN: Position = Position::MAX;

impl Receiver {
    /// A receiver that has heard nothing.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        debug_assert!(config.acks.delayed_segments > 0, "a plan says one or more");
        let shift = if config.window_scaling { shift_for(config.receive_buffer) } else { 0 };
        Self {
            segment_bytes: config.mss.into(),
            next: 0,
            acked_to: 0,
            fin: UNKNOWN,
            has_blocks: false,
            reports_duplicates: config.follows == Follows::Linux,
            duplicate: None,
            compression: Compression::of(config),
            reassembly: Reassembly::default(),
            arrivals: Arrivals::default(),
            delayed_segments: config.acks.delayed_segments,
            ack_bytes: 0,
            segment_seen: 0,
            linux: config.follows == Follows::Linux,
            delayed_timeout: config.acks.delayed_timeout,
            read: 1,
            reads_at_once: true,
            edge: 1,
            shift,
            scales: config.window_scaling,
            buffer: AutoTuning::new(config),
            told: Told { field: 0, holds: false },
            ack_due: None,
            quick_left: config.acks.quick_segments,
            ack_now: false,
        }
    }

    /// The shift this end offers in its SYN.
    #[must_use]
    pub fn shift(&self) -> u8 {
        self.shift
    }

    /// Whether the window field is scaled, as far as the handshake has settled.
    #[must_use]
    pub fn scales(&self) -> bool {
        self.scales
    }

    /// The handshake settled what both ends can do.
    pub fn negotiated(&mut self, scaling: bool, segment_bytes: u64, sack: bool) {
        self.told.holds = false;
        self.reports_duplicates &= sack;
        self.compression.negotiated(sack);
        self.segment_bytes = segment_bytes;
        self.count_segments();
        if !scaling {
            self.scales = false;
            self.shift = 0;
            self.buffer.limit(UNSCALED_WINDOW_MAX);
        }
        self.buffer.count_in(1 << self.shift);
    }

    /// What counts as full segments before the first one arrived.
    fn count_segments(&mut self) {
        let full = u32::try_from(self.segment_bytes).unwrap_or(u32::MAX);
        if self.linux {
            self.set_segment_seen(full.clamp(MSS_GUESS_MIN, MSS_GUESS));
            return;
        }
        self.segment_seen = u32::MAX;
        let segments = self.delayed_segments;
        self.ack_bytes = if segments > 1 { segments.saturating_mul(full) } else { 1 };
    }

    /// Linux, `tcp_measure_rcv_mss`: a segment is larger than those before it.
    #[cold]
    #[inline(never)]
    fn note_segment_size(&mut self, payload: u64) {
        self.set_segment_seen(u32::try_from(payload).unwrap_or(u32::MAX));
        self.buffer.note_segment_size(payload);
    }

    fn set_segment_seen(&mut self, payload: u32) {
        self.segment_seen = payload;
        // `__tcp_ack_snd_check`: more than one full segment, where two are to be acknowledged.
        let others = self.delayed_segments - 1;
        self.ack_bytes = others.saturating_mul(self.segment_seen).saturating_add(1);
    }

    /// The next position expected; what a segment acknowledges.
    #[must_use]
    pub fn next(&self) -> Position {
        self.next
    }

    /// Application bytes that arrived in order.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.next.min(self.fin).saturating_sub(1)
    }

    /// Whether everything up to and including the FIN has arrived.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.next > self.fin
    }

    /// Whether the application takes data as soon as it is in order (as it does at first). While it
    /// does not, the window closes.
    pub fn reads_at_once(&mut self, at_once: bool) {
        if self.reads_at_once {
            self.read = self.next.max(1);
        }
        self.reads_at_once = at_once;
        self.told.holds = false;
        let offered = self.edge.saturating_sub(self.next);
        // RFC 9293, 3.8.6.2.2: tell of an opening window once it is worth a segment.
        if at_once && self.open_window() >= offered + self.segment_bytes {
            self.ack_now = true;
        }
    }

    /// Takes a segment at `position`. `rtt` is the path's round trip, if known, for tuning.
    pub fn on_segment(
        &mut self,
        now: Instant,
        position: Position,
        segment: &Segment,
        rtt: Option<Duration>,
    ) {
        let length = segment.sequence_length();
        if length == 0 {
            return;
        }
        let before = self.next;
        let start = position.max(before);
        let end = (position + length).min(self.edge.max(before) + u64::from(segment.flags.fin()));
        let end = end.min(self.fin.saturating_add(1));
        if segment.flags.fin() && position + length == end && end > before {
            self.fin = end - 1;
        }
        self.told.holds = false;
        if u32::from(segment.payload) > self.segment_seen {
            self.note_segment_size(segment.payload.into());
        }
        let had_hole = !self.reassembly.is_empty();
        if self.reports_duplicates && !segment.flags.syn() {
            self.note_duplicate(position, position + length);
        }
        let mut rank = 0;
        if start > before {
            rank = if self.compression.holds() { self.reassembly.rank(start, end) } else { 0 };
            self.reassembly.insert(start, end);
        } else if end > before {
            self.next = if had_hole { self.reassembly.advance(end) } else { end };
        }
        self.has_blocks = !self.reassembly.is_empty() || self.duplicate.is_some();
        if self.window_may_grow() {
            self.tune(now, rtt);
        }
        if self.next > before {
            self.compression.restart();
        } else if position > before && self.quick_left == 0 {
            let due = self.compression.hold(now, rank, rtt);
            if due.is_some() {
                self.ack_due = self.ack_due.or(due);
                return;
            }
        }
        self.decide_ack(now, before, had_hole, segment);
    }

    /// Notes what of `start..end` had arrived before: its part before the next position expected, or else
    /// the first part of it beyond a hole (Linux, `tcp_data_queue` and `tcp_data_queue_ofo`).
    fn note_duplicate(&mut self, start: Position, end: Position) {
        let duplicate = if start < self.next {
            Some((start, end.min(self.next)))
        } else {
            self.reassembly.overlap(start, end)
        };
        // A later one takes the place of one that was not reported yet, as in `tcp_dsack_set`.
        self.duplicate = duplicate.or(self.duplicate);
    }

    /// Whether data of this length at the next position expected is in order and has room: see
    /// [`Receiver::on_next`].
    pub(super) fn expects(&self, length: u64) -> bool {
        self.fin == UNKNOWN && !self.has_blocks && self.next + length <= self.edge
    }

    /// [`Receiver::on_segment`] for data that it [expects](Receiver::expects), which most data is;
    /// but for [`Receiver::tune`].
    #[inline]
    pub(super) fn on_next(&mut self, now: Instant, length: u64) {
        self.told.holds = false;
        if length > u64::from(self.segment_seen) {
            self.note_segment_size(length);
        }
        self.next += length;
        self.delay_ack(now);
    }

    /// Most windows do not grow, or no more.
    #[inline]
    pub(super) fn window_may_grow(&self) -> bool {
        self.buffer.may_grow()
    }

    /// Data was received, and the [window may grow](Receiver::window_may_grow).
    #[inline(never)]
    pub(super) fn tune(&mut self, now: Instant, rtt: Option<Duration>) {
        self.buffer.delivered(now, self.next, rtt, self.segment_bytes);
    }

    /// The next segment carries an ACK at once, whatever the policy.
    pub fn acknowledge_at_once(&mut self) {
        self.told.holds = false;
        self.ack_now = true;
    }

    /// RFC 5681, section 4.2: an ACK for every second full segment's bytes, within the time-out for
    /// the rest, and at once for anything out of order, that fills a hole, or repeats.
    fn decide_ack(&mut self, now: Instant, before: Position, had_hole: bool, segment: &Segment) {
        let in_order = self.next > before && !had_hole && !self.has_blocks;
        if !in_order || segment.flags.syn() || segment.flags.fin() {
            self.ack_now = true;
            return;
        }
        self.delay_ack(now);
    }

    /// A segment came in order: its ACK may wait.
    #[inline]
    fn delay_ack(&mut self, now: Instant) {
        if self.ack_due.is_none() {
            self.ack_due = Some(now + self.delayed_timeout);
        }
        if self.quick_left > 0 {
            self.quick_left -= 1;
            self.ack_now = true;
        }
        if self.next - self.acked_to >= u64::from(self.ack_bytes) {
            self.ack_now = true;
        }
    }

    /// When a delayed ACK is due.
    #[must_use]
    pub fn ack_deadline(&self) -> Option<Instant> {
        self.ack_due
    }

    /// Whether an ACK must leave by `now`.
    #[must_use]
    pub fn wants_ack(&self, now: Instant) -> bool {
        self.ack_now || self.ack_due.is_some_and(|due| due <= now)
    }

    /// What a segment other than a SYN says about received data: the next position expected, and the
    /// window field.
    pub fn acknowledge(&mut self) -> (Position, u16) {
        if !self.told.holds {
            self.tell(self.shift);
            self.told.holds = true;
        }
        self.acked_to = self.next;
        (self.next, self.told.field)
    }

    /// What the answer to a SYN says. Its window is never scaled (RFC 7323, section 2.2).
    pub fn acknowledge_syn(&mut self) -> (Position, u16) {
        self.tell(0);
        // It is in other units than what follows.
        self.told.holds = false;
        self.acked_to = self.next;
        (self.next, self.told.field)
    }

    /// The window that the first SYN offers, before anything was heard.
    #[must_use]
    pub fn unscaled_window(&self) -> u16 {
        u16::try_from(self.buffer.bytes()).unwrap_or(u16::MAX)
    }

    fn tell(&mut self, shift: u8) {
        self.ack_due = None;
        self.ack_now = false;
        let opened = (self.open_window() >> shift).min(u16::MAX.into());
        let edge = self.next + (opened << shift);
        if edge >= self.edge {
            self.edge = edge;
            self.told.field = u16::try_from(opened).unwrap_or(u16::MAX);
        } else {
            self.keep_edge(shift);
        }
    }

    /// RFC 9293, 3.8.6: the right edge never moves back, so what the field cannot tell exactly is
    /// rounded up where rounding down would move it (RFC 7323, 2.4).
    #[cold]
    #[inline(never)]
    fn keep_edge(&mut self, shift: u8) {
        let promised = (self.edge.saturating_sub(self.next) + (1 << shift) - 1) >> shift;
        self.told.field = u16::try_from(promised).unwrap_or(u16::MAX);
        self.edge = self.edge.max(self.next + (u64::from(self.told.field) << shift));
    }

    /// Whether the next segment has SACK blocks to report: something was received beyond a hole, or
    /// twice.
    #[inline]
    pub(super) fn has_blocks(&self) -> bool {
        self.has_blocks
    }

    /// How many blocks there are to report.
    pub(super) fn block_count(&self) -> usize {
        usize::from(self.duplicate.is_some()) + self.reassembly.newest().count()
    }

    /// The payload of a full segment.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// What the last segment acknowledged.
    pub(super) fn acked_to(&self) -> Position {
        self.acked_to
    }

    /// What came with data so far.
    pub(super) fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// Counts a segment with data that was `delay` on its way, and whether some of it was in order.
    #[inline]
    pub(super) fn note_arrival(&mut self, now: Instant, delay: Duration, in_order: bool) {
        let arrivals = &mut self.arrivals;
        arrivals.segments += 1;
        arrivals.delay_sum += delay;
        arrivals.delay_max = arrivals.delay_max.max(delay);
        if in_order {
            arrivals.first_delivery.get_or_insert(now);
            arrivals.last_delivery = Some(now);
        }
    }

    /// Adds the range that arrived twice, once, and the newest ranges received beyond a hole; at most
    /// `most` of them, which is not zero. `peer_initial` numbers the peer's SYN.
    pub(super) fn report_blocks(
        &mut self,
        blocks: &mut SackBlocks,
        most: usize,
        peer_initial: SeqNumber,
    ) {
        let wire = |position| SeqNumber::from_position(position, peer_initial);
        self.compression.acknowledged();
        let duplicate = self.duplicate.take();
        for (start, end) in duplicate.into_iter().chain(self.reassembly.newest()).take(most) {
            blocks.push(wire(start), wire(end));
        }
        self.has_blocks = !self.reassembly.is_empty();
    }

    fn open_window(&self) -> u64 {
        let unread = if self.reads_at_once { 0 } else { self.next.saturating_sub(self.read) };
        self.buffer.bytes().saturating_sub(unread)
    }
}

/// The smallest shift with which the field can carry `window`.
fn shift_for(window: u64) -> u8 {
    (0..WINDOW_SHIFT_MAX)
        .find(|&shift| window >> shift <= UNSCALED_WINDOW_MAX)
        .unwrap_or(WINDOW_SHIFT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn data_in_order_touches_two_lines() {
        assert_eq!(offset_of!(Receiver, delayed_timeout), 64);
        assert_eq!(offset_of!(Receiver, buffer) + AutoTuning::OFTEN_USED, 128);
    }
}
