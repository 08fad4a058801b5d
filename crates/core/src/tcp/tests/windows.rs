//! The peer's window and the one offered: scaling (RFC 7323, 2), silly windows and zero windows
//! (RFC 9293, 3.8.6), buffers.

use super::conversation::{Talk, segments};
use super::plain;
use crate::engine::Engine as _;
use crate::tcp::config::{BufferCounts, Config, Follows};
use crate::tcp::endpoint::Endpoint;

fn connected_with_window(config: Config, window: u16) -> Talk {
    let mut talk = Talk::new(config).peer_window(window);
    talk.call(0, "opens", Endpoint::open);
    let sack = if config.sack { " sackok" } else { "" };
    talk.hears(100, &format!("S 0:1 ack 1 mss {}{sack}", config.mss));
    talk
}

/// 65,535 bytes are 44 segments of 1460 and a rest that is no segment.
#[test]
fn an_unscaled_window_lets_out_44_segments() {
    let config = Config { mss: 1_460, initial_window_segments: 100, ..plain() };
    let mut talk = connected_with_window(config, 65_535);
    let sent = talk.call(100, "writes", |endpoint, cx| endpoint.write(cx, 1 << 19));
    assert_eq!(sent.matches('|').count() + 1, 44);
    let mut talk = Talk::connected(Config { window_scaling: true, ..config });
    talk.call(100, "writes", |endpoint, cx| endpoint.write(cx, 1 << 19));
    let sent = talk.hears(200, "1:1 ack 1");
    assert_eq!(sent.matches('|').count() + 1, 100 - 44, "65,535 times 128 bytes from here");
}

/// RFC 7323, 2.2: the window of a SYN is never scaled.
#[test]
fn the_window_of_a_syn_is_not_scaled() {
    let config = Config { window_scaling: true, initial_window_segments: 100, ..plain() };
    let mut talk = Talk::new(config);
    talk.call(0, "opens", Endpoint::open);
    talk.hears(100, "S 0:1 ack 1 win 4000 mss 1000 ws 7");
    talk.writes(100, 100_000, &segments(1, 4));
    talk.given(200, "1:1 ack 4001 win 40", &segments(4_001, 5));
}

/// RFC 7323, 2.3: a shift above 14 means 14.
#[test]
fn an_absurd_shift_is_bounded() {
    let config = Config { window_scaling: true, ..plain() };
    let mut talk = Talk::new(config);
    talk.call(0, "opens", Endpoint::open);
    talk.hears(100, "S 0:1 ack 1 mss 1000 ws 200");
    talk.hears(200, "1:1 ack 1 win 65535");
    talk.idle();
}

/// The send buffer holds what is written and not acknowledged; a rest of it is no segment.
#[test]
fn the_send_buffer_bounds_what_is_out() {
    let config = Config { send_buffer: 3_500, initial_window_segments: 10, ..plain() };
    let mut talk = Talk::connected(config);
    talk.writes(100, 10_000, &segments(1, 3));
    talk.given(200, "1:1 ack 1001", &segments(3_001, 1));
}

/// RFC 9293, 3.8.6.2.1: less than a segment leaves only if it is the last of the data, or half of
/// the largest window ever offered.
#[test]
fn silly_windows_are_avoided() {
    let config = Config { initial_window_segments: 10, ..plain() };
    let mut talk = connected_with_window(config, 2_500);
    talk.writes(100, 10_000, &segments(1, 2));
    talk.silent(200, "1:1 ack 1001 win 1500");
    talk.given(210, "1:1 ack 1001 win 2500", &segments(2_001, 1));

    let mut talk = connected_with_window(config, 1_200);
    talk.writes(100, 10_000, &segments(1, 1));
    talk.silent(200, "1:1 ack 1001 win 599");
    talk.given(201, "1:1 ack 1001 win 600", "1001:1601 ack 1");

    let mut talk = connected_with_window(config, 2_500);
    talk.writes(100, 2_300, "1:1001 ack 1 | 1001:2001 ack 1 | 2001:2301 ack 1");
}

/// RFC 9293, 3.8.6.2.1: the override: what fits goes after a time-out, so that a small window does
/// not stop the connection for ever.
#[test]
fn a_small_window_is_used_after_a_timeout() {
    let mut talk = connected_with_window(plain(), 1_000);
    talk.writes(100, 10_000, &segments(1, 1));
    talk.silent(200, "1:1 ack 1001 win 400");
    // SRTT 100, RTTVAR 37.5.
    talk.timer(450, "1001:1401 ack 1");
}

/// That rule is for new data: what was sent before is retransmitted into whatever room there is (Linux,
/// `tcp_retransmit_skb`). Given 600 bytes of room, less than half of 1,600, used after a time-out and
/// lost, expect the same 600 bytes at the next time-outs.
#[test]
fn a_small_window_is_used_for_retransmissions() {
    for sack in [false, true] {
        let mut talk = connected_with_window(Config { sack, ..plain() }, 1_600);
        talk.writes(100, 10_000, &segments(1, 1));
        talk.silent(200, "1:1 ack 1001 win 600");
        for at in [450, 950, 1_950] {
            talk.timer(at, "1001:1601 ack 1");
        }
    }
}

/// RFC 9293, 3.8.6.1: a closed window is probed with one byte, again and again at doubling
/// intervals; that is no congestion. Reopened, everything goes on; the byte was refused.
#[test]
fn a_zero_window_is_probed() {
    for sack in [false, true] {
        let mut talk = connected_with_window(Config { sack, ..plain() }, 1_000);
        talk.writes(100, 10_000, &segments(1, 1));
        talk.silent(200, "1:1 ack 1001 win 0");
        for at in [450, 950, 1_950, 3_950] {
            talk.timer(at, "1001:1002 ack 1");
            talk.silent(at + 10, "1:1 ack 1001 win 0");
        }
        talk.compare("time-outs", 0, |endpoint| endpoint.sender().counters().timeouts);
        talk.window(2_000);
        let sent = talk.hears(5_000, "1:1 ack 1001 win 2000");
        let expected = if sack { "1001:1002 ack 1 | 1002:2002 ack 1" } else { "1001:2001 ack 1" };
        assert!(sent.starts_with(expected), "{sent}");
    }
}

/// The same where Linux is followed: `tcp_probe_timer` and `tcp_send_probe0` touch neither window nor
/// threshold. Given a window of ten segments and a peer that closes its own for four probes, expect
/// all ten of them to leave when it opens again.
#[test]
fn a_probed_window_keeps_the_congestion_window() {
    for (rack_tlp, prr) in [(false, false), (true, false), (true, true)] {
        let follows = Follows::Linux;
        let config = Config { sack: true, rack_tlp, prr, follows, ..plain() };
        let config = Config { initial_window_segments: 10, ..config };
        let mut talk = connected_with_window(config, 1_000);
        talk.writes(100, 20_000, &segments(1, 1));
        talk.silent(200, "1:1 ack 1001 win 0");
        let mut probes = 0;
        while probes < 4 {
            let due = talk.endpoint.next_wake().expect("a probe follows");
            let at_ms = due.as_nanos() / 1_000_000;
            talk.timer(at_ms, "1001:1002 ack 1");
            probes += 1;
            talk.silent(at_ms + 10, "1:1 ack 1001 win 0");
        }
        talk.window(10_000);
        talk.compare("time-outs, tail loss probes", (0, 0), |endpoint| {
            let counters = endpoint.sender().counters();
            (counters.timeouts, counters.tail_loss_probes)
        });
        let sent = talk.hears(5_000, "1:1 ack 1001 win 20000");
        assert_eq!(sent.split(" | ").count(), 10, "{sent}");
        // The peer takes the byte; nothing was lost.
        talk.hears(5_100, "1:1 ack 1002 win 20000");
        talk.hears(5_100, "1:1 ack 3002 win 20000");
        talk.compare("ssthresh", None, |endpoint| endpoint.sender().control().ssthresh());
    }
}

/// No tail loss probe leaves while the window is closed, whatever ended the one before (RFC 8985, 7.3: it
/// needs room in the window or something lost at the end). Given one that was answered with a closed window,
/// and a repetition of that answer to the probe of the window, expect the next probe of the window, at the
/// doubled time-out.
#[test]
fn a_closed_window_is_not_probed_for_a_lost_end() {
    let config = Config { sack: true, rack_tlp: true, ..plain() };
    let mut talk = connected_with_window(config, 1_000);
    talk.writes(100, 3_000, &segments(1, 1));
    talk.timer(400, &segments(1, 1));
    talk.silent(500, "1:1 ack 1001 win 0");
    // A first sample of 100 ms: 300 ms from the answer, then 600 and 1,200.
    talk.timer(800, "1001:1002 ack 1");
    talk.silent(810, "1:1 ack 1001 win 0");
    talk.timer(1_400, "1001:1002 ack 1");
    talk.silent(1_410, "1:1 ack 1001 win 0");
    talk.timer(2_600, "1001:1002 ack 1");
}

/// The same, but the peer took the byte with which it was probed.
#[test]
fn a_probe_may_be_accepted() {
    for sack in [false, true] {
        let mut talk = connected_with_window(Config { sack, ..plain() }, 1_000);
        talk.writes(100, 3_000, &segments(1, 1));
        talk.silent(200, "1:1 ack 1001 win 0");
        talk.timer(450, "1001:1002 ack 1");
        talk.given(550, "1:1 ack 1002 win 2000", "1002:2002 ack 1 | 2002:3001 ack 1");
        talk.silent(650, "1:1 ack 3001 win 2000");
        talk.idle();
    }
}

/// The ACK that reopened the window got lost: the next probe brings the news.
#[test]
fn a_lost_window_update_does_not_stop_the_connection() {
    for sack in [false, true] {
        let mut talk = connected_with_window(Config { sack, ..plain() }, 1_000);
        talk.writes(100, 1_001, &segments(1, 1));
        talk.silent(200, "1:1 ack 1001 win 0");
        talk.timer(450, "1001:1002 ack 1");
        talk.silent(550, "1:1 ack 1002 win 2000");
        talk.idle();
    }
}

/// A FIN needs no window, and its repetition in front of a closed one is not forgotten.
#[test]
fn a_fin_is_repeated_in_front_of_a_closed_window() {
    for sack in [false, true] {
        let mut talk = connected_with_window(Config { sack, ..plain() }, 1_000);
        talk.writes(100, 1_000, &segments(1, 1));
        talk.silent(200, "1:1 ack 1001 win 0");
        talk.closes(200, "F 1001:1002 ack 1");
        talk.timer(450, "F 1001:1002 ack 1");
        talk.timer(950, "F 1001:1002 ack 1");
        talk.silent(1_000, "1:1 ack 1002 win 0");
        talk.idle();
    }
}

/// While the application does not read, the window closes and its right edge stays; when it reads
/// again, the peer is told (RFC 9293, 3.8.6.2.2).
#[test]
fn an_unread_buffer_closes_the_window() {
    let config = Config { receive_buffer: 3_000, receive_buffer_initial: 3_000, ..plain() };
    let mut talk = Talk::accepted(config).showing_windows();
    talk.reads_at_once(100, false, "");
    talk.silent(200, "1:1001 ack 1");
    talk.given(200, "1001:2001 ack 1", "1:1 ack 2001 win 1000");
    talk.silent(200, "2001:3001 ack 1");
    talk.timer(400, "1:1 ack 3001 win 0");
    // A probe beyond the edge is refused and answered.
    talk.given(600, "3001:3002 ack 1", "1:1 ack 3001 win 0");
    talk.reads_at_once(700, true, "1:1 ack 3001 win 3000");
    talk.compare("delivered", 3_000, |endpoint| endpoint.receiver().delivered());
}

/// RFC 7323, 2.4: what the shifted field cannot tell is rounded up, never moving the edge back.
#[test]
fn a_scaled_window_never_shrinks() {
    let config = Config {
        window_scaling: true,
        receive_buffer: 1 << 24,
        receive_buffer_initial: 10_000,
        ..plain()
    };
    let mut talk = Talk::accepted(config);
    talk.reads_at_once(100, false, "");
    let mut edge = 10_001;
    let mut start = 1;
    for step in 0..40u64 {
        let end = start + 97;
        talk.silent(200 + step * 300, &format!("{start}:{end} ack 1"));
        let wake = 400 + step * 300;
        let field = offered(&mut talk, wake);
        let told = end + field * 512;
        assert!(told >= edge, "edge {edge} told {told}");
        (edge, start) = (told, end);
    }
}

/// The window field of the delayed ACK at `at_ms`.
fn offered(talk: &mut Talk, at_ms: u64) -> u64 {
    use crate::engine::{Cx, Engine, Outbox};
    use crate::packet::Payload;
    let mut outbox = Outbox::new();
    let now = crate::time::Instant::from_millis(at_ms);
    talk.endpoint.wake(&mut Cx::new(now, crate::trace::NodeId(0), &mut outbox, None));
    let (_, _, packet) = outbox.drain().next().expect("a packet");
    let Payload::Tcp(segment) = &packet.payload else { panic!("a segment") };
    segment.window.into()
}

/// Auto-tuning: a peer that fills the window every round trip gets a larger one, up to the cap; the
/// right edge never moves back, and what the cap holds is never exceeded.
#[test]
fn the_window_tunes_itself_up_to_the_cap() {
    let config = Config {
        window_scaling: true,
        receive_buffer: 100_000,
        receive_buffer_initial: 20_000,
        ..plain()
    };
    let mut talk = Talk::accepted(config).showing_windows();
    let (mut start, mut edge, mut offers) = (1u64, 20_001, vec![20_000]);
    for round in 1..8u64 {
        let round_end = edge;
        while start + 1_000 <= round_end {
            let end = start + 1_000;
            let sent = talk.hears(100 + round * 110, &format!("{start}:{end} ack 1"));
            start = end;
            if let Some((_, field)) = sent.split_once(" win ") {
                let window = field.parse::<u64>().expect("a number") << 1;
                assert!(start + window >= edge && window <= 100_000, "{start} {window} {edge}");
                edge = start + window;
                offers.push(window);
            }
        }
    }
    assert!(offers.is_sorted() && offers.last() == Some(&100_000), "{offers:?}");
}

/// Linux, `tcp_win_from_space` and `tcp_measure_rcv_mss`: given 1 MiB of memory, half of it is window
/// (16,384 units of 32 bytes) until a full segment came. One of 1,448 bytes takes 2,304 (2,048 and its
/// `sk_buff`), 160 of 256 parts: then it is 655,360 bytes, 20,480 units. A smaller segment changes nothing.
#[test]
fn the_window_is_a_share_of_the_memory() {
    let config = Config {
        mss: 1_448,
        window_scaling: true,
        receive_buffer: 1 << 20,
        receive_buffer_initial: 1 << 20,
        receive_buffer_counts: BufferCounts::Memory,
        follows: Follows::Linux,
        ..plain()
    };
    let mut talk = Talk::accepted(config).showing_windows();
    talk.silent(200, "1:101 ack 1");
    talk.timer(400, "1:1 ack 101 win 16384");
    talk.silent(500, "101:1549 ack 1");
    talk.given(500, "1549:2997 ack 1", "1:1 ack 2997 win 20480");
    talk.silent(600, "2997:3597 ack 1");
    talk.timer(800, "1:1 ack 3597 win 20480");
}

/// A window that is never filled stays as it is.
#[test]
fn the_window_of_a_slow_sender_stays() {
    let config = Config {
        window_scaling: true,
        receive_buffer: 100_000,
        receive_buffer_initial: 20_000,
        ..plain()
    };
    let mut talk = Talk::accepted(config).showing_windows();
    for round in 0..10u64 {
        let (at, start) = (200 + round * 300, 1 + round * 2_000);
        talk.silent(at, &format!("{start}:{} ack 1", start + 1_000));
        let ack = start + 2_000;
        let answer = format!("1:1 ack {ack} win 10000");
        talk.given(at, &format!("{}:{ack} ack 1", start + 1_000), &answer);
    }
}

/// A first window smaller than the field's unit is a whole unit, not none.
#[test]
fn a_window_below_the_unit_is_not_lost() {
    let config = Config {
        window_scaling: true,
        receive_buffer: 1 << 30,
        receive_buffer_initial: 1_000,
        ..plain()
    };
    let mut talk = Talk::accepted(config).showing_windows();
    talk.silent(200, "1:101 ack 1");
    talk.timer(400, "1:1 ack 101 win 1");
}
