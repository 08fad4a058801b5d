//! Laws that every run obeys, over 1,000 random small plans: conservation (checked by `finish`),
//! identical columns for the same plan and seed, also when engines are woken without being due, counters that agree with each other, and the
//! advance of one flow's bytes from sent to acknowledged.

use bentpipe_sim::record::Table;
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

/// The same with every engine woken at moments that nobody asked for.
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

fn series(values: std::ops::Range<u64>) -> impl Strategy<Value = Value> {
    let steps = prop::collection::vec((1..2_000_000_000u64, values.clone()), 0..4);
    (values, steps).prop_map(|(first, later)| {
        if later.is_empty() {
            return json!({"kind": "constant", "value": first});
        }
        let mut steps: std::collections::BTreeMap<u64, u64> = later.into_iter().collect();
        steps.insert(0, first);
        let steps: Vec<_> = steps.into_iter().collect();
        json!({"kind": "steps", "steps": steps})
    })
}

fn limit() -> impl Strategy<Value = Value> {
    prop_oneof![
        (1_500..100_000u64).prop_map(|n| json!({"unit": "bytes", "value": n})),
        (1..60u64).prop_map(|n| json!({"unit": "packets", "value": n})),
        (1_000_000..500_000_000u64).prop_map(|n| json!({"unit": "time_ns", "value": n})),
        Just(json!({"unit": "unlimited"})),
    ]
}

fn channel() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"kind": "clear"})),
        prop::sample::select(vec![1e-7, 1e-6, 1e-5, 3e-5])
            .prop_map(|rate| json!({"kind": "bit_errors", "bit_error_rate": rate})),
    ]
}

fn direction() -> impl Strategy<Value = Value> {
    (series(100_000..20_000_000), series(0..400_000_000), 0..40u64, limit(), channel()).prop_map(
        |(rate, delay, framing, limit, channel)| {
            json!({
                "rate_bps": rate, "delay_ns": delay, "framing_overhead_bytes": framing,
                "queue": {"discipline": "drop_tail", "limit": limit}, "channel": channel,
            })
        },
    )
}

fn tcp() -> impl Strategy<Value = Value> {
    let control = prop::sample::select(vec!["reno", "newreno", "cubic"]);
    let flags = prop::array::uniform8(any::<bool>());
    (control, flags, 500..1_460u16, 1..12u32, 8_000..400_000u64, 1..4u32).prop_map(
        |(control, flags, mss, window, buffer, every)| {
            let [sack, timestamps, scaling, limited, rack, prr, hystart, coarse] = flags;
            json!({
                "mss_bytes": mss, "initial_window_segments": window,
                "congestion_control": control, "sack": sack, "timestamps": timestamps,
                "window_scaling": scaling, "send_buffer_bytes": 300_000,
                "receive_buffer_bytes": buffer, "receive_buffer_initial_bytes": 8_000,
                "delayed_ack_segments": every, "delayed_ack_timeout_ns": 100_000_000,
                "quick_ack_segments": u32::from(coarse), "rto_initial_ns": 1_000_000_000,
                "rto_min_ns": 200_000_000, "rto_min_bounds": if rack { "variance" } else { "timeout" },
                "rto_max_ns": 60_000_000_000u64,
                "clock_granularity_ns": if coarse { 500_000_000 } else { 1_000_000 },
                "slow_start_segments_per_ack": if hystart { 65_535 } else { 1 },
                "avoidance_counting": if coarse { "acks" } else { "bytes" },
                "limited_transmit": limited, "rack_tlp": rack, "prr": prr, "hystart": hystart,
            })
        },
    )
}

fn workload() -> impl Strategy<Value = Value> {
    let amount = prop_oneof![
        (1..300_000u64).prop_map(|n| json!({"unit": "bytes", "value": n})),
        (1..5_000_000_000u64).prop_map(|n| json!({"unit": "duration_ns", "value": n})),
    ];
    prop_oneof![
        3 => (amount, tcp(), tcp()).prop_map(|(amount, sender, receiver)| {
            json!({"kind": "bulk", "amount": amount, "sender": sender, "receiver": receiver})
        }),
        1 => (8_000..2_000_000u64, 1..1_400u32, 1..4_000_000_000u64).prop_map(|(rate, size, ns)| {
            json!({
                "kind": "constant_rate", "rate_bps": rate, "payload_bytes": size,
                "duration_ns": ns,
            })
        }),
    ]
}

fn plan() -> impl Strategy<Value = Value> {
    let heading = prop::sample::select(vec!["forward", "return"]);
    let flow = (heading, 0..1_000_000_000u64, workload());
    let flows = prop::collection::vec(flow, 1..5);
    let sampling = prop::option::of(20_000_000..700_000_000u64);
    (direction(), direction(), flows, sampling, any::<bool>(), 1..20u64).prop_map(
        |(forward, back, flows, sampling, events, seconds)| {
            let flows: Vec<_> = (1..)
                .zip(flows)
                .map(|(n, (heading, start, workload))| {
                    json!({
                        "name": format!("flow-{n}"), "direction": heading, "start_ns": start,
                        "workload": workload,
                    })
                })
                .collect();
            json!({
                "format_version": 1, "stop_ns": seconds * 1_000_000_000 + 1,
                "sample_interval_ns": sampling, "packet_events": events,
                "link": {"forward": forward, "return": back}, "flows": flows,
            })
        },
    )
}

fn column(table: &Table, name: &str) -> Vec<u64> {
    let column = table.column(name).expect("the column exists");
    (0..table.len()).map(|row| column.integer(row).expect("never missing")).collect()
}

fn check_counters(outcome: &Outcome) {
    let flows = outcome.table("flows").expect("there");
    let sent = column(flows, "sent_bytes");
    let delivered = column(flows, "delivered_bytes");
    let acked = column(flows, "acked_bytes");
    for flow in 0..flows.len() {
        assert!(acked[flow] <= delivered[flow] && delivered[flow] <= sent[flow], "flow {flow}");
    }
    let directions = outcome.table("directions").expect("there");
    let count = |name| column(directions, name);
    let (received, delivered) = (count("received_packets"), count("delivered_packets"));
    let (full, damaged) = (count("dropped_packets_queue_full"), count("dropped_packets_bit_error"));
    let held = count("held_packets");
    for direction in 0..2 {
        let out = delivered[direction] + full[direction] + damaged[direction] + held[direction];
        assert_eq!(received[direction], out, "direction {direction}");
    }
    assert_eq!(outcome.packet_hops, count("sent_packets").iter().sum::<u64>());
    if outcome.completed {
        assert_eq!(held, [0, 0], "a run that ended by itself holds nothing");
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
    let Some(events) = outcome.table("events") else { return };
    let times = column(events, "time_ns");
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "events are in order");
}

proptest! {
    #![proptest_config(Config { cases: 1_000, failure_persistence: None, ..Config::default() })]

    /// Proptest prints the plan and the seed that failed.
    #[test]
    fn every_run_obeys_the_laws(plan in plan(), seed in any::<u64>()) {
        let outcome = run(&plan, seed);
        check_counters(&outcome);
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
        "delay_ns": {"kind": "constant", "value": 250_000_000}, "framing_overhead_bytes": 8,
        "queue": {"discipline": "drop_tail", "limit": {"unit": "unlimited"}},
        "channel": {"kind": "bit_errors", "bit_error_rate": 1e-5},
    });
    let flow = |name: &str, heading: &str| {
        json!({
            "name": name, "direction": heading, "start_ns": 0,
            "workload": {"kind": "constant_rate", "rate_bps": 1_000_000, "payload_bytes": 1_000,
                         "duration_ns": 10_000_000_000u64},
        })
    };
    let plan = |flows: Vec<Value>| {
        json!({
            "format_version": 1, "stop_ns": 60_000_000_000u64, "sample_interval_ns": null,
            "packet_events": true, "link": {"forward": direction, "return": direction},
            "flows": flows,
        })
    };
    let delivered =
        |outcome: &Outcome| column(outcome.table("flows").expect("there"), "delivered_bytes")[0];
    let alone = plan(vec![flow("a", "forward")]);
    assert_ne!(delivered(&run(&alone, 1)), delivered(&run(&alone, 2)));
    let beside = plan(vec![flow("a", "forward"), flow("b", "return")]);
    assert_eq!(delivered(&run(&alone, 1)), delivered(&run(&beside, 1)));
}
