//! What a decoder counts before decoding, and when it reports.

use super::feedback::Feedback;
use crate::coding::SymbolId;
use crate::time::{Duration, Instant};

/// What only the decoder knows of its symbols, for a message.
#[derive(Clone, Copy, Debug)]
pub struct Decoded {
    /// The first symbol that is neither decoded nor given up.
    pub next: SymbolId,
    /// The equations that it lacks.
    pub deficit: u32,
    /// Symbols that it gave up, in all, modulo 2^32.
    pub given_up: u32,
}

/// Counts source symbols as they arrive. The caller removes duplicates: the replay window of the
/// encryption does, and so does the decoder.
#[derive(Clone, Debug)]
pub struct Arrivals {
    interval: Duration,
    /// The highest source symbol received, and the highest known.
    highest_received: SymbolId,
    highest: SymbolId,
    received: u32,
    bursts: u32,
    delay: MeanDelay,
    serial: u32,
    /// When the next message is due; `None` if nothing has arrived since the last one.
    due: Option<Instant>,
    reported_at: Option<Instant>,
}

/// The mean one-way delay, relative to that of the first symbol.
#[derive(Clone, Copy, Debug, Default)]
struct MeanDelay {
    reference: Option<u32>,
    sum_us: i64,
    count: i64,
    last_us: i32,
}

impl Arrivals {
    /// Nothing has arrived. `first` is the first symbol of the session, `interval` the shortest time
    /// between two messages.
    #[must_use]
    pub fn new(first: SymbolId, interval: Duration) -> Self {
        Self {
            interval,
            highest_received: first.minus(1),
            highest: first.minus(1),
            received: 0,
            bursts: 0,
            delay: MeanDelay::default(),
            serial: 0,
            due: None,
            reported_at: None,
        }
    }

    /// A source symbol arrives. `transit_us` is the time of its arrival minus that at which it was sent,
    /// in microseconds modulo 2^32; the two clocks need not agree.
    pub fn on_source(&mut self, now: Instant, id: SymbolId, transit_us: u32) {
        self.received = self.received.wrapping_add(1);
        let ahead = id.ahead_of(self.highest_received);
        if ahead > 0 {
            // A late symbol leaves the burst counted: its loss is taken back by `received`.
            self.bursts = self.bursts.wrapping_add(u32::from(ahead > 1));
            self.highest_received = id;
        }
        self.delay.add(transit_us);
        self.on_symbol(now, id);
    }

    /// The highest symbol known: received, or covered by received repair.
    #[must_use]
    pub fn highest(&self) -> SymbolId {
        self.highest
    }

    /// A repair symbol arrives that covers symbols up to `last`.
    pub fn on_repair(&mut self, now: Instant, last: SymbolId) {
        self.on_symbol(now, last);
    }

    fn on_symbol(&mut self, now: Instant, id: SymbolId) {
        if id.ahead_of(self.highest) > 0 {
            self.highest = id;
        }
        let due = self.reported_at.map_or(now, |at| (at + self.interval).max(now));
        self.due.get_or_insert(due);
    }

    /// When the next message is due: an interval after the last one, or at once after a pause. `None`
    /// until something arrives.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.due
    }

    /// The message, if it is due.
    pub fn report(
        &mut self,
        now: Instant,
        decoded: Decoded,
        is_missing: impl FnMut(SymbolId) -> bool,
    ) -> Option<Feedback> {
        self.due.take_if(|due| *due <= now)?;
        self.reported_at = Some(now);
        self.serial = self.serial.wrapping_add(1);
        let (missing, is_truncated) =
            Feedback::missing_ranges(decoded.next, self.highest, is_missing);
        Some(Feedback {
            serial: self.serial,
            highest: self.highest,
            next: decoded.next,
            missing,
            is_truncated,
            deficit: u16::try_from(decoded.deficit).unwrap_or(u16::MAX),
            received: self.received,
            bursts: self.bursts,
            given_up: decoded.given_up,
            delay_us: self.delay.take(),
        })
    }
}

impl MeanDelay {
    fn add(&mut self, transit_us: u32) {
        let reference = *self.reference.get_or_insert(transit_us);
        self.sum_us += i64::from(transit_us.wrapping_sub(reference).cast_signed());
        self.count += 1;
    }

    /// The mean since the last call; the mean before if nothing was added.
    fn take(&mut self) -> i32 {
        if let Some(mean) = self.sum_us.checked_div(self.count) {
            self.last_us = i32::try_from(mean).expect("a mean of numbers of 32 bits");
        }
        (self.sum_us, self.count) = (0, 0);
        self.last_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn arrivals() -> Arrivals {
        Arrivals::new(SymbolId(u32::MAX), Duration::from_millis(100))
    }

    const NOTHING_MISSING: Decoded = Decoded { next: SymbolId(6), deficit: 0, given_up: 0 };

    /// Given symbols from -1 on, of which -1, 2 and 3 are lost and 3 comes late, expect 5 received and
    /// 2 bursts.
    #[test]
    fn losses_and_bursts_are_counted_across_the_wrap() {
        let mut arrivals = arrivals();
        [0, 1, 4, 5, 3].iter().for_each(|&id| arrivals.on_source(ms(0), SymbolId(id), 0));
        let decoded = Decoded { next: SymbolId(2), deficit: 1, given_up: 1 };
        let feedback = arrivals.report(ms(0), decoded, |id| id == SymbolId(2)).expect("it is due");
        assert_eq!((feedback.received, feedback.bursts, feedback.missing.len()), (5, 2, 1));
        assert_eq!((feedback.highest, feedback.serial), (SymbolId(5), 1));
    }

    /// Given a repair that covers symbols up to 8 while 6 to 8 were lost, expect them to be known.
    #[test]
    fn repair_tells_of_symbols_that_were_lost_at_the_end() {
        let mut arrivals = arrivals();
        arrivals.on_source(ms(0), SymbolId(5), 0);
        arrivals.on_repair(ms(0), SymbolId(8));
        let feedback = arrivals.report(ms(0), NOTHING_MISSING, |_| true).expect("it is due");
        assert_eq!((feedback.highest, feedback.missing[0].length), (SymbolId(8), 3));
    }

    /// Given arrivals at 0, 30 and 450 ms and an interval of 100 ms, expect messages at 0, 100 and
    /// 450 ms.
    #[test]
    fn messages_are_an_interval_apart() {
        let mut arrivals = arrivals();
        assert_eq!(arrivals.next_wake(), None);
        arrivals.on_source(ms(0), SymbolId(0), 0);
        assert_eq!(arrivals.next_wake(), Some(ms(0)));
        assert!(arrivals.report(ms(0), NOTHING_MISSING, |_| false).is_some());
        arrivals.on_source(ms(30), SymbolId(1), 0);
        arrivals.on_source(ms(40), SymbolId(2), 0);
        assert!(arrivals.report(ms(99), NOTHING_MISSING, |_| false).is_none());
        assert_eq!(arrivals.next_wake(), Some(ms(100)));
        assert!(arrivals.report(ms(100), NOTHING_MISSING, |_| false).is_some());
        assert_eq!(arrivals.next_wake(), None);
        arrivals.on_source(ms(450), SymbolId(3), 0);
        assert_eq!(arrivals.next_wake(), Some(ms(450)));
    }

    /// Given transits of -2, 0 and 4 us modulo 2^32, expect a mean of (0 + 2 + 6) / 3 above the first,
    /// rounded towards zero, and the same while nothing arrives but repair.
    #[test]
    fn the_delay_is_relative_to_the_first() {
        let mut arrivals = arrivals();
        for transit in [0u32.wrapping_sub(2), 0, 4] {
            arrivals.on_source(ms(0), SymbolId(0), transit);
        }
        let mut delay = |at| {
            arrivals.on_repair(ms(at), SymbolId(0));
            arrivals.report(ms(at), NOTHING_MISSING, |_| false).expect("it is due").delay_us
        };
        assert_eq!([0, 100].map(&mut delay), [2, 2]);
    }
}
