//! The retransmission timer (RFC 6298) and what its expiry does (RFC 5681, 3.1).

use super::conversation::{Talk, segments};
use super::plain;
use crate::tcp::config::Config;
use crate::time::Duration;

fn ssthresh(talk: &Talk, expected: u64) {
    talk.compare("ssthresh", Some(expected), |endpoint| endpoint.sender().control().ssthresh());
}

/// RFC 6298, 2.2: after one sample of 100 ms the time-out is 100 + 4 * 50. 5.5: it doubles, up to
/// the largest (2.5). RFC 5681, 3.1: repeated time-outs leave the threshold alone.
#[test]
fn the_timeout_doubles() {
    let mut config = plain();
    config.rto.max = Duration::from_secs(2);
    let mut talk = Talk::connected(Config { initial_window_segments: 8, ..config });
    talk.writes(100, 1 << 19, &segments(1, 8));
    for at in [400, 1_000, 2_200, 4_200, 6_200] {
        talk.timer(at, &segments(1, 1));
        talk.window(1_000);
        ssthresh(&talk, 4_000);
    }
    talk.compare("time-outs", 5, |endpoint| endpoint.sender().counters().timeouts);
}

/// RFC 6298, 5.1 to 5.3: the timer starts with the first segment, starts anew with each new ACK,
/// and stops when nothing is outstanding.
#[test]
fn the_timer_follows_the_left_edge() {
    let mut talk = Talk::connected(plain());
    talk.writes(100, 2_000, &segments(1, 1));
    talk.given(200, "1:1 ack 1001", &segments(1_001, 1));
    // Samples of 100 ms: SRTT 100, RTTVAR 50, 37.5: 100 + 150.
    talk.silent(220, "1:1 ack 1001");
    talk.compare("rto", Duration::from_micros(250_000), |endpoint| endpoint.sender().rtt().rto());
    talk.silent(300, "1:1 ack 2001");
    talk.idle();
}

/// RFC 6298, 3 (Karn): the ACK of a repeated segment is no sample and leaves the backed-off
/// time-out; the next new segment's is, and ends it.
#[test]
fn repeated_segments_are_not_timed() {
    let mut talk = Talk::connected(plain());
    talk.writes(100, 1 << 19, &segments(1, 1));
    talk.timer(400, &segments(1, 1));
    talk.given(410, "1:1 ack 1001", &segments(1_001, 2));
    talk.compare("rto", Duration::from_millis(600), |endpoint| endpoint.sender().rtt().rto());
    talk.hears(510, "1:1 ack 2001");
    talk.compare("rto", Duration::from_millis(250), |endpoint| endpoint.sender().rtt().rto());
}

/// The same with SACK, where segments carry their own times.
#[test]
fn repeated_segments_are_not_timed_with_sack_either() {
    let mut talk = Talk::connected(Config { sack: true, ..plain() });
    talk.writes(100, 1 << 19, &segments(1, 1));
    talk.timer(400, &segments(1, 1));
    talk.given(410, "1:1 ack 1001", &segments(1_001, 2));
    talk.compare("rto", Duration::from_millis(600), |endpoint| endpoint.sender().rtt().rto());
    talk.hears(510, "1:1 ack 2001");
    talk.compare("rto", Duration::from_millis(250), |endpoint| endpoint.sender().rtt().rto());
}

/// RFC 7323, 4.1: with timestamps, the ACK of a repeated segment is a sample. The timer that starts
/// with that ACK has the new time-out, not the backed-off one.
#[test]
fn a_timestamp_tells_the_round_trip_of_a_repeated_segment() {
    for sack in [false, true] {
        let mut talk = Talk::connected(Config { timestamps: true, sack, ..plain() });
        talk.writes(100, 2 * 988, "1:989 ack 1 ts 100/0");
        talk.timer(400, "1:989 ack 1 ts 400/0");
        talk.given(500, "1:1 ack 989 ts 9/400", "989:1977 ack 1 ts 500/9");
        talk.compare("samples", 2, |endpoint| endpoint.sender().rtt().total().1);
        talk.timer(750, "989:1977 ack 1 ts 750/9");
    }
}

/// RFC 7323, appendix G: five ACKs a round trip take no more from the variance than one does, a quarter.
/// Given a first sample of 100 ms (RTTVAR 50) and ten segments acknowledged by five ACKs, expect a
/// time-out between 100 + 4 * 50 (3/4) and 100 + 4 * 50. A gain of 1/4 an ACK would leave 4 * 12.
#[test]
fn many_samples_a_round_trip_do_not_hasten_the_variance() {
    for sack in [false, true] {
        let mut config = plain();
        config.rto.min = Duration::from_millis(1);
        let config = Config { timestamps: true, sack, initial_window_segments: 10, ..config };
        let mut talk = Talk::connected(config);
        talk.call(100, "writes", |endpoint, cx| endpoint.write(cx, 1 << 19));
        for ack in [1, 2, 3, 4, 5] {
            talk.hears(200, &format!("1:1 ack {} ts 9/100", 1 + ack * 2 * 988));
        }
        let rto = talk.endpoint.sender().rtt().rto();
        let expected = Duration::from_millis(250)..=Duration::from_millis(300);
        assert!(expected.contains(&rto), "{rto:?}");
    }
}

/// Without SACK a time-out goes back to the left edge; ACKs that jump over what had arrived move
/// the next number along. RFC 3465, 2.3: such a jump adds no more than a segment.
#[test]
fn go_back_n() {
    let config = Config { initial_window_segments: 8, slow_start_segments_per_ack: 8, ..plain() };
    let mut talk = Talk::connected(config);
    talk.writes(100, 1 << 19, &segments(1, 8));
    talk.timer(400, &segments(1, 1));
    talk.given(500, "1:1 ack 1001", &segments(1_001, 2));
    talk.given(600, "1:1 ack 6001", &segments(6_001, 3));
    talk.window(3_000);
    talk.compare("repetitions", 5, |endpoint| endpoint.sender().counters().retransmitted_segments);
}

/// A clock of 500 ms: a sample of 100 ms is a tick, the time-out 500 + 4 * 250, and it expires at a
/// tick of the host's clock.
#[test]
fn a_coarse_clock_ticks() {
    let mut config = plain();
    config.rto.granularity = Duration::from_millis(500);
    config.rto.min = Duration::from_secs(1);
    let mut talk = Talk::connected(config);
    talk.compare("rto", Duration::from_millis(1_500), |endpoint| endpoint.sender().rtt().rto());
    talk.writes(130, 1_000, &segments(1, 1));
    talk.timer(2_000, &segments(1, 1));
    talk.timer(5_000, &segments(1, 1));
}

/// An old ACK changes nothing, not even the timer.
#[test]
fn an_old_ack_is_ignored() {
    let mut talk = Talk::connected(plain());
    talk.writes(100, 1 << 19, &segments(1, 1));
    talk.given(200, "1:1 ack 1001", &segments(1_001, 2));
    for _ in 0..4 {
        talk.silent(300, "1:1 ack 1");
    }
    talk.timer(450, &segments(1_001, 1));
}
