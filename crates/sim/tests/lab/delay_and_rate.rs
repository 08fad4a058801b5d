//! Vegas and Westwood+ over whole links: what they are for.
//!
//! 10 Mbit/s and 100 ms hold 125,000 bytes, 83 frames of 1500.

use super::bbr::{BDP, LINK, host, mean_queue, share_of_link};
use super::bounds::plan;
use super::{Path, column, run, to_f64};

/// Vegas keeps two to four segments in the queue, so that the link is never idle and nothing is lost;
/// an ACK for two segments adds one to what is in the queue on the mean, and the frame that is being
/// sent is not in it: one to five frames. CUBIC fills most of the queue.
#[test]
fn vegas_keeps_a_few_segments_in_the_queue() {
    let outcome = run(&plan(LINK, &host("vegas"), 1), 1);
    let (share, frames) = (share_of_link(&outcome, LINK), mean_queue(&outcome) / 1_500.0);
    assert!(share >= 0.97, "{share}");
    assert!((1.0..=5.0).contains(&frames), "{frames}");
    let cubic = mean_queue(&run(&plan(LINK, &host("cubic"), 1), 1)) / 1_500.0;
    assert!(cubic > 5.0 * frames, "{cubic}");
}

/// One packet in a thousand lost at random, on paper: Reno's mean window is 1.22 / sqrt(0.001) = 39
/// segments of the 83 that the link holds (Mathis and others 1997), 46 %. Westwood+ falls to its rate
/// times the smallest round trip, which is what it had in flight as long as there is no queue, so that
/// its window is that of the link. Once in 1000 / 83 = 12 round trips it halves for the length of
/// a recovery, which takes up to two: 1/24 to 2/24 are lost, above 85 % left.
#[test]
fn random_loss_does_not_slow_westwood() {
    let path = Path { loss: 1e-3, seconds: 120, ..LINK };
    for (control, min, max) in [("westwood", 0.85, 1.0), ("newreno", 0.35, 0.6)] {
        let outcome = run(&plan(path, &host(control), 1), 1);
        let share = share_of_link(&outcome, path);
        assert!((min..=max).contains(&share), "{control}: {share}");
    }
}

/// Without loss but by the queue (one BDP), Westwood+ falls to the BDP where Reno falls to half of two
/// BDP, the same: both keep the link full.
#[test]
fn a_full_queue_leaves_westwood_what_the_path_holds() {
    let outcome = run(&plan(LINK, &host("westwood"), 1), 1);
    let share = share_of_link(&outcome, LINK);
    assert!(share >= 0.95, "{share}");
    let lost = column(outcome.table("flows").expect("there"), "retransmitted_segments")[0];
    assert!(lost > 0 && mean_queue(&outcome) <= to_f64(BDP), "{lost}");
}
