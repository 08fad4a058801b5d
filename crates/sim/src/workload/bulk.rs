//! A TCP transfer at full speed, of a given size or duration.

use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::packet::{Packet, Port};
use bentpipe_core::tcp::{Endpoint, Sender};
use bentpipe_core::time::Instant;

use super::{FlowEnd, TcpEnd, fraction};

/// When the application stops writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After this many bytes.
    Bytes(u64),
    /// At this time.
    Time(Instant),
}

/// More than a transfer of a given duration can send.
const ENDLESS_BYTES: u64 = 1 << 60;

/// The end that opens the connection, sends and closes.
#[derive(Debug)]
pub struct BulkSender {
    endpoint: Endpoint,
    until: Until,
    started: bool,
    stopped: bool,
}

impl BulkSender {
    /// Creates a sender that opens the connection at `start`.
    #[must_use]
    pub fn new(mut endpoint: Endpoint, start: Instant, until: Until) -> Self {
        endpoint.set_app_timer(Some(start));
        Self { endpoint, until, started: false, stopped: false }
    }

    /// Starts the transfer at the first call, and stops it at the second.
    #[cold]
    #[inline(never)]
    fn on_app_timer(&mut self, cx: &mut Cx<'_>) {
        self.endpoint.set_app_timer(None);
        if self.started {
            self.stopped = true;
            self.endpoint.stop(cx);
            return;
        }
        self.started = true;
        match self.until {
            Until::Bytes(bytes) => {
                self.endpoint.write(cx, bytes);
                self.endpoint.close(cx);
            }
            Until::Time(end) => {
                self.endpoint.set_app_timer(Some(end));
                self.endpoint.write(cx, ENDLESS_BYTES);
            }
        }
        self.endpoint.open(cx);
    }
}

impl FlowEnd for BulkSender {
    fn tcp(&self) -> Option<&dyn TcpEnd> {
        Some(&self.endpoint)
    }

    fn sender(&self) -> Option<&Sender> {
        Some(self.endpoint.sender())
    }

    fn counts_use(&self) -> bool {
        true
    }

    fn finished(&self) -> Option<Instant> {
        let sender = self.endpoint.sender();
        let done = match self.until {
            Until::Bytes(bytes) => sender.acked_bytes() >= bytes,
            Until::Time(_) => self.stopped && sender.acked_bytes() == sender.sent_bytes(),
        };
        if done { self.endpoint.stats().last_ack } else { None }
    }

    fn fraction(&self, now: Instant) -> Option<f64> {
        let acked = self.endpoint.sender().acked_bytes();
        Some(match self.until {
            Until::Bytes(bytes) => fraction(acked, Some(bytes), now, now),
            Until::Time(end) => fraction(acked, None, now, end),
        })
    }
}

impl Engine for BulkSender {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.endpoint.input(cx, port, packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.endpoint.wake(cx);
        if self.endpoint.app_timer().is_some_and(|at| at <= cx.now()) {
            self.on_app_timer(cx);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.endpoint.next_wake()
    }

    fn ledger(&self) -> Ledger {
        self.endpoint.ledger()
    }
}

/// The end that accepts the connection, reads at once, and closes after its peer.
#[derive(Debug)]
pub struct BulkReceiver {
    endpoint: Endpoint,
    closed: bool,
}

impl BulkReceiver {
    /// Creates a receiver that listens.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, closed: false }
    }
}

impl FlowEnd for BulkReceiver {
    fn tcp(&self) -> Option<&dyn TcpEnd> {
        Some(&self.endpoint)
    }
}

impl Engine for BulkReceiver {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.endpoint.input(cx, port, packet);
        // In this order; the other one touches one more cache line per packet.
        if self.endpoint.receiver().finished() && !self.closed {
            self.closed = true;
            self.endpoint.close(cx);
        }
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.endpoint.wake(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.endpoint.next_wake()
    }

    fn ledger(&self) -> Ledger {
        self.endpoint.ledger()
    }
}
