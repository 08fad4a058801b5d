//! The calls of the application.

use super::{Endpoint, Handshake};
use crate::engine::Cx;

/// What an application can do, as `epoll` reports it (level-triggered).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Bytes that it can read.
    pub readable: u64,
    /// Whether there is room again in the send buffer; see [`Sender::is_writable`].
    ///
    /// [`Sender::is_writable`]: super::super::Sender::is_writable
    pub writable: bool,
    /// Whether the peer closed its direction, and everything before that was received.
    pub fin: bool,
    /// Whether the peer reset the connection.
    pub reset: bool,
}

impl Endpoint {
    /// Opens the connection by sending a SYN.
    pub fn open(&mut self, cx: &mut Cx<'_>) {
        self.handshake = self.handshake.max(Handshake::SynSent);
        self.flush(cx);
    }

    /// Writes `bytes` of application data. Data written before the connection is established is
    /// queued. No effect on a connection that was aborted or reset.
    pub fn write(&mut self, cx: &mut Cx<'_>, bytes: u64) {
        if self.handshake <= Handshake::Established {
            self.sender.write(cx.now(), bytes);
            self.flush(cx);
        }
    }

    /// Closes the sending side: a FIN follows the written data.
    pub fn close(&mut self, cx: &mut Cx<'_>) {
        if self.handshake <= Handshake::Established {
            self.sender.close();
            self.flush(cx);
        }
    }

    /// Stops sending: unsent data is discarded, and a FIN follows the data sent so far.
    pub fn stop(&mut self, cx: &mut Cx<'_>) {
        if self.handshake <= Handshake::Established {
            self.sender.stop();
            self.flush(cx);
        }
    }

    /// Sets whether the application reads data as soon as it is in order (the default).
    pub fn set_auto_read(&mut self, cx: &mut Cx<'_>, enabled: bool) {
        self.receiver.set_auto_read(enabled);
        self.flush(cx);
    }

    /// Writes as much of `bytes` as the send buffer has room for, and returns that.
    pub fn try_write(&mut self, cx: &mut Cx<'_>, bytes: u64) -> u64 {
        let accepted = bytes.min(self.sender.room());
        if accepted > 0 {
            self.write(cx, accepted);
        }
        accepted
    }

    /// Reads up to `bytes` of the data in order, and returns the number of bytes read. Only for an
    /// application that does not [read at once](Endpoint::set_auto_read).
    pub fn read(&mut self, cx: &mut Cx<'_>, bytes: u64) -> u64 {
        let read = bytes.min(self.receiver.readable());
        if read > 0 {
            self.receiver.read(read);
            if self.receiver.wants_ack(cx.now()) {
                self.flush(cx);
            }
        }
        read
    }

    /// Sets the most unsent data at which the send buffer has room; no limit by default (Linux,
    /// `TCP_NOTSENT_LOWAT`).
    pub fn set_unsent_low_water(&mut self, bytes: u64) {
        self.sender.set_unsent_low_water(bytes);
    }

    /// What the application can do now.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness {
            readable: self.receiver.readable(),
            writable: self.sender.is_writable(),
            fin: self.receiver.finished(),
            reset: self.is_reset(),
        }
    }

    /// Whether the handshake is complete and the connection was not aborted or reset.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.handshake == Handshake::Established
    }

    /// Whether the peer reset the connection.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.handshake == Handshake::Reset
    }

    /// Whether the connection needs no more state: both directions are closed and acknowledged, or
    /// it was aborted or reset.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let is_finished = self.sender.finished() && self.receiver.finished();
        is_finished || self.handshake > Handshake::Established
    }
}
