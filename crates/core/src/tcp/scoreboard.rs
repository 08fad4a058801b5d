//! The SACK scoreboard: the state of each outstanding segment (RFC 6675, section 3).
//!
//! Segments are sorted by position. Each query per ACK reads a counter or a cursor that only moves
//! forward, so the cost of an ACK depends on the new information in it and not on the window:
//! `pipe` is updated with each change, SACKed ranges are merged so that a repeated block costs one
//! look-up, and lost segments are kept in a sorted list of their own.

use super::sliding::Sliding;
use crate::packet::seq::Position;
use crate::time::Instant;

/// A segment that was sent and is not cumulatively acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) start: Position,
    pub(super) end: Position,
    pub(super) sent_at: Instant,
    pub(super) sacked: bool,
    /// Marked lost. If `in_flight` is set as well, it was retransmitted.
    pub(super) lost: bool,
    pub(super) retransmitted: bool,
    pub(super) in_flight: bool,
}

impl Sent {
    /// Whether the original transmission is known to be delivered or lost.
    pub(super) fn is_resolved(&self) -> bool {
        self.sacked || self.lost || self.retransmitted
    }
}

/// A newly acknowledged segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivered {
    pub(super) end: Position,
    pub(super) sent_at: Instant,
    pub(super) retransmitted: bool,
}

/// See the module's description.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct Scoreboard {
    segments: Sliding<Sent>,
    pipe: u64,
    /// Index of the first segment that is not [resolved](Sent::is_resolved).
    unresolved: usize,
    /// Sorted starts of lost segments to be retransmitted.
    pending_retransmits: Sliding<Position>,
    sacked_bytes: u64,
    sacked: Sliding<(Position, Position)>,
    /// Index after the last segment that was marked SACKed: most new blocks start there.
    sack_cursor: usize,
    /// Total bytes marked lost, including repeated losses.
    lost_bytes: u64,
}

/// DupThresh (RFC 5681, RFC 6675).
pub(super) const DUPLICATE_THRESHOLD: u64 = 3;

impl Scoreboard {
    /// Bytes in flight (RFC 6675's pipe).
    pub(super) fn pipe(&self) -> u64 {
        self.pipe
    }

    /// SACKed bytes.
    pub(super) fn sacked_bytes(&self) -> u64 {
        self.sacked_bytes
    }

    /// Total bytes marked lost, including repeated losses.
    pub(super) fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Adds a new segment.
    #[inline]
    pub(super) fn sent(&mut self, now: Instant, start: Position, end: Position) {
        self.pipe += end - start;
        self.segments.push(Sent {
            start,
            end,
            sent_at: now,
            sacked: false,
            lost: false,
            retransmitted: false,
            in_flight: true,
        });
    }

    /// Whether a lost segment, retransmitted or not, is still unacknowledged.
    pub(super) fn has_unrepaired_loss(&self) -> bool {
        self.segments.iter().any(|segment| segment.lost && !segment.sacked)
    }

    /// The first segment to be retransmitted.
    // Called for every segment that is not part of a run, mostly with an empty list.
    #[inline(always)]
    pub(super) fn first_pending_retransmit(&self) -> Option<Sent> {
        let index = self.index_of(*self.pending_retransmits.first()?);
        Some(self.segments[index])
    }

    /// The first outstanding segment.
    pub(super) fn head(&self) -> Option<&Sent> {
        self.segments.first()
    }

    /// The last segment, for a tail loss probe.
    pub(super) fn last(&self) -> Option<Sent> {
        self.segments.last().copied()
    }

    /// Whether any lost segment is to be retransmitted.
    pub(super) fn has_pending_retransmits(&self) -> bool {
        !self.pending_retransmits.is_empty()
    }

    /// The segment at `start` was retransmitted.
    pub(super) fn retransmitted(&mut self, now: Instant, start: Position) {
        let index = self.index_of(start);
        if let Ok(found) = self.pending_retransmits.binary_search(&start) {
            self.pending_retransmits.remove(found);
        }
        let segment = &mut self.segments[index];
        if !segment.in_flight {
            segment.in_flight = true;
            self.pipe += segment.end - segment.start;
        }
        segment.sent_at = now;
        segment.retransmitted = true;
    }

    /// Advances SND.UNA to `una` and reports newly acknowledged segments.
    pub(super) fn advance(&mut self, una: Position, mut on_delivered: impl FnMut(Delivered)) {
        let mut acked = 0;
        for segment in &mut *self.segments {
            if segment.end > una {
                // The peer may acknowledge part of a segment. The rest keeps its state.
                if segment.start < una {
                    let cut = una - segment.start;
                    if segment.in_flight {
                        self.pipe -= cut;
                    }
                    if segment.sacked {
                        self.sacked_bytes -= cut;
                    }
                    if let Ok(found) = self.pending_retransmits.binary_search(&segment.start) {
                        self.pending_retransmits[found] = una;
                    }
                    segment.start = una;
                }
                break;
            }
            acked += 1;
            let bytes = segment.end - segment.start;
            if segment.in_flight {
                self.pipe -= bytes;
            }
            if segment.sacked {
                self.sacked_bytes -= bytes;
            } else {
                on_delivered((*segment).into());
            }
        }
        self.drop_front(acked);
        self.sack_cursor = self.sack_cursor.saturating_sub(acked);
        let known = self.pending_retransmits.partition_point(|&start| start < una);
        self.pending_retransmits.drop_front(known);
        let acked = self.sacked.partition_point(|range| range.1 <= una);
        self.sacked.drop_front(acked);
        if let Some(range) = self.sacked.first_mut() {
            range.0 = range.0.max(una);
        }
    }

    /// Removes the first `count` segments.
    #[inline]
    fn drop_front(&mut self, count: usize) {
        self.segments.drop_front(count);
        self.unresolved = self.unresolved.saturating_sub(count);
    }

    /// Whether the fast path may be taken: no range is SACKed, and no segment is to be
    /// retransmitted.
    pub(super) fn fast_path_ok(&self) -> bool {
        self.sacked.is_empty() && self.pending_retransmits.is_empty()
    }

    /// The fast path of [`Scoreboard::advance`] while [`Scoreboard::fast_path_ok`], so that
    /// everything is in flight. Returns when the most recent of the acknowledged segments that were
    /// sent once was sent. Of consecutive ones, only the last is reported: it was sent last and
    /// ends last.
    #[inline]
    pub(super) fn advance_in_order(
        &mut self,
        una: Position,
        mut on_delivered: impl FnMut(Delivered),
    ) -> Option<Instant> {
        self.pipe -= una.saturating_sub(self.segments.first()?.start);
        let (mut acked, mut newest, mut last) = (0, None, None);
        for segment in &mut *self.segments {
            if segment.end > una {
                // The peer may acknowledge part of a segment.
                segment.start = segment.start.max(una);
                break;
            }
            acked += 1;
            if segment.retransmitted {
                last.take().into_iter().for_each(&mut on_delivered);
                on_delivered((*segment).into());
            } else {
                newest = Some(segment.sent_at);
                last = Some((*segment).into());
            }
        }
        last.into_iter().for_each(on_delivered);
        self.drop_front(acked);
        newest
    }

    /// Processes the SACK block `start..end` and reports newly acknowledged segments.
    pub(super) fn sack(
        &mut self,
        start: Position,
        end: Position,
        mut on_delivered: impl FnMut(Delivered),
    ) {
        // A repeated block mostly lies within one known range.
        let at = self.sacked.partition_point(|range| range.1 < end);
        let joins_next = self.sacked.get(at).is_some_and(|range| range.0 <= end);
        if joins_next && self.sacked[at].0 <= start {
            return;
        }
        // A new block mostly extends the range before it.
        if let Some(before) = at.checked_sub(1).map(|before| self.sacked[before])
            && (before.0..=before.1).contains(&start)
            && !joins_next
        {
            self.sacked[at - 1].1 = self.mark_sacked(before.1, end, &mut on_delivered);
            return;
        }
        // Ranges end at segment boundaries: a partly SACKed segment does not count.
        let Some(start) = self.first_start_from(start) else { return };
        let Some(end) = self.last_end_until(end).filter(|&end| end > start) else { return };
        let at = self.sacked.partition_point(|range| range.1 < start);
        if self.sacked.get(at).is_some_and(|range| range.0 <= start && range.1 >= end) {
            return;
        }
        let mut after = at;
        let (mut joined_start, mut joined_end) = (start, end);
        let mut gap_start = start;
        while let Some(&(range_start, range_end)) = self.sacked.get(after) {
            if range_start > end {
                break;
            }
            self.mark_sacked(gap_start, range_start, &mut on_delivered);
            gap_start = gap_start.max(range_end);
            joined_start = joined_start.min(range_start);
            joined_end = joined_end.max(range_end);
            after += 1;
        }
        self.mark_sacked(gap_start, end, &mut on_delivered);
        if after == at {
            self.sacked.insert(at, (joined_start, joined_end));
        } else {
            self.sacked[at] = (joined_start, joined_end);
            self.sacked.remove_range(at + 1, after);
        }
    }

    fn first_start_from(&self, position: Position) -> Option<Position> {
        let index = self.segments.partition_point(|segment| segment.start < position);
        self.segments.get(index).map(|segment| segment.start)
    }

    fn last_end_until(&self, position: Position) -> Option<Position> {
        let after = self.segments.partition_point(|segment| segment.end <= position);
        self.segments.get(after.checked_sub(1)?).map(|segment| segment.end)
    }

    /// Marks the segments within `start..end` as SACKed. Returns the end of the last one.
    fn mark_sacked(
        &mut self,
        start: Position,
        end: Position,
        on_delivered: &mut impl FnMut(Delivered),
    ) -> Position {
        let mut marked_to = start;
        if start >= end {
            return marked_to;
        }
        let continues =
            self.segments.get(self.sack_cursor).is_some_and(|segment| segment.start == start);
        if !continues {
            self.sack_cursor = self.segments.partition_point(|segment| segment.start < start);
        }
        while let Some(segment) = self.segments.get_mut(self.sack_cursor) {
            if segment.end > end {
                break;
            }
            self.sack_cursor += 1;
            marked_to = segment.end;
            if segment.sacked {
                continue;
            }
            segment.sacked = true;
            let bytes = segment.end - segment.start;
            self.sacked_bytes += bytes;
            if segment.in_flight {
                segment.in_flight = false;
                self.pipe -= bytes;
            }
            on_delivered((*segment).into());
            if segment.lost
                && let Ok(found) = self.pending_retransmits.binary_search(&segment.start)
            {
                self.pending_retransmits.remove(found);
            }
        }
        marked_to
    }

    /// RFC 6675, IsLost: unSACKed segments below the returned position are lost, because three
    /// ranges or more than two segments' bytes above it are SACKed.
    pub(super) fn lost_below(&self, segment_bytes: u64) -> Position {
        let mut bytes = 0;
        for (ranges, &(start, end)) in (1..).zip(self.sacked.iter().rev()) {
            bytes += end - start;
            if ranges >= DUPLICATE_THRESHOLD || bytes > (DUPLICATE_THRESHOLD - 1) * segment_bytes {
                return start;
            }
        }
        0
    }

    /// Marks unresolved segments as lost, in order, for as long as `lost` returns true.
    pub(super) fn mark_originals_lost(&mut self, mut lost: impl FnMut(&Sent) -> bool) {
        loop {
            let index = self.unresolved;
            let Some(&segment) = self.segments.get(index) else { return };
            if !segment.is_resolved() {
                if !lost(&segment) {
                    return;
                }
                self.mark_lost(index);
            }
            self.unresolved += 1;
        }
    }

    /// The first segment that is not [resolved](Sent::is_resolved).
    pub(super) fn first_unresolved(&self) -> Option<&Sent> {
        self.segments.get(self.unresolved)
    }

    /// The segment that starts at `start`, if it is outstanding and not SACKed.
    pub(super) fn unsacked_at(&self, start: Position) -> Option<&Sent> {
        // In most cases it is the first outstanding segment.
        let first = self.segments.first().filter(|first| first.start == start);
        let missing = first.or_else(|| {
            let index = self.segments.binary_search_by_key(&start, |segment| segment.start).ok()?;
            self.segments.get(index)
        });
        missing.filter(|segment| !segment.sacked)
    }

    /// Marks the segment that starts at `start` as lost (again).
    pub(super) fn mark_lost_at(&mut self, start: Position) {
        if let Ok(index) = self.segments.binary_search_by_key(&start, |segment| segment.start) {
            self.mark_lost(index);
        }
    }

    /// The retransmission timer expired: marks everything unSACKed as lost (RFC 6675, 5.1). If the
    /// first segment is SACKed, the peer reneged and all SACK information is discarded (RFC 2018,
    /// section 8).
    pub(super) fn mark_all_lost(&mut self) {
        self.mark_lost_where(|_| true);
        self.unresolved = self.segments.len();
    }

    /// [`Scoreboard::mark_all_lost`] for the first segment and those for which `lost` returns true.
    pub(super) fn mark_lost_where(&mut self, lost: impl Fn(&Sent) -> bool) {
        if self.segments.first().is_some_and(|first| first.sacked) {
            self.segments.iter_mut().for_each(|segment| segment.sacked = false);
            self.sacked.clear();
            self.sacked_bytes = 0;
        }
        for index in 0..self.segments.len() {
            let segment = &self.segments[index];
            if !segment.sacked && (index == 0 || lost(segment)) {
                self.mark_lost(index);
            }
        }
    }

    /// Unmarks all lost segments: those not retransmitted are in flight again and unresolved.
    #[cold]
    #[inline(never)]
    pub(super) fn unmark_lost(&mut self) {
        for segment in &mut *self.segments {
            segment.lost = false;
            if !segment.sacked && !segment.in_flight {
                segment.in_flight = true;
                self.pipe += segment.end - segment.start;
            }
        }
        self.pending_retransmits.clear();
        self.unresolved = 0;
    }

    /// Number of retransmissions in flight.
    pub(super) fn retransmissions_in_flight(&self) -> u64 {
        let in_flight = |segment: &&Sent| segment.retransmitted && segment.in_flight;
        self.segments.iter().filter(in_flight).count() as u64
    }

    /// Whether the segment at `start` was retransmitted.
    pub(super) fn was_retransmitted(&self, start: Position) -> bool {
        let found = self.segments.binary_search_by_key(&start, |segment| segment.start);
        found.is_ok_and(|index| self.segments[index].retransmitted)
    }

    fn mark_lost(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        segment.lost = true;
        if segment.in_flight {
            segment.in_flight = false;
            self.pipe -= segment.end - segment.start;
            self.lost_bytes += segment.end - segment.start;
        }
        let start = segment.start;
        if let Err(at) = self.pending_retransmits.binary_search(&start) {
            self.pending_retransmits.insert(at, start);
        }
    }

    fn index_of(&self, start: Position) -> usize {
        self.segments
            .binary_search_by_key(&start, |segment| segment.start)
            .expect("the segment is outstanding")
    }

    /// Recomputes the counters from all segments.
    #[cfg(test)]
    fn recount(&self) -> (u64, u64, Vec<Position>) {
        let length = |segment: &&Sent| segment.end - segment.start;
        let pipe = self.segments.iter().filter(|s| s.in_flight).map(|s| length(&s)).sum();
        let sacked = self.segments.iter().filter(|s| s.sacked).map(|s| length(&s)).sum();
        let pending_retransmits =
            self.segments.iter().filter(|s| s.lost && !s.sacked && !s.in_flight);
        (pipe, sacked, pending_retransmits.map(|s| s.start).collect())
    }
}

impl From<Sent> for Delivered {
    fn from(segment: Sent) -> Self {
        let Sent { end, sent_at, retransmitted, .. } = segment;
        Self { end, sent_at, retransmitted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const SEGMENT: u64 = 1_000;

    /// A random sender and peer with about ten segments in flight.
    struct Fuzzer {
        board: Scoreboard,
        rng: Rng,
        una: Position,
        nxt: Position,
        now: Instant,
    }

    impl Fuzzer {
        fn send(&mut self) {
            let bytes = if self.rng.below(4) == 0 { 1 + self.rng.below(SEGMENT) } else { SEGMENT };
            self.board.sent(self.now, self.nxt, self.nxt + bytes);
            self.nxt += bytes;
        }

        /// A random position, mostly a segment boundary.
        fn position(&mut self) -> Position {
            let outstanding = self.nxt - self.una;
            if self.rng.below(5) == 0 {
                return self.una + self.rng.below(outstanding + 1);
            }
            let count = self.board.segments.len() as u64;
            let index = usize::try_from(self.rng.below(count + 1)).expect("small");
            self.board.segments.get(index).map_or(self.nxt, |segment| segment.start)
        }

        fn acknowledge(&mut self) {
            let una = self.position().max(self.una);
            let before: Vec<_> = self.board.segments.iter().copied().collect();
            let mut reported = Vec::new();
            self.board.advance(una, |delivered| reported.push(delivered.end));
            let expected = before.iter().filter(|segment| segment.end <= una && !segment.sacked);
            assert_eq!(reported, expected.map(|segment| segment.end).collect::<Vec<_>>());
            self.una = una;
        }

        fn report(&mut self) {
            let (a, b) = (self.position(), self.position());
            let (start, end) = (a.min(b), a.max(b));
            let before: Vec<_> = self.board.segments.iter().copied().collect();
            let mut reported = Vec::new();
            self.board.sack(start, end, |delivered| reported.push(delivered.end));
            let covered = |segment: &&Sent| segment.start >= start && segment.end <= end;
            let expected = before.iter().filter(covered).filter(|segment| !segment.sacked);
            assert_eq!(reported, expected.map(|segment| segment.end).collect::<Vec<_>>());
        }

        fn step(&mut self) {
            match self.rng.below(20) {
                0..=7 => self.send(),
                8..=9 => self.acknowledge(),
                10..=13 => self.report(),
                14..=15 => {
                    let lost_below = self.board.lost_below(SEGMENT);
                    self.board.mark_originals_lost(|sent| sent.end <= lost_below);
                }
                16 => {
                    let start = self.position();
                    if self.board.unsacked_at(start).is_some() {
                        self.board.mark_lost_at(start);
                    }
                }
                17 => self.board.last().filter(|last| !last.sacked).into_iter().for_each(|last| {
                    self.board.retransmitted(self.now, last.start);
                }),
                18 if self.rng.below(20) == 0 => self.board.mark_all_lost(),
                _ => {
                    if let Some(sent) = self.board.first_pending_retransmit() {
                        self.board.retransmitted(self.now, sent.start);
                    }
                }
            }
        }

        fn check(&self) {
            let board = &self.board;
            let marks = (
                board.pipe,
                board.sacked_bytes,
                board.pending_retransmits.iter().copied().collect(),
            );
            assert_eq!(marks, board.recount());
            let ranges: u64 = board.sacked.iter().map(|(start, end)| end - start).sum();
            assert_eq!(ranges, board.sacked_bytes);
            assert!(board.sacked.iter().zip(board.sacked.iter().skip(1)).all(|(a, b)| a.1 < b.0));
            let below = board.lost_below(SEGMENT);
            for (index, segment) in board.segments.iter().enumerate().filter(|s| !s.1.sacked) {
                assert_eq!(segment.end <= below, is_lost(board, index), "{segment:?} {below}");
            }
        }
    }

    /// IsLost as defined in RFC 6675, section 4: three discontiguous sequences, or more than two
    /// segments' bytes, are SACKed above.
    fn is_lost(board: &Scoreboard, index: usize) -> bool {
        let (mut sequences, mut bytes, mut before) = (0, 0, false);
        for segment in board.segments.iter().skip(index + 1) {
            if segment.sacked {
                bytes += segment.end - segment.start;
                sequences += u64::from(!before);
            }
            before = segment.sacked;
        }
        sequences >= DUPLICATE_THRESHOLD || bytes > (DUPLICATE_THRESHOLD - 1) * SEGMENT
    }

    /// Given random transmissions, ACKs and losses, expect every counter and cursor to agree with a
    /// full recount, and IsLost with its definition.
    #[test]
    fn counters_agree_with_a_recount() {
        for seed in 0..1_000 {
            let rng = Rng::stream(seed, "scoreboard");
            let now = Instant::START;
            let mut fuzzer = Fuzzer { board: Scoreboard::default(), rng, una: 1, nxt: 1, now };
            for step in 0..100 {
                fuzzer.now = Instant::from_millis(step);
                fuzzer.step();
                let checked = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
                    fuzzer.check();
                }));
                assert!(checked.is_ok(), "seed {seed}, step {step}: {:?}", fuzzer.board);
            }
        }
    }
}
