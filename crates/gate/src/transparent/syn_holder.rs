//! The SYN holder: holds SYNs, opens the legs to servers, and lets the SYNs go on to the relay.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::packet_log::PacketLog;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{SendFlags, sendto, sockopt};
use slab::Slab;

use super::SYN_BYTES_MAX;
use super::asymmetric::AsymmetricPaths;
use super::deferred::{Deferred, DeferredSyns};
use super::hold_lease::HoldLease;
use super::pending_accepts::{PendingAccepts, Waiting, version};
use super::recent::Recent;
use super::sockets::Sockets;
use super::syn::{Ends, Syn, Unreachable};
use crate::heartbeat::{Heartbeat, WAKE_TIMEOUT, reason_of_end};
use crate::relay::{ConnectionLimit, Dial, Permit};
use crate::side::Side;

const EVENTS: usize = 256;
/// SYNs that are read before servers' answers have their turn.
const SYNS: usize = 64;
const CHECK: Duration = Duration::from_secs(1);
/// While SYNs wait for the end of earlier connections.
const DEFERRED_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Linux repeats a SYN for 127 s (tcp(7), `tcp_syn_retries`).
const BYPASSED: Duration = Duration::from_secs(127);
/// More than a repeated SYN takes from its client to here.
const SENT_ON: Duration = Duration::from_secs(10);
const STOP: u64 = u64::MAX;
const STALE: u64 = u64::MAX - 1;
/// The tokens of taps are above those of connections.
const TAPS: u64 = 1 << 32;

/// The settings of a SYN holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynHolderConfig {
    /// The most SYNs that are held. Those beyond it pass without the relay.
    pub held: usize,
    /// How long a server may take to answer, and then the client.
    pub connect_limit: Duration,
    /// Whether clients are accepted before their servers have answered.
    pub early_accept: bool,
}

/// The sockets on which SYNs arrive and leave.
#[derive(Debug)]
pub struct Taps {
    /// SYNs from clients on each side.
    pub syns: Vec<(Side, PacketLog)>,
    /// Raw sockets to the relay's listeners for each side, for IPv4 and IPv6.
    pub to_relay: [[OwnedFd; 2]; 2],
    /// Raw sockets to clients whose servers refuse.
    pub refusals: [OwnedFd; 2],
    /// Raw sockets to anywhere.
    pub outside: [OwnedFd; 2],
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct SynHolderCounters {
    /// Connections that the relay was to have.
    pub split: AtomicU64,
    /// Those whose servers refused.
    pub refused: AtomicU64,
    /// Those whose servers did not answer, or could not be reached, or whose clients did not go on.
    pub expired: AtomicU64,
    /// Connections that passed without the relay.
    pub unsplit: AtomicU64,
}

/// A running SYN holder. Dropping it stops it; the SYNs that it holds are lost.
pub struct SynHolder {
    pending: Arc<PendingAccepts>,
    counters: Arc<SynHolderCounters>,
    heartbeat: Heartbeat,
    stop: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<io::Result<()>>>,
}

impl SynHolder {
    /// The most memory for a SYN that is held: the packet, what is noted of it, and its ends in two trees of which the nodes
    /// are half full.
    pub const HELD_BYTES: usize =
        SYN_BYTES_MAX + 2 * size_of::<Held>() + 4 * size_of::<(Ends, Waiting)>();

    /// Starts the thread of a SYN holder.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(
        taps: Taps,
        sockets: Arc<dyn Sockets>,
        (connection_limit, lease): (Arc<ConnectionLimit>, Arc<HoldLease>),
        config: SynHolderConfig,
    ) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (pending, counters) = (Arc::new(PendingAccepts::new(sockets)), Arc::default());
        let heartbeat = Heartbeat::default();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*stop, EventData::new_u64(STOP), EventFlags::IN)?;
        epoll::add(&epoll, &*lease, EventData::new_u64(STALE), EventFlags::IN)?;
        for (number, (_, tap)) in (TAPS..).zip(&taps.syns) {
            epoll::add(&epoll, tap, EventData::new_u64(number), EventFlags::IN)?;
        }
        let worker = Worker {
            epoll,
            taps,
            connection_limit,
            lease,
            config,
            clock: Clock::start(),
            held: Slab::new(),
            ends: BTreeMap::new(),
            deferred: DeferredSyns::default(),
            sent_on: Recent::new(SENT_ON),
            bypassed: Recent::new(BYPASSED),
            paths: AsymmetricPaths::new(),
            pending: Arc::clone(&pending),
            counters: Arc::clone(&counters),
            heartbeat: heartbeat.clone(),
            _stop: Arc::clone(&stop),
        };
        let named = std::thread::Builder::new().name("syn-holder".to_owned());
        let thread = Some(named.spawn(move || worker.run())?);
        Ok(Self { pending, counters, heartbeat, stop, thread })
    }

    /// What the SYN holder has counted so far.
    #[must_use]
    pub fn counters(&self) -> &SynHolderCounters {
        &self.counters
    }

    /// The heartbeat of its thread.
    #[must_use]
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Why the thread has ended, if it has: it failed, or it panicked.
    pub fn failure(&mut self) -> Option<io::Error> {
        let ended = self.thread.take_if(|thread| thread.is_finished())?;
        Some(reason_of_end("the SYN holder", ended))
    }

    /// What a relay needs to find the legs to servers.
    #[must_use]
    pub fn dial(&self) -> Arc<dyn Dial> {
        Arc::clone(&self.pending) as Arc<dyn Dial>
    }
}

impl Drop for SynHolder {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A SYN that waits for its server.
struct Held {
    syn: Syn,
    side: Side,
    server: OwnedFd,
    permit: Permit,
    since: Instant,
}

struct Worker {
    epoll: OwnedFd,
    taps: Taps,
    connection_limit: Arc<ConnectionLimit>,
    lease: Arc<HoldLease>,
    config: SynHolderConfig,
    clock: Clock,
    held: Slab<Held>,
    /// The numbers of all that are held, to know a repeated SYN.
    ends: BTreeMap<Ends, usize>,
    deferred: DeferredSyns,
    /// SYNs that went on to the relay, by their ends and numbers. Another one of those came too late.
    sent_on: Recent<(Ends, u32)>,
    /// Connections that passed without the relay, so that their repeated SYNs pass, too.
    bypassed: Recent<Ends>,
    paths: AsymmetricPaths,
    pending: Arc<PendingAccepts>,
    counters: Arc<SynHolderCounters>,
    heartbeat: Heartbeat,
    /// Kept open for `epoll`.
    _stop: Arc<OwnedFd>,
}

impl Worker {
    fn run(mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::<Event>::uninit(); EVENTS];
        let mut checked = self.clock.now();
        loop {
            let timeout = if self.deferred.is_empty() { WAKE_TIMEOUT } else { DEFERRED_TIMEOUT };
            let events = match epoll::wait(&self.epoll, &mut buffer, Some(&timeout)) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.heartbeat.beat();
            let now = self.clock.now();
            // Taps last: a number that was freed in this round may still have an event in it.
            let (mut tapped, mut stops) = (Vec::new(), false);
            for Event { data, .. } in events.iter().copied() {
                match data.u64() {
                    STOP => stops = true,
                    STALE => {}
                    tap if tap >= TAPS => tapped.push((tap - TAPS) as usize),
                    number => self.answered(number as usize, now),
                }
            }
            if stops {
                return Ok(());
            }
            if self.lease.take_stale() {
                self.discard();
            }
            for tap in tapped {
                self.read(tap, now);
            }
            for Deferred { syn, side, since } in self.deferred.take_due(now) {
                self.open(syn, side, since, now);
            }
            if now.saturating_since(checked) >= CHECK {
                checked = now;
                self.end_expired(now);
            }
        }
    }

    fn read(&mut self, tap: usize, now: Instant) {
        let mut buffer = [0; PacketLog::buffer_bytes(SYN_BYTES_MAX)];
        for _ in 0..SYNS {
            let (side, socket) = &self.taps.syns[tap];
            let side = *side;
            let Ok(packet) = socket.receive(&mut buffer) else { return };
            if !self.lease.holds() {
                continue;
            }
            if self.lease.take_stale() {
                return self.discard();
            }
            // Connection tracking has verified the checksum, or a sender on this machine leaves it to the device.
            if let Some(syn) = Syn::parse(packet, false) {
                self.on_syn(syn, side, now);
            } else if let Some(ends) = Ends::of_other(packet) {
                // A client answers a server, which was not seen to answer, on a connection that the relay does not have.
                self.on_asymmetric(&ends, now);
            }
        }
    }

    /// Reads all that waits, without effect. What was held is repeated by the client.
    fn discard(&self) {
        let mut buffer = [0; PacketLog::buffer_bytes(SYN_BYTES_MAX)];
        for (_, socket) in &self.taps.syns {
            while socket.receive(&mut buffer).is_ok() {}
        }
    }

    fn on_syn(&mut self, syn: Syn, side: Side, now: Instant) {
        let ends = syn.ends();
        if let Some(&number) = self.ends.get(&ends) {
            // A repeated one of a server that has not answered.
            let since = self.held[number].since;
            if self.paths.passes(&ends, side.other(), since, now) {
                self.on_asymmetric(&ends, now);
            }
        } else if self.pending.contains(&ends) {
            self.send(&self.taps.to_relay[side as usize], ends.server, syn.packet());
        } else if self.bypassed.contains(&ends) {
            self.send_on(&syn, side);
        } else if self.paths.contains(&ends) {
            self.pass(&syn, side, now);
        } else if !self.sent_on.contains(&(ends, syn.number())) {
            // One that waits is tried at once when its client repeats it.
            self.deferred.remove(&ends);
            self.open(syn, side, now, now);
        }
    }

    /// The server of this connection answers past the gateway, or so it seems. All SYNs between both hosts pass.
    fn on_asymmetric(&mut self, ends: &Ends, now: Instant) {
        if !self.ends.contains_key(ends) && !self.bypassed.contains(ends) {
            return;
        }
        self.paths.insert(ends, now);
        let client = ends.client.ip();
        let first = Ends { client: SocketAddr::new(client, 0), ..*ends };
        let of_client = self.ends.range(first..).take_while(|(held, _)| held.client.ip() == client);
        let of_both = of_client.filter(|(held, _)| held.server.ip() == ends.server.ip());
        let numbers: Vec<_> = of_both.map(|(_, &number)| number).collect();
        numbers.into_iter().for_each(|number| self.release(number, now));
    }

    /// Lets a SYN pass that was held. The leg to its server sends no reset, since it was not answered.
    fn release(&mut self, number: usize, now: Instant) {
        let Some(Held { syn, side, server, .. }) = self.held.try_remove(number) else { return };
        self.ends.remove(&syn.ends());
        let _ = epoll::delete(&self.epoll, &server);
        drop(server);
        self.pass(&syn, side, now);
    }

    /// Opens the leg to the server; if that is impossible here, the SYN passes without the relay.
    fn open(&mut self, syn: Syn, side: Side, since: Instant, now: Instant) {
        let ends = syn.ends();
        let is_full = self.held.len() + self.deferred.len() >= self.config.held;
        let Some(permit) = (!is_full).then(|| self.connection_limit.take()).flatten() else {
            return self.pass(&syn, side, now);
        };
        if self.config.early_accept {
            count(&self.counters.split);
            let traffic_class = syn.traffic_class();
            self.pending.insert(ends, Waiting { server: None, permit, since: now, traffic_class });
            self.reopen(&syn, side);
            return self.start(&syn, side, now);
        }
        let open = || self.pending.open(ends, side, syn.traffic_class());
        let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
        let opened = open().or_else(|error| {
            if !is_taken(&error) {
                return Err(error);
            }
            // By an earlier connection, of which the leg to the client answers if it is open.
            self.reopen(&syn, side);
            open()
        });
        match opened {
            Ok(server) => self.hold(Held { syn, side, server, permit, since: now }),
            Err(error) if is_taken(&error) => {
                self.deferred.insert(Deferred { syn, side, since }, now);
            }
            Err(_) => self.pass(&syn, side, now),
        }
    }

    /// Sends a SYN to the relay, which answers it.
    fn start(&mut self, syn: &Syn, side: Side, now: Instant) {
        self.sent_on.insert((syn.ends(), syn.number()), now);
        self.send(&self.taps.to_relay[side as usize], syn.ends().server, syn.packet());
    }

    fn pass(&mut self, syn: &Syn, side: Side, now: Instant) {
        count(&self.counters.unsplit);
        self.bypassed.insert(syn.ends(), now);
        self.send_on(syn, side);
    }

    /// Sends a SYN to its server.
    fn send_on(&self, syn: &Syn, side: Side) {
        // Sockets of an earlier connection would take what follows.
        self.reopen(syn, side);
        self.send(&self.taps.outside, syn.ends().server, syn.packet());
    }

    /// Removes sockets of an earlier connection that are in TIME-WAIT. If its leg to the client is open, that answers, and
    /// the client resets it.
    fn reopen(&self, syn: &Syn, side: Side) {
        let (Ends { client, server }, [from_client, from_server]) = (syn.ends(), syn.reopening());
        self.send(&self.taps.to_relay[side as usize], server, &from_client);
        self.send(&self.taps.to_relay[side as usize], client, &from_server);
    }

    fn hold(&mut self, held: Held) {
        let entry = self.held.vacant_entry();
        let token = EventData::new_u64(entry.key() as u64);
        // Without it the client repeats its SYN.
        if epoll::add(&self.epoll, &held.server, token, EventFlags::OUT).is_ok() {
            count(&self.counters.split);
            self.ends.insert(held.syn.ends(), entry.key());
            entry.insert(held);
        }
    }

    fn answered(&mut self, number: usize, now: Instant) {
        let Some(held) = self.held.try_remove(number) else { return };
        let Held { syn, side, server, permit, .. } = held;
        let ends = syn.ends();
        self.ends.remove(&ends);
        // Where it goes has its own epoll. One that is closed may have a copy in the privileged part, of which events
        // would come by a number that another SYN has.
        let _ = epoll::delete(&self.epoll, &server);
        match sockopt::socket_error(&server) {
            Ok(Ok(())) => {
                self.paths.on_answer(&ends, side.other(), now);
                let (server, traffic_class) = (Some(server), syn.traffic_class());
                self.pending.insert(ends, Waiting { server, permit, since: now, traffic_class });
                self.start(&syn, side, now);
            }
            Ok(Err(Errno::CONNREFUSED)) => {
                self.paths.on_answer(&ends, side.other(), now);
                count(&self.counters.refused);
                self.send(&self.taps.refusals, ends.client, &syn.refusal());
            }
            Ok(Err(error)) => {
                count(&self.counters.expired);
                let reason = match error {
                    Errno::NETUNREACH => Unreachable::Network,
                    Errno::HOSTUNREACH => Unreachable::Host,
                    Errno::ACCESS => Unreachable::Prohibited,
                    _ => return,
                };
                self.send(&self.taps.refusals, ends.client, &syn.unreachable(reason));
            }
            Err(_) => count(&self.counters.expired),
        }
    }

    fn send(&self, sockets: &[OwnedFd; 2], to: SocketAddr, packet: &[u8]) {
        let mut to = to;
        let socket = &sockets[version(to) as usize];
        to.set_port(0);
        // A packet that is lost here is repeated by the client, as one that is lost elsewhere.
        let _ = sendto(socket.as_fd(), packet, SendFlags::empty(), &to);
    }

    fn end_expired(&mut self, now: Instant) {
        let limit = self.config.connect_limit;
        let (ends, mut expired) = (&mut self.ends, self.pending.forget_old(now, limit));
        let epoll = &self.epoll;
        self.held.retain(|_, held| {
            let waits = now.saturating_since(held.since) < limit;
            if !waits {
                let _ = epoll::delete(epoll, &held.server);
                ends.remove(&held.syn.ends());
                expired += 1;
            }
            waits
        });
        self.counters.expired.fetch_add(expired, Ordering::Relaxed);
        self.sent_on.forget_old(now);
        self.bypassed.forget_old(now);
        self.paths.forget_old(now);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
