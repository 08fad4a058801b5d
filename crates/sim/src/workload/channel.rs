//! A channel: one download after another, each over its own TCP connection and from a server drawn
//! at random.
//!
//! The client opens a connection. The server sends the download as soon as it has accepted the
//! connection, without a request, and closes first. When the client has read to the end, it closes,
//! too, and opens the next connection. Neither side is infinitely fast: each adds a small random
//! time.
//!
//! Both ends draw from copies of the same random streams, in the order of the connections, so the
//! server knows the size that the client expects.
//!
//! Servers are at different distances. Both ends have an address for each server, so that packets
//! in both directions are routed by way of that server's access line.

use std::sync::Arc;

use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::packet::{Address, Origin, Packet, Port};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::Sender;
use bentpipe_core::time::{Duration, Instant};

use super::connections::{Connection, Connections};
use super::{Exchange, FlowEnd, Host, TcpEnd, fraction};

/// The sizes of downloads with their weights.
#[derive(Clone, Debug)]
pub struct SizeTable {
    /// Each size with the sum of the weights up to it.
    rows: Arc<[(u64, u64)]>,
}

impl SizeTable {
    /// A table of sizes with their weights, which are positive.
    ///
    /// # Panics
    /// If there is no size.
    #[must_use]
    pub fn new(sizes: &[(u64, u64)]) -> Self {
        assert!(!sizes.is_empty(), "a table has sizes");
        let cumulative = sizes.iter().scan(0, |sum, &(bytes, weight)| {
            *sum += weight;
            Some((bytes, *sum))
        });
        Self { rows: cumulative.collect() }
    }

    /// Draws a size, with one number of the stream.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let (_, total) = self.rows[self.rows.len() - 1];
        let drawn = rng.below(total);
        self.rows[self.rows.partition_point(|row| row.1 <= drawn)].0
    }
}

/// What a connection of a channel downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// The number of the server in the channel's list; 0 without a list.
    pub server: u32,
    /// Its size.
    pub bytes: u64,
}

/// The downloads of a channel, in order.
#[derive(Clone, Debug)]
pub struct Downloads {
    sizes: SizeTable,
    size_rng: Rng,
    servers: u32,
    server_rng: Rng,
}

impl Downloads {
    /// The downloads of the channel `name` in the run with this seed, from one of `servers` servers
    /// each. A run in real time makes the same ones.
    #[must_use]
    pub fn new(sizes: SizeTable, servers: u32, seed: u64, name: &str) -> Self {
        let [size_rng, server_rng] = ["sizes", "servers"].map(|part| stream(seed, name, part));
        Self { sizes, size_rng, servers, server_rng }
    }
}

impl Iterator for Downloads {
    type Item = Download;

    fn next(&mut self) -> Option<Download> {
        let server = match self.servers {
            0 => 0,
            servers => self.server_rng.below(servers.into()) as u32,
        };
        Some(Download { server, bytes: self.sizes.draw(&mut self.size_rng) })
    }
}

/// Times that are drawn uniformly from zero to a maximum.
#[derive(Clone, Debug)]
pub struct ServiceTimes {
    max_ns: u64,
    rng: Rng,
}

impl ServiceTimes {
    /// The times of the client of the channel `name`, up to `max_ns`; no random number is used if
    /// that is zero.
    #[must_use]
    pub fn of_client(max_ns: u64, seed: u64, name: &str) -> Self {
        Self { max_ns, rng: stream(seed, name, "client_jitter") }
    }

    /// The times of the servers of the channel `name`, up to `max_ns`.
    #[must_use]
    pub fn of_server(max_ns: u64, seed: u64, name: &str) -> Self {
        Self { max_ns, rng: stream(seed, name, "server_jitter") }
    }

    /// Draws the next time.
    pub fn draw(&mut self) -> Duration {
        Duration::from_nanos(match self.max_ns {
            0 => 0,
            max_ns => self.rng.below(max_ns + 1),
        })
    }
}

/// A random stream of the channel `name`.
fn stream(seed: u64, name: &str, part: &str) -> Rng {
    Rng::stream(seed, &format!("flow.{name}.{part}"))
}

/// The addresses that an end of a channel has, one for each server, and those of its peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerAddresses {
    /// The address of the first server; the others follow.
    pub servers: Address,
    /// The address of the client for the first server; the others follow.
    pub clients: Address,
    /// The number of servers; 0 if the server is at the gateway, with the flow's own addresses.
    pub count: u32,
}

impl ServerAddresses {
    /// The address of the client for the server with this address.
    fn client_of(&self, server: Address) -> Option<Address> {
        let number = server.0.checked_sub(self.servers.0).filter(|&number| number < self.count)?;
        Some(Address(self.clients.0 + number))
    }
}

/// The settings that both ends share.
#[derive(Clone, Debug)]
pub struct ChannelConfig {
    /// The downloads.
    pub downloads: Downloads,
    /// The addresses.
    pub addresses: ServerAddresses,
    /// The time that this end takes: the client from the end of a connection to the next, the
    /// server from the acceptance of a connection to its first byte.
    pub service: ServiceTimes,
}

/// When the client opens connections.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSchedule {
    /// The start of the first connection.
    pub start: Instant,
    /// No connection starts at or after this time.
    pub end: Instant,
    /// The number of connections; `None` for no limit.
    pub count: Option<u64>,
}

/// The end that downloads.
#[derive(Debug)]
pub struct ChannelClient {
    host: Host,
    config: ChannelConfig,
    /// The hosts of the servers in the plan, for the record.
    servers: Arc<[u32]>,
    schedule: ChannelSchedule,
    connections: Connections,
    /// When the next connection starts; `None` during a connection, and after the last one.
    next_start: Option<Instant>,
    /// Whether no connection follows the last one.
    is_done: bool,
    exchanges: Vec<Exchange>,
    finished_exchanges: u64,
}

impl ChannelClient {
    /// Creates a client. `servers` are the hosts of the servers, by their number.
    #[must_use]
    pub fn new(
        host: Host,
        config: ChannelConfig,
        servers: Arc<[u32]>,
        schedule: ChannelSchedule,
    ) -> Self {
        let connections = Connections::new(&host, Origin::Receiver, false);
        Self {
            host,
            config,
            servers,
            schedule,
            connections,
            next_start: Some(schedule.start),
            is_done: false,
            exchanges: Vec::new(),
            finished_exchanges: 0,
        }
    }

    fn open(&mut self, cx: &mut Cx<'_>) {
        let Some(Download { server, bytes }) = self.config.downloads.next() else { return };
        self.exchanges.push(Exchange {
            start: cx.now(),
            established: None,
            first_byte: None,
            finished: None,
            request_bytes: 0,
            response_bytes: bytes,
            host: self.servers.get(server as usize).copied(),
        });
        let ServerAddresses { servers, count, .. } = self.config.addresses;
        if count > 0 {
            self.host.peer = Address(servers.0 + server);
        }
        let endpoint = self.host.endpoint(Origin::Receiver);
        self.connections.add(endpoint, ()).endpoint.open(cx);
    }

    /// Updates the current download after a packet has arrived.
    fn update(&mut self, cx: &mut Cx<'_>) {
        let (Some(exchange), Some(connection)) =
            (self.exchanges.last_mut(), self.connections.newest())
        else {
            return;
        };
        if self.next_start.is_some() || self.is_done {
            return;
        }
        let endpoint = &connection.endpoint;
        exchange.established = endpoint.stats().established;
        let arrived = endpoint.receiver().delivered();
        if arrived > 0 {
            exchange.first_byte.get_or_insert(cx.now());
        }
        if arrived >= exchange.response_bytes && exchange.finished.is_none() {
            exchange.finished = Some(cx.now());
            self.finished_exchanges += 1;
        }
        if endpoint.receiver().finished() || endpoint.is_reset() {
            self.schedule_next(cx);
        }
    }

    fn schedule_next(&mut self, cx: &mut Cx<'_>) {
        let next = cx.now() + self.config.service.draw();
        let opened = self.exchanges.len() as u64;
        let follows =
            next < self.schedule.end && self.schedule.count.is_none_or(|count| opened < count);
        self.next_start = follows.then_some(next);
        self.is_done = !follows;
    }
}

impl FlowEnd for ChannelClient {
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
        self.finished_exchanges
    }

    fn finished(&self) -> Option<Instant> {
        self.exchanges.last().filter(|_| self.is_done)?.finished
    }

    fn fraction(&self, now: Instant) -> Option<f64> {
        let ChannelSchedule { end, count, .. } = self.schedule;
        Some(fraction(self.finished_exchanges, count, now, end))
    }
}

impl Engine for ChannelClient {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        if let Some(connection) = self.connections.input(cx, &packet) {
            let endpoint = &connection.endpoint;
            if endpoint.receiver().finished() || endpoint.is_reset() {
                connection.close(cx);
            }
            self.update(cx);
            self.connections.remove_closed();
        }
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        if self.next_start.take_if(|at| *at <= cx.now()).is_some() {
            self.open(cx);
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

/// What the server has done on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    /// Nothing: the handshake is not complete.
    Opening,
    /// It has accepted the connection, and writes when the timer of the endpoint expires.
    Accepted,
    /// It has written the download and closed the connection.
    Sent,
}

#[derive(Debug)]
struct Serving {
    bytes: u64,
    service: Service,
}

/// The servers.
#[derive(Debug)]
pub struct ChannelServer {
    host: Host,
    config: ChannelConfig,
    connections: Connections<Serving>,
}

impl ChannelServer {
    /// Creates servers that listen.
    #[must_use]
    pub fn new(host: Host, config: ChannelConfig) -> Self {
        let connections = Connections::new(&host, Origin::Sender, true);
        Self { host, config, connections }
    }

    fn accept(&mut self, client: Option<Address>) {
        let Some(Download { bytes, .. }) = self.config.downloads.next() else { return };
        let own = self.host.peer;
        self.host.peer = client.unwrap_or(own);
        let endpoint = self.host.endpoint(Origin::Sender);
        self.host.peer = own;
        self.connections.add(endpoint, Serving { bytes, service: Service::Opening });
    }
}

fn serve(connection: &mut Connection<Serving>, cx: &mut Cx<'_>) {
    connection.app.service = Service::Sent;
    connection.endpoint.set_app_timer(None);
    connection.endpoint.write(cx, connection.app.bytes);
    connection.close(cx);
}

impl FlowEnd for ChannelServer {
    fn tcp(&self) -> Option<&dyn TcpEnd> {
        Some(&self.connections)
    }

    fn sender(&self) -> Option<&Sender> {
        self.connections.newest().map(|connection| connection.endpoint.sender())
    }
}

impl Engine for ChannelServer {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        let client = self.config.addresses.client_of(packet.destination);
        if self.connections.is_opened_by(&packet) {
            self.accept(client);
        }
        self.connections.set_peer(client.unwrap_or(self.host.peer));
        if let Some(connection) = self.connections.input(cx, &packet) {
            if connection.app.service == Service::Opening && connection.endpoint.is_established() {
                connection.app.service = Service::Accepted;
                connection.endpoint.set_app_timer(Some(cx.now() + self.config.service.draw()));
            }
            if connection.endpoint.is_reset() {
                connection.app.service = Service::Sent;
                connection.endpoint.set_app_timer(None);
                connection.close(cx);
            }
            self.connections.remove_closed();
        }
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.connections.wake(cx);
        for connection in self.connections.open_mut() {
            if connection.endpoint.app_timer().is_some_and(|at| at <= cx.now()) {
                serve(connection, cx);
            }
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.connections.next_wake()
    }

    fn ledger(&self) -> Ledger {
        self.connections.ledger()
    }
}
