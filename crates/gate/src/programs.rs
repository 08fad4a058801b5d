//! Programs that change rules, addresses and routes.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use bentpipe_sys::end_with_parent;

/// Runs a program with this standard input, and returns what it prints.
///
/// # Errors
/// It cannot be run, or fails: the message has what it printed.
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{program}: {error}"));
    // A renewal must not come after the death of the process that asked for it.
    let mut child = end_with_parent(&mut command).spawn().map_err(named)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(named)?;
    }
    let output = child.wait_with_output().map_err(named)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} {}: {}", arguments.join(" "), message.trim())))
}
