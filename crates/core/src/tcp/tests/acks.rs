//! When received data is acknowledged (RFC 5681, 4.2; RFC 9293, 3.8.6.3), SACK blocks (RFC 2018, 4)
//! and timestamp echoes (RFC 7323, 4.3).

use super::harness::Host;
use super::plain;
use crate::tcp::config::{AckPolicy, Config, StackVariant};
use crate::time::{Duration, Instant};

/// RFC 5681, 4.2: expect an ACK for at least every second segment, and within the delayed-ACK
/// timeout.
#[test]
fn every_second_segment_is_acknowledged() {
    let mut host = Host::accepted(plain());
    host.no_reply(200, "1:1001 ack 1");
    host.given(210, "1001:2001 ack 1", "1:1 ack 2001");
    host.no_reply(220, "2001:3001 ack 1");
    host.timer(420, "1:1 ack 3001");
    host.idle();
}

/// Given another number of segments per ACK, expect that number.
#[test]
fn the_policy_counts_segments() {
    let acks = AckPolicy { delayed_segments: 1, ..plain().acks };
    let mut host = Host::accepted(Config { acks, ..plain() });
    host.given(200, "1:1001 ack 1", "1:1 ack 1001");
    let acks = AckPolicy { delayed_segments: 3, ..plain().acks };
    let mut host = Host::accepted(Config { acks, ..plain() });
    host.no_reply(200, "1:1001 ack 1");
    host.no_reply(200, "1001:2001 ack 1");
    host.given(200, "2001:3001 ack 1", "1:1 ack 3001");
}

/// RFC 5681, 4.2: expect an ACK for every 2 RMSS bytes, regardless of the number of segments.
#[test]
fn short_segments_count_by_their_bytes() {
    let mut host = Host::accepted(plain());
    host.no_reply(200, "1:501 ack 1");
    host.no_reply(210, "501:1001 ack 1");
    host.no_reply(220, "1001:1501 ack 1");
    host.given(230, "1501:2001 ack 1", "1:1 ack 2001");
    host.no_reply(240, "2001:2011 ack 1");
    host.timer(440, "1:1 ack 2011");
    // 1 means every segment, however short.
    let acks = AckPolicy { delayed_segments: 1, ..plain().acks };
    let mut host = Host::accepted(Config { acks, ..plain() });
    host.given(200, "1:11 ack 1", "1:1 ack 11");
}

/// Linux, `__tcp_ack_snd_check` and `tcp_measure_rcv_mss`: expect an ACK for more than the largest
/// segment so far, initially 536.
#[test]
fn linux_acknowledges_more_than_its_largest_segment() {
    let mut host = Host::accepted(Config { stack: StackVariant::Linux, ..plain() });
    host.no_reply(200, "1:301 ack 1");
    host.given(201, "301:538 ack 1", "1:1 ack 538");
    host.no_reply(202, "538:1538 ack 1");
    host.given(203, "1538:1539 ack 1", "1:1 ack 1539");
    host.no_reply(204, "1539:2139 ack 1");
    host.no_reply(205, "2139:2539 ack 1");
    host.given(206, "2539:2540 ack 1", "1:1 ack 2540");
}

/// Quick ACKs: expect the first segments of a connection to be acknowledged immediately.
#[test]
fn the_first_segments_are_acknowledged_immediately() {
    let acks = AckPolicy { quick_segments: 2, ..plain().acks };
    let mut host = Host::accepted(Config { acks, ..plain() });
    host.given(200, "1:1001 ack 1", "1:1 ack 1001");
    host.given(200, "1001:2001 ack 1", "1:1 ack 2001");
    host.no_reply(200, "2001:3001 ack 1");
}

/// RFC 5681, 4.2: expect an immediate ACK for a segment above a hole, one that fills it, and a
/// duplicate.
#[test]
fn out_of_order_data_is_acknowledged_immediately() {
    let mut host = Host::accepted(plain());
    host.given(200, "1001:2001 ack 1", "1:1 ack 1");
    host.given(201, "2001:3001 ack 1", "1:1 ack 1");
    host.given(202, "1:1001 ack 1", "1:1 ack 3001");
    host.given(203, "1:1001 ack 1", "1:1 ack 3001");
    host.no_reply(204, "3001:4001 ack 1");
    host.given(205, "5001:6001 ack 1", "1:1 ack 4001");
    host.given(206, "4001:4501 ack 1", "1:1 ack 4501");
    host.given(207, "4501:5001 ack 1", "1:1 ack 6001");
    host.idle();
}

/// A data segment carries the ACK: expect no pure ACK.
#[test]
fn data_carries_the_ack() {
    let mut host = Host::accepted(plain());
    host.no_reply(200, "1:1001 ack 1");
    host.writes(250, 10, "1:11 ack 1001");
    host.no_reply(300, "1001:1001 ack 11");
    host.idle();
    host.compare("pure ACKs", 0, |endpoint| endpoint.stats().acks_sent);
}

/// RFC 2018, 4: expect the block of the segment that caused the ACK first, then the most recent
/// ones; four fit, or three with timestamps (section 3).
#[test]
fn sack_blocks_are_newest_first() {
    let mut host = Host::accepted(Config { sack: true, ..plain() });
    host.given(200, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    host.given(200, "3001:4001 ack 1", "1:1 ack 1 sack 3001-4001 sack 1001-2001");
    let three = "1:1 ack 1 sack 5001-6001 sack 3001-4001 sack 1001-2001";
    host.given(200, "5001:6001 ack 1", three);
    let four = "1:1 ack 1 sack 7001-8001 sack 5001-6001 sack 3001-4001 sack 1001-2001";
    host.given(200, "7001:8001 ack 1", four);
    let latest = "1:1 ack 1 sack 9001-10001 sack 7001-8001 sack 5001-6001 sack 3001-4001";
    host.given(200, "9001:10001 ack 1", latest);
    let joined = "1:1 ack 1 sack 3001-6001 sack 9001-10001 sack 7001-8001";
    host.given(200, "4001:5001 ack 1", joined);
    let filled = "1:1 ack 2001 sack 3001-6001 sack 9001-10001 sack 7001-8001";
    host.given(200, "1:1001 ack 1", filled);
    host.given(200, "2001:3001 ack 1", "1:1 ack 6001 sack 9001-10001 sack 7001-8001");
    host.given(200, "6001:7001 ack 1", "1:1 ack 8001 sack 9001-10001");
    host.given(200, "8001:9001 ack 1", "1:1 ack 10001");
}

/// RFC 2018, 3: 40 bytes of options have room for three blocks and a timestamp.
#[test]
fn three_blocks_fit_with_a_timestamp() {
    let config = Config { sack: true, timestamps: true, ..plain() };
    let mut host = Host::accepted(config);
    for start in [1_001, 3_001, 5_001] {
        host.receives(200, &format!("{start}:{} ack 1 ts 10/0", start + 500));
    }
    let expected = "1:1 ack 1 sack 7001-7501 sack 5001-5501 sack 3001-3501 ts 200/0";
    host.given(200, "7001:7501 ack 1 ts 10/0", expected);
}

/// RFC 2883, 4, as in Linux (`tcp_dsack_set`): given a duplicate segment, expect it as the first
/// block of the next ACK only, followed by out-of-order ranges. `rfc` sends no D-SACK.
#[test]
fn a_duplicate_segment_is_reported_once() {
    let config = Config { sack: true, stack: StackVariant::Linux, ..plain() };
    let mut host = Host::accepted(config);
    host.no_reply(200, "1:1001 ack 1");
    host.given(201, "1001:2001 ack 1", "1:1 ack 2001");
    host.given(202, "1:1001 ack 1", "1:1 ack 2001 sack 1-1001");
    // 4.2.1: below the ACK, with data beyond a hole.
    host.given(203, "3001:4001 ack 1", "1:1 ack 2001 sack 3001-4001");
    host.given(204, "1001:2001 ack 1", "1:1 ack 2001 sack 1001-2001 sack 3001-4001");
    // 4.2.2: within a block beyond a hole, which is reported as well.
    host.given(205, "3001:4001 ack 1", "1:1 ack 2001 sack 3001-4001 sack 3001-4001");
    // 4.3: part of a segment.
    host.given(206, "1501:2501 ack 1", "1:1 ack 2501 sack 1501-2001 sack 3001-4001");
    host.given(207, "2501:3001 ack 1", "1:1 ack 4001");
    host.no_reply(208, "4001:5001 ack 1");

    let mut host = Host::accepted(Config { sack: true, ..plain() });
    host.given(202, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    host.given(203, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    let mut host = Host::accepted(Config { sack: false, ..config });
    host.given(202, "1001:2001 ack 1", "1:1 ack 1");
    host.given(203, "1001:2001 ack 1", "1:1 ack 1");
}

/// A Linux host with SACK, and an RTT of 100 ms.
fn linux_with_sack() -> Config {
    Config { sack: true, stack: StackVariant::Linux, ..plain() }
}

/// Linux, `__tcp_ack_snd_check`: beyond a hole, expect immediate ACKs for three segments
/// (TCP_FASTRETRANS_THRESH), and one for the others 1 ms after the first of them
/// (`tcp_comp_sack_delay_ns`; a twentieth of the RTT would be 5 ms) plus the timer's slack of 100
/// us (`tcp_comp_sack_slack_ns`). A segment that fills the hole is acknowledged immediately, and
/// counting restarts.
#[test]
fn linux_compresses_acks_after_the_third() {
    let mut host = Host::accepted(linux_with_sack());
    host.given(200, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    host.given(200, "2001:3001 ack 1", "1:1 ack 1 sack 1001-3001");
    host.given(201, "3001:4001 ack 1", "1:1 ack 1 sack 1001-4001");
    host.no_reply(202, "4001:5001 ack 1");
    host.no_reply(203, "5001:6001 ack 1");
    host.timer_us(203_100, "1:1 ack 1 sack 1001-6001");
    host.idle();
    host.no_reply(204, "6001:7001 ack 1");
    host.given(205, "1:1001 ack 1", "1:1 ack 7001");
    host.idle();
    for (start, end) in [(8_001, 9_001), (9_001, 10_001), (10_001, 11_001)] {
        let expected = format!("1:1 ack 7001 sack 8001-{end}");
        host.given(206, &format!("{start}:{end} ack 1"), &expected);
    }
    host.no_reply(206, "11001:12001 ack 1");
    host.timer_us(207_100, "1:1 ack 7001 sack 8001-12001");
}

/// Linux, `tcp_sack_new_ofo_skb` (TCP_SACK_BLOCKS_EXPECTED): expect a compressed ACK before more
/// than two other blocks come first: with a new block, and with one that was third or later.
#[test]
fn compressed_acks_are_sent_before_blocks_are_pushed_back() {
    let mut host = Host::accepted(linux_with_sack());
    for start in [1_001, 3_001, 5_001] {
        host.receives(200, &format!("{start}:{} ack 1", start + 1_000));
    }
    host.no_reply(201, "6001:6501 ack 1");
    let new = "1:1 ack 1 sack 8001-9001 sack 5001-6501 sack 3001-4001 sack 1001-2001";
    host.given(201, "8001:9001 ack 1", new);
    host.no_reply(201, "9001:9501 ack 1");
    // The second block does not trigger it.
    host.no_reply(201, "6501:7001 ack 1");
    let fourth = "1:1 ack 1 sack 1001-2501 sack 5001-7001 sack 8001-9501 sack 3001-4001";
    host.given(201, "2001:2501 ack 1", fourth);
    host.idle();
}

/// `tcp_comp_sack_nr`: expect an ACK after at most 44 compressed ones.
#[test]
fn a_compressed_ack_covers_at_most_44_segments() {
    let mut host = Host::accepted(linux_with_sack());
    let mut receive =
        |n: u32| host.receives(200, &format!("{}:{} ack 1", 100 * n + 1, 100 * n + 101));
    let immediate: Vec<_> = (1..=48).filter(|&n| !receive(n).is_empty()).collect();
    assert_eq!(immediate, [1, 2, 3, 48]);
}

/// Given an RTT of 10 ms, expect a delay of a twentieth, 0.5 ms.
#[test]
fn a_short_rtt_shortens_compression() {
    let mut host = Host::new(linux_with_sack());
    host.receives(0, "S 0:1 mss 1000 sackok");
    host.receives(10, "1:1 ack 1");
    for start in [1_001, 2_001, 3_001, 4_001] {
        host.receives(20, &format!("{start}:{} ack 1", start + 1_000));
    }
    host.timer_us(20_600, "1:1 ack 1 sack 1001-5001");
}

/// Expect no compression while quick ACKs last, at a host that acknowledges each segment (Linux,
/// both in `tcp_in_quickack_mode`), without SACK, for a duplicate below the hole
/// (`tcp_data_queue`), and with `rfc`.
#[test]
fn some_acks_beyond_a_hole_are_never_compressed() {
    let acks = linux_with_sack().acks;
    let linux = linux_with_sack();
    let others = [
        Config { acks: AckPolicy { quick_segments: 1, ..acks }, ..linux },
        Config { acks: AckPolicy { delayed_segments: 1, ..acks }, ..linux },
        Config { sack: false, ..linux },
        Config { stack: StackVariant::Rfc, ..linux },
    ];
    for config in others {
        let mut host = Host::accepted(config);
        for start in [1_001, 2_001, 3_001, 4_001, 5_001] {
            let sent = host.receives(200, &format!("{start}:{} ack 1", start + 1_000));
            assert!(!sent.is_empty(), "segment {start} of {config:?}");
        }
    }
    let mut host = Host::accepted(linux);
    host.no_reply(200, "1:1001 ack 1");
    for start in [2_001, 3_001, 4_001] {
        host.receives(200, &format!("{start}:{} ack 1", start + 1_000));
    }
    host.no_reply(200, "5001:6001 ack 1");
    host.given(200, "1:1001 ack 1", "1:1 ack 1001 sack 1-1001 sack 2001-6001");
    host.idle();
}

/// Given a duplicate, expect the D-SACK on a data segment, once. The payload is computed once for
/// all segments sent together (Linux, `tcp_write_xmit`).
#[test]
fn data_reports_a_duplicate_segment() {
    let config =
        Config { sack: true, stack: StackVariant::Linux, initial_window_segments: 1, ..plain() };
    let mut host = Host::accepted(config);
    host.receives(200, "1:1001 ack 1");
    host.writes(210, 3_000, "1:1001 ack 1001");
    let expected = "1001:1989 ack 1001 sack 1-1001 | 1989:2977 ack 1001 | 2977:3001 ack 1001";
    host.given(300, "1:1001 ack 1001", expected);
}

/// RFC 7323, 4.3: expect a delayed ACK to echo the first segment that it acknowledges, one above a
/// hole the last in order, and one that fills it that segment.
#[test]
fn timestamps_echo_the_segment_that_advanced_rcv_nxt() {
    let mut host = Host::accepted(Config { timestamps: true, ..plain() });
    host.no_reply(200, "1:989 ack 1 ts 10/0");
    host.given(210, "989:1977 ack 1 ts 11/0", "1:1 ack 1977 ts 210/10");
    host.given(220, "2965:3953 ack 1 ts 13/0", "1:1 ack 1977 ts 220/10");
    host.given(230, "1977:2965 ack 1 ts 14/0", "1:1 ack 3953 ts 230/14");
    // A reordered segment: an older value is not echoed (TSval >= TS.Recent).
    host.given(240, "1:989 ack 1 ts 9/0", "1:1 ack 3953 ts 240/14");
}

/// RFC 9293, 3.4: sequence numbers wrap. The peer's start 2500 before the wrap, and it sends more
/// than 2500 bytes.
#[test]
fn received_sequence_numbers_wrap() {
    let mut host = Host::accepted(Config { sack: true, ..plain() });
    host.no_reply(200, "1:1001 ack 1");
    host.given(200, "1001:2001 ack 1", "1:1 ack 2001");
    host.given(200, "3001:4001 ack 1", "1:1 ack 2001 sack 3001-4001");
    host.given(200, "2001:3001 ack 1", "1:1 ack 4001");
    host.given(200, "F 4001:5002 ack 1", "1:1 ack 5002");
    host.compare("delivered", 5_000, |endpoint| endpoint.receiver().delivered());
}

/// Linux, `tcp_established_options` and `tcp_current_mss`: expect SACK blocks on data segments too,
/// whose payload shrinks by the size of the option (4 + 8 bytes for one block), and no pure ACK.
#[test]
fn sack_blocks_reduce_the_payload_of_new_data() {
    let config = Config { sack: true, initial_window_segments: 10, ..plain() };
    let mut host = Host::accepted(config);
    host.given(200, "1001:2001 ack 1", "1:1 ack 1 sack 1001-2001");
    let sent = "1:989 ack 1 sack 1001-2001 | 989:1001 ack 1 sack 1001-2001";
    host.writes(210, 1_000, sent);
    let two = "3001-4001 sack 1001-2001";
    host.given(220, "3001:4001 ack 1001", &format!("1001:1001 ack 1 sack {two}"));
    let first = format!("1001:1981 ack 1 sack {two}");
    let sent = host.call(230, "writes", |endpoint, cx| endpoint.write(cx, 10_000));
    assert!(sent.starts_with(&first), "{sent}");
    // The holes are filled: full segments again.
    host.receives(240, "1:1001 ack 1001");
    host.receives(240, "2001:3001 ack 1001");
    let sent = host.receives(250, "4001:4001 ack 4001");
    assert!(sent.split(" | ").all(|segment| !segment.contains("sack")), "{sent}");
}

/// Two-way transfers: expect the data segment that acknowledges an out-of-order segment to report
/// it. With timestamps, a full segment has 988 bytes.
#[test]
fn data_reports_the_out_of_order_segment_that_it_acknowledges() {
    let config = Config { sack: true, timestamps: true, initial_window_segments: 1, ..plain() };
    let mut host = Host::accepted(config);
    host.writes(200, 5_000, "1:989 ack 1 ts 200/0");
    // The ACK opens the window for two segments, and its data lies beyond a hole.
    let expected = "989:1965 ack 1 sack 989-1977 ts 300/0 | 1965:2941 ack 1 sack 989-1977 ts 300/0";
    host.given(300, "989:1977 ack 989 ts 10/200", expected);
}

/// A retransmission keeps its length. Given no room for blocks, expect a pure ACK that reports
/// them.
#[test]
fn blocks_that_do_not_fit_a_retransmission_go_in_a_pure_ack() {
    let config = Config { sack: true, initial_window_segments: 4, ..plain() };
    let mut host = Host::connected(config);
    host.receives(100, "1:1 ack 1");
    host.call(100, "writes", |endpoint, cx| endpoint.write(cx, 4_000));
    host.receives(200, "1:1 ack 1 sack 1001-2001");
    host.receives(200, "1:1 ack 1 sack 1001-3001");
    // Three segments are SACKed: the first is lost. The same segment carries data beyond a hole.
    let expected = "1:1001 ack 1 | 4001:4001 ack 1 sack 2001-3001";
    host.given(210, "2001:3001 ack 1 sack 1001-4001", expected);
}

/// Without SACK, expect the ACK on the data segment, however full it is.
#[test]
fn without_sack_out_of_order_data_is_acknowledged_by_data_alone() {
    let mut host = Host::accepted(plain());
    host.writes(200, 2_000, "1:1001 ack 1");
    host.closes(200, "");
    host.given(300, "1001:2001 ack 1001", "F 1001:2002 ack 1");
}

/// Given segments 30, 10 and 20 ms after they were sent, the second one a gap ahead, expect their
/// delays, and deliveries with the first and the last one.
#[test]
fn statistics_of_received_data() {
    let mut host = Host::accepted(plain());
    // The harness creates a segment at the time of the event before it.
    host.receives(130, "1:1001 ack 1");
    host.receives(140, "2001:3001 ack 1");
    let stats = host.endpoint.stats();
    assert_eq!(stats.last_delivery, Some(Instant::from_millis(130)), "the gap is open");
    host.receives(160, "1001:2001 ack 1");
    let stats = host.endpoint.stats();
    assert_eq!(stats.data_segments_received, 3);
    assert_eq!(stats.one_way_delay_sum, Duration::from_millis(60));
    assert_eq!(stats.one_way_delay_max, Duration::from_millis(30));
    assert_eq!(stats.first_delivery, Some(Instant::from_millis(130)));
    assert_eq!(stats.last_delivery, Some(Instant::from_millis(160)));
}
