//! Connections that wait for the relay to accept them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::tcp_sockets::Version;
use rustix::io::Errno;
use rustix::net::{bind, connect, getsockname, sockopt};

use super::sockets::Sockets;
use super::syn::Ends;
use crate::relay::{Dial, Dialed, Permit};
use crate::side::Side;

/// A connection whose SYN was sent on to the relay.
pub(super) struct Waiting {
    /// The leg to the server; without early accept it is connected, with it there is none yet.
    pub(super) server: Option<OwnedFd>,
    pub(super) permit: Permit,
    pub(super) since: Instant,
    /// That of the SYN.
    pub(super) traffic_class: u8,
}

/// Those that wait, for the SYN holder and for the threads of the relay.
pub(super) struct PendingAccepts {
    waiting: Mutex<BTreeMap<Ends, Waiting>>,
    sockets: Arc<dyn Sockets>,
}

impl PendingAccepts {
    pub(super) fn new(sockets: Arc<dyn Sockets>) -> Self {
        Self { waiting: Mutex::default(), sockets }
    }

    pub(super) fn contains(&self, ends: &Ends) -> bool {
        self.waiting().contains_key(ends)
    }

    pub(super) fn insert(&self, ends: Ends, waiting: Waiting) {
        self.waiting().insert(ends, waiting);
    }

    /// Forgets those whose clients did not go on. Returns their number.
    pub(super) fn forget_old(&self, now: Instant, limit: Duration) -> u64 {
        let mut waiting = self.waiting();
        let before = waiting.len();
        waiting.retain(|_, each| now.saturating_since(each.since) < limit);
        (before - waiting.len()) as u64
    }

    /// Starts to connect from the address of a client on a side to its server, with the DSCP of its SYN.
    pub(super) fn open(&self, ends: Ends, side: Side, traffic_class: u8) -> io::Result<OwnedFd> {
        let server = self.sockets.take(side.other(), version(ends.server))?;
        // The kernel keeps the ECN field to itself.
        if ends.server.is_ipv4() {
            sockopt::set_ip_tos(&server, traffic_class)?;
        } else {
            sockopt::set_ipv6_tclass(&server, u32::from(traffic_class))?;
        }
        bind(&server, &ends.client)?;
        match connect(&server, &ends.server) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(server),
            Err(error) => Err(error.into()),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Ends, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dial for PendingAccepts {
    fn dial(&self, client: BorrowedFd<'_>, from: SocketAddr, side: Side) -> io::Result<Dialed> {
        let ends = Ends { client: from, server: getsockname(client)?.try_into()? };
        let found = self.waiting().remove(&ends);
        let Waiting { server, permit, traffic_class, .. } = found.ok_or(Errno::NOTCONN)?;
        let is_connected = server.is_some();
        let server = server.map_or_else(|| self.open(ends, side, traffic_class), Ok)?;
        Ok(Dialed { server, is_connected, permit: Some(permit) })
    }
}

pub(super) fn version(address: SocketAddr) -> Version {
    if address.is_ipv4() { Version::V4 } else { Version::V6 }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{SocketFlags, acceptfrom_with};

    use super::*;
    use crate::relay::ConnectionLimit;
    use crate::transparent::Direct;

    /// Given a client that resets its connection before it is accepted, expect the leg to its server to be found, so that
    /// the server is told at once and not when the limit for the client is over.
    #[test]
    fn a_client_that_is_gone_has_its_server() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let ends = Ends {
            client: client.local_addr().expect("connected"),
            server: listener.local_addr().expect("bound"),
        };
        let pending = PendingAccepts::new(Arc::new(Direct::default()));
        let permit = ConnectionLimit::new(1).take().expect("a permit");
        let server = Some(listener.as_fd().try_clone_to_owned().expect("a descriptor"));
        pending.insert(ends, Waiting { server, permit, since: Instant::START, traffic_class: 0 });
        set_socket_linger(&client, Some(std::time::Duration::ZERO)).expect("a socket");
        drop(client);
        let (accepted, from) =
            acceptfrom_with(&listener, SocketFlags::CLOEXEC).expect("it was connected");
        let from = from.expect("an address").try_into().expect("of the internet");
        pending.dial(accepted.as_fd(), from, Side::Lan).expect("the leg to the server");
        assert!(!pending.contains(&ends));
    }
}
