//! Web pages: a lookup of the server's name, TCP and TLS handshakes, the document, and then all
//! objects, by HTTP/1.1 over parallel connections or by HTTP/2 over one. Each page is at another
//! server, so its connections are closed when it is loaded.
//!
//! Both ends draw the content of pages from copies of the same random streams, in the same order.

mod content;
mod handshake;
mod page;

use std::collections::VecDeque;

use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::packet::{Origin, Packet, Port};
use bentpipe_core::tcp::{Endpoint, Sender};
use bentpipe_core::time::{Duration, Instant};

pub use content::PageDraws;

use super::connections::{Connection, Connections};
use super::{FlowEnd, Host, Schedule, TcpEnd, fraction};
use crate::plan::{Http, Tls};
use content::{PageContent, Responses};
use handshake::Handshake;
use page::{PageLoad, connections_of};

/// A query for one address: a header of 12 bytes (RFC 1035, section 4.1.1), the name
/// `www.example.com` in 17, type and class in 4, and an EDNS record in 11 (RFC 6891).
const QUERY_BYTES: u32 = 12 + 17 + 4 + 11;
/// Its answer has an address record of 16 bytes more, whose name is compressed (section 4.1.4).
const ANSWER_BYTES: u32 = QUERY_BYTES + 16;
/// The time after which a stub resolver repeats a query: the default of `timeout` in
/// resolv.conf(5).
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// A page that cannot open a connection yet is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// The settings of pages that both ends share.
#[derive(Clone, Debug)]
pub struct PageConfig {
    /// Bytes of each request.
    pub request_bytes: u64,
    /// The version of HTTP.
    pub http: Http,
    /// The most connections at a time with HTTP/1.1.
    pub connections: u32,
    /// The version of TLS, if any.
    pub tls: Option<Tls>,
    /// Whether the name of the server is looked up.
    pub dns: bool,
    /// What pages consist of.
    pub draws: PageDraws,
}

/// One page, as observed by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The click.
    pub start: Instant,
    /// When the address of the server was known, if it was looked up.
    pub resolved: Option<Instant>,
    /// When the handshakes of TCP and TLS were complete on the first connection.
    pub established: Option<Instant>,
    /// When the first byte of the document arrived.
    pub first_byte: Option<Instant>,
    /// When the last byte of the document arrived.
    pub document: Option<Instant>,
    /// When the last byte of the last object arrived.
    pub finished: Option<Instant>,
    /// Objects beside the document.
    pub objects: u64,
    /// Connections opened.
    pub connections: u64,
    /// Bytes of the responses requested so far.
    pub response_bytes: u64,
}

/// The client's state of a connection.
#[derive(Debug)]
struct ClientStream {
    /// The number of the page, from 0.
    page: u64,
    /// The number of the connection in its page.
    slot: usize,
    responses: Responses,
    /// Flights of the TLS handshake that were sent, the first one with the SYN.
    flights: usize,
    is_ready: bool,
    /// Where the outstanding responses end, in bytes from the start of the connection.
    ends: VecDeque<u64>,
    /// Where the last requested response ends.
    requested_to: u64,
}

/// The page that is being loaded.
#[derive(Debug)]
struct Loading {
    load: PageLoad,
    content: PageContent,
    /// When the query is repeated, until it is answered.
    query_at: Option<Instant>,
}

/// The end that requests pages.
#[derive(Debug)]
pub struct WebClient {
    host: Host,
    config: PageConfig,
    handshake: Handshake,
    schedule: Schedule,
    connections: Connections<ClientStream>,
    /// When the next page starts; `None` during a page and after the last one.
    next_start: Option<Instant>,
    loading: Option<Loading>,
    pages: Vec<Page>,
}

impl WebClient {
    /// Creates a client.
    #[must_use]
    pub fn new(host: Host, config: PageConfig, schedule: Schedule) -> Self {
        Self {
            // A page can be finished while the server still sends its part of a handshake on another
            // connection.
            connections: Connections::new(&host, Origin::Receiver, true).acknowledging_data(),
            handshake: Handshake::of(config.tls),
            next_start: Some(schedule.start),
            loading: None,
            pages: Vec::new(),
            host,
            config,
            schedule,
        }
    }

    fn start_page(&mut self, cx: &mut Cx<'_>) {
        if self.connections.numbers_are_scarce() {
            self.next_start = Some(cx.now() + RETRY);
            return;
        }
        let content = self.config.draws.next_page();
        let PageConfig { http, connections, dns, .. } = self.config;
        let load = PageLoad::new(http, connections, content.objects);
        self.loading = Some(Loading { load, content, query_at: dns.then_some(cx.now()) });
        self.pages.push(Page {
            start: cx.now(),
            resolved: None,
            established: None,
            first_byte: None,
            document: None,
            finished: None,
            objects: content.objects,
            connections: 0,
            response_bytes: 0,
        });
        if dns {
            self.send_query(cx);
        } else {
            self.open_connections(cx);
        }
    }

    /// Sends the query, if its time has come. The page is loaded when it is answered.
    fn send_query(&mut self, cx: &mut Cx<'_>) {
        let Some(Loading { query_at: Some(at), .. }) = &mut self.loading else { return };
        if *at <= cx.now() {
            *at = cx.now() + QUERY_TIMEOUT;
            let number = self.pages.len() as u64 - 1;
            self.connections.send_datagram(cx, QUERY_BYTES, number);
        }
    }

    /// The answer to the query of a page. Those of repeated queries are ignored.
    fn on_answer(&mut self, cx: &mut Cx<'_>, number: u64) {
        let Some(Loading { query_at, .. }) = &mut self.loading else { return };
        if number + 1 == self.pages.len() as u64 && query_at.take().is_some() {
            self.update_page(|page| page.resolved = Some(cx.now()));
            self.open_connections(cx);
        }
    }

    fn update_page(&mut self, update: impl FnOnce(&mut Page)) {
        self.pages.last_mut().map(update);
    }

    /// Opens the connections that the page needs now. The first flight of a TLS handshake waits for
    /// the handshake of TCP.
    fn open_connections(&mut self, cx: &mut Cx<'_>) {
        let Some(Loading { load, content, .. }) = &mut self.loading else { return };
        let page = self.pages.len() as u64 - 1;
        for _ in 0..load.connections_to_open() {
            let slot = load.on_opened();
            let stream = ClientStream {
                page,
                slot,
                responses: content.responses(slot),
                flights: 1,
                is_ready: false,
                ends: VecDeque::new(),
                requested_to: self.handshake.server_bytes(self.handshake.round_trips()),
            };
            let endpoint = self.host.endpoint(Origin::Receiver);
            let connection = self.connections.add(endpoint, stream);
            let flight = self.handshake.client_flight(0);
            if flight > 0 {
                connection.endpoint.write(cx, flight);
            }
            connection.endpoint.open(cx);
        }
        let connections = load.connections() as u64;
        self.update_page(|page| page.connections = connections);
    }

    /// Continues the page after a packet has arrived on one of its connections.
    fn update_connection(&mut self, cx: &mut Cx<'_>, number: u16) {
        let (Some(Loading { load, .. }), Some(page), Some(connection)) =
            (&mut self.loading, self.pages.last_mut(), self.connections.get_mut(number))
        else {
            return;
        };
        let Connection { endpoint, app, .. } = connection;
        if !app.is_ready && !app.advance_handshake(cx, endpoint, self.handshake) {
            return;
        }
        if !load.is_ready(app.slot) {
            load.on_ready(app.slot);
            page.established.get_or_insert(cx.now());
        }
        let delivered = endpoint.receiver().delivered();
        if delivered > self.handshake.server_bytes(self.handshake.round_trips()) {
            page.first_byte.get_or_insert(cx.now());
        }
        let had_document = page.document.is_some();
        while app.ends.front().is_some_and(|&end| end <= delivered) {
            app.ends.pop_front();
            load.on_response(app.slot);
            page.document.get_or_insert(cx.now());
        }
        page.response_bytes += app.send_requests(cx, endpoint, load, &self.config, self.handshake);
        if load.is_finished() {
            self.finish_page(cx);
        } else if !had_document && page.document.is_some() {
            self.open_connections(cx);
        }
    }

    fn finish_page(&mut self, cx: &mut Cx<'_>) {
        self.loading = None;
        self.update_page(|page| page.finished = Some(cx.now()));
        for connection in self.connections.open_mut() {
            connection.close(cx);
        }
        let think = Duration::from_nanos(self.schedule.think_ns.draw());
        let next = Some(cx.now() + think).filter(|&next| next < self.schedule.end);
        let done = self.pages.len() as u64;
        self.next_start = next.filter(|_| self.schedule.count.is_none_or(|count| done < count));
    }
}

impl ClientStream {
    /// Continues the TLS handshake. Returns whether the handshakes of TCP and TLS are complete.
    fn advance_handshake(
        &mut self,
        cx: &mut Cx<'_>,
        endpoint: &mut Endpoint,
        handshake: Handshake,
    ) -> bool {
        let delivered = endpoint.receiver().delivered();
        while self.flights <= handshake.round_trips()
            && delivered >= handshake.server_bytes(self.flights)
        {
            let flight = handshake.client_flight(self.flights);
            self.flights += 1;
            if flight > 0 {
                endpoint.write(cx, flight);
            }
        }
        self.is_ready =
            self.flights > handshake.round_trips() && endpoint.stats().established.is_some();
        self.is_ready
    }

    /// Sends all requests that the page has for this connection. Returns the bytes of their
    /// responses.
    fn send_requests(
        &mut self,
        cx: &mut Cx<'_>,
        endpoint: &mut Endpoint,
        load: &mut PageLoad,
        config: &PageConfig,
        handshake: Handshake,
    ) -> u64 {
        // The end of the TLS handshake goes with the first request.
        let mut bytes =
            if self.flights > handshake.round_trips() + 1 { 0 } else { handshake.last() };
        self.flights = handshake.round_trips() + 2;
        let before = self.requested_to;
        while load.next_request(self.slot).is_some() {
            bytes += config.request_bytes;
            self.requested_to += self.responses.next_bytes();
            self.ends.push_back(self.requested_to);
        }
        if bytes > 0 {
            endpoint.write(cx, bytes);
        }
        self.requested_to - before
    }
}

impl FlowEnd for WebClient {
    fn tcp(&self) -> Option<&dyn TcpEnd> {
        Some(&self.connections)
    }

    fn is_parallel(&self) -> bool {
        true
    }

    fn records(&self) -> bool {
        true
    }

    fn pages(&self) -> &[Page] {
        &self.pages
    }

    fn finished_exchanges(&self) -> u64 {
        self.pages.len() as u64 - u64::from(self.loading.is_some())
    }

    fn finished(&self) -> Option<Instant> {
        self.pages.last().filter(|_| self.next_start.is_none())?.finished
    }

    fn fraction(&self, now: Instant) -> Option<f64> {
        let Schedule { end, count, .. } = self.schedule;
        Some(fraction(self.finished_exchanges(), count, now, end))
    }
}

impl Engine for WebClient {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        let connection = self.connections.input(cx, &packet);
        if let Some(number) = packet.datagram() {
            self.on_answer(cx, number);
        } else if let Some(connection) = connection {
            let (number, page) = (connection.number(), connection.app.page);
            if page + 1 == self.pages.len() as u64 {
                self.update_connection(cx, number);
            }
            self.connections.remove_closed();
        }
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.send_query(cx);
        if self.next_start.take_if(|start| *start <= cx.now()).is_some() {
            self.start_page(cx);
        }
        self.connections.wake(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        let query_at = self.loading.as_ref().and_then(|loading| loading.query_at);
        let timers = self.next_start.into_iter().chain(query_at);
        timers.chain(self.connections.next_wake()).min()
    }

    fn ledger(&self) -> Ledger {
        self.connections.ledger()
    }
}

/// The server's state of a connection.
#[derive(Debug)]
struct ServerStream {
    responses: Responses,
    /// Flights of the TLS handshake that were sent.
    flights: usize,
    /// Responses sent.
    sent: u64,
}

/// The end that sends pages, and answers queries for the names of their servers.
#[derive(Debug)]
pub struct WebServer {
    host: Host,
    config: PageConfig,
    handshake: Handshake,
    connections: Connections<ServerStream>,
    /// The number of the first connection of the next page.
    next_page: u16,
    /// Connections of known pages whose SYN has not arrived yet, by number. The first SYN of a page
    /// arrives before its client opens the others, and they arrive in any order, some after the end
    /// of the page.
    expected: Vec<(u16, ServerStream)>,
}

impl WebServer {
    /// Creates a server that listens.
    #[must_use]
    pub fn new(host: Host, config: PageConfig) -> Self {
        Self {
            connections: Connections::new(&host, Origin::Sender, false),
            handshake: Handshake::of(config.tls),
            next_page: 0,
            expected: Vec::new(),
            host,
            config,
        }
    }

    /// Expects the connections of the next page.
    fn expect_page(&mut self) {
        let content = self.config.draws.next_page();
        let PageConfig { http, connections, .. } = self.config;
        for slot in 0..connections_of(http, connections, content.objects) as usize {
            let responses = content.responses(slot);
            let stream = ServerStream { responses, flights: 0, sent: 0 };
            self.expected.push((self.next_page, stream));
            self.next_page = self.next_page.wrapping_add(1);
        }
    }

    /// Accepts a connection if its SYN arrives for the first time. Others are duplicates: those of
    /// open connections are passed on to them, and those of closed connections are ignored.
    fn on_syn(&mut self, number: u16) {
        if number == self.next_page {
            self.expect_page();
        }
        if let Some(index) = self.expected.iter().position(|expected| expected.0 == number) {
            let (_, stream) = self.expected.swap_remove(index);
            let endpoint = self.host.endpoint(Origin::Sender);
            self.connections.add_numbered(number, endpoint, stream);
        }
    }
}

impl ServerStream {
    /// Sends what the bytes received so far ask for: flights of the TLS handshake, and responses.
    fn respond(
        &mut self,
        cx: &mut Cx<'_>,
        endpoint: &mut Endpoint,
        request_bytes: u64,
        handshake: Handshake,
    ) {
        let received = endpoint.receiver().delivered();
        while self.flights < handshake.round_trips()
            && received >= handshake.client_bytes(self.flights + 1)
        {
            endpoint.write(cx, handshake.server_flight(self.flights));
            self.flights += 1;
        }
        let of_handshake = handshake.client_bytes(handshake.round_trips()) + handshake.last();
        let requested = received.saturating_sub(of_handshake) / request_bytes;
        while self.sent < requested {
            self.sent += 1;
            endpoint.write(cx, self.responses.next_bytes());
        }
    }
}

impl FlowEnd for WebServer {
    fn tcp(&self) -> Option<&dyn TcpEnd> {
        Some(&self.connections)
    }

    fn sender(&self) -> Option<&Sender> {
        self.connections.last().map(|connection| connection.endpoint.sender())
    }
}

impl Engine for WebServer {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        if let Some(segment) = packet.segment().filter(|segment| segment.flags.syn()) {
            self.on_syn(segment.connection);
        }
        let connection = self.connections.input(cx, &packet);
        if let Some(number) = packet.datagram() {
            self.connections.send_datagram(cx, ANSWER_BYTES, number);
        } else if let Some(connection) = connection {
            let Connection { endpoint, app, .. } = connection;
            app.respond(cx, endpoint, self.config.request_bytes, self.handshake);
            if endpoint.receiver().finished() {
                connection.close(cx);
            }
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
mod tests;
