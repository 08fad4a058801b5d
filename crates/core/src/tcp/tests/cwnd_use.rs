//! Growth of cwnd while it is used, and not otherwise (Linux, `tcp_cwnd_validate` and
//! `tcp_is_cwnd_limited`; RFC 7661).

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::Config;

/// A connection with a cwnd of ten segments.
fn of_ten(sack: bool) -> Host {
    Host::connected(Config { initial_window_segments: 10, sack, ..plain() })
}

/// Given ACKs of `ends` at `at_ms`, one after the other.
fn acked(host: &mut Host, at_ms: u64, ends: impl IntoIterator<Item = u64>) {
    for end in ends {
        host.receives(at_ms, &format!("1:1 ack {}", 1 + end));
    }
}

/// Given 13 segments and a cwnd of ten, expect each of their ACKs to add a segment: ten of the first
/// flight, which filled cwnd, and three of the second one, which began before that was acknowledged. A
/// flight of two after that adds nothing.
#[test]
fn a_full_flight_grows_cwnd_until_it_is_acknowledged() {
    for sack in [false, true] {
        let mut host = of_ten(sack);
        host.writes(100, 13_000, &segments(1, 10));
        host.given(200, "1:1 ack 1001", &segments(10_001, 2));
        host.given(200, "1:1 ack 2001", &segments(12_001, 1));
        acked(&mut host, 200, (3..=10).map(|count| count * 1_000));
        host.window(20_000);
        acked(&mut host, 300, (11..=13).map(|count| count * 1_000));
        host.window(23_000);
        host.writes(300, 2_000, &segments(13_001, 2));
        acked(&mut host, 400, [14_000, 15_000]);
        host.window(23_000);
    }
}

/// Given exactly ten segments, the last one of 500 bytes, expect cwnd to grow by all acknowledged bytes:
/// it was full, although nothing waited. With nine segments expect slow start up to twice those.
#[test]
fn a_short_last_segment_fills_cwnd() {
    for sack in [false, true] {
        for (segments, bytes, expected) in [(10, 9_500, 19_500), (9, 8_500, 17_000)] {
            let mut host = of_ten(sack);
            host.call(100, "writes", |endpoint, cx| endpoint.write(cx, bytes));
            let ends = (1..=segments).map(|count| bytes.min(count * 1_000));
            acked(&mut host, 200, ends);
            host.window(expected);
        }
    }
}

/// Given six segments, at once or three and three, expect cwnd to grow to twice six, not further and
/// not only while six are outstanding.
#[test]
fn slow_start_reaches_twice_the_flight_of_the_application() {
    for writes in [&[6_000][..], &[3_000, 3_000]] {
        let mut host = of_ten(true);
        for &bytes in writes {
            host.call(100, "writes", |endpoint, cx| endpoint.write(cx, bytes));
        }
        acked(&mut host, 200, (1..=6).map(|count| count * 1_000));
        host.window(12_000);
    }
}

/// Given the flights 8, 2 and 2 of an application, expect the first to count until it is acknowledged:
/// cwnd grows from 10 to 16, and to no more with those of two.
#[test]
fn a_smaller_flight_counts_after_the_larger_one() {
    let mut host = of_ten(true);
    host.writes(100, 8_000, &segments(1, 8));
    acked(&mut host, 200, [1_000, 2_000]);
    host.window(12_000);
    host.writes(200, 2_000, &segments(8_001, 2));
    acked(&mut host, 210, (3..=8).map(|count| count * 1_000));
    host.window(16_000);
    host.writes(210, 2_000, &segments(10_001, 2));
    acked(&mut host, 300, [9_000, 10_000, 11_000, 12_000]);
    host.window(16_000);
}

/// Given a cwnd of four in congestion avoidance and nothing to send but one flight, expect a segment more
/// for a flight of four, which fills it, and none for one of three.
#[test]
fn avoidance_counts_flights_that_fill_cwnd() {
    for (sent, expected) in [(4, 5_000), (3, 4_000)] {
        let count = u64::from(sent);
        let mut host = Host::connected(Config { initial_window_segments: 8, ..plain() });
        host.writes(100, 8_000, &segments(1, 8));
        for _ in 0..3 {
            host.receives(200, "1:1 ack 1");
        }
        host.receives(300, "1:1 ack 8001");
        host.window(4_000);
        host.writes(300, count * 1_000, &segments(8_001, sent));
        acked(&mut host, 400, (1..=count).map(|count| 8_000 + count * 1_000));
        host.window(expected);
    }
}
