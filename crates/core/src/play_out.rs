//! A jitter buffer with a fixed play-out delay.

use crate::time::Duration;

/// Counts the datagrams of one stream that arrive too late for a jitter buffer. The first datagram waits
/// for the length of the buffer; a later one is late if its delay exceeds that of the first by more.
#[derive(Clone, Copy, Debug)]
pub struct PlayOut {
    buffer: Duration,
    /// The one-way delay after which datagrams are played; `None` before the first.
    delay: Option<Duration>,
    /// The sequence number that follows those received.
    next: u64,
    late: u64,
    bursts: u64,
    in_burst: bool,
}

impl PlayOut {
    /// A buffer of this length.
    #[must_use]
    pub const fn new(buffer: Duration) -> Self {
        Self { buffer, delay: None, next: 0, late: 0, bursts: 0, in_burst: false }
    }

    /// Counts a datagram. Returns whether it is late.
    pub fn add(&mut self, delay: Duration) -> bool {
        let is_late = delay > *self.delay.get_or_insert(delay + self.buffer);
        self.late += u64::from(is_late);
        is_late
    }

    /// Counts a datagram with its number in the stream. Datagrams between this and the previous one are
    /// lost; successive datagrams that are lost or late are one burst.
    pub fn add_numbered(&mut self, sequence: u64, delay: Duration) {
        let is_late = self.add(delay);
        let follows_loss = sequence > self.next;
        self.bursts += u64::from((is_late || follows_loss) && !self.in_burst);
        self.in_burst = is_late;
        self.next = sequence + 1;
    }

    /// The one-way delay after which datagrams are played; `None` before the first.
    #[must_use]
    pub const fn delay(&self) -> Option<Duration> {
        self.delay
    }

    /// Datagrams that arrived too late.
    #[must_use]
    pub const fn late(&self) -> u64 {
        self.late
    }

    /// Bursts of lost or late datagrams before the last one received; see [`PlayOut::add_numbered`].
    #[must_use]
    pub const fn bursts(&self) -> u64 {
        self.bursts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The counters after datagrams with these numbers and delays, with a buffer of 60 ms.
    fn after(datagrams: &[(u64, u64)]) -> (u64, u64) {
        let mut play_out = PlayOut::new(ms(60));
        for &(sequence, delay) in datagrams {
            play_out.add_numbered(sequence, ms(delay));
        }
        (play_out.late(), play_out.bursts())
    }

    /// Given a first delay of 270 ms, expect play-out after 330 ms: a datagram after 330 ms is in time.
    #[test]
    fn the_first_datagram_sets_the_play_out_delay() {
        let mut play_out = PlayOut::new(ms(60));
        assert_eq!((play_out.delay(), play_out.late()), (None, 0));
        let late = [270, 330, 331, 200].map(|delay| play_out.add(ms(delay)));
        assert_eq!(late, [false, false, true, false]);
        assert_eq!((play_out.delay(), play_out.late()), (Some(ms(330)), 1));
    }

    #[test]
    fn losses_in_a_row_are_one_burst() {
        assert_eq!(after(&[(0, 10), (1, 10)]), (0, 0));
        assert_eq!(after(&[(0, 10), (4, 10), (5, 10), (7, 10)]), (0, 2));
        // The first datagrams of a stream can be lost, too.
        assert_eq!(after(&[(3, 10), (4, 10)]), (0, 1));
    }

    /// Given lost and late datagrams one after the other, expect one burst; a datagram in time ends it.
    #[test]
    fn late_datagrams_are_in_bursts_with_lost_ones() {
        assert_eq!(after(&[(0, 10), (1, 71), (2, 80), (3, 10)]), (2, 1));
        assert_eq!(after(&[(0, 10), (1, 71), (4, 80), (5, 10), (6, 99)]), (3, 2));
        assert_eq!(after(&[(0, 10), (2, 80), (4, 10)]), (1, 1));
        assert_eq!(after(&[(0, 10), (2, 10), (4, 10)]), (0, 2));
    }
}
