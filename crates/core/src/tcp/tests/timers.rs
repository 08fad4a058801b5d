//! The retransmission timer (RFC 6298) and its expiration (RFC 5681, 3.1).

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::config::Config;
use crate::time::Duration;

fn ssthresh(host: &Host, expected: u64) {
    host.compare("ssthresh", Some(expected), |endpoint| endpoint.sender().control().ssthresh());
}

/// RFC 6298, 2.2: after one sample of 100 ms, expect a timeout of 100 + 4 * 50 that doubles (5.5)
/// up to the maximum (2.5). RFC 5681, 3.1: repeated timeouts leave ssthresh unchanged.
#[test]
fn the_timeout_doubles() {
    let mut config = plain();
    config.rto.max = Duration::from_secs(2);
    let mut host = Host::connected(Config { initial_window_segments: 8, ..config });
    host.writes(100, 1 << 19, &segments(1, 8));
    for at in [400, 1_000, 2_200, 4_200, 6_200] {
        host.timer(at, &segments(1, 1));
        host.window(1_000);
        ssthresh(&host, 4_000);
    }
    host.compare("timeouts", 5, |endpoint| endpoint.sender().counters().timeouts);
}

/// RFC 6298, 5.1 to 5.3: expect the timer to start with the first segment, to restart with each new
/// ACK, and to stop with nothing outstanding.
#[test]
fn the_timer_follows_snd_una() {
    let mut host = Host::connected(plain());
    host.writes(100, 2_000, &segments(1, 1));
    host.given(200, "1:1 ack 1001", &segments(1_001, 1));
    // Samples of 100 ms: SRTT 100, RTTVAR 50, then 37.5: 100 + 150.
    host.no_reply(220, "1:1 ack 1001");
    host.compare("rto", Duration::from_micros(250_000), |endpoint| endpoint.sender().rtt().rto());
    host.no_reply(300, "1:1 ack 2001");
    host.idle();
}

/// RFC 6298, 3 (Karn): given an ACK of a retransmitted segment, expect no sample and the backed-off
/// timeout, until the next new segment is acknowledged.
#[test]
fn retransmitted_segments_are_not_timed() {
    let mut host = Host::connected(plain());
    host.writes(100, 1 << 19, &segments(1, 1));
    host.timer(400, &segments(1, 1));
    host.given(410, "1:1 ack 1001", &segments(1_001, 2));
    host.compare("rto", Duration::from_millis(600), |endpoint| endpoint.sender().rtt().rto());
    host.receives(510, "1:1 ack 2001");
    host.compare("rto", Duration::from_millis(250), |endpoint| endpoint.sender().rtt().rto());
}

/// The same with SACK, where RTTs come from the scoreboard.
#[test]
fn retransmitted_segments_are_not_timed_with_sack() {
    let mut host = Host::connected(Config { sack: true, ..plain() });
    host.writes(100, 1 << 19, &segments(1, 1));
    host.timer(400, &segments(1, 1));
    host.given(410, "1:1 ack 1001", &segments(1_001, 2));
    host.compare("rto", Duration::from_millis(600), |endpoint| endpoint.sender().rtt().rto());
    host.receives(510, "1:1 ack 2001");
    host.compare("rto", Duration::from_millis(250), |endpoint| endpoint.sender().rtt().rto());
}

/// RFC 7323, 4.1: with timestamps, expect a sample from the ACK of a retransmitted segment. The
/// timer that starts with that ACK uses the new timeout.
#[test]
fn a_timestamp_gives_the_rtt_of_a_retransmitted_segment() {
    for sack in [false, true] {
        let mut host = Host::connected(Config { timestamps: true, sack, ..plain() });
        host.writes(100, 2 * 988, "1:989 ack 1 ts 100/0");
        host.timer(400, "1:989 ack 1 ts 400/0");
        host.given(500, "1:1 ack 989 ts 9/400", "989:1977 ack 1 ts 500/9");
        host.compare("samples", 2, |endpoint| endpoint.sender().rtt().total().1);
        host.timer(750, "989:1977 ack 1 ts 750/9");
    }
}

/// RFC 7323, appendix G: given a first sample of 100 ms (RTTVAR 50) and ten segments acknowledged
/// by five ACKs, expect the variance to decrease by a quarter at most, as with one ACK: a timeout
/// between 100 + 4 * 50 (3/4) and 100 + 4 * 50. A gain of 1/4 per ACK would leave 4 * 12.
#[test]
fn many_samples_per_round_trip_do_not_reduce_the_variance_faster() {
    for sack in [false, true] {
        let mut config = plain();
        config.rto.min = Duration::from_millis(1);
        let config = Config { timestamps: true, sack, initial_window_segments: 10, ..config };
        let mut host = Host::connected(config);
        host.call(100, "writes", |endpoint, cx| endpoint.write(cx, 1 << 19));
        for ack in [1, 2, 3, 4, 5] {
            host.receives(200, &format!("1:1 ack {} ts 9/100", 1 + ack * 2 * 988));
        }
        let rto = host.endpoint.sender().rtt().rto();
        let expected = Duration::from_millis(250)..=Duration::from_millis(300);
        assert!(expected.contains(&rto), "{rto:?}");
    }
}

/// Without SACK, expect go-back-N after a timeout; ACKs that jump over data received before advance
/// SND.NXT. RFC 3465, 2.3: such a jump adds at most one segment.
#[test]
fn go_back_n() {
    let config = Config { initial_window_segments: 8, slow_start_segments_per_ack: 8, ..plain() };
    let mut host = Host::connected(config);
    host.writes(100, 1 << 19, &segments(1, 8));
    host.timer(400, &segments(1, 1));
    host.given(500, "1:1 ack 1001", &segments(1_001, 2));
    host.given(600, "1:1 ack 6001", &segments(6_001, 3));
    host.window(3_000);
    host.compare("retransmissions", 5, |endpoint| {
        endpoint.sender().counters().retransmitted_segments
    });
}

/// Given a clock granularity of 500 ms, expect a sample of 100 ms to be one tick, a timeout of 500
/// + 4 * 250, and its expiration at a tick of the host's clock.
#[test]
fn a_coarse_clock_rounds_up_to_ticks() {
    let mut config = plain();
    config.rto.granularity = Duration::from_millis(500);
    config.rto.min = Duration::from_secs(1);
    let mut host = Host::connected(config);
    host.compare("rto", Duration::from_millis(1_500), |endpoint| endpoint.sender().rtt().rto());
    host.writes(130, 1_000, &segments(1, 1));
    host.timer(2_000, &segments(1, 1));
    host.timer(5_000, &segments(1, 1));
}

/// Given an old ACK, expect no effect, even on the timer.
#[test]
fn an_old_ack_is_ignored() {
    let mut host = Host::connected(plain());
    host.writes(100, 1 << 19, &segments(1, 1));
    host.given(200, "1:1 ack 1001", &segments(1_001, 2));
    for _ in 0..4 {
        host.no_reply(300, "1:1 ack 1");
    }
    host.timer(450, &segments(1_001, 1));
}
