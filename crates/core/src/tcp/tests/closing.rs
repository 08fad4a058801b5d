//! Closing (RFC 9293, 3.6): a FIN each way, retransmitted until acknowledged.

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::config::Config;

/// Expect the FIN on the last data segment if it was not sent yet, otherwise alone.
#[test]
fn a_fin_is_sent_with_the_last_data_or_alone() {
    let mut host = Host::connected(plain());
    host.writes(100, 1_500, &segments(1, 1));
    host.closes(110, "");
    host.given(200, "1:1 ack 1001", "F 1001:1502 ack 1");
    host.no_reply(300, "1:1 ack 1502");
    host.idle();
    host.compare("finished", true, |endpoint| endpoint.sender().finished());
    host.compare("acknowledged", 1_500, |endpoint| endpoint.sender().acked_bytes());

    let mut host = Host::connected(plain());
    host.writes(100, 1_000, &segments(1, 1));
    host.closes(110, "F 1001:1002 ack 1");
}

/// Given both sides closing, expect each FIN to be acknowledged, a retransmitted one again (the
/// relevant part of TIME-WAIT).
#[test]
fn both_sides_close() {
    let mut host = Host::connected(plain());
    host.closes(100, "F 1:2 ack 1");
    host.no_reply(200, "1:1 ack 2");
    host.given(210, "F 1:2 ack 2", "2:2 ack 2");
    host.idle();
    host.given(1_210, "F 1:2 ack 2", "2:2 ack 2");
    host.idle();

    let mut host = Host::accepted(plain());
    host.given(200, "F 1:502 ack 1", "1:1 ack 502");
    host.compare("FIN received", true, |endpoint| endpoint.receiver().finished());
    host.compare("delivered", 500, |endpoint| endpoint.receiver().delivered());
    host.closes(200, "F 1:2 ack 502");
    host.no_reply(300, "502:502 ack 2");
    host.idle();
}

/// Given a half-closed connection, expect data in the other direction.
#[test]
fn data_flows_after_the_peer_closed() {
    let mut host = Host::accepted(plain());
    host.given(200, "F 1:2 ack 1", "1:1 ack 2");
    host.writes(210, 1_000, "1:1001 ack 2");
    host.closes(210, "F 1001:1002 ack 2");
    host.no_reply(300, "2:2 ack 1002");
    host.idle();
}

/// Expect a lost FIN to be retransmitted like data, with and without SACK.
#[test]
fn a_lost_fin_is_retransmitted() {
    for sack in [false, true] {
        let mut host = Host::connected(Config { sack, ..plain() });
        host.closes(100, "F 1:2 ack 1");
        host.timer(400, "F 1:2 ack 1");
        host.timer(1_000, "F 1:2 ack 1");
        host.no_reply(1_100, "1:1 ack 2");
        host.idle();
    }
}

/// Given a full segment with a FIN, which takes one sequence number more than the cwnd after a
/// timeout (RFC 5681, 3.1), expect its retransmission all the same. After two RTTs of 100 ms, SRTT
/// is 100, RTTVAR 50 and then 37.5, so the timeout is 250 ms (RFC 6298, 2.3).
#[test]
fn a_lost_full_segment_with_a_fin_is_retransmitted() {
    for sack in [false, true] {
        let mut host = Host::connected(Config { sack, ..plain() });
        host.writes(100, 2_000, &segments(1, 1));
        host.closes(110, "");
        host.given(200, "1:1 ack 1001", "F 1001:2002 ack 1");
        host.timer(450, "F 1001:2002 ack 1");
        host.no_reply(550, "1:1 ack 2002");
        host.idle();
    }
}

/// Given a FIN above a hole, expect it to take effect when the hole is filled, and not to count as
/// a byte.
#[test]
fn a_fin_above_a_hole_is_delayed() {
    let mut host = Host::accepted(Config { sack: true, ..plain() });
    host.given(200, "F 1001:1502 ack 1", "1:1 ack 1 sack 1001-1502");
    host.compare("FIN received", false, |endpoint| endpoint.receiver().finished());
    host.given(300, "1:1001 ack 1", "1:1 ack 1502");
    host.compare("FIN received", true, |endpoint| endpoint.receiver().finished());
    host.compare("delivered", 1_500, |endpoint| endpoint.receiver().delivered());
}

/// Given `stop`, expect unsent data to be discarded and sent data to be retransmitted until it is
/// acknowledged.
#[test]
fn stopping_discards_unsent_data() {
    for sack in [false, true] {
        let mut host = Host::connected(Config { sack, initial_window_segments: 3, ..plain() });
        host.writes(100, 1 << 40, &segments(1, 3));
        host.stops(150, "F 3001:3002 ack 1");
        host.given(200, "1:1 ack 1001", "");
        host.timer(450, &segments(1_001, 1));
        host.receives(550, "1:1 ack 2001");
        host.receives(560, "1:1 ack 3002");
        host.idle();
        host.compare("sent", 3_000, |endpoint| endpoint.sender().sent_bytes());
        host.compare("finished", true, |endpoint| endpoint.sender().finished());
    }
}

/// Given `stop` before anything was sent, expect only a FIN.
#[test]
fn stopping_before_the_first_segment_sends_a_fin() {
    let mut host = Host::new(plain());
    host.writes(0, 1 << 40, "");
    host.call(0, "opens", crate::tcp::endpoint::Endpoint::open);
    host.stops(50, "");
    host.given(100, "S 0:1 ack 1 mss 1000", "F 1:2 ack 1");
    host.no_reply(200, "1:1 ack 2");
    host.idle();
}
