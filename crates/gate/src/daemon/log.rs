//! The log of the daemon: lines on standard error.

use std::io::{Write, stderr};

/// Writes a line. One that cannot be written, as on a full disk, must not end connections.
pub(super) fn log(line: &str) {
    let _ = writeln!(stderr(), "bentpipe-gate: {line}");
}
