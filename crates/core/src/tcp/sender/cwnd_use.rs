//! How far cwnd is used: it grows only while it limits the sender (Linux, `tcp_cwnd_validate` and
//! `tcp_is_cwnd_limited`; the idea is that of RFC 7661).
//!
//! What was found when a flight was sent holds until the flight is acknowledged, because ACKs grow cwnd an
//! RTT later. By then the application may have nothing more to send.

use super::{Recovery, Sender};

impl Sender {
    /// Whether cwnd limits the sender. In slow start cwnd may reach twice the data that were outstanding.
    #[inline]
    pub(super) fn is_cwnd_limited(&self) -> bool {
        self.cwnd_limited || self.may_double()
    }

    fn may_double(&self) -> bool {
        let outstanding = u64::from(self.max_outstanding);
        self.control.in_slow_start() && self.control.cwnd() < 2 * outstanding
    }

    /// Transmission stops because cwnd is full.
    #[inline]
    pub(super) fn on_cwnd_full(&mut self) {
        self.sent_new = false;
        self.cwnd_limited = true;
        // `max_outstanding` is set before it is read again: when this flight ends.
        self.flight_end = self.max;
    }

    /// Transmission stops for another reason. The last segment may have filled cwnd.
    pub(super) fn on_transmission_end(&mut self) {
        let sent_new = std::mem::take(&mut self.sent_new);
        if !sent_new && self.written <= self.nxt {
            return;
        }
        if self.cwnd_is_full() {
            self.on_cwnd_full();
            return;
        }
        let outstanding = u32::try_from(self.max - self.una).unwrap_or(u32::MAX);
        let is_over = self.una >= self.flight_end;
        let is_fuller = !self.cwnd_limited && outstanding > self.max_outstanding;
        if sent_new && (is_over || is_fuller) {
            self.cwnd_limited = false;
            self.max_outstanding = outstanding;
            self.flight_end = self.max;
        }
    }

    /// Whether another full segment exceeds cwnd. Linux counts segments, so that a short last one fills
    /// cwnd like a full one.
    fn cwnd_is_full(&self) -> bool {
        let segment = self.segment();
        let (flight, window) = match &self.recovery {
            Recovery::Cumulative(cumulative) => {
                (self.nxt - self.una, cumulative.window(&self.control, segment))
            }
            Recovery::Selective(selective) => (selective.pipe(), self.control.cwnd()),
        };
        flight > 0 && flight + segment > window
    }
}
