//! The receive buffer: the size of its window and its auto-tuning.

use super::config::{BufferCounts, Config};
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};

/// The maximum unscaled window.
pub(super) const UNSCALED_WINDOW_MAX: u64 = 65_535;

/// Linux expresses the ratio of window to memory in 256ths (TCP_RMEM_TO_WIN_SCALE); initially a
/// half (TCP_DEFAULT_SCALING_RATIO).
const RATIO_UNIT: u64 = 256;
const RATIO_INITIAL: u64 = 128;
/// Bytes before the payload: headers with timestamps, and NET_SKB_PAD.
const HEADROOM: u64 = 52 + 64;
/// Sizes on x86-64: a cache line, to which headroom and payload are rounded up, `skb_shared_info`
/// and `sk_buff`.
const LINE: u64 = 64;
const SHARED_INFO: u64 = 320;
const SK_BUFF: u64 = 256;

/// `skb->truesize` of a received segment, if the driver copied the packet into one buffer with a
/// power of two as its size (kmalloc): 2,304 bytes for a packet of 1,500.
fn segment_memory(payload: u64) -> u64 {
    let buffer = (payload + HEADROOM).next_multiple_of(LINE) + SHARED_INFO;
    buffer.next_power_of_two() + SK_BUFF
}

/// The receive buffer with dynamic right-sizing (Linux, `tcp_rcv_space_adjust`; Fisk and Feng
/// 2001). At the end of an RTT in which the application read more than in any before, the window
/// grows to twice that plus 16 segments, and by twice the relative growth on top. Like Linux, it
/// compares the first RTT with 10 segments, but with at most half the initial window, which a round
/// of large segments could never exceed.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct AutoTuning {
    /// The window and its maximum.
    bytes: u64,
    bytes_max: u64,
    unit: u64,
    /// The maximum read in one RTT so far (`rcvq_space.space`).
    space: u64,
    round_start: Instant,
    round_from: Position,
    /// The ratio of window to memory in 256ths, and the memory limit; `None` if buffers count
    /// payload.
    memory: Option<(u64, u64)>,
    /// The maximum that the window field can express.
    limit: u64,
}

impl AutoTuning {
    /// Size of the fields that most segments use.
    #[cfg(test)]
    pub(super) const HOT_BYTES: usize = core::mem::offset_of!(Self, unit);

    pub(super) fn new(config: &Config) -> Self {
        let counts_memory = config.receive_buffer_counts == BufferCounts::Memory;
        let ratio = if counts_memory { RATIO_INITIAL } else { RATIO_UNIT };
        let window = |buffer: u64| (buffer * ratio / RATIO_UNIT).max(1);
        let first = window(config.receive_buffer_initial);
        let mut buffer = Self {
            bytes: first,
            bytes_max: window(config.receive_buffer),
            unit: 1,
            space: (first / 2).min(10 * u64::from(config.mss)),
            round_start: Instant::START,
            round_from: 1,
            memory: counts_memory.then_some((ratio, config.receive_buffer)),
            limit: u64::MAX,
        };
        buffer.set_limit(if config.window_scaling { u64::MAX } else { UNSCALED_WINDOW_MAX });
        buffer
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.bytes_max = self.bytes_max.min(limit);
        self.bytes = self.bytes.min(self.bytes_max);
    }

    /// `tcp_measure_rcv_mss`: a segment was larger than all before it, which changes the ratio of
    /// window to memory.
    pub(super) fn measure_rcv_mss(&mut self, payload: u64) {
        let Some((ratio, memory_max)) = &mut self.memory else { return };
        let memory = self.bytes * RATIO_UNIT / *ratio;
        *ratio = (payload * RATIO_UNIT / segment_memory(payload)).clamp(1, RATIO_UNIT - 1);
        let window = |memory: u64| (memory * *ratio / RATIO_UNIT).clamp(self.unit, self.limit);
        let (bytes, bytes_max) = (window(memory), window(*memory_max));
        self.bytes_max = bytes_max - bytes_max % self.unit;
        self.set(bytes);
        self.space = self.space.min(self.bytes);
    }

    /// Whether the window may grow.
    #[inline]
    pub(super) fn may_grow(&self) -> bool {
        self.bytes != self.bytes_max
    }

    /// Sets the unit of the window field in bytes. The window is at least one unit.
    pub(super) fn set_unit(&mut self, unit: u64) {
        self.unit = unit;
        self.bytes_max -= self.bytes_max % unit;
        self.set(self.bytes);
    }

    fn set(&mut self, bytes: u64) {
        self.bytes = bytes.next_multiple_of(self.unit).min(self.bytes_max);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The payload that the buffer can hold: the maximum window, or all of the memory. The window of
    /// Linux is a part of its memory, but data are dropped only if there is no memory left
    /// (`tcp_try_rmem_schedule`), and before that `tcp_collapse` copies segments into full buffers.
    pub(super) fn capacity(&self) -> u64 {
        self.memory.map_or(self.bytes_max, |(_, memory_max)| memory_max)
    }

    pub(super) fn on_delivered(
        &mut self,
        now: Instant,
        next: Position,
        rtt: Option<Duration>,
        segment: u64,
    ) {
        let Some(rtt) = rtt else { return };
        if now < self.round_start + rtt {
            return;
        }
        let copied = next.saturating_sub(self.round_from);
        if copied > self.space {
            let window = 2 * copied + 16 * segment;
            let growth = window * (copied - self.space) / self.space.max(1);
            self.set(self.bytes.max(window + 2 * growth));
            self.space = copied;
        }
        self.round_start = now;
        self.round_from = next;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plain;
    use super::*;

    /// A packet of 1,500 bytes and its headroom round up to 1,600 bytes; with 320 more they fit
    /// into 2,048.
    #[test]
    fn a_full_packet_takes_2304_bytes_of_memory() {
        assert_eq!(segment_memory(1_448), 2_048 + 256);
        assert_eq!(segment_memory(500), 1_024 + 256);
        assert_eq!(segment_memory(8_948), 16_384 + 256);
    }

    /// `tcp_rcv_space_adjust`: given an initial window of 16,000 bytes and so a space of 8,000, and
    /// 9,000 bytes read in the first RTT, expect 2 x 9,000 + 16 x 1,000 = 34,000 and twice the relative
    /// growth, 34,000 x 1,000 / 8,000 = 4,250, on top: 42,500. As many in the next RTT change nothing;
    /// 18,000 are 52,000 and twice 52,000 x 9,000 / 9,000: 156,000.
    #[test]
    fn the_window_grows_by_what_is_read_in_a_round_trip() {
        let config = Config {
            receive_buffer: 1_000_000,
            receive_buffer_initial: 16_000,
            window_scaling: true,
            ..plain()
        };
        let mut buffer = AutoTuning::new(&config);
        let rtt = Some(Duration::from_millis(100));
        let mut delivered = |at_ms, next| {
            buffer.on_delivered(Instant::from_millis(at_ms), next, rtt, 1_000);
            buffer.bytes()
        };
        assert_eq!(delivered(99, 9_001), 16_000, "before the end of the first RTT");
        assert_eq!(delivered(100, 9_001), 42_500);
        assert_eq!(delivered(200, 18_001), 42_500);
        assert_eq!(delivered(299, 36_001), 42_500);
        assert_eq!(delivered(300, 36_001), 156_000);
    }
}
