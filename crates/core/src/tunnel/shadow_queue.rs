//! The occupancy of the link's input queue, estimated by a gateway that does not own it: what it has
//! sent, drained at the configured rate.
//!
//! The backlog is kept as work in billionths of a bit, the unit in which a nanosecond at any whole rate
//! is whole, so that nothing is rounded however often the queue is read. The queue drains like a fluid:
//! the part of a frame that the transmitter has sent no longer counts.

use crate::engine::Count;
use crate::link::Framing;
use crate::time::{Duration, Instant};
use crate::units::{BitRate, Bits};

/// Billionths of a bit in a byte.
const WORK_PER_BYTE: u128 = 8_000_000_000;
/// Billionths of a bit in a bit.
const WORK_PER_BIT: u128 = 1_000_000_000;

/// The settings of a shadow queue.
#[derive(Clone, Copy, Debug)]
pub struct ShadowQueueConfig {
    /// The rate of the link behind the queue. Zero is an outage.
    pub rate: BitRate,
    /// The bytes that the link adds to each packet.
    pub framing: Framing,
    /// The capacity of the queue in bytes on the link.
    pub capacity_bytes: u64,
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct ShadowQueue {
    config: ShadowQueueConfig,
    /// The backlog at `at`.
    work: u128,
    at: Instant,
    overflows: Count,
}

impl ShadowQueue {
    /// An empty queue.
    #[must_use]
    pub fn new(config: ShadowQueueConfig) -> Self {
        Self { config, work: 0, at: Instant::START, overflows: Count::default() }
    }

    /// Adds a packet of `ip_bytes` that is sent now and returns whether it fits the capacity. One that
    /// does not is dropped by the real queue and adds nothing; an empty queue takes any packet.
    pub fn push(&mut self, now: Instant, ip_bytes: u32) -> bool {
        self.drain(now);
        let Bits(bits) = self.config.framing.frame(ip_bytes);
        let work = self.work.saturating_add(u128::from(bits) * WORK_PER_BIT);
        if self.work > 0 && work > u128::from(self.config.capacity_bytes) * WORK_PER_BYTE {
            self.overflows.add(ip_bytes);
            return false;
        }
        self.work = work;
        true
    }

    /// The backlog now in bytes on the link, rounded up.
    #[must_use]
    pub fn occupancy_bytes(&self, now: Instant) -> u64 {
        let bytes = self.work_at(now).div_ceil(WORK_PER_BYTE);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The first instant from `now` on at which the occupancy is below `threshold_bytes` if nothing is
    /// added. `None` if that never comes: the threshold is zero, or the rate is.
    #[must_use]
    pub fn below_at(&self, now: Instant, threshold_bytes: u64) -> Option<Instant> {
        let allowed = u128::from(threshold_bytes.checked_sub(1)?) * WORK_PER_BYTE;
        let excess = self.work_at(now).saturating_sub(allowed);
        if excess == 0 {
            return Some(now);
        }
        let rate = u128::from(self.config.rate.0);
        let nanos = (rate > 0).then(|| excess.div_ceil(rate))?;
        Some(now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Changes the rate from `now` on.
    pub fn set_rate(&mut self, now: Instant, rate: BitRate) {
        self.drain(now);
        self.config.rate = rate;
    }

    /// Packets that did not fit.
    #[must_use]
    pub fn overflows(&self) -> Count {
        self.overflows
    }

    fn drain(&mut self, now: Instant) {
        self.work = self.work_at(now);
        self.at = self.at.max(now);
    }

    fn work_at(&self, now: Instant) -> u128 {
        let elapsed = now.saturating_since(self.at).as_nanos();
        self.work.saturating_sub(u128::from(elapsed) * u128::from(self.config.rate.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Transmitter;
    use crate::profile::Profile;
    use proptest::prelude::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn queue(rate: u64, framing_bytes: u32, capacity_bytes: u64) -> ShadowQueue {
        let framing = Framing::overhead(framing_bytes);
        ShadowQueue::new(ShadowQueueConfig { rate: BitRate(rate), framing, capacity_bytes })
    }

    /// 1,000 bytes and 18 of framing at 8 kbit/s drain by a byte per millisecond: below 500 bytes when
    /// 499 are left, after 519 ms.
    #[test]
    fn a_packet_drains_at_the_configured_rate() {
        let mut queue = queue(8_000, 18, 120_000);
        assert!(queue.push(ms(10), 1_000));
        assert_eq!(
            [10, 11, 1_027, 1_028].map(|at| queue.occupancy_bytes(ms(at))),
            [1_018, 1_017, 1, 0]
        );
        assert_eq!(queue.below_at(ms(10), 500), Some(ms(10 + 519)));
        assert_eq!(queue.below_at(ms(600), 500), Some(ms(600)), "it has drained that far");
        assert_eq!(queue.below_at(ms(10), 0), None);
    }

    #[test]
    fn packets_beyond_the_capacity_are_dropped() {
        let mut queue = queue(8_000, 0, 2_000);
        assert_eq!([1_500, 501, 500].map(|bytes| queue.push(ms(0), bytes)), [true, false, true]);
        assert_eq!(queue.overflows(), Count { packets: 1, bytes: 501 });
        assert!(queue.push(ms(2_000), 9_000), "an empty queue sends it at once");
    }

    #[test]
    fn an_outage_keeps_the_backlog() {
        let mut queue = queue(8_000, 0, 2_000);
        queue.push(ms(0), 1_000);
        queue.set_rate(ms(100), BitRate(0));
        assert_eq!(queue.occupancy_bytes(ms(90_000)), 900);
        assert_eq!(queue.below_at(ms(200), 100), None);
        queue.set_rate(ms(1_000), BitRate(16_000));
        assert_eq!(queue.occupancy_bytes(ms(1_450)), 0, "900 bytes take 450 ms");
    }

    proptest! {
        /// Given any packets at any rate, expect the queue to be empty when a transmitter of that rate
        /// has sent them, to the nanosecond, however often it was read in between.
        #[test]
        fn it_is_empty_when_the_transmitter_is_free(
            packets in prop::collection::vec((0u32..3_000, 0u64..2_000_000), 1..60),
            rate in 1u64..1_000_000_000, reads in prop::collection::vec(0u64..2_000_000, 60),
        ) {
            let mut queue = queue(rate, 18, u64::MAX);
            let mut transmitter =
                Transmitter::new(Profile::Constant(BitRate(rate))).expect("above zero");
            let mut now = Instant::START;
            for (&(bytes, gap), read) in packets.iter().zip(reads) {
                now += Duration::from_nanos(gap);
                prop_assert!(queue.push(now, bytes));
                let sent = transmitter.take(now, Framing::overhead(18).frame(bytes));
                let empty_at = queue.below_at(now, 1).expect("the rate is above zero");
                // A departure is rounded down, the instant of an empty queue rounded up.
                let difference = empty_at - sent.departure;
                prop_assert!(difference <= Duration::from_nanos(1), "{difference}");
                let at = now + Duration::from_nanos(read);
                queue.drain(at.min(now + Duration::from_nanos(gap / 2)));
                now = now.max(queue.at);
            }
        }

        /// Given any backlog and threshold, expect the wake to be the first nanosecond below it.
        #[test]
        fn the_wake_is_exact(
            sizes in prop::collection::vec(0u32..3_000, 1..20), rate in 1u64..1_000_000_000,
            threshold in 1u64..40_000, capacity in 1u64..50_000,
        ) {
            let mut queue = queue(rate, 4, capacity);
            for bytes in sizes {
                queue.push(ms(3), bytes);
                prop_assert!(queue.occupancy_bytes(ms(3)) <= capacity.max(3_003));
            }
            let at = queue.below_at(ms(3), threshold).expect("the rate is above zero");
            prop_assert!(queue.occupancy_bytes(at) < threshold);
            if at > ms(3) {
                let before = Instant::from_nanos(at.as_nanos() - 1);
                prop_assert!(queue.occupancy_bytes(before) >= threshold);
            }
        }
    }
}
