//! What limits a sender, as a partition of its time: at each moment it has exactly one limit. Linux
//! measures some of the same times (`tcp_chrono_start`: busy, `rwnd_limited`, `sndbuf_limited`).
//!
//! The limit is found when transmission stops, and holds until the next segment can be sent. A change
//! of the limit ends the time of the previous one, so no time is counted twice or not at all.

use super::{Recovery, Sender};
use crate::packet::LimitedBy;
use crate::tcp::congestion::LossState;
use crate::time::{Duration, Instant};

/// The time for which each limit applied.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct LimitTimes {
    /// When the current limit began.
    since: Instant,
    times: [Duration; LimitedBy::OF_SENDER],
}

impl Default for LimitTimes {
    fn default() -> Self {
        Self { since: Instant::START, times: Default::default() }
    }
}

impl Sender {
    /// What has stopped transmission since it was last possible.
    #[must_use]
    pub fn limited_by(&self) -> LimitedBy {
        self.limited_by
    }

    /// The time for which each limit applied from the first SYN to `now`, in the order of
    /// [`LimitedBy::ALL`].
    #[must_use]
    pub fn limit_times(&self, now: Instant) -> [Duration; LimitedBy::OF_SENDER] {
        let LimitTimes { since, mut times } = self.limit_times;
        if self.max > 0 {
            times[self.limited_by as usize] += now.saturating_since(since);
        }
        times
    }

    /// The first SYN is sent.
    pub(super) fn start_limit_times(&mut self, now: Instant) {
        self.limit_times.since = now;
    }

    /// Sets the limit after transmission has stopped.
    #[inline]
    pub(super) fn set_limit(&mut self, now: Instant, limit: LimitedBy) {
        if limit != self.limited_by {
            self.change_limit(now, limit);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_limit(&mut self, now: Instant, limit: LimitedBy) {
        let LimitTimes { since, times } = &mut self.limit_times;
        times[self.limited_by as usize] += now.saturating_since(*since);
        *since = now;
        self.limited_by = limit;
    }

    /// Updates the limit if nothing is left to send, because then transmission is not tried. Other
    /// limits than recovery end with a transmission.
    #[cold]
    pub(super) fn update_idle_limit(&mut self, now: Instant) {
        if self.is_idle() {
            self.set_limit(now, LimitedBy::Application);
        }
    }

    #[inline]
    fn is_recovering(&self) -> bool {
        if let Recovery::Selective(selective) = &self.recovery
            && selective.fast_path_ok()
        {
            return false;
        }
        let state = match &self.recovery {
            Recovery::Cumulative(cumulative) => cumulative.loss_state(self.una),
            Recovery::Selective(selective) => selective.loss_state(),
        };
        state != LossState::Open
    }

    #[inline]
    fn is_starting(&self) -> bool {
        if self.paced { self.control.is_starting() } else { self.control.in_slow_start() }
    }

    /// The limit if cwnd or the pacer stops transmission.
    #[inline]
    pub(super) fn cwnd_limit(&self) -> LimitedBy {
        if self.is_recovering() {
            LimitedBy::Recovery
        } else if self.is_starting() {
            LimitedBy::SlowStart
        } else {
            LimitedBy::CongestionAvoidance
        }
    }

    /// The limit before the handshake is complete.
    pub(super) fn handshake_limit(&self) -> LimitedBy {
        if self.written > 1 { LimitedBy::Handshake } else { LimitedBy::Application }
    }

    /// The limit if neither the application nor the windows allow new data. Recovery comes first: the
    /// end of a transfer waits for its retransmissions.
    pub(super) fn window_limit(&self) -> LimitedBy {
        if self.is_recovering() {
            LimitedBy::Recovery
        } else if self.written <= self.nxt {
            LimitedBy::Application
        } else if self.edge <= self.una.saturating_add(self.send_buffer) {
            LimitedBy::ReceiveWindow
        } else {
            LimitedBy::SendBuffer
        }
    }
}
