//! How a daemon ends, and what a check leaves: nothing.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use bentpipe_gate::daemon::Plan;
use rustix::process::Signal;

use crate::router::Host;
use crate::setup::{PROGRAM, Setup, is_possible, pep, run};

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

/// Given SIGHUP, to which other daemons read their configuration again, expect the connection to go on; then, given
/// SIGTERM, the totals in the last line of the log.
#[test]
fn a_hangup_ends_no_connection_and_the_end_is_logged() {
    if !is_possible() {
        return;
    }
    let mut setup = Setup::new("hangup");
    let log_file = setup.folder.join("log");
    restart(&mut setup, |command| {
        command.stderr(fs::File::create(&log_file).expect("a file"));
    });
    setup.state(|_| true);
    let listener = setup.listen(crate::router::SERVERS[0]);
    let (mut client, mut server) = setup.pair(&listener);
    for pid in setup.workers().into_iter().chain([setup.daemon.id()]) {
        setup.signal(pid, Signal::HUP);
    }
    std::thread::sleep(Duration::from_millis(500));
    client.write_all(b"still").expect("the connection is open");
    server.read_exact(&mut [0; 5]).expect("the connection is open");
    setup.state(|report| report.to_server_bytes == 5);
    setup.signal(setup.daemon.id(), Signal::TERM);
    assert!(setup.daemon.wait().expect("it ends").success());
    let log = fs::read_to_string(&log_file).expect("a log");
    let lines: Vec<_> =
        log.lines().filter_map(|line| line.strip_prefix("bentpipe-gate: ")).collect();
    let expected = [
        "SIGHUP: reads the configuration of gateway bentpipe again",
        "SIGTERM: ends; the PEP split 1 connections (1 are open, and reset), 0 passed unsplit; 5 B to servers, 0 B to clients",
    ];
    // Between them, that there is none: this daemon has no configuration.
    assert!(lines.contains(&expected[0]) && lines.last() == Some(&expected[1]), "{log}");
}

/// Given a service manager that expects a sign each 200 ms, expect it to be told of the start, then twice as often, and of
/// the end.
#[test]
fn a_service_manager_is_told_of_the_start_and_the_end() {
    if !is_possible() {
        return;
    }
    let mut setup = Setup::new("notify");
    let path = setup.folder.join("notify");
    let manager = UnixDatagram::bind(&path).expect("a new socket");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("it is not zero");
    restart(&mut setup, |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    });
    let told = || {
        let mut text = [0; 64];
        let length = manager.recv(&mut text).expect("the daemon tells");
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut before: Vec<_> =
        std::iter::repeat_with(told).take_while(|it| it != "READY=1").collect();
    before.dedup();
    assert!(before.iter().all(|it| it == "WATCHDOG=1"), "{before:?}");
    setup.state(|_| true);
    assert_eq!([told(), told()], ["WATCHDOG=1", "WATCHDOG=1"]);
    setup.signal(setup.daemon.id(), Signal::TERM);
    assert!(setup.daemon.wait().expect("it ends").success());
    assert!(std::iter::repeat_with(told).take(1_000).any(|it| it == "STOPPING=1"));
}

/// Ends the daemon, and starts another one as `change` has it.
fn restart(setup: &mut Setup, change: impl FnOnce(&mut Command) + Send) {
    setup.signal(setup.daemon.id(), Signal::TERM);
    assert!(setup.daemon.wait().expect("it ends").success());
    setup.daemon = setup.router.on(Host::Gateway, || {
        let mut command = Command::new(PROGRAM);
        change(command.args(["plan", "run"]));
        let mut daemon = command.stdin(Stdio::piped()).spawn().expect("the program starts");
        let plan = serde_json::to_vec(&setup.plan).expect("a plan");
        daemon.stdin.take().expect("a pipe").write_all(&plan).expect("it reads its plan");
        daemon
    });
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
        setup.router.on(Host::Gateway, || run(&["plan", "check"], &text))
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
