//! Reductions that turn out to be wrong: F-RTO (RFC 5682), Eifel (RFC 3522) and D-SACK (RFC 2883, 3708) as
//! Linux uses them, and the reordering window of RACK (RFC 8985, 6.2, step 4).

use super::conversation::{Talk, segments};
use super::plain;
use crate::tcp::config::{Config, Follows};
use crate::tcp::endpoint::Endpoint;

fn linux() -> Config {
    Config { sack: true, initial_window_segments: 10, follows: Follows::Linux, ..plain() }
}

fn ten_out(config: Config) -> Talk {
    let mut talk = Talk::connected(config);
    talk.call(100, "writes", |endpoint, cx| endpoint.write(cx, 1 << 19));
    talk
}

/// All that there is to send is ten segments, and they are out.
fn ten_out_of_ten(config: Config) -> Talk {
    let mut talk = Talk::connected(config);
    talk.writes(100, 10_000, &segments(1, 10));
    talk
}

/// The timer expires: when that was in ms, and what was sent.
fn time_out(talk: &mut Talk) -> (u64, String) {
    let (at, sent) = talk.time_out();
    (at.as_nanos() / 1_000_000, sent)
}

fn ssthresh(talk: &Talk, expected: Option<u64>) {
    talk.compare("ssthresh", expected, |endpoint| endpoint.sender().control().ssthresh());
}

fn spurious(talk: &Talk, timeouts: u64, recoveries: u64) {
    talk.compare("spurious time-outs, recoveries", (timeouts, recoveries), |endpoint| {
        let counters = endpoint.sender().counters();
        (counters.spurious_timeouts, counters.spurious_recoveries)
    });
}

fn retransmitted(talk: &Talk) -> u64 {
    talk.endpoint.sender().counters().retransmitted_segments
}

/// The window is ten segments or more, as it was before.
fn window_is_back(talk: &Talk, segment: u64) {
    let cwnd = talk.endpoint.sender().control().cwnd();
    assert!(cwnd >= 10 * segment, "{cwnd}");
    ssthresh(talk, None);
}

/// `tcp_try_undo_loss` with `tcp_packet_delayed`: the ACK that comes after a time-out echoes the timestamp of
/// the original, 100, and not that of the retransmission: the path had only been slow.
#[test]
fn a_timestamp_shows_that_a_timeout_was_spurious() {
    for rack_tlp in [false, true] {
        let mut talk = ten_out(Config { timestamps: true, rack_tlp, ..linux() });
        let (at, sent) = time_out(&mut talk);
        assert!(sent.starts_with("1:989 "), "{sent}");
        ssthresh(&talk, Some(4 * 988 + 988));
        talk.hears(at + 10, "1:1 ack 989 ts 9/100");
        window_is_back(&talk, 988);
        spurious(&talk, 1, 0);
    }
}

/// `tcp_rack_advance` (RFC 8985, 6.2, step 2): what arrives last gives the round trip, whatever was sent last.
/// An outage of 2 s held up ten segments. Given ACKs two segments apart that echo the originals, 100, the
/// first of them 300 ms after the retransmission of the first: expect that to be undone, and no other
/// original to be lost, as each took as long as the one before it.
#[test]
fn what_an_outage_held_up_is_not_lost() {
    let mut talk = ten_out(Config { timestamps: true, rack_tlp: true, ..linux() });
    let (at, _) = time_out(&mut talk);
    let sent = retransmitted(&talk);
    for (step, end) in [(0, 1_977), (3, 3_953), (6, 5_929), (9, 7_905), (12, 9_881)] {
        talk.hears(at + 300 + step, &format!("1:1 ack {end} ts 9/100"));
        window_is_back(&talk, 988);
    }
    spurious(&talk, 1, 0);
    talk.compare("fast recoveries", 0, |endpoint| endpoint.sender().counters().fast_recoveries);
    assert_eq!(retransmitted(&talk), sent);
}

/// The same with the timestamp of the retransmission: the loss was real.
#[test]
fn a_timestamp_of_the_retransmission_undoes_nothing() {
    let mut talk = ten_out(Config { timestamps: true, ..linux() });
    let (at, _) = time_out(&mut talk);
    talk.hears(at + 100, &format!("1:1 ack 989 ts 9/{at}"));
    ssthresh(&talk, Some(4_940));
    spurious(&talk, 0, 0);
}

/// RFC 5682, 3.1, steps 1, 2.b and 3.b (`tcp_process_loss`): after the first ACK two new segments go and no
/// retransmission; the second ACK is for segments that were never retransmitted: the time-out was spurious
/// and nothing is retransmitted.
#[test]
fn f_rto_finds_a_spurious_timeout_without_timestamps() {
    let mut talk = ten_out(linux());
    let (at, sent) = time_out(&mut talk);
    assert_eq!(sent, segments(1, 1));
    talk.window(1_000);
    talk.given(at + 10, "1:1 ack 1001", &segments(10_001, 2));
    let sent = talk.hears(at + 20, "1:1 ack 2001");
    assert!(sent.starts_with("12001:13001 "), "{sent}");
    window_is_back(&talk, 1_000);
    spurious(&talk, 1, 0);
    talk.compare("retransmissions", 1, |endpoint| {
        endpoint.sender().counters().retransmitted_segments
    });
}

/// A never retransmitted segment may be reported by SACK just as well (RFC 5682, 3: the SACK-enhanced
/// version).
#[test]
fn f_rto_takes_a_block_for_an_ack() {
    let mut talk = ten_out(linux());
    let (at, _) = time_out(&mut talk);
    talk.hears(at + 10, "1:1 ack 1 sack 1001-2001");
    window_is_back(&talk, 1_000);
    spurious(&talk, 1, 0);
}

/// RFC 5682, 3.1, step 3.a: the second ACK reports only what was sent after the time-out: the loss was
/// real, and what was held back goes.
#[test]
fn f_rto_finds_a_real_loss() {
    let mut talk = ten_out(linux());
    let (at, _) = time_out(&mut talk);
    talk.given(at + 100, "1:1 ack 1001", &segments(10_001, 2));
    let sent = talk.hears(at + 200, "1:1 ack 1001 sack 10001-11001");
    assert!(sent.starts_with("1001:2001 "), "{sent}");
    ssthresh(&talk, Some(5_000));
    spurious(&talk, 0, 0);
}

/// The same, after which an original arrives: once the loss is known to be real, nothing of it is in doubt
/// (`tcp_process_loss` clears `frto`).
#[test]
fn f_rto_is_over_once_the_loss_was_real() {
    let mut talk = ten_out(linux());
    let (at, _) = time_out(&mut talk);
    talk.given(at + 100, "1:1 ack 1001", &segments(10_001, 2));
    talk.hears(at + 200, "1:1 ack 1001 sack 10001-11001");
    talk.hears(at + 210, "1:1 ack 1001 sack 9001-11001");
    ssthresh(&talk, Some(5_000));
    spurious(&talk, 0, 0);
}

/// RFC 5682, 3.1, step 1, and `tcp_enter_loss`: a first time-out in fast recovery is not in doubt. Given
/// an original that arrives after it, expect the reduction to stay.
#[test]
fn f_rto_does_not_doubt_a_timeout_in_fast_recovery() {
    let mut talk = ten_out(linux());
    talk.hears(200, "1:1 ack 1 sack 1001-4001");
    ssthresh(&talk, Some(5_000));
    let (at, _) = time_out(&mut talk);
    talk.hears(at + 10, "1:1 ack 1 sack 1001-5001");
    ssthresh(&talk, Some(5_000));
    spurious(&talk, 0, 0);
}

/// `tcp_xmit_recovery`: where no new data can leave, retransmissions go. The peer's window has 400 bytes of
/// room, which is no segment.
#[test]
fn f_rto_holds_nothing_back_in_vain() {
    let mut talk = Talk::new(linux()).peer_window(10_400);
    talk.call(0, "opens", Endpoint::open);
    talk.hears(100, "S 0:1 ack 1 mss 1000 sackok");
    talk.writes(100, 20_000, &segments(1, 10));
    let (at, _) = time_out(&mut talk);
    talk.given(at + 100, "1:1 ack 1001 win 9400", &segments(1_001, 2));
}

/// Step 2.b without new data: conventional recovery at once.
#[test]
fn f_rto_needs_new_data() {
    let mut talk = Talk::connected(linux());
    talk.writes(100, 10_000, &segments(1, 10));
    let (at, _) = time_out(&mut talk);
    talk.given(at + 100, "1:1 ack 1001", &segments(1_001, 2));
    ssthresh(&talk, Some(5_000));
}

/// What follows the RFCs retransmits after a time-out, and undoes nothing.
#[test]
fn the_rfcs_undo_nothing() {
    let config = Config { follows: Follows::Rfc, timestamps: true, ..linux() };
    let mut talk = ten_out(config);
    let (at, _) = time_out(&mut talk);
    let sent = talk.hears(at + 10, "1:1 ack 989 ts 9/100");
    assert!(sent.starts_with("989:1977 "), "{sent}");
    ssthresh(&talk, Some(4_940));
    spurious(&talk, 0, 0);
}

/// `tcp_try_undo_dsack`: three segments overtook the first, which was retransmitted. After recovery the peer
/// reports that it got it twice. Given a threshold of 5, expect the window of ten again.
#[test]
fn a_d_sack_undoes_a_fast_recovery() {
    for (rack_tlp, prr) in [(false, false), (true, true)] {
        let mut talk = ten_out(Config { rack_tlp, prr, ..linux() });
        talk.hears(200, "1:1 ack 1 sack 1001-4001");
        ssthresh(&talk, Some(5_000));
        let max = talk.endpoint.sender().max();
        talk.hears(250, &format!("1:1 ack {max}"));
        talk.window(5_000);
        talk.hears(300, &format!("1:1 ack {max} sack 1-1001"));
        window_is_back(&talk, 1_000);
        spurious(&talk, 0, 1);
    }
}

/// The same where the peer sends data, which carries the report, while nothing is outstanding here.
#[test]
fn a_d_sack_on_data_undoes_a_fast_recovery() {
    let mut talk = ten_out_of_ten(linux());
    talk.hears(200, "1:1 ack 1 sack 1001-4001");
    ssthresh(&talk, Some(5_000));
    talk.hears(250, "1:1 ack 10001");
    talk.window(5_000);
    talk.hears(300, "1:989 ack 10001 sack 1-1001");
    window_is_back(&talk, 1_000);
    spurious(&talk, 0, 1);
}

/// `tcp_try_undo_dsack` in fast recovery: the report comes before the recovery ends.
#[test]
fn a_d_sack_undoes_a_fast_recovery_under_way() {
    let mut talk = ten_out(linux());
    talk.hears(200, "1:1 ack 1 sack 1001-4001");
    talk.hears(210, "1:1 ack 4001");
    ssthresh(&talk, Some(5_000));
    talk.hears(220, "1:1 ack 4001 sack 1-1001");
    window_is_back(&talk, 1_000);
    spurious(&talk, 0, 1);
}

/// `tcp_dsack_seen`: more segments cannot have arrived twice than were retransmitted. Given one and a
/// report of two, expect the reduction to stay.
#[test]
fn a_dubious_d_sack_undoes_nothing() {
    let mut talk = ten_out(linux());
    talk.hears(200, "1:1 ack 1 sack 1001-4001");
    let max = talk.endpoint.sender().max();
    talk.hears(250, &format!("1:1 ack {max}"));
    talk.hears(300, &format!("1:1 ack {max} sack 1-2001"));
    ssthresh(&talk, Some(5_000));
    spurious(&talk, 0, 0);
}

/// Two retransmissions of which one was a duplicate leave the reduction.
#[test]
fn a_loss_among_the_retransmissions_keeps_the_reduction() {
    let mut talk = ten_out(linux());
    talk.hears(200, "1:1 ack 1 sack 1001-2001 sack 4001-9001");
    talk.hears(210, "1:1 ack 1 sack 1001-2001 sack 4001-10001");
    talk.hears(220, "1:1 ack 1 sack 1001-2001 sack 4001-12001");
    talk.compare("at least two retransmissions", true, |endpoint| {
        endpoint.sender().counters().retransmitted_segments >= 2
    });
    let max = talk.endpoint.sender().max();
    talk.hears(300, &format!("1:1 ack {max}"));
    talk.hears(310, &format!("1:1 ack {max} sack 1-1001"));
    ssthresh(&talk, Some(5_000));
    spurious(&talk, 0, 0);
}

/// `tcp_try_undo_partial`: the late original fills the hole, as its timestamp shows.
#[test]
fn a_timestamp_undoes_a_fast_recovery() {
    let mut talk = ten_out(Config { timestamps: true, ..linux() });
    let sent = talk.hears(200, "1:1 ack 1 sack 989-3953 ts 9/100");
    assert!(sent.starts_with("1:989 "), "{sent}");
    ssthresh(&talk, Some(4_940));
    talk.hears(210, "1:1 ack 3953 ts 9/100");
    window_is_back(&talk, 988);
    spurious(&talk, 0, 1);
}

/// `tcp_try_undo_recovery`: the ACK with which the recovery ends shows it.
#[test]
fn a_timestamp_undoes_a_fast_recovery_at_its_end() {
    let mut talk = ten_out(Config { timestamps: true, ..linux() });
    talk.hears(200, "1:1 ack 1 sack 989-3953 ts 9/100");
    ssthresh(&talk, Some(4_940));
    // Ten segments of 988 bytes were out when it began.
    talk.hears(210, "1:1 ack 9881 ts 9/100");
    window_is_back(&talk, 988);
    spurious(&talk, 0, 1);
}

/// RFC 8985, 6.2, step 4: a D-SACK doubles the reordering window, a quarter of the smallest round trip.
/// Given a segment overtaken by one alone, sent at 300 with a round trip of 100 ms, expect it to be
/// lost at 300 + 100 + 2 * 25, and at 425 without the D-SACK.
#[test]
fn a_d_sack_lengthens_the_reordering_window() {
    for d_sack in [false, true] {
        let config = Config { follows: Follows::Rfc, rack_tlp: true, ..linux() };
        let mut talk = ten_out(config);
        talk.hears(200, "1:1 ack 1 sack 1001-4001");
        if d_sack {
            talk.hears(250, "1:1 ack 4001");
            talk.hears(250, "1:1 ack 4001 sack 1-1001");
        }
        let max = u32::try_from(talk.endpoint.sender().max()).expect("small");
        talk.hears(300, &format!("1:1 ack {max}"));
        talk.hears(400, &format!("1:1 ack {max} sack {}-{}", max + 1_000, max + 2_000));
        talk.timer(if d_sack { 450 } else { 425 }, &segments(max, 1));
    }
}
