//! Routes of a network namespace.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;

/// Leads packets for everywhere to a gateway, by ioctl (`rtnetlink(7)` does the same in many more words).
#[allow(unsafe_code, reason = "routes are set by ioctl")]
pub fn default_route(gateway: Ipv4Addr) -> io::Result<()> {
    let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: all bytes zero is a valid route; the call reads it alone, and the descriptor is open.
    let done = unsafe {
        let mut route: libc::rtentry = std::mem::zeroed();
        route.rt_dst = inet(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = inet(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = inet(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &route)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An address as the old calls take it: the port, then the four bytes; ip(7).
fn inet(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (place, byte) in data[2..6].iter_mut().zip(address.octets()) {
        *place = byte as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}
