//! A [`Path`] between a TUN device and a UDP socket, in a thread of its own.
//!
//! The thread reads packets of hosts, which the kernel gives as super-packets, and datagrams, which the kernel joins;
//! it sends and delivers them in the same forms. It waits only when there is neither. One thread serves both directions:
//! the work is with the cipher, the code and the kernel, and a second thread would wait for the state that both need.
//!
//! The system calls of the thread: `clock_gettime`, `futex`, `ppoll`, `read`, `recvmmsg`, `sendmmsg`, `write`, `writev`,
//! and those of the allocator and of the start and end of a thread. `getrandom` is called for handshakes.

mod device;
mod wire;
mod worker;

use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;

use bentpipe_core::tunnel::TunnelSettings;
use bentpipe_sys::clock::Clock;

use super::Random;
use super::path::{Path, PathCounters, PathPlan};
use worker::Worker;

/// What the thread counts itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoCounters {
    /// Super-packets of hosts that could not be segmented.
    pub unsegmented_packets: u64,
    /// Writes to the device that the kernel rejected, each of one packet or super-packet.
    pub rejected_writes: u64,
    /// Datagrams that the kernel did not send: no route, a full buffer for too long, or too large.
    pub unsent_datagrams: u64,
    /// Super-packets written to the device, and the packets in them.
    pub coalesced_writes: u64,
    /// See above.
    pub coalesced_packets: u64,
    /// System calls that sent datagrams.
    pub send_calls: u64,
    /// Rounds in which something was read or due.
    pub rounds: u64,
}

/// All counters of a tunnel, since its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TunnelCounters {
    /// The path.
    #[serde(flatten)]
    pub path: PathCounters,
    /// The thread.
    pub io: IoCounters,
}

/// What the thread and its owner share. The thread locks the state once a round, for almost all of its time.
struct Shared {
    state: Mutex<State>,
    /// The owner holds it while it waits for the state; the thread only passes. Else a busy thread would lock the state
    /// again before the owner wakes up.
    turn: Mutex<()>,
}

struct State {
    path: Path,
    io: IoCounters,
    failure: Option<io::Error>,
    is_stopping: bool,
}

/// See the module documentation. The thread ends when this is dropped.
pub struct Forwarder {
    shared: Arc<Shared>,
    clock: Clock,
    /// Wakes the thread.
    wakeup: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn for_thread(&self) -> MutexGuard<'_, State> {
        drop(lock(&self.turn));
        lock(&self.state)
    }

    fn for_owner<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let turn = lock(&self.turn);
        let mut state = lock(&self.state);
        drop(turn);
        act(&mut state)
    }
}

impl Forwarder {
    /// Starts to forward. `tun` is a TUN device with a virtio header of 10 bytes (`IFF_VNET_HDR`) and without packet
    /// information; it should offload checksums and segmentation. `socket` is bound. `random` is in operation
    /// [`super::OsRandom`].
    ///
    /// # Errors
    /// If the plan contradicts itself (`InvalidInput`), or the kernel gives no file descriptor or thread.
    pub fn start(
        tun: OwnedFd,
        socket: UdpSocket,
        plan: PathPlan,
        random: Box<dyn Random>,
    ) -> io::Result<Self> {
        let path = Path::new(plan, random)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let io = IoCounters::default();
        let state = State { path, io, failure: None, is_stopping: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), turn: Mutex::default() });
        let clock = Clock::start();
        let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let worker = Worker::new(tun, socket, Arc::clone(&wakeup), Arc::clone(&shared), clock)?;
        let thread = std::thread::Builder::new().name("tunnel".to_owned());
        let thread = Some(thread.spawn(move || worker.run())?);
        Ok(Self { shared, clock, wakeup, thread })
    }

    /// The counters now.
    #[must_use]
    pub fn counters(&self) -> TunnelCounters {
        self.shared.for_owner(|state| TunnelCounters {
            path: state.path.counters(self.clock.now()),
            io: state.io,
        })
    }

    /// Changes the settings that may change while it runs: see [`Path::reconfigure`].
    ///
    /// # Errors
    /// If a setting is out of range (`InvalidInput`); nothing changes then.
    pub fn reconfigure(&self, settings: &TunnelSettings) -> io::Result<()> {
        let changed = self.shared.for_owner(|state| {
            // Within the lock: the path's time never goes backwards.
            state.path.reconfigure(self.clock.now(), settings)
        });
        self.wake();
        changed.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    /// Why the thread has ended, if it has: the device or the socket failed, or it panicked.
    #[must_use]
    pub fn failure(&self) -> Option<io::Error> {
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let failure = || self.shared.for_owner(|state| state.failure.take());
        has_ended.then(|| failure().unwrap_or_else(|| io::Error::other("the thread has ended")))
    }

    fn wake(&self) {
        // It fails only if the thread is to wake up already.
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.shared.for_owner(|state| state.is_stopping = true);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
