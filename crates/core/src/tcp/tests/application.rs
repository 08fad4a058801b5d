//! The application's side: reading, writing into a bounded send buffer, and notifications.

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::Readiness;
use crate::tcp::config::{Config, StackVariant};

fn reads(host: &mut Host, at_ms: u64, bytes: u64) -> (u64, String) {
    let mut read = 0;
    let sent = host.call(at_ms, "reads", |endpoint, cx| read = endpoint.read(cx, bytes));
    (read, sent)
}

fn writes(host: &mut Host, at_ms: u64, bytes: u64) -> (u64, String) {
    let mut accepted = 0;
    let sent = host.call(at_ms, "writes", |endpoint, cx| accepted = endpoint.try_write(cx, bytes));
    (accepted, sent)
}

/// A host whose application has read nothing of 2,000 bytes, with a buffer of 3,000.
fn unread(config: Config) -> Host {
    let config = Config { receive_buffer: 3_000, receive_buffer_initial: 3_000, ..config };
    let mut host = Host::accepted(config).showing_windows();
    host.auto_read(100, false, "");
    host.no_reply(200, "1:1001 ack 1");
    host.given(200, "1001:2001 ack 1", "1:1 ack 2001 win 1000");
    host
}

/// Stevens, section 26.2: expect a window update when the window has opened by half of the buffer
/// (1,500 bytes), which is less than two segments.
#[test]
fn reading_opens_the_window() {
    let mut host = unread(plain());
    host.compare("readable", 2_000, |endpoint| endpoint.readiness().readable);
    assert_eq!(reads(&mut host, 300, 1_499), (1_499, String::new()));
    assert_eq!(reads(&mut host, 300, 9_999), (501, "1:1 ack 2001 win 3000".to_owned()));
    host.compare("readable", 0, |endpoint| endpoint.readiness().readable);
    assert_eq!(reads(&mut host, 310, 1), (0, String::new()));
    host.idle();
}

/// Linux, `tcp_cleanup_rbuf`: expect a window update when the window has doubled.
#[test]
fn reading_opens_the_window_as_in_linux() {
    let mut host = unread(Config { stack: StackVariant::Linux, ..plain() });
    assert_eq!(reads(&mut host, 300, 999), (999, String::new()));
    assert_eq!(reads(&mut host, 300, 1), (1, "1:1 ack 2001 win 2000".to_owned()));
}

/// Given a FIN behind 1,000 unread bytes, expect both to be reported.
#[test]
fn readable_data_and_the_fin_are_reported() {
    let mut host = Host::accepted(plain());
    host.auto_read(100, false, "");
    host.given(200, "F 1:1002 ack 1", "1:1 ack 1002");
    let expected = Readiness { readable: 1_000, writable: true, fin: true, reset: false };
    host.compare("readiness", expected, |endpoint| endpoint.readiness());
    assert_eq!(reads(&mut host, 300, 2_000), (1_000, String::new()));
    host.compare("readable", 0, |endpoint| endpoint.readiness().readable);
}

/// `sk_stream_is_writeable`: given a buffer of 4,000 bytes, expect a notification only when a third is
/// free: not with 1,000 free bytes and 3,000 used, but with 2,000 of each.
#[test]
fn the_send_buffer_is_bounded() {
    let mut host = Host::connected(Config { send_buffer: 4_000, ..plain() });
    assert_eq!(writes(&mut host, 100, 9_000), (4_000, segments(1, 1)));
    assert_eq!(writes(&mut host, 110, 1), (0, String::new()));
    host.given(200, "1:1 ack 1001", &segments(1_001, 2));
    host.compare("room", 1_000, |endpoint| endpoint.sender().room());
    host.compare("writable", false, |endpoint| endpoint.readiness().writable);
    host.given(300, "1:1 ack 2001", "3001:4001 ack 1");
    host.compare("room", 2_000, |endpoint| endpoint.sender().room());
    host.compare("writable", true, |endpoint| endpoint.readiness().writable);
    assert_eq!(writes(&mut host, 310, 700), (700, "4001:4701 ack 1".to_owned()));
}

/// TCP_NOTSENT_LOWAT: given a mark of 1,500 bytes and a cwnd of one segment, expect 1,500 unsent bytes
/// at most, and a notification when less than half of that is unsent.
#[test]
fn unsent_data_are_bounded_by_the_low_water_mark() {
    let mut host = Host::connected(plain());
    host.call(100, "sets the mark", |endpoint, _| endpoint.set_unsent_low_water(1_500));
    assert_eq!(writes(&mut host, 100, 9_000), (1_500, segments(1, 1)));
    host.compare("writable", true, |endpoint| endpoint.readiness().writable);
    assert_eq!(writes(&mut host, 100, 9_000), (1_000, String::new()));
    assert_eq!(writes(&mut host, 100, 9_000), (0, String::new()));
    host.compare("writable", false, |endpoint| endpoint.readiness().writable);
    host.given(200, "1:1 ack 1001", "1001:2001 ack 1 | 2001:2501 ack 1");
    host.compare("writable", true, |endpoint| endpoint.readiness().writable);
}
