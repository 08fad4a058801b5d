//! What tests and benchmarks in network namespaces require of the machine.

use std::process::Command;

/// What is missing on this machine, if anything: root, or one of these programs.
pub(crate) fn missing(programs: &[&str]) -> Option<String> {
    if !rustix::process::getuid().is_root() {
        return Some("needs root, for network namespaces".to_owned());
    }
    let is_missing = |program: &&str| Command::new(program).arg("--version").output().is_err();
    let missing: Vec<&str> = programs.iter().copied().filter(is_missing).collect();
    let packages: Vec<&str> = missing.iter().map(|program| package(program)).collect();
    (!missing.is_empty())
        .then(|| format!("needs {}: apt install {}", missing.join(" and "), packages.join(" ")))
}

/// The Debian package of a program.
fn package(program: &str) -> &str {
    match program {
        "ip" => "iproute2",
        "nft" => "nftables",
        "wg" => "wireguard-tools",
        _ => program,
    }
}

/// Whether this machine can run a test that needs root and these programs; if not, prints the reason. Panics if
/// `BENTPIPE_REQUIRE_LABS` is set: then the tests of root must run.
#[allow(dead_code, reason = "the benchmarks use this module, too")]
pub(crate) fn is_possible(programs: &[&str]) -> bool {
    let Some(reason) = missing(programs) else { return true };
    let is_root = rustix::process::getuid().is_root();
    assert!(!is_root || std::env::var_os("BENTPIPE_REQUIRE_LABS").is_none(), "{reason}");
    eprintln!("skipped: {reason}");
    false
}
