//! BBR and Hybla over whole links: goodput, queue and losses.
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

/// Given one BBR flow, expect more than 90 % of the link: it paces at 99 % of the bandwidth,
/// PROBE_RTT takes 3 to 4 % (200 ms and a round every 10 s), and the link can be idle in the phase
/// of gain 3/4. The queue reaches a quarter of the BDP at the end of one phase in eight and drains
/// in the next: 0.03 BDP on average, plus bursts. CUBIC fills at least three quarters of the queue.
#[test]
fn bbr_fills_the_link_but_not_the_queue() {
    let outcome = run(&plan(LINK, &host("bbr"), 1), 1);
    let (share, queue) = (share_of_link(&outcome, LINK), mean_queue(&outcome) / to_f64(BDP));
    assert!(share >= 0.9, "{share}");
    assert!(queue <= 0.1, "{queue}");
    let cubic = run(&plan(LINK, &host("cubic"), 1), 1);
    let of_cubic = mean_queue(&cubic) / to_f64(BDP);
    assert!(of_cubic >= 0.3 && of_cubic > 4.0 * queue, "{of_cubic}");
}

/// Given random loss of 1 %, expect BBR to retransmit without a change of its model, so to keep 99
/// % of its goodput: above 85 %. NewReno's window is at most 1.31 / sqrt(0.01) = 13 of the link's
/// 86 segments (Mathis et al., 1997): 16 %. CUBIC's 1.054 (0.1 / 0.01)^0.75 = 5.9 segments are
/// below Reno's window, which it therefore uses.
#[test]
fn one_percent_of_random_loss_does_not_slow_bbr() {
    let path = Path { loss: 0.01, ..LINK };
    for (control, min, max) in [("bbr", 0.85, 0.99), ("newreno", 0.05, 0.18), ("cubic", 0.05, 0.25)]
    {
        let share = share_of_link(&run(&plan(path, &host(control), 1), 1), path);
        assert!((min..=max).contains(&share), "{control}: {share}");
    }
}

/// Given the same loss over a geostationary path of 600 ms, expect about 90 % less the losses: a
/// round in PROBE_RTT takes 0.6 of 10 s.
#[test]
fn probe_rtt_costs_bbr_goodput_on_a_geostationary_path() {
    let path = Path { rtt_ms: 600, loss: 0.01, queue_bytes: Some(6 * BDP), seconds: 120, ..LINK };
    let outcome = run(&plan(path, &host("bbr"), 1), 1);
    let share = steady_rate(&outcome, 0, path, 0.75) / FULL;
    assert!((0.8..=0.95).contains(&share), "{share}");
}

/// Given two BBR flows, expect them to converge to equal shares by synchronised PROBE_RTT phases:
/// Jain's index is at least 0.9 over five minutes, and they fill the link. Their queue is at most
/// one BDP, because each has up to twice the BDP of its share in flight.
#[test]
fn two_bbr_flows_share_the_link() {
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

/// Given a queue of a fifth of the BDP (17 of 86 segments), expect losses but full goodput. STARTUP
/// has up to 2.89 BDP in flight, of which 1.2 fit: for three rounds up to 1.7 BDP are lost (437
/// segments). Then the phase of gain 5/4 has up to 30 segments above the BDP in flight (1.25 BDP,
/// three bursts of two, and two more), of which 13 do not fit, in each of some 60 cycles (0.87 s:
/// eight round trips and the queue; and PROBE_RTT). Bursts and delayed ACKs add some.
#[test]
fn a_short_queue_costs_losses_but_no_goodput() {
    let path = Path { queue_bytes: Some(BDP / 5), ..LINK };
    let outcome = run(&plan(path, &host("bbr"), 1), 1);
    let share = share_of_link(&outcome, path);
    assert!(share >= 0.9, "{share}");
    let retransmitted = column(outcome.table("flows").expect("there"), "retransmitted_segments")[0];
    assert!((60 * 11..437 + 66 * 16).contains(&retransmitted), "{retransmitted}");
}

/// Given random loss and an RTT of 500 ms, expect Hybla's window to be rho = 500 / 25 = 20
/// times Reno's: it grows by rho^2 segments per round trip, so its mean is rho 1.22 / sqrt(p)
/// (Mathis et al., 1997). A round in recovery adds no growth: one of the W/2 = 20 rounds of Reno's
/// cycle, but at most one of two of Hybla's, whose cycle has as many packets in 1/rho of the
/// rounds. That is a factor of at least sqrt(1/2), so 0.7 to 1 times rho, with a tolerance of 10 %
/// for random losses.
#[test]
fn the_window_of_hybla_is_rho_times_that_of_reno() {
    let path = Path { rtt_ms: 500, loss: 1e-3, rate_bps: 1_000_000_000, seconds: 600, ..CLEAR };
    let each = tcp(json!({"congestion_control": "hybla", "prr": true, "rack_tlp": true}));
    let outcome = run(&plan(path, &each, 1), 7);
    let segments = steady_rate(&outcome, 0, path, 0.9) * 0.5 / MSS;
    let of_reno = 1.25 / path.loss.sqrt();
    let ratio = segments / of_reno / 20.0;
    assert!((0.63..=1.1).contains(&ratio), "{segments} and {of_reno}: {ratio}");
}
