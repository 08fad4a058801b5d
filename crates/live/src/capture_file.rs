//! The capture file: it contains complete blocks only, and leaves disk space for files written
//! after it.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

/// How much more than written is reserved with fallocate(2), and released at the end: result files
/// must fit on a disk that the capture has filled.
const RESERVED_BYTES: u64 = 1 << 20;

/// Writes to a file. After a failed write the file ends with the last complete one.
#[derive(Debug)]
pub(crate) struct CaptureFile {
    file: Arc<File>,
    written_bytes: u64,
    reserved_bytes: u64,
}

impl CaptureFile {
    /// Takes an empty file.
    pub(crate) fn new(file: Arc<File>) -> Self {
        Self { file, written_bytes: 0, reserved_bytes: 0 }
    }

    fn write_complete(&mut self, bytes: &[u8]) -> io::Result<()> {
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
                // Not every file system supports fallocate(2).
                Err(_) => {}
            }
        }
        (&*self.file).write_all(bytes)?;
        self.written_bytes = end;
        Ok(())
    }

    /// Releases the reservation and truncates an incomplete write.
    fn truncate(&self) {
        // A pipe cannot be truncated.
        let _ = self.file.set_len(self.written_bytes);
    }
}

impl Write for CaptureFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.write_complete(bytes);
        if written.is_err() {
            self.truncate();
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        self.truncate();
    }
}
