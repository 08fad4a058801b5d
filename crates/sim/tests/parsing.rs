//! Reading a plan never panics, whatever the bytes, and what it accepts can be built.

mod plans;

use bentpipe_sim::{Plan, Simulation};
use proptest::prelude::*;
use proptest::test_runner::Config;
use serde_json::{Value, json};

/// Numbers at the edges of their types, and things that are no numbers.
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

proptest! {
    #![proptest_config(Config { cases: 3_000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        prop_assert!(Plan::parse(&text).is_err());
    }

    #[test]
    fn a_plan_with_one_odd_value_is_refused_by_name_or_built(
        plan in plans::plan(), leaf in 0..120usize, with in odd_value(), seed in any::<u64>(),
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
    fn a_plan_cut_short_is_refused(plan in plans::plan(), keep in 0.0..1.0f64) {
        let text = plan.to_string();
        let characters = text.chars().count() as f64;
        let cut: String = text.chars().take((characters * keep) as usize).collect();
        prop_assert!(Plan::parse(&cut).is_err());
    }
}
