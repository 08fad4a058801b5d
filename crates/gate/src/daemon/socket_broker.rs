//! Sockets for legs to servers, opened by the privileged part for the worker.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use bentpipe_sys::tcp_sockets::Version;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::handover::{DESCRIPTORS_MAX, receive, receive_some, send};
use crate::Side;
use crate::transparent::{Direct, Sockets};

/// More are asked for when no more than these are left, so that the worker does not wait for them.
const FEW: usize = DESCRIPTORS_MAX / 2;
/// Far longer than the privileged part takes to open sockets, also on a busy machine, and shorter than the time after which a
/// SYN is repeated. While it hangs, the worker does not wait again.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 400_000_000 };
/// For the first ones: no connection is held yet, so nothing waits with the worker.
const FIRST_WAIT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What the worker asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The side of the leg.
    pub side: Side,
    /// The version of IP.
    pub version: Version,
}

impl Request {
    /// One of each kind.
    fn all() -> impl Iterator<Item = Self> {
        let versions = [Version::V4, Version::V6];
        Side::ALL.into_iter().flat_map(move |side| versions.map(|version| Self { side, version }))
    }

    /// Parses a message. `None` if it is none of these.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let [side, version] = *message else { return None };
        Some(Self {
            side: Side::ALL.into_iter().find(|&each| each as u8 == side)?,
            version: [Version::V4, Version::V6].into_iter().find(|&each| each as u8 == version)?,
        })
    }

    fn message(self) -> [u8; 2] {
        [self.side as u8, self.version as u8]
    }
}

/// Sockets of one kind.
#[derive(Default)]
struct Pool {
    sockets: Vec<OwnedFd>,
    /// Whether more were asked for.
    is_requested: bool,
}

#[derive(Default)]
struct Pools {
    pools: [[Pool; 2]; 2],
    /// Whether the privileged part did not answer in time, and has not answered since.
    is_late: bool,
}

impl Pools {
    fn of(&mut self, request: Request) -> &mut Pool {
        &mut self.pools[request.side as usize][request.version as usize]
    }
}

/// The worker's end: a few sockets for each side and version, and the channel on which it asks for more.
pub(super) struct BrokeredSockets {
    channel: OwnedFd,
    pools: Mutex<Pools>,
}

impl BrokeredSockets {
    /// Takes sockets of each kind, so that the first connection does not wait for them. Those that do not come in time are
    /// taken later.
    pub(super) fn new(channel: OwnedFd) -> Self {
        let mut pools = Pools::default();
        let supply = Self { channel, pools: Mutex::default() };
        for request in Request::all() {
            let sent = send(&supply.channel, &request.message(), &[]);
            pools.of(request).is_requested = sent.is_ok();
        }
        for request in Request::all() {
            let _ = supply.receive(&mut pools, request, FIRST_WAIT);
        }
        Self { pools: Mutex::new(pools), ..supply }
    }

    /// Adds the sockets of the next answer, which may be that to another request, to their pool, those for which this process
    /// has room.
    ///
    /// # Errors
    /// It has room for none, or the privileged part is gone, or does not answer: then the connection passes, instead of all
    /// that come after it.
    fn receive(&self, pools: &mut Pools, request: Request, wait: Timespec) -> io::Result<()> {
        let mut channel = [PollFd::new(&self.channel, PollFlags::IN)];
        let timeout = if pools.is_late { NO_WAIT } else { wait };
        let ready = rustix::io::retry_on_intr(|| poll(&mut channel, Some(&timeout)))?;
        pools.is_late = ready == 0;
        if pools.is_late {
            return Err(Errno::TIMEDOUT.into());
        }
        let (message, sockets, missing) = receive_some(&self.channel)?;
        let answered = Request::parse(&message)
            .ok_or_else(|| io::Error::other("the privileged part is gone"))?;
        let pool = pools.of(answered);
        pool.sockets.extend(sockets);
        pool.is_requested = false;
        match missing {
            Some(missing) if pool.sockets.is_empty() && answered == request => Err(missing.into()),
            _ => Ok(()),
        }
    }
}

impl Sockets for BrokeredSockets {
    fn take(&self, side: Side, version: Version) -> io::Result<OwnedFd> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let request = Request { side, version };
        let pool = pools.of(request);
        if pool.sockets.len() <= FEW && !pool.is_requested {
            send(&self.channel, &request.message(), &[])?;
            pool.is_requested = true;
        }
        while pools.of(request).sockets.is_empty() && pools.of(request).is_requested {
            self.receive(&mut pools, request, WAIT)?;
        }
        let socket = pools.of(request).sockets.pop();
        socket.ok_or_else(|| io::Error::other("the privileged part has no more sockets"))
    }
}

/// The privileged end: sends sockets until the worker is gone.
pub(super) fn run_broker(channel: &OwnedFd, sockets: &Direct) -> io::Result<()> {
    loop {
        let Some(request) = Request::parse(&receive(channel)?.0) else { return Ok(()) };
        // Fewer, if there are no more descriptors: none tells the worker so.
        let opened: Vec<_> = (0..DESCRIPTORS_MAX)
            .map_while(|_| sockets.take(request.side, request.version).ok())
            .collect();
        let borrowed: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
        send(channel, &request.message(), &borrowed)?;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::handover::pair;
    use super::*;

    /// Given a privileged part that does not run for 200 ms at the start, and then does not before it answers another request,
    /// expect the worker to have sockets, so that no connection passes unsplit.
    #[test]
    fn a_worker_waits_for_a_privileged_part_that_is_late() {
        let (worker, privileged) = pair().expect("two sockets");
        let late = Duration::from_millis(200);
        let broker = std::thread::spawn(move || {
            let mut requests = 0;
            while let Some(request) = receive(&privileged).ok().and_then(|it| Request::parse(&it.0))
            {
                if requests == 0 || requests == Request::all().count() {
                    std::thread::sleep(late);
                }
                requests += 1;
                send(&privileged, &request.message(), &[privileged.as_fd()]).expect("it reads");
            }
        });
        let sockets = BrokeredSockets::new(worker);
        for _ in 0..3 {
            sockets.take(Side::Lan, Version::V4).expect("a socket");
        }
        drop(sockets);
        broker.join().expect("it ends");
    }

    #[test]
    fn every_request_is_parsed_and_nothing_else() {
        for side in Side::ALL {
            for version in [Version::V4, Version::V6] {
                let request = Request { side, version };
                assert_eq!(Request::parse(&request.message()), Some(request));
            }
        }
        for other in [&[][..], &[0], &[0, 2], &[2, 0], &[0, 0, 0]] {
            assert_eq!(Request::parse(other), None);
        }
    }
}
