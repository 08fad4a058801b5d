//! What the kernel knows of the legs (`TCP_INFO`), summed over the connections of each side.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use bentpipe_sys::tcp_sockets::info;

use crate::counts::{Counts, report};

/// Upper limits of the RTTs that are counted together, microseconds. Those beyond the last one are counted, too.
pub const RTT_LIMITS_US: [u64; 15] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000,
];
const COUNTS: usize = RTT_LIMITS_US.len() + 1;

report! {
    /// The legs of one side, since the start.
    ///
    /// An active connection is sampled once a second and at its end: `rtt_us` of `tcp_info`, the smoothed RTT.
    #[derive(Copy)]
    pub struct LegReport {
        /// The sum of the sampled RTTs, microseconds.
        pub rtt_sum_us: u64,
        /// Their number up to each of [`RTT_LIMITS_US`], beyond the one before; the last one is that of longer ones.
        pub rtt_counts: [u64; COUNTS],
    }
    counts {
        acked_bytes: "Bytes that the peers of legs acknowledged; a SYN is one." counter "leg_acked_bytes_total",
        received_bytes: "Bytes that the peers of legs sent." counter "leg_received_bytes_total",
        retransmitted_segments: "Segments retransmitted to the peers of legs."
            counter "leg_retransmitted_segments_total",
    }
}

impl LegReport {
    /// Adds the legs of another process.
    pub fn add(&mut self, other: &Self) {
        self.add_counts(other);
        self.rtt_sum_us = self.rtt_sum_us.saturating_add(other.rtt_sum_us);
        for (sum, value) in self.rtt_counts.iter_mut().zip(other.rtt_counts) {
            *sum = sum.saturating_add(value);
        }
    }
}

/// The same, updated by all threads.
#[derive(Debug, Default)]
pub(super) struct LegCounters {
    acked_bytes: AtomicU64,
    received_bytes: AtomicU64,
    retransmitted_segments: AtomicU64,
    rtt_sum_us: AtomicU64,
    rtt_counts: [AtomicU64; COUNTS],
}

/// What was counted of a leg before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sampled {
    acked_bytes: u64,
    received_bytes: u64,
    retransmitted_segments: u32,
}

impl LegCounters {
    /// Counts what is new of a leg. One that the kernel no longer knows has nothing new.
    pub(super) fn sample(&self, socket: impl AsFd, before: &mut Sampled) {
        let Ok(info) = info(socket) else { return };
        let now = Sampled {
            acked_bytes: info.bytes_acked,
            received_bytes: info.bytes_received,
            retransmitted_segments: info.total_retrans,
        };
        let new = |counter: &AtomicU64, now: u64, before: u64| {
            counter.fetch_add(now.saturating_sub(before), Ordering::Relaxed)
        };
        new(&self.acked_bytes, now.acked_bytes, before.acked_bytes);
        new(&self.received_bytes, now.received_bytes, before.received_bytes);
        new(
            &self.retransmitted_segments,
            now.retransmitted_segments.into(),
            before.retransmitted_segments.into(),
        );
        *before = now;
        // Zero is that of a leg without a sample.
        if info.rtt_us > 0 {
            let rtt = u64::from(info.rtt_us);
            self.rtt_sum_us.fetch_add(rtt, Ordering::Relaxed);
            self.rtt_counts[count_of(rtt)].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn report(&self) -> LegReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LegReport {
            acked_bytes: read(&self.acked_bytes),
            received_bytes: read(&self.received_bytes),
            retransmitted_segments: read(&self.retransmitted_segments),
            rtt_sum_us: read(&self.rtt_sum_us),
            rtt_counts: std::array::from_fn(|number| read(&self.rtt_counts[number])),
        }
    }
}

/// The count to which an RTT belongs.
fn count_of(rtt_us: u64) -> usize {
    RTT_LIMITS_US.partition_point(|&limit| limit < rtt_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given RTTs at a limit, above it and beyond all of them, expect them in the count of the limit, in the next one,
    /// and in the last one.
    #[test]
    fn a_limit_belongs_to_its_count() {
        assert_eq!([1, 100, 101, 5_000_000, 5_000_001].map(count_of), [0, 0, 1, 14, 15]);
    }
}
