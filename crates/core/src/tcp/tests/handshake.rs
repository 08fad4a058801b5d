//! The three-way handshake (RFC 9293, 3.5) and the options it settles.

use super::conversation::{Talk, segments};
use super::plain;
use crate::tcp::config::Config;
use crate::tcp::endpoint::Endpoint;
use crate::time::{Duration, Instant};

fn everything() -> Config {
    Config { sack: true, timestamps: true, window_scaling: true, ..plain() }
}

fn open(talk: &mut Talk, at_ms: u64) -> String {
    talk.call(at_ms, "opens", Endpoint::open)
}

/// RFC 9293, 3.5: SYN, SYN-ACK, ACK.
#[test]
fn an_active_open_offers_nothing_it_cannot_do() {
    let mut talk = Talk::new(plain()).showing_windows();
    assert_eq!(open(&mut talk, 0), "S 0:1 win 65535 mss 1000");
    talk.given(100, "S 0:1 ack 1 mss 1000", "1:1 ack 1 win 65535");
    let established = Some(Instant::from_millis(100));
    talk.compare("established", established, |endpoint| endpoint.facts().established);
    talk.idle();
}

/// RFC 7323, 2.2 and 3.2; RFC 2018, 2: what a SYN offers. Its window is not scaled.
#[test]
fn an_active_open_offers_all_that_it_can_do() {
    let config = Config { receive_buffer: 6 << 20, ..everything() };
    let mut talk = Talk::new(config).showing_windows();
    assert_eq!(open(&mut talk, 0), "S 0:1 win 65535 ts 0/0 mss 1000 ws 7 sackok");
    let answer = "S 0:1 ack 1 mss 1000 ws 3 sackok ts 7/0";
    talk.given(100, answer, "1:1 ack 1 win 512 ts 100/7");
}

/// RFC 7323, 2.2 and 3.2: without the option in the answer, it is not used.
#[test]
fn what_the_answer_leaves_out_is_not_used() {
    let config = Config { receive_buffer: 6 << 20, ..everything() };
    let mut talk = Talk::new(config).showing_windows();
    open(&mut talk, 0);
    talk.given(100, "S 0:1 ack 1 win 4000 mss 1000", "1:1 ack 1 win 65535");
    talk.writes(100, 1_000, "1:1001 ack 1 win 65535");
    talk.given(150, "1001:2001 ack 1001 win 4000", "1001:1001 ack 1 win 65535");
}

/// RFC 7323, 2.2: an option is answered only to one who offered it.
#[test]
fn a_passive_open_answers_only_what_was_offered() {
    let mut talk = Talk::new(everything());
    talk.given(5, "S 0:1 mss 1000", "S 0:1 ack 1 mss 1000");
    let mut talk = Talk::new(everything());
    let full = "S 0:1 mss 1000 ws 2 sackok ts 9/0";
    talk.given(5, full, "S 0:1 ack 1 ts 5/9 mss 1000 ws 0 sackok");
    let mut talk = Talk::new(plain());
    talk.given(5, full, "S 0:1 ack 1 mss 1000");
}

/// RFC 9293, 3.7.1: the smaller MSS counts, 536 without the option. RFC 6691: options take from it.
#[test]
fn the_smaller_mss_counts() {
    for (offer, options, end) in
        [("mss 700", false, 701), ("mss 1400", false, 1_001), ("", false, 537)]
    {
        let mut talk = Talk::new(Config { timestamps: options, ..plain() });
        open(&mut talk, 0);
        talk.given(100, &format!("S 0:1 ack 1 {offer}"), "1:1 ack 1");
        talk.writes(100, 5_000, &format!("1:{end} ack 1"));
    }
    let mut talk = Talk::connected(Config { timestamps: true, ..plain() });
    talk.writes(100, 5_000, "1:989 ack 1 ts 100/0");
}

/// RFC 6298, 5.5: the SYN backs off; 5681, 3.1: then the initial window is one segment.
#[test]
fn a_lost_syn_backs_off_and_costs_the_initial_window() {
    let mut talk = Talk::new(Config { initial_window_segments: 10, ..plain() });
    open(&mut talk, 0);
    talk.timer(1_000, "S 0:1 mss 1000");
    talk.timer(3_000, "S 0:1 mss 1000");
    talk.timer(7_000, "S 0:1 mss 1000");
    talk.given(7_100, "S 0:1 ack 1 mss 1000", "1:1 ack 1");
    talk.compare("samples", 0, |endpoint| endpoint.sender().rtt().total().1);
    talk.writes(7_100, 10_000, &segments(1, 1));
    // RFC 6298, 5.7: without a sample, data starts with 3 s.
    talk.timer(10_100, &segments(1, 1));
}

/// RFC 6298, 5.7, bites only below 3 s; above, Karn keeps what was backed off.
#[test]
fn a_long_first_timeout_stays_backed_off() {
    let mut config = plain();
    config.rto.initial = Duration::from_secs(3);
    let mut talk = Talk::new(config);
    open(&mut talk, 0);
    talk.timer(3_000, "S 0:1 mss 1000");
    talk.given(3_100, "S 0:1 ack 1 mss 1000", "1:1 ack 1");
    talk.writes(3_100, 1_000, &segments(1, 1));
    talk.timer(9_100, &segments(1, 1));
}

/// RFC 9293, 3.10.7.4: a repeated SYN is an old segment, answered by an ACK; the SYN-ACK itself is
/// repeated by its own timer.
#[test]
fn the_answer_to_a_syn_is_repeated_by_its_timer() {
    let mut talk = Talk::new(plain());
    talk.given(0, "S 0:1 mss 1000", "S 0:1 ack 1 mss 1000");
    talk.given(500, "S 0:1 mss 1000", "1:1 ack 1");
    talk.timer(1_000, "S 0:1 ack 1 mss 1000");
    talk.timer(3_000, "S 0:1 ack 1 mss 1000");
    talk.silent(3_050, "1:1 ack 1");
    talk.idle();
}

/// RFC 9293, 3.5: the last ACK of the handshake is lost; the repeated SYN-ACK is answered again, and
/// data that carries the ACK completes the handshake as well.
#[test]
fn the_last_ack_of_the_handshake_may_get_lost() {
    let mut talk = Talk::new(plain());
    open(&mut talk, 0);
    talk.given(100, "S 0:1 ack 1 mss 1000", "1:1 ack 1");
    talk.given(1_100, "S 0:1 ack 1 mss 1000", "1:1 ack 1");

    let mut talk = Talk::new(plain());
    talk.given(0, "S 0:1 mss 1000", "S 0:1 ack 1 mss 1000");
    talk.silent(100, "1:1001 ack 1");
    let established = Some(Instant::from_millis(100));
    talk.compare("established", established, |endpoint| endpoint.facts().established);
    talk.timer(300, "1:1 ack 1001");
}

/// Data that was written before the connection is open waits, then leaves with the handshake's ACK.
#[test]
fn data_waits_for_the_handshake() {
    let mut talk = Talk::new(plain());
    talk.writes(0, 400, "");
    talk.closes(0, "");
    assert_eq!(open(&mut talk, 0), "S 0:1 mss 1000");
    talk.given(100, "S 0:1 ack 1 mss 1000", "F 1:402 ack 1");
}
