//! What precedes a start, and how one fails, with other programs in place of the daemon.

use std::fs;

use super::*;
use crate::commands::folder::tests::Gateways;

const CONFIG: &str = "name = 'sat'\nlan.interfaces = ['lan0']\nlink.interfaces = ['sat0']\n";

/// Acts on a gateway that is to be started, whose plan has this name.
fn starting<T>(plan_name: &str, act: impl FnOnce(&Starting<'_>) -> T) -> T {
    let (path, folder) = (Path::new("/etc/sat.toml"), GatewayFolder::new("sat"));
    let config = Config::parse(CONFIG, "sat.toml").expect("a configuration");
    let plan = Plan { name: plan_name.to_owned(), ..config.plan(path, &folder.files()) };
    act(&Starting { config: &config, plan: &plan, path, folder: &folder })
}

/// Given the counters of a killed daemon whose network namespace is gone, or whose record cannot be read, expect them
/// to be removed before the next daemon is started, which is ready once it has written its own; given counters that
/// cannot be removed, expect no start.
#[test]
fn counters_of_a_killed_daemon_are_removed() {
    let gateways = Gateways::new("old-counters");
    let folder = GatewayFolder::new("sat");
    for record in [None, Some("of another version")] {
        drop(gateways.start("sat"));
        if let Some(text) = record {
            fs::write(folder.record_file(), text).expect("written");
        }
        assert!(starting("bentpipe-sat", |it| it.remove_left().is_ok()));
        assert_eq!(folder.counters(), None, "{record:?}");
    }
    fs::create_dir(folder.files().state).expect("its path is free");
    let error = starting("bentpipe-sat", |it| it.remove_left().err()).expect("it is a folder");
    assert!(error.to_string().contains("/sat: Is a directory; to fix it: "), "{error}");
}

/// Given a daemon that is killed before it is ready, expect the signal, unless its log ends with an error.
#[test]
fn a_daemon_that_is_killed_at_its_start_is_reported_with_the_signal() {
    let _gateways = Gateways::new("killed-start");
    let folder = GatewayFolder::new("sat");
    let _lock = folder.lock().expect("a free lock");
    let killed = "bentpipe-gate has ended: signal: 9 (SIGKILL); to fix it: see what dmesg says, and try again";
    for (log, expected) in [
        ("bentpipe-gate: at most 2000 connections, with at most 9 MB in a process\n", killed),
        ("", killed),
        ("bentpipe-gate: error: no memory\n", "no memory"),
    ] {
        fs::write(folder.log_file(), log).expect("written");
        let mut daemon = Command::new("sh").args(["-c", "kill -KILL $$"]).spawn().expect("it runs");
        let error = starting("bentpipe-sat", |it| it.wait(&mut daemon)).expect_err("it has ended");
        assert_eq!(error, Failure::Machine(expected.to_owned()), "{log}");
    }
}

/// Given a daemon that is not ready, and rules that cannot be removed (its plan has an invalid name of a table), expect
/// both errors, and the record from which `down` removes the rules.
#[test]
fn rules_that_cannot_be_removed_leave_the_record() {
    let gateways = Gateways::new("rules-remain");
    drop(gateways.start("sat"));
    let folder = GatewayFolder::new("sat");
    let left = Left { record: None, kept: BTreeSet::new() };
    let mut daemon = Command::new("sleep").arg("60").spawn().expect("it runs");
    let error = Failure::Machine("it is not ready".to_owned());
    let error = starting("no table", |it| it.end(&mut daemon, &left, error)).to_string();
    assert!(daemon.try_wait().is_ok_and(|status| status.is_some()));
    let lines: Vec<_> = error.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "it is not ready"), "{error}");
    assert!(lines[1].starts_with("removing rules: ") && lines[1].contains("no table"), "{error}");
    assert!(folder.record().is_some());
}

/// Given a log that cannot be created, expect a fix for any cause: space, but rights, too.
#[test]
fn a_log_that_cannot_be_created_keeps_a_daemon_from_starting() {
    let _gateways = Gateways::new("no-log");
    let folder = GatewayFolder::new("sat");
    let lock = folder.lock().expect("a free lock");
    fs::create_dir(folder.log_file()).expect("its path is free");
    let error = starting("bentpipe-sat", |it| it.spawn(&lock)).expect_err("it is a folder");
    let error = error.to_string();
    assert!(error.contains("/sat: Is a directory; to fix it: run it as root, and see"), "{error}");
}
