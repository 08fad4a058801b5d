//! RACK (RFC 8985, 6.2) and tail loss probes (RFC 8985, 7).

use super::conversation::{Talk, segments};
use super::plain;
use crate::tcp::config::Config;

fn rack() -> Config {
    Config { sack: true, rack_tlp: true, initial_window_segments: 10, ..plain() }
}

fn ten_out(config: Config) -> Talk {
    let mut talk = Talk::connected(config);
    talk.writes(100, 1 << 19, &segments(1, 10));
    talk
}

fn reduced(talk: &Talk, expected: Option<u64>) {
    talk.compare("ssthresh", expected, |endpoint| endpoint.sender().control().ssthresh());
}

/// Step 4: with three segments' worth above the hole and no reordering ever seen, the reordering
/// window is zero.
#[test]
fn three_segments_above_a_hole_mean_loss() {
    let mut talk = ten_out(rack());
    talk.given(200, "1:1 ack 1 sack 1001-2001", &segments(10_001, 1));
    talk.given(200, "1:1 ack 1 sack 1001-3001", &segments(11_001, 1));
    talk.given(200, "1:1 ack 1 sack 1001-4001", &segments(1, 1));
    reduced(&talk, Some(5_000));
}

/// Steps 4 and 5: with less above it, a segment is lost a round trip and a quarter of the smallest
/// one after it was sent, without a further ACK.
#[test]
fn time_detects_what_too_few_segments_overtook() {
    let mut talk = ten_out(rack());
    talk.given(200, "1:1 ack 1 sack 1001-2001", &segments(10_001, 1));
    talk.timer(225, &segments(1, 1));
    reduced(&talk, Some(5_000));
}

/// The same with PRR: the timer delivers nothing, so only the repetition leaves (RFC 6937, 3.1).
#[test]
fn detection_by_time_makes_no_burst() {
    let mut talk = Talk::connected(Config { prr: true, ..rack() });
    talk.writes(100, 10_000, &segments(1, 10));
    talk.silent(200, "1:1 ack 1 sack 8001-9001");
    talk.timer(225, &segments(1, 1));
    talk.given(300, "1:1 ack 1001 sack 8001-9001", &segments(1_001, 2));
}

/// Step 3: a segment that arrives below one that arrived before is reordering; from then on three
/// segments above a hole have to wait too.
#[test]
fn reordering_once_seen_widens_the_window() {
    let mut talk = ten_out(rack());
    talk.hears(200, "1:1 ack 1 sack 1001-2001");
    talk.hears(201, "1:1 ack 2001");
    talk.hears(202, "1:1 ack 2001 sack 3001-6001");
    reduced(&talk, None);
    // Sent at 100; the round trip of the newest is 102, and a quarter of the smallest 25.
    talk.timer(227, &segments(2_001, 1));
}

/// Blocks that arrive together tell nothing about order, though they are written newest first.
#[test]
fn several_blocks_in_one_ack_are_no_reordering() {
    let mut talk = ten_out(rack());
    talk.hears(200, "1:1 ack 1 sack 7001-8001 sack 1001-3001");
    reduced(&talk, Some(5_000));
}

/// Step 5 on repetitions: one sent after it was delivered, so the repetition is lost again; no
/// time-out is needed (the weakness of RFC 6675 that RACK repairs).
#[test]
fn a_lost_repetition_is_found_again() {
    let mut talk = ten_out(rack());
    talk.hears(200, "1:1 ack 1 sack 1001-4001");
    // Seven more arrive: four new segments leave after the repetition.
    let sent = talk.hears(201, "1:1 ack 1 sack 1001-10001");
    assert!(sent.starts_with("10001:11001"), "{sent}");
    // The first of those is delivered 101 ms later, the repetition is not.
    let again = talk.hears(302, "1:1 ack 1 sack 1001-11001");
    assert!(again.starts_with("1:1001 "), "{again}");
    talk.compare("time-outs", 0, |endpoint| endpoint.sender().counters().timeouts);
}

/// Section 7.2: nothing new was acknowledged for two round trips: the last segment again (7.3), and
/// its SACK repairs the loss without a time-out.
#[test]
fn a_probe_turns_a_lost_tail_into_fast_recovery() {
    let mut talk = Talk::connected(rack());
    talk.writes(100, 4_000, &segments(1, 4));
    talk.silent(200, "1:1 ack 1001");
    talk.timer(400, &segments(3_001, 1));
    talk.window(10_000);
    let repaired = talk.hears(500, "1:1 ack 1001 sack 3001-4001");
    assert_eq!(repaired, segments(1_001, 2), "both overtaken a round trip ago");
    talk.silent(600, "1:1 ack 4001");
    talk.idle();
    talk.compare("probes, time-outs, recoveries", (1, 0, 1), |endpoint| {
        let counters = endpoint.sender().counters();
        (counters.tail_loss_probes, counters.timeouts, counters.fast_recoveries)
    });
}

/// Section 7.3: new data is the better probe, if the peer's window allows it.
#[test]
fn a_probe_sends_new_data_if_there_is_some() {
    let mut talk = ten_out(rack());
    talk.timer(300, &segments(10_001, 1));
    talk.hears(310, "1:1 ack 11001");
    reduced(&talk, None);
}

/// Section 7.2: a lone segment's ACK may be delayed, so its probe waits 200 ms longer; but not
/// beyond the time-out, which it then replaces. Without an answer the time-out follows.
#[test]
fn a_lone_segment_is_probed_later() {
    let mut talk = Talk::connected(rack());
    talk.writes(100, 1_000, &segments(1, 1));
    talk.timer(400, &segments(1, 1));
    talk.window(10_000);
    talk.timer(700, &segments(1, 1));
    talk.window(1_000);
    talk.compare("time-outs", 1, |endpoint| endpoint.sender().counters().timeouts);
}

/// Section 7.4.2: the probe repaired the loss, which only a later ACK shows: congestion control
/// hears of it.
#[test]
fn a_probe_that_repaired_a_loss_counts_as_congestion() {
    let mut talk = Talk::connected(rack());
    talk.writes(100, 4_000, &segments(1, 4));
    talk.silent(200, "1:1 ack 3001");
    talk.timer(450, &segments(3_001, 1));
    talk.silent(600, "1:1 ack 4001");
    talk.writes(600, 8_000, &segments(4_001, 8));
    talk.hears(700, "1:1 ack 5001");
    reduced(&talk, Some(4_000));
}

/// Section 7.4.2: the original was only late; the probe's own ACK is a plain duplicate, or a D-SACK, and
/// nothing was lost.
#[test]
fn a_probe_that_was_not_needed_costs_nothing() {
    let before = [false, true];
    for (more_before_the_duplicate, block) in
        before.into_iter().flat_map(|more| [(more, ""), (more, " sack 3001-4001")])
    {
        let duplicate = format!("1:1 ack 4001{block}");
        let mut talk = Talk::connected(rack());
        talk.writes(100, 4_000, &segments(1, 4));
        talk.silent(200, "1:1 ack 3001");
        talk.timer(450, &segments(3_001, 1));
        talk.silent(510, "1:1 ack 4001");
        if more_before_the_duplicate {
            talk.writes(520, 8_000, &segments(4_001, 8));
            talk.silent(600, &duplicate);
        } else {
            talk.silent(600, &duplicate);
            talk.writes(600, 8_000, &segments(4_001, 8));
        }
        talk.hears(700, "1:1 ack 5001");
        reduced(&talk, None);
        talk.compare("recoveries", 0, |endpoint| endpoint.sender().counters().fast_recoveries);
    }
}

/// A probe's duplicate comes after the next probe would have been due: the next one is counted
/// from here, never from the past.
#[test]
fn the_next_probe_is_never_due_in_the_past() {
    let mut talk = Talk::connected(rack());
    talk.writes(100, 1_000, &segments(1, 1));
    talk.timer(400, &segments(1, 1));
    talk.writes(401, 2_000, &segments(1_001, 2));
    talk.hears(690, "1:1 ack 1001");
    talk.silent(695, "1:1 ack 1001");
    let due = talk.endpoint.sender().deadline();
    assert!(due.is_some_and(|due| due.as_nanos() >= 695_000_000), "{due:?}");
}
