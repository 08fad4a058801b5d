//! Explicit congestion notification (RFC 3168, section 6.1).

use super::conversation::Talk;
use super::plain;
use crate::tcp::config::{Config, Follows};
use crate::tcp::endpoint::Endpoint;

fn ecn() -> Config {
    Config { ecn: true, initial_window_segments: 10, ..plain() }
}

/// An endpoint that asked for ECN at 0 and was answered at 100 ms.
fn agreed(config: Config) -> Talk {
    let mut talk = Talk::new(config);
    talk.call(0, "opens", Endpoint::open);
    let sack = if config.sack { " sackok" } else { "" };
    talk.given(100, &format!("S E 0:1 ack 1 mss 1000{sack}"), "1:1 ack 1");
    talk
}

/// `count` ECN-capable segments of 1000 bytes from `start` on.
fn capable(start: u32, count: u32) -> String {
    let each = (0..count).map(|n| start + 1_000 * n);
    let each = each.map(|start| format!("{start}:{} ack 1 ect", start + 1_000));
    each.collect::<Vec<_>>().join(" | ")
}

/// 6.1.1: an ECN-setup SYN has ECE and CWR, an ECN-setup SYN-ACK has ECE alone; neither is ECN-capable.
#[test]
fn both_ends_agree_in_the_handshake() {
    let mut talk = Talk::new(ecn());
    assert_eq!(talk.call(0, "opens", Endpoint::open), "S E W 0:1 mss 1000");
    talk.given(100, "S E 0:1 ack 1 mss 1000", "1:1 ack 1");
    talk.writes(100, 500, "1:501 ack 1 ect");
    let mut talk = Talk::new(ecn());
    talk.given(5, "S E W 0:1 mss 1000", "S E 0:1 ack 1 mss 1000");
    talk.silent(10, "1:1 ack 1");
    talk.writes(10, 500, "1:501 ack 1 ect");
}

/// 6.1.1: with one end that does not, or an answer that only reflects the flags, ECN is not used.
#[test]
fn without_agreement_nothing_is_capable() {
    for answer in ["S", "S E W"] {
        let mut talk = Talk::new(ecn());
        talk.call(0, "opens", Endpoint::open);
        talk.given(100, &format!("{answer} 0:1 ack 1 mss 1000"), "1:1 ack 1");
        talk.writes(100, 500, "1:501 ack 1");
    }
    for (config, question) in [(ecn(), "S"), (ecn(), "S E"), (plain(), "S E W")] {
        let mut talk = Talk::new(config);
        talk.given(5, &format!("{question} 0:1 mss 1000"), "S 0:1 ack 1 mss 1000");
        talk.silent(10, "1:1 ack 1");
        talk.writes(10, 500, "1:501 ack 1");
    }
}

/// 6.1.1.1: a SYN that is repeated no longer asks.
#[test]
fn a_repeated_syn_does_not_ask() {
    let mut talk = Talk::new(ecn());
    talk.call(0, "opens", Endpoint::open);
    talk.timer(1_000, "S 0:1 mss 1000");
}

/// 6.1.3: from a mark on every ACK carries ECE, until CWR comes; a mark on the segment with CWR is
/// another one.
#[test]
fn the_receiver_echoes_a_mark_until_cwr() {
    let mut talk = Talk::new(ecn());
    talk.given(0, "S E W 0:1 mss 1000", "S E 0:1 ack 1 mss 1000");
    talk.silent(100, "1:1001 ack 1");
    talk.given(100, "1001:2001 ack 1", "1:1 ack 2001");
    talk.given(101, "2001:3001 ack 1 ce", "E 1:1 ack 3001");
    talk.silent(102, "3001:4001 ack 1");
    talk.given(103, "4001:5001 ack 1", "E 1:1 ack 5001");
    talk.writes(104, 500, "E 1:501 ack 5001 ect");
    talk.given(105, "W 5001:6001 ack 501", "501:501 ack 6001");
    talk.given(106, "W 6001:7001 ack 501 ce", "E 501:501 ack 7001");
}

/// 6.1.2: ten segments of 1000 are outstanding, so half of that is the window; the next new data, once
/// the window lets it out, carries CWR, and echoes of what was sent before are no news.
#[test]
fn the_sender_reduces_once_a_window() {
    let mut talk = agreed(ecn());
    talk.writes(100, 100_000, &capable(1, 10));
    talk.silent(200, "E 1:1 ack 1001");
    talk.window(5_000);
    for ack in [2_001, 3_001, 4_001, 5_001] {
        talk.silent(200, &format!("E 1:1 ack {ack}"));
    }
    talk.window(5_000);
    talk.given(201, "E 1:1 ack 6001", "W 10001:11001 ack 1 ect");
    talk.given(202, "E 1:1 ack 7001", "11001:12001 ack 1 ect");
    talk.window(5_000);
    // The peer has CWR: an echo from here on is of a mark in the window that it began. Of 5,000 bytes
    // half is left, which is one segment beside the one outstanding.
    talk.given(301, "E 1:1 ack 11001", "W 12001:13001 ack 1 ect");
    talk.window(2_500);
}

/// Linux, tcp_enter_cwr: the window follows PRR to the threshold, a segment for every two that are
/// delivered (RFC 6937 with ssthresh 5 of 10), with no retransmission.
#[test]
fn with_sack_the_window_is_reduced_by_prr() {
    let mut talk =
        agreed(Config { sack: true, prr: true, follows: Follows::Linux, rack_tlp: true, ..ecn() });
    talk.writes(100, 100_000, &capable(1, 10));
    talk.silent(200, "E 1:1 ack 1001");
    talk.given(200, "E 1:1 ack 2001", "W 10001:11001 ack 1 ect");
    talk.silent(200, "E 1:1 ack 3001");
    talk.given(200, "E 1:1 ack 4001", "11001:12001 ack 1 ect");
    talk.silent(200, "E 1:1 ack 5001");
    talk.given(200, "E 1:1 ack 6001", "12001:13001 ack 1 ect");
    talk.compare("threshold", Some(5_000), |end| end.sender().control().ssthresh());
    talk.compare("recoveries", 0, |end| end.sender().counters().fast_recoveries);
    talk.compare("repeated", 0, |end| end.sender().counters().retransmitted_segments);
}

/// A loss while the window is reduced for a mark does not reduce it again (Linux, tcp_enter_recovery).
#[test]
fn a_loss_after_a_mark_reduces_once() {
    let mut talk = agreed(Config { sack: true, prr: true, follows: Follows::Linux, ..ecn() });
    talk.writes(100, 100_000, &capable(1, 10));
    talk.silent(200, "E 1:1 ack 1001");
    talk.compare("threshold", Some(5_000), |end| end.sender().control().ssthresh());
    talk.hears(201, "E 1:1 ack 1001 sack 2001-3001");
    talk.hears(202, "E 1:1 ack 1001 sack 2001-4001");
    // Retransmitted data is not ECN-capable.
    let sent = talk.hears(203, "E 1:1 ack 1001 sack 2001-5001");
    assert!(sent.contains("1001:2001 ack 1") && !sent.contains("1001:2001 ack 1 ect"), "{sent}");
    talk.compare("threshold", Some(5_000), |end| end.sender().control().ssthresh());
}

/// 6.1.5: a retransmission is not ECN-capable; neither are pure ACKs.
#[test]
fn only_new_data_is_capable() {
    let mut talk = agreed(ecn());
    talk.writes(100, 1_000, "1:1001 ack 1 ect");
    talk.timer(400, "1:1001 ack 1");
    talk.silent(410, "1:1001 ack 1");
    talk.given(410, "1001:2001 ack 1", "1001:1001 ack 2001");
}
