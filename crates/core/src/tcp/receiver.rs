//! The receiver of a connection: received data, when it is acknowledged, and the advertised window.
//! It uses positions only; the endpoint converts them to segments.

mod compression;

#[cfg(doc)]
use super::config::AckPolicy;
use super::config::{Config, StackVariant};
use super::reassembly::Reassembly;
use super::receive_buffer::{AutoTuning, UNSCALED_WINDOW_MAX};
use crate::packet::segment::{SackBlocks, Segment};
use crate::packet::seq::{Position, SeqNumber};
use crate::time::{Duration, Instant};
use compression::Compression;

/// The maximum window scale (RFC 7323, section 2.3).
pub(super) const WINDOW_SHIFT_MAX: u8 = 14;

/// Statistics of received data.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct DataStats {
    /// Data segments received.
    pub(super) segments: u64,
    /// Sum and maximum of their one-way delays.
    pub(super) delay_sum: Duration,
    pub(super) delay_max: Duration,
    /// When data first and last arrived in order.
    pub(super) first_delivery: Option<Instant>,
    pub(super) last_delivery: Option<Instant>,
}

/// The window in the last segment sent.
#[derive(Clone, Copy, Debug)]
struct Advertised {
    /// The window field.
    field: u16,
    /// Whether the next segment can reuse it, so that the sender of a transfer does not recompute
    /// it for each segment.
    is_current: bool,
}

/// See the module's description.
///
/// Fields are grouped into the cache lines of [`Endpoint`](super::Endpoint): every segment uses the
/// first, data segments the second.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Receiver {
    /// RCV.NXT; 0 until the SYN was received.
    next: Position,
    /// The right edge of the advertised window. The peer may always send its SYN.
    edge: Position,
    /// Position of the FIN; [`UNKNOWN`] until it was received.
    fin: Position,
    /// When the delayed ACK is due: counted from the first segment that it acknowledges.
    ack_due: Option<Instant>,
    /// Last.ACK.sent (RFC 7323, section 4.3).
    acked_to: Position,
    /// An ACK is sent immediately for this many bytes in order.
    ack_bytes: u32,
    /// The largest payload received so far where it matters; see [`AckPolicy`].
    rcv_mss: u32,
    quick_acks_left: u32,
    advertised: Advertised,
    ack_now: bool,
    auto_read: bool,
    shift: u8,
    /// Whether there are SACK blocks to report.
    has_blocks: bool,
    delayed_timeout: Duration,
    data_stats: DataStats,
    buffer: AutoTuning,
    reassembly: Reassembly,
    segment_bytes: u64,
    delayed_segments: u32,
    linux: bool,
    /// The end of what the application has read, unless it reads at once.
    read: Position,
    scales: bool,
    /// Whether D-SACKs are sent (RFC 2883).
    reports_dsack: bool,
    /// The range of the next D-SACK.
    dsack: Option<(Position, Position)>,
    /// State of SACK compression.
    compression: Compression,
    /// Payload received on the slow path beyond the advance of RCV.NXT; wraps.
    excess_bytes: u64,
}

/// Linux's initial estimate of a full segment (`tcp_initialize_rcv_mss`: TCP_MSS_DEFAULT, at least
/// TCP_MIN_MSS).
const MSS_GUESS: u32 = 536;
const MSS_GUESS_MIN: u32 = 88;

/// Beyond any position.
const UNKNOWN: Position = Position::MAX;

impl Receiver {
    /// A receiver that has received nothing.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        debug_assert!(config.acks.delayed_segments > 0, "the plan requires at least one");
        let shift = if config.window_scaling { shift_for(config.receive_buffer) } else { 0 };
        Self {
            segment_bytes: config.mss.into(),
            next: 0,
            acked_to: 0,
            fin: UNKNOWN,
            has_blocks: false,
            reports_dsack: config.stack == StackVariant::Linux,
            dsack: None,
            compression: Compression::of(config),
            excess_bytes: 0,
            reassembly: Reassembly::default(),
            data_stats: DataStats::default(),
            delayed_segments: config.acks.delayed_segments,
            ack_bytes: 0,
            rcv_mss: 0,
            linux: config.stack == StackVariant::Linux,
            delayed_timeout: config.acks.delayed_timeout,
            read: 1,
            auto_read: true,
            edge: 1,
            shift,
            scales: config.window_scaling,
            buffer: AutoTuning::new(config),
            advertised: Advertised { field: 0, is_current: false },
            ack_due: None,
            quick_acks_left: config.acks.quick_segments,
            ack_now: false,
        }
    }

    /// The window scale of this end's SYN.
    #[must_use]
    pub fn shift(&self) -> u8 {
        self.shift
    }

    /// Whether the window field is scaled, as far as negotiated.
    #[must_use]
    pub fn scales(&self) -> bool {
        self.scales
    }

    /// Applies the negotiated options.
    pub fn negotiated(&mut self, scaling: bool, segment_bytes: u64, sack: bool) {
        self.advertised.is_current = false;
        self.reports_dsack &= sack;
        self.compression.negotiated(sack);
        self.segment_bytes = segment_bytes;
        self.init_rcv_mss();
        if !scaling {
            self.scales = false;
            self.shift = 0;
            self.buffer.set_limit(UNSCALED_WINDOW_MAX);
        }
        self.buffer.set_unit(1 << self.shift);
    }

    /// The size of a full segment before one was received.
    fn init_rcv_mss(&mut self) {
        let full = u32::try_from(self.segment_bytes).unwrap_or(u32::MAX);
        if self.linux {
            self.set_rcv_mss(full.clamp(MSS_GUESS_MIN, MSS_GUESS));
            return;
        }
        self.rcv_mss = u32::MAX;
        let segments = self.delayed_segments;
        self.ack_bytes = if segments > 1 { segments.saturating_mul(full) } else { 1 };
    }

    /// Linux, `tcp_measure_rcv_mss`: a segment is larger than all before it.
    #[cold]
    #[inline(never)]
    fn measure_rcv_mss(&mut self, payload: u64) {
        self.set_rcv_mss(u32::try_from(payload).unwrap_or(u32::MAX));
        self.buffer.measure_rcv_mss(payload);
    }

    fn set_rcv_mss(&mut self, payload: u32) {
        self.rcv_mss = payload;
        // `__tcp_ack_snd_check`: more than one full segment, where two are to be acknowledged.
        let others = self.delayed_segments - 1;
        self.ack_bytes = others.saturating_mul(self.rcv_mss).saturating_add(1);
    }

    /// RCV.NXT.
    #[must_use]
    pub fn next(&self) -> Position {
        self.next
    }

    /// Application bytes received in order.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.next.min(self.fin).saturating_sub(1)
    }

    /// Payload received and not used: duplicates, and data beyond the window.
    #[must_use]
    pub fn discarded_bytes(&self) -> u64 {
        // A FIN beyond a hole is stored as a byte.
        let stored_fin = !self.finished() && self.reassembly.contains(self.fin);
        let stored = self.reassembly.bytes() - u64::from(stored_fin);
        self.excess_bytes.wrapping_sub(stored)
    }

    /// Whether everything up to and including the FIN was received.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.next > self.fin
    }

    /// Sets whether the application reads data as soon as it is in order (the default). While it
    /// does not, the window closes.
    pub fn set_auto_read(&mut self, enabled: bool) {
        if self.auto_read {
            self.read = self.next.max(1);
        }
        self.auto_read = enabled;
        self.advertised.is_current = false;
        let window = self.edge.saturating_sub(self.next);
        // RFC 9293, 3.8.6.2.2: send a window update once the window has opened by a segment.
        if enabled && self.available_window() >= window + self.segment_bytes {
            self.ack_now = true;
        }
    }

    /// Data in order that the application has not read.
    #[must_use]
    pub fn readable(&self) -> u64 {
        if self.auto_read { 0 } else { self.next.min(self.fin).saturating_sub(self.read) }
    }

    /// The application, which does not read at once, reads `bytes`. Requests a window update if that
    /// opens the window far enough. Linux: at least to twice its size (`tcp_cleanup_rbuf`). Otherwise
    /// as in 4.4BSD (Stevens 1995, section 26.2): by two segments or half of the buffer.
    pub(super) fn read(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.readable(), "only data in order can be read");
        self.read += bytes;
        self.advertised.is_current = false;
        let window = self.edge.saturating_sub(self.next);
        let (opened, buffer) = (self.available_window(), self.buffer.bytes());
        let is_due = if self.linux {
            2 * window <= buffer && opened >= self.segment_bytes.min(buffer) && opened >= 2 * window
        } else {
            opened >= window + (2 * self.segment_bytes).min(buffer / 2).max(1)
        };
        self.ack_now |= is_due && self.edge > 1;
    }

    /// Whether `position` is in the advertised window.
    pub(super) fn is_in_window(&self, position: Position) -> bool {
        (self.next..self.edge).contains(&position)
    }

    /// Stops all timers and pending ACKs.
    pub(super) fn abort(&mut self) {
        self.ack_due = None;
        self.ack_now = false;
    }

    /// Processes a segment with data, SYN or FIN at `position`. `rtt` is the smoothed RTT, if
    /// known, for auto-tuning.
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
        let (before, delivered) = (self.next, self.delivered());
        let start = position.max(before);
        let (edge, end) = (self.edge.max(before), position + length);
        // A FIN needs no room in the buffer.
        let fits = end - u64::from(segment.flags.fin()) <= edge;
        let end = if fits { end } else { edge };
        let end = end.min(self.fin.saturating_add(1));
        if segment.flags.fin() && position + length == end && end > before {
            self.fin = end - 1;
        }
        self.advertised.is_current = false;
        if u32::from(segment.payload) > self.rcv_mss {
            self.measure_rcv_mss(segment.payload.into());
        }
        let had_hole = !self.reassembly.is_empty();
        if self.reports_dsack && !segment.flags.syn() {
            self.note_dsack(position, position + length);
        }
        let mut rank = 0;
        if start > before {
            rank = if self.compression.is_active() { self.reassembly.rank(start, end) } else { 0 };
            self.reassembly.insert(start, end);
        } else if end > before {
            self.next = if had_hole { self.reassembly.advance(end) } else { end };
        }
        // Less than zero if the segment filled a hole.
        let advance = self.delivered() - delivered;
        let excess = u64::from(segment.payload).wrapping_sub(advance);
        self.excess_bytes = self.excess_bytes.wrapping_add(excess);
        self.has_blocks = !self.reassembly.is_empty() || self.dsack.is_some();
        if self.window_may_grow() {
            self.tune(now, rtt);
        }
        if self.next > before {
            self.compression.restart();
        } else if position > before && self.quick_acks_left == 0 {
            let due = self.compression.compress(now, rank, rtt);
            if due.is_some() {
                self.ack_due = self.ack_due.or(due);
                return;
            }
        }
        self.schedule_ack(now, before, had_hole, segment);
    }

    /// Discards a segment with data or FIN at `position` and acknowledges at once, with a D-SACK of
    /// its part below RCV.NXT (Linux, `tcp_send_dupack`).
    pub fn discard(&mut self, position: Position, segment: &Segment) {
        if self.reports_dsack && position < self.next {
            self.dsack = Some((position, (position + segment.sequence_length()).min(self.next)));
            self.has_blocks = true;
        }
        self.excess_bytes = self.excess_bytes.wrapping_add(segment.payload.into());
        self.acknowledge_now();
    }

    /// Records which part of `start..end` is a duplicate: its part below RCV.NXT, or else the first
    /// duplicate part beyond a hole (Linux, `tcp_data_queue` and `tcp_data_queue_ofo`).
    fn note_dsack(&mut self, start: Position, end: Position) {
        let dsack = if start < self.next {
            Some((start, end.min(self.next)))
        } else {
            self.reassembly.overlap(start, end)
        };
        // It replaces one that was not reported yet, as in `tcp_dsack_set`.
        self.dsack = dsack.or(self.dsack);
    }

    /// Whether `length` bytes at RCV.NXT may take the fast path of [`Receiver::on_in_order_data`]:
    /// nothing is out of order and the window has room.
    pub(super) fn accepts_in_order(&self, length: u64) -> bool {
        self.fin == UNKNOWN && !self.has_blocks && self.next + length <= self.edge
    }

    /// The fast path of [`Receiver::on_segment`] for data at RCV.NXT that it
    /// [accepts](Receiver::accepts_in_order), without [`Receiver::tune`].
    #[inline]
    pub(super) fn on_in_order_data(&mut self, now: Instant, length: u64) {
        self.advertised.is_current = false;
        if length > u64::from(self.rcv_mss) {
            self.measure_rcv_mss(length);
        }
        self.next += length;
        self.delay_ack(now);
    }

    /// Whether auto-tuning may still grow the window.
    #[inline]
    pub(super) fn window_may_grow(&self) -> bool {
        self.buffer.may_grow()
    }

    /// Runs auto-tuning after data was received, if the [window may
    /// grow](Receiver::window_may_grow).
    #[inline(never)]
    pub(super) fn tune(&mut self, now: Instant, rtt: Option<Duration>) {
        let read = if self.auto_read { self.next } else { self.read };
        self.buffer.on_delivered(now, read, rtt, self.segment_bytes);
    }

    /// Requests an immediate ACK.
    pub fn acknowledge_now(&mut self) {
        self.advertised.is_current = false;
        self.ack_now = true;
    }

    /// RFC 5681, section 4.2: an ACK for every second full segment, or when the delayed-ACK timer
    /// expires; immediately for a segment that is out of order, fills a hole, or is a duplicate.
    fn schedule_ack(&mut self, now: Instant, before: Position, had_hole: bool, segment: &Segment) {
        let in_order = self.next > before && !had_hole && !self.has_blocks;
        if !in_order || segment.flags.syn() || segment.flags.fin() {
            self.ack_now = true;
            return;
        }
        self.delay_ack(now);
    }

    /// Delays the ACK of an in-order segment.
    #[inline]
    fn delay_ack(&mut self, now: Instant) {
        if self.ack_due.is_none() {
            self.ack_due = Some(now + self.delayed_timeout);
        }
        if self.quick_acks_left > 0 {
            self.quick_acks_left -= 1;
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

    /// Whether an ACK must be sent at `now`.
    #[must_use]
    pub fn wants_ack(&self, now: Instant) -> bool {
        self.ack_now || self.ack_due.is_some_and(|due| due <= now)
    }

    /// The ACK and window fields of a segment other than a SYN.
    pub fn acknowledge(&mut self) -> (Position, u16) {
        if !self.advertised.is_current {
            self.advertise(self.shift);
            self.advertised.is_current = true;
        }
        self.acked_to = self.next;
        (self.next, self.advertised.field)
    }

    /// The ACK and window fields of a SYN-ACK. Its window is never scaled (RFC 7323, section 2.2).
    pub fn acknowledge_syn(&mut self) -> (Position, u16) {
        self.advertise(0);
        // The next segment scales its window.
        self.advertised.is_current = false;
        self.acked_to = self.next;
        (self.next, self.advertised.field)
    }

    /// The window of a SYN.
    #[must_use]
    pub fn unscaled_window(&self) -> u16 {
        u16::try_from(self.buffer.bytes()).unwrap_or(u16::MAX)
    }

    fn advertise(&mut self, shift: u8) {
        self.ack_due = None;
        self.ack_now = false;
        let opened = (self.available_window() >> shift).min(u16::MAX.into());
        let edge = self.next + (opened << shift);
        if edge >= self.edge {
            self.edge = edge;
            self.advertised.field = u16::try_from(opened).unwrap_or(u16::MAX);
        } else {
            self.keep_edge(shift);
        }
    }

    /// RFC 9293, 3.8.6: the right edge never moves back. If the scaled field cannot express the
    /// window, it is rounded up as in Linux (`tcp_select_window`), which moves the edge on by less
    /// than a unit with each ACK. An edge beyond the buffer is never advertised: there, the field is
    /// rounded down (RFC 7323, 2.4), and data up to the edge of an earlier ACK are still accepted.
    #[cold]
    #[inline(never)]
    fn keep_edge(&mut self, shift: u8) {
        let window = self.edge.saturating_sub(self.next);
        let rounded_up = window.div_ceil(1 << shift);
        let fits = (rounded_up << shift) + self.unread() <= self.buffer.capacity();
        let units = if fits { rounded_up } else { window >> shift };
        self.advertised.field = u16::try_from(units).unwrap_or(u16::MAX);
        self.edge = self.edge.max(self.next + (u64::from(self.advertised.field) << shift));
    }

    /// Whether there are SACK blocks to report, for out-of-order or duplicate data.
    #[inline]
    pub(super) fn has_blocks(&self) -> bool {
        self.has_blocks
    }

    /// Number of SACK blocks to report.
    pub(super) fn block_count(&self) -> usize {
        usize::from(self.dsack.is_some()) + self.reassembly.newest().count()
    }

    /// Payload of a full segment.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Last.ACK.sent (RFC 7323, section 4.3).
    pub(super) fn acked_to(&self) -> Position {
        self.acked_to
    }

    /// Statistics of received data.
    pub(super) fn data_stats(&self) -> &DataStats {
        &self.data_stats
    }

    /// Counts a data segment with this one-way delay.
    #[inline]
    pub(super) fn record_data(&mut self, now: Instant, delay: Duration, in_order: bool) {
        let data_stats = &mut self.data_stats;
        data_stats.segments += 1;
        data_stats.delay_sum += delay;
        data_stats.delay_max = data_stats.delay_max.max(delay);
        if in_order {
            data_stats.first_delivery.get_or_insert(now);
            data_stats.last_delivery = Some(now);
        }
    }

    /// Writes SACK blocks: the pending D-SACK first, then the newest out-of-order ranges; at most
    /// `max_blocks`, which is not zero. `peer_initial` is the peer's initial sequence number.
    pub(super) fn report_blocks(
        &mut self,
        blocks: &mut SackBlocks,
        max_blocks: usize,
        peer_initial: SeqNumber,
    ) {
        let number = |position| SeqNumber::from_position(position, peer_initial);
        self.compression.acknowledged();
        let dsack = self.dsack.take();
        for (start, end) in dsack.into_iter().chain(self.reassembly.newest()).take(max_blocks) {
            blocks.push(number(start), number(end));
        }
        self.has_blocks = !self.reassembly.is_empty();
    }

    // Inlined into the ACK of each segment, whoever else calls it.
    #[inline(always)]
    fn available_window(&self) -> u64 {
        self.buffer.bytes().saturating_sub(self.unread())
    }

    /// Sequence numbers in order that the application has not read.
    #[inline(always)]
    fn unread(&self) -> u64 {
        if self.auto_read { 0 } else { self.next.saturating_sub(self.read) }
    }
}

/// The smallest window scale that can express `window`.
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
    fn in_order_data_uses_two_cache_lines() {
        assert_eq!(offset_of!(Receiver, delayed_timeout), 64);
        assert_eq!(offset_of!(Receiver, buffer) + AutoTuning::HOT_BYTES, 128);
    }
}
