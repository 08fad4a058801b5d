//! Configurations as plans. Wrong ones are in the tests of the Python package, by their messages.

use serde_json::{Value, json};

use super::*;

const PEP: &str = "name = 'sat'\nlan.interfaces = ['lan0']\nlink.interfaces = ['sat0']\n";

fn plan(text: &str) -> Value {
    let config = Config::parse(text, "sat.toml").expect("a configuration");
    let file = |name: &str| PathBuf::from(format!("/run/sat/{name}"));
    let files =
        Files { state: file("state.json"), control: file("control"), others: vec![file("log")] };
    serde_json::to_value(config.plan(Path::new("/etc/sat.toml"), &files)).expect("JSON")
}

#[test]
fn a_pep_without_settings_has_the_tcp_of_the_machine() {
    let leg = json!({"congestion_control": null, "send_buffer_bytes": null,
                     "receive_buffer_bytes": null, "not_sent_bytes": null});
    let made = plan(&format!("{PEP}pep.threads = 1\npep.idle_limit = '0 s'"));
    let pep = json!({
        "mark": 25_088, "route_table": 25_113, "workers": 1, "threads": 1, "connections": 10_000,
        "buffer_bytes": 65_536, "early_accept": false, "connect_limit_ns": 30_000_000_000_u64,
        "idle_limit_ns": null, "keep_alive_ns": 600_000_000_000_u64,
        "except": {"networks": [], "ports": [], "interfaces": []},
        "only": {"networks": [], "ports": [], "interfaces": []},
        "lan": {"interfaces": ["lan0"], "tcp": leg}, "link": {"interfaces": ["sat0"], "tcp": leg},
    });
    assert_eq!(made["pep"], pep);
    assert_eq!((&made["tunnel"], &made["metrics_listen"]), (&Value::Null, &Value::Null));
    assert_eq!(made["name"], "bentpipe-sat");
    let idle = &plan(PEP)["pep"]["idle_limit_ns"];
    assert_eq!(*idle, json!(124 * 60 * 1_000_000_000_u64));
}

/// Given interfaces, also one that is written twice, expect each once in the plan; given wrong names, expect their paths.
#[test]
fn connections_are_selected_by_interfaces() {
    let except = "pep.except.interfaces = ['wg0', 'lan1.7', 'wg0']\n";
    let made = plan(&format!("{PEP}{except}pep.only.interfaces = ['lan0']"));
    let list = |names: &[&str]| json!({"networks": [], "ports": [], "interfaces": names});
    assert_eq!(made["pep"]["except"], list(&["lan1.7", "wg0"]));
    assert_eq!(made["pep"]["only"], list(&["lan0"]));
    let text = format!("{PEP}pep.except.interfaces = ['lan0', 'a b', 7]\npep.only = {{}}\n");
    let error = Config::parse(&text, "sat.toml").expect_err("three mistakes").to_string();
    let lines = [
        "pep.except.interfaces.1: read \"a b\"; expected the name of an interface, such as eth0",
        "pep.except.interfaces.2: read 7; expected text",
        "pep.only: read no networks, ports or interfaces; write one of them, or leave this out",
    ];
    assert_eq!(error, lines.map(|line| format!("sat.toml: {line}")).join("\n"));
}

#[test]
fn the_default_mark_is_one_for_any_number_of_workers() {
    for workers in 1..=64 {
        assert!(MARK.is_multiple_of(marks(workers)), "{workers}");
    }
}

/// Given texts of any kind, expect all mistakes at once.
#[test]
fn every_mistake_is_named_at_once() {
    let text = format!("{PEP}uzer = 'nobody'\npep.connections = 'many'\npep.buffer = 5\n");
    let problems = Config::parse(&text, "sat.toml").expect_err("three mistakes").problems;
    let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["uzer", "pep.buffer", "pep.connections"]);
}

/// Given nested arrays, expect a message and no deep recursion.
#[test]
fn a_text_that_is_nested_too_deeply_is_refused() {
    let text = format!("a = {}", "[".repeat(20_000));
    let error = Config::parse(&text, "sat.toml").expect_err("refused").to_string();
    assert_eq!(error, "sat.toml: is nested too deeply");
}
