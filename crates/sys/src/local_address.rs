//! Whether an address is one of this host: the type of its route (rtnetlink(7), `RTM_GETROUTE`).
//!
//! The socket stays in the network namespace in which it was created, and needs no privilege.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::netlink::{half, word};

/// From linux/netlink.h and linux/rtnetlink.h.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;
/// AF_INET and AF_INET6.
const FAMILIES: [u8; 2] = [2, 10];

const MESSAGE_HEADER: usize = 16;
/// `struct rtmsg`, and the offset of its type.
const ROUTE_HEADER: usize = 12;
const ROUTE_TYPE: usize = 7;
const ATTRIBUTE_HEADER: usize = 4;
const REPLY_BYTES: usize = 4 * 1024;
/// The kernel replies before send(2) returns. The timeout covers a kernel that does not.
const TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);
/// Replies to requests that timed out are skipped.
const LATE_REPLIES_MAX: usize = 16;

/// A socket that queries routes.
#[derive(Debug)]
pub struct LocalAddresses {
    socket: OwnedFd,
    sequence: u32,
}

impl LocalAddresses {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        // Protocol 0 of netlink is NETLINK_ROUTE.
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Whether packets for an address are delivered to this host.
    ///
    /// # Errors
    /// The kernel's error, for example that there is no route to it.
    pub fn contains(&mut self, address: IpAddr) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        send(&self.socket, &request(address, self.sequence), SendFlags::empty())?;
        let mut reply = [0; REPLY_BYTES];
        for _ in 0..LATE_REPLIES_MAX {
            let (bytes, _) = recv(&self.socket, &mut reply[..], RecvFlags::empty())?;
            if let Some(answer) = parse(&reply[..bytes], self.sequence) {
                return answer;
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "no reply about a route"))
    }
}

/// `struct nlmsghdr`, `struct rtmsg` and the destination.
fn request(address: IpAddr, sequence: u32) -> Vec<u8> {
    let (family, address) = match address {
        IpAddr::V4(address) => (FAMILIES[0], address.octets().to_vec()),
        IpAddr::V6(address) => (FAMILIES[1], address.octets().to_vec()),
    };
    let attribute = ATTRIBUTE_HEADER + address.len();
    let mut bytes = vec![0; MESSAGE_HEADER + ROUTE_HEADER + ATTRIBUTE_HEADER];
    let length = (MESSAGE_HEADER + ROUTE_HEADER + attribute) as u32;
    bytes[0..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&RTM_GETROUTE.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    bytes[16] = family;
    // The length of the destination in bits.
    bytes[17] = (address.len() * 8) as u8;
    bytes[28..30].copy_from_slice(&(attribute as u16).to_ne_bytes());
    bytes[30..32].copy_from_slice(&RTA_DST.to_ne_bytes());
    bytes.extend(address);
    bytes
}

/// Parses a reply. `None` if it is that to another request.
fn parse(reply: &[u8], sequence: u32) -> Option<io::Result<bool>> {
    let incomplete = || io::Error::new(io::ErrorKind::InvalidData, "truncated netlink reply");
    if word(reply, 8)? != sequence {
        return None;
    }
    match half(reply, 4)? {
        NLMSG_ERROR => {
            let code = word(reply, MESSAGE_HEADER).map_or(0, u32::cast_signed);
            Some(Err(io::Error::from_raw_os_error(code.saturating_neg())))
        }
        RTM_NEWROUTE => {
            let kind = reply.get(MESSAGE_HEADER + ROUTE_TYPE);
            Some(kind.map(|&kind| kind == RTN_LOCAL).ok_or_else(incomplete))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given the loopback addresses of both versions, expect them to be this host's; expect one of a
    /// documentation network (RFC 5737) not to be, with a route to it or without.
    #[test]
    fn loopback_addresses_are_local() {
        let mut addresses = LocalAddresses::open().expect("a socket");
        for address in ["127.0.0.1", "127.3.2.1", "::1"] {
            let address: IpAddr = address.parse().expect("an address");
            assert!(addresses.contains(address).expect("a route"), "{address}");
        }
        let other: IpAddr = "192.0.2.1".parse().expect("an address");
        assert!(!addresses.contains(other).unwrap_or(false));
    }

    /// Given a reply that is truncated at any byte, or to another request, expect no panic, and no answer
    /// before the type of the route.
    #[test]
    fn truncated_replies_are_no_answer() {
        let mut reply = vec![0; MESSAGE_HEADER + ROUTE_HEADER];
        reply[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
        reply[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        reply[MESSAGE_HEADER + ROUTE_TYPE] = RTN_LOCAL;
        for end in 0..reply.len() {
            let answer = parse(&reply[..end], 7);
            let is_whole = end > MESSAGE_HEADER + ROUTE_TYPE;
            assert_eq!(answer.and_then(Result::ok), is_whole.then_some(true), "{end}");
        }
        assert!(parse(&reply, 8).is_none());
    }
}
