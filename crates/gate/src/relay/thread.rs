//! A thread of the relay: its connections, and the loop that serves them.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with};
use slab::Slab;

use super::connection::{Connection, Leg};
use super::counters::{Counters, End};
use super::pipes::Pipes;
use super::{Config, Dial, EVENTS_OF_LEGS};
use crate::Side;
use crate::heartbeat::{Heartbeat, WAKE_TIMEOUT};

/// The tokens of listeners are above those of connections.
const LISTENERS: u64 = 1 << 63;
const STOP: u64 = u64::MAX;
const EVENTS: usize = 256;
/// Connections that are accepted before those that are open have their turn.
const ACCEPTS: usize = 64;
/// How often limits of time are checked.
const CHECK: Duration = Duration::from_secs(1);
/// Connections whose legs are sampled in one check; with more active ones each has its turn.
const SAMPLES: usize = 256;
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What all threads share.
pub(super) type Parts = (Arc<Vec<(Side, OwnedFd)>>, Arc<OwnedFd>, Arc<dyn Dial>);

/// See the module documentation.
pub(super) struct Thread {
    epoll: OwnedFd,
    listeners: Arc<Vec<(Side, OwnedFd)>>,
    dial: Arc<dyn Dial>,
    counters: Arc<Counters>,
    config: Config,
    clock: Clock,
    heartbeat: Heartbeat,
    connections: Slab<Connection>,
    /// Connections with more to do at once.
    unfinished: VecDeque<usize>,
    pipes: Pipes,
    /// Where the samples of the next check begin.
    sampled_up_to: usize,
    /// Kept open for `epoll`.
    _stop: Arc<OwnedFd>,
}

impl Thread {
    pub(super) fn new(
        (listeners, stop, dial): Parts,
        counters: Arc<Counters>,
        config: Config,
        clock: Clock,
        heartbeat: Heartbeat,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // One thread is woken for each connection.
        let accept = EventFlags::IN | EventFlags::EXCLUSIVE;
        for (token, (_, listener)) in (LISTENERS..).zip(&*listeners) {
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
            heartbeat,
            connections: Slab::new(),
            unfinished: VecDeque::new(),
            pipes: Pipes::new(config.pipes / config.threads.max(1), config.buffer_bytes),
            sampled_up_to: 0,
            _stop: stop,
        })
    }

    /// Serves connections until the relay is stopped.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::<Event>::uninit(); EVENTS];
        let mut checked = self.clock.now();
        loop {
            let timeout = if self.unfinished.is_empty() { WAKE_TIMEOUT } else { NO_WAIT };
            let events = match epoll::wait(&self.epoll, &mut buffer, Some(&timeout)) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.heartbeat.beat();
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
                self.sample(checked);
                self.end_expired(now);
                checked = now;
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
        // A round with many turns is no hang.
        self.heartbeat.beat();
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
        let mut connection = self.connections.remove(number);
        if connection.is_listed {
            self.unfinished.retain(|&each| each != number);
        }
        connection.sample(&self.counters);
        self.counters.end(end);
        // The privileged part may still have a copy of a leg that it opened. Until that is closed, the kernel would
        // go on to report the leg, by a number that the next connection has.
        let _ = epoll::delete(&self.epoll, connection.socket(Leg::Server));
        connection.close(end, &mut self.pipes);
    }

    fn accept(&mut self, listener: usize, now: Instant) {
        for _ in 0..ACCEPTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (side, listener) = &self.listeners[listener];
            let side = *side;
            // An error is that of one connection, which is gone, or lack of descriptors, which the next round
            // finds again.
            let Ok((client, from)) = acceptfrom_with(listener, flags) else { return };
            self.counters.accept();
            if self.open(client, from, side, now).is_err() {
                self.counters.end(End::Reset);
            }
        }
    }

    fn open(
        &mut self,
        client: OwnedFd,
        from: Option<SocketAddrAny>,
        side: Side,
        now: Instant,
    ) -> io::Result<()> {
        let from = from.ok_or(Errno::NOTCONN)?.try_into()?;
        let dialed = self.dial.dial(client.as_fd(), from, side)?;
        let connection = Connection::new(client, side, dialed, now);
        let entry = self.connections.vacant_entry();
        for leg in [Leg::Client, Leg::Server] {
            let token = (entry.key() as u64) << 1 | u64::from(leg == Leg::Server);
            let token = EventData::new_u64(token);
            epoll::add(&self.epoll, connection.socket(leg), token, EVENTS_OF_LEGS)?;
        }
        entry.insert(connection);
        Ok(())
    }

    /// Samples the legs of connections that relayed data since then.
    fn sample(&mut self, then: Instant) {
        let end = self.connections.capacity();
        let mut samples = 0;
        for number in (self.sampled_up_to..end).chain(0..self.sampled_up_to.min(end)) {
            let Some(connection) = self.connections.get_mut(number) else { continue };
            if connection.was_active_since(then) {
                connection.sample(&self.counters);
                samples += 1;
                if samples == SAMPLES {
                    self.sampled_up_to = number + 1;
                    break;
                }
            }
        }
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
