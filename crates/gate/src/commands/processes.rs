//! Other processes of this machine, by their folders in `/proc`.

use std::fs;

/// The ids of all processes.
pub(super) fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent of a process; `None` if it has ended.
pub(super) fn parent(process: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // proc_pid_stat(5): the name of the program, in parentheses, may have spaces.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
