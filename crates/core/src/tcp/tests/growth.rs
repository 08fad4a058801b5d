//! Growth of cwnd (RFC 5681, 3.1; RFC 3465; RFC 6928; RFC 9406; RFC 9438).

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::config::{AvoidanceCounting, Config, CongestionName, StackVariant};
use crate::tcp::congestion::{Acked, Control};
use crate::time::Instant;

const ENDLESS: u64 = 1 << 19;

/// RFC 5681, 3.1: given an initial window of one segment and an ACK for each, expect cwnd to double
/// every round trip.
#[test]
fn slow_start_doubles_from_one_segment() {
    let mut host = Host::connected(plain());
    host.writes(100, ENDLESS, &segments(1, 1));
    host.given(200, "1:1 ack 1001", &segments(1_001, 2));
    host.given(300, "1:1 ack 2001", &segments(3_001, 2));
    host.given(300, "1:1 ack 3001", &segments(5_001, 2));
    host.window(4_000);
}

/// RFC 6928: expect ten segments at once.
#[test]
fn an_initial_window_of_ten() {
    let mut host = Host::connected(Config { initial_window_segments: 10, ..plain() });
    host.writes(100, ENDLESS, &segments(1, 10));
    host.given(200, "1:1 ack 2001", &segments(10_001, 3));
}

/// RFC 3465, 2.2: expect one ACK to add at most L segments, regardless of what it acknowledges.
#[test]
fn one_ack_adds_at_most_l_segments() {
    for (limit, sent) in [(1, 5), (2, 6), (65_535, 8)] {
        let config =
            Config { initial_window_segments: 4, slow_start_segments_per_ack: limit, ..plain() };
        let mut host = Host::connected(config);
        host.writes(100, ENDLESS, &segments(1, 4));
        host.given(200, "1:1 ack 4001", &segments(4_001, sent));
    }
}

/// Given an application-limited flow, expect cwnd not to grow (RFC 7661).
#[test]
fn an_application_limited_window_does_not_grow() {
    let mut host = Host::connected(Config { initial_window_segments: 4, ..plain() });
    host.writes(100, 1_000, &segments(1, 1));
    host.no_reply(200, "1:1 ack 1001");
    host.window(4_000);
}

/// A connection in congestion avoidance with a cwnd of 4, after one loss in a flight of eight (RFC
/// 5681, 3.2).
fn in_avoidance(config: Config) -> Host {
    let mut host = Host::connected(Config { initial_window_segments: 8, ..config });
    host.writes(100, ENDLESS, &segments(1, 8));
    host.no_reply(200, "1:1 ack 1");
    host.no_reply(200, "1:1 ack 1");
    host.given(200, "1:1 ack 1", &segments(1, 1));
    for _ in 0..3 {
        host.receives(200, "1:1 ack 1");
    }
    host.receives(300, "1:1 ack 8001");
    host.window(4_000);
    host
}

/// RFC 3465, 2.1: expect one segment per cwnd of acknowledged bytes.
#[test]
fn avoidance_by_bytes_adds_a_segment_per_round() {
    let mut host = in_avoidance(plain());
    host.receives(400, "1:1 ack 10001");
    host.window(4_000);
    host.receives(400, "1:1 ack 12001");
    host.window(5_000);
}

/// RFC 5681, equation 3: expect mss * mss / cwnd for each ACK.
#[test]
fn avoidance_by_acks_adds_half_a_segment_per_round_with_delayed_acks() {
    let mut host = in_avoidance(Config { avoidance: AvoidanceCounting::Acks, ..plain() });
    host.receives(400, "1:1 ack 10001");
    host.window(4_250);
    host.receives(400, "1:1 ack 12001");
    host.window(4_250 + 235);
}

/// RFC 9438: expect 0.7 of cwnd after a loss (4.6), and W_cubic to return to the previous cwnd
/// (4.2). Reno would grow from 42 to 51 in the same time, so the Reno-friendly region does not
/// apply (4.3).
#[test]
fn cubic_reduces_by_three_tenths_and_recovers() {
    let config =
        Config { congestion: CongestionName::Cubic, initial_window_segments: 60, ..plain() };
    let mut host = Host::connected(config);
    host.writes(100, 1 << 25, &segments(1, 60));
    for _ in 0..3 {
        host.receives(300, "1:1 ack 1");
    }
    host.compare("ssthresh", Some(42_000), |endpoint| endpoint.sender().control().ssthresh());
    host.receives(400, "1:1 ack 60001");
    host.window(42_000);
    // K = cbrt(18 / 0.4) = 3.56 s: after 18 round trips of 200 ms cwnd is back at 60. At half of K
    // it is 60 - 18 / 8.
    for round in 0..18u64 {
        let sent = host.endpoint.sender().max();
        host.receives(600 + round * 200, &format!("1:1 ack {sent}"));
        let window = host.endpoint.sender().control().cwnd();
        assert!((42_000..=60_000).contains(&window), "round {round}: {window}");
        assert!(round != 8 || (57_000..=58_000).contains(&window), "{window}");
    }
    let window = host.endpoint.sender().control().cwnd();
    assert!((59_400..=60_000).contains(&window), "{window}");
}

/// RFC 9438, 4.8: after a timeout, expect the cubic function to start from the cwnd at the end of
/// slow start, with K = 0.
#[test]
fn cubic_resets_w_max_at_a_timeout() {
    let config =
        Config { congestion: CongestionName::Cubic, initial_window_segments: 20, ..plain() };
    let mut host = Host::connected(config);
    host.writes(100, 1 << 25, &segments(1, 20));
    host.timer(400, &segments(1, 1));
    host.compare("ssthresh", Some(14_000), |endpoint| endpoint.sender().control().ssthresh());
    let mut acked = 20_001;
    host.receives(500, &format!("1:1 ack {acked}"));
    while host.endpoint.sender().control().in_slow_start() {
        acked += 1_000;
        host.receives(500, &format!("1:1 ack {acked}"));
    }
    host.window(14_000);
    // One second of round trips of 100 ms: Reno's 0.53 per round is ahead of 0.4 segments.
    for round in 6..16u64 {
        let sent = host.endpoint.sender().max();
        host.receives(round * 100, &format!("1:1 ack {sent}"));
    }
    let window = host.endpoint.sender().control().cwnd();
    assert!((18_000..=19_600).contains(&window), "{window}");
}

/// RFC 9406, 4.2 and 4.3: given an RTT increase by an eighth, expect a quarter of the growth.
#[test]
fn hystart_slows_growth_when_the_rtt_increases() {
    let standard = slow_start_with_rising_delay(false);
    let conservative = slow_start_with_rising_delay(true);
    // Each of the 32 ACKs of the last round adds a segment, or a quarter of one from the eighth on.
    assert_eq!(standard, 64_000);
    assert_eq!(conservative, 32_000 + 7_000 + 25 * 250);
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
    let mut host = Host::connected(config);
    host.writes(100, ENDLESS, &segments(1, 16));
    let mut acked = 1;
    for (at, acks) in [(200, 16), (330, 32)] {
        for _ in 0..acks {
            acked += 1_000;
            host.receives(at, &format!("1:1 ack {acked}"));
        }
    }
    host.endpoint.sender().control().cwnd()
}

/// RFC 5681, 3.1, and Linux, `tcp_slow_start`: given an ssthresh of 5000 and a cwnd of 4000, expect
/// an ACK of 4000 bytes to reach ssthresh with 1000 of them. The other 3000 count for congestion
/// avoidance, which adds a segment after 2000 more.
#[test]
fn slow_start_stops_at_ssthresh() {
    for stack in [StackVariant::Rfc, StackVariant::Linux] {
        let config = Config {
            initial_window_segments: 10,
            slow_start_segments_per_ack: 65_535,
            stack,
            ..plain()
        };
        let mut control = Control::new(&config);
        control.timed_out(10_000, false);
        let mut window_after = |bytes| {
            let now = Instant::from_millis(100);
            control.on_ack(&Acked { now, bytes, rtt: None, srtt: None, una: 1, nxt: 1 });
            control.cwnd()
        };
        assert_eq!(window_after(3_000), 4_000);
        assert_eq!(window_after(4_000), 5_000);
        assert_eq!(window_after(2_000), 6_000);
    }
}
