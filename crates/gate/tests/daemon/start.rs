//! How `up` starts a daemon.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::router::{Host, Router};
use crate::setup::{PROGRAM, is_possible};

/// A configuration in a file, whose gateway is ended when this is dropped.
struct Configured {
    name: String,
    path: PathBuf,
}

impl Configured {
    fn new(test: &str) -> Self {
        let name = format!("{test}{}", std::process::id());
        let path = std::env::temp_dir().join(format!("bp-{name}.toml"));
        let sides = "lan.interfaces = ['lan0']\nlink.interfaces = ['wan0']\n";
        let text = format!("name = '{name}'\n{sides}pep.threads = 1\npep.connections = 100\n");
        fs::write(&path, text).expect("a new file");
        Self { name, path }
    }

    /// Runs `up` by a program on the gateway.
    fn up(&self, router: &Router, program: &str, arguments: &[&str]) -> Output {
        router.gateway("sysctl -qw net.ipv4.tcp_mtu_probing=1");
        let mut command = Command::new(program);
        command.args(arguments).arg("up").arg(&self.path);
        router.on(Host::Gateway, || command.output().expect("it runs"))
    }

    fn kill(&self) {
        let done = Command::new(PROGRAM).args(["status", &self.name, "--json"]).output();
        let status: Value = serde_json::from_slice(&done.expect("it runs").stdout).expect("JSON");
        for process in status["processes"].as_array().expect("a list") {
            let process = process.as_i64().and_then(|it| Pid::from_raw(it as i32));
            // A worker ends with its daemon.
            let _ = kill_process(process.expect("a process"), Signal::KILL);
        }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let _ = Command::new(PROGRAM).args(["down", &self.name]).output();
        let _ = fs::remove_file(&self.path);
    }
}

/// Given a gateway that was killed with its network namespace, and the next daemon, whose worker cannot start threads,
/// expect `up` to fail: the counters of the first daemon do not show that the second one is ready.
#[test]
fn up_fails_with_its_own_daemon_after_another_was_killed() {
    if !is_possible() {
        return;
    }
    let configured = Configured::new("stale");
    // Both are there at once, so that the namespace of the second one has another inode number.
    let [first, second] = ["stale1", "stale2"].map(Router::new);
    let done = configured.up(&first, PROGRAM, &[]);
    assert!(done.status.success(), "{done:?}");
    configured.kill();
    drop(first);
    let done = configured.up(&second, "prlimit", &["--nproc=0", PROGRAM]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{said}");
    assert!(said.contains("a worker did not start"), "{said}");
}
