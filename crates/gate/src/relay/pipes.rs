//! Pipes, which hold the data between two sockets.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Empty pipes that a thread keeps.
const SPARE_MAX: usize = 64;
/// Bytes that are copied at once where there is no pipe.
const COPY_BYTES: usize = 64 * 1024;

/// A pipe, and the number of bytes in it.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) output: OwnedFd,
    pub(super) input: OwnedFd,
    pub(super) bytes: usize,
}

/// The pipes of a thread. A connection without data in flight has none.
pub(super) struct Pipes {
    spare: Vec<Pipe>,
    /// Those that exist, spare ones included, and their largest number.
    open: usize,
    max: usize,
    bytes: usize,
    /// For data that are relayed without a pipe.
    pub(super) copy: Box<[u8]>,
}

impl Pipes {
    /// At most so many pipes, for so many bytes each. Above `fs.pipe-user-pages-soft` (pipe(7)) an unprivileged
    /// user gets smaller ones, which costs system calls only.
    pub(super) fn new(max: usize, bytes: usize) -> Self {
        Self { spare: Vec::new(), open: 0, max, bytes, copy: vec![0; COPY_BYTES].into() }
    }

    /// The most bytes that are moved into an empty pipe.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns an empty pipe, if there may be one more.
    pub(super) fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.spare.pop() {
            return Some(pipe);
        }
        let pipe = (self.open < self.max).then(|| open(self.bytes))?.ok()?;
        self.open += 1;
        Some(pipe)
    }

    /// Takes back a pipe. One with data is closed: they belong to a connection that has failed.
    pub(super) fn give_back(&mut self, pipe: Pipe) {
        if pipe.bytes == 0 && self.spare.len() < SPARE_MAX {
            self.spare.push(pipe);
        } else {
            self.open -= 1;
        }
    }
}

fn open(bytes: usize) -> io::Result<Pipe> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let _ = fcntl_setpipe_size(&input, bytes);
    Ok(Pipe { output, input, bytes: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given two pipes at most, expect no third, and another one in place of one with data of a connection that
    /// failed.
    #[test]
    fn no_more_than_the_maximum_are_open() {
        let mut pipes = Pipes::new(2, 65_536);
        let first = pipes.take().expect("a pipe");
        let mut second = pipes.take().expect("a pipe");
        assert!(pipes.take().is_none());
        second.bytes = 1;
        pipes.give_back(second);
        let third = pipes.take().expect("a pipe");
        assert!(pipes.take().is_none());
        pipes.give_back(first);
        pipes.give_back(third);
        assert_eq!((pipes.spare.len(), pipes.open), (2, 2));
    }
}
