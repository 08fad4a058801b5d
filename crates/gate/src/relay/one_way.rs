//! One direction of a connection.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::pipe::{SpliceFlags, splice};

use super::pipes::{Pipe, Pipes};

/// Bytes after which another connection has its turn.
const TURN_BYTES: u64 = 1 << 20;

/// The direction from one socket to the other. Data are read only while the other socket takes them, so
/// that a reader that is slow closes the window of the sender.
///
/// Events are edge-triggered (epoll(7)), so a turn must not end while it could go on. After each turn that is not
/// unfinished, one of these holds, and each names what makes the next progress:
///
/// - The FIN was passed on: nothing is left to do.
/// - The destination is not writable: its last operation failed with `EAGAIN`, which arms the kernel's next event
///   (`SOCK_NOSPACE`), when a peer's ACK makes space.
/// - The source is not readable, and nothing is held: its last operation failed with `EAGAIN`. As the pipe was empty
///   and there is no urgent data, that says that the source has nothing; the next data or FIN are an event.
///
/// splice(2) fails with `EAGAIN` in front of urgent data, too, however often it is called. Once there were any, the
/// direction is copied instead, and they are passed on as data.
#[derive(Debug, Default)]
pub(super) struct OneWay {
    /// Present while it holds data.
    pipe: Option<Pipe>,
    /// Whether the source may have data.
    readable: bool,
    /// Whether the destination may take data.
    writable: bool,
    /// Whether the source has had urgent data.
    had_urgent: bool,
    fin_read: bool,
    fin_sent: bool,
}

/// How a turn ended.
pub(super) struct Turn {
    /// Bytes that the destination took.
    pub(super) bytes: u64,
    /// Whether there is more to do at once.
    pub(super) is_unfinished: bool,
}

impl OneWay {
    /// Whether the FIN was passed on, and all data before it.
    pub(super) fn is_ended(&self) -> bool {
        self.fin_sent
    }

    /// Notes what the source is ready for.
    pub(super) fn source_ready(&mut self, events: EventFlags) {
        let readable = EventFlags::IN | EventFlags::PRI | EventFlags::RDHUP | EventFlags::HUP;
        self.readable |= events.intersects(readable);
        self.had_urgent |= events.contains(EventFlags::PRI);
    }

    /// Notes what the destination is ready for.
    pub(super) fn destination_ready(&mut self, events: EventFlags) {
        self.writable |= events.contains(EventFlags::OUT);
    }

    /// Moves what is there, up to the bytes of a turn.
    pub(super) fn turn(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        pipes: &mut Pipes,
    ) -> io::Result<Turn> {
        let mut bytes = 0;
        while self.writable && !self.fin_sent {
            if bytes >= TURN_BYTES {
                return Ok(Turn { bytes, is_unfinished: true });
            }
            if self.held() == 0 && !self.fin_read {
                if !self.readable {
                    break;
                }
                let pipe = if self.had_urgent { None } else { pipes.take() };
                match pipe {
                    Some(pipe) => self.read(from, pipe, pipes)?,
                    None => bytes += self.copy(from, to, pipes)?,
                }
            }
            bytes += self.write(to, pipes)?;
            if self.fin_read && self.held() == 0 {
                shutdown(to, Shutdown::Write)?;
                self.fin_sent = true;
            }
        }
        Ok(Turn { bytes, is_unfinished: false })
    }

    /// Gives back the pipe of a connection that has ended.
    pub(super) fn release(&mut self, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give_back(pipe);
        }
    }

    fn held(&self) -> usize {
        self.pipe.as_ref().map_or(0, |pipe| pipe.bytes)
    }

    /// Reads from the source into an empty pipe.
    fn read(&mut self, from: BorrowedFd<'_>, mut pipe: Pipe, pipes: &mut Pipes) -> io::Result<()> {
        match splice(from, None, &pipe.input, None, pipes.bytes(), flags()) {
            Ok(0) => self.fin_read = true,
            Ok(read) => pipe.bytes = read,
            Err(Errno::AGAIN) => self.readable = false,
            Err(Errno::INTR) => {}
            Err(error) => {
                pipes.give_back(pipe);
                return Err(error.into());
            }
        }
        self.keep(pipe, pipes);
        Ok(())
    }

    /// Writes to the destination what the pipe holds.
    fn write(&mut self, to: BorrowedFd<'_>, pipes: &mut Pipes) -> io::Result<u64> {
        let Some(mut pipe) = self.pipe.take() else { return Ok(0) };
        let mut bytes = 0;
        while pipe.bytes > 0 {
            match splice(&pipe.output, None, to, None, pipe.bytes, flags()) {
                Ok(written) => {
                    pipe.bytes -= written;
                    bytes += written as u64;
                }
                Err(Errno::AGAIN) => {
                    self.writable = false;
                    break;
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    pipes.give_back(pipe);
                    return Err(error.into());
                }
            }
        }
        self.keep(pipe, pipes);
        Ok(bytes)
    }

    /// Without a pipe: sends a copy of what waits in the source, and removes there what the destination took. So
    /// nothing is held here.
    fn copy(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        pipes: &mut Pipes,
    ) -> io::Result<u64> {
        let waiting = match recv(from, &mut pipes.copy[..], RecvFlags::PEEK) {
            Ok((0, _)) => {
                self.fin_read = true;
                return Ok(0);
            }
            Ok((waiting, _)) => waiting,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(0);
            }
            Err(Errno::INTR) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let sent = match send(to, &pipes.copy[..waiting], SendFlags::NOSIGNAL) {
            Ok(sent) => sent,
            Err(Errno::AGAIN) => {
                self.writable = false;
                return Ok(0);
            }
            Err(Errno::INTR) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let mut removed = 0;
        while removed < sent {
            // Nothing is copied (tcp(7), MSG_TRUNC).
            match recv(from, &mut pipes.copy[removed..sent], RecvFlags::TRUNC) {
                // What was seen is there: a reset in between is the only way that it is not.
                Ok((0, _)) => return Err(Errno::CONNRESET.into()),
                Ok((_, bytes)) => removed += bytes,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent as u64)
    }

    fn keep(&mut self, pipe: Pipe, pipes: &mut Pipes) {
        if pipe.bytes == 0 {
            pipes.give_back(pipe);
        } else {
            self.pipe = Some(pipe);
        }
    }
}

fn flags() -> SpliceFlags {
    SpliceFlags::NONBLOCK | SpliceFlags::MOVE
}

#[cfg(test)]
mod tests;
