//! Since when a packet can have waited in a device, if nothing says when it came.
//!
//! It was not there when the device was last seen empty. And a device holds so many packets and no more:
//! when one came, all but the last of those before it had been read, as many as it holds. So it came after the
//! moment at which the packet was read that is as far before it as the device is large.

use std::collections::VecDeque;

use bentpipe_core::time::Instant;

/// Moments are kept of one in so many packets at most.
const STEP: u64 = 16;

/// What is known of the packets that wait in a device, from when it was read.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// How many packets the device holds.
    capacity: u64,
    /// How many packets were read.
    read: u64,
    /// No packet came before this that was not read by then.
    none_before: Instant,
    /// Packets, by number, and moments before which they were still in the device. Since the device was
    /// seen empty, and no more than are needed: at most one for each [`STEP`] packets that it holds.
    marks: VecDeque<(u64, Instant)>,
}

impl Backlog {
    /// Of a device that holds so many packets.
    pub(crate) fn new(capacity: u32) -> Self {
        let (capacity, none_before) = (capacity.into(), Instant::START);
        Self { capacity, read: 0, none_before, marks: VecDeque::new() }
    }

    /// No packet waits that came before `at`: the device was seen empty, or nobody could have read it.
    pub(crate) fn none_before(&mut self, at: Instant) {
        self.none_before = self.none_before.max(at);
        self.marks.clear();
    }

    /// The next packet will be read after `at`.
    pub(crate) fn reads_after(&mut self, at: Instant) {
        if self.marks.back().is_none_or(|&(number, _)| number + STEP <= self.read) {
            self.marks.push_back((self.read, at));
        }
    }

    /// A packet was read. It came after the moment that is returned.
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

    /// Given a device for 500 packets that is never seen empty, read at one packet in 28 us for 10 s, as
    /// under overload, expect each packet after the first 500 to have come at most 500 + 16 packets
    /// before it was read, 14.448 ms, and not the seconds since the device was last seen empty.
    #[test]
    fn a_packet_waits_no_longer_than_a_full_device_does() {
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
        Come,
        Read(usize),
        Look,
    }

    proptest! {
        /// Given packets that come and are dropped where the device is full, and are read, with looks that
        /// find the device empty or not, expect none to have come before the moment that is said.
        #[test]
        fn none_came_earlier_than_is_said(
            capacity in 1_u32..40,
            steps in proptest::collection::vec(
                (0_u64..50, prop_oneof![
                    6 => Just(Step::Come), 3 => (1_usize..40).prop_map(Step::Read), 1 => Just(Step::Look)
                ]),
                1..2_000,
            ),
        ) {
            let (mut device, mut backlog) = (VecDeque::new(), Backlog::new(capacity));
            let mut now = 0;
            for (gap, step) in steps {
                now += gap;
                match step {
                    Step::Come if device.len() < capacity as usize => device.push_back(micros(now)),
                    Step::Come => {}
                    Step::Read(count) => {
                        backlog.reads_after(micros(now));
                        for _ in 0..count {
                            let Some(came) = device.pop_front() else { break };
                            now += 1;
                            prop_assert!(backlog.read() <= came);
                        }
                    }
                    Step::Look if device.is_empty() => backlog.none_before(micros(now)),
                    Step::Look => {}
                }
            }
        }
    }
}
