//! Reno's congestion avoidance (RFC 5681): one segment per round trip, half the window on
//! congestion.

use super::{Acked, Avoidance, Window};
use crate::tcp::config::{AvoidanceCounting, StackVariant};

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Reno {
    counting: AvoidanceCounting,
    stack: StackVariant,
    /// Bytes acknowledged since cwnd last grew (RFC 3465, 2.1).
    acked: u64,
}

impl Reno {
    pub(super) fn new(counting: AvoidanceCounting, stack: StackVariant) -> Self {
        Self { counting, stack, acked: 0 }
    }
}

impl Avoidance for Reno {
    fn grow(&mut self, window: &mut Window, acked: &Acked) {
        match self.counting {
            AvoidanceCounting::Acks => {
                // RFC 5681, equation 3; at least one byte.
                window.cwnd += (window.segment * window.segment / window.cwnd).max(1);
            }
            AvoidanceCounting::Bytes => {
                self.acked += acked.bytes;
                if self.acked >= window.cwnd {
                    self.acked -= window.cwnd;
                    window.cwnd += window.segment;
                }
            }
        }
    }

    fn reduced(&mut self, window: &Window, flight: u64) -> u64 {
        self.acked = 0;
        match self.stack {
            // RFC 5681, equation 4: half of the flight size, which cwnd bounds.
            StackVariant::Rfc => flight.min(window.cwnd) / 2,
            // `tcp_reno_ssthresh`, in whole segments.
            StackVariant::Linux => window.cwnd / window.segment / 2 * window.segment,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    fn rounds(counting: AvoidanceCounting, segments_per_ack: u64, rounds: u32) -> u64 {
        let mut reno = Reno::new(counting, StackVariant::Rfc);
        let mut window = Window { cwnd: 20_000, ssthresh: Some(2), segment: 1_000 };
        for _ in 0..rounds {
            for _ in 0..window.cwnd / (1_000 * segments_per_ack) {
                let bytes = 1_000 * segments_per_ack;
                let now = Instant::START;
                let acked = Acked { now, bytes, rtt: None, srtt: None, una: 1, nxt: 1 };
                reno.grow(&mut window, &acked);
            }
        }
        window.cwnd
    }

    #[test]
    fn counting_bytes_adds_a_segment_per_round_for_any_number_of_acks() {
        assert_eq!(rounds(AvoidanceCounting::Bytes, 1, 10), 30_000);
        let every_second = rounds(AvoidanceCounting::Bytes, 2, 10);
        assert!((29_000..=30_000).contains(&every_second), "{every_second}");
    }

    #[test]
    fn counting_acks_adds_half_a_segment_per_round_with_delayed_acks() {
        let each = rounds(AvoidanceCounting::Acks, 1, 10);
        let every_second = rounds(AvoidanceCounting::Acks, 2, 10);
        assert!((29_000..=30_000).contains(&each), "{each}");
        assert!((24_500..=25_200).contains(&every_second), "{every_second}");
    }

    #[test]
    fn congestion_halves_the_flight_size() {
        let mut reno = Reno::new(AvoidanceCounting::Bytes, StackVariant::Rfc);
        let window = Window { cwnd: 50_000, ssthresh: None, segment: 1_000 };
        assert_eq!(reno.reduced(&window, 30_000), 15_000);
        assert_eq!(reno.reduced(&window, 80_000), 25_000);
    }
}
