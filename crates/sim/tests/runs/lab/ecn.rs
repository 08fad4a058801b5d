//! Explicit congestion notification over a whole link.

use serde_json::{Value, json};

use super::bounds::{plan, steady_rate};
use super::{CLEAR, Path, column, run, tcp, to_f64};

/// 10 Mbit/s and 100 ms: 83 segments fit.
const PATH: Path = Path { rate_bps: 10_000_000, rtt_ms: 100, seconds: 60, ..CLEAR };

/// One flow through a queue: utilization in the second half, marked packets and retransmissions.
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
        ["queue_full", "red", "codel"].map(|cause| of(&format!("dropped_{cause}_packets")));
    let retransmitted =
        column(outcome.table("flows").expect("always there"), "retransmitted_segments")[0];
    let rate = steady_rate(&outcome, 0, PATH, 0.5);
    let used = rate * 8.0 * 1_500.0 / 1_460.0 / to_f64(PATH.rate_bps);
    (used, of("marked_packets"), dropped.iter().sum::<u64>() + retransmitted)
}

/// Given queues that mark, expect marks and no losses; given the same queues without ECN, expect
/// losses. `CoDel` and FQ-CoDel mark when there is a queue, so at a window of at least one BDP.
/// Reno halves it and then grows by a segment per round trip: at least 3/4 of the rate on average.
/// CUBIC keeps at least 0.7. RED averages over 500 packets, six windows, so a second mark can
/// follow when the queue is empty: a quarter is left, 5/8 on average, and with CUBIC 0.49.
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
    // A slow start burst of at most two windows raises the average to 160 (1 - 0.998^160) = 44
    // packets, below the 80 packets at which RED drops every packet.
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
