//! Vegas and Westwood+ over whole links.
//!
//! 10 Mbit/s and 100 ms hold 125,000 bytes, 83 frames of 1500.

use super::bbr::{BDP, LINK, host, mean_queue, share_of_link};
use super::bounds::plan;
use super::{Path, column, run, to_f64};

/// Given one Vegas flow, expect a full link and a mean queue of one to five frames: Vegas keeps two
/// to four segments queued, an ACK for two segments adds one on average, and the frame being
/// transmitted does not count. CUBIC fills most of the queue.
#[test]
fn vegas_keeps_a_few_segments_in_the_queue() {
    let outcome = run(&plan(LINK, &host("vegas"), 1), 1);
    let (share, frames) = (share_of_link(&outcome, LINK), mean_queue(&outcome) / 1_500.0);
    assert!(share >= 0.97, "{share}");
    assert!((1.0..=5.0).contains(&frames), "{frames}");
    let cubic = mean_queue(&run(&plan(LINK, &host("cubic"), 1), 1)) / 1_500.0;
    assert!(cubic > 5.0 * frames, "{cubic}");
}

/// Given random loss of 0.1 %, expect Reno's mean window to be 1.22 / sqrt(0.001) = 39 of the
/// link's 83 segments (Mathis et al., 1997): 46 %. Westwood+ reduces its window to its rate times
/// the minimum RTT: without a queue, the data that it had in flight. Every 1000 / 83 = 12 round
/// trips it sends at half the rate for a recovery of up to two round trips: 1/24 to 2/24 are
/// lost, so above 85 % remain.
#[test]
fn random_loss_does_not_slow_westwood() {
    let path = Path { loss: 1e-3, seconds: 120, ..LINK };
    for (control, min, max) in [("westwood", 0.85, 1.0), ("newreno", 0.35, 0.6)] {
        let outcome = run(&plan(path, &host(control), 1), 1);
        let share = share_of_link(&outcome, path);
        assert!((min..=max).contains(&share), "{control}: {share}");
    }
}

/// Given a queue of one BDP and no other losses, expect Westwood+ to reduce its window from two BDP
/// to one, as Reno does, and to keep the link full.
#[test]
fn westwood_keeps_the_link_full_after_a_queue_overflow() {
    let outcome = run(&plan(LINK, &host("westwood"), 1), 1);
    let share = share_of_link(&outcome, LINK);
    assert!(share >= 0.95, "{share}");
    let lost = column(outcome.table("flows").expect("there"), "retransmitted_segments")[0];
    assert!(lost > 0 && mean_queue(&outcome) <= to_f64(BDP), "{lost}");
}
