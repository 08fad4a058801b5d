//! The application's side of a sender: the send buffer, closing and aborting.

use super::{Cumulative, Recovery, Sender};
use crate::packet::LimitedBy;
use crate::time::Instant;

impl Sender {
    /// Writes `bytes` of application data.
    pub fn write(&mut self, now: Instant, bytes: u64) {
        debug_assert!(!self.closed, "nothing is written after closing");
        if self.una == self.max && self.una > 0 {
            if self.paced {
                self.check_app_limited();
            } else {
                self.restart_after_idle(now);
            }
        }
        self.last_activity = now;
        self.written = self.written.saturating_add(bytes);
        self.end = self.written;
    }

    /// Closes the stream: a FIN follows the written data.
    pub fn close(&mut self) {
        self.closed = true;
        self.end = self.written + 1;
    }

    /// Stops sending: unsent data is discarded, and a FIN follows.
    pub fn stop(&mut self) {
        if !self.closed {
            self.written = self.written.min(self.max.max(1));
            self.close();
        }
    }

    /// Room in the send buffer, for [`Endpoint::try_write`](super::super::Endpoint::try_write):
    /// it holds data until they are acknowledged (SO_SNDBUF), and unsent data up to the low-water
    /// mark (`tcp_stream_memory_free`).
    #[must_use]
    pub fn room(&self) -> u64 {
        if self.closed {
            return 0;
        }
        let free = self.send_buffer.saturating_sub(self.buffered());
        free.min(self.unsent_low_water.saturating_sub(self.unsent()))
    }

    /// Whether an application that waits for room is notified: a third of the buffer is free, and
    /// less than half of the low-water mark is unsent (Linux, `sk_stream_is_writeable` and
    /// `__sk_stream_memory_free`).
    #[must_use]
    pub fn is_writable(&self) -> bool {
        let (room, buffered) = (self.room(), self.buffered());
        let free = self.send_buffer.saturating_sub(buffered);
        room > 0 && free >= buffered / 2 && self.unsent() < self.unsent_low_water.div_ceil(2)
    }

    /// Sets the most unsent data at which the send buffer has room (Linux, `TCP_NOTSENT_LOWAT`).
    pub(in crate::tcp) fn set_unsent_low_water(&mut self, bytes: u64) {
        self.unsent_low_water = bytes;
    }

    /// Bytes written and not acknowledged.
    #[must_use]
    pub fn buffered(&self) -> u64 {
        self.written.saturating_sub(self.una.max(1))
    }

    /// Bytes written and never sent.
    fn unsent(&self) -> u64 {
        self.written.saturating_sub(self.max.max(1))
    }

    /// Aborts: nothing is sent or retransmitted any more.
    #[cold]
    pub(in crate::tcp) fn abort(&mut self, now: Instant) {
        self.set_limit(now, LimitedBy::Application);
        self.max = self.max.max(1);
        self.nxt = self.max;
        self.written = self.written.min(self.max);
        self.closed = false;
        self.end = self.written;
        self.timeout_at = None;
        self.tlp_at = None;
        self.tlp_due = false;
        self.window_probe_due = false;
        self.rack_tlp = false;
        self.paced = false;
        self.recovery = Recovery::Cumulative(Cumulative::new(false, false, false));
    }
}
