//! Feedback of a decoder: no bytes make the parser panic, what it reads is written back unchanged, and
//! the encoder's state stays consistent with any series of messages.

use bentpipe_core::coding::SymbolId;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::tunnel::{Feedback, FeedbackTracker, RANGES_MAX, SPAN_MAX};

use crate::ITERATIONS;
use crate::decoder::Decoder;

const MESSAGES_MAX: usize = 32;

#[test]
fn any_messages() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        if let Ok(feedback) = Feedback::parse(bytes) {
            check(&feedback, bytes);
        }
        track(&mut Decoder::new(bytes));
    });
}

fn check(feedback: &Feedback, bytes: &[u8]) {
    let mut written = Vec::new();
    feedback.encode(&mut written);
    assert_eq!(written, bytes);
    assert!(feedback.missing.len() <= RANGES_MAX);
    let span = feedback.highest.plus(1).0.wrapping_sub(feedback.next.0);
    assert!(span <= SPAN_MAX);
    for range in &feedback.missing {
        let (first, last) = (feedback.next.plus(range.offset.into()), range.end() - 1);
        assert!(feedback.is_needed(first, feedback.next.plus(last)));
    }
    assert!(!feedback.is_needed(feedback.next.minus(2), feedback.next.minus(1)));
}

/// Messages with near symbols, so that many are accepted.
fn track(decoder: &mut Decoder<'_>) {
    let first = SymbolId(decoder.u32());
    let mut tracker = FeedbackTracker::new(Instant::START, first);
    let (mut sent, mut now) = (first, Instant::START);
    let (mut learned, mut lost) = (0u64, 0u64);
    for _ in 0..MESSAGES_MAX {
        if decoder.is_empty() {
            break;
        }
        sent = sent.plus(decoder.u8().into());
        now += Duration::from_millis(decoder.u8().into());
        let highest = first.plus(decoder.below(1 << 12) as u32);
        let next = highest.plus(1).minus(decoder.u8().into());
        let is_missing = |id: SymbolId| id == next || id.0.is_multiple_of(3);
        let (missing, is_truncated) = Feedback::missing_ranges(next, highest, is_missing);
        let feedback = Feedback {
            serial: decoder.u8().into(),
            highest,
            next,
            missing,
            is_truncated,
            deficit: decoder.u8().into(),
            received: decoder.u16().into(),
            bursts: decoder.u8().into(),
            given_up: decoder.u8().into(),
            delay_us: decoder.u32().cast_signed(),
        };
        let mut bytes = Vec::new();
        feedback.encode(&mut bytes);
        assert_eq!(Feedback::parse(&bytes).as_ref(), Ok(&feedback));
        let Ok(report) = tracker.on_feedback(now, feedback, sent) else { continue };
        learned += u64::from(report.sent);
        lost += u64::from(report.lost);
        assert!(lost <= learned);
        if let Some((first, last)) = tracker.window(sent, 64) {
            assert!(last == sent && (0..64).contains(&last.ahead_of(first)));
            assert!(first.ahead_of(next) >= 0);
        }
    }
}
