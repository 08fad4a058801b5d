//! The retransmission timer where Linux differs from the RFCs.

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::config::{Config, StackVariant};
use crate::time::Duration;

fn linux() -> Config {
    Config {
        sack: true,
        rack_tlp: true,
        initial_window_segments: 10,
        stack: StackVariant::Linux,
        ..plain()
    }
}

fn ssthresh(host: &Host, expected: u64) {
    host.compare("ssthresh", Some(expected), |endpoint| endpoint.sender().control().ssthresh());
}

/// `tcp_enter_loss` sets ssthresh only in a state before recovery, when the data of the last
/// reduction was acknowledged, or in the loss state after progress. Given ten segments and a fast
/// recovery (ssthresh 10 / 2) in which everything is lost, expect an ssthresh of 5 through two
/// timeouts. RFC 6675 (5.1) halves the flight size at the first of them.
#[test]
fn a_timeout_in_fast_recovery_does_not_reduce_ssthresh_again() {
    for stack in [StackVariant::Linux, StackVariant::Rfc] {
        for sack in [true, false] {
            let mut host = Host::connected(Config { sack, stack, ..linux() });
            host.writes(100, 10_000, &segments(1, 10));
            let blocks = ["1001-2001", "1001-3001", "1001-4001"];
            for block in blocks {
                let block = if sack { format!(" sack {block}") } else { String::new() };
                host.receives(200, &format!("1:1 ack 1{block}"));
            }
            ssthresh(&host, 5_000);
            host.window(5_000);
            host.time_out();
            // RFC 5681, equation 4, with the cwnd of recovery: 5 / 2, or at least 2 segments.
            ssthresh(&host, if stack == StackVariant::Linux { 5_000 } else { 2_500 });
            host.time_out();
            ssthresh(&host, if stack == StackVariant::Linux { 5_000 } else { 2_500 });
        }
    }
}

/// `tcp_rtt_estimator`: given a first sample of 100 ms, rttvar is 200 ms. Of the five ACKs of the
/// next round, the first ends a round with that as its maximum mdev; after it mdev is 150, then
/// 112.5 and less, which counts only at the end of the round: expect a timeout of 300 ms. With the
/// first ACK beyond that round, expect rttvar to decrease by a quarter of 200 - 112.5. RFC 6298
/// with 1/4 per ACK would be at 147.
#[test]
fn the_variance_decreases_at_the_end_of_a_round_trip() {
    let mut config = linux();
    config.rto.min = Duration::from_millis(1);
    let mut host = Host::connected(config);
    host.writes(100, 1 << 19, &segments(1, 10));
    let rto = |host: &Host, micros| {
        let expected = Duration::from_micros(micros);
        host.compare("rto", expected, |endpoint| endpoint.sender().rtt().rto());
    };
    for ack in [1, 2, 3, 4, 5] {
        host.receives(200, &format!("1:1 ack {}", ack * 2_000 + 1));
        rto(&host, 300_000);
    }
    host.receives(300, "1:1 ack 12001");
    rto(&host, 278_125);
}

/// `tcp_enter_loss` in the loss state: progress since the last timeout makes the next one a new
/// reduction. Given ten segments all lost (ssthresh 5), of which one is repaired and the next two
/// are lost again (cwnd 2), expect the minimum ssthresh of two segments (`tcp_reno_ssthresh`).
#[test]
fn a_timeout_after_progress_reduces_ssthresh_again() {
    let mut host = Host::connected(linux());
    host.writes(100, 10_000, &segments(1, 10));
    let (at, _) = host.time_out();
    ssthresh(&host, 5_000);
    let at_ms = at.as_nanos() / 1_000_000;
    host.given(at_ms + 100, "1:1 ack 1001", &segments(1_001, 2));
    host.time_out();
    ssthresh(&host, 2_000);
}

/// `tcp_schedule_loss_probe`: new data reschedules the probe two RTTs later; the timeout moves it
/// earlier only if that of the first outstanding segment is in the future (`tcp_rto_delta_us` is
/// positive). Given an RTT of 100 ms, a timeout at its minimum of 150 ms after some rounds, and
/// segments A at 0, B at 10 ms and C at 195 ms, of which A is acknowledged at 100 ms, expect the
/// probe at 395 ms: B's timeout ended at 160 ms. RFC 8985 (7.2) sends it at 250 ms, with the
/// timeout that the ACK started.
#[test]
fn a_probe_is_sent_two_rtts_later_where_the_first_timeout_has_passed() {
    for stack in [StackVariant::Linux, StackVariant::Rfc] {
        let mut config = Config { stack, ..linux() };
        config.rto.min = Duration::from_millis(150);
        let mut host = Host::connected(config);
        for round in 1..=20 {
            let (start, at_ms) = (round * 1_000 - 999, u64::from(round) * 100);
            host.writes(at_ms, 1_000, &segments(start, 1));
            host.no_reply(at_ms + 100, &format!("1:1 ack {}", start + 1_000));
        }
        host.writes(3_000, 1_000, &segments(20_001, 1));
        host.writes(3_010, 1_000, &segments(21_001, 1));
        host.no_reply(3_100, "1:1 ack 21001");
        host.writes(3_195, 1_000, &segments(22_001, 1));
        let probe = segments(22_001, 1);
        host.timer(3_250, if stack == StackVariant::Linux { "" } else { &probe });
        if stack == StackVariant::Linux {
            host.timer(3_395, &probe);
        }
    }
}
