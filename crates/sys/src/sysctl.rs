//! Sysctls.

use std::io;

/// Writes a sysctl of the calling thread's network namespace.
///
/// # Errors
/// If there is no such sysctl, or it is not writable here.
pub fn set(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(path(name), value)
}

/// Reads a sysctl of the calling thread's network namespace.
///
/// # Errors
/// If there is no such sysctl.
pub fn get(name: &str) -> io::Result<String> {
    std::fs::read_to_string(path(name)).map(|text| text.trim().to_owned())
}

fn path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}
