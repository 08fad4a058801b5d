//! Answers requests for the metrics and for the name of their page, on a listener of the loopback interface, and nothing
//! else.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};

use super::State;
use super::metrics::{Bounds, CONTENT_TYPE, text};

/// Clients at a time; others wait in the queue of the listener.
const CLIENTS_MAX: usize = 8;
/// The longest request. That of Prometheus has some 300 bytes.
const REQUEST_BYTES_MAX: usize = 4_096;
/// The time for a request and its answer.
const TIME_LIMIT: Duration = Duration::from_secs(2);
const CHECK_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

const METHODS: [(&str, bool); 2] = [("GET", false), ("HEAD", true)];
const PAGES: [(&str, Page); 2] = [("/metrics", Page::Metrics), ("/", Page::Index)];
const INDEX: &str = "The metrics are at /metrics.\n";

/// What a client may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The metrics.
    Metrics,
    /// A line that names their page.
    Index,
}

/// What the first bytes of a client are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// There must be more.
    Incomplete,
    /// A request for a page, or for its header alone (HEAD).
    Page {
        /// The page.
        page: Page,
        /// Whether it is for the header alone.
        is_head: bool,
    },
    /// Anything else: the connection is closed without an answer.
    Other,
}

impl Request {
    /// Parses a request of HTTP/1 (RFC 9112): the first line must be one of which the answer is known, and an empty
    /// line must end the fields, which are not read.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        for ((method, is_head), (path, page)) in
            METHODS.into_iter().flat_map(|method| PAGES.map(|page| (method, page)))
        {
            for version in ["1.1", "1.0"] {
                let line = format!("{method} {path} HTTP/{version}\r\n");
                let common = line.len().min(bytes.len());
                if line.as_bytes()[..common] == bytes[..common] {
                    // The line ends with half of the empty line, if there are no fields.
                    let rest = bytes.get(line.len() - 2..).unwrap_or_default();
                    return Self::of_fields(bytes, rest, Self::Page { page, is_head });
                }
            }
        }
        Self::Other
    }

    fn of_fields(bytes: &[u8], rest: &[u8], whole: Self) -> Self {
        match rest.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(at) if at + 4 == rest.len() => whole,
            // Bytes after the fields would be a body or a second request.
            Some(_) => Self::Other,
            None if bytes.len() >= REQUEST_BYTES_MAX => Self::Other,
            None => Self::Incomplete,
        }
    }
}

/// Opens the listener.
///
/// # Errors
/// The kernel's error with the address.
pub(super) fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let listen = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok::<_, io::Error>(listener.into())
    };
    listen().map_err(|error| {
        let message = format!(
            "metrics_listen: listening on {address}: {error}; to fix it: another address or port of the loopback \
             interface"
        );
        io::Error::new(error.kind(), message)
    })
}

/// The latest reports of all workers.
#[derive(Clone, Default)]
pub(super) struct Latest(Arc<Mutex<State>>);

impl Latest {
    pub(super) fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn get(&self) -> State {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Starts a thread that serves the metrics; `bounds` are those of a PEP.
pub(super) fn serve(listener: OwnedFd, latest: &Latest, bounds: Option<Bounds>) -> io::Result<()> {
    let server = Server { listener, latest: latest.clone(), bounds };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(move || server.run())?;
    Ok(())
}

/// See the module documentation.
struct Server {
    listener: OwnedFd,
    latest: Latest,
    bounds: Option<Bounds>,
}

struct Client {
    socket: OwnedFd,
    request: Vec<u8>,
    /// What was not sent yet, when the request is whole.
    reply: Option<Vec<u8>>,
    since: Instant,
}

impl Server {
    /// Serves until the process ends.
    fn run(&self) -> io::Result<()> {
        let clock = Clock::start();
        let mut clients: Vec<Client> = Vec::new();
        loop {
            let mut polled: Vec<_> = clients
                .iter()
                .map(|client| {
                    let sends = client.reply.is_some();
                    PollFd::new(&client.socket, if sends { PollFlags::OUT } else { PollFlags::IN })
                })
                .collect();
            if clients.len() < CLIENTS_MAX {
                polled.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            match poll(&mut polled, Some(&CHECK_TIMEOUT)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            drop(polled);
            let now = clock.now();
            clients.retain_mut(|client| {
                client.turn(|page, is_head| self.reply(page, is_head))
                    && now.saturating_since(client.since) < TIME_LIMIT
            });
            self.accept(&mut clients, now);
        }
    }

    fn accept(&self, clients: &mut Vec<Client>, now: Instant) {
        while clients.len() < CLIENTS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&self.listener, flags) else { return };
            clients.push(Client { socket, request: Vec::new(), reply: None, since: now });
        }
    }

    fn reply(&self, page: Page, is_head: bool) -> Vec<u8> {
        let body = match page {
            Page::Metrics => text(&self.latest.get(), self.bounds.as_ref()),
            Page::Index => INDEX.to_owned(),
        };
        let mut reply = Vec::new();
        let _ = write!(
            reply,
            "HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
            body.len(),
            if is_head { "" } else { &body }
        );
        reply
    }
}

impl Client {
    /// Reads and writes what is possible now. Returns whether there is more to do.
    fn turn(&mut self, reply: impl FnOnce(Page, bool) -> Vec<u8>) -> bool {
        if self.reply.is_none() {
            let mut piece = [0; REQUEST_BYTES_MAX];
            match recv(&self.socket, &mut piece, RecvFlags::empty()) {
                Ok((0, _)) => return false,
                Ok((bytes, _)) => self.request.extend_from_slice(&piece[..bytes]),
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
            match Request::parse(&self.request) {
                Request::Incomplete => return true,
                Request::Other => return false,
                Request::Page { page, is_head } => self.reply = Some(reply(page, is_head)),
            }
        }
        let Some(reply) = &mut self.reply else { return true };
        match send(&self.socket, reply, SendFlags::NOSIGNAL) {
            Ok(bytes) => {
                reply.drain(..bytes);
            }
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
        if reply.is_empty() {
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
        !reply.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given requests of curl truncated at any byte, expect them to be incomplete, and whole at their end; given
    /// anything else, expect no answer.
    #[test]
    fn only_known_pages_are_answered() {
        for (method, is_head) in METHODS {
            for (path, page) in PAGES {
                for rest in ["1.1\r\nHost: 127.0.0.1:9100\r\nAccept: */*\r\n\r\n", "1.0\r\n\r\n"] {
                    let whole = format!("{method} {path} HTTP/{rest}");
                    for end in 0..whole.len() {
                        let parsed = Request::parse(&whole.as_bytes()[..end]);
                        assert_eq!(parsed, Request::Incomplete, "{whole:?} {end}");
                    }
                    assert_eq!(Request::parse(whole.as_bytes()), Request::Page { page, is_head });
                }
            }
        }
        for other in [
            &b"GET /other HTTP/1.1\r\n\r\n"[..],
            b"POST /metrics HTTP/1.1\r\n\r\n",
            b"GET /metrics?name=x HTTP/1.1\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n",
            &[0; 10],
        ] {
            assert_eq!(Request::parse(other), Request::Other);
        }
        let long = [&b"GET /metrics HTTP/1.1\r\nA: "[..], &[b'x'; REQUEST_BYTES_MAX]].concat();
        assert_eq!(Request::parse(&long), Request::Other);
    }
}
