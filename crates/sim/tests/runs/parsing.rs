//! Parsing never panics, and every plan that it accepts can be built.

use crate::network::{network, plain, put};
use crate::plans;
use bentpipe_sim::{Plan, Simulation};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

/// Limits of number types, and values of other types.
fn odd_value() -> impl Strategy<Value = Value> {
    let edges =
        [0, 1, u64::from(u16::MAX), u64::from(u32::MAX), 1 << 50, i64::MAX as u64, u64::MAX];
    prop_oneof![
        prop::sample::select(edges.to_vec()).prop_map(|number| json!(number)),
        prop::sample::select(vec![-1.0, 0.5, 1e-300, 1e300]).prop_map(|number| json!(number)),
        Just(Value::Null),
        Just(json!("")),
        Just(json!([])),
        Just(json!({})),
        Just(json!({"kind": "constant"})),
        Just(json!({"kind": "steps", "steps": [[5, 1]]})),
    ]
}

/// Replaces the `at`-th leaf of the tree.
fn replace_leaf(tree: &mut Value, at: &mut usize, with: &Value) {
    match tree {
        Value::Object(fields) if !fields.is_empty() => {
            fields.values_mut().for_each(|field| replace_leaf(field, at, with));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter_mut().for_each(|item| replace_leaf(item, at, with));
        }
        _ if *at == 0 => {
            *tree = with.clone();
            *at = usize::MAX;
        }
        _ => *at = at.wrapping_sub(1),
    }
}

/// A valid plan with two terminals and a flow of each kind.
fn valid_plan() -> Value {
    let direction = json!({
        "rate_bps": {"kind": "constant", "value": 1_000_000},
        "jitter_ns": 0, "delay_ns": {"kind": "constant", "value": 250_000_000},
        "framing": {
            "header_bytes": 8, "min_bytes": 0, "inter_frame_bytes": 0, "expansion": [1, 1],
            "cells": {"payload_bytes": 48, "cell_bytes": 53},
        },
        "queue": {
            "discipline": "red", "limit": {"unit": "unlimited"}, "unit": "packets",
            "min_threshold": 5, "max_threshold": 15, "max_probability": 0.1, "weight": 0.002,
            "gentle": true, "mean_packet_bytes": 1_000, "ecn": false,
        },
        "channel": {
            "kind": "gilbert_elliott",
            "good": {"bit_error_rate": 1e-9, "loss_rate": 0.0, "mean_duration_ns": 1_000_000_000},
            "bad": {"bit_error_rate": 1e-4, "loss_rate": 0.1, "mean_duration_ns": 200_000_000},
        },
    });
    let processor = json!({
        "kind": "processor", "packets_per_second": 6_000, "per_byte_ns": 0, "buffer_packets": 50,
    });
    let functions = json!([processor]);
    let mut forward = direction.clone();
    forward["queue"] = json!({
        "discipline": "strict_priority", "limit": {"unit": "packets", "value": 9}, "classes": 2,
    });
    forward["channel"] = json!({"kind": "error_series", "steps": [
        {"at_ns": 0, "bit_error_rate": 0.0, "loss_rate": 0.5},
        {"at_ns": 9, "bit_error_rate": 1e-6, "loss_rate": 0.0},
    ]});
    let participant = |name: &str, terminal: u32| {
        json!({
            "name": name, "terminal": terminal, "direction": "return", "start_ns": 0, "start_jitter_ns": 0,
            "priority": 1, "splittable": true, "world_host": null, "island_host": null,
            "workload": {
                "kind": "conference", "conference": 1, "rate_bps": 64_000, "payload_bytes": 160,
                "duration_ns": 1_000,
            },
        })
    };
    let host = json!({
        "name": "far", "gateway": 2, "delay_ns": 5, "jitter_ns": 0, "rate_bps": null,
    });
    let plan = json!({
        "format_version": 4, "stop_ns": 1_000_000, "sample_interval_ns": null,
        "packet_events": false, "hosts": [host],
        "flows": [participant("a", 0), participant("b", 1)],
    });
    let terminal = |number| [plain(number), functions.clone(), direction.clone()];
    put(plan, network(&functions, &forward, vec![terminal(1), terminal(2)]))
}

/// Given one invalid value, expect an error that names its field.
#[test]
fn an_error_names_the_field() {
    assert!(Plan::parse(&valid_plan().to_string()).is_ok());
    let codel = json!({
        "discipline": "codel", "limit": {"unit": "time_ns", "value": 1}, "target_ns": 1,
        "interval_ns": 1, "ecn": false,
    });
    let discard = json!({
        "discipline": "early_packet_discard", "limit": {"unit": "unlimited"}, "threshold": 0.8,
    });
    let huge = json!({
        "header_bytes": 8, "min_bytes": 0, "inter_frame_bytes": 0, "expansion": [100, 1],
        "cells": {"payload_bytes": 48, "cell_bytes": 4_800},
    });
    let returns = "/directions/2";
    let cases = [
        ("/format_version".to_owned(), json!(1), "format_version"),
        ("/gateways".to_owned(), json!([]), "gateways"),
        ("/gateways/0/functions/0/buffer_packets".to_owned(), json!(0), "buffer_packets"),
        ("/gateways/2/functions/0/packets_per_second".to_owned(), json!(0), "gateways.2"),
        ("/directions/0/to/1/gateway".to_owned(), json!(1), "directions.0.to"),
        ("/directions/1/to".to_owned(), json!([plain(2)]), "directions.1.to"),
        ("/directions/1/from".to_owned(), json!(2), "directions.1.from"),
        ("/directions/1/name".to_owned(), json!("forward"), "places"),
        ("/hosts/0/gateway".to_owned(), json!(3), "hosts.0.gateway"),
        ("/hosts/0/rate_bps".to_owned(), json!(0), "hosts.0.rate_bps"),
        ("/flows/0/world_host".to_owned(), json!({"kind": "random"}), "flows.0.world_host"),
        ("/flows/0/island_host".to_owned(), json!({"kind": "named", "host": 0}), "flows.0.island"),
        ("/flows/1/terminal".to_owned(), json!(2), "flows.1.terminal"),
        ("/flows/1/terminal".to_owned(), json!(0), "flows"),
        ("/flows/1/direction".to_owned(), json!("forward"), "flows.1.workload.kind"),
        ("/flows/1/workload/conference".to_owned(), json!(2), "flows"),
        ("/flows/0/priority".to_owned(), json!(2), "flows.0.priority"),
        (format!("{returns}/queue"), codel, "directions.2.queue.limit"),
        (format!("{returns}/queue"), discard, "directions.2.queue.limit"),
        (format!("{returns}/queue/min_threshold"), json!(15), "min_threshold"),
        (format!("{returns}/queue/weight"), json!(0), "weight"),
        (format!("{returns}/queue/max_probability"), json!(1.5), "max_probability"),
        (format!("{returns}/framing/cells/payload_bytes"), json!(0), "cells.payload_bytes"),
        (format!("{returns}/framing/cells/cell_bytes"), json!(47), "cells.cell_bytes"),
        (format!("{returns}/framing/expansion"), json!([1, 0]), "framing.expansion"),
        (format!("{returns}/framing/expansion"), json!([1, 2]), "framing.expansion"),
        // A packet of 65,535 bytes in 1,366 cells of 100 times 48 bytes, expanded by 100: 5.2 Gbit.
        (format!("{returns}/framing"), huge, "framing.expansion"),
    ];
    for (path, value, field) in cases {
        let mut plan = valid_plan();
        *plan.pointer_mut(&path).expect("the field exists") = value;
        let error = Plan::parse(&plan.to_string()).expect_err(&path);
        assert!(error.field.contains(field), "{path}: {error}");
    }
}

/// Given a buffer that cannot hold the segments of the start-up, or an impossible segment, expect an
/// error.
#[test]
fn an_invalid_video_is_rejected() {
    let tcp = plans::tcp().new_tree(&mut TestRunner::deterministic()).expect("any host").current();
    let cases = [
        (json!({}), None),
        (json!({"buffer_ns": 11}), Some("buffer_ns")),
        (json!({"start_up_ns": 13}), Some("buffer_ns")),
        (json!({"start_up_ns": 0}), Some("start_up_ns")),
        (json!({"segment_ns": 0}), Some("segment_ns")),
        (json!({"rate_bps": 0}), Some("rate_bps")),
        (json!({"duration_ns": 0}), Some("duration_ns")),
        (json!({"rate_bps": 100_000_000_000_000u64, "segment_ns": 1u64 << 52}), Some("segment_ns")),
    ];
    for (change, field) in cases {
        let mut media = json!({
            "rate_bps": 1, "duration_ns": 9, "segment_ns": 4, "buffer_ns": 12, "start_up_ns": 9,
        });
        for (name, value) in change.as_object().expect("an object") {
            media[name] = value.clone();
        }
        let mut plan = valid_plan();
        plan["flows"][0]["direction"] = json!("forward");
        plan["flows"].as_array_mut().expect("a list").truncate(1);
        plan["flows"][0]["workload"] = json!({
            "kind": "video", "media": media, "request_bytes": 1, "server": tcp, "client": tcp,
        });
        let error = Plan::parse(&plan.to_string()).err().map(|error| error.field);
        let expected = field.map(|field| format!("flows.0.workload.media.{field}"));
        assert_eq!(error, expected, "{media}");
    }
}

/// Given a distribution with parameters out of range, expect an error.
#[test]
fn an_invalid_distribution_is_rejected() {
    let tcp = plans::tcp().new_tree(&mut TestRunner::deterministic()).expect("any host").current();
    for distribution in [
        json!({"kind": "constant", "value": 0}),
        json!({"kind": "exponential", "mean": 0}),
        json!({"kind": "pareto", "min": 9, "shape": 1.2, "max": 8}),
        json!({"kind": "pareto", "min": 9, "shape": 0, "max": 10}),
        json!({"kind": "lognormal", "median": 9, "sigma": -1, "max": 10}),
        json!({"kind": "lognormal", "median": 11, "sigma": 1, "max": 10}),
    ] {
        let mut plan = valid_plan();
        plan["flows"][0]["direction"] = json!("forward");
        plan["flows"][0]["workload"] = json!({
            "kind": "request_response", "request_bytes": 1, "response_bytes": distribution,
            "think_ns": {"kind": "constant", "value": 0}, "exchanges": 1, "keep_connection": true,
            "server": tcp, "client": tcp,
        });
        let error = Plan::parse(&plan.to_string()).expect_err("invalid distribution");
        assert!(
            error.field.starts_with("flows.0.workload.response_bytes."),
            "{distribution}: {error}"
        );
    }
}

proptest! {
    #![proptest_config(Config { cases: 3_000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn any_text_is_parsed_or_rejected(text in "\\PC{0,200}") {
        prop_assert!(Plan::parse(&text).is_err());
    }

    #[test]
    fn a_plan_with_one_odd_value_is_rejected_by_name_or_built(
        plan in plans::plan(), leaf in 0..300usize, with in odd_value(), seed in any::<u64>(),
    ) {
        let mut plan = plan;
        let mut at = leaf;
        replace_leaf(&mut plan, &mut at, &with);
        match Plan::parse(&plan.to_string()) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(plan) => {
                let _ = Simulation::new(&plan, seed);
            }
        }
    }

    #[test]
    fn a_truncated_plan_is_rejected(plan in plans::plan(), keep in 0.0..1.0f64) {
        let text = plan.to_string();
        let characters = text.chars().count() as f64;
        let cut: String = text.chars().take((characters * keep) as usize).collect();
        prop_assert!(Plan::parse(&cut).is_err());
    }
}

/// A plan with aggregators in some of the hub and two terminals.
fn with_aggregators(gateways: [bool; 3]) -> Value {
    let aggregator = json!({
        "kind": "aggregator", "frame_size_bytes": 1_500, "packet_size_bytes": 700,
        "hold_time_ns": 5_000_000, "classes": null,
    });
    let mut plan = valid_plan();
    for (gateway, has_one) in gateways.into_iter().enumerate() {
        let functions = plan["gateways"][gateway]["functions"].as_array_mut().expect("a list");
        functions.extend(has_one.then(|| aggregator.clone()));
    }
    plan
}

#[test]
fn a_function_without_its_peer_is_rejected() {
    let problem = |gateways| Plan::parse(&with_aggregators(gateways).to_string()).map(|_| ());
    assert_eq!(problem([true; 3]), Ok(()));
    for alone in [[true, false, true], [false, true, false]] {
        let error = problem(alone).expect_err("a terminal differs from the hub");
        assert!(error.problem.contains("need a peer"), "{error}");
        assert!(error.field.starts_with("gateways."), "{error}");
    }
}
