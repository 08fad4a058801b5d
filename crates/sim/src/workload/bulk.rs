//! One transfer over TCP as fast as it goes, by size or by duration.

use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::packet::{Packet, Port};
use bentpipe_core::tcp::Endpoint;
use bentpipe_core::time::Instant;

/// When the application stops writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After so many bytes.
    Bytes(u64),
    /// At this moment.
    Time(Instant),
}

/// The application never runs out before the moment it stops at.
const ENDLESS_BYTES: u64 = 1 << 60;

/// The end that opens the connection, sends, and closes.
#[derive(Debug)]
pub struct BulkSender {
    endpoint: Endpoint,
    until: Until,
    started: bool,
    stopped: bool,
}

impl BulkSender {
    /// A transfer that opens at `start`.
    #[must_use]
    pub fn new(mut endpoint: Endpoint, start: Instant, until: Until) -> Self {
        endpoint.set_app_timer(Some(start));
        Self { endpoint, until, started: false, stopped: false }
    }

    /// This end of the connection.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether all that was to be sent has been acknowledged, and when that was.
    #[must_use]
    pub fn finished(&self) -> Option<Instant> {
        let sender = self.endpoint.sender();
        let done = match self.until {
            Until::Bytes(bytes) => sender.acked_bytes() >= bytes,
            Until::Time(_) => self.stopped && sender.acked_bytes() == sender.sent_bytes(),
        };
        if done { self.endpoint.stats().last_ack } else { None }
    }

    /// How far the transfer is, from 0 to 1, at `now`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share for a progress bar")]
    pub fn fraction(&self, now: Instant) -> f64 {
        match self.until {
            Until::Bytes(bytes) => self.endpoint.sender().acked_bytes() as f64 / bytes as f64,
            Until::Time(end) => (now.as_nanos() as f64 / end.as_nanos() as f64).min(1.0),
        }
    }

    /// It is time to start, and later to stop.
    #[cold]
    #[inline(never)]
    fn act(&mut self, cx: &mut Cx<'_>) {
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

impl Engine for BulkSender {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.endpoint.input(cx, port, packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.endpoint.wake(cx);
        if self.endpoint.app_timer().is_some_and(|at| at <= cx.now()) {
            self.act(cx);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.endpoint.next_wake()
    }

    fn ledger(&self) -> Ledger {
        self.endpoint.ledger()
    }
}

/// The end that accepts the connection, reads all at once, and closes when its peer has.
#[derive(Debug)]
pub struct BulkReceiver {
    endpoint: Endpoint,
    closed: bool,
}

impl BulkReceiver {
    /// An end that waits for its peer.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, closed: false }
    }

    /// This end of the connection.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Engine for BulkReceiver {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.endpoint.input(cx, port, packet);
        // Asked the other way round, each packet would touch one line of the cache more.
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
