//! A player with given arrivals, compared with figures on paper and with a replay by time steps.

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// 20 s of media in segments of 4 s, a buffer of 12 s, and a start-up of 8 s.
const MEDIA: Media = Media {
    rate_bps: 1_000_000,
    duration_ns: 20 * SECOND,
    segment_ns: 4 * SECOND,
    buffer_ns: 12 * SECOND,
    start_up_ns: 8 * SECOND,
};

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * SECOND)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A player of a flow that starts at 10 s, with segments that are complete at these times.
fn player(arrivals: &[u64]) -> Player {
    let mut player = Player::new(&MEDIA, at(10));
    arrivals.iter().for_each(|&seconds| player.add_segment(at(seconds)));
    player
}

/// Given the second segment 3 s after the start, expect the first frame then. Given no other one,
/// expect a stall after 8 s of media.
#[test]
fn playing_starts_with_enough_media() {
    let player = player(&[11, 13]);
    let none = Playback::default();
    assert_eq!(self::player(&[11]).playback(at(90)), none);
    let seen = Playback { start_up: Some(seconds(3)), ..none };
    assert_eq!(player.playback(at(13)), seen);
    assert_eq!(player.playback(at(20)), Playback { played: seconds(7), ..seen });
    let stalled = Playback { played: seconds(8), stalls: 1, stalled: seconds(5), ..seen };
    assert_eq!(player.playback(at(26)), stalled);
}

/// Given an empty buffer at 21 s and segments at 24 s and 26 s, expect a stall of 5 s: playing
/// resumes with 8 s of media. Given the last segment at 34 s, when the buffer is just empty, expect
/// no other stall, and the last frame at 38 s.
#[test]
fn a_stall_ends_with_enough_media() {
    let player = player(&[11, 13, 24, 26, 34]);
    let all = Playback {
        start_up: Some(seconds(3)),
        stalls: 1,
        stalled: seconds(5),
        played: seconds(20),
    };
    assert_eq!(player.end(), Some(at(38)));
    assert_eq!(player.playback(at(38)), all);
    assert_eq!(player.playback(at(1_000)), all, "nothing follows the last frame");
}

/// Given a stall of which the rest of the media is shorter than the start-up, expect it to end with
/// the last segment.
#[test]
fn the_rest_of_the_media_is_enough() {
    let player = player(&[11, 13, 14, 15, 40]);
    // 16 s from 13 s on; empty at 29 s.
    let seen = player.playback(at(40));
    assert_eq!((seen.stalls, seen.stalled, seen.played), (1, seconds(11), seconds(16)));
    assert_eq!(player.end(), Some(at(44)));
}

/// Given a buffer of 12 s and segments of 4 s, expect a request at once up to 8 s, and then when 8 s
/// are left. Given all segments, expect none.
#[test]
fn a_request_waits_for_room() {
    assert_eq!(player(&[11]).next_request(), Some(at(11)));
    assert_eq!(player(&[11, 13]).next_request(), Some(at(13)));
    // 12 s less 1 s.
    assert_eq!(player(&[11, 13, 14]).next_request(), Some(at(17)));
    assert_eq!(player(&[11, 13, 14, 17, 20]).next_request(), None);
    assert_eq!(player(&[11, 13, 14, 17]).end(), None);
}

/// Given 10 s of 1 Mbit/s in segments of 4 s, expect 500 kB, 500 kB and 250 kB; given a rate that is
/// no whole number of bytes, expect the next larger size.
#[test]
fn segments_have_the_size_of_their_media() {
    let media = Media { duration_ns: 10 * SECOND, ..MEDIA };
    assert_eq!(SegmentSizes::new(&media).collect::<Vec<_>>(), [500_000, 500_000, 250_000]);
    let odd = Media { rate_bps: 3, ..media };
    assert_eq!(SegmentSizes::new(&odd).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(media.segments(), 3);
}

/// The same figures by a replay in steps of 1 ns.
fn by_steps(media: &Media, arrivals: &[u64], end_ns: u64) -> Playback {
    let mut seen = Playback::default();
    let (mut arrived, mut buffered, mut is_playing) = (0, 0, false);
    for at_ns in 0..=end_ns {
        for _ in arrivals.iter().filter(|&&arrival| arrival == at_ns) {
            let next = (arrived + media.segment_ns).min(media.duration_ns);
            buffered += next - arrived;
            arrived = next;
        }
        let is_last = arrived == media.duration_ns;
        if !is_playing && buffered > 0 && (buffered >= media.start_up_ns || is_last) {
            is_playing = true;
            seen.start_up.get_or_insert(Duration::from_nanos(at_ns));
        }
        if at_ns == end_ns {
            break;
        }
        if is_playing && buffered > 0 {
            buffered -= 1;
            seen.played += Duration::from_nanos(1);
        } else if seen.start_up.is_some() && !is_last {
            seen.stalls += u64::from(is_playing);
            is_playing = false;
            seen.stalled += Duration::from_nanos(1);
        } else if seen.start_up.is_some() && buffered > 0 {
            unreachable!("a player with all media plays it");
        }
    }
    seen
}

/// Media of some nanoseconds, which a player can play.
fn media() -> impl Strategy<Value = Media> {
    (1..60u64, 1..12u64, 1..25u64, 0..30u64).prop_map(|(duration, segment, start_up, more)| Media {
        rate_bps: 8_000_000_000,
        duration_ns: duration,
        segment_ns: segment,
        buffer_ns: start_up.div_ceil(segment) * segment + more,
        start_up_ns: start_up,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Given segments at any times, and calls at any times between them, expect the figures of the
    /// replay by steps.
    #[test]
    fn figures_are_those_of_a_replay_by_steps(
        media in media(),
        gaps in prop::collection::vec(0..20u64, 1..60),
        calls in prop::collection::vec(0..400u64, 0..20),
        end in 0..400u64,
    ) {
        let mut now = 0;
        let mut arrivals: Vec<u64> = gaps.iter().map(|gap| { now += gap; now }).collect();
        arrivals.truncate(usize::try_from(media.segments()).expect("few"));
        arrivals.retain(|&at| at <= end);
        let expected = by_steps(&media, &arrivals, end);
        let mut events: Vec<(u64, bool)> = arrivals.iter().map(|&at| (at, true)).collect();
        events.extend(calls.iter().filter(|&&at| at <= end).map(|&at| (at, false)));
        events.sort_by_key(|event| event.0);
        let mut player = Player::new(&media, Instant::START);
        for (at, is_arrival) in events {
            let now = Instant::from_nanos(at);
            if is_arrival { player.add_segment(now) } else { player.advance(now) }
        }
        prop_assert_eq!(player.playback(Instant::from_nanos(end)), expected);
        let fields = [media.duration_ns, media.segment_ns, media.buffer_ns, media.start_up_ns];
        let replayed = replay(fields, arrivals, end);
        prop_assert_eq!(replayed[2], ("stalled_ns", Some(expected.stalled.as_nanos())));
        prop_assert_eq!(replayed[3], ("played_ns", Some(expected.played.as_nanos())));
    }

    /// Given segments that take any time from their request, expect a player to play all media, its
    /// buffer to stay within its limit, and start-up, stalls and media to add up to the time.
    #[test]
    fn a_player_plays_all_that_it_requests(media in media(), takes in prop::collection::vec(0..40u64, 60)) {
        let mut player = Player::new(&media, Instant::START);
        let (mut arrived, mut now, mut takes) = (Duration::ZERO, Instant::START, takes.into_iter());
        while let Some(request) = player.next_request() {
            prop_assert!(request >= now);
            now = request + Duration::from_nanos(takes.next().expect("enough"));
            player.add_segment(now);
            arrived += Duration::from_nanos(media.segment_ns);
            prop_assert!(player.buffered() <= Duration::from_nanos(media.buffer_ns));
            let Playback { start_up, stalled, played, .. } = player.playback(now);
            prop_assert!(played <= arrived);
            let elapsed = now.saturating_since(Instant::START);
            match start_up {
                Some(start_up) => prop_assert_eq!(start_up + stalled + played, elapsed),
                None => prop_assert_eq!(stalled + played, Duration::ZERO),
            }
        }
        let end = player.end().expect("all media arrived");
        let Playback { start_up, stalled, played, .. } = player.playback(end);
        prop_assert_eq!(played, Duration::from_nanos(media.duration_ns));
        let elapsed = end.saturating_since(Instant::START);
        prop_assert_eq!(start_up.expect("it played") + stalled + played, elapsed);
    }
}
