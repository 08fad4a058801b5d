//! Explicit congestion notification over a whole link.

use serde_json::{Value, json};

use super::bounds::{plan, steady_rate};
use super::{CLEAR, Path, column, run, tcp, to_f64};

/// 10 Mbit/s and 100 ms: 83 segments fit.
const PATH: Path = Path { rate_bps: 10_000_000, rtt_ms: 100, seconds: 60, ..CLEAR };

/// What one flow made of a queue: utilization in the second half, marked packets and what was lost.
fn outcome(queue: &Value, congestion_control: &str, ecn: bool) -> (f64, u64, u64) {
    let tcp = tcp(json!({
        "congestion_control": congestion_control, "prr": true, "rack_tlp": true, "ecn": ecn,
    }));
    let mut plan = plan(PATH, &tcp, 1);
    plan["directions"][0]["queue"] = queue.clone();
    let outcome = run(&plan, 1);
    let directions = outcome.table("directions").expect("always there");
    let of = |name: &str| column(directions, name)[0];
    let dropped =
        ["queue_full", "red", "codel"].map(|cause| of(&format!("dropped_packets_{cause}")));
    let again = column(outcome.table("flows").expect("always there"), "retransmitted_segments")[0];
    let rate = steady_rate(&outcome, 0, PATH, 0.5);
    let used = rate * 8.0 * 1_500.0 / 1_460.0 / to_f64(PATH.rate_bps);
    (used, of("marked_packets"), dropped.iter().sum::<u64>() + again)
}

/// A mark of `CoDel`, alone or for each flow, tells of a queue, so of a window of at least what fits
/// the path. A reduction leaves half of that with Reno, and the window grows by a segment a round
/// trip: 3/4 of the rate on average, at least. CUBIC keeps 0.7 of it at any time. RED's average is
/// one over 500 packets, six windows, so that a second mark may follow when the queue is gone: a
/// quarter is left, 5/8 on average, and with CUBIC 0.49. Without ECN the same queues drop.
#[test]
fn marks_replace_drops() {
    let limit = json!({"unit": "packets", "value": 1_000});
    let codel = |ecn| {
        json!({
            "discipline": "codel", "limit": limit, "target_ns": 10_000_000,
            "interval_ns": 200_000_000, "ecn": ecn,
        })
    };
    let fq_codel = |ecn| {
        json!({
            "discipline": "fq_codel", "limit": limit, "target_ns": 10_000_000,
            "interval_ns": 200_000_000, "quantum_bytes": 1_514, "queues": 16, "ecn": ecn,
        })
    };
    // The average follows a burst of slow start, at most two windows, by 160 (1 - 0.998^160) = 44
    // packets: never to where every packet is dropped, 80.
    let red = |ecn| {
        json!({
            "discipline": "red", "limit": limit, "unit": "packets", "min_threshold": 5,
            "max_threshold": 40, "max_probability": 0.1, "weight": 0.002, "gentle": true,
            "mean_packet_bytes": 1_000, "ecn": ecn,
        })
    };
    for (control, min_of_codel, min_of_red) in [("newreno", 0.75, 0.625), ("cubic", 0.7, 0.49)] {
        for (marking, dropping, min) in [
            (codel(true), codel(false), min_of_codel),
            (fq_codel(true), fq_codel(false), min_of_codel),
            (red(true), red(false), min_of_red),
        ] {
            let (used, marked, lost) = outcome(&marking, control, true);
            assert!(marked > 0 && lost == 0, "{control} {marking}: {marked} marked, {lost} lost");
            assert!((min..=1.0).contains(&used), "{control} {marking}: {used}");
            for (queue, ecn) in [(&dropping, true), (&marking, false)] {
                let (_, marked, lost) = outcome(queue, control, ecn);
                assert!(marked == 0 && lost > 0, "{control} {queue}: {marked} marked, {lost} lost");
            }
        }
    }
}
