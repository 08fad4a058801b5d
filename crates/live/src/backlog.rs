//! The earliest arrival time of a packet without a timestamp.
//!
//! The packet arrived after the device was last found empty. Also, a device of N packets
//! accepts one only when all but the last N of those before it have been read. So it arrived after
//! the read of the packet N before it.

use std::collections::VecDeque;

use bentpipe_core::time::Instant;

/// The time is kept of at most one in this many reads.
const STEP: u64 = 16;

/// Bounds of the arrival times of packets in a device, from the times of reads.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// The queue length of the device, in packets.
    capacity: u64,
    /// The number of packets read.
    read: u64,
    /// All packets that arrived before this had been read by then.
    none_before: Instant,
    /// Packet numbers and times before which those packets were still in the device: since it was
    /// last found empty, and at most one for each [`STEP`] packets that it holds.
    marks: VecDeque<(u64, Instant)>,
}

impl Backlog {
    /// For a device of this queue length.
    pub(crate) fn new(capacity: u32) -> Self {
        let (capacity, none_before) = (capacity.into(), Instant::START);
        Self { capacity, read: 0, none_before, marks: VecDeque::new() }
    }

    /// No packet in the device arrived before `at`: it was found empty, or a packet would have been
    /// read.
    pub(crate) fn none_before(&mut self, at: Instant) {
        self.none_before = self.none_before.max(at);
        self.marks.clear();
    }

    /// The next packet is read after `at`.
    pub(crate) fn reads_after(&mut self, at: Instant) {
        if self.marks.back().is_none_or(|&(number, _)| number + STEP <= self.read) {
            self.marks.push_back((self.read, at));
        }
    }

    /// Records a read. Returns a time before which the packet cannot have arrived.
    pub(crate) fn read(&mut self) -> Instant {
        let number = self.read;
        self.read += 1;
        let Some(left) = number.checked_sub(self.capacity) else { return self.none_before };
        while self.marks.get(1).is_some_and(|&(number, _)| number <= left) {
            self.marks.pop_front();
        }
        let first = self.marks.front().filter(|&&(number, _)| number <= left);
        first.map_or(self.none_before, |&(_, at)| at.max(self.none_before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_core::time::Duration;
    use proptest::prelude::*;

    fn micros(count: u64) -> Instant {
        Instant::START + Duration::from_micros(count)
    }

    /// Given a device of 500 packets that is never empty and is read once every 28 us for 10 s, as
    /// under overload, expect each packet after the first 500 to have a bound at most 500 + 16
    /// packets or 14.448 ms before its read, not the seconds since the device was last found empty.
    #[test]
    fn a_packet_waits_no_longer_than_a_full_queue() {
        let mut backlog = Backlog::new(500);
        backlog.none_before(micros(0));
        for number in 0..350_000 {
            let now = micros(28 * (number + 1));
            backlog.reads_after(micros(28 * number));
            let waited = now.saturating_since(backlog.read());
            let expected = Duration::from_micros(28 * if number < 500 { number + 1 } else { 501 });
            assert!(waited >= expected, "{number}: {waited}");
            assert!(waited <= expected + Duration::from_micros(28 * 15), "{number}: {waited}");
            assert!(backlog.marks.len() <= 500 / 16 + 2);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive,
        Read(usize),
        CheckEmpty,
    }

    proptest! {
        /// Given packets that arrive, are dropped while the device is full, and are read, and
        /// checks for an empty device, expect no packet to have arrived before its bound.
        #[test]
        fn no_packet_arrived_before_its_bound(
            capacity in 1_u32..40,
            steps in proptest::collection::vec(
                (0_u64..50, prop_oneof![
                    6 => Just(Step::Arrive), 3 => (1_usize..40).prop_map(Step::Read), 1 => Just(Step::CheckEmpty)
                ]),
                1..2_000,
            ),
        ) {
            let (mut device, mut backlog) = (VecDeque::new(), Backlog::new(capacity));
            let mut now = 0;
            for (gap, step) in steps {
                now += gap;
                match step {
                    Step::Arrive if device.len() < capacity as usize => device.push_back(micros(now)),
                    Step::Arrive => {}
                    Step::Read(count) => {
                        backlog.reads_after(micros(now));
                        for _ in 0..count {
                            let Some(arrived) = device.pop_front() else { break };
                            now += 1;
                            prop_assert!(backlog.read() <= arrived);
                        }
                    }
                    Step::CheckEmpty if device.is_empty() => backlog.none_before(micros(now)),
                    Step::CheckEmpty => {}
                }
            }
        }
    }
}
