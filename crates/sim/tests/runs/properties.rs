//! Invariants of every run, over 2,000 random small plans: conservation (checked by `finish`),
//! the tables and columns of the schema, identical columns for the same plan and seed, also when
//! engines are woken early, counters that agree with each other, and the order of one flow's bytes:
//! acknowledged, delivered, sent.

use std::collections::BTreeMap;

use crate::network::{network, plain, put};
use crate::plans;
use bentpipe_sim::record::{Dtype, Table, Values, table_schema};
use bentpipe_sim::{Outcome, Plan, Simulation};
use proptest::prelude::*;
use proptest::test_runner::Config;
use serde_json::{Value, json};

fn run(plan: &Value, seed: u64) -> Outcome {
    let mut simulation = simulation(plan, seed);
    while simulation.advance() {
        assert!((0.0..=1.0).contains(&simulation.fraction()));
    }
    simulation.finish().expect("conservation holds")
}

/// The same run, with every engine also woken when it is not due.
fn run_eagerly(plan: &Value, seed: u64) -> Outcome {
    let mut simulation = simulation(plan, seed);
    simulation.wake_all();
    while simulation.advance() {
        simulation.wake_all();
    }
    simulation.finish().expect("conservation holds")
}

fn simulation(plan: &Value, seed: u64) -> Simulation {
    let plan = Plan::parse(&plan.to_string()).expect("the strategy makes valid plans");
    Simulation::new(&plan, seed)
}

fn column(table: &Table, name: &str) -> Vec<u64> {
    let column = table.column(name).expect("the column exists");
    (0..table.len()).map(|row| column.integer(row).expect("never missing")).collect()
}

/// The tables of the schema, and their columns: names, types and nulls, in order.
fn check_schema(plan: &Value, outcome: &Outcome) {
    let mut schema = table_schema();
    schema.retain(|table| table.name != "events" || plan["packet_events"] == true);
    let expected: Vec<_> = schema.iter().map(|table| table.name).collect();
    let written: Vec<_> = outcome.tables.iter().map(|table| table.name).collect();
    assert_eq!(written, expected);
    for (schema, table) in schema.iter().zip(&outcome.tables) {
        let expected = schema.columns.iter();
        let expected: Vec<_> =
            expected.map(|column| (column.name.as_ref(), column.dtype, column.nullable)).collect();
        let written = table.columns.iter().map(|column| {
            let (dtype, rows) = match &column.values {
                Values::U8(values) => (Dtype::U8, values.len()),
                Values::U32(values) => (Dtype::U32, values.len()),
                Values::U64(values) => (Dtype::U64, values.len()),
                Values::F64(values) => (Dtype::F64, values.len()),
            };
            assert_eq!(rows, table.len(), "{}.{}", table.name, column.name);
            (column.name.as_ref(), dtype, column.present.is_some())
        });
        assert_eq!(written.collect::<Vec<_>>(), expected, "{}", table.name);
    }
}

fn check_counters(plan: &Value, outcome: &Outcome) {
    let flows = outcome.table("flows").expect("there");
    let sent = column(flows, "sent_bytes");
    let delivered = column(flows, "delivered_bytes");
    let acked = column(flows, "acked_bytes");
    // A PEP acknowledges data before they are delivered.
    let split = column(outcome.table("legs").expect("there"), "flow");
    for flow in 0..flows.len() {
        let is_split = split.contains(&(flow as u64));
        let acked_was_delivered = acked[flow] <= delivered[flow] || is_split;
        // A participant of a conference gets what the others send.
        let others = plan["flows"][flow]["workload"]["kind"] == "conference";
        assert!(acked_was_delivered && (delivered[flow] <= sent[flow] || others), "flow {flow}");
    }
    let directions = outcome.table("directions").expect("there");
    let count = |name| column(directions, name);
    let (received, delivered) = (count("received_packets"), count("delivered_packets"));
    let causes = directions
        .columns
        .iter()
        .filter(|column| column.name.starts_with("dropped_") && column.name.ends_with("_packets"));
    let held = count("held_packets");
    for row in 0..directions.len() {
        let dropped: u64 = causes.clone().map(|cause| cause.integer(row).expect("there")).sum();
        assert_eq!(received[row], delivered[row] + dropped + held[row], "direction {row}");
    }
    assert_eq!(outcome.packet_hops, count("sent_packets").iter().sum::<u64>());
    if outcome.completed {
        assert!(held.iter().all(|&held| held == 0), "a run that ended by itself holds nothing");
    }
}

/// The steps of an exchange follow each other, and a finished one was delivered.
/// In a run that ended by itself, expect every datagram delivered or lost for a cause.
fn check_datagrams(outcome: &Outcome) {
    let flows = outcome.table("flows").expect("there");
    let column =
        |name: &str| flows.columns.iter().find(|column| column.name == name).expect("there");
    let lost: Vec<_> =
        flows.columns.iter().filter(|column| column.name.starts_with("lost_")).collect();
    for flow in 0..flows.len() {
        let Some(expected) = column("expected_segments").integer(flow) else { continue };
        let received = column("received_segments").integer(flow).expect("a number");
        let lost: u64 = lost.iter().filter_map(|column| column.integer(flow)).sum();
        let in_transit = expected.checked_sub(received + lost);
        assert!(in_transit.is_some(), "flow {flow}: {expected} < {received} + {lost}");
        if outcome.completed {
            assert_eq!(in_transit, Some(0), "flow {flow}: {expected} sent, {received} + {lost}");
        }
        let [p50, p95, p99] = [50, 95, 99]
            .map(|percent| column(&format!("one_way_delay_p{percent}_ns")).integer(flow));
        assert_eq!(p50.is_some(), received > 0);
        let max = column("one_way_delay_max_ns").integer(flow);
        assert!(p50 <= p95 && p95 <= p99 && p99 <= max, "{p50:?} {p95:?} {p99:?} {max:?}");
    }
}

fn check_exchanges(outcome: &Outcome) {
    let flows = outcome.table("flows").expect("there");
    let mut delivered = column(flows, "delivered_bytes");
    let mut finished = column(flows, "exchanges");
    for name in ["exchanges", "pages"] {
        check_responses(outcome.table(name).expect("there"), &mut finished, &mut delivered);
    }
    assert!(finished.iter().all(|&rest| rest == 0), "each finished exchange or page has a row");
}

/// Checks the rows of exchanges or pages, and subtracts the finished ones from their flows.
fn check_responses(table: &Table, finished: &mut [u64], delivered: &mut [u64]) {
    let value = |name, row| table.column(name).expect("the column exists").integer(row);
    let mut begun_before = 0;
    for row in 0..table.len() {
        let start = value("start_ns", row);
        let times = table.columns.iter().filter(|column| column.name.ends_with("_ns"));
        let steps: Vec<_> = times.filter_map(|column| column.integer(row)).collect();
        assert!(steps.is_sorted(), "row {row}: {steps:?}");
        assert!(start >= Some(begun_before), "row {row} is in order of start");
        begun_before = start.expect("always there");
        if value("finished_ns", row).is_some() {
            let flow = value("flow", row).expect("always there") as usize;
            finished[flow] -= 1;
            delivered[flow] -= value("response_bytes", row).expect("always there");
        }
    }
}

fn check_samples(outcome: &Outcome) {
    let samples = outcome.table("flow_samples").expect("there");
    let (time, flow) = (column(samples, "time_ns"), column(samples, "flow"));
    let acked = column(samples, "acked_bytes");
    for row in 1..samples.len() {
        assert!(time[row - 1] <= time[row], "time rises");
        for before in (0..row).rev().filter(|&before| flow[before] == flow[row]).take(1) {
            assert!(acked[before] <= acked[row], "acknowledged bytes never fall");
            assert!(time[before] < time[row], "one sample of a flow an instant");
        }
    }
    check_datagram_samples(outcome);
    let Some(events) = outcome.table("events") else { return };
    let times = column(events, "time_ns");
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "events are in order");
}

/// Checks that counts of datagrams never fall, and that the last sample of a flow is its row in `flows`.
fn check_datagram_samples(outcome: &Outcome) {
    let (samples, flows) = (outcome.table("datagram_samples"), outcome.table("flows"));
    let (samples, flows) = (samples.expect("there"), flows.expect("there"));
    let counts = ["expected_segments", "received_segments", "delivered_bytes", "lost_packets"];
    let count = |table: &Table, name, row| table.column(name)?.integer(row);
    let of_row = |row| counts.map(|name| count(samples, name, row).expect("always there"));
    let mut last = BTreeMap::new();
    for (row, flow) in column(samples, "flow").into_iter().enumerate() {
        let now = of_row(row);
        let [expected, received, _, lost] = now;
        assert!(received + lost <= expected, "row {row}: {now:?}");
        let before = last.insert(flow, now).unwrap_or_default();
        assert!(before.iter().zip(now).all(|(&before, now)| before <= now), "{before:?}, {now:?}");
    }
    for (flow, last) in last {
        let row = flow as usize;
        let lost = flows.columns.iter().filter(|column| column.name.starts_with("lost_"));
        let lost: u64 = lost.filter_map(|column| column.integer(row)).sum();
        let rest = counts[..3].iter().map(|name| count(flows, name, row).expect("always there"));
        assert!(rest.chain([lost]).eq(last), "flow {flow}: {last:?}");
    }
}

proptest! {
    #![proptest_config(Config { cases: 2_000, failure_persistence: None, ..Config::default() })]

    /// Proptest prints the plan and the seed that failed.
    #[test]
    fn every_run_keeps_the_invariants(plan in plans::plan(), seed in any::<u64>()) {
        let outcome = run(&plan, seed);
        check_schema(&plan, &outcome);
        check_counters(&plan, &outcome);
        check_exchanges(&outcome);
        check_datagrams(&outcome);
        check_samples(&outcome);
        let eager = run_eagerly(&plan, seed);
        prop_assert_eq!(&eager.tables, &outcome.tables, "waking early changes nothing");
        prop_assert_eq!(run(&plan, seed), outcome, "the same plan and seed give the same columns");
    }
}

#[test]
fn another_seed_gives_other_columns_and_another_flow_changes_no_channel() {
    let direction = json!({
        "rate_bps": {"kind": "constant", "value": 2_000_000},
        "jitter_ns": 0, "delay_ns": {"kind": "constant", "value": 250_000_000}, "framing": {
            "header_bytes": 8, "min_bytes": 0, "cells": null, "expansion": [1, 1],
            "inter_frame_bytes": 0,
        },
        "queue": {"discipline": "drop_tail", "limit": {"unit": "unlimited"}},
        "channel": {"kind": "bit_errors", "bit_error_rate": 1e-5},
    });
    let flow = |name: &str, heading: &str| {
        json!({
            "name": name, "terminal": 0, "direction": heading, "start_ns": 0, "start_jitter_ns": 0, "priority": 0, "splittable": true,
            "workload": {"kind": "constant_rate", "rate_bps": 1_000_000, "payload_bytes": 1_000,
                         "duration_ns": 10_000_000_000u64},
        })
    };
    let plan = |flows: Vec<Value>| {
        let plan = json!({
            "format_version": 4, "stop_ns": 60_000_000_000u64, "sample_interval_ns": null,
            "packet_events": true, "hosts": [], "flows": flows,
        });
        let terminal = [plain(1), json!([]), direction.clone()];
        put(plan, network(&json!([]), &direction, vec![terminal]))
    };
    let delivered =
        |outcome: &Outcome| column(outcome.table("flows").expect("there"), "delivered_bytes")[0];
    let alone = plan(vec![flow("a", "forward")]);
    assert_ne!(delivered(&run(&alone, 1)), delivered(&run(&alone, 2)));
    let together = plan(vec![flow("a", "forward"), flow("b", "return")]);
    assert_eq!(delivered(&run(&alone, 1)), delivered(&run(&together, 1)));
}
