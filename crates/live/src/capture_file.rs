//! The file of a capture: it has whole blocks only, and leaves room on the disk for what is written
//! after it.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

/// So much more is reserved than is written, and given back at the end: results are to fit on a disk
/// that the capture has filled.
const RESERVED_BYTES: u64 = 1 << 20;

/// Writes to a file. If that fails, the file ends with what was written whole before.
#[derive(Debug)]
pub(crate) struct CaptureFile {
    file: Arc<File>,
    written_bytes: u64,
    reserved_bytes: u64,
}

impl CaptureFile {
    /// On an empty file.
    pub(crate) fn new(file: Arc<File>) -> Self {
        Self { file, written_bytes: 0, reserved_bytes: 0 }
    }

    fn write_whole(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.written_bytes + bytes.len() as u64;
        if end + RESERVED_BYTES / 2 > self.reserved_bytes {
            let flags = FallocateFlags::KEEP_SIZE;
            match fallocate(
                &self.file,
                flags,
                self.written_bytes,
                end - self.written_bytes + RESERVED_BYTES,
            ) {
                Ok(()) => self.reserved_bytes = end + RESERVED_BYTES,
                Err(error @ (rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT)) => {
                    return Err(error.into());
                }
                // Not every file system can.
                Err(_) => {}
            }
        }
        (&*self.file).write_all(bytes)?;
        self.written_bytes = end;
        Ok(())
    }

    /// Gives back what was reserved, and takes back a part that was written.
    fn cut(&self) {
        // Of a pipe, which has no length, nothing can be taken back.
        let _ = self.file.set_len(self.written_bytes);
    }
}

impl Write for CaptureFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.write_whole(bytes);
        if written.is_err() {
            self.cut();
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        self.cut();
    }
}
