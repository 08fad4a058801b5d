//! Which gateway a command means, and what it says of those that were killed.

use std::fs;

use super::folder::tests::Gateways;
use super::*;

fn refused(name: Option<&str>) -> String {
    let error = chosen(name).expect_err("it is refused");
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

#[test]
fn without_a_gateway_the_way_to_start_one_is_named() {
    let gateways = Gateways::new("none");
    for name in [None, Some("sat")] {
        let said = refused(name);
        assert!(
            said.starts_with("no gateway is up; start one with bentpipe-gate up CONFIG"),
            "{said}"
        );
        assert_eq!(said.ends_with("; to see those of root, use sudo"), !geteuid().is_root());
    }
    assert!(!gateways.0.exists());
}

/// Given one gateway that is up and two that have ended, expect its status, and a note on each of the others.
#[test]
fn the_only_one_that_is_up_needs_no_name() {
    let gateways = Gateways::new("only");
    drop((gateways.start("a"), gateways.start("c")));
    let _up = gateways.start("b");
    assert_eq!(chosen(None).as_deref(), Ok("b"));
    let names = ["a", "b", "c"].map(str::to_owned);
    let note = |name| {
        format!(
            "gateway {name} has ended: it was killed; bentpipe-gate down {name} removes what is left"
        )
    };
    assert_eq!(notes_on_ended(&names), [note("a"), note("c")]);
    assert!(notes_on_ended(&names[..1]).is_empty());
    let (status, record, processes) = status_of("b").expect("it is up");
    let now_s = record.started_unix_s + 45.0;
    assert!(status.lines(now_s)[0].starts_with("b: pep, lan0 to sat0, up for 45 s; "));
    let data = status_json(&status, record, &processes);
    assert_eq!((&data["name"], &data["config"]), (&json!("b"), &json!("/a.toml")));
    assert!(data["counters"]["unix_s"].is_number(), "{data}");
    let _other = gateways.start("d");
    assert_eq!(refused(None), "gateway: several are up; name one of b, d");
}

/// Given gateways that were killed, expect one to be named unless there is one alone, and why it has ended.
#[test]
fn of_several_that_were_killed_one_must_be_named() {
    let gateways = Gateways::new("killed");
    drop(gateways.start("sat"));
    assert_eq!(chosen(None).as_deref(), Ok("sat"));
    let error = status_of("sat").expect_err("it has ended");
    assert_eq!(error.exit_code(), 3);
    let said = "gateway sat has ended: it was killed; connections pass without it; to fix it: ";
    assert!(error.to_string().starts_with(said), "{error}");
    drop(gateways.start("sea"));
    assert_eq!(refused(None), "gateway: none is up; name one of sat, sea");
    let nearest = "gateway: read \"sat1\"; allowed: sat, sea; did you mean \"sat\"?";
    assert_eq!(refused(Some("sat1")), nearest);
    assert_eq!(refused(Some("")), format!("NAME: {NO_VALUE}"));
    let log = GatewayFolder::new("sea").log_file();
    fs::write(log, "a line\nbentpipe-gate: error: no memory\n").expect("written");
    assert_eq!(end_text("sea"), "gateway sea has ended: no memory");
    let path = gateways.0.join("sat.toml");
    let sides = "lan.interfaces = [\"lan0\"]\nlink.interfaces = [\"sat0\"]\n";
    fs::write(&path, format!("name = \"sea\"\n{sides}")).expect("written");
    assert_eq!(chosen(path.to_str()).as_deref(), Ok("sea"));
}

#[test]
fn a_watched_status_is_no_json() {
    let gateways = Gateways::new("watched");
    let _up = gateways.start("sat");
    let name = arguments::Name { name: None };
    let error = status(&StatusArguments { name, json: true, watch: true }).expect_err("refused");
    assert!(error.to_string().contains("not with --watch"), "{error}");
}
