//! Routes of a network namespace.

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;

/// Adds a route for a network and prefix length through an interface, by ioctl; rtnetlink(7) would
/// take many more lines.
///
/// # Errors
/// The kernel's error, or that the interface name contains a zero byte.
#[allow(unsafe_code, reason = "routes are added by ioctl")]
pub fn add(network: Ipv4Addr, prefix: u32, interface: &str) -> io::Result<()> {
    let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    let mut interface = CString::new(interface)?.into_bytes_with_nul();
    let mask = u32::MAX.checked_shl(u32::BITS - prefix.min(u32::BITS)).unwrap_or(0);
    // SAFETY: zero is a valid `rtentry`. The call reads it and the name, which is zero-terminated
    // and outlives the call. The file descriptor is open.
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

/// A `sockaddr_in` as `sockaddr`: the port, then four bytes of address; ip(7).
fn inet(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (slot, byte) in data[2..6].iter_mut().zip(address.octets()) {
        *slot = byte as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}
