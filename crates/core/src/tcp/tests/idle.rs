//! The window after a pause of the application.

use super::conversation::Talk;
use super::plain;
use crate::tcp::config::{Config, CongestionName, Follows};
use crate::tcp::endpoint::Endpoint;

fn segments_sent(sent: &str) -> usize {
    sent.split(" | ").count()
}

/// Ten segments are sent and acknowledged in each of three rounds, all in slow start: the window grew to
/// 40. Nothing is outstanding at 400 ms; the last segment left at 300 ms.
fn grown(config: Config) -> Talk {
    let config = Config {
        initial_window_segments: 10,
        slow_start_segments_per_ack: 100,
        receive_buffer: 1 << 20,
        window_scaling: true,
        ..config
    };
    let mut talk = Talk::connected(config);
    for (at, start, count) in [(100, 1, 10), (200, 10_001, 20)] {
        let sent = talk.call(at, "writes", |endpoint, cx| endpoint.write(cx, count * 1_000));
        assert_eq!(segments_sent(&sent), usize::try_from(count).expect("small"));
        talk.silent(at + 100, &format!("1:1 ack {}", start + count * 1_000));
    }
    talk.window(40_000);
    talk
}

fn after_pause(talk: &mut Talk, at_ms: u64) -> usize {
    let write = |endpoint: &mut Endpoint, cx: &mut crate::engine::Cx<'_>| {
        endpoint.write(cx, 100_000);
    };
    segments_sent(&talk.call(at_ms, "writes", write))
}

/// `tcp_cwnd_restart`: the window is halved for each time-out that passed since something was last sent,
/// at 200 ms, down to the initial one. The time-out is 300 ms: after 250 ms 40 segments leave, after
/// 1.5 time-outs 20, after 2.5 and 10 time-outs 10.
#[test]
fn linux_halves_the_window_for_each_timeout_of_a_pause() {
    for (pause, left) in [(250, 40), (450, 20), (750, 10), (3_000, 10)] {
        let config = Config { sack: true, rack_tlp: true, follows: Follows::Linux, ..plain() };
        let mut talk = grown(config);
        assert_eq!(after_pause(&mut talk, 200 + pause), left, "after {pause} ms");
        // Before the first congestion the threshold is infinite and stays so.
        talk.compare("ssthresh", None, |endpoint| endpoint.sender().control().ssthresh());
    }
}

/// RFC 5681, 4.1: after more than one time-out, 250 ms after two samples of 100 ms or less, the restart
/// window.
#[test]
fn the_rfc_restarts_with_the_initial_window() {
    for (pause, left) in [(150, 40), (450, 10), (3_000, 10)] {
        for congestion in [CongestionName::Reno, CongestionName::Cubic] {
            let mut talk = grown(Config { congestion, ..plain() });
            assert_eq!(after_pause(&mut talk, 200 + pause), left, "after {pause} ms");
        }
    }
}

/// `tcp_current_ssthresh`: after congestion the threshold is three quarters of the window at least, so that
/// slow start brings most of it back.
#[test]
fn linux_remembers_three_quarters_of_the_window() {
    let config = Config { sack: true, initial_window_segments: 4, ..plain() };
    let mut talk = Talk::connected(Config { follows: Follows::Linux, ..config });
    talk.call(100, "writes", |endpoint, cx| endpoint.write(cx, 4_000));
    talk.hears(200, "1:1 ack 1 sack 1001-4001");
    talk.hears(300, "1:1 ack 4001");
    talk.compare("ssthresh", Some(2_000), |endpoint| endpoint.sender().control().ssthresh());
    let mut una = 4_001;
    let mut at = 300;
    while talk.endpoint.sender().control().cwnd() < 8_000 {
        talk.call(at, "writes", |endpoint, cx| endpoint.write(cx, 8_000));
        una += 8_000;
        while talk.endpoint.sender().una() < una {
            at += 100;
            let max = talk.endpoint.sender().max();
            talk.hears(at, &format!("1:1 ack {max}"));
        }
    }
    talk.call(at + 60_000, "writes", |endpoint, cx| endpoint.write(cx, 1_000));
    talk.window(4_000);
    talk.compare("ssthresh", Some(6_000), |endpoint| endpoint.sender().control().ssthresh());
}

/// `cubictcp_cwnd_event_tx_start`: a pause is no time on CUBIC's curve. Given a window of 70 after one of
/// 100, which is back after K = cbrt(30 / 0.4) = 4.2 s, and a pause of 20 s, expect the next round trip to
/// add no more than a tenth of it. With the pause the curve would be at 1,600 and add a segment for two.
#[test]
fn a_pause_is_no_time_for_cubic() {
    let config = Config {
        sack: true,
        window_scaling: true,
        initial_window_segments: 100,
        congestion: CongestionName::Cubic,
        follows: Follows::Linux,
        ..plain()
    };
    let mut talk = Talk::connected(config);
    let cwnd = |talk: &Talk| talk.endpoint.sender().control().cwnd();
    // The window of the SYN was not scaled; this one is.
    talk.silent(100, "1:1 ack 1");
    talk.call(100, "writes", |endpoint, cx| endpoint.write(cx, 100_000));
    talk.hears(200, "1:1 ack 1 sack 1001-4001");
    talk.hears(210, "1:1 ack 100001");
    talk.window(70_000);
    // More than the window lets out, so that it grows.
    talk.call(300, "writes", |endpoint, cx| endpoint.write(cx, 71_000));
    talk.hears(400, "1:1 ack 170001");
    talk.silent(500, "1:1 ack 171001");
    let before = cwnd(&talk);
    assert_eq!(after_pause(&mut talk, 20_400) as u64, before / 1_000);
    talk.hears(20_500, &format!("1:1 ack {}", 171_001 + before));
    assert!(cwnd(&talk) <= before + before / 10, "{} after {before}", cwnd(&talk));
}
