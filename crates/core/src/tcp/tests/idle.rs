//! cwnd after an idle period.

use super::harness::Host;
use super::plain;
use crate::tcp::config::{Config, CongestionName, StackVariant};
use crate::tcp::endpoint::Endpoint;

fn segments_sent(sent: &str) -> usize {
    sent.split(" | ").count()
}

/// A connection with a cwnd of 40 segments after 10 and 20 were sent and acknowledged in slow
/// start. Nothing is outstanding at 300 ms; the last segment was sent at 200 ms.
fn grown(config: Config) -> Host {
    let config = Config {
        initial_window_segments: 10,
        slow_start_segments_per_ack: 100,
        receive_buffer: 1 << 20,
        window_scaling: true,
        ..config
    };
    let mut host = Host::connected(config);
    for (at, start, count) in [(100, 1, 10), (200, 10_001, 20)] {
        let sent = host.call(at, "writes", |endpoint, cx| endpoint.write(cx, count * 1_000));
        assert_eq!(segments_sent(&sent), usize::try_from(count).expect("small"));
        host.no_reply(at + 100, &format!("1:1 ack {}", start + count * 1_000));
    }
    host.window(40_000);
    host
}

fn after_idle(host: &mut Host, at_ms: u64) -> usize {
    let write = |endpoint: &mut Endpoint, cx: &mut crate::engine::Cx<'_>| {
        endpoint.write(cx, 100_000);
    };
    segments_sent(&host.call(at_ms, "writes", write))
}

/// `tcp_cwnd_restart`: expect cwnd to be halved for each timeout since the last transmission at 200
/// ms, down to the initial window. The timeout is 300 ms: after 250 ms 40 segments are sent, after
/// 1.5 timeouts 20, after 2.5 and 10 timeouts 10.
#[test]
fn linux_halves_cwnd_for_each_timeout_of_an_idle_period() {
    for (idle, expected) in [(250, 40), (450, 20), (750, 10), (3_000, 10)] {
        let config = Config { sack: true, rack_tlp: true, stack: StackVariant::Linux, ..plain() };
        let mut host = grown(config);
        assert_eq!(after_idle(&mut host, 200 + idle), expected, "after {idle} ms");
        // Before the first congestion, ssthresh is infinite and stays so.
        host.compare("ssthresh", None, |endpoint| endpoint.sender().control().ssthresh());
    }
}

/// RFC 5681, 4.1: expect the restart window after more than one timeout, 250 ms after two RTT
/// samples of 100 ms.
#[test]
fn the_rfc_restarts_with_the_initial_window() {
    for (idle, expected) in [(150, 40), (450, 10), (3_000, 10)] {
        for congestion in [CongestionName::Reno, CongestionName::Cubic] {
            let mut host = grown(Config { congestion, ..plain() });
            assert_eq!(after_idle(&mut host, 200 + idle), expected, "after {idle} ms");
        }
    }
}

/// `tcp_current_ssthresh`: after congestion, expect an ssthresh of at least three quarters of cwnd,
/// so that slow start restores most of it.
#[test]
fn linux_keeps_three_quarters_of_cwnd_in_ssthresh() {
    let config = Config { sack: true, initial_window_segments: 4, ..plain() };
    let mut host = Host::connected(Config { stack: StackVariant::Linux, ..config });
    host.call(100, "writes", |endpoint, cx| endpoint.write(cx, 4_000));
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    host.receives(300, "1:1 ack 4001");
    host.compare("ssthresh", Some(2_000), |endpoint| endpoint.sender().control().ssthresh());
    let mut una = 4_001;
    let mut at = 300;
    while host.endpoint.sender().control().cwnd() < 8_000 {
        host.call(at, "writes", |endpoint, cx| endpoint.write(cx, 8_000));
        una += 8_000;
        while host.endpoint.sender().una() < una {
            at += 100;
            let max = host.endpoint.sender().max();
            host.receives(at, &format!("1:1 ack {max}"));
        }
    }
    host.call(at + 60_000, "writes", |endpoint, cx| endpoint.write(cx, 1_000));
    host.window(4_000);
    host.compare("ssthresh", Some(6_000), |endpoint| endpoint.sender().control().ssthresh());
}

/// `cubictcp_cwnd_event_tx_start`: given a cwnd of 70 after one of 100, restored after K = cbrt(30
/// / 0.4) = 4.2 s, and an idle period of 20 s, expect the next round trip to add at most a tenth.
/// Including the idle period, the curve would be at 1,600 and add a segment for every two.
#[test]
fn cubic_excludes_an_idle_period() {
    let config = Config {
        sack: true,
        window_scaling: true,
        initial_window_segments: 100,
        congestion: CongestionName::Cubic,
        stack: StackVariant::Linux,
        ..plain()
    };
    let mut host = Host::connected(config);
    let cwnd = |host: &Host| host.endpoint.sender().control().cwnd();
    // The window of the SYN is not scaled; this one is.
    host.no_reply(100, "1:1 ack 1");
    host.call(100, "writes", |endpoint, cx| endpoint.write(cx, 100_000));
    host.receives(200, "1:1 ack 1 sack 1001-4001");
    host.receives(210, "1:1 ack 100001");
    host.window(70_000);
    // More than cwnd allows, so that it grows.
    host.call(300, "writes", |endpoint, cx| endpoint.write(cx, 71_000));
    host.receives(400, "1:1 ack 170001");
    host.no_reply(500, "1:1 ack 171001");
    let before = cwnd(&host);
    assert_eq!(after_idle(&mut host, 20_400) as u64, before / 1_000);
    host.receives(20_500, &format!("1:1 ack {}", 171_001 + before));
    assert!(cwnd(&host) <= before + before / 10, "{} after {before}", cwnd(&host));
}
