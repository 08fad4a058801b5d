//! Lab notebook: whole runs compared with figures derived on paper.
//!
//! Unless a test says otherwise, the link is fast and without errors, so that only the mechanism
//! under test matters; hosts acknowledge every segment, and frames have no overhead.

mod bbr;
mod bounds;
mod channels;
mod conferences;
mod delay_and_rate;
mod ecn;
mod memory;
mod pages;
mod peps;
mod red;
mod requests;
mod sharing;
mod starts;
mod videos;

use crate::network::{network, plain, put};
use bentpipe_sim::record::Table;
use bentpipe_sim::{Outcome, Plan, Simulation};
use serde_json::{Value, json};

const MSS: f64 = 1_460.0;
const FRAME_BITS: f64 = 1_500.0 * 8.0;
const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

/// A host with unlimited buffers, with `change` applied.
fn tcp(change: Value) -> Value {
    let mut tcp = json!({
        "mss_bytes": 1_460, "initial_window_segments": 10, "congestion_control": "newreno",
        "sack": true, "timestamps": false, "window_scaling": true,
        "send_buffer_bytes": 1 << 28, "receive_buffer_bytes": 1 << 28,
        "receive_buffer_initial_bytes": 1 << 28,
        "delayed_ack_segments": 1, "delayed_ack_timeout_ns": 1_000_000, "quick_ack_segments": 0,
        "receive_buffer_counts": "window", "stack": "rfc",
        "rto_initial_ns": SECOND, "rto_min_ns": SECOND, "rto_min_bounds": "timeout",
        "rto_max_ns": 60 * SECOND, "clock_granularity_ns": 1_000_000,
        "slow_start_segments_per_ack": 1, "avoidance_counting": "bytes",
        "limited_transmit": true, "rack_tlp": false, "prr": false, "hystart": false, "ecn": false,
    });
    merge(&mut tcp, change);
    tcp
}

fn merge(base: &mut Value, change: Value) {
    let (Value::Object(base), Value::Object(change)) = (base, change) else {
        panic!("both are objects")
    };
    for (name, value) in change {
        assert!(base.insert(name, value).is_some(), "a field that does not exist");
    }
}

/// The link and the duration of a run.
#[derive(Clone, Copy)]
struct Path {
    rate_bps: u64,
    rtt_ms: u64,
    framing_bytes: u64,
    queue_bytes: Option<u64>,
    /// Loss probability of a frame with a full segment in the forward direction.
    loss: f64,
    seconds: u64,
}

const CLEAR: Path = Path {
    rate_bps: 10_000_000_000,
    rtt_ms: 100,
    framing_bytes: 0,
    queue_bytes: None,
    loss: 0.0,
    seconds: 60,
};

/// One direction of the hop, with the loss probability of a frame with a full segment.
fn direction(path: Path, loss: f64) -> Value {
    let limit = match path.queue_bytes {
        None => json!({"unit": "unlimited"}),
        Some(bytes) => json!({"unit": "bytes", "value": bytes}),
    };
    // Bits fail independently: (1 - ber)^bits = 1 - loss.
    let bits = FRAME_BITS + 8.0 * to_f64(path.framing_bytes);
    let ber = -((-loss).ln_1p() / bits).exp_m1();
    json!({
        "rate_bps": {"kind": "constant", "value": path.rate_bps},
        "jitter_ns": 0, "delay_ns": {"kind": "constant", "value": path.rtt_ms * 500_000},
        "framing": {
            "header_bytes": path.framing_bytes, "min_bytes": 0, "cells": null,
            "expansion": [1, 1], "inter_frame_bytes": 0,
        },
        "queue": {"discipline": "drop_tail", "limit": limit},
        "channel": {"kind": "bit_errors", "bit_error_rate": ber},
    })
}

/// A flow of a terminal that starts at `start_ns`.
fn flow(name: &str, terminal: usize, heading: &str, start_ns: u64, workload: &Value) -> Value {
    json!({
        "name": name, "terminal": terminal, "direction": heading, "start_ns": start_ns,
        "start_jitter_ns": 0, "priority": 0, "splittable": true, "workload": workload,
    })
}

/// A plan with `terminals` terminals, sampled every quarter of a round trip.
fn plan(path: Path, terminals: usize, flows: Vec<Value>) -> Value {
    let plan = json!({
        "format_version": 4, "stop_ns": path.seconds * SECOND, "packet_events": true,
        "sample_interval_ns": path.rtt_ms * 250_000, "hosts": [], "flows": flows,
    });
    let terminals = (1..=terminals).map(|n| [plain(n), json!([]), direction(path, 0.0)]);
    put(plan, network(&json!([]), &direction(path, path.loss), terminals.collect()))
}

fn run(plan: &Value, seed: u64) -> Outcome {
    let plan = Plan::parse(&plan.to_string()).expect("a valid plan");
    let mut simulation = Simulation::new(&plan, seed);
    while simulation.advance() {}
    simulation.finish().expect("conservation holds")
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

/// A column of integers without missing values.
fn column(table: &Table, name: &str) -> Vec<u64> {
    let column = table.column(name).expect("the column exists");
    (0..table.len()).map(|row| column.integer(row).expect("never missing")).collect()
}
