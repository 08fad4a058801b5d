//! RED over a whole link: the effect of the mean packet size.

use serde_json::{Value, json};

use super::bbr::mean_queue;
use super::{CLEAR, Path, SECOND, flow, plan, run};

/// Given packets of 1,000 bytes that arrive at 16 Mbit/s and leave at 8 Mbit/s, expect RED to drop
/// half. The mean gap between drops is 1/(2 p) + 1/2 packets, so p = 1/3. With weight 1 and
/// thresholds of 0 and 300 kB, p is q / 300 kB times the packet size over the mean packet size: the
/// queue q is 100 packets for a mean size of 1,000 bytes, half for 500 and twice for 2,000.
#[test]
fn the_queue_of_red_is_proportional_to_the_mean_packet_size() {
    let datagrams = json!({
        "kind": "constant_rate", "rate_bps": 15_552_000, "payload_bytes": 972,
        "duration_ns": 60 * SECOND,
    });
    for (mean_packet_bytes, packets) in [(500, 50.0), (1_000, 100.0), (2_000, 200.0)] {
        let path = Path { rate_bps: 8_000_000, ..CLEAR };
        let mut plan = plan(path, 1, vec![flow("cbr", 0, "forward", 0, &datagrams)]);
        plan["packet_events"] = Value::Bool(false);
        plan["directions"][0]["queue"] = json!({
            "discipline": "red", "limit": {"unit": "unlimited"}, "unit": "bytes",
            "min_threshold": 0, "max_threshold": 300_000, "max_probability": 1.0, "weight": 1.0,
            "gentle": false, "mean_packet_bytes": mean_packet_bytes, "ecn": false,
        });
        let queued = mean_queue(&run(&plan, 1)) / 1_000.0;
        let off = queued / packets - 1.0;
        assert!(off.abs() < 0.05, "{queued:.1} packets, not {packets}, with {mean_packet_bytes}");
    }
}
