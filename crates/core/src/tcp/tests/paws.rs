//! Protection against wrapped sequence numbers (RFC 7323, section 5) as in Linux: a segment with an old timestamp is
//! discarded, also if it has data that is still missing. So is an original that a network delays until after the
//! retransmission of an earlier hole, as a decoder does.

use super::harness::Host;
use super::plain;
use crate::tcp::config::{Config, StackVariant};

fn timestamps(stack: StackVariant) -> Config {
    Config { sack: true, timestamps: true, initial_window_segments: 10, stack, ..plain() }
}

/// A receiver with two holes, 1001 to 2001 and 3001 to 4001, and TS.Recent 200. A retransmission at 900 fills the first
/// one: TS.Recent is 800.
fn first_hole_filled(stack: StackVariant) -> Host {
    let mut host = Host::connected(timestamps(stack));
    host.receives(300, "1:1001 ack 1 ts 200/100");
    host.receives(310, "2001:3001 ack 1 ts 202/100");
    host.given(
        320,
        "4001:5001 ack 1 ts 204/100",
        &sacked(1_001, "4001-5001 sack 2001-3001", 320, 200),
    );
    host.given(900, "1001:2001 ack 1 ts 800/100", &sacked(3_001, "4001-5001", 900, 800));
    host
}

/// An ACK with SACK blocks and timestamps.
fn sacked(ack: u32, blocks: &str, value: u32, echo: u32) -> String {
    format!("1:1 ack {ack} sack {blocks} ts {value}/{echo}")
}

/// `tcp_validate_incoming`: given the original of the second hole, expect the same ACK again, at once, and the hole to
/// stay until its retransmission.
#[test]
fn a_delayed_original_is_discarded_after_a_retransmission() {
    for stack in [StackVariant::Linux, StackVariant::Rfc] {
        let mut host = first_hole_filled(stack);
        host.given(950, "3001:4001 ack 1 ts 203/100", &sacked(3_001, "4001-5001", 950, 800));
        host.compare("discarded bytes", 1_000, |endpoint| endpoint.receiver().discarded_bytes());
        host.given(960, "3001:4001 ack 1 ts 801/100", "1:1 ack 5001 ts 960/801");
        host.compare("delivered bytes", 5_000, |endpoint| endpoint.receiver().delivered());
    }
}

/// `tcp_send_dupack`: given data below RCV.NXT, expect a D-SACK with Linux.
#[test]
fn an_old_duplicate_is_reported() {
    let mut host = first_hole_filled(StackVariant::Linux);
    let expected = sacked(3_001, "1001-2001 sack 4001-5001", 950, 800);
    host.given(950, "1001:2001 ack 1 ts 201/100", &expected);
}

/// `tcp_paws_check`: given a timestamp one tick older than TS.Recent, expect the data to be accepted.
#[test]
fn a_tick_is_tolerated() {
    let mut host = first_hole_filled(StackVariant::Linux);
    host.given(950, "3001:4001 ack 1 ts 799/100", "1:1 ack 5001 ts 950/800");
}

/// Given a FIN with an old timestamp, expect it to be ignored.
#[test]
fn an_old_fin_is_discarded() {
    let mut host = first_hole_filled(StackVariant::Linux);
    host.given(950, "F 3001:3002 ack 1 ts 203/100", &sacked(3_001, "4001-5001", 950, 800));
    host.compare("no end", false, |endpoint| endpoint.receiver().finished());
}

/// Timestamps are compared modulo 2^32 (RFC 7323, 5.2). Each segment is acknowledged, so each updates TS.Recent.
#[test]
fn timestamps_wrap() {
    let mut config = timestamps(StackVariant::Linux);
    config.acks.delayed_segments = 1;
    let mut host = Host::connected(config);
    let delivered = |host: &Host, bytes| {
        host.compare("delivered bytes", bytes, |endpoint| endpoint.receiver().delivered());
    };
    for (number, value) in (0_u32..).zip([u32::MAX / 2 - 10, u32::MAX - 20, 5]) {
        let (at, start) = (300 + 10 * u64::from(number), 1_000 * number + 1);
        host.receives(at, &format!("{start}:{} ack 1 ts {value}/100", start + 1_000));
        delivered(&host, u64::from(1_000 * (number + 1)));
    }
    host.receives(330, &format!("3001:4001 ack 1 ts {}/100", u32::MAX - 5));
    delivered(&host, 3_000);
}

/// `tcp_disordered_ack_check`: given ACKs without data that are older than TS.Recent, expect SACK blocks of one that
/// acknowledges as much as the last one to count, and others to be ignored.
#[test]
fn an_old_ack_has_news_only_in_its_blocks() {
    let mut host = Host::connected(timestamps(StackVariant::Linux));
    host.call(100, "writes", |endpoint, cx| endpoint.write(cx, 1 << 19));
    let outstanding = |host: &Host| host.endpoint.sender().una();
    host.receives(300, "1:1 ack 989 ts 250/100");
    host.no_reply(310, "1:1 ack 1 ts 240/100");
    host.compare("SND.UNA", 989, |endpoint| endpoint.sender().una());
    host.no_reply(320, "1:1 ack 1977 ts 240/100");
    assert_eq!(outstanding(&host), 989, "an ACK of more cannot be older");
    let sent = host.receives(330, "1:1 ack 989 sack 1977-4941 ts 240/100");
    assert!(sent.starts_with("989:1977 "), "{sent}");
}

/// Given no timestamps, expect nothing to be discarded.
#[test]
fn without_timestamps_nothing_is_old() {
    let mut host = Host::connected(Config { timestamps: false, ..timestamps(StackVariant::Linux) });
    host.receives(300, "1:1001 ack 1 ts 900/100");
    host.receives(310, "1001:2001 ack 1 ts 100/100");
    host.compare("delivered bytes", 2_000, |endpoint| endpoint.receiver().delivered());
}
