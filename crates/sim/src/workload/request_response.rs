//! Requests and responses, one after the other: over one persistent connection, or over one
//! connection each, which the server closes after its response (a file fetch).
//!
//! Both ends draw the sizes of the responses from copies of the same random stream, in the same
//! order.
//!
//! A video is a series of exchanges, too: each response is a segment, and the next request follows
//! when the player has room for it.

use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::packet::{Origin, Packet, Port};
use bentpipe_core::tcp::Sender;
use bentpipe_core::time::{Duration, Instant};

use super::connections::Connections;
use super::{Draws, FlowEnd, Host, Playback, Player, SegmentSizes, TcpEnd, fraction};

/// The settings of exchanges that both ends share.
#[derive(Clone, Debug)]
pub struct ExchangeConfig {
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Bytes of the responses.
    pub response_bytes: ResponseSizes,
    /// Whether all exchanges use one connection.
    pub keep_connection: bool,
}

/// The sizes of responses, in order.
#[derive(Clone, Debug)]
pub enum ResponseSizes {
    /// Random, raised to at least 1 byte.
    Drawn(Draws),
    /// Those of the segments of a video.
    Segments(SegmentSizes),
}

impl ExchangeConfig {
    fn next_response(&mut self) -> u64 {
        match &mut self.response_bytes {
            ResponseSizes::Drawn(draws) => draws.draw().max(1),
            ResponseSizes::Segments(sizes) => sizes.next().expect("a request for each segment"),
        }
    }
}

/// When the client sends requests.
#[derive(Debug)]
pub struct Schedule {
    /// The start of the first exchange.
    pub start: Instant,
    /// No exchange starts at or after this time.
    pub end: Instant,
    /// Think time from the end of a response to the next request, in nanoseconds.
    pub think_ns: Draws,
    /// The number of exchanges; `None` for no limit.
    pub count: Option<u64>,
}

/// One exchange, as observed by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// When the client opened a connection for it, or wrote the request on an open one.
    pub start: Instant,
    /// When the handshake was complete, if a connection was opened for it.
    pub established: Option<Instant>,
    /// When the first byte of the response arrived.
    pub first_byte: Option<Instant>,
    /// When the last byte of the response arrived.
    pub finished: Option<Instant>,
    /// Bytes of the request.
    pub request_bytes: u64,
    /// Bytes of the response.
    pub response_bytes: u64,
    /// The host of the server in the plan, if it was drawn for this exchange.
    pub host: Option<u32>,
}

/// The end that sends requests.
#[derive(Debug)]
pub struct Client {
    host: Host,
    config: ExchangeConfig,
    schedule: Schedule,
    connections: Connections,
    /// When the next exchange starts, or after the last one when the last frame of a video is played;
    /// `None` during an exchange.
    app_timer: Option<Instant>,
    /// Whether no exchange follows the last one.
    is_done: bool,
    /// Bytes that the newest connection had delivered before the current exchange.
    delivered_before: u64,
    exchanges: Vec<Exchange>,
    /// The player of a video, which says when requests follow instead of think times.
    player: Option<Box<Player>>,
}

impl Client {
    /// Creates a client.
    #[must_use]
    pub fn new(host: Host, config: ExchangeConfig, schedule: Schedule) -> Self {
        // The client closes a persistent connection first; the server closes all others first.
        let connections = Connections::new(&host, Origin::Receiver, config.keep_connection);
        let app_timer = Some(schedule.start);
        Self {
            host,
            config,
            schedule,
            connections,
            app_timer,
            is_done: false,
            delivered_before: 0,
            exchanges: Vec::new(),
            player: None,
        }
    }

    /// The same client, of a video: a request follows when `player` has room for a segment.
    #[must_use]
    pub fn with_player(self, player: Player) -> Self {
        Self { player: Some(Box::new(player)), ..self }
    }

    fn start_exchange(&mut self, cx: &mut Cx<'_>) {
        let request_bytes = self.config.request_bytes;
        self.exchanges.push(Exchange {
            start: cx.now(),
            established: None,
            first_byte: None,
            finished: None,
            request_bytes,
            response_bytes: self.config.next_response(),
            host: None,
        });
        self.delivered_before = 0;
        if self.config.keep_connection
            && let Some(connection) = self.connections.newest_mut()
        {
            self.delivered_before = connection.endpoint.receiver().delivered();
            connection.endpoint.write(cx, request_bytes);
            return;
        }
        let endpoint = self.host.endpoint(Origin::Receiver);
        let connection = self.connections.add(endpoint, ());
        connection.endpoint.write(cx, request_bytes);
        connection.endpoint.open(cx);
    }

    /// Updates the current exchange after a packet has arrived.
    fn update_exchange(&mut self, cx: &mut Cx<'_>) {
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
            self.schedule_next(cx);
        }
    }

    fn schedule_next(&mut self, cx: &mut Cx<'_>) {
        let next = match &mut self.player {
            None => Some(cx.now() + Duration::from_nanos(self.schedule.think_ns.draw())),
            Some(player) => {
                player.add_segment(cx.now());
                player.next_request()
            }
        };
        let next = next.filter(|&next| next < self.schedule.end);
        let done = self.exchanges.len() as u64;
        self.app_timer = next.filter(|_| self.schedule.count.is_none_or(|count| done < count));
        self.is_done = self.app_timer.is_none();
        if self.is_done
            && let Some(player) = &self.player
        {
            // The flow lasts until the last frame is played.
            self.app_timer = player.end();
        }
        if self.is_done
            && self.config.keep_connection
            && let Some(connection) = self.connections.newest_mut()
        {
            connection.close(cx);
        }
    }
}

impl FlowEnd for Client {
    fn tcp(&self) -> Option<&dyn TcpEnd> {
        Some(&self.connections)
    }

    fn records(&self) -> bool {
        true
    }

    fn exchanges(&self) -> &[Exchange] {
        &self.exchanges
    }

    fn finished_exchanges(&self) -> u64 {
        let running = self.exchanges.last().is_some_and(|last| last.finished.is_none());
        self.exchanges.len() as u64 - u64::from(running)
    }

    fn finished(&self) -> Option<Instant> {
        self.exchanges.last().filter(|_| self.is_done)?.finished
    }

    fn playback(&self, now: Instant) -> Option<Playback> {
        self.player.as_ref().map(|player| player.playback(now))
    }

    fn fraction(&self, now: Instant) -> Option<f64> {
        let Schedule { end, count, .. } = self.schedule;
        Some(fraction(self.finished_exchanges(), count, now, end))
    }
}

impl Engine for Client {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        if let Some(connection) = self.connections.input(cx, &packet) {
            if connection.endpoint.receiver().finished() {
                connection.close(cx);
            }
            self.update_exchange(cx);
            self.connections.remove_closed();
        }
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        if self.app_timer.take_if(|at| *at <= cx.now()).is_some() && !self.is_done {
            self.start_exchange(cx);
        }
        self.connections.wake(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.app_timer.into_iter().chain(self.connections.next_wake()).min()
    }

    fn ledger(&self) -> Ledger {
        self.connections.ledger()
    }
}

/// The end that sends responses.
#[derive(Debug)]
pub struct Server {
    host: Host,
    config: ExchangeConfig,
    connections: Connections,
    /// Responses sent on the newest connection.
    responses: u64,
}

impl Server {
    /// Creates a server that listens.
    #[must_use]
    pub fn new(host: Host, config: ExchangeConfig) -> Self {
        let connections = Connections::new(&host, Origin::Sender, !config.keep_connection);
        Self { host, config, connections, responses: 0 }
    }

    fn respond(&mut self, cx: &mut Cx<'_>) {
        let Some(connection) = self.connections.newest_mut() else { return };
        let requested_bytes = connection.endpoint.receiver().delivered();
        while requested_bytes >= (self.responses + 1) * self.config.request_bytes {
            self.responses += 1;
            let response_bytes = self.config.next_response();
            connection.endpoint.write(cx, response_bytes);
        }
        let closes = !self.config.keep_connection && self.responses > 0;
        if closes || connection.endpoint.receiver().finished() {
            connection.close(cx);
        }
    }
}

impl FlowEnd for Server {
    fn tcp(&self) -> Option<&dyn TcpEnd> {
        Some(&self.connections)
    }

    fn sender(&self) -> Option<&Sender> {
        self.connections.newest().map(|connection| connection.endpoint.sender())
    }

    fn counts_use(&self) -> bool {
        true
    }
}

impl Engine for Server {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        if self.connections.is_opened_by(&packet) {
            let endpoint = self.host.endpoint(Origin::Sender);
            self.connections.add(endpoint, ());
            self.responses = 0;
        }
        if self.connections.input(cx, &packet).is_some() {
            self.respond(cx);
            self.connections.remove_closed();
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
