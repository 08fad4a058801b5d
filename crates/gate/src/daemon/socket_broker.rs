//! Sockets for legs to servers, opened by the privileged part for the worker.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use bentpipe_sys::tcp_sockets::Version;

use super::handover::{DESCRIPTORS_MAX, receive, receive_some, send};
use crate::Side;
use crate::transparent::{Direct, Sockets};

/// More are asked for when no more than these are left, so that the worker does not wait for them.
const FEW: usize = DESCRIPTORS_MAX / 2;

/// What the worker asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The side of the leg.
    pub side: Side,
    /// The version of IP.
    pub version: Version,
}

impl Request {
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

/// The worker's end: a few sockets for each side and version, and the channel on which it asks for more.
pub(super) struct BrokeredSockets {
    channel: OwnedFd,
    pools: Mutex<[[Pool; 2]; 2]>,
}

impl BrokeredSockets {
    pub(super) fn new(channel: OwnedFd) -> Self {
        Self { channel, pools: Mutex::default() }
    }

    /// Adds the sockets of the next answer to their pool, those for which this process has room.
    ///
    /// # Errors
    /// It has room for none, or the privileged part is gone.
    fn receive(&self, pools: &mut [[Pool; 2]; 2]) -> io::Result<()> {
        let (message, sockets, missing) = receive_some(&self.channel)?;
        let answered = Request::parse(&message)
            .ok_or_else(|| io::Error::other("the privileged part is gone"))?;
        let pool = &mut pools[answered.side as usize][answered.version as usize];
        pool.sockets.extend(sockets);
        pool.is_requested = false;
        match missing {
            Some(missing) if pool.sockets.is_empty() => Err(missing.into()),
            _ => Ok(()),
        }
    }
}

impl Sockets for BrokeredSockets {
    fn take(&self, side: Side, version: Version) -> io::Result<OwnedFd> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let request = Request { side, version };
        let pool = &mut pools[side as usize][version as usize];
        if pool.sockets.len() <= FEW && !pool.is_requested {
            send(&self.channel, &request.message(), &[])?;
            pool.is_requested = true;
        }
        while pools[side as usize][version as usize].sockets.is_empty()
            && pools[side as usize][version as usize].is_requested
        {
            self.receive(&mut pools)?;
        }
        let socket = pools[side as usize][version as usize].sockets.pop();
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
    use super::*;

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
