//! When received data is acknowledged (RFC 5681, 4.2; RFC 9293, 3.8.6.3), and what ACKs say of holes
//! (RFC 2018, 4) and of time (RFC 7323, 4.3).

use super::conversation::Talk;
use super::plain;
use crate::tcp::config::{AckPolicy, Config, Follows};

/// RFC 5681, 4.2: at least every second segment, and within the time-out.
#[test]
fn every_second_segment_is_acknowledged() {
    let mut talk = Talk::accepted(plain());
    talk.silent(200, "1:1001 ack 1");
    talk.given(210, "1001:2001 ack 1", "1:1 ack 2001");
    talk.silent(220, "2001:3001 ack 1");
    talk.timer(420, "1:1 ack 3001");
    talk.idle();
}

/// The number of segments is the scenario's.
#[test]
fn the_policy_counts_segments() {
    let acks = AckPolicy { delayed_segments: 1, ..plain().acks };
    let mut talk = Talk::accepted(Config { acks, ..plain() });
    talk.given(200, "1:1001 ack 1", "1:1 ack 1001");
    let acks = AckPolicy { delayed_segments: 3, ..plain().acks };
    let mut talk = Talk::accepted(Config { acks, ..plain() });
    talk.silent(200, "1:1001 ack 1");
    talk.silent(200, "1001:2001 ack 1");
    talk.given(200, "2001:3001 ack 1", "1:1 ack 3001");
}

/// RFC 5681, 4.2: an ACK for every 2 RMSS bytes, however many segments bring them.
#[test]
fn short_segments_count_by_their_bytes() {
    let mut talk = Talk::accepted(plain());
    talk.silent(200, "1:501 ack 1");
    talk.silent(210, "501:1001 ack 1");
    talk.silent(220, "1001:1501 ack 1");
    talk.given(230, "1501:2001 ack 1", "1:1 ack 2001");
    talk.silent(240, "2001:2011 ack 1");
    talk.timer(440, "1:1 ack 2011");
    // 1 is each segment, however short.
    let acks = AckPolicy { delayed_segments: 1, ..plain().acks };
    let mut talk = Talk::accepted(Config { acks, ..plain() });
    talk.given(200, "1:11 ack 1", "1:1 ack 11");
}

/// Linux, `__tcp_ack_snd_check` and `tcp_measure_rcv_mss`: an ACK for more than the largest segment
/// so far, which is 536 before there was a larger one.
#[test]
fn linux_acknowledges_more_than_its_largest_segment() {
    let mut talk = Talk::accepted(Config { follows: Follows::Linux, ..plain() });
    talk.silent(200, "1:301 ack 1");
    talk.given(201, "301:538 ack 1", "1:1 ack 538");
    talk.silent(202, "538:1538 ack 1");
    talk.given(203, "1538:1539 ack 1", "1:1 ack 1539");
    talk.silent(204, "1539:2139 ack 1");
    talk.silent(205, "2139:2539 ack 1");
    talk.given(206, "2539:2540 ack 1", "1:1 ack 2540");
}

/// Quick ACKs: the first segments of a connection are not delayed.
#[test]
fn the_first_segments_are_acknowledged_at_once() {
    let acks = AckPolicy { quick_segments: 2, ..plain().acks };
    let mut talk = Talk::accepted(Config { acks, ..plain() });
    talk.given(200, "1:1001 ack 1", "1:1 ack 1001");
    talk.given(200, "1001:2001 ack 1", "1:1 ack 2001");
    talk.silent(200, "2001:3001 ack 1");
}

/// RFC 5681, 4.2: at once above a hole, for what fills it, and for what repeats.
#[test]
fn whatever_is_out_of_order_is_acknowledged_at_once() {
    let mut talk = Talk::accepted(plain());
    talk.given(200, "1001:2001 ack 1", "1:1 ack 1");
    talk.given(201, "2001:3001 ack 1", "1:1 ack 1");
    talk.given(202, "1:1001 ack 1", "1:1 ack 3001");
    talk.given(203, "1:1001 ack 1", "1:1 ack 3001");
    talk.silent(204, "3001:4001 ack 1");
    talk.given(205, "5001:6001 ack 1", "1:1 ack 4001");
    talk.given(206, "4001:4501 ack 1", "1:1 ack 4501");
    talk.given(207, "4501:5001 ack 1", "1:1 ack 6001");
    talk.idle();
}

/// An ACK that rides on data needs none of its own.
#[test]
fn data_carries_the_ack() {
    let mut talk = Talk::accepted(plain());
    talk.silent(200, "1:1001 ack 1");
    talk.writes(250, 10, "1:11 ack 1001");
    talk.silent(300, "1001:1001 ack 11");
    talk.idle();
    talk.compare("ACKs of their own", 0, |endpoint| endpoint.facts().acks_sent);
}

/// RFC 2018, 4: the first block holds the segment that caused the ACK, the others repeat the most
/// recent; four fit, or three beside timestamps (section 3).
#[test]
fn sack_blocks_are_newest_first() {
    let mut talk = Talk::accepted(Config { sack: true, ..plain() });
    talk.given(200, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    talk.given(200, "3001:4001 ack 1", "1:1 ack 1 sack 3001-4001 sack 1001-2001");
    let three = "1:1 ack 1 sack 5001-6001 sack 3001-4001 sack 1001-2001";
    talk.given(200, "5001:6001 ack 1", three);
    let four = "1:1 ack 1 sack 7001-8001 sack 5001-6001 sack 3001-4001 sack 1001-2001";
    talk.given(200, "7001:8001 ack 1", four);
    let latest = "1:1 ack 1 sack 9001-10001 sack 7001-8001 sack 5001-6001 sack 3001-4001";
    talk.given(200, "9001:10001 ack 1", latest);
    let joined = "1:1 ack 1 sack 3001-6001 sack 9001-10001 sack 7001-8001";
    talk.given(200, "4001:5001 ack 1", joined);
    let filled = "1:1 ack 2001 sack 3001-6001 sack 9001-10001 sack 7001-8001";
    talk.given(200, "1:1001 ack 1", filled);
    talk.given(200, "2001:3001 ack 1", "1:1 ack 6001 sack 9001-10001 sack 7001-8001");
    talk.given(200, "6001:7001 ack 1", "1:1 ack 8001 sack 9001-10001");
    talk.given(200, "8001:9001 ack 1", "1:1 ack 10001");
}

/// RFC 2018, 3: 40 bytes of options have room for three blocks beside a timestamp.
#[test]
fn three_blocks_fit_beside_a_timestamp() {
    let config = Config { sack: true, timestamps: true, ..plain() };
    let mut talk = Talk::accepted(config);
    for start in [1_001, 3_001, 5_001] {
        talk.hears(200, &format!("{start}:{} ack 1 ts 10/0", start + 500));
    }
    let expected = "1:1 ack 1 sack 7001-7501 sack 5001-5501 sack 3001-3501 ts 200/0";
    talk.given(200, "7001:7501 ack 1 ts 10/0", expected);
}

/// RFC 2883, 4, as Linux does it (`tcp_dsack_set`): the first block of the next ACK, and of no other,
/// is a segment that arrived twice; what waits beyond a hole follows. Under `rfc` there is none.
#[test]
fn a_segment_that_arrived_twice_is_reported_once() {
    let config = Config { sack: true, follows: Follows::Linux, ..plain() };
    let mut talk = Talk::accepted(config);
    talk.silent(200, "1:1001 ack 1");
    talk.given(201, "1001:2001 ack 1", "1:1 ack 2001");
    talk.given(202, "1:1001 ack 1", "1:1 ack 2001 sack 1-1001");
    // 4.2.1: below the ACK, with data beyond a hole behind it.
    talk.given(203, "3001:4001 ack 1", "1:1 ack 2001 sack 3001-4001");
    talk.given(204, "1001:2001 ack 1", "1:1 ack 2001 sack 1001-2001 sack 3001-4001");
    // 4.2.2: within a block beyond a hole, which is reported besides.
    talk.given(205, "3001:4001 ack 1", "1:1 ack 2001 sack 3001-4001 sack 3001-4001");
    // 4.3: a part of a segment.
    talk.given(206, "1501:2501 ack 1", "1:1 ack 2501 sack 1501-2001 sack 3001-4001");
    talk.given(207, "2501:3001 ack 1", "1:1 ack 4001");
    talk.silent(208, "4001:5001 ack 1");

    let mut talk = Talk::accepted(Config { sack: true, ..plain() });
    talk.given(202, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    talk.given(203, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    let mut talk = Talk::accepted(Config { sack: false, ..config });
    talk.given(202, "1001:2001 ack 1", "1:1 ack 1");
    talk.given(203, "1001:2001 ack 1", "1:1 ack 1");
}

/// A Linux host with SACK, and a round trip of 100 ms.
fn linux_with_sack() -> Config {
    Config { sack: true, follows: Follows::Linux, ..plain() }
}

/// Linux, `__tcp_ack_snd_check`: behind a hole three segments are acknowledged at once
/// (TCP_FASTRETRANS_THRESH), the others together 1 ms after the first of them (`tcp_comp_sack_delay_ns`;
/// a twentieth of the round trip would be 5 ms) and the timer's slack of 100 us
/// (`tcp_comp_sack_slack_ns`). What fills the hole is acknowledged at once, and then it begins anew.
#[test]
fn linux_compresses_sacks_behind_the_third() {
    let mut talk = Talk::accepted(linux_with_sack());
    talk.given(200, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    talk.given(200, "2001:3001 ack 1", "1:1 ack 1 sack 1001-3001");
    talk.given(201, "3001:4001 ack 1", "1:1 ack 1 sack 1001-4001");
    talk.silent(202, "4001:5001 ack 1");
    talk.silent(203, "5001:6001 ack 1");
    talk.timer_us(203_100, "1:1 ack 1 sack 1001-6001");
    talk.idle();
    talk.silent(204, "6001:7001 ack 1");
    talk.given(205, "1:1001 ack 1", "1:1 ack 7001");
    talk.idle();
    for (start, end) in [(8_001, 9_001), (9_001, 10_001), (10_001, 11_001)] {
        let expected = format!("1:1 ack 7001 sack 8001-{end}");
        talk.given(206, &format!("{start}:{end} ack 1"), &expected);
    }
    talk.silent(206, "11001:12001 ack 1");
    talk.timer_us(207_100, "1:1 ack 7001 sack 8001-12001");
}

/// Linux, `tcp_sack_new_ofo_skb` (TCP_SACK_BLOCKS_EXPECTED): what is held back is reported before more
/// than two other blocks come first: with a block that is new, and with one that stood third or later.
#[test]
fn compressed_sacks_leave_before_blocks_are_pushed_back() {
    let mut talk = Talk::accepted(linux_with_sack());
    for start in [1_001, 3_001, 5_001] {
        talk.hears(200, &format!("{start}:{} ack 1", start + 1_000));
    }
    talk.silent(201, "6001:6501 ack 1");
    let new = "1:1 ack 1 sack 8001-9001 sack 5001-6501 sack 3001-4001 sack 1001-2001";
    talk.given(201, "8001:9001 ack 1", new);
    talk.silent(201, "9001:9501 ack 1");
    // The second block is no reason.
    talk.silent(201, "6501:7001 ack 1");
    let fourth = "1:1 ack 1 sack 1001-2501 sack 5001-7001 sack 8001-9501 sack 3001-4001";
    talk.given(201, "2001:2501 ack 1", fourth);
    talk.idle();
}

/// `tcp_comp_sack_nr`: an ACK is held back for 44 segments at most.
#[test]
fn a_compressed_sack_stands_for_so_many_segments() {
    let mut talk = Talk::accepted(linux_with_sack());
    let mut hear = |n: u32| talk.hears(200, &format!("{}:{} ack 1", 100 * n + 1, 100 * n + 101));
    let at_once: Vec<_> = (1..=48).filter(|&n| !hear(n).is_empty()).collect();
    assert_eq!(at_once, [1, 2, 3, 48]);
}

/// A twentieth of a short round trip: SYN and ACK take 10 ms here, so that it is 0.5 ms.
#[test]
fn a_short_round_trip_compresses_less() {
    let mut talk = Talk::new(linux_with_sack());
    talk.hears(0, "S 0:1 mss 1000 sackok");
    talk.hears(10, "1:1 ack 1");
    for start in [1_001, 2_001, 3_001, 4_001] {
        talk.hears(20, &format!("{start}:{} ack 1", start + 1_000));
    }
    talk.timer_us(20_600, "1:1 ack 1 sack 1001-5001");
}

/// Nothing is held back while quick ACKs last, by a host that acknowledges each segment (Linux, both in
/// `tcp_in_quickack_mode`), without SACK, for data that arrived twice below the hole (`tcp_data_queue`),
/// or where the RFCs are followed.
#[test]
fn some_acks_of_segments_beyond_a_hole_are_never_held_back() {
    let acks = linux_with_sack().acks;
    let linux = linux_with_sack();
    let others = [
        Config { acks: AckPolicy { quick_segments: 1, ..acks }, ..linux },
        Config { acks: AckPolicy { delayed_segments: 1, ..acks }, ..linux },
        Config { sack: false, ..linux },
        Config { follows: Follows::Rfc, ..linux },
    ];
    for config in others {
        let mut talk = Talk::accepted(config);
        for start in [1_001, 2_001, 3_001, 4_001, 5_001] {
            let sent = talk.hears(200, &format!("{start}:{} ack 1", start + 1_000));
            assert!(!sent.is_empty(), "segment {start} of {config:?}");
        }
    }
    let mut talk = Talk::accepted(linux);
    talk.silent(200, "1:1001 ack 1");
    for start in [2_001, 3_001, 4_001] {
        talk.hears(200, &format!("{start}:{} ack 1", start + 1_000));
    }
    talk.silent(200, "5001:6001 ack 1");
    talk.given(200, "1:1001 ack 1", "1:1 ack 1001 sack 1-1001 sack 2001-6001");
    talk.idle();
}

/// A data segment carries the report as well, and then it is told. The size of segments is settled
/// once for all that leave together (Linux, `tcp_write_xmit`).
#[test]
fn data_reports_a_segment_that_arrived_twice() {
    let config =
        Config { sack: true, follows: Follows::Linux, initial_window_segments: 1, ..plain() };
    let mut talk = Talk::accepted(config);
    talk.hears(200, "1:1001 ack 1");
    talk.writes(210, 3_000, "1:1001 ack 1001");
    let expected = "1001:1989 ack 1001 sack 1-1001 | 1989:2977 ack 1001 | 2977:3001 ack 1001";
    talk.given(300, "1:1001 ack 1001", expected);
}

/// RFC 7323, 4.3: a delayed ACK echoes the first segment it acknowledges; one above a hole echoes
/// the last in order; one that fills it echoes that.
#[test]
fn timestamps_echo_the_segment_that_moved_the_left_edge() {
    let mut talk = Talk::accepted(Config { timestamps: true, ..plain() });
    talk.silent(200, "1:989 ack 1 ts 10/0");
    talk.given(210, "989:1977 ack 1 ts 11/0", "1:1 ack 1977 ts 210/10");
    talk.given(220, "2965:3953 ack 1 ts 13/0", "1:1 ack 1977 ts 220/10");
    talk.given(230, "1977:2965 ack 1 ts 14/0", "1:1 ack 3953 ts 230/14");
    // Overtaken on its way: an older value is not echoed (TSval >= TS.Recent).
    talk.given(240, "1:989 ack 1 ts 9/0", "1:1 ack 3953 ts 240/14");
}

/// RFC 9293, 3.4: numbers wrap; the peer's start 2500 before it, and its data is 6000 bytes.
#[test]
fn received_numbers_cross_the_wrap() {
    let mut talk = Talk::accepted(Config { sack: true, ..plain() });
    talk.silent(200, "1:1001 ack 1");
    talk.given(200, "1001:2001 ack 1", "1:1 ack 2001");
    talk.given(200, "3001:4001 ack 1", "1:1 ack 2001 sack 3001-4001");
    talk.given(200, "2001:3001 ack 1", "1:1 ack 4001");
    talk.given(200, "F 4001:5002 ack 1", "1:1 ack 5002");
    talk.compare("delivered", 5_000, |endpoint| endpoint.receiver().delivered());
}

/// Linux, `tcp_established_options` and `tcp_current_mss`: data segments report SACK blocks too, and
/// their payload shrinks by what the option takes (4 + 8 bytes for one block), so that packets stay
/// as large as a full segment. An ACK of its own does not follow.
#[test]
fn new_data_makes_room_for_sack_blocks() {
    let config = Config { sack: true, initial_window_segments: 10, ..plain() };
    let mut talk = Talk::accepted(config);
    talk.given(200, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    let sent = "1:989 ack 1 sack 1001-2001 | 989:1001 ack 1 sack 1001-2001";
    talk.writes(210, 1_000, sent);
    let two = "3001-4001 sack 1001-2001";
    talk.given(220, "3001:4001 ack 1001", &format!("1001:1001 ack 1 sack {two}"));
    let first = format!("1001:1981 ack 1 sack {two}");
    let sent = talk.call(230, "writes", |endpoint, cx| endpoint.write(cx, 10_000));
    assert!(sent.starts_with(&first), "{sent}");
    // The holes are filled: full segments again.
    talk.hears(240, "1:1001 ack 1001");
    talk.hears(240, "2001:3001 ack 1001");
    let sent = talk.hears(250, "4001:4001 ack 4001");
    assert!(sent.split(" | ").all(|segment| !segment.contains("sack")), "{sent}");
}

/// Two-way transfers: the data segment that carries the ACK for a segment beyond a hole reports it.
/// With timestamps a full segment has 988 bytes here.
#[test]
fn data_that_answers_a_segment_beyond_a_hole_reports_it() {
    let config = Config { sack: true, timestamps: true, initial_window_segments: 1, ..plain() };
    let mut talk = Talk::accepted(config);
    talk.writes(200, 5_000, "1:989 ack 1 ts 200/0");
    // The ACK opens the window for two segments, and the data in it lies beyond a hole.
    let expected = "989:1965 ack 1 sack 989-1977 ts 300/0 | 1965:2941 ack 1 sack 989-1977 ts 300/0";
    talk.given(300, "989:1977 ack 989 ts 10/200", expected);
}

/// A repeated segment keeps its length. It has no room for blocks then, so that an ACK of its own
/// reports them.
#[test]
fn blocks_beside_a_repeated_full_segment_go_in_an_ack_of_their_own() {
    let config = Config { sack: true, initial_window_segments: 4, ..plain() };
    let mut talk = Talk::connected(config);
    talk.hears(100, "1:1 ack 1");
    talk.call(100, "writes", |endpoint, cx| endpoint.write(cx, 4_000));
    talk.hears(200, "1:1 ack 1 sack 1001-2001");
    talk.hears(200, "1:1 ack 1 sack 1001-3001");
    // Three segments are reported: the first is lost. The same segment brings data beyond a hole.
    let expected = "1:1001 ack 1 | 4001:4001 ack 1 sack 2001-3001";
    talk.given(210, "2001:3001 ack 1 sack 1001-4001", expected);
}

/// Without SACK there is nothing to report: the ACK goes with the data, however full the segment is.
#[test]
fn without_sack_data_beyond_a_hole_is_acknowledged_by_data_alone() {
    let mut talk = Talk::accepted(plain());
    talk.writes(200, 2_000, "1:1001 ack 1");
    talk.closes(200, "");
    talk.given(300, "1001:2001 ack 1001", "F 1001:2002 ack 1");
}
