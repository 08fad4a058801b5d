//! The admission of connections, which the SYN holder and the threads of the relay share.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bentpipe_core::pep::{Admission, AdmissionConfig};
use bentpipe_sys::tcp_sockets::Version;
use rustix::io::Errno;
use rustix::net::{bind, connect, getsockname};

use super::sockets::Sockets;
use super::syn::{Ends, Syn};
use crate::Side;
use crate::relay::{Dial, Dialed};

/// A SYN that waits.
pub(super) struct HeldSyn {
    pub(super) syn: Syn,
    /// The side of its client.
    pub(super) side: Side,
    /// The number of the leg to its server; none while it is deferred.
    pub(super) leg: Option<usize>,
}

/// The leg to the server of a connection whose SYN was sent on to the relay.
pub(super) enum PendingLeg {
    Connected(OwnedFd),
    /// With early accept it is opened when the client is accepted.
    Unopened,
}

/// The admission of the daemon's connections.
pub(super) type DaemonAdmission = Admission<Ends, HeldSyn, PendingLeg>;

/// See the module documentation.
pub(super) struct SharedAdmission {
    admission: Arc<Mutex<DaemonAdmission>>,
    sockets: Arc<dyn Sockets>,
}

/// Counts a connection as open until it is dropped.
struct Open(Arc<Mutex<DaemonAdmission>>);

impl Drop for Open {
    fn drop(&mut self) {
        lock(&self.0).on_ended();
    }
}

impl SharedAdmission {
    pub(super) fn new(config: AdmissionConfig, sockets: Arc<dyn Sockets>) -> Self {
        Self { admission: Arc::new(Mutex::new(Admission::new(config))), sockets }
    }

    /// Not to be held while a connection is dropped, or during a system call that can wait.
    pub(super) fn lock(&self) -> MutexGuard<'_, DaemonAdmission> {
        lock(&self.admission)
    }

    /// Starts to connect from the address of a client on a side to its server.
    pub(super) fn open(&self, ends: Ends, side: Side) -> io::Result<OwnedFd> {
        let server = self.sockets.take(side.other(), version(ends.server))?;
        bind(&server, &ends.client)?;
        match connect(&server, &ends.server) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(server),
            Err(error) => Err(error.into()),
        }
    }
}

impl Dial for SharedAdmission {
    fn dial(&self, client: BorrowedFd<'_>, from: SocketAddr, side: Side) -> io::Result<Dialed> {
        let ends = Ends { client: from, server: getsockname(client)?.try_into()? };
        let accepted = self.lock().on_accepted(&ends);
        let leg = accepted.ok_or(Errno::NOTCONN)?;
        let permit = Open(Arc::clone(&self.admission));
        let (server, is_connected) = match leg {
            PendingLeg::Connected(server) => (server, true),
            PendingLeg::Unopened => (self.open(ends, side)?, false),
        };
        Ok(Dialed { server, is_connected, permit: Some(Box::new(permit)) })
    }
}

fn lock(admission: &Mutex<DaemonAdmission>) -> MutexGuard<'_, DaemonAdmission> {
    admission.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn version(address: SocketAddr) -> Version {
    if address.is_ipv4() { Version::V4 } else { Version::V6 }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use bentpipe_core::pep::Decision;
    use bentpipe_core::time::{Duration, Instant};
    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{SocketFlags, acceptfrom_with};

    use super::*;
    use crate::transparent::Direct;

    /// Given a client that resets its connection before it is accepted, expect the leg to its server to be found, so that
    /// the server is told at once and not when the limit for the client is over. Expect the connection to count until its
    /// permit is dropped.
    #[test]
    fn a_client_that_is_gone_has_its_server() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let ends = Ends {
            client: client.local_addr().expect("connected"),
            server: listener.local_addr().expect("bound"),
        };
        let config = AdmissionConfig {
            connections_max: 1,
            waiting_max: 1,
            handshake_max: Duration::from_secs(1),
            early_accept: true,
            started_memory: Duration::ZERO,
            may_be_asymmetric: true,
            remembered_max: 1,
        };
        let shared = SharedAdmission::new(config, Arc::new(Direct::default()));
        let decision = shared.lock().on_syn(ends, 7, Side::Lan, Instant::START);
        assert_eq!(decision, Decision::Accept);
        let server = listener.as_fd().try_clone_to_owned().expect("a descriptor");
        shared.lock().on_started(&ends, PendingLeg::Connected(server), Instant::START);
        set_socket_linger(&client, Some(std::time::Duration::ZERO)).expect("a socket");
        drop(client);
        let (accepted, from) =
            acceptfrom_with(&listener, SocketFlags::CLOEXEC).expect("it was connected");
        let from = from.expect("an address").try_into().expect("of the internet");
        let dialed = shared.dial(accepted.as_fd(), from, Side::Lan).expect("the leg to the server");
        assert!(dialed.is_connected && !shared.lock().is_started(&ends));
        assert_eq!(shared.lock().connections(), 1);
        drop(dialed);
        assert_eq!(shared.lock().connections(), 0);
    }
}
