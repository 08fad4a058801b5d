//! Loss recovery with SACK (RFC 6675) and proportional rate reduction (RFC 6937).

use super::conversation::{Talk, segments};
use super::plain;
use crate::tcp::config::Config;

fn sack() -> Config {
    Config { sack: true, initial_window_segments: 10, ..plain() }
}

fn ten_out(config: Config) -> Talk {
    let mut talk = Talk::connected(config);
    talk.writes(100, 1 << 19, &segments(1, 10));
    talk
}

/// RFC 6675, 4 (IsLost): lost with more than two segments' bytes selectively acknowledged above;
/// until then each block lets out one new segment (4, pipe; RFC 3042).
#[test]
fn three_segments_above_a_hole_mean_loss() {
    let mut talk = ten_out(sack());
    talk.given(200, "1:1 ack 1 sack 1001-2001", &segments(10_001, 1));
    talk.given(200, "1:1 ack 1 sack 1001-3001", &segments(11_001, 1));
    // Twelve are out, half of the window of ten is left: pipe is 8 and the first goes all the same.
    talk.given(200, "1:1 ack 1 sack 1001-4001", &segments(1, 1));
    talk.window(5_000);
    talk.compare("pipe", 9_000, |endpoint| endpoint.sender().in_flight());
}

/// IsLost counts ranges too: three above a hole, however short.
#[test]
fn three_ranges_above_a_hole_mean_loss() {
    let mut talk = ten_out(Config { initial_window_segments: 10, ..sack() });
    talk.given(200, "1:1 ack 1 sack 1001-2001", &segments(10_001, 1));
    talk.given(200, "1:1 ack 1 sack 3001-4001 sack 1001-2001", &segments(11_001, 1));
    let three = "1:1 ack 1 sack 5001-6001 sack 3001-4001 sack 1001-2001";
    talk.given(200, three, &segments(1, 1));
}

/// RFC 6675, 5, step C and NextSeg: while pipe is below the window, first holes that are lost, then
/// new data; nothing that was selectively acknowledged, and no hole twice.
#[test]
fn holes_first_then_new_data_and_never_what_arrived() {
    let mut talk = ten_out(sack());
    // 1, 3 and 5 are lost; 6 to 10 arrived.
    talk.hears(200, "1:1 ack 1 sack 1001-2001");
    talk.hears(200, "1:1 ack 1 sack 3001-4001 sack 1001-2001");
    let blocks = "sack 5001-6001 sack 3001-4001 sack 1001-2001";
    talk.given(200, &format!("1:1 ack 1 {blocks}"), &segments(1, 1));
    // pipe: the first again, 5, 7 to 10, two new ones = 8; at 4 below 5 the next hole goes.
    for end in [7_001, 8_001, 9_001] {
        let blocks = format!("sack 5001-{end} sack 3001-4001 sack 1001-2001");
        let holes = if end == 9_001 { segments(2_001, 1) } else { String::new() };
        let sent = talk.hears(200, &format!("1:1 ack 1 {blocks}"));
        let expected = if sent.is_empty() { String::new() } else { holes };
        assert_eq!(sent, expected);
    }
    let all = "sack 5001-12001 sack 3001-4001 sack 1001-2001";
    let rest = [segments(2_001, 1), segments(4_001, 1), segments(12_001, 2)].join(" | ");
    let sent = talk.hears(210, &format!("1:1 ack 1 {all}"));
    assert!(rest.ends_with(&sent) && sent.contains("4001:5001"), "{sent}");
    talk.compare("pipe", 5_000, |endpoint| endpoint.sender().in_flight());
    talk.compare("repetitions", 3, |endpoint| endpoint.sender().counters().retransmitted_segments);
}

/// RFC 6675, 5.1: the timer keeps running during recovery. A lost retransmission needs it, and then
/// everything missing is repeated, but not what arrived.
#[test]
fn the_timer_repairs_a_lost_retransmission() {
    let mut talk = ten_out(sack());
    talk.hears(200, "1:1 ack 1 sack 1001-4001");
    talk.hears(200, "1:1 ack 1 sack 1001-10001");
    let sent = talk.endpoint.sender().max();
    talk.timer(400, &segments(1, 1));
    talk.window(1_000);
    talk.hears(500, &format!("1:1 ack {sent}"));
    // Slow start: the jump over what had arrived is no reason to send a window at once.
    let window = talk.endpoint.sender().control().cwnd();
    assert!(window <= 2_000 + (sent - 10_001), "{window}");
    talk.compare("time-outs", 1, |endpoint| endpoint.sender().counters().timeouts);
}

/// Recovery ends when everything that was out at its start is acknowledged, and a partial ACK does
/// not end it: one reduction a window.
#[test]
fn one_reduction_a_window() {
    let mut talk = ten_out(sack());
    talk.hears(200, "1:1 ack 1 sack 1001-4001");
    talk.window(5_000);
    talk.hears(250, "1:1 ack 1 sack 5001-10001 sack 1001-4001");
    talk.hears(300, "1:1 ack 4001 sack 5001-10001");
    talk.window(5_000);
    let sent = talk.endpoint.sender().max();
    talk.hears(400, &format!("1:1 ack {sent}"));
    talk.window(5_000);
    talk.compare("recoveries", 1, |endpoint| endpoint.sender().counters().fast_recoveries);
}

/// RFC 6937, 3.1: twenty out, the first lost. One segment leaves for every two that arrive, and the
/// window ends at the threshold.
#[test]
fn proportional_rate_reduction_sends_one_for_two() {
    let config = Config { initial_window_segments: 20, prr: true, ..sack() };
    let mut talk = Talk::connected(config);
    talk.writes(100, 1 << 19, &segments(1, 20));
    let mut sent = 0;
    for arrived in 2..=20u32 {
        let end = arrived * 1_000 + 1;
        let text = talk.hears(200, &format!("1:1 ack 1 sack 1001-{end}"));
        sent += if text.is_empty() { 0 } else { text.split(" | ").count() };
        assert!(text.matches('|').count() == 0, "no burst: {text}");
    }
    // Limited transmit 2, the repetition 1, then one for every two of the other sixteen.
    assert!((10..=12).contains(&sent), "{sent}");
    talk.given(300, "1:1 ack 20001", &segments(29_001, 1));
    talk.window(10_000);
}

/// RFC 2018, 8: the peer reported everything and yet acknowledges nothing: after a time-out its
/// reports count no more.
#[test]
fn a_peer_may_renege() {
    let mut talk = Talk::connected(sack());
    talk.writes(100, 3_000, &segments(1, 3));
    talk.silent(200, "1:1 ack 1 sack 1-3001");
    talk.timer(400, &segments(1, 1));
    talk.given(500, "1:1 ack 1001", &segments(1_001, 2));
    talk.silent(600, "1:1 ack 3001");
    talk.idle();
}

/// Old, empty and absurd blocks change nothing.
#[test]
fn absurd_blocks_are_ignored() {
    let mut talk = ten_out(sack());
    talk.silent(200, "1:1 ack 1 sack 0-1 sack 500-900 sack 5001-4001");
    talk.silent(200, "1:1 ack 1 sack 100001-200001 sack 1-1");
    talk.compare("pipe", 10_000, |endpoint| endpoint.sender().in_flight());
    talk.window(10_000);
}
