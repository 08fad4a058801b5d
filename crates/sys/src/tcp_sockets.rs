//! Options of sockets that a transparent proxy needs and that the standard library lacks.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Lets a socket have the address of another host: `IP_TRANSPARENT` (ip(7)), `IPV6_TRANSPARENT`.
///
/// # Errors
/// The kernel's error; it requires `CAP_NET_ADMIN` or `CAP_NET_RAW`.
pub fn set_transparent(socket: impl AsFd, version: Version) -> io::Result<()> {
    match version {
        Version::V4 => set(socket, libc::SOL_IP, libc::IP_TRANSPARENT, 1),
        Version::V6 => set(socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}

/// Keeps a listening socket of IPv6 from accepting connections of IPv4 (`IPV6_V6ONLY`, ipv6(7)).
///
/// # Errors
/// The kernel's error.
pub fn set_v6_only(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::SOL_IPV6, libc::IPV6_V6ONLY, 1)
}

/// Sets the mark of all packets that a socket sends (`SO_MARK`, socket(7)).
///
/// # Errors
/// The kernel's error; it requires `CAP_NET_ADMIN`.
pub fn set_mark(socket: impl AsFd, mark: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed())
}

/// Bounds the bytes that a socket holds and has not sent: `TCP_NOTSENT_LOWAT` (tcp(7)).
///
/// # Errors
/// The kernel's error.
pub fn set_not_sent_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes.cast_signed())
}

#[allow(unsafe_code, reason = "neither std nor rustix has these options")]
pub(crate) fn set(socket: impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let bytes = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads one int, which outlives the call.
    let done = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value, bytes)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
