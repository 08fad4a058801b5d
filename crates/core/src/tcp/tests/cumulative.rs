//! Loss recovery from cumulative ACKs (RFC 5681, 3.2; RFC 6582; RFC 3042).

use super::conversation::{Talk, segments};
use super::plain;
use crate::tcp::config::{Config, CongestionName};
use crate::tcp::endpoint::Endpoint;

/// Ten segments of an endless stream are out, the connection is 200 ms old.
fn ten_out(config: Config) -> Talk {
    let mut talk = Talk::connected(Config { initial_window_segments: 10, ..config });
    talk.writes(100, 1 << 19, &segments(1, 10));
    talk
}

fn newreno() -> Config {
    Config { congestion: CongestionName::NewReno, ..plain() }
}

fn duplicates(talk: &mut Talk, at_ms: u64, ack: u32, count: u32) {
    for _ in 0..count {
        talk.silent(at_ms, &format!("1:1 ack {ack}"));
    }
}

/// RFC 5681, 3.2, steps 2 to 6: the third duplicate repeats the segment and halves the window, each
/// duplicate inflates it, the first new ACK deflates it.
#[test]
fn fast_retransmit_and_fast_recovery() {
    let mut talk = ten_out(plain());
    duplicates(&mut talk, 200, 1, 2);
    talk.given(200, "1:1 ack 1", &segments(1, 1));
    talk.window(5_000);
    // 5 + 3 + 2 are out already; from the eleventh on each duplicate sends one.
    duplicates(&mut talk, 200, 1, 2);
    talk.given(200, "1:1 ack 1", &segments(10_001, 1));
    talk.given(200, "1:1 ack 1", &segments(11_001, 1));
    talk.given(300, "1:1 ack 12001", &segments(12_001, 5));
    talk.window(5_000);
    talk.compare("recoveries, repetitions, time-outs", (1, 1, 0), |endpoint| {
        let counters = endpoint.sender().counters();
        (counters.fast_recoveries, counters.retransmitted_segments, counters.timeouts)
    });
}

/// RFC 5681, 2: what makes an ACK a duplicate. Data, a FIN or another window does not.
#[test]
fn only_true_duplicates_count() {
    let mut talk = Talk::new(Config { initial_window_segments: 10, ..plain() }).peer_window(40_000);
    talk.call(0, "opens", Endpoint::open);
    talk.hears(100, "S 0:1 ack 1 mss 1000");
    talk.writes(100, 1 << 19, &segments(1, 10));
    duplicates(&mut talk, 200, 1, 2);
    talk.silent(200, "1:1 ack 1 win 50000");
    talk.silent(200, "1:501 ack 1 win 50000");
    talk.window(10_000);
    talk.given(202, "501:501 ack 1 win 50000", "1:1001 ack 501");
}

/// With nothing outstanding, a repeated ACK is no duplicate.
#[test]
fn duplicates_need_something_outstanding() {
    let mut talk = ten_out(plain());
    talk.hears(200, "1:1 ack 10001");
    let mut talk = Talk::connected(plain());
    talk.writes(100, 1_000, &segments(1, 1));
    talk.silent(200, "1:1 ack 1001");
    duplicates(&mut talk, 200, 1_001, 5);
    talk.idle();
}

/// Reno leaves recovery at the first new ACK, however little it acknowledges: the second hole has
/// to wait for three more duplicates, and the window is halved again.
#[test]
fn reno_leaves_recovery_at_a_partial_ack() {
    let mut talk = ten_out(plain());
    duplicates(&mut talk, 200, 1, 2);
    talk.given(200, "1:1 ack 1", &segments(1, 1));
    talk.silent(300, "1:1 ack 4001");
    talk.window(5_000);
    duplicates(&mut talk, 310, 4_001, 2);
    talk.given(310, "1:1 ack 4001", &segments(4_001, 1));
    talk.window(2_500);
}

/// RFC 6582, 3.2, step 3: a partial ACK repeats the next hole at once, deflates by what it
/// acknowledged and adds a segment back; the window stays in recovery.
#[test]
fn newreno_repeats_the_next_hole_at_a_partial_ack() {
    let mut talk = ten_out(newreno());
    duplicates(&mut talk, 200, 1, 2);
    talk.given(200, "1:1 ack 1", &segments(1, 1));
    // Seven of ten arrived, 1 and 5 are lost: five more duplicates give 5 + 8 = 13 segments.
    duplicates(&mut talk, 200, 1, 2);
    for start in [10_001, 11_001, 12_001] {
        talk.given(200, "1:1 ack 1", &segments(start, 1));
    }
    // 13 - 4 acknowledged + 1 = 10 from 4001: one more than the nine that are out.
    let hole_and_more = format!("{} | {}", segments(4_001, 1), segments(13_001, 1));
    talk.given(300, "1:1 ack 4001", &hole_and_more);
    talk.window(5_000);
    // The full ACK ends it (step 3): what was sent during recovery does not prolong it.
    talk.given(400, "1:1 ack 12001", &segments(14_001, 3));
    talk.window(5_000);
    talk.compare("recoveries", 1, |endpoint| endpoint.sender().counters().fast_recoveries);
}

/// RFC 3042: one new segment for each of the first two duplicates; they are no part of the flight
/// that is halved (RFC 5681, 3.2, step 2).
#[test]
fn limited_transmit_sends_two_new_segments() {
    let mut talk = ten_out(Config { limited_transmit: true, ..plain() });
    talk.given(200, "1:1 ack 1", &segments(10_001, 1));
    talk.given(200, "1:1 ack 1", &segments(11_001, 1));
    talk.given(200, "1:1 ack 1", &segments(1, 1));
    talk.window(5_000);
}

/// RFC 6582, 3.2, step 2: the ACK has to cover more than what a time-out repeated, whose copies the
/// peer may have had already; after that, duplicates mean loss again.
#[test]
fn duplicates_of_what_was_repeated_in_vain_start_no_recovery() {
    for config in [plain(), newreno()] {
        let mut talk = ten_out(config);
        talk.timer(400, &segments(1, 1));
        talk.given(500, "1:1 ack 10001", &segments(10_001, 2));
        duplicates(&mut talk, 510, 10_001, 4);
        talk.given(600, "1:1 ack 11001", &segments(12_001, 2));
        talk.given(600, "1:1 ack 12001", &segments(14_001, 2));
        duplicates(&mut talk, 700, 12_001, 2);
        let again = format!("{} | {}", segments(12_001, 1), segments(16_001, 1));
        talk.given(700, "1:1 ack 12001", &again);
    }
}

/// RFC 6582, 3.2, step 2: duplicates for data that a time-out repeats start no recovery.
#[test]
fn duplicates_after_a_timeout_start_no_recovery() {
    for config in [plain(), newreno()] {
        let mut talk = ten_out(config);
        talk.timer(400, &segments(1, 1));
        duplicates(&mut talk, 410, 1, 4);
        talk.window(1_000);
        talk.given(500, "1:1 ack 1001", &segments(1_001, 2));
        duplicates(&mut talk, 510, 1_001, 4);
        talk.compare("recoveries", 0, |endpoint| endpoint.sender().counters().fast_recoveries);
    }
}

/// A FIN takes no room in a segment: repeating the last data repeats it too.
#[test]
fn the_fin_is_repeated_with_the_last_data() {
    let mut talk = Talk::connected(Config { initial_window_segments: 10, ..plain() });
    talk.writes(100, 4_000, &segments(1, 4));
    talk.silent(200, "1:1 ack 4001");
    talk.closes(200, "F 4001:4002 ack 1");
    talk.given(300, "1:1 ack 4002", "");
    talk.idle();

    let mut talk = Talk::connected(Config { initial_window_segments: 10, ..newreno() });
    talk.call(100, "writes and closes", |endpoint, cx| {
        endpoint.write(cx, 3_000);
        endpoint.close(cx);
    });
    talk.timer(400, &segments(1, 1));
    let rest = format!("{} | F 2001:3002 ack 1", segments(1_001, 1));
    talk.given(500, "1:1 ack 1001", &rest);
    talk.given(600, "1:1 ack 3001", "");
    talk.silent(610, "1:1 ack 3002");
    talk.idle();

    let mut talk = Talk::new(Config { initial_window_segments: 10, ..plain() });
    talk.writes(0, 5_000, "");
    talk.closes(0, "");
    talk.call(0, "opens", Endpoint::open);
    let data = format!("{} | F 4001:5002 ack 1", segments(1, 4));
    talk.given(100, "S 0:1 ack 1 mss 1000", &data);
    talk.silent(200, "1:1 ack 4001");
    duplicates(&mut talk, 210, 4_001, 2);
    talk.given(210, "1:1 ack 4001", "F 4001:5002 ack 1");
    talk.silent(300, "1:1 ack 5002");
    talk.idle();
}
