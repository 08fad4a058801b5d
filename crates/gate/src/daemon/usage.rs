//! The memory and the time of the processors that a worker uses.

use std::fs::File;
use std::io;

use rustix::io::pread;
use rustix::time::{ClockId, clock_gettime};

/// `/proc/self/status` (proc(5)), opened before files can no longer be opened.
pub(super) struct Usage(File);

impl Usage {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(File::open(Self::FILE)?))
    }

    const FILE: &str = "/proc/self/status";

    /// `VmRSS`.
    pub(super) fn resident_bytes(&self) -> u64 {
        let mut text = [0; 4_096];
        let bytes = pread(&self.0, &mut text[..], 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..bytes]);
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) * 1_024
    }
}

/// The time of the processors that this process used.
pub(super) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given this process, expect its memory to be more than a page and less than a gigabyte.
    #[test]
    fn the_memory_of_this_process_is_read() {
        let usage = Usage::open().expect("a file");
        assert!((4_097..1 << 30).contains(&usage.resident_bytes()));
    }
}
