//! Explicit congestion notification (RFC 3168, section 6.1).

use super::harness::Host;
use super::plain;
use crate::tcp::config::{Config, StackVariant};
use crate::tcp::endpoint::Endpoint;

fn ecn() -> Config {
    Config { ecn: true, initial_window_segments: 10, ..plain() }
}

/// An endpoint that requested ECN at 0 and received a SYN-ACK at 100 ms.
fn agreed(config: Config) -> Host {
    let mut host = Host::new(config);
    host.call(0, "opens", Endpoint::open);
    let sack = if config.sack { " sackok" } else { "" };
    host.given(100, &format!("S E 0:1 ack 1 mss 1000{sack}"), "1:1 ack 1");
    host
}

/// `count` ECN-capable segments of 1000 bytes from `start` on.
fn capable(start: u32, count: u32) -> String {
    let each = (0..count).map(|n| start + 1_000 * n);
    let each = each.map(|start| format!("{start}:{} ack 1 ect", start + 1_000));
    each.collect::<Vec<_>>().join(" | ")
}

/// 6.1.1: expect ECE and CWR on a SYN, ECE alone on a SYN-ACK; neither is ECN-capable.
#[test]
fn both_ends_negotiate_ecn_in_the_handshake() {
    let mut host = Host::new(ecn());
    assert_eq!(host.call(0, "opens", Endpoint::open), "S E W 0:1 mss 1000");
    host.given(100, "S E 0:1 ack 1 mss 1000", "1:1 ack 1");
    host.writes(100, 500, "1:501 ack 1 ect");
    let mut host = Host::new(ecn());
    host.given(5, "S E W 0:1 mss 1000", "S E 0:1 ack 1 mss 1000");
    host.no_reply(10, "1:1 ack 1");
    host.writes(10, 500, "1:501 ack 1 ect");
}

/// 6.1.1: given an end without ECN, or a SYN-ACK that reflects the flags, expect no ECN.
#[test]
fn without_negotiation_nothing_is_ecn_capable() {
    for answer in ["S", "S E W"] {
        let mut host = Host::new(ecn());
        host.call(0, "opens", Endpoint::open);
        host.given(100, &format!("{answer} 0:1 ack 1 mss 1000"), "1:1 ack 1");
        host.writes(100, 500, "1:501 ack 1");
    }
    for (config, question) in [(ecn(), "S"), (ecn(), "S E"), (plain(), "S E W")] {
        let mut host = Host::new(config);
        host.given(5, &format!("{question} 0:1 mss 1000"), "S 0:1 ack 1 mss 1000");
        host.no_reply(10, "1:1 ack 1");
        host.writes(10, 500, "1:501 ack 1");
    }
}

/// 6.1.1.1: expect a retransmitted SYN without ECN.
#[test]
fn a_retransmitted_syn_does_not_request_ecn() {
    let mut host = Host::new(ecn());
    host.call(0, "opens", Endpoint::open);
    host.timer(1_000, "S 0:1 mss 1000");
}

/// 6.1.3: given a mark, expect ECE on every ACK until CWR arrives; a mark on the segment with CWR
/// counts again.
#[test]
fn the_receiver_echoes_a_mark_until_cwr() {
    let mut host = Host::new(ecn());
    host.given(0, "S E W 0:1 mss 1000", "S E 0:1 ack 1 mss 1000");
    host.no_reply(100, "1:1001 ack 1");
    host.given(100, "1001:2001 ack 1", "1:1 ack 2001");
    host.given(101, "2001:3001 ack 1 ce", "E 1:1 ack 3001");
    host.no_reply(102, "3001:4001 ack 1");
    host.given(103, "4001:5001 ack 1", "E 1:1 ack 5001");
    host.writes(104, 500, "E 1:501 ack 5001 ect");
    host.given(105, "W 5001:6001 ack 501", "501:501 ack 6001");
    host.given(106, "W 6001:7001 ack 501 ce", "E 501:501 ack 7001");
}

/// 6.1.2: given ten segments of 1000 outstanding, expect a cwnd of half of that. The next new data
/// carries CWR, and further echoes for data sent before have no effect.
#[test]
fn the_sender_reduces_once_per_window() {
    let mut host = agreed(ecn());
    host.writes(100, 100_000, &capable(1, 10));
    host.no_reply(200, "E 1:1 ack 1001");
    host.window(5_000);
    for ack in [2_001, 3_001, 4_001, 5_001] {
        host.no_reply(200, &format!("E 1:1 ack {ack}"));
    }
    host.window(5_000);
    host.given(201, "E 1:1 ack 6001", "W 10001:11001 ack 1 ect");
    host.given(202, "E 1:1 ack 7001", "11001:12001 ack 1 ect");
    host.window(5_000);
    // The peer received CWR: a later echo is for a mark in the new window. Half of 5,000 bytes is
    // one segment in addition to the one outstanding.
    host.given(301, "E 1:1 ack 11001", "W 12001:13001 ack 1 ect");
    host.window(2_500);
}

/// Linux, `tcp_enter_cwr`: expect cwnd to follow PRR to ssthresh, one segment for every two
/// delivered (RFC 6937 with ssthresh 5 of 10), without retransmissions.
#[test]
fn with_sack_prr_reduces_cwnd() {
    let mut host = agreed(Config {
        sack: true,
        prr: true,
        stack: StackVariant::Linux,
        rack_tlp: true,
        ..ecn()
    });
    host.writes(100, 100_000, &capable(1, 10));
    host.no_reply(200, "E 1:1 ack 1001");
    host.given(200, "E 1:1 ack 2001", "W 10001:11001 ack 1 ect");
    host.no_reply(200, "E 1:1 ack 3001");
    host.given(200, "E 1:1 ack 4001", "11001:12001 ack 1 ect");
    host.no_reply(200, "E 1:1 ack 5001");
    host.given(200, "E 1:1 ack 6001", "12001:13001 ack 1 ect");
    host.compare("ssthresh", Some(5_000), |end| end.sender().control().ssthresh());
    host.compare("recoveries", 0, |end| end.sender().counters().fast_recoveries);
    host.compare("retransmitted", 0, |end| end.sender().counters().retransmitted_segments);
}

/// Given a loss while cwnd is being reduced for a mark, expect no further reduction (Linux,
/// `tcp_enter_recovery`).
#[test]
fn a_loss_after_a_mark_reduces_once() {
    let mut host = agreed(Config { sack: true, prr: true, stack: StackVariant::Linux, ..ecn() });
    host.writes(100, 100_000, &capable(1, 10));
    host.no_reply(200, "E 1:1 ack 1001");
    host.compare("ssthresh", Some(5_000), |end| end.sender().control().ssthresh());
    host.receives(201, "E 1:1 ack 1001 sack 2001-3001");
    host.receives(202, "E 1:1 ack 1001 sack 2001-4001");
    // Retransmitted data is not ECN-capable.
    let sent = host.receives(203, "E 1:1 ack 1001 sack 2001-5001");
    assert!(sent.contains("1001:2001 ack 1") && !sent.contains("1001:2001 ack 1 ect"), "{sent}");
    host.compare("ssthresh", Some(5_000), |end| end.sender().control().ssthresh());
}

/// Linux, `tcp_fastretrans_alert`: the reduction for a mark ends when something above the data of that time
/// is acknowledged. Given a loss while exactly that data is, expect no further reduction.
#[test]
fn the_reduction_for_a_mark_includes_all_data_of_that_time() {
    let mut host = agreed(Config { sack: true, prr: true, stack: StackVariant::Linux, ..ecn() });
    host.writes(100, 100_000, &capable(1, 10));
    host.no_reply(200, "E 1:1 ack 1001");
    host.receives(201, "1:1 ack 10001");
    for end in ["12001", "13001", "14001"] {
        host.receives(300, &format!("1:1 ack 10001 sack 11001-{end}"));
    }
    host.compare("recoveries", 1, |end| end.sender().counters().fast_recoveries);
    host.compare("ssthresh", Some(5_000), |end| end.sender().control().ssthresh());
}

/// 6.1.5: expect retransmissions and pure ACKs not to be ECN-capable.
#[test]
fn only_new_data_is_ecn_capable() {
    let mut host = agreed(ecn());
    host.writes(100, 1_000, "1:1001 ack 1 ect");
    host.timer(400, "1:1001 ack 1");
    host.no_reply(410, "1:1001 ack 1");
    host.given(410, "1001:2001 ack 1", "1001:1001 ack 2001");
}
