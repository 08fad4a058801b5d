//! The peer's window and the advertised one: scaling (RFC 7323, 2), silly window avoidance and zero
//! windows (RFC 9293, 3.8.6), buffers.

use super::harness::{Host, segments};
use super::plain;
use crate::engine::Engine as _;
use crate::tcp::config::{AckPolicy, BufferCounts, Config, StackVariant};
use crate::tcp::endpoint::Endpoint;

fn connected_with_window(config: Config, window: u16) -> Host {
    let mut host = Host::new(config).peer_window(window);
    host.call(0, "opens", Endpoint::open);
    let sack = if config.sack { " sackok" } else { "" };
    host.receives(100, &format!("S 0:1 ack 1 mss {}{sack}", config.mss));
    host
}

/// 65,535 bytes are 44 segments of 1460 and a partial one.
#[test]
fn an_unscaled_window_allows_44_segments() {
    let config = Config { mss: 1_460, initial_window_segments: 100, ..plain() };
    let mut host = connected_with_window(config, 65_535);
    let sent = host.call(100, "writes", |endpoint, cx| endpoint.write(cx, 1 << 19));
    assert_eq!(sent.matches('|').count() + 1, 44);
    let mut host = Host::connected(Config { window_scaling: true, ..config });
    host.call(100, "writes", |endpoint, cx| endpoint.write(cx, 1 << 19));
    let sent = host.receives(200, "1:1 ack 1");
    assert_eq!(
        sent.matches('|').count() + 1,
        100 - 44,
        "from here on the window is 65,535 times 128 bytes"
    );
}

/// RFC 7323, 2.2: expect the window of a SYN not to be scaled.
#[test]
fn the_window_of_a_syn_is_not_scaled() {
    let config = Config { window_scaling: true, initial_window_segments: 100, ..plain() };
    let mut host = Host::new(config);
    host.call(0, "opens", Endpoint::open);
    host.receives(100, "S 0:1 ack 1 win 4000 mss 1000 ws 7");
    host.writes(100, 100_000, &segments(1, 4));
    host.given(200, "1:1 ack 4001 win 40", &segments(4_001, 5));
}

/// RFC 7323, 2.3: expect a shift above 14 to count as 14.
#[test]
fn an_excessive_shift_is_limited() {
    let config = Config { window_scaling: true, ..plain() };
    let mut host = Host::new(config);
    host.call(0, "opens", Endpoint::open);
    host.receives(100, "S 0:1 ack 1 mss 1000 ws 200");
    host.receives(200, "1:1 ack 1 win 65535");
    host.idle();
}

/// Given a send buffer of 3.5 segments, expect at most 3 outstanding: a partial segment is not
/// sent.
#[test]
fn the_send_buffer_limits_outstanding_data() {
    let config = Config { send_buffer: 3_500, initial_window_segments: 10, ..plain() };
    let mut host = Host::connected(config);
    host.writes(100, 10_000, &segments(1, 3));
    host.given(200, "1:1 ack 1001", &segments(3_001, 1));
}

/// RFC 9293, 3.8.6.2.1: expect a partial segment only if it is the last of the data, or at least
/// half of the largest window advertised.
#[test]
fn silly_windows_are_avoided() {
    let config = Config { initial_window_segments: 10, ..plain() };
    let mut host = connected_with_window(config, 2_500);
    host.writes(100, 10_000, &segments(1, 2));
    host.no_reply(200, "1:1 ack 1001 win 1500");
    host.given(210, "1:1 ack 1001 win 2500", &segments(2_001, 1));

    let mut host = connected_with_window(config, 1_200);
    host.writes(100, 10_000, &segments(1, 1));
    host.no_reply(200, "1:1 ack 1001 win 599");
    host.given(201, "1:1 ack 1001 win 600", "1001:1601 ack 1");

    let mut host = connected_with_window(config, 2_500);
    host.writes(100, 2_300, "1:1001 ack 1 | 1001:2001 ack 1 | 2001:2301 ack 1");
}

/// RFC 9293, 3.8.6.2.1, the override timeout: expect a partial segment after a timeout, so that a
/// small window does not stall the connection.
#[test]
fn a_small_window_is_used_after_a_timeout() {
    let mut host = connected_with_window(plain(), 1_000);
    host.writes(100, 10_000, &segments(1, 1));
    host.no_reply(200, "1:1 ack 1001 win 400");
    // SRTT 100, RTTVAR 37.5.
    host.timer(450, "1001:1401 ack 1");
}

/// The rule is for new data; retransmissions use any room (Linux, `tcp_retransmit_skb`). Given 600
/// bytes of room, less than half of 1,600, used after a timeout and lost, expect the same 600 bytes
/// at the next timeouts.
#[test]
fn a_small_window_is_used_for_retransmissions() {
    for sack in [false, true] {
        let mut host = connected_with_window(Config { sack, ..plain() }, 1_600);
        host.writes(100, 10_000, &segments(1, 1));
        host.no_reply(200, "1:1 ack 1001 win 600");
        for at in [450, 950, 1_950] {
            host.timer(at, "1001:1601 ack 1");
        }
    }
}

/// RFC 9293, 3.8.6.1: given a zero window, expect probes of one byte at doubling intervals, without
/// a congestion response. When it reopens, expect the dropped byte again.
#[test]
fn a_zero_window_is_probed() {
    for sack in [false, true] {
        let mut host = connected_with_window(Config { sack, ..plain() }, 1_000);
        host.writes(100, 10_000, &segments(1, 1));
        host.no_reply(200, "1:1 ack 1001 win 0");
        for at in [450, 950, 1_950, 3_950] {
            host.timer(at, "1001:1002 ack 1");
            host.no_reply(at + 10, "1:1 ack 1001 win 0");
        }
        host.compare("timeouts", 0, |endpoint| endpoint.sender().counters().timeouts);
        host.window(2_000);
        let sent = host.receives(5_000, "1:1 ack 1001 win 2000");
        let expected = if sack { "1001:1002 ack 1 | 1002:2002 ack 1" } else { "1001:2001 ack 1" };
        assert!(sent.starts_with(expected), "{sent}");
    }
}

/// Linux, `tcp_probe_timer` and `tcp_send_probe0`: probes change neither cwnd nor ssthresh. Given a
/// cwnd of ten segments and a window that is closed for four probes, expect ten segments when it
/// reopens.
#[test]
fn zero_window_probes_do_not_change_cwnd() {
    for (rack_tlp, prr) in [(false, false), (true, false), (true, true)] {
        let stack = StackVariant::Linux;
        let config = Config { sack: true, rack_tlp, prr, stack, ..plain() };
        let config = Config { initial_window_segments: 10, ..config };
        let mut host = connected_with_window(config, 1_000);
        host.writes(100, 20_000, &segments(1, 1));
        host.no_reply(200, "1:1 ack 1001 win 0");
        let mut probes = 0;
        while probes < 4 {
            let due = host.endpoint.next_wake().expect("a probe follows");
            let at_ms = due.as_nanos() / 1_000_000;
            host.timer(at_ms, "1001:1002 ack 1");
            probes += 1;
            host.no_reply(at_ms + 10, "1:1 ack 1001 win 0");
        }
        host.window(10_000);
        host.compare("timeouts, tail loss probes", (0, 0), |endpoint| {
            let counters = endpoint.sender().counters();
            (counters.timeouts, counters.tail_loss_probes)
        });
        let sent = host.receives(5_000, "1:1 ack 1001 win 20000");
        assert_eq!(sent.split(" | ").count(), 10, "{sent}");
        // The peer accepts the byte; nothing was lost.
        host.receives(5_100, "1:1 ack 1002 win 20000");
        host.receives(5_100, "1:1 ack 3002 win 20000");
        host.compare("ssthresh", None, |endpoint| endpoint.sender().control().ssthresh());
    }
}

/// RFC 8985, 7.3: given a tail loss probe that is answered with a zero window, and a duplicate of
/// that ACK, expect zero-window probes at doubled timeouts and no tail loss probe while the window
/// is closed.
#[test]
fn no_tail_loss_probe_is_sent_into_a_zero_window() {
    let config = Config { sack: true, rack_tlp: true, ..plain() };
    let mut host = connected_with_window(config, 1_000);
    host.writes(100, 3_000, &segments(1, 1));
    host.timer(400, &segments(1, 1));
    host.no_reply(500, "1:1 ack 1001 win 0");
    // A first sample of 100 ms: 300 ms from the ACK, then 600 and 1,200.
    host.timer(800, "1001:1002 ack 1");
    host.no_reply(810, "1:1 ack 1001 win 0");
    host.timer(1_400, "1001:1002 ack 1");
    host.no_reply(1_410, "1:1 ack 1001 win 0");
    host.timer(2_600, "1001:1002 ack 1");
}

/// Given a peer that accepts the byte of a zero-window probe, expect the data after it.
#[test]
fn a_zero_window_probe_may_be_accepted() {
    for sack in [false, true] {
        let mut host = connected_with_window(Config { sack, ..plain() }, 1_000);
        host.writes(100, 3_000, &segments(1, 1));
        host.no_reply(200, "1:1 ack 1001 win 0");
        host.timer(450, "1001:1002 ack 1");
        host.given(550, "1:1 ack 1002 win 2000", "1002:2002 ack 1 | 2002:3001 ack 1");
        host.no_reply(650, "1:1 ack 3001 win 2000");
        host.idle();
    }
}

/// Given a lost window update, expect the next probe to recover it.
#[test]
fn a_lost_window_update_does_not_stall_the_connection() {
    for sack in [false, true] {
        let mut host = connected_with_window(Config { sack, ..plain() }, 1_000);
        host.writes(100, 1_001, &segments(1, 1));
        host.no_reply(200, "1:1 ack 1001 win 0");
        host.timer(450, "1001:1002 ack 1");
        host.no_reply(550, "1:1 ack 1002 win 2000");
        host.idle();
    }
}

/// Given a zero window, expect the FIN to be sent and retransmitted.
#[test]
fn a_fin_is_retransmitted_into_a_zero_window() {
    for sack in [false, true] {
        let mut host = connected_with_window(Config { sack, ..plain() }, 1_000);
        host.writes(100, 1_000, &segments(1, 1));
        host.no_reply(200, "1:1 ack 1001 win 0");
        host.closes(200, "F 1001:1002 ack 1");
        host.timer(450, "F 1001:1002 ack 1");
        host.timer(950, "F 1001:1002 ack 1");
        host.no_reply(1_000, "1:1 ack 1002 win 0");
        host.idle();
    }
}

/// Given an application that does not read, expect the window to close and its right edge to stay;
/// when it reads again, expect a window update (RFC 9293, 3.8.6.2.2).
#[test]
fn an_unread_buffer_closes_the_window() {
    let config = Config { receive_buffer: 3_000, receive_buffer_initial: 3_000, ..plain() };
    let mut host = Host::accepted(config).showing_windows();
    host.auto_read(100, false, "");
    host.no_reply(200, "1:1001 ack 1");
    host.given(200, "1001:2001 ack 1", "1:1 ack 2001 win 1000");
    host.no_reply(200, "2001:3001 ack 1");
    host.timer(400, "1:1 ack 3001 win 0");
    // A probe beyond the edge is dropped and answered.
    host.given(600, "3001:3002 ack 1", "1:1 ack 3001 win 0");
    host.auto_read(700, true, "1:1 ack 3001 win 3000");
    host.compare("delivered", 3_000, |endpoint| endpoint.receiver().delivered());
}

/// Given a full buffer, expect a zero-window probe with the last byte and the FIN to be dropped as any
/// other, and a FIN alone, which needs no room, to be accepted.
#[test]
fn a_full_buffer_accepts_a_fin_but_no_data_before_it() {
    let config = Config { receive_buffer: 3_000, receive_buffer_initial: 3_000, ..plain() };
    for (fin, ack) in [("F 3001:3003", 3_001), ("F 3001:3002", 3_002)] {
        let mut host = Host::accepted(config).showing_windows();
        host.auto_read(100, false, "");
        host.no_reply(200, "1:1001 ack 1");
        host.given(200, "1001:3001 ack 1", "1:1 ack 3001 win 0");
        host.given(600, &format!("{fin} ack 1"), &format!("1:1 ack {ack} win 0"));
        host.compare("readable", 3_000, |endpoint| endpoint.receiver().readable());
    }
}

/// RFC 7323, 2.4: expect a scaled window to be rounded up, so that the right edge never moves back.
#[test]
fn a_scaled_window_never_shrinks() {
    let config = Config {
        window_scaling: true,
        receive_buffer: 1 << 24,
        receive_buffer_initial: 10_000,
        ..plain()
    };
    let mut host = Host::accepted(config);
    host.auto_read(100, false, "");
    let mut edge = 10_001;
    let mut start = 1;
    for step in 0..40u64 {
        let end = start + 97;
        host.no_reply(200 + step * 300, &format!("{start}:{end} ack 1"));
        let wake = 400 + step * 300;
        let field = advertised_window(&mut host, wake);
        let right_edge = end + field * 512;
        assert!(right_edge >= edge, "{right_edge} is below {edge}");
        (edge, start) = (right_edge, end);
    }
}

/// Given a buffer of 100,000 bytes that is not read, in units of 2 bytes, and segments of 999 bytes
/// that are acknowledged one by one, expect room for 100,000 bytes: after 100 segments for 100 more.
/// From the third ACK on, an odd number of bytes is left. Rounded up each time, the right edge would
/// move 98 bytes beyond the buffer.
#[test]
fn rounding_does_not_extend_the_window_beyond_the_buffer() {
    let acks = AckPolicy { delayed_segments: 1, ..plain().acks };
    let config = Config {
        window_scaling: true,
        receive_buffer: 100_000,
        receive_buffer_initial: 100_000,
        acks,
        ..plain()
    };
    let mut host = Host::accepted(config).showing_windows();
    host.auto_read(100, false, "");
    for segment in 0..99 {
        let start = 1 + segment * 999;
        host.receives(200, &format!("{start}:{} ack 1", start + 999));
    }
    host.given(200, "98902:99901 ack 1", "1:1 ack 99901 win 50");
    host.given(200, "99901:100900 ack 1", "1:1 ack 100001 win 0");
    host.compare("readable", 100_000, |endpoint| endpoint.receiver().readable());
}

/// RFC 7323, 2.4: given segments of one byte, less than the unit of 2, expect the window to
/// close when the buffer is full, and no byte beyond it to be accepted. Rounded up, it would be 2
/// after each of them.
#[test]
fn segments_below_the_unit_close_the_window() {
    let acks = AckPolicy { delayed_segments: 1, ..plain().acks };
    let config = Config {
        window_scaling: true,
        receive_buffer: 65_536,
        receive_buffer_initial: 65_536,
        acks,
        ..plain()
    };
    let mut host = Host::accepted(config).showing_windows();
    host.auto_read(100, false, "");
    host.given(200, "1:65533 ack 1", "1:1 ack 65533 win 2");
    host.given(200, "65533:65534 ack 1", "1:1 ack 65534 win 1");
    host.given(200, "65534:65535 ack 1", "1:1 ack 65535 win 1");
    host.given(200, "65535:65536 ack 1", "1:1 ack 65536 win 0");
    // The first and the third ACK allowed this byte.
    host.given(200, "65536:65537 ack 1", "1:1 ack 65537 win 0");
    host.given(200, "65537:65538 ack 1", "1:1 ack 65537 win 0");
    host.compare("readable", 65_536, |endpoint| endpoint.receiver().readable());
}

/// Linux, `tcp_select_window`: given 200,000 bytes of memory, in units of 4 bytes, expect rounding to
/// extend the window within the memory. A segment of 999 bytes takes 2,304, 111 of 256 parts, so the
/// window is 86,716 bytes. The first ACK sets the right edge to 86,716. Each of the next 85 leaves a
/// byte above a multiple of 4 and moves the edge by 3: to 86,971, 1,056 bytes beyond 85,915.
#[test]
fn rounding_extends_the_window_within_the_memory() {
    let acks = AckPolicy { delayed_segments: 1, ..plain().acks };
    let config = Config {
        window_scaling: true,
        receive_buffer: 200_000,
        receive_buffer_initial: 200_000,
        receive_buffer_counts: BufferCounts::Memory,
        stack: StackVariant::Linux,
        acks,
        ..plain()
    };
    let mut host = Host::accepted(config).showing_windows();
    host.auto_read(100, false, "");
    for segment in 0..85 {
        let start = 1 + segment * 999;
        host.receives(200, &format!("{start}:{} ack 1", start + 999));
    }
    host.given(200, "84916:85915 ack 1", "1:1 ack 85915 win 264");
    host.given(200, "85915:86914 ack 1", "1:1 ack 86914 win 15");
    host.compare("readable", 86_913, |endpoint| endpoint.receiver().readable());
}

/// The window field of the delayed ACK at `at_ms`.
fn advertised_window(host: &mut Host, at_ms: u64) -> u64 {
    use crate::engine::{Cx, Engine, Outbox};
    use crate::packet::Payload;
    let mut outbox = Outbox::new();
    let now = crate::time::Instant::from_millis(at_ms);
    host.endpoint.wake(&mut Cx::new(now, crate::trace::NodeId(0), &mut outbox, None));
    let (_, _, packet) = outbox.drain().next().expect("a packet");
    let Payload::Tcp(segment) = &packet.payload else { panic!("a segment") };
    segment.window.into()
}

/// Auto-tuning: given a peer that fills the window every RTT, expect the window to grow to its
/// maximum and its right edge never to move back.
#[test]
fn auto_tuning_grows_the_window_to_its_maximum() {
    let config = Config {
        window_scaling: true,
        receive_buffer: 100_000,
        receive_buffer_initial: 20_000,
        ..plain()
    };
    let mut host = Host::accepted(config).showing_windows();
    let (mut start, mut edge, mut windows) = (1u64, 20_001, vec![20_000]);
    for round in 1..8u64 {
        let round_end = edge;
        while start + 1_000 <= round_end {
            let end = start + 1_000;
            let sent = host.receives(100 + round * 110, &format!("{start}:{end} ack 1"));
            start = end;
            if let Some((_, field)) = sent.split_once(" win ") {
                let window = field.parse::<u64>().expect("a number") << 1;
                assert!(start + window >= edge && window <= 100_000, "{start} {window} {edge}");
                edge = start + window;
                windows.push(window);
            }
        }
    }
    assert!(windows.is_sorted() && windows.last() == Some(&100_000), "{windows:?}");
}

/// Linux, `tcp_win_from_space` and `tcp_measure_rcv_mss`: given 1 MiB of memory, expect half of it
/// as window (16,384 units of 32 bytes) until a full segment arrives. One of 1,448 bytes takes
/// 2,304 (2,048 and its `sk_buff`), 160 of 256 parts: then expect 655,360 bytes, 20,480 units. A
/// smaller segment has no effect.
#[test]
fn the_window_is_a_fraction_of_the_memory() {
    let config = Config {
        mss: 1_448,
        window_scaling: true,
        receive_buffer: 1 << 20,
        receive_buffer_initial: 1 << 20,
        receive_buffer_counts: BufferCounts::Memory,
        stack: StackVariant::Linux,
        ..plain()
    };
    let mut host = Host::accepted(config).showing_windows();
    host.no_reply(200, "1:101 ack 1");
    host.timer(400, "1:1 ack 101 win 16384");
    host.no_reply(500, "101:1549 ack 1");
    host.given(500, "1549:2997 ack 1", "1:1 ack 2997 win 20480");
    host.no_reply(600, "2997:3597 ack 1");
    host.timer(800, "1:1 ack 3597 win 20480");
}

/// Given a window that is never filled, expect it not to grow.
#[test]
fn the_window_of_a_slow_sender_does_not_grow() {
    let config = Config {
        window_scaling: true,
        receive_buffer: 100_000,
        receive_buffer_initial: 20_000,
        ..plain()
    };
    let mut host = Host::accepted(config).showing_windows();
    for round in 0..10u64 {
        let (at, start) = (200 + round * 300, 1 + round * 2_000);
        host.no_reply(at, &format!("{start}:{} ack 1", start + 1_000));
        let ack = start + 2_000;
        let answer = format!("1:1 ack {ack} win 10000");
        host.given(at, &format!("{}:{ack} ack 1", start + 1_000), &answer);
    }
}

/// Given an initial window below the unit of the field, expect one unit.
#[test]
fn a_window_below_the_unit_is_rounded_up() {
    let config = Config {
        window_scaling: true,
        receive_buffer: 1 << 30,
        receive_buffer_initial: 1_000,
        ..plain()
    };
    let mut host = Host::accepted(config).showing_windows();
    host.no_reply(200, "1:101 ack 1");
    host.timer(400, "1:1 ack 101 win 1");
}
