//! The message in which a decoder tells the encoder what it has and what it misses.
//!
//! All counts are totals modulo 2^32 since the start of the session, so that one message replaces those
//! that were lost before it. Missing symbols are ranges relative to the first of them.
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | version 1; bit 7: there are more missing ranges than the message holds |
//! | 1 | number of missing ranges, at most 32 |
//! | 2-3 | deficit |
//! | 4-7 | serial number of the message |
//! | 8-11 | highest symbol known |
//! | 12-15 | first symbol not resolved |
//! | 16-19 | source symbols received |
//! | 20-23 | bursts of losses among them |
//! | 24-27 | symbols given up |
//! | 28-31 | relative one-way delay in microseconds, signed |
//! | 4 each | missing range: offset from the first symbol not resolved, length |
//!
//! Numbers are big-endian. A message has at most 160 bytes.

use crate::coding::SymbolId;

const VERSION: u8 = 1;
const TRUNCATED: u8 = 1 << 7;
const HEADER_BYTES: usize = 32;
const RANGE_BYTES: usize = 4;
/// The most missing ranges of a message.
pub const RANGES_MAX: usize = 32;
/// The most symbols between the first that is not resolved and the highest, both included. A decoder
/// gives up older ones: no window of RFC 8681 is longer than 4,095.
pub const SPAN_MAX: u32 = u16::MAX as u32;

/// Consecutive missing symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRange {
    /// The first of them, counted from [`Feedback::next`].
    pub offset: u16,
    /// Their number, at least one.
    pub length: u16,
}

impl MissingRange {
    /// The offset after the last one.
    #[must_use]
    pub fn end(self) -> u32 {
        u32::from(self.offset) + u32::from(self.length)
    }
}

/// See the module's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// The number of the message, for messages that overtake each other.
    pub serial: u32,
    /// The highest symbol known: received, or covered by received repair.
    pub highest: SymbolId,
    /// The first symbol that is neither decoded nor given up; all before it are resolved. The one after
    /// `highest` if nothing is missing.
    pub next: SymbolId,
    /// The missing symbols from `next` to `highest`, in order, neither overlapping nor adjacent.
    pub missing: Vec<MissingRange>,
    /// Whether there are more missing ranges behind these.
    pub is_truncated: bool,
    /// The equations that the decoder lacks: missing symbols minus innovative repair.
    pub deficit: u16,
    /// Source symbols received before decoding, without duplicates.
    pub received: u32,
    /// Runs of consecutive source symbols that were not received.
    pub bursts: u32,
    /// Symbols that were never decoded.
    pub given_up: u32,
    /// The mean one-way delay since the last message, relative to an arbitrary constant.
    pub delay_us: i32,
}

/// An error in the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedbackError {
    /// The message is shorter or longer than its fields.
    WrongLength,
    /// The version is unknown.
    UnknownVersion,
    /// There are too many ranges.
    TooManyRanges,
    /// `next` is more than [`SPAN_MAX`] before `highest`, or beyond the symbol after it.
    SpanTooLong,
    /// The ranges are empty, adjacent, out of order or beyond `highest`, or do not begin at `next`.
    BadRange,
}

impl Feedback {
    /// The missing ranges from `next` to `highest`, and whether there are more than [`RANGES_MAX`].
    #[must_use]
    pub fn missing_ranges(
        next: SymbolId,
        highest: SymbolId,
        mut is_missing: impl FnMut(SymbolId) -> bool,
    ) -> (Vec<MissingRange>, bool) {
        let mut ranges: Vec<MissingRange> = Vec::new();
        for offset in 0..span(next, highest).min(SPAN_MAX) {
            if !is_missing(next.plus(offset)) {
                continue;
            }
            if let Some(last) = ranges.last_mut().filter(|last| last.end() == offset) {
                last.length += 1;
                continue;
            }
            if ranges.len() == RANGES_MAX {
                return (ranges, true);
            }
            let offset = u16::try_from(offset).expect("below the span");
            ranges.push(MissingRange { offset, length: 1 });
        }
        (ranges, false)
    }

    /// Appends the bytes of the message. Ranges beyond [`RANGES_MAX`] are left out.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let ranges = &self.missing[..self.missing.len().min(RANGES_MAX)];
        let is_truncated = self.is_truncated || ranges.len() < self.missing.len();
        bytes.push(VERSION | if is_truncated { TRUNCATED } else { 0 });
        bytes.push(u8::try_from(ranges.len()).expect("at most 32"));
        bytes.extend(self.deficit.to_be_bytes());
        let words = [self.serial, self.highest.0, self.next.0, self.received, self.bursts];
        words.iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        bytes.extend(self.given_up.to_be_bytes());
        bytes.extend(self.delay_us.to_be_bytes());
        for range in ranges {
            bytes.extend(range.offset.to_be_bytes());
            bytes.extend(range.length.to_be_bytes());
        }
    }

    /// Reads a message, which takes all the bytes.
    ///
    /// # Errors
    /// If the bytes are no message, or its fields contradict each other. Every message that
    /// [`Feedback::encode`] wrote for valid fields is read back.
    pub fn parse(bytes: &[u8]) -> Result<Self, FeedbackError> {
        let (header, ranges) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(FeedbackError::WrongLength)?;
        if header[0] & !TRUNCATED != VERSION {
            return Err(FeedbackError::UnknownVersion);
        }
        let count = usize::from(header[1]);
        if count > RANGES_MAX {
            return Err(FeedbackError::TooManyRanges);
        }
        if ranges.len() != count * RANGE_BYTES {
            return Err(FeedbackError::WrongLength);
        }
        let half = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let ranges = ranges.chunks_exact(RANGE_BYTES);
        let missing =
            ranges.map(|range| MissingRange { offset: half(range, 0), length: half(range, 2) });
        let feedback = Self {
            serial: word(4),
            highest: SymbolId(word(8)),
            next: SymbolId(word(12)),
            missing: missing.collect(),
            is_truncated: header[0] & TRUNCATED != 0,
            deficit: half(header, 2),
            received: word(16),
            bursts: word(20),
            given_up: word(24),
            delay_us: word(28).cast_signed(),
        };
        feedback.validate()?;
        Ok(feedback)
    }

    fn validate(&self) -> Result<(), FeedbackError> {
        let span = span(self.next, self.highest);
        if span > SPAN_MAX {
            return Err(FeedbackError::SpanTooLong);
        }
        let begins_at_next = match self.missing.first() {
            Some(first) => first.offset == 0,
            None => span == 0,
        };
        let are_apart =
            self.missing.windows(2).all(|pair| u32::from(pair[1].offset) > pair[0].end());
        let are_inside = self.missing.iter().all(|range| range.length > 0 && range.end() <= span);
        let is_full = self.missing.len() == RANGES_MAX;
        if begins_at_next && are_apart && are_inside && (is_full || !self.is_truncated) {
            return Ok(());
        }
        Err(FeedbackError::BadRange)
    }

    /// Whether a symbol from `first` to `last` may be missing at the decoder.
    #[must_use]
    pub fn is_needed(&self, first: SymbolId, last: SymbolId) -> bool {
        if last.ahead_of(self.highest) > 0 {
            return true;
        }
        let Ok(last) = u32::try_from(last.ahead_of(self.next)) else { return false };
        let first = u32::try_from(first.ahead_of(self.next)).unwrap_or(0);
        let told = self.missing.last().map_or(0, |range| range.end());
        let overlaps =
            |range: &MissingRange| u32::from(range.offset) <= last && first < range.end();
        (self.is_truncated && last >= told) || self.missing.iter().any(overlaps)
    }
}

/// The number of symbols from `next` to `highest`, both included.
fn span(next: SymbolId, highest: SymbolId) -> u32 {
    highest.plus(1).0.wrapping_sub(next.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of the symbols up to 109, those from 100 on not in `missing` are decoded.
    fn feedback(missing: &[u32]) -> Feedback {
        let highest = SymbolId(109);
        let next = SymbolId(missing.first().copied().unwrap_or(110));
        let (missing, is_truncated) =
            Feedback::missing_ranges(next, highest, |id| missing.contains(&id.0));
        Feedback {
            serial: 7,
            highest,
            next,
            missing,
            is_truncated,
            deficit: 1,
            received: 95,
            bursts: 3,
            given_up: 2,
            delay_us: -5,
        }
    }

    fn encoded(feedback: &Feedback) -> Vec<u8> {
        let mut bytes = Vec::new();
        feedback.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_message_by_hand() {
        let bytes = encoded(&feedback(&[101, 102, 105]));
        let words: Vec<_> =
            bytes.chunks(4).map(|word| [word[0], word[1], word[2], word[3]]).collect();
        assert_eq!(words[0], [1, 2, 0, 1], "version, two ranges, deficit");
        let ids = [7u32, 109, 101, 95, 3, 2].map(u32::to_be_bytes);
        assert_eq!(words[1..7], ids);
        assert_eq!(words[7], [255, 255, 255, 251], "-5");
        assert_eq!(words[8..], [[0, 0, 0, 2], [0, 4, 0, 1]], "101 and 102; 105");
    }

    #[test]
    fn errors_are_reported() {
        let good = encoded(&feedback(&[101, 102, 105]));
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Feedback::parse(&bytes).expect_err("the change makes it invalid")
        };
        assert_eq!(Feedback::parse(&good[..39]), Err(FeedbackError::WrongLength));
        assert_eq!(Feedback::parse(&good[..31]), Err(FeedbackError::WrongLength));
        assert_eq!(with(0, 2), FeedbackError::UnknownVersion);
        assert_eq!(with(0, 0x81), FeedbackError::BadRange, "truncated with two ranges");
        assert_eq!(with(1, 33), FeedbackError::TooManyRanges);
        assert_eq!(with(1, 1), FeedbackError::WrongLength);
        assert_eq!(with(12, 9), FeedbackError::SpanTooLong);
        assert_eq!(with(33, 1), FeedbackError::BadRange, "the first is not at next");
        assert_eq!(with(37, 2), FeedbackError::BadRange, "adjacent");
        assert_eq!(with(39, 0), FeedbackError::BadRange, "empty");
        assert_eq!(with(39, 6), FeedbackError::BadRange, "beyond the highest");
    }

    #[test]
    fn repair_is_needed_for_missing_symbols_only() {
        let feedback = feedback(&[101, 102, 105]);
        let is_needed = |first, last| feedback.is_needed(SymbolId(first), SymbolId(last));
        assert!(!is_needed(60, 100) && is_needed(60, 101) && is_needed(102, 104));
        assert!(!is_needed(103, 104) && is_needed(103, 105) && !is_needed(106, 109));
        assert!(is_needed(106, 110), "110 is beyond what the decoder knows");
    }

    /// Given every second of 80 symbols missing, expect 32 ranges up to 62 and the rest untold.
    #[test]
    fn what_does_not_fit_may_be_missing() {
        let (next, highest) = (SymbolId(u32::MAX - 9), SymbolId(69));
        let is_missing = |id: SymbolId| id.ahead_of(next) % 2 == 0;
        let (missing, is_truncated) = Feedback::missing_ranges(next, highest, is_missing);
        assert_eq!((missing.len(), missing[31].offset, is_truncated), (32, 62, true));
        let feedback = Feedback { next, highest, missing, is_truncated, ..feedback(&[]) };
        assert!(!feedback.is_needed(next.plus(61), next.plus(61)));
        assert!(feedback.is_needed(next.plus(63), next.plus(63)), "untold");
        assert_eq!(encoded(&feedback).len(), 160);
        assert_eq!(Feedback::parse(&encoded(&feedback)), Ok(feedback));
    }

    proptest! {
        /// Given any missing symbols around the wrap, expect to read the message back, and every
        /// missing symbol to be needed.
        #[test]
        fn messages_are_read_back(
            start in prop_oneof![any::<u32>(), u32::MAX - 50..],
            missing in prop::collection::btree_set(0u32..300, 0..80),
            words in any::<[u32; 4]>(), deficit: u16, delay_us: i32,
        ) {
            let start = SymbolId(start);
            let highest = start.plus(299);
            let next = start.plus(missing.first().copied().unwrap_or(300));
            let is_missing = |id: SymbolId| missing.contains(&id.0.wrapping_sub(start.0));
            let (ranges, is_truncated) = Feedback::missing_ranges(next, highest, is_missing);
            let [serial, received, bursts, given_up] = words;
            let feedback = Feedback {
                serial, highest, next, missing: ranges, is_truncated, deficit, received, bursts,
                given_up, delay_us,
            };
            let bytes = encoded(&feedback);
            prop_assert_eq!(Feedback::parse(&bytes), Ok(feedback.clone()));
            for offset in 0..300 {
                let id = start.plus(offset);
                let is_needed = feedback.is_needed(id, id);
                prop_assert!(is_needed || !is_missing(id));
                prop_assert!(is_truncated || is_needed == is_missing(id));
            }
        }

        /// Given any bytes, expect an error or a message of the same bytes.
        #[test]
        fn any_bytes_are_read_or_rejected(
            mut bytes in prop::collection::vec(any::<u8>(), 0..170), ranges in 0u8..35,
        ) {
            if let [version, count, ..] = &mut bytes[..] {
                (*version, *count) = (*version % 2 * 128 + 1, ranges);
            }
            if let Ok(feedback) = Feedback::parse(&bytes) {
                prop_assert_eq!(encoded(&feedback), bytes);
            }
        }
    }
}
