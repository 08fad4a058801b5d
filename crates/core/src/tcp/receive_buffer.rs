//! The receive buffer: how large a window it is, and how it grows.

use super::config::{BufferCounts, Config};
use super::receiver::UNSCALED_WINDOW_MAX;
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};

/// Linux counts the window of its memory in 256ths (TCP_RMEM_TO_WIN_SCALE); half of it at first
/// (TCP_DEFAULT_SCALING_RATIO).
const RATIO_UNIT: u64 = 256;
const RATIO_FIRST: u64 = 128;
/// Before the payload of a packet: headers with timestamps, and NET_SKB_PAD.
const BEFORE_PAYLOAD: u64 = 52 + 64;
/// A cache line, to which that is rounded up; `skb_shared_info` behind it, and `sk_buff`, on x86-64.
const LINE: u64 = 64;
const SHARED_INFO: u64 = 320;
const SK_BUFF: u64 = 256;

/// What Linux counts for a received segment (`skb->truesize`) if the driver copied the packet into one
/// buffer, whose size is a power of two (kmalloc): 2,304 bytes for one of 1,500.
fn segment_memory(payload: u64) -> u64 {
    let buffer = (payload + BEFORE_PAYLOAD).next_multiple_of(LINE) + SHARED_INFO;
    buffer.next_power_of_two() + SK_BUFF
}

/// The receive buffer, which grows with what is delivered in a round trip (Linux's dynamic
/// right-sizing, `tcp_rcv_space_adjust`; Fisk and Feng 2001): at the end of a round in which the
/// application took more than in any before, room is made for twice that and 16 segments, and
/// twice more by the fraction it grew. The first round is compared with 10 segments, as there, but
/// with no more than half the first window, which a round of large segments could never exceed.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct AutoTuning {
    /// The window, and the largest one.
    bytes: u64,
    bytes_max: u64,
    unit: u64,
    /// The most delivered in one round so far.
    space: u64,
    round_start: Instant,
    round_from: Position,
    /// The window of so much memory, in 256ths, and the most memory; `None` where buffers count payload.
    memory: Option<(u64, u64)>,
    /// The most that the field can tell.
    limit: u64,
}

impl AutoTuning {
    /// Bytes of those fields that most segments need.
    #[cfg(test)]
    pub(super) const OFTEN_USED: usize = core::mem::offset_of!(Self, unit);

    pub(super) fn new(config: &Config) -> Self {
        let is_memory = config.receive_buffer_counts == BufferCounts::Memory;
        let ratio = if is_memory { RATIO_FIRST } else { RATIO_UNIT };
        let window = |buffer: u64| (buffer * ratio / RATIO_UNIT).max(1);
        let first = window(config.receive_buffer_initial);
        let mut buffer = Self {
            bytes: first,
            bytes_max: window(config.receive_buffer),
            unit: 1,
            space: (first / 2).min(10 * u64::from(config.mss)),
            round_start: Instant::START,
            round_from: 1,
            memory: is_memory.then_some((ratio, config.receive_buffer)),
            limit: u64::MAX,
        };
        buffer.limit(if config.window_scaling { u64::MAX } else { UNSCALED_WINDOW_MAX });
        buffer
    }

    pub(super) fn limit(&mut self, most: u64) {
        self.limit = most;
        self.bytes_max = self.bytes_max.min(most);
        self.bytes = self.bytes.min(self.bytes_max);
    }

    /// `tcp_measure_rcv_mss`: a segment was larger than those before it, so that the window of the memory
    /// is another one.
    pub(super) fn note_segment_size(&mut self, payload: u64) {
        let Some((ratio, most)) = &mut self.memory else { return };
        let memory = self.bytes * RATIO_UNIT / *ratio;
        *ratio = (payload * RATIO_UNIT / segment_memory(payload)).clamp(1, RATIO_UNIT - 1);
        let window = |memory: u64| (memory * *ratio / RATIO_UNIT).clamp(self.unit, self.limit);
        let (bytes, bytes_max) = (window(memory), window(*most));
        self.bytes_max = bytes_max - bytes_max % self.unit;
        self.set(bytes);
        self.space = self.space.min(self.bytes);
    }

    /// Whether the window may grow.
    #[inline]
    pub(super) fn may_grow(&self) -> bool {
        self.bytes != self.bytes_max
    }

    /// The window field counts in units of `unit` bytes: less than one would be no window at all.
    pub(super) fn count_in(&mut self, unit: u64) {
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

    pub(super) fn delivered(
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
            let room = 2 * copied + 16 * segment;
            let growth = room * (copied - self.space) / self.space.max(1);
            self.set(self.bytes.max(room + 2 * growth));
            self.space = copied;
        }
        self.round_start = now;
        self.round_from = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,500 bytes and what is before them are 1,600 when rounded up; 320 more fit in 2,048.
    #[test]
    fn a_full_packet_takes_2304_bytes_of_memory() {
        assert_eq!(segment_memory(1_448), 2_048 + 256);
        assert_eq!(segment_memory(500), 1_024 + 256);
        assert_eq!(segment_memory(8_948), 16_384 + 256);
    }
}
