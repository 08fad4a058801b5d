//! Resets (RFC 9293, section 3.10.7, and RFC 5961, section 3.2).

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::endpoint::Endpoint;

/// Given a reset at RCV.NXT with data outstanding, expect that nothing is sent any more, and that the
/// application's calls have no effect.
#[test]
fn a_reset_ends_the_connection() {
    let mut host = Host::connected(plain());
    host.writes(100, 3_000, &segments(1, 1));
    host.no_reply(200, "R 1:1");
    host.idle();
    host.compare("reset", true, |endpoint| endpoint.readiness().reset);
    host.compare("closed", true, Endpoint::is_closed);
    host.no_reply(210, "1:1 ack 1001");
    host.writes(220, 1_000, "");
    host.closes(220, "");
    host.compare("acknowledged", 0, |endpoint| endpoint.sender().acked_bytes());
}

/// Expect a reset elsewhere in the window to be answered with a challenge ACK, one beyond it to be
/// ignored.
#[test]
fn a_reset_must_match_exactly() {
    let mut host = Host::connected(plain());
    host.given(200, "R 2:2", "1:1 ack 1");
    host.no_reply(210, "R 70001:70001");
    host.compare("reset", false, Endpoint::is_reset);
    host.idle();
}

/// Expect that a reset refuses a connection only if it acknowledges the SYN.
#[test]
fn a_refused_syn_must_be_acknowledged() {
    let mut host = Host::new(plain());
    host.call(0, "opens", Endpoint::open);
    host.no_reply(100, "R 0:0 ack 7");
    host.no_reply(100, "R 0:0");
    host.compare("reset", false, Endpoint::is_reset);
    host.no_reply(110, "R 0:0 ack 1");
    host.compare("reset", true, Endpoint::is_reset);
    host.idle();
}

/// Given an application that aborts with data outstanding, expect a reset at SND.NXT, and a reset at
/// the number that each further segment acknowledges: the peer may have missed data before the first.
#[test]
fn aborting_sends_a_reset() {
    let mut host = Host::connected(plain());
    host.writes(100, 3_000, &segments(1, 1));
    assert_eq!(host.call(150, "aborts", Endpoint::abort), "R 1001:1001 ack 1");
    host.idle();
    host.given(200, "1:1 ack 1", "R 1:1");
    host.no_reply(210, "R 1:1 ack 1");
    assert_eq!(host.call(220, "aborts", Endpoint::abort), "");
}

/// Linux, `tcp_need_reset`: expect no reset before the peer's SYN and after both FINs.
#[test]
fn aborting_without_a_connection_sends_nothing() {
    let mut host = Host::new(plain());
    host.call(0, "opens", Endpoint::open);
    assert_eq!(host.call(50, "aborts", Endpoint::abort), "");
    host.idle();

    let mut host = Host::connected(plain());
    host.closes(100, "F 1:2 ack 1");
    host.given(200, "F 1:2 ack 2", "2:2 ack 2");
    assert_eq!(host.call(300, "aborts", Endpoint::abort), "");
}

/// Expect a closed port to answer a SYN with a reset that acknowledges it.
#[test]
fn a_closed_port_refuses() {
    let mut host = Host::new(plain());
    let sent = host.refuses(0, "S 0:1 mss 1000");
    // The sequence number is 0 on the wire.
    assert!(sent.starts_with("R ") && sent.ends_with(" ack 1"), "{sent}");
    host.idle();
}
