//! The retransmission timer where Linux differs from the RFCs.

use super::conversation::{Talk, segments};
use super::plain;
use crate::tcp::config::{Config, Follows};
use crate::time::Duration;

fn linux() -> Config {
    Config {
        sack: true,
        rack_tlp: true,
        initial_window_segments: 10,
        follows: Follows::Linux,
        ..plain()
    }
}

fn ssthresh(talk: &Talk, expected: u64) {
    talk.compare("ssthresh", Some(expected), |endpoint| endpoint.sender().control().ssthresh());
}

/// `tcp_enter_loss` takes a new threshold only in a state before recovery, or when the data of the last
/// reduction was acknowledged, or in the loss state after progress. Given ten segments and a fast
/// recovery (threshold 10 / 2), of which everything is lost, expect the threshold to stay at 5
/// through two time-outs. RFC 6675 (5.1) halves what is outstanding at the first of them.
#[test]
fn a_timeout_in_fast_recovery_reduces_the_threshold_no_further() {
    for follows in [Follows::Linux, Follows::Rfc] {
        for sack in [true, false] {
            let mut talk = Talk::connected(Config { sack, follows, ..linux() });
            talk.writes(100, 10_000, &segments(1, 10));
            let blocks = ["1001-2001", "1001-3001", "1001-4001"];
            for block in blocks {
                let block = if sack { format!(" sack {block}") } else { String::new() };
                talk.hears(200, &format!("1:1 ack 1{block}"));
            }
            ssthresh(&talk, 5_000);
            talk.window(5_000);
            talk.time_out();
            // RFC 5681, equation 4, with the window of recovery: 5 / 2, or at least 2 segments.
            ssthresh(&talk, if follows == Follows::Linux { 5_000 } else { 2_500 });
            talk.time_out();
            ssthresh(&talk, if follows == Follows::Linux { 5_000 } else { 2_500 });
        }
    }
}

/// `tcp_rtt_estimator`: given a first sample of 100 ms, rttvar is 200 ms. Of the five ACKs of the next
/// round the first ends a round with that as its largest mdev; after it mdev is 150, then 112.5 and
/// less, which counts only at the end of the round: the time-out stays 300 ms. With the first ACK
/// beyond that round rttvar falls by a quarter of 200 - 112.5. RFC 6298 with 1/4 an ACK would be at 147.
#[test]
fn the_variance_falls_at_the_end_of_a_round_trip() {
    let mut config = linux();
    config.rto.min = Duration::from_millis(1);
    let mut talk = Talk::connected(config);
    talk.writes(100, 1 << 19, &segments(1, 10));
    let rto = |talk: &Talk, micros| {
        let expected = Duration::from_micros(micros);
        talk.compare("rto", expected, |endpoint| endpoint.sender().rtt().rto());
    };
    for ack in [1, 2, 3, 4, 5] {
        talk.hears(200, &format!("1:1 ack {}", ack * 2_000 + 1));
        rto(&talk, 300_000);
    }
    talk.hears(300, "1:1 ack 12001");
    rto(&talk, 278_125);
}

/// `tcp_enter_loss` once more: in the loss state, progress since the last time-out makes the next one a new
/// reduction. Given ten segments all lost, threshold 5, of which one is repaired and the next two
/// are lost again (window 2), expect the least threshold of two segments (`tcp_reno_ssthresh`).
#[test]
fn a_timeout_after_progress_reduces_the_threshold_again() {
    let mut talk = Talk::connected(linux());
    talk.writes(100, 10_000, &segments(1, 10));
    let (at, _) = talk.time_out();
    ssthresh(&talk, 5_000);
    let at_ms = at.as_nanos() / 1_000_000;
    talk.given(at_ms + 100, "1:1 ack 1001", &segments(1_001, 2));
    talk.time_out();
    ssthresh(&talk, 2_000);
}

/// `tcp_schedule_loss_probe`: new data starts the probe anew, two round trips later, and no earlier for
/// the time-out if that of the first outstanding segment is over (`tcp_rto_delta_us` is not positive).
/// Given a round trip of 100 ms, a time-out at its least of 150 ms after some rounds, and segments A at
/// 0, B at 10 ms and C at 195 ms, of which A is acknowledged at 100 ms, expect the probe at 395 ms: B's
/// time-out was over at 160 ms. RFC 8985 (7.2) sends it at 250 ms, with the time-out that the ACK started.
#[test]
fn a_probe_waits_two_round_trips_where_the_first_timeout_is_over() {
    for follows in [Follows::Linux, Follows::Rfc] {
        let mut config = Config { follows, ..linux() };
        config.rto.min = Duration::from_millis(150);
        let mut talk = Talk::connected(config);
        for round in 1..=20 {
            let (start, at_ms) = (round * 1_000 - 999, u64::from(round) * 100);
            talk.writes(at_ms, 1_000, &segments(start, 1));
            talk.silent(at_ms + 100, &format!("1:1 ack {}", start + 1_000));
        }
        talk.writes(3_000, 1_000, &segments(20_001, 1));
        talk.writes(3_010, 1_000, &segments(21_001, 1));
        talk.silent(3_100, "1:1 ack 21001");
        talk.writes(3_195, 1_000, &segments(22_001, 1));
        let probe = segments(22_001, 1);
        talk.timer(3_250, if follows == Follows::Linux { "" } else { &probe });
        if follows == Follows::Linux {
            talk.timer(3_395, &probe);
        }
    }
}
