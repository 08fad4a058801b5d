//! The close (RFC 9293, 3.6): a FIN each way, repeated until acknowledged; then nothing is left to do.

use super::conversation::{Talk, segments};
use super::plain;
use crate::tcp::config::Config;

/// The FIN goes with the last data if it is closed in time, else alone.
#[test]
fn a_fin_with_the_last_data_or_alone() {
    let mut talk = Talk::connected(plain());
    talk.writes(100, 1_500, &segments(1, 1));
    talk.closes(110, "");
    talk.given(200, "1:1 ack 1001", "F 1001:1502 ack 1");
    talk.silent(300, "1:1 ack 1502");
    talk.idle();
    talk.compare("finished", true, |endpoint| endpoint.sender().finished());
    talk.compare("acknowledged", 1_500, |endpoint| endpoint.sender().acked_bytes());

    let mut talk = Talk::connected(plain());
    talk.writes(100, 1_000, &segments(1, 1));
    talk.closes(110, "F 1001:1002 ack 1");
}

/// Both sides close; each FIN is acknowledged, and a repeated one is acknowledged again (the part
/// of TIME-WAIT that matters).
#[test]
fn both_sides_close() {
    let mut talk = Talk::connected(plain());
    talk.closes(100, "F 1:2 ack 1");
    talk.silent(200, "1:1 ack 2");
    talk.given(210, "F 1:2 ack 2", "2:2 ack 2");
    talk.idle();
    talk.given(1_210, "F 1:2 ack 2", "2:2 ack 2");
    talk.idle();

    let mut talk = Talk::accepted(plain());
    talk.given(200, "F 1:502 ack 1", "1:1 ack 502");
    talk.compare("end seen", true, |endpoint| endpoint.receiver().finished());
    talk.compare("delivered", 500, |endpoint| endpoint.receiver().delivered());
    talk.closes(200, "F 1:2 ack 502");
    talk.silent(300, "502:502 ack 2");
    talk.idle();
}

/// A half-closed connection still carries data the other way.
#[test]
fn data_flows_after_the_peer_closed() {
    let mut talk = Talk::accepted(plain());
    talk.given(200, "F 1:2 ack 1", "1:1 ack 2");
    talk.writes(210, 1_000, "1:1001 ack 2");
    talk.closes(210, "F 1001:1002 ack 2");
    talk.silent(300, "2:2 ack 1002");
    talk.idle();
}

/// A FIN is repeated like data, with and without SACK.
#[test]
fn a_lost_fin_is_repeated() {
    for sack in [false, true] {
        let mut talk = Talk::connected(Config { sack, ..plain() });
        talk.closes(100, "F 1:2 ack 1");
        talk.timer(400, "F 1:2 ack 1");
        talk.timer(1_000, "F 1:2 ack 1");
        talk.silent(1_100, "1:1 ack 2");
        talk.idle();
    }
}

/// A full segment that carries the FIN takes one number more than the window of one segment that a
/// time-out leaves (RFC 5681, 3.1), and leaves all the same. Round trips of 100 ms twice: SRTT 100,
/// RTTVAR 50 then 37.5, so the time-out is 250 ms (RFC 6298, 2.3).
#[test]
fn a_lost_full_segment_with_the_fin_is_repeated() {
    for sack in [false, true] {
        let mut talk = Talk::connected(Config { sack, ..plain() });
        talk.writes(100, 2_000, &segments(1, 1));
        talk.closes(110, "");
        talk.given(200, "1:1 ack 1001", "F 1001:2002 ack 1");
        talk.timer(450, "F 1001:2002 ack 1");
        talk.silent(550, "1:1 ack 2002");
        talk.idle();
    }
}

/// A FIN that overtakes data waits for it, and is not delivered as a byte.
#[test]
fn a_fin_above_a_hole_waits() {
    let mut talk = Talk::accepted(Config { sack: true, ..plain() });
    talk.given(200, "F 1001:1502 ack 1", "1:1 ack 1 sack 1001-1502");
    talk.compare("end seen", false, |endpoint| endpoint.receiver().finished());
    talk.given(300, "1:1001 ack 1", "1:1 ack 1502");
    talk.compare("end seen", true, |endpoint| endpoint.receiver().finished());
    talk.compare("delivered", 1_500, |endpoint| endpoint.receiver().delivered());
}

/// `stop` forgets what was never sent; what was sent is still repeated until it is acknowledged.
#[test]
fn stopping_ends_after_what_was_sent() {
    for sack in [false, true] {
        let mut talk = Talk::connected(Config { sack, initial_window_segments: 3, ..plain() });
        talk.writes(100, 1 << 40, &segments(1, 3));
        talk.stops(150, "F 3001:3002 ack 1");
        talk.given(200, "1:1 ack 1001", "");
        talk.timer(450, &segments(1_001, 1));
        talk.hears(550, "1:1 ack 2001");
        talk.hears(560, "1:1 ack 3002");
        talk.idle();
        talk.compare("sent", 3_000, |endpoint| endpoint.sender().sent_bytes());
        talk.compare("finished", true, |endpoint| endpoint.sender().finished());
    }
}

/// Stopped before anything was sent, only a FIN follows.
#[test]
fn stopping_before_the_first_segment() {
    let mut talk = Talk::new(plain());
    talk.writes(0, 1 << 40, "");
    talk.call(0, "opens", crate::tcp::endpoint::Endpoint::open);
    talk.stops(50, "");
    talk.given(100, "S 0:1 ack 1 mss 1000", "F 1:2 ack 1");
    talk.silent(200, "1:1 ack 2");
    talk.idle();
}
