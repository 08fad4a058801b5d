//! What a SACK sender knows of each outstanding segment (RFC 6675, section 3).
//!
//! Segments lie in a ring in order of position. Every question asked per ACK is answered by a
//! counter or a mark that only moves forward, so the cost of an ACK follows what it newly tells,
//! not the size of the window: `pipe` is kept up to date at each change, selectively acknowledged
//! ranges are merged so that a repeated block costs one look-up, and lost segments wait in a sorted
//! list of their own.

use std::collections::VecDeque;

use super::seq::Position;
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

/// What an ACK newly told about one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivered {
    pub(super) end: Position,
    pub(super) sent_at: Instant,
    pub(super) retransmitted: bool,
}

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    segments: VecDeque<Sent>,
    /// Segments that were removed from the front since the start: marks count from the start.
    removed: u64,
    sacked: VecDeque<(Position, Position)>,
    sacked_bytes: u64,
    pipe: u64,
    /// Starts of lost segments that wait for their retransmission, sorted.
    waiting: VecDeque<Position>,
    /// Number, from the start, of the first segment whose original transmission is not judged.
    unjudged: u64,
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

    /// A new segment was sent.
    pub(super) fn sent(&mut self, now: Instant, start: Position, end: Position) {
        self.pipe += end - start;
        self.segments.push_back(Sent {
            start,
            end,
            sent_at: now,
            sacked: false,
            lost: false,
            retransmitted: false,
            in_flight: true,
        });
    }

    /// The first segment that waits for its retransmission.
    pub(super) fn first_waiting(&self) -> Option<Sent> {
        let place = self.place_of(*self.waiting.front()?);
        Some(self.segments[place])
    }

    /// The last segment, for a tail loss probe.
    pub(super) fn last(&self) -> Option<Sent> {
        self.segments.back().copied()
    }

    /// Whether any lost segment waits for its retransmission.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The segment at `start` was sent again.
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
        while let Some(first) = self.segments.front_mut() {
            if first.end > una {
                // A part of a segment: the peer may have cut it. The rest keeps its state.
                if first.start < una {
                    let cut = una - first.start;
                    if first.in_flight {
                        self.pipe -= cut;
                    }
                    if let Ok(found) = self.waiting.binary_search(&first.start) {
                        self.waiting[found] = una;
                    }
                    first.start = una;
                }
                break;
            }
            let first = *first;
            self.segments.pop_front();
            self.removed += 1;
            if first.in_flight {
                self.pipe -= first.end - first.start;
            }
            if first.sacked {
                self.sacked_bytes -= first.end - first.start;
            } else {
                news(first.into());
            }
        }
        while self.waiting.front().is_some_and(|&start| start < una) {
            self.waiting.pop_front();
        }
        while let Some(range) = self.sacked.front_mut() {
            if range.1 > una {
                range.0 = range.0.max(una);
                break;
            }
            self.sacked.pop_front();
        }
        self.unjudged = self.unjudged.max(self.removed);
    }

    /// The peer holds `start..end`. Reports what was not known before.
    pub(super) fn sack(&mut self, start: Position, end: Position, mut news: impl FnMut(Delivered)) {
        let (Some(first), Some(last)) = (self.segments.front(), self.segments.back()) else {
            return;
        };
        let (start, end) = (start.max(first.start), end.min(last.end));
        if start >= end {
            return;
        }
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
            self.sacked.drain(at + 1..after);
        }
    }

    fn mark_sacked(&mut self, start: Position, end: Position, news: &mut impl FnMut(Delivered)) {
        if start >= end {
            return;
        }
        let mut place = self.segments.partition_point(|segment| segment.start < start);
        while let Some(segment) = self.segments.get_mut(place) {
            if segment.end > end {
                break;
            }
            place += 1;
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
            let place = usize::try_from(self.unjudged - self.removed).expect("within the ring");
            let Some(&segment) = self.segments.get(place) else { return };
            let judged_before = segment.sacked || segment.lost || segment.retransmitted;
            if !judged_before {
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
        self.segments.get(usize::try_from(self.unjudged - self.removed).ok()?)
    }

    /// The segment that starts at `start`, if it is still outstanding and missing.
    pub(super) fn missing_at(&self, start: Position) -> Option<&Sent> {
        let place = self.segments.binary_search_by_key(&start, |segment| segment.start).ok()?;
        self.segments.get(place).filter(|segment| !segment.sacked)
    }

    /// The segment that starts at `start` is lost (again).
    pub(super) fn lose(&mut self, start: Position) {
        if let Ok(place) = self.segments.binary_search_by_key(&start, |segment| segment.start) {
            self.mark_lost(place);
        }
    }

    /// The retransmission timer expired: everything missing is lost (RFC 6675, 5.1).
    pub(super) fn lose_all(&mut self) {
        for place in 0..self.segments.len() {
            if !self.segments[place].sacked {
                self.mark_lost(place);
            }
        }
        self.unjudged = self.removed + self.segments.len() as u64;
    }

    fn mark_lost(&mut self, place: usize) {
        let segment = &mut self.segments[place];
        segment.lost = true;
        if segment.in_flight {
            segment.in_flight = false;
            self.pipe -= segment.end - segment.start;
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
