//! Out-of-order data at a receiver: the ranges received beyond RCV.NXT.
//!
//! Invariants: ranges are sorted, do not touch or overlap, and all lie beyond RCV.NXT. The most
//! recently changed ranges are remembered for SACK (RFC 2018, section 4: the first block holds the
//! newest segment, the others repeat the most recent ones).

use super::sliding::Sliding;
use crate::packet::segment::SACK_BLOCKS_MAX;
use crate::packet::seq::Position;

/// See the module's description.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct Reassembly {
    /// Starts of the most recently changed ranges, newest first.
    recent: Vec<Position>,
    ranges: Sliding<(Position, Position)>,
}

impl Reassembly {
    /// Whether there is no out-of-order data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes of out-of-order data.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether the byte at a position is stored.
    #[must_use]
    pub fn contains(&self, position: Position) -> bool {
        let first = self.ranges.partition_point(|range| range.1 <= position);
        self.ranges.get(first).is_some_and(|range| range.0 <= position)
    }

    /// Adds `start..end` and merges it with adjacent and overlapping ranges.
    pub fn insert(&mut self, mut start: Position, mut end: Position) {
        if start >= end {
            return;
        }
        // In most cases data extends the newest range, which is the last one.
        if let Some(range) = self.ranges.last_mut()
            && (range.0..=range.1).contains(&start)
            && self.recent.first() == Some(&range.0)
        {
            range.1 = range.1.max(end);
            return;
        }
        let first = self.ranges.partition_point(|range| range.1 < start);
        let mut after = first;
        while let Some(&(range_start, range_end)) = self.ranges.get(after) {
            if range_start > end {
                break;
            }
            start = start.min(range_start);
            end = end.max(range_end);
            self.recent.retain(|&recent| recent != range_start);
            after += 1;
        }
        if after == first {
            self.ranges.insert(first, (start, end));
        } else {
            self.ranges[first] = (start, end);
            self.ranges.remove_range(first + 1, after);
        }
        self.recent.insert(0, start);
        self.recent.truncate(SACK_BLOCKS_MAX);
    }

    /// How many of the [newest](Self::newest) ranges come before the first one that touches
    /// `start..end`; all if none does.
    pub fn rank(&self, start: Position, end: Position) -> usize {
        let touches = |range: (Position, Position)| range.0 <= end && start <= range.1;
        self.newest().take_while(|&range| !touches(range)).count()
    }

    /// The first part of `start..end` that was received before.
    pub fn overlap(&self, start: Position, end: Position) -> Option<(Position, Position)> {
        let first = self.ranges.partition_point(|range| range.1 <= start);
        let &(range_start, range_end) = self.ranges.get(first)?;
        let (start, end) = (start.max(range_start), end.min(range_end));
        (start < end).then_some((start, end))
    }

    /// Advances RCV.NXT from `next` over every range it reaches.
    pub fn advance(&mut self, mut next: Position) -> Position {
        while let Some(&(start, end)) = self.ranges.first() {
            if start > next {
                break;
            }
            next = next.max(end);
            self.ranges.drop_front(1);
            self.recent.retain(|&recent| recent != start);
        }
        next
    }

    /// Ranges for a SACK option, newest first.
    pub fn newest(&self) -> impl Iterator<Item = (Position, Position)> + '_ {
        self.recent.iter().filter_map(|&start| {
            let last = self.ranges.last().filter(|last| last.0 == start);
            last.copied().or_else(|| {
                let index = self.ranges.binary_search_by_key(&start, |range| range.0).ok()?;
                Some(self.ranges[index])
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn blocks_are_newest_first_and_merged() {
        let mut data = Reassembly::default();
        data.insert(10, 20);
        data.insert(30, 40);
        data.insert(50, 60);
        data.insert(20, 25);
        let blocks: Vec<_> = data.newest().collect();
        assert_eq!(blocks, [(10, 25), (50, 60), (30, 40)]);
        data.insert(25, 30);
        assert_eq!(data.newest().next(), Some((10, 40)));
        assert_eq!(data.overlap(5, 35), Some((10, 35)));
        assert_eq!(data.overlap(40, 55), Some((50, 55)));
        assert_eq!(data.overlap(40, 50), None);
        assert_eq!(data.overlap(60, 70), None);
        assert_eq!(data.advance(5), 5);
        assert_eq!(data.advance(10), 40);
        assert_eq!(data.newest().collect::<Vec<_>>(), [(50, 60)]);
        assert_eq!(data.advance(60), 60);
        assert!(data.is_empty());
    }

    /// Given random ranges in any order, expect the same bytes as in a set of single bytes.
    #[test]
    fn ranges_agree_with_a_set_of_bytes() {
        for seed in 0..200 {
            let mut rng = Rng::stream(seed, "reassembly");
            let mut data = Reassembly::default();
            let mut bytes = BTreeSet::new();
            let mut next = 1;
            for _ in 0..60 {
                let start = next + rng.below(50);
                let end = start + 1 + rng.below(12);
                bytes.extend(start..end);
                data.insert(start, end);
                next = data.advance(next);
                bytes.retain(|&byte| byte >= next);
                assert!(!bytes.contains(&next), "seed {seed}: {next} was received");
                assert_eq!(data.bytes(), bytes.len() as u64, "seed {seed}");
                for (start, end) in data.newest() {
                    assert!((start..end).all(|byte| bytes.contains(&byte)), "seed {seed}");
                    assert!(!bytes.contains(&end) && !bytes.contains(&(start - 1)), "seed {seed}");
                }
            }
        }
    }
}
