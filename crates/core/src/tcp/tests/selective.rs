//! Loss recovery with SACK (RFC 6675) and proportional rate reduction (RFC 6937).

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::config::Config;

fn sack() -> Config {
    Config { sack: true, initial_window_segments: 10, ..plain() }
}

fn ten_outstanding(config: Config) -> Host {
    let mut host = Host::connected(config);
    host.writes(100, 1 << 19, &segments(1, 10));
    host
}

/// RFC 6675, 4 (IsLost): expect a loss with more than two segments' bytes SACKed above; until then
/// each block allows one new segment (4, pipe; RFC 3042).
#[test]
fn three_segments_above_a_hole_mean_loss() {
    let mut host = ten_outstanding(sack());
    host.given(200, "1:1 ack 1 sack 1001-2001", &segments(10_001, 1));
    host.given(200, "1:1 ack 1 sack 1001-3001", &segments(11_001, 1));
    // Twelve are outstanding and cwnd is five: pipe is 8, and the first is retransmitted all the
    // same.
    host.given(200, "1:1 ack 1 sack 1001-4001", &segments(1, 1));
    host.window(5_000);
    host.compare("pipe", 9_000, |endpoint| endpoint.sender().in_flight());
}

/// IsLost also counts ranges: expect a loss below three, however short.
#[test]
fn three_ranges_above_a_hole_mean_loss() {
    let mut host = ten_outstanding(Config { initial_window_segments: 10, ..sack() });
    host.given(200, "1:1 ack 1 sack 1001-2001", &segments(10_001, 1));
    host.given(200, "1:1 ack 1 sack 3001-4001 sack 1001-2001", &segments(11_001, 1));
    let three = "1:1 ack 1 sack 5001-6001 sack 3001-4001 sack 1001-2001";
    host.given(200, three, &segments(1, 1));
}

/// RFC 6675, 5, step C and NextSeg: while pipe is below cwnd, expect lost holes first, then new
/// data; never SACKed data, and no hole twice.
#[test]
fn lost_holes_first_then_new_data_never_sacked_data() {
    let mut host = ten_outstanding(sack());
    // 1, 3 and 5 are lost; 6 to 10 are delivered.
    host.receives(200, "1:1 ack 1 sack 1001-2001");
    host.receives(200, "1:1 ack 1 sack 3001-4001 sack 1001-2001");
    let blocks = "sack 5001-6001 sack 3001-4001 sack 1001-2001";
    host.given(200, &format!("1:1 ack 1 {blocks}"), &segments(1, 1));
    // pipe: the first again, 5, 7 to 10, two new ones = 8; at 4, below 5, the next hole is
    // retransmitted.
    for end in [7_001, 8_001, 9_001] {
        let blocks = format!("sack 5001-{end} sack 3001-4001 sack 1001-2001");
        let holes = if end == 9_001 { segments(2_001, 1) } else { String::new() };
        let sent = host.receives(200, &format!("1:1 ack 1 {blocks}"));
        let expected = if sent.is_empty() { String::new() } else { holes };
        assert_eq!(sent, expected);
    }
    let all = "sack 5001-12001 sack 3001-4001 sack 1001-2001";
    let rest = [segments(2_001, 1), segments(4_001, 1), segments(12_001, 2)].join(" | ");
    let sent = host.receives(210, &format!("1:1 ack 1 {all}"));
    assert!(rest.ends_with(&sent) && sent.contains("4001:5001"), "{sent}");
    host.compare("pipe", 5_000, |endpoint| endpoint.sender().in_flight());
    host.compare("retransmissions", 3, |endpoint| {
        endpoint.sender().counters().retransmitted_segments
    });
}

/// RFC 6675, 5.1: given a lost retransmission, expect the timer to expire during recovery and
/// everything unSACKed to be retransmitted.
#[test]
fn the_timer_repairs_a_lost_retransmission() {
    let mut host = ten_outstanding(sack());
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    host.receives(200, "1:1 ack 1 sack 1001-10001");
    let sent = host.endpoint.sender().max();
    host.timer(400, &segments(1, 1));
    host.window(1_000);
    host.receives(500, &format!("1:1 ack {sent}"));
    // Slow start: the jump over SACKed data must not cause a burst.
    let window = host.endpoint.sender().control().cwnd();
    assert!(window <= 2_000 + (sent - 10_001), "{window}");
    host.compare("timeouts", 1, |endpoint| endpoint.sender().counters().timeouts);
}

/// Expect recovery to end when everything outstanding at its start is acknowledged, and not at a
/// partial ACK: one reduction per window.
#[test]
fn one_reduction_per_window() {
    let mut host = ten_outstanding(sack());
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    host.window(5_000);
    host.receives(250, "1:1 ack 1 sack 5001-10001 sack 1001-4001");
    host.receives(300, "1:1 ack 4001 sack 5001-10001");
    host.window(5_000);
    let sent = host.endpoint.sender().max();
    host.receives(400, &format!("1:1 ack {sent}"));
    host.window(5_000);
    host.compare("recoveries", 1, |endpoint| endpoint.sender().counters().fast_recoveries);
}

/// RFC 6937, 3.1: given twenty outstanding and the first lost, expect one segment for every two
/// delivered, and cwnd to end at ssthresh.
#[test]
fn prr_sends_one_segment_for_two_delivered() {
    let config = Config { initial_window_segments: 20, prr: true, ..sack() };
    let mut host = Host::connected(config);
    host.writes(100, 1 << 19, &segments(1, 20));
    let mut sent = 0;
    for delivered in 2..=20u32 {
        let end = delivered * 1_000 + 1;
        let text = host.receives(200, &format!("1:1 ack 1 sack 1001-{end}"));
        sent += if text.is_empty() { 0 } else { text.split(" | ").count() };
        assert!(text.matches('|').count() == 0, "no burst: {text}");
    }
    // Limited transmit 2, the retransmission 1, then one for every two of the other sixteen.
    assert!((10..=12).contains(&sent), "{sent}");
    host.given(300, "1:1 ack 20001", &segments(29_001, 1));
    host.window(10_000);
}

/// RFC 2018, 8: given a peer that SACKed everything but acknowledges nothing, expect its SACKs to
/// be discarded after a timeout.
#[test]
fn a_peer_may_renege() {
    let mut host = Host::connected(sack());
    host.writes(100, 3_000, &segments(1, 3));
    host.no_reply(200, "1:1 ack 1 sack 1-3001");
    host.timer(400, &segments(1, 1));
    host.given(500, "1:1 ack 1001", &segments(1_001, 2));
    host.no_reply(600, "1:1 ack 3001");
    host.idle();
}

/// Given old, empty and invalid blocks, expect no effect.
#[test]
fn invalid_blocks_are_ignored() {
    let mut host = ten_outstanding(sack());
    host.no_reply(200, "1:1 ack 1 sack 0-1 sack 500-900 sack 5001-4001");
    host.no_reply(200, "1:1 ack 1 sack 100001-200001 sack 1-1");
    host.compare("pipe", 10_000, |endpoint| endpoint.sender().in_flight());
    host.window(10_000);
}
