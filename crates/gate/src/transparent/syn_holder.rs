//! The SYN holder: the thread that carries out what the admission of connections decides on SYNs.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bentpipe_core::pep::{AdmissionConfig, AdmissionCounters, Answer, Decision, Reply};
use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::packet_log::PacketLog;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{SendFlags, sendto, sockopt};
use slab::Slab;

use super::SYN_BYTES_MAX;
use super::hold_lease::{HoldLease, HoldState};
use super::shared_admission::{DaemonAdmission, HeldSyn, PendingLeg, SharedAdmission, version};
use super::sockets::Sockets;
use super::syn::{Ends, Syn, Unreachable};
use crate::Side;
use crate::heartbeat::{Heartbeat, WAKE_TIMEOUT, reason_of_end};
use crate::relay::Dial;

const EVENTS: usize = 256;
/// SYNs that are read before servers' answers have their turn.
const SYNS: usize = 64;
/// The most SYNs that wait for the lease to be renewed here.
const WAITING_MAX: usize = 512;
const CHECK: Duration = Duration::from_secs(1);
/// The most SYNs that went on to the relay and may have to do so again. Nearly all are accepted within a millisecond.
const HANDED_MAX: usize = 64;
/// The first time after which one does. It is above the round-trip time of a satellite link, and below the time after which a
/// client repeats its SYN (RFC 6298).
const HANDED_AGAIN: Duration = Duration::from_millis(700);
/// While SYNs wait for the end of earlier connections, or for the lease to be renewed here.
const DEFERRED_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
const STOP: u64 = u64::MAX;
/// The tokens of taps are above those of legs.
const TAPS: u64 = 1 << 32;

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

/// A running SYN holder. Dropping it stops it; the SYNs that it holds are lost.
pub struct SynHolder {
    admission: Arc<SharedAdmission>,
    heartbeat: Heartbeat,
    stop: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<io::Result<()>>>,
}

impl SynHolder {
    /// The most memory for a SYN that is held: the packet, its entry in the admission, and its leg, in a list that doubles
    /// when it is full.
    pub const HELD_BYTES: usize =
        SYN_BYTES_MAX + DaemonAdmission::ENTRY_BYTES + 2 * size_of::<(usize, Ends, OwnedFd)>();

    /// Starts the thread of a SYN holder.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(
        taps: Taps,
        sockets: Arc<dyn Sockets>,
        lease: Arc<HoldLease>,
        config: AdmissionConfig,
    ) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let admission = Arc::new(SharedAdmission::new(config, sockets));
        let heartbeat = Heartbeat::default();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*stop, EventData::new_u64(STOP), EventFlags::IN)?;
        for (number, (_, tap)) in (TAPS..).zip(&taps.syns) {
            epoll::add(&epoll, tap, EventData::new_u64(number), EventFlags::IN)?;
        }
        let worker = Worker {
            epoll,
            emptied: vec![lease.now(); taps.syns.len()],
            taps,
            lease,
            waiting: VecDeque::new(),
            legs: Slab::new(),
            handed: VecDeque::new(),
            admission: Arc::clone(&admission),
            heartbeat: heartbeat.clone(),
            _stop: Arc::clone(&stop),
        };
        let named = std::thread::Builder::new().name("syn-holder".to_owned());
        let thread = Some(named.spawn(move || worker.run())?);
        Ok(Self { admission, heartbeat, stop, thread })
    }

    /// What the admission has counted so far.
    #[must_use]
    pub fn counters(&self) -> AdmissionCounters {
        self.admission.lock().counters()
    }

    /// The connections that are split now, those with a handshake that has not ended included, and their largest number so
    /// far.
    #[must_use]
    pub fn connections(&self) -> (usize, usize) {
        let admission = self.admission.lock();
        (admission.connections(), admission.max_connections())
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
        Arc::clone(&self.admission) as Arc<dyn Dial>
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

struct Worker {
    epoll: OwnedFd,
    taps: Taps,
    /// When nothing waited in each tap for SYNs the last time that is known.
    emptied: Vec<Instant>,
    lease: Arc<HoldLease>,
    /// SYNs that the rules have held, while the lease has ended here, with the earliest time at which they can have arrived.
    waiting: VecDeque<(Instant, Syn, Side)>,
    /// The legs of SYNs that are held; their numbers are their tokens.
    legs: Slab<(Ends, OwnedFd)>,
    /// SYNs that went on to the relay, with the time of it.
    handed: VecDeque<(Instant, Syn, Side)>,
    admission: Arc<SharedAdmission>,
    heartbeat: Heartbeat,
    /// Kept open for `epoll`.
    _stop: Arc<OwnedFd>,
}

impl Worker {
    fn run(mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::<Event>::uninit(); EVENTS];
        let mut checked = self.lease.now();
        loop {
            let waits = !self.waiting.is_empty() || self.admission.lock().next_due_at().is_some();
            let timeout = if waits { DEFERRED_TIMEOUT } else { WAKE_TIMEOUT };
            let asked = self.lease.now();
            let events = match epoll::wait(&self.epoll, &mut buffer, Some(&timeout)) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.heartbeat.beat();
            let now = self.lease.now();
            // Taps last: a number that was freed in this round may still have an event in it.
            let (mut tapped, mut stops) = (Vec::new(), false);
            for Event { data, .. } in events.iter().copied() {
                match data.u64() {
                    STOP => stops = true,
                    tap if tap >= TAPS => tapped.push((tap - TAPS) as usize),
                    number => self.on_answer(number as usize, now),
                }
            }
            if stops {
                return Ok(());
            }
            if events.len() < EVENTS {
                // All that had something to be read are among them.
                let emptied = self.emptied.iter_mut().enumerate();
                let others = emptied.filter(|(tap, _)| !tapped.contains(tap));
                others.for_each(|(_, emptied)| *emptied = asked);
            }
            for tap in tapped {
                self.read(tap, now);
            }
            self.retry_waiting();
            self.retry(now);
            self.hand_again(now);
            if now.saturating_since(checked) >= CHECK {
                checked = now;
                let expired = self.admission.lock().expire(now);
                expired.iter().for_each(|held| self.close(held));
            }
        }
    }

    fn read(&mut self, tap: usize, now: Instant) {
        let mut buffer = [0; PacketLog::buffer_bytes(SYN_BYTES_MAX)];
        for _ in 0..SYNS {
            let (side, socket) = &self.taps.syns[tap];
            let (side, arrived) = (*side, self.emptied[tap]);
            let Ok(packet) = socket.receive(&mut buffer) else {
                self.emptied[tap] = now;
                return;
            };
            // Connection tracking has verified the checksum, or a sender on this machine leaves it to the device.
            if let Some(syn) = Syn::parse(packet, false) {
                self.on_syn(arrived, syn, side);
            } else if let Some(ends) = Ends::of_other(packet)
                && self.lease.holds(self.lease.now())
            {
                // A client answers a server, which was not seen to answer, on a connection that the relay does not have.
                self.on_asymmetric(&ends, now);
            }
        }
    }

    /// A SYN that was held, and arrived at this time at the earliest. One that is dropped is repeated by its client.
    fn on_syn(&mut self, arrived: Instant, syn: Syn, side: Side) {
        // The thread may not have run since it woke up, while the lease ended.
        let now = self.lease.now();
        match self.lease.state_of(arrived, now) {
            HoldState::Held => {
                let decision = self.admission.lock().on_syn(syn.ends(), syn.number(), side, now);
                self.carry_out(decision, syn, side, now);
            }
            HoldState::LeaseEnded if self.waiting.len() < WAITING_MAX => {
                self.waiting.push_back((arrived, syn, side));
            }
            HoldState::LeaseEnded | HoldState::MayHavePassed => {}
        }
    }

    fn retry_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some((arrived, syn, side)) = self.waiting.pop_front() else { return };
            self.on_syn(arrived, syn, side);
        }
    }

    fn retry(&mut self, now: Instant) {
        loop {
            // Another lock for each: the decision is carried out without one.
            let due = self.admission.lock().next_due(now);
            let Some((_, HeldSyn { syn, side, .. }, decision)) = due else { return };
            self.carry_out(decision, syn, side, now);
        }
    }

    /// Repeats SYNs that the relay has not accepted, where the rules have expired: a client's own repeated SYN then passes to
    /// the server, whose answer reaches the leg and not the client. While they hold, that one goes on to the relay.
    fn hand_again(&mut self, now: Instant) {
        while let Some(&(handed, ..)) = self.handed.front()
            && now.saturating_since(handed) >= HANDED_AGAIN
            && let Some((_, syn, side)) = self.handed.pop_front()
        {
            if self.admission.lock().is_started(&syn.ends()) {
                if !self.lease.holds(self.lease.now()) {
                    self.send_to_relay(&syn, side);
                }
                self.remember_handed(syn, side, now);
            }
        }
    }

    fn remember_handed(&mut self, syn: Syn, side: Side, now: Instant) {
        if self.handed.len() == HANDED_MAX {
            let admission = self.admission.lock();
            self.handed.retain(|(_, syn, _)| admission.is_started(&syn.ends()));
        }
        if self.handed.len() < HANDED_MAX {
            self.handed.push_back((now, syn, side));
        }
    }

    fn carry_out(&mut self, decision: Decision, syn: Syn, side: Side, now: Instant) {
        match decision {
            Decision::Open => self.open(syn, side, now),
            Decision::Accept => {
                self.admission.lock().on_started(&syn.ends(), PendingLeg::Unopened, now);
                self.reopen(&syn, side);
                self.send_to_relay(&syn, side);
                self.remember_handed(syn, side, now);
            }
            Decision::Pass => self.pass(&syn, side),
            Decision::SendOn => self.send_to_relay(&syn, side),
            Decision::GiveUp => self.on_asymmetric(&syn.ends(), now),
            Decision::Drop => {}
        }
    }

    /// Opens the leg to the server; if that is impossible here, the SYN passes without the relay.
    fn open(&mut self, syn: Syn, side: Side, now: Instant) {
        let ends = syn.ends();
        let open = || self.admission.open(ends, side);
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
            Ok(server) => self.hold(syn, side, server, now),
            Err(error) if is_taken(&error) => {
                let deferred = HeldSyn { syn, side, leg: None };
                self.admission.lock().on_taken(&ends, deferred, now);
            }
            Err(_) => {
                self.admission.lock().on_unopened(&ends, now);
                self.pass(&syn, side);
            }
        }
    }

    fn hold(&mut self, syn: Syn, side: Side, server: OwnedFd, now: Instant) {
        let (ends, entry) = (syn.ends(), self.legs.vacant_entry());
        let leg = entry.key();
        let token = EventData::new_u64(leg as u64);
        if epoll::add(&self.epoll, &server, token, EventFlags::OUT).is_ok() {
            entry.insert((ends, server));
            let held = HeldSyn { syn, side, leg: Some(leg) };
            self.admission.lock().on_opened(&ends, held, now);
        } else {
            self.admission.lock().on_lost(&ends);
        }
    }

    /// The leg with this number is connected, or has failed.
    fn on_answer(&mut self, number: usize, now: Instant) {
        let Some((ends, server)) = self.take_leg(number) else { return };
        let mut reason = None;
        let answer = match sockopt::socket_error(&server) {
            Ok(Ok(())) => Answer::Connected(PendingLeg::Connected(server)),
            Ok(Err(Errno::CONNREFUSED)) => Answer::Refused,
            Ok(Err(error)) => {
                reason = Unreachable::of_error(error);
                if reason.is_some() { Answer::Unreachable } else { Answer::Failed }
            }
            Err(_) => Answer::Failed,
        };
        let answered = self.admission.lock().on_answer(&ends, answer, now);
        let Some((reply, HeldSyn { syn, side, .. })) = answered else { return };
        match (reply, reason) {
            (Reply::SendOn, _) => {
                self.send_to_relay(&syn, side);
                self.remember_handed(syn, side, now);
            }
            (Reply::Reset, _) => self.send(&self.taps.refusals, ends.client, &syn.refusal()),
            (Reply::Unreachable, Some(reason)) => {
                self.send(&self.taps.refusals, ends.client, &syn.unreachable(reason));
            }
            (Reply::Unreachable | Reply::Nothing, _) => {}
        }
    }

    /// The server of this connection answers past the gateway, or so it seems. All SYNs between both hosts pass.
    fn on_asymmetric(&mut self, ends: &Ends, now: Instant) {
        let released = self.admission.lock().on_asymmetric(ends, now);
        for (_, held) in released {
            self.close(&held);
            self.pass(&held.syn, held.side);
        }
    }

    fn close(&mut self, held: &HeldSyn) {
        if let Some(leg) = held.leg {
            self.take_leg(leg);
        }
    }

    fn take_leg(&mut self, number: usize) -> Option<(Ends, OwnedFd)> {
        let leg = self.legs.try_remove(number)?;
        // Where it goes has its own epoll. One that is closed may have a copy in the privileged part, of which events
        // would come by a number that another leg has.
        let _ = epoll::delete(&self.epoll, &leg.1);
        Some(leg)
    }

    /// Sends a SYN to the relay, which answers it.
    fn send_to_relay(&self, syn: &Syn, side: Side) {
        self.send(&self.taps.to_relay[side as usize], syn.ends().server, syn.packet());
    }

    /// Sends a SYN to its server.
    fn pass(&self, syn: &Syn, side: Side) {
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

    fn send(&self, sockets: &[OwnedFd; 2], to: SocketAddr, packet: &[u8]) {
        let mut to = to;
        let socket = &sockets[version(to) as usize];
        to.set_port(0);
        // A packet that is lost here is repeated by the client, as one that is lost elsewhere.
        let _ = sendto(socket.as_fd(), packet, SendFlags::empty(), &to);
    }
}
