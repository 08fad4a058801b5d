//! The intake: holds SYNs, opens the legs to servers, and lets the SYNs go on to the relay.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::packet_socket::SynSocket;
use bentpipe_sys::tcp_sockets::Version;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{SendFlags, bind, connect, getpeername, getsockname, sendto, sockopt};
use slab::Slab;

use super::sockets::{Side, Sockets};
use super::syn::{Ends, Syn};
use crate::relay::Dial;

const EVENTS: usize = 256;
/// SYNs that are read before servers' answers have their turn.
const SYNS: usize = 64;
/// An IPv6 packet of the smallest MTU: a SYN with data is at most the MTU, and is not held beyond this size.
const SYN_BYTES_MAX: usize = 1_280;
const CHECK: Duration = Duration::from_secs(1);
const CHECK_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const STOP: u64 = u64::MAX;
/// The tokens of taps are above those of connections.
const TAPS: u64 = 1 << 32;

/// The bounds of an intake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntakeConfig {
    /// The most SYNs that are held. Those beyond it pass without the relay.
    pub held: usize,
    /// How long a server may take to answer, and then the client.
    pub connect_limit: Duration,
}

/// The sockets on which SYNs arrive and leave.
#[derive(Debug)]
pub struct Taps {
    /// Copies of SYNs from clients on each side.
    pub syns: Vec<(Side, SynSocket)>,
    /// Raw sockets to the relay's listeners for each side, for IPv4 and IPv6.
    pub to_relay: [[OwnedFd; 2]; 2],
    /// Raw sockets to anywhere.
    pub outside: [OwnedFd; 2],
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct IntakeCounters {
    /// SYNs whose servers accepted.
    pub accepted: AtomicU64,
    /// SYNs whose servers refused.
    pub refused: AtomicU64,
    /// SYNs whose servers did not answer, or could not be reached.
    pub unanswered: AtomicU64,
    /// SYNs that passed without the relay.
    pub passed: AtomicU64,
}

/// Legs to servers that have accepted, until the client's connection is accepted.
type Ready = Mutex<BTreeMap<Ends, (OwnedFd, Instant)>>;

/// A running intake. Dropping it stops it; the SYNs that it holds are lost.
pub struct Intake {
    ready: Arc<Ready>,
    counters: Arc<IntakeCounters>,
    stop: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<io::Result<()>>>,
}

impl Intake {
    /// Starts the thread of an intake.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(taps: Taps, sockets: Arc<dyn Sockets>, config: IntakeConfig) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (ready, counters) = (Arc::default(), Arc::default());
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*stop, EventData::new_u64(STOP), EventFlags::IN)?;
        for (number, (_, tap)) in (TAPS..).zip(&taps.syns) {
            epoll::add(&epoll, tap, EventData::new_u64(number), EventFlags::IN)?;
        }
        let worker = Worker {
            epoll,
            taps,
            sockets,
            config,
            clock: Clock::start(),
            held: Slab::new(),
            ends: BTreeSet::new(),
            ready: Arc::clone(&ready),
            counters: Arc::clone(&counters),
            _stop: Arc::clone(&stop),
        };
        let named = std::thread::Builder::new().name("intake".to_owned());
        let thread = Some(named.spawn(move || worker.run())?);
        Ok(Self { ready, counters, stop, thread })
    }

    /// What the intake has counted so far.
    #[must_use]
    pub fn counters(&self) -> &IntakeCounters {
        &self.counters
    }

    /// What a relay needs to find the legs to servers.
    #[must_use]
    pub fn dial(&self) -> Arc<dyn Dial> {
        Arc::new(Taken(Arc::clone(&self.ready)))
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Taken(Arc<Ready>);

impl Dial for Taken {
    fn dial(&self, client: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let ends = Ends {
            client: getpeername(client)?.ok_or(Errno::NOTCONN)?.try_into()?,
            server: getsockname(client)?.try_into()?,
        };
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&ends);
        found.map(|(server, _)| server).ok_or_else(|| Errno::NOTCONN.into())
    }
}

/// A SYN that waits for its server.
struct Held {
    syn: Syn,
    side: Side,
    server: OwnedFd,
    since: Instant,
}

struct Worker {
    epoll: OwnedFd,
    taps: Taps,
    sockets: Arc<dyn Sockets>,
    config: IntakeConfig,
    clock: Clock,
    held: Slab<Held>,
    /// The ends of all that are held, to know a repeated SYN.
    ends: BTreeSet<Ends>,
    ready: Arc<Ready>,
    counters: Arc<IntakeCounters>,
    /// Kept open for `epoll`.
    _stop: Arc<OwnedFd>,
}

impl Worker {
    fn run(mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::<Event>::uninit(); EVENTS];
        let mut checked = self.clock.now();
        loop {
            let events = match epoll::wait(&self.epoll, &mut buffer, Some(&CHECK_TIMEOUT)) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let now = self.clock.now();
            // Taps last: a number that was freed in this round may still have an event in it.
            let (mut tapped, mut stops) = (Vec::new(), false);
            for Event { data, .. } in events.iter().copied() {
                match data.u64() {
                    STOP => stops = true,
                    tap if tap >= TAPS => tapped.push((tap - TAPS) as usize),
                    number => self.answered(number as usize, now),
                }
            }
            if stops {
                return Ok(());
            }
            for tap in tapped {
                self.read(tap, now);
            }
            if now.saturating_since(checked) >= CHECK {
                checked = now;
                self.end_expired(now);
            }
        }
    }

    fn read(&mut self, tap: usize, now: Instant) {
        let mut buffer = [0; SYN_BYTES_MAX];
        for _ in 0..SYNS {
            let (side, socket) = &self.taps.syns[tap];
            let side = *side;
            let Ok(received) = socket.receive(&mut buffer) else { return };
            if let Some(syn) = Syn::parse(&buffer[..received.bytes], received.has_checksum)
                && !self.ends.contains(&syn.ends())
                && !is_own(syn.ends().server)
            {
                self.hold(syn, side, now);
            }
        }
    }

    /// Opens the leg to the server; if that is impossible here, the SYN passes without the relay.
    fn hold(&mut self, syn: Syn, side: Side, now: Instant) {
        let is_full = self.held.len() >= self.config.held;
        let Some(server) = (!is_full).then(|| self.open(syn.ends(), side.other()).ok()).flatten()
        else {
            count(&self.counters.passed);
            self.send(&self.taps.outside, syn.ends().server, syn.packet());
            return;
        };
        let entry = self.held.vacant_entry();
        let token = EventData::new_u64(entry.key() as u64);
        if epoll::add(&self.epoll, &server, token, EventFlags::OUT).is_ok() {
            self.ends.insert(syn.ends());
            entry.insert(Held { syn, side, server, since: now });
        }
    }

    fn open(&self, ends: Ends, side: Side) -> io::Result<OwnedFd> {
        let server = self.sockets.take(side, version(ends.server))?;
        // Reset, not closed, if this process dies.
        sockopt::set_socket_linger(&server, Some(std::time::Duration::ZERO))?;
        bind(&server, &ends.client)?;
        match connect(&server, &ends.server) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(server),
            Err(error) => Err(error.into()),
        }
    }

    fn answered(&mut self, number: usize, now: Instant) {
        let Some(held) = self.held.try_remove(number) else { return };
        let Held { syn, side, server, .. } = held;
        let ends = syn.ends();
        self.ends.remove(&ends);
        match sockopt::socket_error(&server) {
            Ok(Ok(())) => {
                let _ = epoll::delete(&self.epoll, &server);
                self.ready().insert(ends, (server, now));
                count(&self.counters.accepted);
                self.send(&self.taps.to_relay[side as usize], ends.server, syn.packet());
            }
            Ok(Err(Errno::CONNREFUSED)) => {
                count(&self.counters.refused);
                self.send(&self.taps.outside, ends.client, &syn.refusal());
            }
            _ => count(&self.counters.unanswered),
        }
    }

    fn send(&self, sockets: &[OwnedFd; 2], to: std::net::SocketAddr, packet: &[u8]) {
        let mut to = to;
        let socket = &sockets[version(to) as usize];
        to.set_port(0);
        // A packet that is lost here is repeated by the client, as one that is lost elsewhere.
        let _ = sendto(socket.as_fd(), packet, SendFlags::empty(), &to);
    }

    fn ready(&self) -> std::sync::MutexGuard<'_, BTreeMap<Ends, (OwnedFd, Instant)>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_expired(&mut self, now: Instant) {
        let limit = self.config.connect_limit;
        let (ends, counters) = (&mut self.ends, &self.counters);
        self.held.retain(|_, held| {
            let waits = now.saturating_since(held.since) < limit;
            if !waits {
                ends.remove(&held.syn.ends());
                count(&counters.unanswered);
            }
            waits
        });
        self.ready().retain(|_, (_, since)| now.saturating_since(*since) < limit);
    }
}

/// Whether an address is this host's: only these can be bound to without a privilege. The rules do not hold
/// such connections, either.
fn is_own(address: std::net::SocketAddr) -> bool {
    std::net::UdpSocket::bind((address.ip(), 0)).is_ok()
}

fn version(address: std::net::SocketAddr) -> Version {
    if address.is_ipv4() { Version::V4 } else { Version::V6 }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
