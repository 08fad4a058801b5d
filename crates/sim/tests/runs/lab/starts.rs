//! Random delays of the starts of flows.

use bentpipe_sim::Outcome;
use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, SECOND, column, flow, plan, run};

/// The interval of G.711 datagrams: 160 bytes at 64 kbit/s.
const INTERVAL_NS: u64 = 20 * MILLI;

fn call(seconds: u64) -> Value {
    json!({
        "kind": "constant_rate", "rate_bps": 64_000, "payload_bytes": 160,
        "duration_ns": seconds * SECOND,
    })
}

fn jittered(mut flow: Value, jitter_ns: u64) -> Value {
    flow["start_jitter_ns"] = json!(jitter_ns);
    flow
}

/// `count` calls of a second in a run of two, which start within `jitter_ns` from 100 ms on.
fn calls(count: usize, jitter_ns: u64) -> Vec<Value> {
    let call = |n| flow(&format!("call-{n}"), 0, "forward", 100 * MILLI, &call(1));
    (0..count).map(|n| jittered(call(n), jitter_ns)).collect()
}

fn column_of_flows(outcome: &Outcome, name: &str) -> Vec<u64> {
    column(outcome.table("flows").expect("there"), name)
}

const TWO_SECONDS: Path = Path { rate_bps: 10_000_000, seconds: 2, ..CLEAR };

/// Given 20 calls with a jitter of one interval, expect each to start within it, no two at the same
/// nanosecond, with the same starts for the same seed and others for another seed. A call of one
/// second sends 50 datagrams wherever it starts.
#[test]
fn flows_start_within_their_jitter() {
    let starts = |seed| {
        let outcome = run(&plan(TWO_SECONDS, 1, calls(20, INTERVAL_NS)), seed);
        assert_eq!(column_of_flows(&outcome, "received_segments"), [50; 20]);
        column_of_flows(&outcome, "start_ns")
    };
    let mut drawn = starts(1);
    assert_eq!(drawn, starts(1));
    assert_ne!(drawn, starts(2));
    let within = 100 * MILLI..100 * MILLI + INTERVAL_NS;
    assert!(drawn.iter().all(|start| within.contains(start)), "{drawn:?}");
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 20);
}

/// Given calls beside one with jitter, expect them to start when they did without it, and a call
/// without jitter to start on time.
#[test]
fn the_jitter_of_a_flow_changes_no_other_flow() {
    let mut flows = calls(3, INTERVAL_NS);
    let before = column_of_flows(&run(&plan(TWO_SECONDS, 1, flows.clone()), 1), "start_ns");
    flows.insert(1, flow("on time", 0, "forward", 5 * MILLI, &call(1)));
    let after = column_of_flows(&run(&plan(TWO_SECONDS, 1, flows), 1), "start_ns");
    assert_eq!(after, [before[0], 5 * MILLI, before[1], before[2]]);
}

/// Given a call until the end of the run, expect it to send until then, and to be over: jitter does
/// not move its end beyond that of the run.
#[test]
fn jitter_moves_no_end_beyond_the_run() {
    let path = Path { seconds: 3, ..TWO_SECONDS };
    let late = jittered(flow("late", 0, "forward", 0, &call(3)), INTERVAL_NS);
    let outcome = run(&plan(path, 1, vec![late]), 1);
    let sent = column_of_flows(&outcome, "sent_segments");
    assert_eq!(sent, [150]);
    let finished_ns = column_of_flows(&outcome, "finished_ns")[0];
    assert!((2_980 * MILLI..3_000 * MILLI).contains(&finished_ns), "{finished_ns}");
}
