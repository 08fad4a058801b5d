//! The way from a lab to the outside: from the island over the link into the world, and from there to a
//! user-space NAT, which is another program's and makes the interface that it needs in the world.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use bentpipe_sim::Side;

use crate::error::LabError;
use crate::lab::{Lab, address};
use crate::netns::{lay_over, set_sysctl};

/// Where the NAT answers questions for names; slirp4netns(1).
const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);

/// Prepares a lab for a NAT whose interface is then made in the world: the world forwards, and answers
/// for the island on all interfaces that are yet to be made; the island's way to everywhere is the
/// link; both ask the NAT for names.
///
/// # Errors
/// What the kernel does not allow.
pub fn lead_outside(lab: &Lab) -> Result<(), LabError> {
    let resolver = format!("nameserver {RESOLVER}\n");
    let failed = |error| LabError::privileged("leading outside", error);
    for side in Side::ALL {
        lab.namespace(side).run(|| lay_over("/etc/resolv.conf", &resolver).map_err(failed))?;
    }
    lab.namespace(Side::World).run(|| {
        let forward = set_sysctl("net.ipv4.ip_forward", "1");
        forward.and_then(|()| set_sysctl("net.ipv4.conf.default.proxy_arp", "1")).map_err(failed)
    })?;
    lab.namespace(Side::Island).run(|| default_route(address(Side::World)).map_err(failed))
}

/// Leads packets for everywhere to a gateway, by ioctl (`rtnetlink(7)` does the same in many more words).
#[allow(unsafe_code, reason = "routes are set by ioctl")]
fn default_route(gateway: Ipv4Addr) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: all bytes zero is a valid route; the call reads it alone, and the descriptor is open.
    let done = unsafe {
        let mut route: libc::rtentry = std::mem::zeroed();
        route.rt_dst = inet(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = inet(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = inet(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCADDRT, &route)
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
