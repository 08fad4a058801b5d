//! Loss recovery from cumulative ACKs (RFC 5681, 3.2; RFC 6582; RFC 3042).

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::config::{Config, CongestionName};
use crate::tcp::endpoint::Endpoint;

/// Ten segments of an unlimited stream are outstanding at 100 ms.
fn ten_outstanding(config: Config) -> Host {
    let mut host = Host::connected(Config { initial_window_segments: 10, ..config });
    host.writes(100, 1 << 19, &segments(1, 10));
    host
}

fn newreno() -> Config {
    Config { congestion: CongestionName::NewReno, ..plain() }
}

fn duplicates(host: &mut Host, at_ms: u64, ack: u32, count: u32) {
    for _ in 0..count {
        host.no_reply(at_ms, &format!("1:1 ack {ack}"));
    }
}

/// RFC 5681, 3.2, steps 2 to 6: expect the third duplicate ACK to retransmit the segment and halve
/// cwnd, each duplicate to inflate it, and the first new ACK to deflate it.
#[test]
fn fast_retransmit_and_fast_recovery() {
    let mut host = ten_outstanding(plain());
    duplicates(&mut host, 200, 1, 2);
    host.given(200, "1:1 ack 1", &segments(1, 1));
    host.window(5_000);
    // 5 + 3 + 2 are outstanding already; from the eleventh on, each duplicate sends one.
    duplicates(&mut host, 200, 1, 2);
    host.given(200, "1:1 ack 1", &segments(10_001, 1));
    host.given(200, "1:1 ack 1", &segments(11_001, 1));
    host.given(300, "1:1 ack 12001", &segments(12_001, 5));
    host.window(5_000);
    host.compare("recoveries, retransmissions, timeouts", (1, 1, 0), |endpoint| {
        let counters = endpoint.sender().counters();
        (counters.fast_recoveries, counters.retransmitted_segments, counters.timeouts)
    });
}

/// RFC 5681, 2: an ACK with data, a FIN or another window is not a duplicate.
#[test]
fn only_real_duplicates_count() {
    let mut host = Host::new(Config { initial_window_segments: 10, ..plain() }).peer_window(40_000);
    host.call(0, "opens", Endpoint::open);
    host.receives(100, "S 0:1 ack 1 mss 1000");
    host.writes(100, 1 << 19, &segments(1, 10));
    duplicates(&mut host, 200, 1, 2);
    host.no_reply(200, "1:1 ack 1 win 50000");
    host.no_reply(200, "1:501 ack 1 win 50000");
    host.window(10_000);
    host.given(202, "501:501 ack 1 win 50000", "1:1001 ack 501");
}

/// Given nothing outstanding, expect no duplicate ACK.
#[test]
fn duplicates_need_something_outstanding() {
    let mut host = ten_outstanding(plain());
    host.receives(200, "1:1 ack 10001");
    let mut host = Host::connected(plain());
    host.writes(100, 1_000, &segments(1, 1));
    host.no_reply(200, "1:1 ack 1001");
    duplicates(&mut host, 200, 1_001, 5);
    host.idle();
}

/// Given Reno, expect recovery to end at the first new ACK, even a partial one: the second hole
/// needs three more duplicates, and cwnd is halved again.
#[test]
fn reno_leaves_recovery_at_a_partial_ack() {
    let mut host = ten_outstanding(plain());
    duplicates(&mut host, 200, 1, 2);
    host.given(200, "1:1 ack 1", &segments(1, 1));
    host.no_reply(300, "1:1 ack 4001");
    host.window(5_000);
    duplicates(&mut host, 310, 4_001, 2);
    host.given(310, "1:1 ack 4001", &segments(4_001, 1));
    host.window(2_500);
}

/// RFC 6582, 3.2, step 3: expect a partial ACK to retransmit the next hole immediately, deflate
/// cwnd by what it acknowledged and add a segment back; recovery continues.
#[test]
fn newreno_retransmits_the_next_hole_at_a_partial_ack() {
    let mut host = ten_outstanding(newreno());
    duplicates(&mut host, 200, 1, 2);
    host.given(200, "1:1 ack 1", &segments(1, 1));
    // 1 and 5 of ten are lost: five more duplicates give 5 + 8 = 13 segments.
    duplicates(&mut host, 200, 1, 2);
    for start in [10_001, 11_001, 12_001] {
        host.given(200, "1:1 ack 1", &segments(start, 1));
    }
    // 13 - 4 acknowledged + 1 = 10 from 4001: one more than the nine outstanding.
    let hole_and_more = format!("{} | {}", segments(4_001, 1), segments(13_001, 1));
    host.given(300, "1:1 ack 4001", &hole_and_more);
    host.window(5_000);
    // The full ACK ends recovery (step 3); data sent during it does not prolong it.
    host.given(400, "1:1 ack 12001", &segments(14_001, 3));
    host.window(5_000);
    host.compare("recoveries", 1, |endpoint| endpoint.sender().counters().fast_recoveries);
}

/// RFC 3042: expect one new segment for each of the first two duplicates. They do not count for the
/// flight size that is halved (RFC 5681, 3.2, step 2).
#[test]
fn limited_transmit_sends_two_new_segments() {
    let mut host = ten_outstanding(Config { limited_transmit: true, ..plain() });
    host.given(200, "1:1 ack 1", &segments(10_001, 1));
    host.given(200, "1:1 ack 1", &segments(11_001, 1));
    host.given(200, "1:1 ack 1", &segments(1, 1));
    host.window(5_000);
}

/// RFC 6582, 3.2, step 2: expect no fast retransmit until more is acknowledged than a timeout
/// retransmitted, because the peer may have received that before; after that, duplicates mean loss
/// again.
#[test]
fn duplicates_up_to_recover_start_no_recovery() {
    for config in [plain(), newreno()] {
        let mut host = ten_outstanding(config);
        host.timer(400, &segments(1, 1));
        host.given(500, "1:1 ack 10001", &segments(10_001, 2));
        duplicates(&mut host, 510, 10_001, 4);
        host.given(600, "1:1 ack 11001", &segments(12_001, 2));
        host.given(600, "1:1 ack 12001", &segments(14_001, 2));
        duplicates(&mut host, 700, 12_001, 2);
        let again = format!("{} | {}", segments(12_001, 1), segments(16_001, 1));
        host.given(700, "1:1 ack 12001", &again);
    }
}

/// RFC 6582, 3.2, step 2: expect no fast retransmit from duplicates for data that a timeout
/// retransmits.
#[test]
fn duplicates_after_a_timeout_start_no_recovery() {
    for config in [plain(), newreno()] {
        let mut host = ten_outstanding(config);
        host.timer(400, &segments(1, 1));
        duplicates(&mut host, 410, 1, 4);
        host.window(1_000);
        host.given(500, "1:1 ack 1001", &segments(1_001, 2));
        duplicates(&mut host, 510, 1_001, 4);
        host.compare("recoveries", 0, |endpoint| endpoint.sender().counters().fast_recoveries);
    }
}

/// A FIN occupies no payload: expect it to be retransmitted with the last data.
#[test]
fn the_fin_is_retransmitted_with_the_last_data() {
    let mut host = Host::connected(Config { initial_window_segments: 10, ..plain() });
    host.writes(100, 4_000, &segments(1, 4));
    host.no_reply(200, "1:1 ack 4001");
    host.closes(200, "F 4001:4002 ack 1");
    host.given(300, "1:1 ack 4002", "");
    host.idle();

    let mut host = Host::connected(Config { initial_window_segments: 10, ..newreno() });
    host.call(100, "writes and closes", |endpoint, cx| {
        endpoint.write(cx, 3_000);
        endpoint.close(cx);
    });
    host.timer(400, &segments(1, 1));
    let rest = format!("{} | F 2001:3002 ack 1", segments(1_001, 1));
    host.given(500, "1:1 ack 1001", &rest);
    host.given(600, "1:1 ack 3001", "");
    host.no_reply(610, "1:1 ack 3002");
    host.idle();

    let mut host = Host::new(Config { initial_window_segments: 10, ..plain() });
    host.writes(0, 5_000, "");
    host.closes(0, "");
    host.call(0, "opens", Endpoint::open);
    let data = format!("{} | F 4001:5002 ack 1", segments(1, 4));
    host.given(100, "S 0:1 ack 1 mss 1000", &data);
    host.no_reply(200, "1:1 ack 4001");
    duplicates(&mut host, 210, 4_001, 2);
    host.given(210, "1:1 ack 4001", "F 4001:5002 ack 1");
    host.no_reply(300, "1:1 ack 5002");
    host.idle();
}
