//! The media of a video flow in a plan.

use serde::{Deserialize, Serialize};

use super::{BYTES_MAX, Check, RATE_BPS_MAX, TIME_NS_MAX};

/// Media at a constant bit rate, in segments of equal duration, and the buffer that it is played from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Media {
    /// Bits per second of media.
    pub rate_bps: u64,
    /// The duration of the media.
    pub duration_ns: u64,
    /// The duration of a segment; the last one may be shorter.
    pub segment_ns: u64,
    /// The most media that the player holds.
    pub buffer_ns: u64,
    /// The media in the buffer at which playing starts, and resumes after a stall.
    pub start_up_ns: u64,
}

impl Media {
    /// The size of media of this duration in bytes, rounded up.
    pub(crate) fn bytes(rate_bps: u64, media_ns: u64) -> u64 {
        const BIT_NS_PER_BYTE: u128 = 8 * 1_000_000_000;
        let size = (u128::from(rate_bps) * u128::from(media_ns)).div_ceil(BIT_NS_PER_BYTE);
        u64::try_from(size).unwrap_or(u64::MAX)
    }

    /// The number of segments.
    pub(crate) const fn segments(&self) -> u64 {
        self.duration_ns.div_ceil(self.segment_ns)
    }

    pub(super) fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let Self { rate_bps, duration_ns, segment_ns, buffer_ns, start_up_ns } = *self;
        check.within(rate_bps, 1..=RATE_BPS_MAX, || at("rate_bps"));
        check.within(duration_ns, 1..=TIME_NS_MAX, || at("duration_ns"));
        check.within(segment_ns, 1..=TIME_NS_MAX, || at("segment_ns"));
        check.that(
            Self::bytes(rate_bps, segment_ns) <= BYTES_MAX,
            || at("segment_ns"),
            "must be at most 2^50 bytes of media",
        );
        check.within(start_up_ns, 1..=TIME_NS_MAX, || at("start_up_ns"));
        check.within(buffer_ns, 1..=TIME_NS_MAX, || at("buffer_ns"));
        // Otherwise a player would wait for a segment that its buffer has no room for.
        check.that(
            buffer_ns >= start_up_ns.div_ceil(segment_ns.max(1)).saturating_mul(segment_ns),
            || at("buffer_ns"),
            "must hold start_up_ns, rounded up to whole segments",
        );
    }
}
