//! How the window grows (RFC 5681, 3.1; RFC 3465; RFC 6928; RFC 9406; RFC 9438).

use super::conversation::{Talk, segments};
use super::plain;
use crate::tcp::config::{AvoidanceCounting, Config, CongestionName, Follows};
use crate::tcp::congestion::{Acked, Control};
use crate::time::Instant;

const ENDLESS: u64 = 1 << 19;

/// RFC 5681, 3.1: from one segment, an ACK for each doubles the window every round trip.
#[test]
fn slow_start_doubles_from_one_segment() {
    let mut talk = Talk::connected(plain());
    talk.writes(100, ENDLESS, &segments(1, 1));
    talk.given(200, "1:1 ack 1001", &segments(1_001, 2));
    talk.given(300, "1:1 ack 2001", &segments(3_001, 2));
    talk.given(300, "1:1 ack 3001", &segments(5_001, 2));
    talk.window(4_000);
}

/// RFC 6928: ten segments at once.
#[test]
fn an_initial_window_of_ten() {
    let mut talk = Talk::connected(Config { initial_window_segments: 10, ..plain() });
    talk.writes(100, ENDLESS, &segments(1, 10));
    talk.given(200, "1:1 ack 2001", &segments(10_001, 3));
}

/// RFC 3465, 2.2: L bounds what one ACK adds, however much it acknowledges.
#[test]
fn one_ack_adds_at_most_l_segments() {
    for (limit, sent) in [(1, 5), (2, 6), (65_535, 8)] {
        let config =
            Config { initial_window_segments: 4, slow_start_segments_per_ack: limit, ..plain() };
        let mut talk = Talk::connected(config);
        talk.writes(100, ENDLESS, &segments(1, 4));
        talk.given(200, "1:1 ack 4001", &segments(4_001, sent));
    }
}

/// An application that does not fill the window does not make it grow (RFC 7661's concern).
#[test]
fn an_unused_window_does_not_grow() {
    let mut talk = Talk::connected(Config { initial_window_segments: 4, ..plain() });
    talk.writes(100, 1_000, &segments(1, 1));
    talk.silent(200, "1:1 ack 1001");
    talk.window(4_000);
}

/// Loses the last segment of a flight of eight and comes out of it in congestion avoidance with a
/// window of 4 (RFC 5681, 3.2).
fn in_avoidance(config: Config) -> Talk {
    let mut talk = Talk::connected(Config { initial_window_segments: 8, ..config });
    talk.writes(100, ENDLESS, &segments(1, 8));
    talk.silent(200, "1:1 ack 1");
    talk.silent(200, "1:1 ack 1");
    talk.given(200, "1:1 ack 1", &segments(1, 1));
    for _ in 0..3 {
        talk.hears(200, "1:1 ack 1");
    }
    talk.hears(300, "1:1 ack 8001");
    talk.window(4_000);
    talk
}

/// RFC 3465, 2.1: a segment for each window's worth of acknowledged bytes.
#[test]
fn avoidance_by_bytes_adds_a_segment_a_round() {
    let mut talk = in_avoidance(plain());
    talk.hears(400, "1:1 ack 10001");
    talk.window(4_000);
    talk.hears(400, "1:1 ack 12001");
    talk.window(5_000);
}

/// RFC 5681, equation 3: mss * mss / cwnd for each ACK.
#[test]
fn avoidance_by_acks_adds_half_a_segment_a_round_with_delayed_acks() {
    let mut talk = in_avoidance(Config { avoidance: AvoidanceCounting::Acks, ..plain() });
    talk.hears(400, "1:1 ack 10001");
    talk.window(4_250);
    talk.hears(400, "1:1 ack 12001");
    talk.window(4_250 + 235);
}

/// RFC 9438, 4.6: 0.7 of the window is left; 4.2: W_cubic then climbs back to where it was. 4.3:
/// Reno would have come from 42 to 51 in the same time, so it is not in the way.
#[test]
fn cubic_reduces_by_three_tenths_and_climbs_back() {
    let config =
        Config { congestion: CongestionName::Cubic, initial_window_segments: 60, ..plain() };
    let mut talk = Talk::connected(config);
    talk.writes(100, 1 << 25, &segments(1, 60));
    for _ in 0..3 {
        talk.hears(300, "1:1 ack 1");
    }
    talk.compare("ssthresh", Some(42_000), |endpoint| endpoint.sender().control().ssthresh());
    talk.hears(400, "1:1 ack 60001");
    talk.window(42_000);
    // K = cbrt(18 / 0.4) = 3.56 s: after 18 round trips of 200 ms the window is back at 60. At half
    // of K it stands at 60 - 18 / 8.
    for round in 0..18u64 {
        let sent = talk.endpoint.sender().max();
        talk.hears(600 + round * 200, &format!("1:1 ack {sent}"));
        let window = talk.endpoint.sender().control().cwnd();
        assert!((42_000..=60_000).contains(&window), "round {round}: {window}");
        assert!(round != 8 || (57_000..=58_000).contains(&window), "{window}");
    }
    let window = talk.endpoint.sender().control().cwnd();
    assert!((59_400..=60_000).contains(&window), "{window}");
}

/// RFC 9438, 4.8: after a time-out, the cubic function starts from the window at which slow start
/// ends, with K = 0.
#[test]
fn cubic_forgets_its_peak_at_a_timeout() {
    let config =
        Config { congestion: CongestionName::Cubic, initial_window_segments: 20, ..plain() };
    let mut talk = Talk::connected(config);
    talk.writes(100, 1 << 25, &segments(1, 20));
    talk.timer(400, &segments(1, 1));
    talk.compare("ssthresh", Some(14_000), |endpoint| endpoint.sender().control().ssthresh());
    let mut acked = 20_001;
    talk.hears(500, &format!("1:1 ack {acked}"));
    while talk.endpoint.sender().control().in_slow_start() {
        acked += 1_000;
        talk.hears(500, &format!("1:1 ack {acked}"));
    }
    talk.window(14_000);
    // One second of round trips of 100 ms: Reno's 0.53 a round is ahead of 0.4 segments.
    for round in 6..16u64 {
        let sent = talk.endpoint.sender().max();
        talk.hears(round * 100, &format!("1:1 ack {sent}"));
    }
    let window = talk.endpoint.sender().control().cwnd();
    assert!((18_000..=19_600).contains(&window), "{window}");
}

/// RFC 9406, 4.2 and 4.3: when the round trip rises by an eighth, growth falls to a quarter.
#[test]
fn hystart_slows_down_when_the_round_trip_rises() {
    let fast = slow_start_with_rising_delay(false);
    let careful = slow_start_with_rising_delay(true);
    // Each of the 32 ACKs of the last round adds a segment, or a quarter of one from the eighth on.
    assert_eq!(fast, 64_000);
    assert_eq!(careful, 32_000 + 7_000 + 25 * 250);
}

/// Slow start from 16 segments, two round trips of 100 ms and a third of 130 ms.
fn slow_start_with_rising_delay(hystart: bool) -> u64 {
    let config = Config {
        hystart,
        sack: true,
        congestion: CongestionName::Cubic,
        initial_window_segments: 16,
        ..plain()
    };
    let mut talk = Talk::connected(config);
    talk.writes(100, ENDLESS, &segments(1, 16));
    let mut acked = 1;
    for (at, acks) in [(200, 16), (330, 32)] {
        for _ in 0..acks {
            acked += 1_000;
            talk.hears(at, &format!("1:1 ack {acked}"));
        }
    }
    talk.endpoint.sender().control().cwnd()
}

/// RFC 5681, 3.1, and Linux, `tcp_slow_start`: given a threshold of 5000 and a window of 4000, an ACK
/// of 4000 bytes takes the window to the threshold with 1000 of them. The other 3000 count for
/// congestion avoidance, which grows by a segment after 2000 more.
#[test]
fn slow_start_stops_at_the_threshold() {
    for follows in [Follows::Rfc, Follows::Linux] {
        let config = Config {
            initial_window_segments: 10,
            slow_start_segments_per_ack: 65_535,
            follows,
            ..plain()
        };
        let mut control = Control::new(&config);
        control.timed_out(10_000, false);
        let mut window_after = |bytes| {
            let now = Instant::from_millis(100);
            control.acked(&Acked { now, bytes, rtt: None, srtt: None, una: 1, nxt: 1 });
            control.cwnd()
        };
        assert_eq!(window_after(3_000), 4_000);
        assert_eq!(window_after(4_000), 5_000);
        assert_eq!(window_after(2_000), 6_000);
    }
}
