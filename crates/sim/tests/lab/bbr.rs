//! BBR and Hybla over whole links: what they are for, and what they cost.
//!
//! 10 Mbit/s and 100 ms hold 125,000 bytes; of a frame of 1500 bytes 1460 are payload.

use bentpipe_sim::Outcome;
use serde_json::{Value, json};

use super::bounds::{plan, steady_rate};
use super::{CLEAR, MSS, Path, SECOND, column, run, tcp, to_f64};

pub(super) const BDP: u64 = 125_000;
pub(super) const LINK: Path =
    Path { rate_bps: 10_000_000, queue_bytes: Some(BDP), seconds: 60, ..CLEAR };
const FULL: f64 = 1_250_000.0 * MSS / 1_500.0;

pub(super) fn host(control: &str) -> Value {
    tcp(json!({
        "congestion_control": control, "prr": true, "rack_tlp": true,
        "delayed_ack_segments": 2, "delayed_ack_timeout_ns": 40_000_000,
    }))
}

/// Goodput after the first five seconds, of what the link can carry.
pub(super) fn share_of_link(outcome: &Outcome, path: Path) -> f64 {
    steady_rate(outcome, 0, path, 55.0 / 60.0) / FULL
}

/// The mean queue of the forward direction after five seconds, in bytes.
pub(super) fn mean_queue(outcome: &Outcome) -> f64 {
    let samples = outcome.table("direction_samples").expect("sampled");
    let (times, directions) = (column(samples, "time_ns"), column(samples, "direction"));
    let queues = column(samples, "queue_bytes");
    let late = (0..samples.len()).filter(|&row| times[row] > 5 * SECOND && directions[row] == 0);
    let late: Vec<_> = late.map(|row| queues[row]).collect();
    to_f64(late.iter().sum()) / to_f64(late.len() as u64)
}

/// BBR alone, on paper: its pace is 99 % of the bandwidth over the cycle but for the 2 % of a visit
/// to PROBE_RTT each 10 s (200 ms and a round, in which next to nothing is sent, so 3 to 4 %), less
/// what the phase of 3/4 leaves idle when the queue is empty before: above 90 %. The queue is a
/// quarter of the BDP at the end of one phase of eight and falls in the next: a sixteenth of that
/// on the mean, 0.03 BDP, and the bursts. CUBIC fills three quarters of the queue and more.
#[test]
fn bbr_fills_the_link_and_not_the_queue() {
    let outcome = run(&plan(LINK, &host("bbr"), 1), 1);
    let (share, queue) = (share_of_link(&outcome, LINK), mean_queue(&outcome) / to_f64(BDP));
    assert!(share >= 0.9, "{share}");
    assert!(queue <= 0.1, "{queue}");
    let cubic = run(&plan(LINK, &host("cubic"), 1), 1);
    let of_cubic = mean_queue(&cubic) / to_f64(BDP);
    assert!(of_cubic >= 0.3 && of_cubic > 4.0 * queue, "{of_cubic}");
}

/// One packet in a hundred lost at random, on paper: BBR resends it and its model does not change,
/// so it has 99 % of what it had: above 85 %. NewReno's window is 1.31 / sqrt(0.01) = 13 segments
/// at the most (Mathis and others 1997) of the 86 that the link holds: 16 %. CUBIC's 1.054 (0.1 /
/// 0.01)^0.75 = 5.9 are below Reno's, which it follows.
#[test]
fn one_percent_of_random_loss_does_not_slow_bbr() {
    let path = Path { loss: 0.01, ..LINK };
    for (control, min, max) in [("bbr", 0.85, 0.99), ("newreno", 0.05, 0.18), ("cubic", 0.05, 0.25)]
    {
        let share = share_of_link(&run(&plan(path, &host(control), 1), 1), path);
        assert!((min..=max).contains(&share), "{control}: {share}");
    }
}

/// The same over a geostationary path, 600 ms: a round in PROBE_RTT takes 0.6 s of 10, so 90 % and
/// the losses are left.
#[test]
fn a_geostationary_path_costs_bbr_its_probe_of_the_round_trip() {
    let path = Path { rtt_ms: 600, loss: 0.01, queue_bytes: Some(6 * BDP), seconds: 120, ..LINK };
    let outcome = run(&plan(path, &host("bbr"), 1), 1);
    let share = steady_rate(&outcome, 0, path, 0.75) / FULL;
    assert!((0.8..=0.95).contains(&share), "{share}");
}

/// Two flows of BBR find their share by the phases in which both have drained the queue (PROBE_RTT,
/// in step): Jain's index is at least 0.9 over five minutes, and together they fill the link. Their
/// queue is up to one BDP: each has up to two of its own share in flight.
#[test]
fn two_flows_of_bbr_share() {
    let path = Path { seconds: 300, ..LINK };
    for seed in 1..4 {
        let outcome = run(&plan(path, &host("bbr"), 2), seed);
        let rates = [0, 1].map(|flow| steady_rate(&outcome, flow, path, 0.8));
        let sum = rates[0] + rates[1];
        let jain = sum * sum / (2.0 * (rates[0] * rates[0] + rates[1] * rates[1]));
        assert!(jain > 0.9, "seed {seed}: {rates:?}");
        assert!((0.9..=1.0).contains(&(sum / FULL)), "seed {seed}: {rates:?}");
        assert!(mean_queue(&outcome) <= 1.05 * to_f64(BDP));
    }
}

/// A queue of a fifth of the BDP (17 of 86 segments), on paper: STARTUP has up to 2.89 BDP in
/// flight, of which 1.2 find room, so for three rounds up to 1.7 BDP are lost (437 segments). Then
/// the phase of 5/4 wants 1.25 BDP and the allowance of three bursts of two and two more in flight,
/// 30 segments above BDP: 13 find no room, in each of some 60 cycles of eight round trips and the
/// queue (0.87 s) and visits to PROBE_RTT; bursts and delayed ACKs add some. Losses do not slow it.
#[test]
fn a_short_queue_costs_losses_and_not_goodput() {
    let path = Path { queue_bytes: Some(BDP / 5), ..LINK };
    let outcome = run(&plan(path, &host("bbr"), 1), 1);
    let share = share_of_link(&outcome, path);
    assert!(share >= 0.9, "{share}");
    let again = column(outcome.table("flows").expect("there"), "retransmitted_segments")[0];
    assert!((60 * 11..437 + 66 * 16).contains(&again), "{again}");
}

/// Hybla is to make a long path as fast as one of 25 ms: rho^2 segments more a round trip and half
/// of the window less for each of 1/p segments make rho 1.22 / sqrt(p), rho times Reno's (Mathis
/// and others 1997). 500 ms have rho 20. The round in which a loss is repaired adds nothing: of
/// Reno's cycle of W/2 = 20 rounds that is one, of Hybla's, which is as many packets in 1/rho of
/// the rounds, one of two at most: a factor of sqrt(1/2) at the worst. So 0.7 to 1 of rho times
/// Reno's, and 10 % for chance.
#[test]
fn hybla_has_the_window_of_a_short_path_times_rho() {
    let path = Path { rtt_ms: 500, loss: 1e-3, rate_bps: 1_000_000_000, seconds: 600, ..CLEAR };
    let each = tcp(json!({"congestion_control": "hybla", "prr": true, "rack_tlp": true}));
    let outcome = run(&plan(path, &each, 1), 7);
    let segments = steady_rate(&outcome, 0, path, 0.9) * 0.5 / MSS;
    let of_reno = 1.25 / path.loss.sqrt();
    let ratio = segments / of_reno / 20.0;
    assert!((0.63..=1.1).contains(&ratio), "{segments} and {of_reno}: {ratio}");
}
