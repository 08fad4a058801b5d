//! The play-out of a video: media that arrives in segments is played from a buffer.
//!
//! Media is counted in time. Playing starts when the buffer has `start_up` of media, or all the rest.
//! It stalls when the buffer is empty before the end of the media, and resumes by the same rule. The
//! next segment is requested when the buffer has room for it. Terms are those of ITU-T P.1203:
//! initial loading delay (here start-up time) and stalling.

use bentpipe_core::time::{Duration, Instant};

use crate::plan::Media;

/// What a viewer has seen until some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Playback {
    /// The time from the start of the flow to the first frame; `None` before it.
    pub start_up: Option<Duration>,
    /// The number of stalls.
    pub stalls: u64,
    /// Their time.
    pub stalled: Duration,
    /// The media that was played.
    pub played: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first frame, or stalled.
    Waiting,
    Playing,
    /// All media was played.
    Ended,
}

/// A player; see the module documentation. Times of calls must not decrease.
#[derive(Clone, Debug)]
pub struct Player {
    segment: Duration,
    limit: Duration,
    start_up: Duration,
    start: Instant,
    /// The time to which the other fields apply.
    now: Instant,
    state: State,
    /// Media in the buffer.
    buffered: Duration,
    /// Media that has not arrived.
    left: Duration,
    playback: Playback,
}

impl Player {
    /// Creates a player of a flow that starts at `start`.
    #[must_use]
    pub fn new(media: &Media, start: Instant) -> Self {
        Self {
            segment: Duration::from_nanos(media.segment_ns),
            limit: Duration::from_nanos(media.buffer_ns),
            start_up: Duration::from_nanos(media.start_up_ns),
            start,
            now: start,
            state: State::Waiting,
            buffered: Duration::ZERO,
            left: Duration::from_nanos(media.duration_ns),
            playback: Playback::default(),
        }
    }

    /// Plays until `now`. It makes no difference at how many times before it is called.
    pub fn advance(&mut self, now: Instant) {
        let elapsed = now.saturating_since(self.now);
        self.now = self.now.max(now);
        match self.state {
            State::Waiting if self.playback.start_up.is_some() => self.playback.stalled += elapsed,
            State::Waiting | State::Ended => {}
            State::Playing => self.play(elapsed),
        }
    }

    fn play(&mut self, elapsed: Duration) {
        let played = elapsed.min(self.buffered);
        self.buffered = self.buffered.saturating_sub(played);
        self.playback.played += played;
        if self.buffered > Duration::ZERO {
            return;
        }
        if self.left == Duration::ZERO {
            self.state = State::Ended;
        } else if elapsed > played {
            // A segment that arrives when the buffer is just empty is in time.
            self.state = State::Waiting;
            self.playback.stalls += 1;
            self.playback.stalled += elapsed.saturating_sub(played);
        }
    }

    /// Adds the next segment, which is complete at `now`.
    pub fn add_segment(&mut self, now: Instant) {
        self.advance(now);
        let media = self.segment.min(self.left);
        self.left = self.left.saturating_sub(media);
        self.buffered += media;
        let is_enough = self.buffered >= self.start_up || self.left == Duration::ZERO;
        if self.state == State::Waiting && is_enough {
            self.state = State::Playing;
            self.playback.start_up.get_or_insert(self.now.saturating_since(self.start));
        }
    }

    /// When the buffer has room for the next segment; `None` if there is none.
    #[must_use]
    pub fn next_request(&self) -> Option<Instant> {
        let media = self.segment.min(self.left);
        // A player that waits has room: its buffer holds the segments that it waits for.
        let excess = (self.buffered + media).saturating_sub(self.limit);
        (media > Duration::ZERO).then_some(self.now + excess)
    }

    /// When the last frame is played; `None` before all media has arrived, and afterwards.
    #[must_use]
    pub fn end(&self) -> Option<Instant> {
        let is_last = self.state == State::Playing && self.left == Duration::ZERO;
        is_last.then_some(self.now + self.buffered)
    }

    /// Media in the buffer.
    #[must_use]
    pub fn buffered(&self) -> Duration {
        self.buffered
    }

    /// What the viewer has seen at `now`, which must not be before the last call.
    #[must_use]
    pub fn playback(&self, now: Instant) -> Playback {
        let mut player = self.clone();
        player.advance(now);
        player.playback
    }
}

/// A column of a replay: its name and its value.
pub type Moment = (&'static str, Option<u64>);

/// Replays a player from the times at which segments were complete, until `end_ns`: the columns of
/// the flow, and when the next request and the last frame are due. All times are in nanoseconds from the
/// start of the flow. `media` is the duration of the media and of a segment, the buffer and the start-up.
#[must_use]
pub fn replay(
    [duration_ns, segment_ns, buffer_ns, start_up_ns]: [u64; 4],
    arrivals_ns: impl IntoIterator<Item = u64>,
    end_ns: u64,
) -> [Moment; 6] {
    let media = Media { rate_bps: 1, duration_ns, segment_ns, buffer_ns, start_up_ns };
    let mut player = Player::new(&media, Instant::START);
    for at_ns in arrivals_ns.into_iter().filter(|&at_ns| at_ns <= end_ns) {
        player.add_segment(Instant::from_nanos(at_ns));
    }
    let Playback { start_up, stalls, stalled, played } =
        player.playback(Instant::from_nanos(end_ns));
    [
        ("start_up_time_ns", start_up.map(Duration::as_nanos)),
        ("stalls", Some(stalls)),
        ("stalled_ns", Some(stalled.as_nanos())),
        ("played_ns", Some(played.as_nanos())),
        ("next_request_ns", player.next_request().map(Instant::as_nanos)),
        ("last_frame_ns", player.end().map(Instant::as_nanos)),
    ]
}

/// The sizes of the segments of a video, in order.
#[derive(Clone, Debug)]
pub struct SegmentSizes {
    rate_bps: u64,
    segment_ns: u64,
    left_ns: u64,
}

impl SegmentSizes {
    /// The sizes of these segments.
    #[must_use]
    pub fn new(media: &Media) -> Self {
        let Media { rate_bps, duration_ns, segment_ns, .. } = *media;
        Self { rate_bps, segment_ns, left_ns: duration_ns }
    }
}

impl Iterator for SegmentSizes {
    type Item = u64;

    /// The size of the next segment in bytes, rounded up.
    fn next(&mut self) -> Option<u64> {
        let media_ns = self.segment_ns.min(self.left_ns);
        self.left_ns -= media_ns;
        (media_ns > 0).then(|| Media::bytes(self.rate_bps, media_ns))
    }
}

#[cfg(test)]
mod tests;
