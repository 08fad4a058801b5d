use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use super::*;

thread_local! {
    /// The folder of the gateways of this test.
    static BASE: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

pub(super) fn base() -> Option<PathBuf> {
    BASE.with_borrow(Clone::clone)
}

/// A folder for the gateways of one test, which is removed at its end.
pub(in super::super) struct Gateways(pub(in super::super) PathBuf);

impl Gateways {
    pub(in super::super) fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bp-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        BASE.set(Some(folder.clone()));
        Self(folder)
    }

    /// Writes a record and counters; the file that is returned holds the lock, as of a gateway that is up.
    pub(in super::super) fn start(&self, name: &str) -> File {
        let folder = GatewayFolder::new(name);
        let lock = folder.lock().expect("a free lock");
        let described = json!({"name": name, "functions": ["pep"], "lan": ["lan0"], "link": ["sat0"],
                               "connections": 100});
        folder.write_record(&record(described)).expect("written");
        fs::write(folder.files().state, r#"{"pep": {}, "tunnel": null}"#).expect("written");
        lock
    }
}

impl Drop for Gateways {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        BASE.set(None);
    }
}

fn record(described: Value) -> Record {
    let config = "/a.toml".to_owned();
    Record { config, described, plan: json!({}), network_namespace: 1, started_unix_s: 2.5 }
}

/// Given a lock, expect no second one, until all descriptors of it are closed.
#[test]
fn a_lock_is_held_by_one_and_inherited() {
    let gateways = Gateways::new("lock");
    let folder = GatewayFolder::new("sat");
    let lock = folder.lock().expect("a free lock");
    let copy = lock.try_clone().expect("a descriptor");
    assert!(folder.is_up());
    let error = folder.lock().expect_err("it is held");
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("gateway sat is up already; to fix it: end it with"));
    drop(lock);
    assert!(folder.is_up());
    drop(copy);
    assert!(!folder.is_up());
    assert_eq!(gateway_names(&gateways.0), ["sat"]);
    folder.remove();
    assert!(gateway_names(&gateways.0).is_empty());
    assert!(!gateways.0.exists());
}

/// Given an end while another starts, expect the lock of the file that is there.
#[test]
fn a_lock_on_a_file_that_was_removed_is_taken_again() {
    let _gateways = Gateways::new("removed-lock");
    let folder = GatewayFolder::new("sat");
    let first = folder.lock().expect("a free lock");
    fs::remove_file(folder.record_file()).expect("it is removed");
    let second = folder.lock().expect("a lock of a new file");
    let current = fs::metadata(folder.record_file()).expect("a file");
    assert!(is_same(&second.metadata().expect("a file"), &current));
    assert!(!is_same(&first.metadata().expect("a file"), &current));
}

/// Given a process that has inherited the lock, of a program of any name, and one that only reads the record, expect the first
/// to be the daemon.
#[test]
fn a_daemon_is_found_by_its_lock_whatever_its_name() {
    let _gateways = Gateways::new("holder");
    let folder = GatewayFolder::new("sat");
    let lock = folder.lock().expect("a free lock");
    let reader = File::open(folder.record_file()).expect("a file");
    let mut others = [lock.try_clone().expect("a descriptor"), reader]
        .map(|file| Command::new("sleep").arg("60").stdin(file).spawn().expect("sleep runs"));
    let found = folder.processes();
    for other in &mut others {
        other.kill().expect("it runs");
        other.wait().expect("it ends");
    }
    // Other tests may be starting processes, which inherit the lock for a moment.
    let is_found = others.map(|other| found.contains(&other.id().cast_signed()));
    assert_eq!(is_found, [true, false]);
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let _gateways = Gateways::new("record");
    let folder = GatewayFolder::new("sat");
    let _lock = folder.lock().expect("a free lock");
    assert_eq!(folder.record(), None);
    // The second one is shorter.
    for written in [record(json!({"name": "sat"})), record(json!({}))] {
        folder.write_record(&written).expect("written");
        assert_eq!(folder.record(), Some(written));
    }
    fs::write(folder.record_file(), r#"{"other": 1}"#).expect("written");
    assert_eq!(folder.record(), None);
}

#[test]
fn counters_and_the_log_may_be_missing_or_broken() {
    let _gateways = Gateways::new("counters");
    let folder = GatewayFolder::new("sat");
    assert_eq!((folder.counters(), folder.last_line()), (None, None));
    assert!(folder.processes().is_empty());
    fs::create_dir_all(&folder.path).expect("a folder");
    fs::write(folder.files().state, "{").expect("written");
    fs::write(folder.log_file(), "\n").expect("written");
    assert_eq!((folder.counters(), folder.last_line()), (None, None));
    fs::write(folder.files().state, r#"{"split_connections": 1}"#).expect("written");
    let state = File::options().write(true).open(folder.files().state).expect("a file");
    state.set_modified(UNIX_EPOCH + Duration::from_secs(7)).expect("a time");
    fs::write(folder.log_file(), "first\nbentpipe-gate: second\n").expect("written");
    assert_eq!(folder.counters(), Some(json!({"split_connections": 1, "unix_s": 7.0})));
    assert_eq!(folder.last_line().as_deref(), Some("second"));
    assert_eq!(folder.why_ended(), "it was killed");
    fs::write(folder.log_file(), "bentpipe-gate: error: out of memory\n").expect("written");
    assert_eq!(folder.why_ended(), "out of memory");
}

/// Given a folder of the user's session, expect it; given one that is not there, expect another.
#[test]
fn the_folder_is_that_of_the_user() {
    let folder = std::env::temp_dir();
    assert_eq!(user_folder(Some(folder.clone())), folder.join("bentpipe-gateways"));
    let name = format!("bentpipe-gateways-{}", geteuid().as_raw());
    assert_eq!(user_folder(Some(folder.join("none"))), folder.join(name));
}
