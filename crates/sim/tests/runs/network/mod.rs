//! Builds the gateways and directions of a plan.

use serde_json::{Value, json};

/// A plain branch to a gateway.
pub(crate) fn plain(gateway: usize) -> Value {
    json!({"gateway": gateway, "delay_ns": 0, "channel": {"kind": "clear"}})
}

/// `gateways` and `directions` of a plan, from the hub's functions and direction, and the branch,
/// the functions and the return direction of each terminal.
pub(crate) fn network(hub: &Value, forward: &Value, terminals: Vec<[Value; 3]>) -> Value {
    let named = |part: &Value, name: &str, from: usize, to: Value| {
        let mut part = part.clone();
        part["name"] = json!(name);
        part["from"] = json!(from);
        part["to"] = to;
        part
    };
    let reached: Vec<_> = terminals.iter().map(|[branch, ..]| branch.clone()).collect();
    let several = terminals.len() > 1;
    let mut gateways = vec![json!({"name": "hub", "functions": hub})];
    let mut directions = vec![named(forward, "forward", 0, json!(reached))];
    for (number, [_, functions, back]) in (1..).zip(terminals) {
        let name = if several { format!("return-{number}") } else { "return".to_owned() };
        gateways.push(json!({"name": format!("terminal-{number}"), "functions": functions}));
        directions.push(named(&back, &name, number, json!([plain(0)])));
    }
    json!({"gateways": gateways, "directions": directions})
}

/// Adds the fields of a network to a plan.
pub(crate) fn put(mut plan: Value, network: Value) -> Value {
    let Value::Object(network) = network else { panic!("a network is an object") };
    network.into_iter().for_each(|(field, value)| plan[field] = value);
    plan
}
