//! Whether an address is one of this host: the type of its route (rtnetlink(7), `RTM_GETROUTE`).
//!
//! The socket stays in the network namespace in which it was created, and needs no privilege.

use std::io;
use std::net::IpAddr;

use crate::netlink::RouteSocket;

/// From linux/rtnetlink.h.
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;
/// AF_INET and AF_INET6.
const FAMILIES: [u8; 2] = [2, 10];

/// `struct rtmsg`, and the offset of its type.
const ROUTE_HEADER: usize = 12;
const ROUTE_TYPE: usize = 7;
const ATTRIBUTE_HEADER: usize = 4;

/// A socket that queries routes.
#[derive(Debug)]
pub struct LocalAddresses(RouteSocket);

impl LocalAddresses {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        RouteSocket::open().map(Self)
    }

    /// Whether packets for an address are delivered to this host.
    ///
    /// # Errors
    /// The kernel's error, for example that there is no route to it.
    pub fn contains(&self, address: IpAddr) -> io::Result<bool> {
        self.0.query(RTM_GETROUTE, &request(address), RTM_NEWROUTE, is_local)
    }
}

/// `struct rtmsg` and the destination.
fn request(address: IpAddr) -> Vec<u8> {
    let (family, address) = match address {
        IpAddr::V4(address) => (FAMILIES[0], address.octets().to_vec()),
        IpAddr::V6(address) => (FAMILIES[1], address.octets().to_vec()),
    };
    let mut bytes = vec![0; ROUTE_HEADER];
    bytes[0] = family;
    // The length of the destination in bits.
    bytes[1] = (address.len() * 8) as u8;
    bytes.extend(((ATTRIBUTE_HEADER + address.len()) as u16).to_ne_bytes());
    bytes.extend(RTA_DST.to_ne_bytes());
    bytes.extend(address);
    bytes
}

/// Whether a route is one to this host.
fn is_local(route: &[u8]) -> Option<bool> {
    route.get(ROUTE_TYPE).map(|&kind| kind == RTN_LOCAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given the loopback addresses of both versions, expect them to be this host's; expect one of a
    /// documentation network (RFC 5737) not to be, with a route to it or without.
    #[test]
    fn loopback_addresses_are_local() {
        let addresses = LocalAddresses::open().expect("a socket");
        for address in ["127.0.0.1", "127.3.2.1", "::1"] {
            let address: IpAddr = address.parse().expect("an address");
            assert!(addresses.contains(address).expect("a route"), "{address}");
        }
        let other: IpAddr = "192.0.2.1".parse().expect("an address");
        assert!(!addresses.contains(other).unwrap_or(false));
    }
}
