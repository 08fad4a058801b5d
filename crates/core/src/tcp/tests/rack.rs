//! RACK (RFC 8985, 6.2) and tail loss probes (RFC 8985, 7).

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::config::Config;

fn rack() -> Config {
    Config { sack: true, rack_tlp: true, initial_window_segments: 10, ..plain() }
}

fn ten_outstanding(config: Config) -> Host {
    let mut host = Host::connected(config);
    host.writes(100, 1 << 19, &segments(1, 10));
    host
}

fn reduced(host: &Host, expected: Option<u64>) {
    host.compare("ssthresh", expected, |endpoint| endpoint.sender().control().ssthresh());
}

/// Step 4: given three segments above the hole and no reordering observed, expect a reordering
/// window of zero.
#[test]
fn three_segments_above_a_hole_mean_loss() {
    let mut host = ten_outstanding(rack());
    host.given(200, "1:1 ack 1 sack 1001-2001", &segments(10_001, 1));
    host.given(200, "1:1 ack 1 sack 1001-3001", &segments(11_001, 1));
    host.given(200, "1:1 ack 1 sack 1001-4001", &segments(1, 1));
    reduced(&host, Some(5_000));
}

/// Steps 4 and 5: given less above it, expect a segment to be lost an RTT and a quarter of the
/// minimum RTT after it was sent, without a further ACK.
#[test]
fn the_reordering_timer_detects_a_loss() {
    let mut host = ten_outstanding(rack());
    host.given(200, "1:1 ack 1 sack 1001-2001", &segments(10_001, 1));
    host.timer(225, &segments(1, 1));
    reduced(&host, Some(5_000));
}

/// The same with PRR: the timer delivers nothing, so expect only the retransmission (RFC 6937,
/// 3.1).
#[test]
fn the_reordering_timer_causes_no_burst() {
    let mut host = Host::connected(Config { prr: true, ..rack() });
    host.writes(100, 10_000, &segments(1, 10));
    host.no_reply(200, "1:1 ack 1 sack 8001-9001");
    host.timer(225, &segments(1, 1));
    host.given(300, "1:1 ack 1001 sack 8001-9001", &segments(1_001, 2));
}

/// Step 3: given a segment delivered below one delivered before, which is reordering, expect the
/// reordering window to apply also to three segments above a hole.
#[test]
fn observed_reordering_enables_the_reordering_window() {
    let mut host = ten_outstanding(rack());
    host.receives(200, "1:1 ack 1 sack 1001-2001");
    host.receives(201, "1:1 ack 2001");
    host.receives(202, "1:1 ack 2001 sack 3001-6001");
    reduced(&host, None);
    // Sent at 100; the RTT of the newest is 102, and a quarter of the minimum 25.
    host.timer(227, &segments(2_001, 1));
}

/// Step 4: given a D-SACK of a spurious retransmission, expect a reordering window of two quarters of the
/// minimum RTT, which only recoveries end: 20 ACKs outside of one change nothing.
#[test]
fn a_larger_reordering_window_outlasts_acks_without_recovery() {
    let mut host = Host::connected(rack());
    host.writes(100, 4_000, &segments(1, 4));
    host.no_reply(200, "1:1 ack 1 sack 1001-2001");
    host.timer(225, &segments(1, 1));
    host.receives(230, "1:1 ack 4001");
    host.no_reply(325, "1:1 ack 4001 sack 1-1001");
    host.writes(400, 2_000, &segments(4_001, 2));
    for _ in 0..20 {
        host.no_reply(500, "1:1 ack 4001 sack 5001-6001");
    }
    // Sent at 400, with an RTT of 100; half of the minimum RTT is 50.
    host.timer(550, &segments(4_001, 1));
}

/// Given several blocks in one ACK, newest first, expect no reordering.
#[test]
fn several_blocks_in_one_ack_are_no_reordering() {
    let mut host = ten_outstanding(rack());
    host.receives(200, "1:1 ack 1 sack 7001-8001 sack 1001-3001");
    reduced(&host, Some(5_000));
}

/// Step 5: given a delivered segment that was sent after a retransmission, expect the
/// retransmission to be lost, without a timeout (which RFC 6675 would need).
#[test]
fn a_lost_retransmission_is_detected() {
    let mut host = ten_outstanding(rack());
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    // Six more are delivered: new segments are sent after the retransmission.
    let sent = host.receives(201, "1:1 ack 1 sack 1001-10001");
    assert!(sent.starts_with("10001:11001"), "{sent}");
    // The first of those is delivered 101 ms later, the retransmission is not.
    let again = host.receives(302, "1:1 ack 1 sack 1001-11001");
    assert!(again.starts_with("1:1001 "), "{again}");
    host.compare("timeouts", 0, |endpoint| endpoint.sender().counters().timeouts);
}

/// Section 7.2: given no progress for two RTTs, expect the last segment as a probe (7.3), whose
/// SACK repairs the loss without a timeout.
#[test]
fn a_probe_repairs_a_lost_tail_by_fast_recovery() {
    let mut host = Host::connected(rack());
    host.writes(100, 4_000, &segments(1, 4));
    host.no_reply(200, "1:1 ack 1001");
    host.timer(400, &segments(3_001, 1));
    host.window(10_000);
    let repaired = host.receives(500, "1:1 ack 1001 sack 3001-4001");
    assert_eq!(
        repaired,
        segments(1_001, 2),
        "both were sent an RTT before the probe was delivered"
    );
    host.no_reply(600, "1:1 ack 4001");
    host.idle();
    host.compare("probes, timeouts, recoveries", (1, 0, 1), |endpoint| {
        let counters = endpoint.sender().counters();
        (counters.tail_loss_probes, counters.timeouts, counters.fast_recoveries)
    });
}

/// Section 7.3: expect new data as a probe, if the peer's window allows it.
#[test]
fn a_probe_prefers_new_data() {
    let mut host = ten_outstanding(rack());
    host.timer(300, &segments(10_001, 1));
    host.receives(310, "1:1 ack 11001");
    reduced(&host, None);
}

/// Section 7.2: given a single segment, whose ACK may be delayed, expect its probe 200 ms later,
/// but no later than the timeout, which it replaces. Without a reply, the timeout follows.
#[test]
fn a_single_segment_is_probed_later() {
    let mut host = Host::connected(rack());
    host.writes(100, 1_000, &segments(1, 1));
    host.timer(400, &segments(1, 1));
    host.window(10_000);
    host.timer(700, &segments(1, 1));
    host.window(1_000);
    host.compare("timeouts", 1, |endpoint| endpoint.sender().counters().timeouts);
}

/// Section 7.4.2: given a probe that repaired a loss, which only a later ACK shows, expect a
/// congestion response.
#[test]
fn a_probe_that_repaired_a_loss_counts_as_congestion() {
    let mut host = Host::connected(rack());
    host.writes(100, 4_000, &segments(1, 4));
    host.no_reply(200, "1:1 ack 3001");
    host.timer(450, &segments(3_001, 1));
    host.no_reply(600, "1:1 ack 4001");
    host.writes(600, 8_000, &segments(4_001, 8));
    host.receives(700, "1:1 ack 5001");
    reduced(&host, Some(4_000));
}

/// Section 7.4.2: given a delayed original, whose probe is acknowledged by a duplicate ACK or a
/// D-SACK, expect no congestion response.
#[test]
fn an_unneeded_probe_is_no_congestion() {
    let orders = [false, true];
    for (data_before_the_duplicate, block) in
        orders.into_iter().flat_map(|more| [(more, ""), (more, " sack 3001-4001")])
    {
        let duplicate = format!("1:1 ack 4001{block}");
        let mut host = Host::connected(rack());
        host.writes(100, 4_000, &segments(1, 4));
        host.no_reply(200, "1:1 ack 3001");
        host.timer(450, &segments(3_001, 1));
        host.no_reply(510, "1:1 ack 4001");
        if data_before_the_duplicate {
            host.writes(520, 8_000, &segments(4_001, 8));
            host.no_reply(600, &duplicate);
        } else {
            host.no_reply(600, &duplicate);
            host.writes(600, 8_000, &segments(4_001, 8));
        }
        host.receives(700, "1:1 ack 5001");
        reduced(&host, None);
        host.compare("recoveries", 0, |endpoint| endpoint.sender().counters().fast_recoveries);
    }
}

/// Given a duplicate ACK of a probe after the next probe would have been due, expect the next one
/// to be scheduled from then on, not in the past.
#[test]
fn the_next_probe_is_not_due_in_the_past() {
    let mut host = Host::connected(rack());
    host.writes(100, 1_000, &segments(1, 1));
    host.timer(400, &segments(1, 1));
    host.writes(401, 2_000, &segments(1_001, 2));
    host.receives(690, "1:1 ack 1001");
    host.no_reply(695, "1:1 ack 1001");
    let due = host.endpoint.sender().deadline();
    assert!(due.is_some_and(|due| due.as_nanos() >= 695_000_000), "{due:?}");
}

/// Linux, `TCP_TIMEOUT_MIN`: given an RTT of zero, as between a host and a PEP at its gateway, expect the
/// probe after 2 ms, not at once.
#[test]
fn a_probe_waits_two_milliseconds_at_least() {
    let mut host = Host::new(rack());
    host.call(0, "opens", crate::tcp::Endpoint::open);
    host.given(0, "S 0:1 ack 1 mss 1000 sackok", "1:1 ack 1");
    host.writes(0, 2_000, &segments(1, 2));
    host.timer(2, "1001:2001 ack 1");
}
