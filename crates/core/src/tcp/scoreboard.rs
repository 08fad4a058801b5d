//! What a SACK sender knows of each outstanding segment (RFC 6675, section 3).
//!
//! Segments lie in order of position. Every question asked per ACK is answered by a
//! counter or a mark that only moves forward, so the cost of an ACK follows what it newly tells,
//! not the size of the window: `pipe` is kept up to date at each change, selectively acknowledged
//! ranges are merged so that a repeated block costs one look-up, and lost segments wait in a sorted
//! list of their own.

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
    /// Judged lost. With `in_flight` set again, its retransmission is under way.
    pub(super) lost: bool,
    pub(super) retransmitted: bool,
    pub(super) in_flight: bool,
}

impl Sent {
    /// Whether it is known what became of the original transmission.
    pub(super) fn was_judged(&self) -> bool {
        self.sacked || self.lost || self.retransmitted
    }
}

/// What an ACK newly told about one segment.
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
    /// Place of the first segment whose original transmission is not judged.
    unjudged: usize,
    /// Starts of lost segments that wait for their retransmission, sorted.
    waiting: Sliding<Position>,
    sacked_bytes: u64,
    sacked: Sliding<(Position, Position)>,
    /// Place of the segment after the last one that was marked: what is reported next mostly starts
    /// there.
    marked: usize,
    /// Bytes judged lost since the connection began, however often.
    lost_bytes: u64,
}

/// RFC 5681: so many duplicates mean loss.
pub(super) const DUPLICATE_THRESHOLD: u64 = 3;

impl Scoreboard {
    /// Bytes in flight (RFC 6675's pipe).
    pub(super) fn pipe(&self) -> u64 {
        self.pipe
    }

    /// Bytes selectively acknowledged.
    pub(super) fn sacked_bytes(&self) -> u64 {
        self.sacked_bytes
    }

    /// Bytes judged lost since the connection began, each time they were.
    pub(super) fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// A new segment was sent.
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

    /// Whether something that was lost has not arrived yet, retransmitted or not.
    pub(super) fn repairs(&self) -> bool {
        self.segments.iter().any(|segment| segment.lost && !segment.sacked)
    }

    /// The first segment that waits for its retransmission.
    // Asked for every segment that is sent alone, with nothing waiting mostly.
    #[inline(always)]
    pub(super) fn first_waiting(&self) -> Option<Sent> {
        let place = self.place_of(*self.waiting.first()?);
        Some(self.segments[place])
    }

    /// The first segment that is outstanding.
    pub(super) fn head(&self) -> Option<&Sent> {
        self.segments.first()
    }

    /// The last segment, for a tail loss probe.
    pub(super) fn last(&self) -> Option<Sent> {
        self.segments.last().copied()
    }

    /// Whether any lost segment waits for its retransmission.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The segment at `start` was retransmitted.
    pub(super) fn retransmitted(&mut self, now: Instant, start: Position) {
        let place = self.place_of(start);
        if let Ok(found) = self.waiting.binary_search(&start) {
            self.waiting.remove(found);
        }
        let segment = &mut self.segments[place];
        if !segment.in_flight {
            segment.in_flight = true;
            self.pipe += segment.end - segment.start;
        }
        segment.sent_at = now;
        segment.retransmitted = true;
    }

    /// Everything before `una` has arrived. Reports what was not known before.
    pub(super) fn advance(&mut self, una: Position, mut news: impl FnMut(Delivered)) {
        let mut arrived = 0;
        for segment in &mut *self.segments {
            if segment.end > una {
                // A part of a segment: the peer may have cut it. The rest keeps its state.
                if segment.start < una {
                    let cut = una - segment.start;
                    if segment.in_flight {
                        self.pipe -= cut;
                    }
                    if segment.sacked {
                        self.sacked_bytes -= cut;
                    }
                    if let Ok(found) = self.waiting.binary_search(&segment.start) {
                        self.waiting[found] = una;
                    }
                    segment.start = una;
                }
                break;
            }
            arrived += 1;
            let bytes = segment.end - segment.start;
            if segment.in_flight {
                self.pipe -= bytes;
            }
            if segment.sacked {
                self.sacked_bytes -= bytes;
            } else {
                news((*segment).into());
            }
        }
        self.leave(arrived);
        self.marked = self.marked.saturating_sub(arrived);
        let known = self.waiting.partition_point(|&start| start < una);
        self.waiting.leave(known);
        let arrived = self.sacked.partition_point(|range| range.1 <= una);
        self.sacked.leave(arrived);
        if let Some(range) = self.sacked.first_mut() {
            range.0 = range.0.max(una);
        }
    }

    /// The first `count` segments have arrived.
    #[inline]
    fn leave(&mut self, count: usize) {
        self.segments.leave(count);
        self.unjudged = self.unjudged.saturating_sub(count);
    }

    /// Whether nothing was reported beyond a hole and nothing waits for its retransmission.
    pub(super) fn is_calm(&self) -> bool {
        self.sacked.is_empty() && self.waiting.is_empty()
    }

    /// [`Scoreboard::advance`] while all is [calm](Scoreboard::is_calm), and so all of it in flight: the
    /// moment at which the newest of the arrived segments was sent, of those that were sent once. Of
    /// those that follow each other, only the last is reported: it was sent last and ends last.
    #[inline]
    pub(super) fn advance_in_order(
        &mut self,
        una: Position,
        mut news: impl FnMut(Delivered),
    ) -> Option<Instant> {
        self.pipe -= una.saturating_sub(self.segments.first()?.start);
        let (mut arrived, mut newest, mut last) = (0, None, None);
        for segment in &mut *self.segments {
            if segment.end > una {
                // The peer may have cut a segment.
                segment.start = segment.start.max(una);
                break;
            }
            arrived += 1;
            if segment.retransmitted {
                last.take().into_iter().for_each(&mut news);
                news((*segment).into());
            } else {
                newest = Some(segment.sent_at);
                last = Some((*segment).into());
            }
        }
        last.into_iter().for_each(news);
        self.leave(arrived);
        newest
    }

    /// The peer holds `start..end`. Reports what was not known before.
    pub(super) fn sack(&mut self, start: Position, end: Position, mut news: impl FnMut(Delivered)) {
        // What an ACK repeats is mostly within one known range, which no look at segments changes.
        let at = self.sacked.partition_point(|range| range.1 < end);
        let joins_next = self.sacked.get(at).is_some_and(|range| range.0 <= end);
        if joins_next && self.sacked[at].0 <= start {
            return;
        }
        // What is new mostly extends the range before.
        if let Some(before) = at.checked_sub(1).map(|before| self.sacked[before])
            && (before.0..=before.1).contains(&start)
            && !joins_next
        {
            self.sacked[at - 1].1 = self.mark_sacked(before.1, end, &mut news);
            return;
        }
        // Ranges end where segments do: a part of a segment is not known to have arrived.
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
            self.mark_sacked(gap_start, range_start, &mut news);
            gap_start = gap_start.max(range_end);
            joined_start = joined_start.min(range_start);
            joined_end = joined_end.max(range_end);
            after += 1;
        }
        self.mark_sacked(gap_start, end, &mut news);
        if after == at {
            self.sacked.insert(at, (joined_start, joined_end));
        } else {
            self.sacked[at] = (joined_start, joined_end);
            self.sacked.remove_range(at + 1, after);
        }
    }

    fn first_start_from(&self, position: Position) -> Option<Position> {
        let place = self.segments.partition_point(|segment| segment.start < position);
        self.segments.get(place).map(|segment| segment.start)
    }

    fn last_end_until(&self, position: Position) -> Option<Position> {
        let after = self.segments.partition_point(|segment| segment.end <= position);
        self.segments.get(after.checked_sub(1)?).map(|segment| segment.end)
    }

    /// Marks the segments within `start..end`: where the last of them ends.
    fn mark_sacked(
        &mut self,
        start: Position,
        end: Position,
        news: &mut impl FnMut(Delivered),
    ) -> Position {
        let mut marked_to = start;
        if start >= end {
            return marked_to;
        }
        let follows = self.segments.get(self.marked).is_some_and(|segment| segment.start == start);
        if !follows {
            self.marked = self.segments.partition_point(|segment| segment.start < start);
        }
        while let Some(segment) = self.segments.get_mut(self.marked) {
            if segment.end > end {
                break;
            }
            self.marked += 1;
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
            news((*segment).into());
            if segment.lost
                && let Ok(found) = self.waiting.binary_search(&segment.start)
            {
                self.waiting.remove(found);
            }
        }
        marked_to
    }

    /// RFC 6675, IsLost: below which position a segment that is not selectively acknowledged counts
    /// as lost, because three ranges or more than two segments' bytes above it have arrived.
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

    /// Judges original transmissions in order for as long as `lost` says so.
    pub(super) fn judge_originals(&mut self, mut lost: impl FnMut(&Sent) -> bool) {
        loop {
            let place = self.unjudged;
            let Some(&segment) = self.segments.get(place) else { return };
            if !segment.was_judged() {
                if !lost(&segment) {
                    return;
                }
                self.mark_lost(place);
            }
            self.unjudged += 1;
        }
    }

    /// The first segment whose original transmission is not judged yet.
    pub(super) fn first_unjudged(&self) -> Option<&Sent> {
        self.segments.get(self.unjudged)
    }

    /// The segment that starts at `start`, if it is still outstanding and missing.
    pub(super) fn missing_at(&self, start: Position) -> Option<&Sent> {
        // The first that is missing is mostly the first of all.
        let first = self.segments.first().filter(|first| first.start == start);
        let missing = first.or_else(|| {
            let place = self.segments.binary_search_by_key(&start, |segment| segment.start).ok()?;
            self.segments.get(place)
        });
        missing.filter(|segment| !segment.sacked)
    }

    /// The segment that starts at `start` is lost (again).
    pub(super) fn lose(&mut self, start: Position) {
        if let Ok(place) = self.segments.binary_search_by_key(&start, |segment| segment.start) {
            self.mark_lost(place);
        }
    }

    /// The retransmission timer expired: everything missing is lost (RFC 6675, 5.1).
    /// A peer that still asks for the first segment although it had reported it has thrown away
    /// what it had (RFC 2018, section 8): then its reports are forgotten.
    pub(super) fn lose_all(&mut self) {
        self.lose_those(|_| true);
        self.unjudged = self.segments.len();
    }

    /// [`Scoreboard::lose_all`] for the first segment and for those that `lost` says.
    pub(super) fn lose_those(&mut self, lost: impl Fn(&Sent) -> bool) {
        if self.segments.first().is_some_and(|first| first.sacked) {
            self.segments.iter_mut().for_each(|segment| segment.sacked = false);
            self.sacked.clear();
            self.sacked_bytes = 0;
        }
        for place in 0..self.segments.len() {
            let segment = &self.segments[place];
            if !segment.sacked && (place == 0 || lost(segment)) {
                self.mark_lost(place);
            }
        }
    }

    /// Nothing is lost after all: what was not retransmitted is in flight again, and judged anew.
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
        self.waiting.clear();
        self.unjudged = 0;
    }

    /// Segments of which a retransmission is in flight.
    pub(super) fn retransmissions_in_flight(&self) -> u64 {
        let in_flight = |segment: &&Sent| segment.retransmitted && segment.in_flight;
        self.segments.iter().filter(in_flight).count() as u64
    }

    /// Whether the segment at `start` was retransmitted.
    pub(super) fn was_retransmitted(&self, start: Position) -> bool {
        let found = self.segments.binary_search_by_key(&start, |segment| segment.start);
        found.is_ok_and(|place| self.segments[place].retransmitted)
    }

    fn mark_lost(&mut self, place: usize) {
        let segment = &mut self.segments[place];
        segment.lost = true;
        if segment.in_flight {
            segment.in_flight = false;
            self.pipe -= segment.end - segment.start;
            self.lost_bytes += segment.end - segment.start;
        }
        let start = segment.start;
        if let Err(at) = self.waiting.binary_search(&start) {
            self.waiting.insert(at, start);
        }
    }

    fn place_of(&self, start: Position) -> usize {
        self.segments
            .binary_search_by_key(&start, |segment| segment.start)
            .expect("asked only about outstanding segments")
    }

    /// Counts everything anew, to check the marks.
    #[cfg(test)]
    fn recount(&self) -> (u64, u64, Vec<Position>) {
        let length = |segment: &&Sent| segment.end - segment.start;
        let pipe = self.segments.iter().filter(|s| s.in_flight).map(|s| length(&s)).sum();
        let sacked = self.segments.iter().filter(|s| s.sacked).map(|s| length(&s)).sum();
        let waiting = self.segments.iter().filter(|s| s.lost && !s.sacked && !s.in_flight);
        (pipe, sacked, waiting.map(|s| s.start).collect())
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

    /// Some ten segments in flight at a time, and anything that can happen to them.
    struct Story {
        board: Scoreboard,
        rng: Rng,
        una: Position,
        nxt: Position,
        now: Instant,
    }

    impl Story {
        fn send(&mut self) {
            let bytes = if self.rng.below(4) == 0 { 1 + self.rng.below(SEGMENT) } else { SEGMENT };
            self.board.sent(self.now, self.nxt, self.nxt + bytes);
            self.nxt += bytes;
        }

        /// Mostly a boundary between segments, sometimes not.
        fn position(&mut self) -> Position {
            let outstanding = self.nxt - self.una;
            if self.rng.below(5) == 0 {
                return self.una + self.rng.below(outstanding + 1);
            }
            let count = self.board.segments.len() as u64;
            let place = usize::try_from(self.rng.below(count + 1)).expect("small");
            self.board.segments.get(place).map_or(self.nxt, |segment| segment.start)
        }

        fn acknowledge(&mut self) {
            let una = self.position().max(self.una);
            let before: Vec<_> = self.board.segments.iter().copied().collect();
            let mut news = Vec::new();
            self.board.advance(una, |delivered| news.push(delivered.end));
            let fresh = before.iter().filter(|segment| segment.end <= una && !segment.sacked);
            assert_eq!(news, fresh.map(|segment| segment.end).collect::<Vec<_>>());
            self.una = una;
        }

        fn report(&mut self) {
            let (a, b) = (self.position(), self.position());
            let (start, end) = (a.min(b), a.max(b));
            let before: Vec<_> = self.board.segments.iter().copied().collect();
            let mut news = Vec::new();
            self.board.sack(start, end, |delivered| news.push(delivered.end));
            let covered = |segment: &&Sent| segment.start >= start && segment.end <= end;
            let fresh = before.iter().filter(covered).filter(|segment| !segment.sacked);
            assert_eq!(news, fresh.map(|segment| segment.end).collect::<Vec<_>>());
        }

        fn act(&mut self) {
            match self.rng.below(20) {
                0..=7 => self.send(),
                8..=9 => self.acknowledge(),
                10..=13 => self.report(),
                14..=15 => {
                    let lost_below = self.board.lost_below(SEGMENT);
                    self.board.judge_originals(|sent| sent.end <= lost_below);
                }
                16 => {
                    let start = self.position();
                    if self.board.missing_at(start).is_some() {
                        self.board.lose(start);
                    }
                }
                17 => self.board.last().filter(|last| !last.sacked).into_iter().for_each(|last| {
                    self.board.retransmitted(self.now, last.start);
                }),
                18 if self.rng.below(20) == 0 => self.board.lose_all(),
                _ => {
                    if let Some(sent) = self.board.first_waiting() {
                        self.board.retransmitted(self.now, sent.start);
                    }
                }
            }
        }

        fn check(&self) {
            let board = &self.board;
            let marks = (board.pipe, board.sacked_bytes, board.waiting.iter().copied().collect());
            assert_eq!(marks, board.recount());
            let ranges: u64 = board.sacked.iter().map(|(start, end)| end - start).sum();
            assert_eq!(ranges, board.sacked_bytes);
            assert!(board.sacked.iter().zip(board.sacked.iter().skip(1)).all(|(a, b)| a.1 < b.0));
            let below = board.lost_below(SEGMENT);
            for (place, segment) in board.segments.iter().enumerate().filter(|s| !s.1.sacked) {
                assert_eq!(segment.end <= below, is_lost(board, place), "{segment:?} {below}");
            }
        }
    }

    /// RFC 6675, section 4, to the letter: three discontiguous sequences, or more than two segments'
    /// bytes, have arrived above.
    fn is_lost(board: &Scoreboard, place: usize) -> bool {
        let (mut sequences, mut bytes, mut before) = (0, 0, false);
        for segment in board.segments.iter().skip(place + 1) {
            if segment.sacked {
                bytes += segment.end - segment.start;
                sequences += u64::from(!before);
            }
            before = segment.sacked;
        }
        sequences >= DUPLICATE_THRESHOLD || bytes > (DUPLICATE_THRESHOLD - 1) * SEGMENT
    }

    /// Given anything that senders and peers may do, expect every counter and mark to agree with a
    /// full count, and IsLost with its definition.
    #[test]
    fn marks_agree_with_a_full_count() {
        for seed in 0..1_000 {
            let rng = Rng::stream(seed, "scoreboard");
            let now = Instant::START;
            let mut story = Story { board: Scoreboard::default(), rng, una: 1, nxt: 1, now };
            for step in 0..100 {
                story.now = Instant::from_millis(step);
                story.act();
                let checked = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
                    story.check();
                }));
                assert!(checked.is_ok(), "seed {seed}, step {step}: {:?}", story.board);
            }
        }
    }
}
