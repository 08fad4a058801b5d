//! HyStart++ (RFC 9406): leaves slow start when the RTT increases, before a queue overflows.

use super::Acked;
use crate::packet::seq::Position;
use crate::time::Duration;

/// Section 4.3: MIN_RTT_THRESH, MAX_RTT_THRESH and MIN_RTT_DIVISOR.
const RTT_RISE_MIN: Duration = Duration::from_millis(4);
const RTT_RISE_MAX: Duration = Duration::from_millis(16);
const RTT_RISE_DIVISOR: u64 = 8;
/// Section 4.3: N_RTT_SAMPLE.
const SAMPLES: u32 = 8;
/// Section 4.3: CSS_GROWTH_DIVISOR and CSS_ROUNDS.
const CONSERVATIVE_GROWTH_DIVISOR: u64 = 4;
const CONSERVATIVE_ROUNDS: u32 = 5;

/// The effect of an ACK on slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlowStartAction {
    pub(super) growth_divisor: u64,
    pub(super) leave_slow_start: bool,
}

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct HyStart {
    /// The round ends when data beyond this position is acknowledged.
    round_end: Position,
    round_min: Option<Duration>,
    last_round_min: Option<Duration>,
    samples: u32,
    conservative: Option<Conservative>,
}

/// Conservative slow start, which checks whether the increase persists.
#[derive(Clone, Copy, Debug)]
struct Conservative {
    baseline: Duration,
    rounds: u32,
}

impl HyStart {
    pub(super) fn acked(&mut self, acked: &Acked) -> SlowStartAction {
        // Section 4.2: data sent before the round gives no samples for it, including its last ACK.
        if acked.una > self.round_end {
            self.begin_round(acked.nxt);
        }
        if let Some(rtt) = acked.rtt {
            self.round_min = Some(self.round_min.map_or(rtt, |min| min.min(rtt)));
            self.samples += 1;
        }
        self.detect_increase();
        let divisor = if self.conservative.is_some() { CONSERVATIVE_GROWTH_DIVISOR } else { 1 };
        let leave = self.conservative.is_some_and(|phase| phase.rounds >= CONSERVATIVE_ROUNDS);
        SlowStartAction { growth_divisor: divisor, leave_slow_start: leave }
    }

    fn begin_round(&mut self, end: Position) {
        self.round_end = end;
        self.last_round_min = self.round_min.or(self.last_round_min);
        self.round_min = None;
        self.samples = 0;
        if let Some(phase) = &mut self.conservative {
            phase.rounds += 1;
        }
    }

    fn detect_increase(&mut self) {
        let (Some(current), Some(last)) = (self.round_min, self.last_round_min) else { return };
        if self.samples < SAMPLES {
            return;
        }
        match self.conservative {
            None => {
                let share = Duration::from_nanos(last.as_nanos() / RTT_RISE_DIVISOR);
                if current >= last + share.clamp(RTT_RISE_MIN, RTT_RISE_MAX) {
                    self.conservative = Some(Conservative { baseline: current, rounds: 0 });
                }
            }
            // The increase was temporary: back to slow start.
            Some(phase) if current < phase.baseline => self.conservative = None,
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    /// One round of `acks` ACKs with the same RTT. Returns the last action.
    fn round(hystart: &mut HyStart, number: u64, rtt_ms: u64, acks: u64) -> SlowStartAction {
        let mut action = None;
        for ack in 0..acks {
            let rtt = Some(Duration::from_millis(rtt_ms));
            let (una, nxt) = (number * 100 + ack + 1, number * 100 + 100);
            let now = Instant::START;
            action = Some(hystart.acked(&Acked { now, bytes: 1, rtt, srtt: rtt, una, nxt }));
        }
        action.expect("at least one ACK")
    }

    const SLOW_START: SlowStartAction =
        SlowStartAction { growth_divisor: 1, leave_slow_start: false };
    const CONSERVATIVE: SlowStartAction =
        SlowStartAction { growth_divisor: 4, leave_slow_start: false };

    #[test]
    fn a_persistent_increase_leaves_slow_start_after_five_rounds() {
        let mut hystart = HyStart::default();
        assert_eq!(round(&mut hystart, 1, 600, 10), SLOW_START);
        assert_eq!(round(&mut hystart, 2, 615, 10), SLOW_START, "15 ms are within 16");
        assert_eq!(round(&mut hystart, 3, 631, 7), SLOW_START, "7 samples are too few");
        assert_eq!(round(&mut hystart, 4, 647, 8), CONSERVATIVE);
        for number in 5..9 {
            assert_eq!(round(&mut hystart, number, 660, 8), CONSERVATIVE);
        }
        assert!(round(&mut hystart, 9, 660, 1).leave_slow_start);
    }

    #[test]
    fn a_temporary_increase_returns_to_slow_start() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 1, 600, 8);
        assert_eq!(round(&mut hystart, 2, 620, 8), CONSERVATIVE);
        assert_eq!(round(&mut hystart, 3, 610, 8), SLOW_START);
    }
}
