//! The relay: threads that accept the connections of clients, open those to servers, and move the
//! data between them without copying it to user space (splice(2)).
//!
//! What a peer does passes through: a FIN as a FIN once all data before it was passed on, a reset as
//! a reset, a closed window as a closed window, because data are read only while the other leg takes
//! them. A process that dies leaves no truncated stream that ends in a FIN: its sockets linger for
//! zero seconds (socket(7)), so that the kernel resets every leg that did not end.

mod connection;
mod counters;
mod half;
mod pipes;
mod thread;

pub use counters::Counters;
use pipes::PIPE_BYTES;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use bentpipe_core::time::Duration;
use bentpipe_sys::clock::Clock;
use rustix::event::{EventfdFlags, eventfd};

use thread::Thread;

/// Opens the leg to the server.
pub trait Dial: Send + Sync {
    /// Returns a socket that does not block and is connected, or is connecting, to the server of an
    /// accepted connection.
    ///
    /// # Errors
    /// The kernel's error. The client's connection is reset.
    fn dial(&self, client: BorrowedFd<'_>) -> io::Result<OwnedFd>;
}

/// The bounds of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of threads.
    pub threads: usize,
    /// The most connections at a time, of all threads. Those beyond it are reset.
    pub connections: usize,
    /// The time in which the server must answer.
    pub connect_limit: Duration,
    /// The longest time without data in either direction; `None` for no limit.
    pub idle_limit: Option<Duration>,
}

impl Config {
    /// The file descriptors that the relay may open: two sockets for each connection, and a pipe for each
    /// of its directions. Every thread has some of its own.
    #[must_use]
    pub const fn descriptors(&self) -> usize {
        self.connections * (2 + 2 * 2) + self.threads * (2 + 2 * pipes::SPARE_MAX)
    }

    /// The most memory that pipes hold, in the kernel. Socket buffers are beside it.
    #[must_use]
    pub const fn pipe_bytes(&self) -> usize {
        (self.connections * 2 + self.threads * pipes::SPARE_MAX) * PIPE_BYTES
    }
}

/// A running relay. Dropping it ends its connections with resets.
pub struct Relay {
    stop: Arc<OwnedFd>,
    counters: Arc<Counters>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Relay {
    /// Starts the threads of a relay for the connections to listening sockets that do not block.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(listeners: Vec<OwnedFd>, dial: Arc<dyn Dial>, config: Config) -> io::Result<Self> {
        let listeners = Arc::new(listeners);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let counters = Arc::new(Counters::default());
        let clock = Clock::start();
        let mut relay = Self { stop, counters, threads: Vec::new() };
        for number in 0..config.threads.max(1) {
            let parts = (Arc::clone(&listeners), Arc::clone(&relay.stop), Arc::clone(&dial));
            let thread = Thread::new(parts, Arc::clone(&relay.counters), config, clock)?;
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
