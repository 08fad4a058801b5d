//! Requests that are answered, one after the other: over one connection that stays open, or over a
//! connection for each, which the server closes behind its response (a file fetch).
//!
//! Both ends know the sizes of the responses: each has its own copy of the stream they are drawn
//! from, and exchanges happen in order.

use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::packet::{Address, Class, FlowId, Origin, Packet, Port};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::config::CongestionName;
use bentpipe_core::tcp::{Config, Endpoint, Sender};
use bentpipe_core::time::{Duration, Instant};

use super::Draws;
use super::connections::{Connections, Totals};

/// One end's TCP.
#[derive(Debug)]
pub struct Host {
    /// Its settings.
    pub config: Config,
    /// Numbers its SYNs.
    pub initials: Rng,
    /// Draws of each connection's own, from which its congestion control's follow.
    pub cycles: Rng,
    /// The flow of all its packets.
    pub flow: FlowId,
    /// The host at the other end.
    pub peer: Address,
    /// The class of all its packets.
    pub class: Class,
}

impl Host {
    #[inline]
    fn endpoint(&mut self, origin: Origin) -> Endpoint {
        // RFC 9293, 3.4.1: a host starts anywhere; so the wrap is met in ordinary runs.
        let initial = u32::try_from(self.initials.next_u64() >> 32).expect("32 bits");
        let endpoint = Endpoint::new(self.config, self.flow, origin, SeqNumber(initial));
        let endpoint = endpoint.toward(self.peer, self.class);
        if self.config.congestion != CongestionName::Bbr {
            return endpoint;
        }
        endpoint.with_rng(Rng::stream(self.cycles.next_u64(), "connection"))
    }
}

/// What both ends know of the exchanges.
#[derive(Clone, Debug)]
pub struct Exchanges {
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Bytes of the responses; a response has one at least.
    pub response_bytes: Draws,
    /// Whether one connection serves all.
    pub keep_connection: bool,
}

impl Exchanges {
    fn next_response(&mut self) -> u64 {
        self.response_bytes.draw().max(1)
    }
}

/// When the client asks.
#[derive(Debug)]
pub struct Schedule {
    /// The first time.
    pub start: Instant,
    /// Nothing starts at or after this moment.
    pub end: Instant,
    /// From the end of a response to the next request, in nanoseconds.
    pub think_ns: Draws,
    /// How many times; `None` for as many as there is time for.
    pub count: Option<u64>,
}

/// One exchange as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// When the client opened a connection for it, or wrote the request on one that was open.
    pub start: Instant,
    /// When the handshake was complete, if a connection was opened for it.
    pub established: Option<Instant>,
    /// When the first byte of the response arrived.
    pub first_byte: Option<Instant>,
    /// When the whole response had arrived.
    pub finished: Option<Instant>,
    /// Bytes of the request.
    pub request_bytes: u64,
    /// Bytes of the response.
    pub response_bytes: u64,
}

/// The end that asks.
#[derive(Debug)]
pub struct Client {
    host: Host,
    what: Exchanges,
    schedule: Schedule,
    connections: Connections,
    /// When the next exchange starts, if none runs and another will.
    next_start: Option<Instant>,
    /// Bytes that the newest connection had delivered when the exchange that runs began.
    delivered_before: u64,
    exchanges: Vec<Exchange>,
}

impl Client {
    /// A client that follows `schedule`.
    #[must_use]
    pub fn new(host: Host, what: Exchanges, schedule: Schedule) -> Self {
        // A client reads to the end of a connection that its server closes, and closes one that it
        // has no more use for.
        let connections = Connections::new(&host, Origin::Receiver, what.keep_connection);
        let next_start = Some(schedule.start);
        let exchanges = Vec::new();
        Self { host, what, schedule, connections, next_start, delivered_before: 0, exchanges }
    }

    /// The exchanges begun, in order.
    #[must_use]
    pub fn exchanges(&self) -> &[Exchange] {
        &self.exchanges
    }

    /// How many exchanges are finished.
    #[must_use]
    pub fn finished_exchanges(&self) -> u64 {
        let running = self.exchanges.last().is_some_and(|last| last.finished.is_none());
        self.exchanges.len() as u64 - u64::from(running)
    }

    /// When the last exchange was finished, once there will be no more.
    #[must_use]
    pub fn finished(&self) -> Option<Instant> {
        self.exchanges.last().filter(|_| self.next_start.is_none())?.finished
    }

    /// How far the client is, from 0 to 1, at `now`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share for a progress bar")]
    pub fn fraction(&self, now: Instant) -> f64 {
        match self.schedule.count {
            Some(count) => self.finished_exchanges() as f64 / count as f64,
            None => (now.as_nanos() as f64 / self.schedule.end.as_nanos() as f64).min(1.0),
        }
    }

    /// What TCP did at this end.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.connections.totals()
    }

    fn begin(&mut self, cx: &mut Cx<'_>) {
        let request_bytes = self.what.request_bytes;
        self.exchanges.push(Exchange {
            start: cx.now(),
            established: None,
            first_byte: None,
            finished: None,
            request_bytes,
            response_bytes: self.what.next_response(),
        });
        self.delivered_before = 0;
        if self.what.keep_connection
            && let Some(connection) = self.connections.newest_mut()
        {
            self.delivered_before = connection.endpoint.receiver().delivered();
            connection.endpoint.write(cx, request_bytes);
            return;
        }
        let endpoint = self.host.endpoint(Origin::Receiver);
        let connection = self.connections.add(endpoint);
        connection.endpoint.write(cx, request_bytes);
        connection.endpoint.open(cx);
    }

    /// Notes what arrived for the exchange that runs.
    fn follow(&mut self, cx: &mut Cx<'_>) {
        let (Some(exchange), Some(connection)) =
            (self.exchanges.last_mut(), self.connections.newest())
        else {
            return;
        };
        if exchange.finished.is_some() {
            return;
        }
        let established = connection.endpoint.stats().established;
        exchange.established = established.filter(|&at| at >= exchange.start);
        let arrived = connection.endpoint.receiver().delivered() - self.delivered_before;
        if arrived > 0 {
            exchange.first_byte.get_or_insert(cx.now());
        }
        if arrived >= exchange.response_bytes {
            exchange.finished = Some(cx.now());
            self.plan_next(cx);
        }
    }

    fn plan_next(&mut self, cx: &mut Cx<'_>) {
        let think = Duration::from_nanos(self.schedule.think_ns.draw());
        let next = Some(cx.now() + think).filter(|&next| next < self.schedule.end);
        let done = self.exchanges.len() as u64;
        self.next_start = next.filter(|_| self.schedule.count.is_none_or(|count| done < count));
        if self.next_start.is_none()
            && self.what.keep_connection
            && let Some(connection) = self.connections.newest_mut()
        {
            connection.close(cx);
        }
    }
}

impl Engine for Client {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        if let Some(connection) = self.connections.input(cx, &packet) {
            if connection.endpoint.receiver().finished() {
                connection.close(cx);
            }
            self.follow(cx);
            self.connections.settle();
        }
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        if self.next_start.take_if(|start| *start <= cx.now()).is_some() {
            self.begin(cx);
        }
        self.connections.wake(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.next_start.into_iter().chain(self.connections.next_wake()).min()
    }

    fn ledger(&self) -> Ledger {
        self.connections.ledger()
    }
}

/// The end that answers.
#[derive(Debug)]
pub struct Server {
    host: Host,
    what: Exchanges,
    connections: Connections,
    /// Requests answered on the newest connection.
    answered: u64,
}

impl Server {
    /// A server that waits.
    #[must_use]
    pub fn new(host: Host, what: Exchanges) -> Self {
        let connections = Connections::new(&host, Origin::Sender, !what.keep_connection);
        Self { host, what, connections, answered: 0 }
    }

    /// What TCP did at this end.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.connections.totals()
    }

    /// The sending half of the newest connection, if that one is not over.
    #[must_use]
    pub fn sender(&self) -> Option<&Sender> {
        self.connections.newest().map(|connection| connection.endpoint.sender())
    }

    fn answer(&mut self, cx: &mut Cx<'_>) {
        let Some(connection) = self.connections.newest_mut() else { return };
        let asked_bytes = connection.endpoint.receiver().delivered();
        while asked_bytes >= (self.answered + 1) * self.what.request_bytes {
            self.answered += 1;
            let response_bytes = self.what.next_response();
            connection.endpoint.write(cx, response_bytes);
        }
        let closes = !self.what.keep_connection && self.answered > 0;
        if closes || connection.endpoint.receiver().finished() {
            connection.close(cx);
        }
    }
}

impl Engine for Server {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        if self.connections.is_opened_by(&packet) {
            let endpoint = self.host.endpoint(Origin::Sender);
            self.connections.add(endpoint);
            self.answered = 0;
        }
        if self.connections.input(cx, &packet).is_some() {
            self.answer(cx);
            self.connections.settle();
        }
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.connections.wake(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.connections.next_wake()
    }

    fn ledger(&self) -> Ledger {
        self.connections.ledger()
    }
}

#[cfg(test)]
pub(super) mod tests;
