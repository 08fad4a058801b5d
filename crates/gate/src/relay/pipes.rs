//! Pipes, which hold the data between two sockets.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// The capacity that is asked for. Above `fs.pipe-user-pages-soft` (pipe(7)) an unprivileged user gets
/// less, which costs system calls only.
pub(super) const PIPE_BYTES: usize = 256 * 1024;
/// Empty pipes that a thread keeps.
pub(super) const SPARE_MAX: usize = 64;

/// A pipe, and the number of bytes in it.
pub(super) struct Pipe {
    pub(super) output: OwnedFd,
    pub(super) input: OwnedFd,
    pub(super) bytes: usize,
}

/// The empty pipes of a thread. A connection without data in flight has none.
#[derive(Default)]
pub(super) struct Pipes {
    spare: Vec<Pipe>,
}

impl Pipes {
    /// Returns an empty pipe.
    pub(super) fn take(&mut self) -> io::Result<Pipe> {
        if let Some(pipe) = self.spare.pop() {
            return Ok(pipe);
        }
        let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = fcntl_setpipe_size(&input, PIPE_BYTES);
        Ok(Pipe { output, input, bytes: 0 })
    }

    /// Takes back a pipe. One with data is closed: they belong to a connection that has failed.
    pub(super) fn give_back(&mut self, pipe: Pipe) {
        if pipe.bytes == 0 && self.spare.len() < SPARE_MAX {
            self.spare.push(pipe);
        }
    }
}
