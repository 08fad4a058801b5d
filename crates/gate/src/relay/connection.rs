//! A connection: the legs to the client and to the server, and the two directions between them.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};

use bentpipe_core::time::{Duration, Instant};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::Dialed;
use super::counters::{Counters, End};
use super::legs::Sampled;
use super::one_way::OneWay;
use super::pipes::Pipes;
use crate::Side;

/// A leg of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leg {
    /// To the client.
    Client,
    /// To the server.
    Server,
}

/// See the module documentation.
pub(super) struct Connection {
    client: OwnedFd,
    server: OwnedFd,
    to_server: OneWay,
    to_client: OneWay,
    /// What was counted of the leg to the client, and of that to the server.
    sampled: [Sampled; 2],
    _permit: Option<Box<dyn Any + Send>>,
    /// The side of the client.
    side: Side,
    is_connected: bool,
    /// Whether it is in the list of those with more to do at once.
    pub(super) is_listed: bool,
    /// When data were last relayed, or the connection was opened.
    active: Instant,
}

/// How a turn of a connection ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Bytes that the server's socket took.
    pub(super) to_server: u64,
    /// Bytes that the client's socket took.
    pub(super) to_client: u64,
    /// Whether there is more to do at once.
    pub(super) is_unfinished: bool,
    /// Whether the connection has ended, and how.
    pub(super) end: Option<End>,
}

impl Connection {
    /// Creates a connection. Events tell what its sockets are ready for.
    pub(super) fn new(client: OwnedFd, side: Side, dialed: Dialed, now: Instant) -> Self {
        let Dialed { server, is_connected, permit } = dialed;
        let (to_server, to_client) = (OneWay::default(), OneWay::default());
        Self {
            client,
            server,
            to_server,
            to_client,
            sampled: <[Sampled; 2]>::default(),
            _permit: permit,
            side,
            is_connected,
            is_listed: false,
            active: now,
        }
    }

    pub(super) fn socket(&self, leg: Leg) -> &OwnedFd {
        match leg {
            Leg::Client => &self.client,
            Leg::Server => &self.server,
        }
    }

    /// Notes what a socket is ready for. Returns how the connection ended, if it did.
    pub(super) fn ready(&mut self, leg: Leg, events: EventFlags) -> Option<End> {
        if !self.is_connected && leg == Leg::Server {
            return self.connected(events);
        }
        if events.contains(EventFlags::ERR) {
            return Some(End::Reset);
        }
        let (from, to) = match leg {
            Leg::Client => (&mut self.to_server, &mut self.to_client),
            Leg::Server => (&mut self.to_client, &mut self.to_server),
        };
        from.source_ready(events);
        to.destination_ready(events);
        None
    }

    fn connected(&mut self, events: EventFlags) -> Option<End> {
        if !events.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
            return None;
        }
        match sockopt::socket_error(&self.server) {
            Ok(Ok(())) => {}
            Ok(Err(Errno::CONNREFUSED)) => return Some(End::Refused),
            _ => return Some(End::Expired),
        }
        self.is_connected = true;
        self.to_server.destination_ready(EventFlags::OUT);
        self.to_client.source_ready(events | EventFlags::IN);
        None
    }

    /// Relays in both directions.
    pub(super) fn turn(&mut self, pipes: &mut Pipes, now: Instant) -> Turn {
        if !self.is_connected {
            return Turn::default();
        }
        let (client, server) = (self.client.as_fd(), self.server.as_fd());
        let to_server = self.to_server.turn(client, server, pipes);
        let to_client = self.to_client.turn(server, client, pipes);
        let (Ok(to_server), Ok(to_client)) = (to_server, to_client) else {
            return Turn { end: Some(End::Reset), ..Turn::default() };
        };
        if to_server.bytes + to_client.bytes > 0 {
            self.active = now;
        }
        let is_ended = self.to_server.is_ended() && self.to_client.is_ended();
        Turn {
            to_server: to_server.bytes,
            to_client: to_client.bytes,
            is_unfinished: to_server.is_unfinished || to_client.is_unfinished,
            end: is_ended.then_some(End::Fin),
        }
    }

    /// How the connection ends if it has waited for too long at `now`.
    pub(super) fn expired(
        &self,
        now: Instant,
        connect: Duration,
        idle: Option<Duration>,
    ) -> Option<End> {
        let waited = now.saturating_since(self.active);
        if !self.is_connected {
            return (waited >= connect).then_some(End::Expired);
        }
        idle.is_some_and(|idle| waited >= idle).then_some(End::Idle)
    }

    /// Whether data were relayed since then.
    pub(super) fn was_active_since(&self, then: Instant) -> bool {
        self.active > then
    }

    /// Counts what is new of both legs.
    pub(super) fn sample(&mut self, counters: &Counters) {
        let [client, server] = &mut self.sampled;
        counters.sample(self.side, &self.client, client);
        counters.sample(self.side.other(), &self.server, server);
    }

    /// Closes both sockets. After a FIN in both directions the kernel goes on to send what it holds;
    /// otherwise both peers see a reset.
    pub(super) fn close(mut self, end: End, pipes: &mut Pipes) {
        self.to_server.release(pipes);
        self.to_client.release(pipes);
        if end == End::Fin {
            for socket in [&self.client, &self.server] {
                // If it fails the peer sees a reset, which is wrong only in being too careful.
                let _ = sockopt::set_socket_linger(socket, None);
            }
        }
    }
}
