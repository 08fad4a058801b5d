//! The three-way handshake (RFC 9293, 3.5) and option negotiation.

use super::harness::{Host, segments};
use super::plain;
use crate::tcp::config::Config;
use crate::tcp::endpoint::Endpoint;
use crate::time::{Duration, Instant};

fn all_options() -> Config {
    Config { sack: true, timestamps: true, window_scaling: true, ..plain() }
}

fn open(host: &mut Host, at_ms: u64) -> String {
    host.call(at_ms, "opens", Endpoint::open)
}

/// RFC 9293, 3.5: SYN, SYN-ACK, ACK.
#[test]
fn an_active_open_without_options() {
    let mut host = Host::new(plain()).showing_windows();
    assert_eq!(open(&mut host, 0), "S 0:1 win 65535 mss 1000");
    host.given(100, "S 0:1 ack 1 mss 1000", "1:1 ack 1 win 65535");
    let established = Some(Instant::from_millis(100));
    host.compare("established", established, |endpoint| endpoint.stats().established);
    host.idle();
}

/// RFC 7323, 2.2 and 3.2; RFC 2018, 2: expect a SYN with all supported options and an unscaled
/// window.
#[test]
fn an_active_open_offers_all_supported_options() {
    let config = Config { receive_buffer: 6 << 20, ..all_options() };
    let mut host = Host::new(config).showing_windows();
    assert_eq!(open(&mut host, 0), "S 0:1 win 65535 ts 0/0 mss 1000 ws 7 sackok");
    let answer = "S 0:1 ack 1 mss 1000 ws 3 sackok ts 7/0";
    host.given(100, answer, "1:1 ack 1 win 512 ts 100/7");
}

/// RFC 7323, 2.2 and 3.2: given a SYN-ACK without an option, expect it not to be used.
#[test]
fn options_missing_in_the_syn_ack_are_not_used() {
    let config = Config { receive_buffer: 6 << 20, ..all_options() };
    let mut host = Host::new(config).showing_windows();
    open(&mut host, 0);
    host.given(100, "S 0:1 ack 1 win 4000 mss 1000", "1:1 ack 1 win 65535");
    host.writes(100, 1_000, "1:1001 ack 1 win 65535");
    host.given(150, "1001:2001 ack 1001 win 4000", "1001:1001 ack 1 win 65535");
}

/// RFC 7323, 2.2: expect a SYN-ACK with the options of the SYN only.
#[test]
fn a_passive_open_accepts_only_offered_options() {
    let mut host = Host::new(all_options());
    host.given(5, "S 0:1 mss 1000", "S 0:1 ack 1 mss 1000");
    let mut host = Host::new(all_options());
    let full = "S 0:1 mss 1000 ws 2 sackok ts 9/0";
    host.given(5, full, "S 0:1 ack 1 ts 5/9 mss 1000 ws 0 sackok");
    let mut host = Host::new(plain());
    host.given(5, full, "S 0:1 ack 1 mss 1000");
}

/// RFC 9293, 3.7.1: expect the smaller MSS, 536 without the option. RFC 6691: options reduce the
/// payload.
#[test]
fn the_smaller_mss_applies() {
    for (offer, options, end) in
        [("mss 700", false, 701), ("mss 1400", false, 1_001), ("", false, 537)]
    {
        let mut host = Host::new(Config { timestamps: options, ..plain() });
        open(&mut host, 0);
        host.given(100, &format!("S 0:1 ack 1 {offer}"), "1:1 ack 1");
        host.writes(100, 5_000, &format!("1:{end} ack 1"));
    }
    let mut host = Host::connected(Config { timestamps: true, ..plain() });
    host.writes(100, 5_000, "1:989 ack 1 ts 100/0");
}

/// RFC 6298, 5.5: expect SYN retransmissions to back off; RFC 5681, 3.1: then an initial window of
/// one segment.
#[test]
fn a_lost_syn_backs_off_and_reduces_the_initial_window() {
    let mut host = Host::new(Config { initial_window_segments: 10, ..plain() });
    open(&mut host, 0);
    host.timer(1_000, "S 0:1 mss 1000");
    host.timer(3_000, "S 0:1 mss 1000");
    host.timer(7_000, "S 0:1 mss 1000");
    host.given(7_100, "S 0:1 ack 1 mss 1000", "1:1 ack 1");
    host.compare("samples", 0, |endpoint| endpoint.sender().rtt().total().1);
    host.writes(7_100, 10_000, &segments(1, 1));
    // RFC 6298, 5.7: without a sample, the timeout for data is 3 s.
    host.timer(10_100, &segments(1, 1));
}

/// RFC 6298, 5.7, applies only below 3 s; above, Karn's algorithm keeps the backed-off timeout.
#[test]
fn a_long_initial_timeout_stays_backed_off() {
    let mut config = plain();
    config.rto.initial = Duration::from_secs(3);
    let mut host = Host::new(config);
    open(&mut host, 0);
    host.timer(3_000, "S 0:1 mss 1000");
    host.given(3_100, "S 0:1 ack 1 mss 1000", "1:1 ack 1");
    host.writes(3_100, 1_000, &segments(1, 1));
    host.timer(9_100, &segments(1, 1));
}

/// RFC 9293, 3.10.7.4: given a duplicate SYN, expect an ACK; the timer retransmits the SYN-ACK.
#[test]
fn the_timer_retransmits_the_syn_ack() {
    let mut host = Host::new(plain());
    host.given(0, "S 0:1 mss 1000", "S 0:1 ack 1 mss 1000");
    host.given(500, "S 0:1 mss 1000", "1:1 ack 1");
    host.timer(1_000, "S 0:1 ack 1 mss 1000");
    host.timer(3_000, "S 0:1 ack 1 mss 1000");
    host.no_reply(3_050, "1:1 ack 1");
    host.idle();
}

/// RFC 9293, 3.5: given a lost last ACK of the handshake, expect the retransmitted SYN-ACK to be
/// acknowledged again. Data that carries the ACK completes the handshake as well.
#[test]
fn the_last_ack_of_the_handshake_may_be_lost() {
    let mut host = Host::new(plain());
    open(&mut host, 0);
    host.given(100, "S 0:1 ack 1 mss 1000", "1:1 ack 1");
    host.given(1_100, "S 0:1 ack 1 mss 1000", "1:1 ack 1");

    let mut host = Host::new(plain());
    host.given(0, "S 0:1 mss 1000", "S 0:1 ack 1 mss 1000");
    host.no_reply(100, "1:1001 ack 1");
    let established = Some(Instant::from_millis(100));
    host.compare("established", established, |endpoint| endpoint.stats().established);
    host.timer(300, "1:1 ack 1001");
}

/// Given data written before the handshake, expect it to be sent when the handshake completes.
#[test]
fn data_is_queued_during_the_handshake() {
    let mut host = Host::new(plain());
    host.writes(0, 400, "");
    host.closes(0, "");
    assert_eq!(open(&mut host, 0), "S 0:1 mss 1000");
    host.given(100, "S 0:1 ack 1 mss 1000", "F 1:402 ack 1");
}
