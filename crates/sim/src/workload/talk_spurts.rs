//! Talk spurts: speech with silence suppression.

use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};

use super::Draws;
use crate::plan::{self, Draw};

/// Alternating talk spurts and pauses with exponential durations (ITU-T P.59). The start of a call is at
/// a random time of a conversation: it is in a talk spurt with the share that these have of all time.
#[derive(Clone, Debug)]
pub struct TalkSpurts {
    talk_ns: Draws,
    pause_ns: Draws,
    /// The end of the present or last talk spurt.
    until: Instant,
}

impl TalkSpurts {
    /// Talk spurts of these mean durations from `start` on; `stream` gives a random stream by name.
    pub fn new(start: Instant, means: plan::TalkSpurts, stream: impl Fn(&str) -> Rng) -> Self {
        let plan::TalkSpurts { talk_ns, pause_ns } = means;
        let draws = |mean, name| Draws::new(Draw::Exponential { mean }, stream(name));
        let (talk, pause) = (draws(talk_ns, "talk"), draws(pause_ns, "pause"));
        let mut talk_spurts = Self { talk_ns: talk, pause_ns: pause, until: start };
        if stream("talks").below(talk_ns + pause_ns) < talk_ns {
            talk_spurts.until = start + Duration::from_nanos(talk_spurts.talk_ns.draw());
        }
        talk_spurts
    }

    /// `at` if it is in a talk spurt, otherwise the beginning of the next one. Call in order of time.
    pub fn talking_from(&mut self, at: Instant) -> Instant {
        let mut at = at;
        while at >= self.until {
            let next = self.until + Duration::from_nanos(self.pause_ns.draw());
            // A spurt contains at least its beginning.
            self.until = next + Duration::from_nanos(self.talk_ns.draw().max(1));
            at = at.max(next);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEANS: plan::TalkSpurts =
        plan::TalkSpurts { talk_ns: 1_004_000_000, pause_ns: 1_587_000_000 };

    fn spurts(seed: u64) -> TalkSpurts {
        TalkSpurts::new(Instant::START, MEANS, |name| Rng::stream(seed, name))
    }

    /// Given 20,000 s in steps of 20 ms, expect 38.75 % of them in talk spurts: 1.004 of 2.591 s. Some
    /// 7,700 cycles, each with a relative deviation near 1, give a standard error below 0.4 %.
    #[test]
    fn speech_is_active_as_in_p_59() {
        let mut spurts = spurts(1);
        let (mut at, mut sent) = (spurts.talking_from(Instant::START), 0u32);
        while at < Instant::from_millis(20_000_000) {
            sent += 1;
            at = spurts.talking_from(at + Duration::from_millis(20));
        }
        let active = f64::from(sent) / 1_000_000.0;
        // A packet at the beginning of each spurt adds half an interval: 10 ms of 2.591 s.
        assert!((active - 0.3875 - 0.0039).abs() < 0.016, "{active}");
    }

    /// Given 2,000 calls, expect 38.75 % of them in a talk spurt at the start, within four standard
    /// errors (1.09 % each).
    #[test]
    fn calls_start_at_a_random_time_of_the_conversation() {
        let talking = |seed: &u64| spurts(*seed).talking_from(Instant::START) == Instant::START;
        let share = (0..2_000).filter(talking).count() as f64 / 2_000.0;
        assert!((share - 0.3875).abs() < 0.044, "{share}");
    }
}
