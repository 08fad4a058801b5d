//! The relay: threads that accept the connections of clients, open those to servers, and move the
//! data between them without copying it to user space (splice(2)).
//!
//! What a peer does passes through: a FIN as a FIN once all data before it was passed on, a reset as
//! a reset, a closed window as a closed window, because data are read only while the other leg takes
//! them. A process that dies leaves no truncated stream that ends in a FIN: its sockets linger for
//! zero seconds (socket(7)), so that the kernel resets every leg that did not end.

mod connection;
mod counters;
mod legs;
mod one_way;
mod pipes;
mod thread;

pub use counters::Counters;
pub use legs::{LegReport, RTT_LIMITS_US};

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use bentpipe_core::time::Duration;
use bentpipe_sys::clock::Clock;
use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt;

use crate::Side;
use crate::heartbeat::{Heartbeat, reason_of_end};
use thread::Thread;

/// What is asked of the kernel about both legs of a connection.
const EVENTS_OF_LEGS: EventFlags = EventFlags::IN
    .union(EventFlags::PRI)
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// Opens the leg to the server.
pub trait Dial: Send + Sync {
    /// Returns a socket that does not block and is connected, or is connecting, to the server of a connection
    /// that was accepted from a client on this side. The client may have reset it since: then the kernel no longer
    /// tells its address, which is `from`.
    ///
    /// # Errors
    /// The kernel's error. The client's connection is reset.
    fn dial(&self, client: BorrowedFd<'_>, from: SocketAddr, side: Side) -> io::Result<Dialed>;
}

/// A leg to a server.
#[derive(Debug)]
pub struct Dialed {
    /// Its socket, which [`prepare_leg`] was called with.
    pub server: OwnedFd,
    /// Whether the server has answered.
    pub is_connected: bool,
    /// What is dropped when the connection has ended, such as what counts it.
    pub permit: Option<Box<dyn Any + Send>>,
}

/// Makes the kernel reset a connection when its socket is closed, by this process or at its death, and leave urgent data
/// among the others (RFC 6093, section 6). What a listening socket accepts inherits both.
///
/// # Errors
/// The kernel's error.
pub fn prepare_leg(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO))?;
    Ok(sockopt::set_socket_oobinline(socket, true)?)
}

/// The bounds of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of threads.
    pub threads: usize,
    /// The most pipes. Where there is none left, data are copied.
    pub pipes: usize,
    /// The most data that it holds for each direction of a connection, beside the buffers of the sockets.
    pub buffer_bytes: usize,
    /// The time in which the server must answer.
    pub connect_limit: Duration,
    /// The longest time without data in either direction; `None` for no limit.
    pub idle_limit: Option<Duration>,
}

impl Config {
    /// The file descriptors that the relay may open: two sockets for each connection, those of the pipes, and some
    /// for every thread.
    #[must_use]
    pub const fn descriptors(&self, connections: usize) -> usize {
        2 * connections + 2 * self.pipes + 2 * self.threads
    }

    /// The most memory that pipes hold, in the kernel. Socket buffers are beside it.
    #[must_use]
    pub const fn pipe_bytes(&self) -> usize {
        self.pipes * self.buffer_bytes
    }
}

/// A running relay. Dropping it ends its connections with resets.
pub struct Relay {
    stop: Arc<OwnedFd>,
    counters: Arc<Counters>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    heartbeats: Vec<Heartbeat>,
}

impl Relay {
    /// The most memory for a connection that is open: the list of a thread doubles when it is full.
    pub const CONNECTION_BYTES: usize =
        2 * (size_of::<connection::Connection>() + size_of::<usize>());

    /// Starts the threads of a relay for the connections to listening sockets that do not block, from clients on
    /// these sides.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(
        listeners: Vec<(Side, OwnedFd)>,
        dial: Arc<dyn Dial>,
        config: Config,
    ) -> io::Result<Self> {
        listeners.iter().try_for_each(|(_, listener)| prepare_leg(listener))?;
        let listeners = Arc::new(listeners);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let counters = Arc::new(Counters::default());
        let clock = Clock::start();
        let mut relay = Self { stop, counters, threads: Vec::new(), heartbeats: Vec::new() };
        for number in 0..config.threads.max(1) {
            let parts = (Arc::clone(&listeners), Arc::clone(&relay.stop), Arc::clone(&dial));
            let heartbeat = Heartbeat::default();
            relay.heartbeats.push(heartbeat.clone());
            let thread = Thread::new(parts, Arc::clone(&relay.counters), config, clock, heartbeat)?;
            let named = std::thread::Builder::new().name(format!("relay-{number}"));
            relay.threads.push(named.spawn(move || thread.run())?);
        }
        Ok(relay)
    }

    /// What the relay has counted so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The heartbeats of its threads.
    #[must_use]
    pub fn heartbeats(&self) -> &[Heartbeat] {
        &self.heartbeats
    }

    /// Why a thread has ended, if one has: it failed, or it panicked.
    pub fn failure(&mut self) -> Option<io::Error> {
        let ended = self.threads.iter().position(JoinHandle::is_finished)?;
        Some(reason_of_end("a thread of the relay", self.threads.swap_remove(ended)))
    }

    /// Ends all threads; connections that are open are reset.
    ///
    /// # Errors
    /// The first error of a thread.
    pub fn stop(mut self) -> io::Result<()> {
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        rustix::io::write(&*self.stop, &u64::from(1_u8).to_ne_bytes())?;
        let mut ended = self.threads.drain(..).map(JoinHandle::join);
        ended.try_for_each(|each| {
            each.unwrap_or_else(|_| Err(io::Error::other("a thread of the relay panicked")))
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Without threads there is nothing to end; the error of one was for `stop`.
        if !self.threads.is_empty() {
            let _ = self.join();
        }
    }
}
