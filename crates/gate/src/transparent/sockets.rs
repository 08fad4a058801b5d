//! The sockets of a transparent relay. Opening them takes privileges; using them does not.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::Side;
use crate::relay::prepare_leg;
use bentpipe_sys::tcp_sockets::{
    Version, set_mark, set_not_sent_low_water, set_transparent, set_v6_only,
};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, listen, socket_with,
    sockopt,
};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4_096;

/// The TCP settings of one leg; what is `None` is the machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegSettings {
    /// The congestion control, by the name of the Linux module.
    pub congestion_control: Option<String>,
    /// The send buffer. The kernel doubles it for its own overhead (socket(7)).
    pub send_buffer_bytes: Option<usize>,
    /// The receive buffer; likewise.
    pub receive_buffer_bytes: Option<usize>,
    /// The most bytes that wait unsent in a socket. More would be a queue that no congestion control sees.
    pub not_sent_bytes: Option<u32>,
    /// The time without data after which the peer is probed; `None` for never. How often, and when the peer is gone,
    /// is the machine's setting (tcp(7), `tcp_keepalive_probes`).
    pub keep_alive: Option<Duration>,
}

impl LegSettings {
    fn apply(&self, socket: &OwnedFd) -> io::Result<()> {
        if let Some(name) = &self.congestion_control {
            sockopt::set_tcp_congestion(socket, name)?;
        }
        if let Some(bytes) = self.send_buffer_bytes {
            sockopt::set_socket_send_buffer_size_force(socket, bytes)?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            sockopt::set_socket_recv_buffer_size_force(socket, bytes)?;
        }
        if let Some(bytes) = self.not_sent_bytes {
            set_not_sent_low_water(socket, bytes)?;
        }
        if let Some(time) = self.keep_alive {
            sockopt::set_tcp_keepidle(socket, time)?;
            sockopt::set_socket_keepalive(socket, true)?;
        }
        Ok(())
    }
}

/// A supply of sockets for legs to servers.
pub trait Sockets: Send + Sync {
    /// Returns a socket for a leg on this side. It may have any address, does not block, and is reset when it is
    /// closed.
    ///
    /// # Errors
    /// The kernel's error.
    fn take(&self, side: Side, version: Version) -> io::Result<OwnedFd>;
}

/// Sockets that are opened when they are needed, by a process with `CAP_NET_ADMIN`. It has the settings of the
/// legs on both sides.
#[derive(Clone, Debug, Default)]
pub struct Direct(pub [LegSettings; 2]);

impl Sockets for Direct {
    fn take(&self, side: Side, version: Version) -> io::Result<OwnedFd> {
        let socket = transparent(version)?;
        self.0[side as usize].apply(&socket)?;
        prepare_leg(&socket)?;
        Ok(socket)
    }
}

/// Returns a listening socket for connections that the firewall redirects to it, and its port. It has an
/// address of the loopback interface, so that nobody else reaches it. What is accepted has its settings and its mark.
///
/// # Errors
/// The kernel's error; it requires `CAP_NET_ADMIN`.
pub fn listener(version: Version, settings: &LegSettings, mark: u32) -> io::Result<(OwnedFd, u16)> {
    let socket = transparent(version)?;
    set_mark(&socket, mark)?;
    settings.apply(&socket)?;
    let address: SocketAddr = match version {
        Version::V4 => (Ipv4Addr::LOCALHOST, 0).into(),
        Version::V6 => {
            set_v6_only(&socket)?;
            (Ipv6Addr::LOCALHOST, 0).into()
        }
    };
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, bound.port()))
}

/// Returns a socket that sends whole IP packets (raw(7)), all with this mark. It is transparent, as those of the legs are,
/// so that one rule of a filter can accept all of them.
///
/// # Errors
/// The kernel's error; it requires `CAP_NET_RAW`, and `CAP_NET_ADMIN` with a mark.
pub fn raw(version: Version, mark: Option<u32>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family(version), SocketType::RAW, flags, Some(ipproto::RAW))?;
    set_transparent(&socket, version)?;
    if let Some(mark) = mark {
        set_mark(&socket, mark)?;
    }
    Ok(socket)
}

fn transparent(version: Version) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family(version), SocketType::STREAM, flags, None)?;
    set_transparent(&socket, version)?;
    // One port of a client may have connections to several servers.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

fn family(version: Version) -> AddressFamily {
    match version {
        Version::V4 => AddressFamily::INET,
        Version::V6 => AddressFamily::INET6,
    }
}
