//! The maximum of a sliding window in constant memory (Kathleen Nichols's algorithm, as in Linux's
//! `win_minmax.c`): the best value and the second and third best after it. When the best leaves the
//! window, the next one replaces it. The second and third are renewed at least every quarter of the
//! window, so that they are recent.

/// A value and its time, in units of the window.
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
    /// The maximum of the window.
    pub(super) fn max(&self) -> u64 {
        self.best[0].value
    }

    /// Adds a value at `time`, which is monotonic.
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

    /// Given a window of 10 and the values below, one per step, expect maxima computed by hand: the
    /// peak of 9 at time 2 counts to time 12, the 7 of time 6 to 16, the 5 of time 8 (the third is
    /// renewed when the best is older than half a window) to 18, then the 2 of 17.
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

    /// Given a gap longer than the window, expect only the newest value.
    #[test]
    fn a_gap_clears_the_window() {
        let mut filter = MaxFilter::default();
        (0..5).for_each(|time| filter.add(10, time, 100 - time));
        filter.add(10, 16, 3);
        assert_eq!(filter.max(), 3);
    }

    /// Given random values, expect at most the true maximum of the window and at least that of its
    /// newest half: the second and third are chosen from what came after the first quarter or
    /// later, and stay the best of what came after them.
    #[test]
    fn the_maximum_is_within_the_bounds_of_the_window_and_its_newest_half() {
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
