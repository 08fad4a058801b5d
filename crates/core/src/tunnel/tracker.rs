//! What the encoder concludes from the messages of its decoder.

use super::feedback::{Feedback, MissingRange};
use crate::coding::SymbolId;
use crate::time::{Duration, Instant};

/// What happened between two messages: the input of the redundancy controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossReport {
    /// Source symbols that the decoder has learned of.
    pub sent: u32,
    /// Those of them that it did not receive. Symbols that arrive late make up for later losses.
    pub lost: u32,
    /// Bursts of losses.
    pub bursts: u32,
    /// Symbols that were never decoded.
    pub given_up: u32,
    /// The equations that the decoder lacks.
    pub deficit: u32,
    /// The highest symbol that the decoder knows.
    pub highest: SymbolId,
    /// The first symbol that is not resolved.
    pub next: SymbolId,
    /// The time since the message before, or since the start of the session.
    pub elapsed: Duration,
    /// The growth of the one-way delay, in microseconds per second of the time between the messages.
    pub delay_trend_us_per_s: i64,
}

/// Why a message is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedbackRejected {
    /// It is not newer than the last one.
    Stale,
    /// It knows a symbol that was never sent, or fewer symbols than the last one.
    Impossible,
}

/// The decoder as the encoder knows it. Every message replaces the one before, so a lost message
/// only delays what it tells. Without messages nothing is known: windows have their full length, and
/// all repair is needed.
#[derive(Clone, Debug)]
pub struct FeedbackTracker {
    last: Option<Feedback>,
    /// When the last message came, or the session began.
    last_at: Instant,
    /// The highest symbol of the last message, or the one before the first of the session.
    highest: SymbolId,
    next: SymbolId,
    /// Symbols that arrived after they had been counted as lost: they make up for later losses.
    late: u32,
}

impl FeedbackTracker {
    /// No message has come. `first` is the first symbol of the session, which begins now.
    #[must_use]
    pub fn new(now: Instant, first: SymbolId) -> Self {
        Self { last: None, last_at: now, highest: first.minus(1), next: first, late: 0 }
    }

    /// Takes a message. `sent` is the last symbol sent.
    ///
    /// # Errors
    /// If it is out of order or contradicts what was sent; it changes nothing then.
    pub fn on_feedback(
        &mut self,
        now: Instant,
        feedback: Feedback,
        sent: SymbolId,
    ) -> Result<LossReport, FeedbackRejected> {
        let last = self.last.as_ref();
        if last.is_some_and(|last| feedback.serial.wrapping_sub(last.serial).cast_signed() <= 0) {
            return Err(FeedbackRejected::Stale);
        }
        let learned = u32::try_from(feedback.highest.ahead_of(self.highest));
        let (Ok(learned), true, true) =
            (learned, feedback.next.ahead_of(self.next) >= 0, feedback.highest.ahead_of(sent) <= 0)
        else {
            return Err(FeedbackRejected::Impossible);
        };
        let before = |count: fn(&Feedback) -> u32| last.map_or(0, count);
        let received = feedback.received.wrapping_sub(before(|last| last.received));
        let bursts = feedback.bursts.wrapping_sub(before(|last| last.bursts));
        let given_up = feedback.given_up.wrapping_sub(before(|last| last.given_up));
        let late = self.late.saturating_add(received);
        let elapsed = now.saturating_since(self.last_at);
        let delay_trend_us_per_s = last.map_or(0, |last| {
            let growth = i64::from(feedback.delay_us) - i64::from(last.delay_us);
            trend(growth, elapsed)
        });
        self.late = late.saturating_sub(learned);
        (self.last_at, self.highest, self.next) = (now, feedback.highest, feedback.next);
        let deficit = feedback.deficit.into();
        self.last = Some(feedback);
        Ok(LossReport {
            sent: learned,
            lost: learned.saturating_sub(late),
            bursts,
            given_up,
            deficit,
            highest: self.highest,
            next: self.next,
            elapsed,
            delay_trend_us_per_s,
        })
    }

    /// The symbols that repair made after `sent` covers: at most `length_max`, up to `sent`, from the
    /// first that is not resolved. `None` if all are resolved.
    #[must_use]
    pub fn window(&self, sent: SymbolId, length_max: u32) -> Option<(SymbolId, SymbolId)> {
        let unresolved = u32::try_from(sent.ahead_of(self.next)).ok()?.saturating_add(1);
        let length = unresolved.min(length_max);
        (length > 0).then(|| (sent.minus(length - 1), sent))
    }

    /// The missing symbols of the last message from `first` on, as far as it lists them.
    #[must_use]
    pub fn missing_from(&self, first: SymbolId) -> u32 {
        let Some(feedback) = &self.last else { return 0 };
        let from = u32::try_from(first.ahead_of(feedback.next)).unwrap_or(0);
        let of = |range: &MissingRange| range.end().saturating_sub(from.max(range.offset.into()));
        feedback.missing.iter().map(of).sum()
    }

    /// Whether repair that covers the symbols from `first` to `last` may still help.
    #[must_use]
    pub fn is_needed(&self, first: SymbolId, last: SymbolId) -> bool {
        self.last.as_ref().is_none_or(|feedback| feedback.is_needed(first, last))
    }
}

fn trend(growth_us: i64, elapsed: Duration) -> i64 {
    let nanos = i128::from(elapsed.as_nanos().max(1));
    let per_second = i128::from(growth_us) * 1_000_000_000 / nanos;
    i64::try_from(per_second).unwrap_or(if growth_us > 0 { i64::MAX } else { i64::MIN })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::arrivals::{Arrivals, Decoded};
    use proptest::prelude::*;

    const FIRST: SymbolId = SymbolId(u32::MAX - 99);

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// A message after symbols up to `FIRST + highest`, of which `received` came; all are resolved.
    fn feedback(serial: u32, highest: u32, received: u32) -> Feedback {
        let highest = FIRST.plus(highest);
        Feedback {
            serial,
            highest,
            next: highest.plus(1),
            missing: Vec::new(),
            is_truncated: false,
            deficit: 0,
            received,
            bursts: 0,
            given_up: 0,
            delay_us: 0,
        }
    }

    /// Given 200 symbols of which 10 are lost, in messages of which the second is lost, expect all
    /// losses in the third.
    #[test]
    fn a_lost_message_loses_no_count() {
        let mut tracker = FeedbackTracker::new(ms(0), FIRST);
        let sent = FIRST.plus(199);
        let report = tracker.on_feedback(ms(100), feedback(1, 49, 47), sent).expect("in order");
        assert_eq!((report.sent, report.lost), (50, 3));
        let third = Feedback { bursts: 4, delay_us: 600, ..feedback(3, 199, 190) };
        let report = tracker.on_feedback(ms(400), third, sent).expect("in order");
        assert_eq!((report.sent, report.lost, report.bursts), (150, 7, 4));
        assert_eq!(report.elapsed, Duration::from_millis(300));
        assert_eq!(report.delay_trend_us_per_s, 2_000, "600 us in 300 ms");
        let overtaken = tracker.on_feedback(ms(401), feedback(2, 99, 95), sent);
        assert_eq!(overtaken, Err(FeedbackRejected::Stale));
    }

    #[test]
    fn impossible_messages_change_nothing() {
        let mut tracker = FeedbackTracker::new(ms(0), FIRST);
        let sent = FIRST.plus(99);
        assert_eq!(
            tracker.on_feedback(ms(1), feedback(1, 100, 9), sent),
            Err(FeedbackRejected::Impossible),
            "symbol 100 was not sent"
        );
        tracker.on_feedback(ms(2), feedback(2, 50, 51), sent).expect("possible");
        let receding = tracker.on_feedback(ms(3), feedback(3, 40, 51), sent);
        assert_eq!(receding, Err(FeedbackRejected::Impossible));
        assert_eq!(tracker.window(sent, 1_000), Some((FIRST.plus(51), sent)));
    }

    /// Given 5 of 10 symbols reported lost that arrive after all, expect the next 5 losses to be hidden
    /// by them: the total is right.
    #[test]
    fn late_symbols_make_up_for_later_losses() {
        let mut tracker = FeedbackTracker::new(ms(0), FIRST);
        let mut lost = |serial, highest, received| {
            let message = feedback(serial, highest, received);
            tracker.on_feedback(ms(1), message, FIRST.plus(99)).expect("in order").lost
        };
        assert_eq!(
            [lost(1, 9, 5), lost(2, 19, 20), lost(3, 29, 24), lost(4, 39, 33)],
            [5, 0, 1, 1]
        );
    }

    #[test]
    fn windows_shrink_to_what_is_not_resolved() {
        let mut tracker = FeedbackTracker::new(ms(0), FIRST);
        let sent = FIRST.plus(99);
        assert_eq!(tracker.window(sent, 64), Some((FIRST.plus(36), sent)), "no message yet");
        assert!(tracker.is_needed(FIRST, FIRST));
        tracker.on_feedback(ms(1), feedback(1, 89, 90), sent).expect("in order");
        assert_eq!(tracker.window(sent, 64), Some((FIRST.plus(90), sent)));
        assert!(!tracker.is_needed(FIRST.plus(30), FIRST.plus(89)));
        tracker.on_feedback(ms(2), feedback(2, 99, 100), sent).expect("in order");
        assert_eq!(tracker.window(sent, 64), None);
    }

    proptest! {
        /// Given any symbols lost on the way and any messages lost on the way back, expect the reports
        /// to add up to what was lost up to the last message.
        #[test]
        fn reports_add_up(
            symbols in prop::collection::vec(any::<(bool, bool)>(), 1..300), start: u32,
        ) {
            let first = SymbolId(start);
            let mut arrivals = Arrivals::new(first, Duration::ZERO);
            let mut tracker = FeedbackTracker::new(ms(0), first);
            let (mut sums, mut lost, mut at_last) = ((0, 0, 0), 0, (0, 0));
            for (number, &(is_received, is_reported)) in (0u32..).zip(&symbols) {
                let (id, now) = (first.plus(number), ms(number.into()));
                lost += u32::from(!is_received);
                if !is_received {
                    continue;
                }
                arrivals.on_source(now, id, 0);
                let decoded = Decoded { next: id.plus(1), deficit: 0, given_up: lost };
                let message = arrivals.report(now, decoded, |_| false).expect("it is due");
                if is_reported {
                    let report = tracker.on_feedback(now, message, id).expect("in order");
                    sums.0 += report.sent;
                    sums.1 += report.lost;
                    sums.2 += report.given_up;
                    at_last = (number + 1, lost);
                }
            }
            prop_assert_eq!(sums, (at_last.0, at_last.1, at_last.1));
        }
    }
}
