//! Routes of a network namespace.

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;

/// Leads packets for a network, by the bits that its hosts share, to an interface, by ioctl
/// (`rtnetlink(7)` does the same in many more words).
///
/// # Errors
/// What the kernel says, or that the interface has no name.
#[allow(unsafe_code, reason = "routes are set by ioctl")]
pub fn add(network: Ipv4Addr, prefix: u32, interface: &str) -> io::Result<()> {
    let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    let mut interface = CString::new(interface)?.into_bytes_with_nul();
    let mask = u32::MAX.checked_shl(u32::BITS - prefix.min(u32::BITS)).unwrap_or(0);
    // SAFETY: all bytes zero is a valid route; the call reads it and the name, which ends with a zero and
    // lives during the call, and the descriptor is open.
    let done = unsafe {
        let mut route: libc::rtentry = std::mem::zeroed();
        route.rt_dst = inet(network);
        route.rt_genmask = inet(Ipv4Addr::from_bits(mask));
        route.rt_dev = interface.as_mut_ptr().cast();
        route.rt_flags = libc::RTF_UP;
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
