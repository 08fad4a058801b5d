//! How a daemon ends, and what a check leaves: nothing.

use std::fs;

use bentpipe_gate::daemon::Plan;
use rustix::process::Signal;

use crate::router::Host;
use crate::setup::{Setup, is_possible, pep, run};

/// Given Ctrl-C, which the terminal sends to both parts, expect code 0, and neither rules nor files nor their folder.
#[test]
fn ctrl_c_ends_a_daemon_and_its_files_are_removed() {
    if !is_possible() {
        return;
    }
    let mut setup = Setup::with("ctrlc", |plan| {
        let folder = std::env::temp_dir().join(format!("bp-{}-ctrlc-files", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        plan.files = ["a", "b"].map(|name| folder.join(name).display().to_string()).into();
        fs::write(&plan.files[0], "of its starter").expect("it can be written");
    });
    // The worker first: the daemon must not take it for gone.
    let worker = setup.workers()[0];
    setup.signal(worker, Signal::INT);
    setup.signal(setup.daemon.id(), Signal::INT);
    assert!(setup.daemon.wait().expect("it ends").success());
    setup.expect_nothing_left();
    let folder = std::path::Path::new(&setup.plan.files[0]).parent().expect("a folder");
    assert!(!folder.exists());
}

/// Given a plan, expect `check` to print the bounds and to leave no rule; given an interface that is not there, expect
/// its name and code 3.
#[test]
fn a_check_opens_what_a_daemon_opens_and_changes_nothing() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("check");
    let check = |plan: &Plan| {
        let text = serde_json::to_vec(plan).expect("a plan");
        setup.router.on(Host::Gateway, || run(&["check"], &text))
    };
    let before = setup.router.gateway("ip rule");
    let done = check(&setup.plan);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("at most 200 connections, with"), "{said}");
    let mut plan = setup.plan.clone();
    pep(&mut plan).lan.interfaces = vec!["none0".to_owned()];
    let done = check(&plan);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3));
    assert!(said.contains("listening on interface none0"), "{said}");
    assert_eq!(setup.router.gateway("ip rule"), before);
}

/// Given a folder for the state that cannot be written any more, expect connections to be split as before.
#[test]
fn a_state_that_cannot_be_written_ends_nothing() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new("full");
    fs::remove_dir_all(&setup.folder).expect("it exists");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(setup.relays(&setup.listen(crate::router::SERVERS[0])));
}
