//! A thread of the relay: its connections, and the loop that serves them.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use slab::Slab;

use super::connection::{Connection, Leg};
use super::counters::{Counters, End};
use super::pipes::Pipes;
use super::{Config, Dial};

/// The tokens of listeners are above those of connections.
const LISTENERS: u64 = 1 << 63;
const STOP: u64 = u64::MAX;
const EVENTS: usize = 256;
/// Connections that are accepted before those that are open have their turn.
const ACCEPTS: usize = 64;
/// How often limits of time are checked.
const CHECK: Duration = Duration::from_secs(1);
const CHECK_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// See the module documentation.
pub(super) struct Thread {
    epoll: OwnedFd,
    listeners: Arc<Vec<OwnedFd>>,
    dial: Arc<dyn Dial>,
    counters: Arc<Counters>,
    config: Config,
    clock: Clock,
    connections: Slab<Connection>,
    /// Connections with more to do at once.
    unfinished: VecDeque<usize>,
    pipes: Pipes,
    /// Kept open for `epoll`.
    _stop: Arc<OwnedFd>,
}

impl Thread {
    pub(super) fn new(
        (listeners, stop, dial): (Arc<Vec<OwnedFd>>, Arc<OwnedFd>, Arc<dyn Dial>),
        counters: Arc<Counters>,
        config: Config,
        clock: Clock,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // One thread is woken for each connection.
        let accept = EventFlags::IN | EventFlags::EXCLUSIVE;
        for (token, listener) in (LISTENERS..).zip(&*listeners) {
            epoll::add(&epoll, listener, EventData::new_u64(token), accept)?;
        }
        epoll::add(&epoll, &*stop, EventData::new_u64(STOP), EventFlags::IN)?;
        Ok(Self {
            epoll,
            listeners,
            dial,
            counters,
            config,
            clock,
            connections: Slab::new(),
            unfinished: VecDeque::new(),
            pipes: Pipes::default(),
            _stop: stop,
        })
    }

    /// Serves connections until the relay is stopped.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::<Event>::uninit(); EVENTS];
        let mut checked = self.clock.now();
        loop {
            let timeout = if self.unfinished.is_empty() { CHECK_TIMEOUT } else { NO_WAIT };
            let events = match epoll::wait(&self.epoll, &mut buffer, Some(&timeout)) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let now = self.clock.now();
            let mut accepts = Vec::new();
            for Event { data, flags } in events.iter().copied() {
                match data.u64() {
                    STOP => return Ok(()),
                    token if token >= LISTENERS => accepts.push((token - LISTENERS) as usize),
                    token => self.ready(token, flags, now),
                }
            }
            for _ in 0..self.unfinished.len() {
                let Some(number) = self.unfinished.pop_front() else { break };
                self.connections[number].is_listed = false;
                self.turn(number, now);
            }
            // Last, since a number that was freed in this round may still have an event in it.
            for listener in accepts {
                self.accept(listener, now);
            }
            if now.saturating_since(checked) >= CHECK {
                checked = now;
                self.end_expired(now);
            }
        }
    }

    fn ready(&mut self, token: u64, flags: EventFlags, now: Instant) {
        let number = (token >> 1) as usize;
        let leg = if token & 1 == 0 { Leg::Client } else { Leg::Server };
        let Some(connection) = self.connections.get_mut(number) else { return };
        match connection.ready(leg, flags) {
            Some(end) => self.end(number, end),
            None => self.turn(number, now),
        }
    }

    fn turn(&mut self, number: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let turn = connection.turn(&mut self.pipes, now);
        self.counters.relayed(turn.to_server, turn.to_client);
        if let Some(end) = turn.end {
            self.end(number, end);
        } else if turn.is_unfinished && !connection.is_listed {
            connection.is_listed = true;
            self.unfinished.push_back(number);
        }
    }

    fn end(&mut self, number: usize, end: End) {
        let connection = self.connections.remove(number);
        if connection.is_listed {
            self.unfinished.retain(|&each| each != number);
        }
        self.counters.end(end);
        connection.close(end, &mut self.pipes);
    }

    fn accept(&mut self, listener: usize, now: Instant) {
        for _ in 0..ACCEPTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            // An error is that of one connection, which is gone, or lack of descriptors, which the next round
            // finds again.
            let Ok(client) = accept_with(&self.listeners[listener], flags) else { return };
            if !self.counters.accept(self.config.connections as u64) {
                // Reset, not closed: the client must not take it for the end of the data.
                let _ = rustix::net::sockopt::set_socket_linger(
                    &client,
                    Some(std::time::Duration::ZERO),
                );
                continue;
            }
            if self.open(client, now).is_err() {
                self.counters.end(End::NotConnected);
            }
        }
    }

    fn open(&mut self, client: OwnedFd, now: Instant) -> io::Result<()> {
        rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO))?;
        let server = self.dial.dial(rustix::fd::AsFd::as_fd(&client))?;
        let connection = Connection::new(client, server, now)?;
        let entry = self.connections.vacant_entry();
        for leg in [Leg::Client, Leg::Server] {
            let token = (entry.key() as u64) << 1 | u64::from(leg == Leg::Server);
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&self.epoll, connection.socket(leg), EventData::new_u64(token), flags)?;
        }
        entry.insert(connection);
        Ok(())
    }

    fn end_expired(&mut self, now: Instant) {
        let Config { connect_limit, idle_limit, .. } = self.config;
        let expired: Vec<_> = (self.connections.iter())
            .filter_map(|(number, each)| {
                Some((number, each.expired(now, connect_limit, idle_limit)?))
            })
            .collect();
        for (number, end) in expired {
            self.end(number, end);
        }
    }
}
