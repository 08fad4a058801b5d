//! What limits a sender, and for how long.

use super::harness::{Host, segments};
use super::plain;
use crate::packet::LimitedBy;
use crate::tcp::Config;
use crate::time::Instant;

/// Expects this limit now, and these times in ms at `at_ms`, in the order of [`LimitedBy::ALL`].
#[track_caller]
fn limited(host: &Host, at_ms: u64, limit: LimitedBy, times_ms: [u64; LimitedBy::OF_SENDER]) {
    host.compare("limit", limit, |end| end.sender().limited_by());
    let times = host.endpoint.sender().limit_times(Instant::from_millis(at_ms));
    assert_eq!(times.map(|time| time.as_nanos() / 1_000_000), times_ms, "at {at_ms} ms");
}

/// Given four segments over an RTT of 100 ms from an initial window of one, expect the handshake of 100 ms
/// without data to be the application's, then slow start for two RTTs: one segment, two, and the last,
/// with which nothing is left to send.
#[test]
fn a_short_transfer_is_limited_by_slow_start_then_by_the_application() {
    let mut host = Host::connected(plain());
    limited(&host, 150, LimitedBy::Application, [150, 0, 0, 0, 0, 0, 0]);
    host.writes(150, 4_000, &segments(1, 1));
    limited(&host, 200, LimitedBy::SlowStart, [150, 0, 0, 0, 50, 0, 0]);
    host.given(250, "1:1 ack 1001", &segments(1_001, 2));
    limited(&host, 300, LimitedBy::SlowStart, [150, 0, 0, 0, 150, 0, 0]);
    host.given(350, "1:1 ack 3001", &segments(3_001, 1));
    limited(&host, 400, LimitedBy::Application, [200, 0, 0, 0, 200, 0, 0]);
}

/// Given data written before the connection is open, expect the handshake to be the limit until the
/// SYN-ACK.
#[test]
fn data_wait_for_the_handshake() {
    let mut host = Host::new(plain());
    host.call(20, "writes", |endpoint, cx| endpoint.write(cx, 4_000));
    host.call(20, "opens", crate::tcp::Endpoint::open);
    limited(&host, 80, LimitedBy::Handshake, [0, 60, 0, 0, 0, 0, 0]);
    host.receives(120, "S 0:1 ack 1 mss 1000");
    limited(&host, 130, LimitedBy::SlowStart, [0, 100, 0, 0, 10, 0, 0]);
}

/// Given a receive window, or a send buffer, of two segments and a cwnd of ten, expect either as limit.
#[test]
fn windows_and_buffers_limit() {
    let config = Config { initial_window_segments: 10, ..plain() };
    let mut host = Host::new(config).peer_window(2_000);
    host.call(0, "opens", crate::tcp::Endpoint::open);
    host.receives(100, "S 0:1 ack 1 mss 1000");
    host.writes(100, 9_000, &segments(1, 2));
    limited(&host, 150, LimitedBy::ReceiveWindow, [100, 0, 50, 0, 0, 0, 0]);
    let mut host = Host::connected(Config { send_buffer: 2_000, ..config });
    host.writes(100, 9_000, &segments(1, 2));
    limited(&host, 150, LimitedBy::SendBuffer, [100, 0, 0, 50, 0, 0, 0]);
}

/// Given ten segments of which the first is lost, expect recovery from the third duplicate ACK to the ACK
/// of everything, and then the application, since nothing is left to send.
#[test]
fn recovery_ends_with_the_ack_of_everything() {
    let config = Config { initial_window_segments: 10, ..plain() };
    let mut host = Host::connected(config);
    host.writes(100, 10_000, &segments(1, 10));
    limited(&host, 150, LimitedBy::Application, [150, 0, 0, 0, 0, 0, 0]);
    host.no_reply(200, "1:1 ack 1");
    host.no_reply(201, "1:1 ack 1");
    host.given(202, "1:1 ack 1", &segments(1, 1));
    limited(&host, 250, LimitedBy::Recovery, [202, 0, 0, 0, 0, 0, 48]);
    host.no_reply(302, "1:1 ack 10001");
    limited(&host, 400, LimitedBy::Application, [300, 0, 0, 0, 0, 0, 100]);
}

/// Given a retransmission timeout, expect recovery until everything sent before it is acknowledged.
#[test]
fn a_timeout_is_recovery() {
    let config = Config { initial_window_segments: 10, ..plain() };
    let mut host = Host::connected(config);
    host.writes(100, 3_000, &segments(1, 3));
    host.timer(400, &segments(1, 1));
    limited(&host, 450, LimitedBy::Recovery, [400, 0, 0, 0, 0, 0, 50]);
    host.given(500, "1:1 ack 3001", "");
    limited(&host, 600, LimitedBy::Application, [500, 0, 0, 0, 0, 0, 100]);
}
