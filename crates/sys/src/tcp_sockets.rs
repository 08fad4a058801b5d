//! Options of sockets that a transparent proxy needs and that the standard library lacks.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::diag::{Connection, tcp_info};
use crate::sockets::set;

/// More than `struct tcp_info` of Linux 6.18.
const INFO_BYTES: usize = 512;

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

/// What the kernel knows of a connection: `TCP_INFO` (tcp(7)). Its ports are zero.
///
/// # Errors
/// The kernel's error.
#[allow(unsafe_code, reason = "neither std nor rustix has this option")]
pub fn info(socket: impl AsFd) -> io::Result<Connection> {
    let mut value = [0_u8; INFO_BYTES];
    let mut bytes = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes no more than the bytes of the array, and their number.
    let done = unsafe {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let value = value.as_mut_ptr().cast();
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, value, &raw mut bytes)
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(tcp_info(&value[..(bytes as usize).min(INFO_BYTES)]))
}

/// Sets the maximum segment size: `TCP_MAXSEG` (tcp(7)).
///
/// # Errors
/// The kernel's error.
pub fn set_max_segment(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, bytes.cast_signed())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Given a connection that carried 5,000 bytes, expect them at both ends; the SYN counts as a byte.
    #[test]
    fn both_ends_know_what_was_carried() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(address).expect("a connection");
        let (mut server, _) = listener.accept().expect("a connection");
        client.write_all(&[7; 5_000]).expect("space in the send buffer");
        server.read_exact(&mut [0; 5_000]).expect("5,000 bytes");
        let [client, server] = [&client, &server].map(|end| info(end).expect("a connection"));
        assert_eq!((client.bytes_acked, server.bytes_received), (5_001, 5_000));
        assert!(client.rtt_us > 0 && client.total_retrans == 0, "{client:?}");
        assert!(info(std::io::stdin()).is_err());
    }
}
