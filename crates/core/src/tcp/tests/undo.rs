//! Undo of spurious reductions: F-RTO (RFC 5682), Eifel (RFC 3522) and D-SACK (RFC 2883, 3708) as
//! in Linux, and the reordering window of RACK (RFC 8985, 6.2, step 4).

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::config::{Config, StackVariant};
use crate::tcp::endpoint::Endpoint;

fn linux() -> Config {
    Config { sack: true, initial_window_segments: 10, stack: StackVariant::Linux, ..plain() }
}

fn ten_outstanding(config: Config) -> Host {
    let mut host = Host::connected(config);
    host.call(100, "writes", |endpoint, cx| endpoint.write(cx, 1 << 19));
    host
}

/// Ten segments are outstanding, and there is nothing more to send.
fn last_ten_outstanding(config: Config) -> Host {
    let mut host = Host::connected(config);
    host.writes(100, 10_000, &segments(1, 10));
    host
}

/// Lets the retransmission timer expire. Returns its time in ms, and the segments sent.
fn time_out(host: &mut Host) -> (u64, String) {
    let (at, sent) = host.time_out();
    (at.as_nanos() / 1_000_000, sent)
}

fn ssthresh(host: &Host, expected: Option<u64>) {
    host.compare("ssthresh", expected, |endpoint| endpoint.sender().control().ssthresh());
}

fn spurious(host: &Host, timeouts: u64, recoveries: u64) {
    host.compare("spurious timeouts, recoveries", (timeouts, recoveries), |endpoint| {
        let counters = endpoint.sender().counters();
        (counters.spurious_timeouts, counters.spurious_recoveries)
    });
}

fn retransmitted(host: &Host) -> u64 {
    host.endpoint.sender().counters().retransmitted_segments
}

/// Expects cwnd of at least ten segments, as before the reduction.
fn window_is_restored(host: &Host, segment: u64) {
    let cwnd = host.endpoint.sender().control().cwnd();
    assert!(cwnd >= 10 * segment, "{cwnd}");
    ssthresh(host, None);
}

/// `tcp_try_undo_loss` with `tcp_packet_delayed`: given an ACK after a timeout that echoes the
/// timestamp of the original (100) and not of the retransmission, expect undo: the path was only
/// slow.
#[test]
fn a_timestamp_shows_that_a_timeout_was_spurious() {
    for rack_tlp in [false, true] {
        let mut host = ten_outstanding(Config { timestamps: true, rack_tlp, ..linux() });
        let (at, sent) = time_out(&mut host);
        assert!(sent.starts_with("1:989 "), "{sent}");
        ssthresh(&host, Some(4 * 988 + 988));
        host.receives(at + 10, "1:1 ack 989 ts 9/100");
        window_is_restored(&host, 988);
        spurious(&host, 1, 0);
    }
}

/// `tcp_rack_advance` (RFC 8985, 6.2, step 2): the segment delivered last gives the RTT, even if it
/// was not sent last. An outage of 2 s delayed ten segments. Given ACKs two segments apart that
/// echo the originals (100), the first of them 300 ms after the first retransmission: expect undo,
/// and no further loss, because each original took as long as the one before it.
#[test]
fn segments_delayed_by_an_outage_are_not_lost() {
    let mut host = ten_outstanding(Config { timestamps: true, rack_tlp: true, ..linux() });
    let (at, _) = time_out(&mut host);
    let sent = retransmitted(&host);
    for (step, end) in [(0, 1_977), (3, 3_953), (6, 5_929), (9, 7_905), (12, 9_881)] {
        host.receives(at + 300 + step, &format!("1:1 ack {end} ts 9/100"));
        window_is_restored(&host, 988);
    }
    spurious(&host, 1, 0);
    host.compare("fast recoveries", 0, |endpoint| endpoint.sender().counters().fast_recoveries);
    assert_eq!(retransmitted(&host), sent);
}

/// Given the timestamp of the retransmission, expect no undo: the loss was genuine.
#[test]
fn a_timestamp_of_the_retransmission_prevents_undo() {
    let mut host = ten_outstanding(Config { timestamps: true, ..linux() });
    let (at, _) = time_out(&mut host);
    host.receives(at + 100, &format!("1:1 ack 989 ts 9/{at}"));
    ssthresh(&host, Some(4_940));
    spurious(&host, 0, 0);
}

/// RFC 5682, 3.1, steps 1, 2.b and 3.b (`tcp_process_loss`): expect two new segments and no
/// retransmission after the first ACK. Given a second ACK of never retransmitted segments, expect
/// undo: the timeout was spurious.
#[test]
fn f_rto_detects_a_spurious_timeout_without_timestamps() {
    let mut host = ten_outstanding(linux());
    let (at, sent) = time_out(&mut host);
    assert_eq!(sent, segments(1, 1));
    host.window(1_000);
    host.given(at + 10, "1:1 ack 1001", &segments(10_001, 2));
    let sent = host.receives(at + 20, "1:1 ack 2001");
    assert!(sent.starts_with("12001:13001 "), "{sent}");
    window_is_restored(&host, 1_000);
    spurious(&host, 1, 0);
    host.compare("retransmissions", 1, |endpoint| {
        endpoint.sender().counters().retransmitted_segments
    });
}

/// Given a SACK of a never retransmitted segment, expect undo (RFC 5682, 3: the SACK-enhanced
/// version).
#[test]
fn f_rto_uses_sack_blocks() {
    let mut host = ten_outstanding(linux());
    let (at, _) = time_out(&mut host);
    host.receives(at + 10, "1:1 ack 1 sack 1001-2001");
    window_is_restored(&host, 1_000);
    spurious(&host, 1, 0);
}

/// RFC 5682, 3.1, step 3.a: given a second ACK that reports only data sent after the timeout,
/// expect the deferred retransmissions: the loss was genuine.
#[test]
fn f_rto_detects_a_genuine_loss() {
    let mut host = ten_outstanding(linux());
    let (at, _) = time_out(&mut host);
    host.given(at + 100, "1:1 ack 1001", &segments(10_001, 2));
    let sent = host.receives(at + 200, "1:1 ack 1001 sack 10001-11001");
    assert!(sent.starts_with("1001:2001 "), "{sent}");
    ssthresh(&host, Some(5_000));
    spurious(&host, 0, 0);
}

/// The same, followed by an original: expect no undo (`tcp_process_loss` clears `frto`).
#[test]
fn f_rto_ends_with_a_genuine_loss() {
    let mut host = ten_outstanding(linux());
    let (at, _) = time_out(&mut host);
    host.given(at + 100, "1:1 ack 1001", &segments(10_001, 2));
    host.receives(at + 200, "1:1 ack 1001 sack 10001-11001");
    host.receives(at + 210, "1:1 ack 1001 sack 9001-11001");
    ssthresh(&host, Some(5_000));
    spurious(&host, 0, 0);
}

/// RFC 5682, 3.1, step 1, and `tcp_enter_loss`: given a first timeout in fast recovery and then an
/// original, expect no undo.
#[test]
fn f_rto_is_not_used_in_fast_recovery() {
    let mut host = ten_outstanding(linux());
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    ssthresh(&host, Some(5_000));
    let (at, _) = time_out(&mut host);
    host.receives(at + 10, "1:1 ack 1 sack 1001-5001");
    ssthresh(&host, Some(5_000));
    spurious(&host, 0, 0);
}

/// `tcp_xmit_recovery`: given a peer's window with room for 400 bytes, less than a segment, expect
/// retransmissions instead of new data.
#[test]
fn f_rto_retransmits_if_new_data_cannot_be_sent() {
    let mut host = Host::new(linux()).peer_window(10_400);
    host.call(0, "opens", Endpoint::open);
    host.receives(100, "S 0:1 ack 1 mss 1000 sackok");
    host.writes(100, 20_000, &segments(1, 10));
    let (at, _) = time_out(&mut host);
    host.given(at + 100, "1:1 ack 1001 win 9400", &segments(1_001, 2));
}

/// Step 2.b: without new data, expect conventional recovery immediately.
#[test]
fn f_rto_needs_new_data() {
    let mut host = Host::connected(linux());
    host.writes(100, 10_000, &segments(1, 10));
    let (at, _) = time_out(&mut host);
    host.given(at + 100, "1:1 ack 1001", &segments(1_001, 2));
    ssthresh(&host, Some(5_000));
}

/// With `rfc`, expect retransmissions after a timeout and no undo.
#[test]
fn the_rfc_variant_undoes_nothing() {
    let config = Config { stack: StackVariant::Rfc, timestamps: true, ..linux() };
    let mut host = ten_outstanding(config);
    let (at, _) = time_out(&mut host);
    let sent = host.receives(at + 10, "1:1 ack 989 ts 9/100");
    assert!(sent.starts_with("989:1977 "), "{sent}");
    ssthresh(&host, Some(4_940));
    spurious(&host, 0, 0);
}

/// `tcp_try_undo_dsack`: given a fast recovery (ssthresh 5) and, after it, a D-SACK of its
/// retransmission, expect a cwnd of ten again.
#[test]
fn a_d_sack_undoes_a_fast_recovery() {
    for (rack_tlp, prr) in [(false, false), (true, true)] {
        let mut host = ten_outstanding(Config { rack_tlp, prr, ..linux() });
        host.receives(200, "1:1 ack 1 sack 1001-4001");
        ssthresh(&host, Some(5_000));
        let max = host.endpoint.sender().max();
        host.receives(250, &format!("1:1 ack {max}"));
        host.window(5_000);
        host.receives(300, &format!("1:1 ack {max} sack 1-1001"));
        window_is_restored(&host, 1_000);
        spurious(&host, 0, 1);
    }
}

/// The same where the peer sends data with the D-SACK while nothing is outstanding here.
#[test]
fn a_d_sack_on_data_undoes_a_fast_recovery() {
    let mut host = last_ten_outstanding(linux());
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    ssthresh(&host, Some(5_000));
    host.receives(250, "1:1 ack 10001");
    host.window(5_000);
    host.receives(300, "1:989 ack 10001 sack 1-1001");
    window_is_restored(&host, 1_000);
    spurious(&host, 0, 1);
}

/// The same after a timeout: given an ACK of the only segment, which ends the recovery, and then a D-SACK of its
/// retransmission, expect a spurious timeout and no spurious fast recovery.
#[test]
fn a_late_d_sack_undoes_a_timeout() {
    let mut host = Host::connected(linux());
    host.writes(100, 1_000, &segments(1, 1));
    let (at, sent) = time_out(&mut host);
    assert!(sent.starts_with("1:1001 "), "{sent}");
    host.receives(at + 10, "1:1 ack 1001");
    spurious(&host, 0, 0);
    host.receives(at + 20, "1:1 ack 1001 sack 1-1001");
    spurious(&host, 1, 0);
}

/// `tcp_try_undo_dsack`: the same with the D-SACK during fast recovery.
#[test]
fn a_d_sack_undoes_an_ongoing_fast_recovery() {
    let mut host = ten_outstanding(linux());
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    host.receives(210, "1:1 ack 4001");
    ssthresh(&host, Some(5_000));
    host.receives(220, "1:1 ack 4001 sack 1-1001");
    window_is_restored(&host, 1_000);
    spurious(&host, 0, 1);
}

/// Given a D-SACK during fast recovery, after the time of the tail loss probe that recovery has replaced, expect undo, and
/// the retransmission timer as the next deadline.
#[test]
fn an_undo_does_not_bring_back_a_tail_loss_probe() {
    let mut host = last_ten_outstanding(Config { rack_tlp: true, ..linux() });
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    host.receives(210, "1:1 ack 4001");
    // Two round trips of 100 ms after the last progress are over.
    host.receives(450, "1:1 ack 4001 sack 1-1001");
    spurious(&host, 0, 1);
    let (at, sent) = time_out(&mut host);
    assert!(at > 450, "{at} {sent}");
}

/// `tcp_dsack_seen`: given one retransmission and a D-SACK of two segments, expect no undo.
#[test]
fn an_implausible_d_sack_undoes_nothing() {
    let mut host = ten_outstanding(linux());
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    let max = host.endpoint.sender().max();
    host.receives(250, &format!("1:1 ack {max}"));
    host.receives(300, &format!("1:1 ack {max} sack 1-2001"));
    ssthresh(&host, Some(5_000));
    spurious(&host, 0, 0);
}

/// Given two retransmissions and a D-SACK of one, expect no undo.
#[test]
fn a_genuine_loss_among_the_retransmissions_prevents_undo() {
    let mut host = ten_outstanding(linux());
    host.receives(200, "1:1 ack 1 sack 1001-2001 sack 4001-9001");
    host.receives(210, "1:1 ack 1 sack 1001-2001 sack 4001-10001");
    host.receives(220, "1:1 ack 1 sack 1001-2001 sack 4001-12001");
    host.compare("at least two retransmissions", true, |endpoint| {
        endpoint.sender().counters().retransmitted_segments >= 2
    });
    let max = host.endpoint.sender().max();
    host.receives(300, &format!("1:1 ack {max}"));
    host.receives(310, &format!("1:1 ack {max} sack 1-1001"));
    ssthresh(&host, Some(5_000));
    spurious(&host, 0, 0);
}

/// `tcp_try_undo_partial`: given a delayed original that fills the hole, as its timestamp shows,
/// expect undo.
#[test]
fn a_timestamp_undoes_a_fast_recovery() {
    let mut host = ten_outstanding(Config { timestamps: true, ..linux() });
    let sent = host.receives(200, "1:1 ack 1 sack 989-3953 ts 9/100");
    assert!(sent.starts_with("1:989 "), "{sent}");
    ssthresh(&host, Some(4_940));
    host.receives(210, "1:1 ack 3953 ts 9/100");
    window_is_restored(&host, 988);
    spurious(&host, 0, 1);
}

/// `tcp_try_undo_recovery`: the same with the ACK that ends the recovery.
#[test]
fn a_timestamp_undoes_a_fast_recovery_at_its_end() {
    let mut host = ten_outstanding(Config { timestamps: true, ..linux() });
    host.receives(200, "1:1 ack 1 sack 989-3953 ts 9/100");
    ssthresh(&host, Some(4_940));
    // Ten segments of 988 bytes were outstanding when it began.
    host.receives(210, "1:1 ack 9881 ts 9/100");
    window_is_restored(&host, 988);
    spurious(&host, 0, 1);
}

/// RFC 8985, 6.2, step 4: given a D-SACK, expect twice the reordering window, a quarter of the
/// minimum RTT: a segment sent at 300 with an RTT of 100 ms and one SACKed segment above it is lost
/// at 300 + 100 + 2 * 25, and at 425 without the D-SACK.
#[test]
fn a_d_sack_lengthens_the_reordering_window() {
    for d_sack in [false, true] {
        let config = Config { stack: StackVariant::Rfc, rack_tlp: true, ..linux() };
        let mut host = ten_outstanding(config);
        host.receives(200, "1:1 ack 1 sack 1001-4001");
        if d_sack {
            host.receives(250, "1:1 ack 4001");
            host.receives(250, "1:1 ack 4001 sack 1-1001");
        }
        let max = u32::try_from(host.endpoint.sender().max()).expect("small");
        host.receives(300, &format!("1:1 ack {max}"));
        host.receives(400, &format!("1:1 ack {max} sack {}-{}", max + 1_000, max + 2_000));
        host.timer(if d_sack { 450 } else { 425 }, &segments(max, 1));
    }
}
