//! The largest value of a sliding window, in constant room (Kathleen Nichols's algorithm, as in
//! Linux's `win_minmax.c`): the best value and the best two after it. A value that leaves the window
//! makes room for the next best. The second and the third are renewed each quarter of the window at
//! the latest, so that they are recent when they are needed.

/// A value and when it came, in the unit of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    time: u64,
    value: u64,
}

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct MaxFilter {
    best: [Entry; 3],
}

impl MaxFilter {
    /// The largest value of the window.
    pub(super) fn max(&self) -> u64 {
        self.best[0].value
    }

    /// A value comes at `time`, which never goes back.
    pub(super) fn add(&mut self, window: u64, time: u64, value: u64) {
        let entry = Entry { time, value };
        let age = |old: Entry| time.saturating_sub(old.time);
        if value >= self.best[0].value || age(self.best[2]) > window {
            self.best = [entry; 3];
            return;
        }
        if value >= self.best[1].value {
            self.best[1..].fill(entry);
        } else if value >= self.best[2].value {
            self.best[2] = entry;
        }
        if age(self.best[0]) > window {
            self.best = [self.best[1], self.best[2], entry];
            if age(self.best[0]) > window {
                self.best = [self.best[1], self.best[2], entry];
            }
        } else if self.best[1].time == self.best[0].time && age(self.best[0]) > window / 4 {
            self.best[1..].fill(entry);
        } else if self.best[2].time == self.best[1].time && age(self.best[0]) > window / 2 {
            self.best[2] = entry;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Given a window of 10 and the values below, one a step, expect what is computed by hand. The
    /// peak of 9 at time 2 counts to time 12, then the 7 of time 6 to 16, then the 5 of time 8 (the
    /// third is renewed when the best is older than half a window) to 18, then the 2 of 17.
    #[test]
    fn a_peak_counts_for_one_window() {
        let mut filter = MaxFilter::default();
        let values = [5, 8, 9, 4, 3, 6, 7, 5, 5, 4, 3, 2, 2, 2, 2, 2, 2, 2, 1, 1];
        let expected = [5, 8, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7, 7, 7, 7, 5, 5, 2];
        for (time, (value, max)) in (0..).zip(values.into_iter().zip(expected)) {
            filter.add(10, time, value);
            assert_eq!(filter.max(), max, "at {time}");
        }
    }

    /// After a gap longer than the window only the newest counts.
    #[test]
    fn a_gap_empties_the_window() {
        let mut filter = MaxFilter::default();
        (0..5).for_each(|time| filter.add(10, time, 100 - time));
        filter.add(10, 16, 3);
        assert_eq!(filter.max(), 3);
    }

    /// Given random values, expect never more than the window's true maximum, and never less than
    /// that of its newest half: the second and the third are chosen from what came after the first
    /// quarter or later, and stay the best of what came after them.
    #[test]
    fn it_stays_between_the_maximum_and_that_of_the_recent_part() {
        let mut rng = Rng::stream(3, "max filter");
        let (mut filter, mut values) = (MaxFilter::default(), Vec::new());
        for time in 0..20_000u64 {
            let value = rng.below(1_000);
            values.push(value);
            filter.add(20, time, value);
            let since = |age: usize| values.iter().rev().take(age + 1).max().copied();
            assert!(Some(filter.max()) <= since(20), "at {time}");
            assert!(Some(filter.max()) >= since(10), "at {time}");
        }
    }
}
