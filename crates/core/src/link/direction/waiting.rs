//! The delays in the queue of a direction, and the times for which it was empty and full.
//!
//! A queue is empty while no packet waits. It is full while the largest packet that has arrived so far
//! would be dropped for lack of room. In a FIFO that drops at enqueue, a packet that begins to wait also
//! determines when it stops, so that both times are sums of intervals that are known in advance. With a
//! discipline that drops at dequeue, both are observed whenever a packet enters or leaves.

use crate::delays::DelayHistogram;
use crate::time::{Duration, Instant};

/// Statistics of a queue; see the module's description.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// The 50th, 95th and 99th percentile of the delays from the arrival of a packet to the start of its
    /// transmission, within 0.2 %; `None` without packets. A change of the rate does not change delays that were
    /// scheduled. A packet that waits when another queue takes over is counted once: a FIFO has scheduled its
    /// delay, and with another discipline it is the delay until then.
    pub delays: [Option<Duration>; 3],
    /// Time for which no packet waited.
    pub empty: Duration,
    /// Time for which the queue was full.
    pub full: Duration,
}

/// The percentiles of [`QueueStatistics::delays`].
pub const QUEUE_DELAY_PERCENTILES: [u64; 3] = [50, 95, 99];

/// A sum of intervals, the last of which may end in the future.
#[derive(Clone, Copy, Debug)]
struct Intervals {
    sum: Duration,
    until: Instant,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { sum: Duration::ZERO, until: Instant::START }
    }
}

impl Intervals {
    /// Adds `now..until`, as far as it is not counted yet. `until` does not decrease.
    #[inline]
    fn add(&mut self, now: Instant, until: Instant) {
        self.sum += until.saturating_since(self.until.max(now));
        self.until = self.until.max(until);
    }

    /// The sum up to `now`. The last interval has begun by then.
    fn sum_until(&self, now: Instant) -> Duration {
        self.sum.saturating_sub(self.until.saturating_since(now))
    }

    /// Moves the end of an interval that lasts at `now`.
    fn move_end(&mut self, now: Instant, until: Instant) {
        if self.until > now {
            self.sum = self.sum_until(now);
            self.sum += until.saturating_since(now);
            self.until = until.max(now);
        }
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// The delays of packets that waited.
    delays: DelayHistogram,
    /// Time for which it was empty, before `nonempty_until`.
    empty: Duration,
    /// Until when packets wait in a FIFO, as far as is known.
    nonempty_until: Instant,
    full: Intervals,
    /// When a discipline that drops at dequeue was last observed, and its state then.
    observed_at: Instant,
    was_nonempty: bool,
    was_full: bool,
    /// When the last queue took over. The delays of packets that entered it then are counted.
    replaced_at: Option<Instant>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            delays: DelayHistogram::default(),
            empty: Duration::ZERO,
            nonempty_until: Instant::START,
            full: Intervals::default(),
            observed_at: Instant::START,
            was_nonempty: false,
            was_full: false,
            replaced_at: None,
        }
    }
}

impl Waiting {
    /// A packet of a FIFO waits from now until `start`.
    #[inline]
    pub(super) fn on_wait(&mut self, now: Instant, start: Instant) {
        self.delays.add_without_extremes(start.saturating_since(now));
        self.on_scheduled(now, start);
    }

    /// A packet waits from now until `start` in a FIFO; its delay is counted.
    #[inline]
    pub(super) fn on_scheduled(&mut self, now: Instant, start: Instant) {
        if now > self.nonempty_until {
            self.empty += now.saturating_since(self.nonempty_until);
        }
        self.nonempty_until = start;
    }

    /// A FIFO is full from now until `until`.
    pub(super) fn on_full(&mut self, now: Instant, until: Instant) {
        self.full.add(now, until);
    }

    /// The packets of a FIFO were rescheduled: the last one that waits starts at `start`, and the queue is
    /// full until `full_until`.
    pub(super) fn reschedule(&mut self, now: Instant, start: Instant, full_until: Instant) {
        if self.nonempty_until > now {
            self.nonempty_until = start;
        }
        self.full.move_end(now, full_until);
        self.full.add(now, full_until);
    }

    /// Another queue takes over. It is empty now; packets that wait enter it next.
    pub(super) fn on_replace(&mut self, now: Instant) {
        let QueueStatistics { empty, full, .. } = self.statistics(now, 0);
        self.full = Intervals { sum: full, until: now };
        (self.empty, self.nonempty_until, self.observed_at) = (empty, now, now);
        (self.was_nonempty, self.was_full) = (false, false);
        self.replaced_at = Some(now);
    }

    /// A packet leaves a discipline that drops at dequeue.
    pub(super) fn on_dequeue(&mut self, enqueued_at: Instant, now: Instant) {
        let delay = now.saturating_since(enqueued_at);
        if delay > Duration::ZERO && self.replaced_at != Some(enqueued_at) {
            self.delays.add_without_extremes(delay);
        }
    }

    /// Observes a discipline that drops at dequeue after packets have entered or left.
    pub(super) fn observe(&mut self, now: Instant, is_nonempty: bool, is_full: bool) {
        let passed = now.saturating_since(self.observed_at);
        if !self.was_nonempty {
            self.empty += passed;
        }
        if self.was_full {
            self.full.sum += passed;
        }
        (self.observed_at, self.was_nonempty, self.was_full) = (now, is_nonempty, is_full);
        self.nonempty_until = now;
    }

    /// The statistics up to `now`, of `packets` packets that were accepted.
    pub(super) fn statistics(&self, now: Instant, packets: u64) -> QueueStatistics {
        let zeros = packets.saturating_sub(self.delays.count());
        let percentile = |percent| self.delays.percentile_with_zeros(percent, zeros);
        let (mut empty, mut full) = (self.empty, self.full.sum_until(now));
        if !self.was_nonempty {
            // In a FIFO, `nonempty_until` may lie in the future.
            empty += now.saturating_since(self.nonempty_until);
        }
        if self.was_full {
            full += now.saturating_since(self.observed_at);
        }
        QueueStatistics { delays: QUEUE_DELAY_PERCENTILES.map(percentile), empty, full }
    }
}
