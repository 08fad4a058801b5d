//! The memory limit: when a run with unbounded memory stops, and what it returns.

use bentpipe_core::time::Instant;
use bentpipe_sim::memory::PACKET_BYTES;
use bentpipe_sim::{MemoryEstimate, Outcome, Plan, Simulation};
use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, SECOND, column, flow, plan, tcp};

/// Small, so that the tests are fast; real limits are a thousand times as large.
const LIMIT: u64 = 20_000_000;
/// A slice ends after 65,536 calls of engines, each of which adds at most one packet or three
/// events.
const SLICE_BYTES: u64 = 65_536 * 3 * 200;

fn limited(plan: &Value, limit: u64) -> Outcome {
    let plan = Plan::parse(&plan.to_string()).expect("a valid plan");
    let mut simulation = Simulation::new(&plan, 1).with_memory_limit(limit);
    while simulation.advance() {}
    simulation.finish().expect("conservation holds")
}

fn estimate(plan: &Value) -> MemoryEstimate {
    MemoryEstimate::of(&Plan::parse(&plan.to_string()).expect("a valid plan"))
}

/// Expects a run to stop within a slice of reaching the limit, and at the same event in a second
/// run.
fn stops_at_the_limit(plan: &Value) -> Outcome {
    let outcome = limited(plan, LIMIT);
    assert!(outcome.memory_exhausted);
    assert!(!outcome.completed);
    let max = outcome.memory_bytes_max;
    assert!((LIMIT..LIMIT + SLICE_BYTES).contains(&max), "{max}");
    assert!(outcome.end > Instant::START);
    assert_eq!(limited(plan, LIMIT), outcome, "the same plan, seed and limit");
    outcome
}

fn datagrams(rate_bps: u64) -> Value {
    json!({
        "kind": "constant_rate", "rate_bps": rate_bps, "payload_bytes": 972,
        "duration_ns": 90_000 * SECOND,
    })
}

/// A plan of one day without samples, with `change` applied.
fn long(path: Path, workload: &Value, change: impl FnOnce(&mut Value)) -> Value {
    let mut plan =
        plan(Path { seconds: 86_400, ..path }, 1, vec![flow("a", 0, "forward", 0, workload)]);
    plan["sample_interval_ns"] = Value::Null;
    plan["packet_events"] = false.into();
    change(&mut plan);
    plan
}

/// Given 2 Mbit/s of 1,000-byte packets on a link of 1 Mbit/s with an unlimited queue, expect the
/// queue to grow by 125 packets per second, and the run to stop when its packets reach the limit.
#[test]
fn an_unlimited_queue_under_overload() {
    let plan = long(Path { rate_bps: 1_000_000, ..CLEAR }, &datagrams(1_944_000), |_| ());
    let outcome = stops_at_the_limit(&plan);
    let seconds = (LIMIT / PACKET_BYTES) / 125;
    let end = outcome.end.as_nanos() / SECOND;
    assert!((seconds - 2..seconds + 300).contains(&end), "{end} s, not {seconds}");
    let held = column(outcome.table("directions").expect("there"), "held_packets")[0];
    assert!(held * PACKET_BYTES > LIMIT * 9 / 10, "packets take most of the memory: {held}");
    assert!(estimate(&plan).packets > LIMIT, "and the estimate says so");
}

/// Given 1 Gbit/s and a delay of ten days, expect every transmitted packet to be in flight.
#[test]
fn one_gigabit_per_second_with_ten_days_of_delay() {
    let delay = 10 * 86_400 * SECOND;
    let path = Path { rate_bps: 1_000_000_000, ..CLEAR };
    let plan = long(path, &datagrams(900_000_000), |plan| {
        plan["directions"][0]["delay_ns"]["value"] = delay.into();
    });
    let outcome = stops_at_the_limit(&plan);
    let flows = outcome.table("flows").expect("there");
    assert_eq!(column(flows, "received_segments"), [0]);
    // The run lasts a day: 900 Mbit/s of 1,000-byte packets.
    let packets = estimate(&plan).packets / PACKET_BYTES;
    let day = 900_000_000 / (8 * 972) * 86_400;
    assert!((day * 99 / 100..day * 101 / 100).contains(&packets), "{packets}, not {day}");
}

/// Given packet events, expect three rows per packet to reach the limit.
#[test]
fn packet_events() {
    let plan = long(CLEAR, &datagrams(1_000_000), |plan| plan["packet_events"] = true.into());
    let outcome = stops_at_the_limit(&plan);
    let sent = column(outcome.table("flows").expect("there"), "sent_segments")[0];
    let rows = outcome.table("events").expect("there").len() as u64;
    assert!((3 * sent - 100..=3 * sent).contains(&rows), "{rows} rows of {sent} packets");
    assert!(estimate(&plan).events > LIMIT);
}

/// Given exchanges without think time, expect their rows to reach the limit.
#[test]
fn exchanges() {
    let host = tcp(json!({}));
    let requests = json!({
        "kind": "request_response", "request_bytes": 10,
        "response_bytes": {"kind": "constant", "value": 10},
        "think_ns": {"kind": "constant", "value": 0}, "exchanges": null,
        "keep_connection": true, "server": host, "client": host,
    });
    let plan = long(Path { rtt_ms: 0, ..CLEAR }, &requests, |_| ());
    let outcome = stops_at_the_limit(&plan);
    let done = column(outcome.table("flows").expect("there"), "exchanges")[0];
    let rows = outcome.table("exchanges").expect("there").len() as u64;
    assert!((done..=done + 1).contains(&rows), "{rows} rows, {done} finished");
    assert!(estimate(&plan).exchanges > LIMIT);
}

/// Given an hour of samples between two datagrams, expect the run to stop at a sample.
#[test]
fn samples() {
    let mut rare = datagrams(1);
    rare["payload_bytes"] = 450.into();
    let plan = long(CLEAR, &rare, |plan| plan["sample_interval_ns"] = (10 * MILLI).into());
    let outcome = stops_at_the_limit(&plan);
    let samples = outcome.table("direction_samples").expect("there");
    let times = column(samples, "time_ns");
    assert_eq!(outcome.end.as_nanos(), *times.last().expect("there"));
    assert!(estimate(&plan).samples > LIMIT);
}

/// Given a limit that is not reached, expect the outcome of a run without a limit.
#[test]
fn a_limit_that_is_not_reached_changes_nothing() {
    let plan = plan(CLEAR, 1, vec![flow("a", 0, "forward", 0, &datagrams(1_000_000))]);
    let with = limited(&plan, u64::MAX);
    assert!(!with.memory_exhausted);
    assert_eq!(with, super::run(&plan, 1));
}

/// Given a queue of 1,000 packets and a path of 0.5 s at 10 Mbit/s, expect the estimate to be their
/// sum.
#[test]
fn an_estimate_of_a_plain_path() {
    let path = Path { rate_bps: 10_000_000, rtt_ms: 1_000, queue_bytes: Some(1_000_000), ..CLEAR };
    let plan = long(path, &datagrams(19_440_000), |plan| plan["stop_ns"] = (10 * SECOND).into());
    let MemoryEstimate { packets, samples, events, exchanges, fixed } = estimate(&plan);
    // 10 Mbit/s for 0.5 s are 625 packets of 1,000 bytes.
    assert_eq!(packets, (625 + 1_000) * PACKET_BYTES);
    assert_eq!((samples, events, exchanges), (0, 0, 0));
    assert!((1_000..100_000).contains(&fixed), "{fixed}");
    let outcome = limited(&plan, packets + fixed + 100 * PACKET_BYTES);
    assert!(!outcome.memory_exhausted, "{}", outcome.memory_bytes_max);
    assert!(outcome.memory_bytes_max > packets * 9 / 10, "{}", outcome.memory_bytes_max);
}
