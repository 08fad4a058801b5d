//! A network interface (rtnetlink(7)): its dropped packets and queue length, its addresses and its MTU.
//!
//! Interfaces are identified by index, because their names can change.

use std::io;
use std::net::IpAddr;

use crate::netlink::{
    NLM_F_CREATE, NLM_F_EXCL, RequestSocket, attribute, attributes, nested, word,
};
use crate::route::{address_bytes, family};

/// From linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_STATS64: u16 = 23;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// `tx_dropped` is the eighth field of `struct rtnl_link_stats64`.
const TX_DROPPED: usize = 7 * 8;

/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// Packets that the kernel has dropped on transmit since the interface was created. A TUN
    /// device drops a packet when its queue is full or no process has it open.
    pub tx_dropped: u64,
    /// The transmit queue length, in packets.
    pub tx_queue_len: u32,
}

/// An interface in a list of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedInterface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub is_up: bool,
}

impl ListedInterface {
    fn parse(body: &[u8]) -> Option<Self> {
        let (index, flags) = (word(body, 4)?, word(body, 8)?);
        let mut names =
            attributes(body.get(LINK_HEADER..)?).filter(|(kind, _)| *kind == IFLA_IFNAME);
        let name = String::from_utf8_lossy(names.next()?.1);
        let name = name.trim_end_matches('\0').to_owned();
        Some(Self { index, name, is_up: flags & libc::IFF_UP as u32 != 0 })
    }
}

/// The interfaces of the calling thread's network namespace.
///
/// # Errors
/// The kernel's error.
pub fn list() -> io::Result<Vec<ListedInterface>> {
    let mut interfaces = Vec::new();
    RequestSocket::route()?.dump(RTM_GETLINK, &[0; LINK_HEADER], |body| {
        interfaces.extend(ListedInterface::parse(body));
    })?;
    Ok(interfaces)
}

/// An interface to query.
#[derive(Debug)]
pub struct Interface {
    socket: RequestSocket,
    index: u32,
}

impl Interface {
    /// Looks an interface up in the calling thread's network namespace. Any thread may query it.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn open(name: &str) -> io::Result<Self> {
        let socket = RequestSocket::route()?;
        let index = rustix::net::netdevice::name_to_index(&socket, name)?;
        Ok(Self { socket, index })
    }

    /// The current state.
    ///
    /// # Errors
    /// The kernel's error, for example if the interface was deleted.
    pub fn state(&self) -> io::Result<InterfaceState> {
        self.socket.query(RTM_GETLINK, &self.header(0), RTM_NEWLINK, parse_link)
    }

    /// The index of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Keeps the kernel from giving the interface a link-local address, and from sending router solicitations.
    ///
    /// # Errors
    /// The kernel's error, for example without IPv6.
    pub fn disable_link_local_address(&self) -> io::Result<()> {
        let mut request = self.header(0);
        nested(&mut request, IFLA_AF_SPEC, |request| {
            nested(request, libc::AF_INET6 as u16, |request| {
                attribute(request, IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]);
            });
        });
        self.socket.change(RTM_NEWLINK, 0, &request)
    }

    /// Brings the interface up, with this MTU.
    ///
    /// # Errors
    /// The kernel's error; it requires `CAP_NET_ADMIN`.
    pub fn bring_up(&self, mtu_bytes: u32) -> io::Result<()> {
        let mut request = self.header(libc::IFF_UP as u32);
        attribute(&mut request, IFLA_MTU, &mtu_bytes.to_ne_bytes());
        self.socket.change(RTM_NEWLINK, 0, &request)
    }

    /// Adds an address, with the length of the prefix of its network.
    ///
    /// # Errors
    /// The kernel's error, for example if the interface has the address; it requires `CAP_NET_ADMIN`.
    pub fn add_address(&self, address: IpAddr, prefix: u8) -> io::Result<()> {
        // `struct ifaddrmsg`: of any flags, and valid everywhere.
        let mut request = vec![family(address), prefix, 0, 0];
        request.extend(self.index.to_ne_bytes());
        attribute(&mut request, IFA_LOCAL, &address_bytes(address));
        attribute(&mut request, IFA_ADDRESS, &address_bytes(address));
        self.socket.change(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &request)
    }

    /// `struct ifinfomsg` of a request that sets these flags.
    fn header(&self, flags: u32) -> Vec<u8> {
        let mut header = vec![0; 4];
        for word in [self.index, flags, flags] {
            header.extend(word.to_ne_bytes());
        }
        header
    }
}

/// The attributes after `struct ifinfomsg`.
fn parse_link(body: &[u8]) -> Option<InterfaceState> {
    let (mut tx_dropped, mut tx_queue_len) = (None, None);
    for (kind, value) in attributes(body.get(LINK_HEADER..)?) {
        match kind {
            IFLA_STATS64 => {
                let eight = value.get(TX_DROPPED..TX_DROPPED + 8)?;
                tx_dropped = Some(u64::from_ne_bytes(eight.try_into().ok()?));
            }
            IFLA_TXQLEN => tx_queue_len = word(value, 0),
            _ => {}
        }
    }
    Some(InterfaceState { tx_dropped: tx_dropped?, tx_queue_len: tx_queue_len? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Given a reply with a 5-byte name, a queue length of 500 and statistics with 7 in the eighth
    /// field, expect these two values; without the statistics, nothing instead of zero.
    #[test]
    fn a_reply_without_statistics_has_no_state() {
        let statistics: Vec<u8> =
            (0..25_u64).flat_map(|number| u64::to_ne_bytes(number % 8)).collect();
        let mut body = vec![0; LINK_HEADER];
        attribute(&mut body, 3, b"link\0");
        attribute(&mut body, IFLA_TXQLEN, &500_u32.to_ne_bytes());
        assert_eq!(parse_link(&body), None);
        attribute(&mut body, IFLA_STATS64, &statistics);
        let state = InterfaceState { tx_dropped: 7, tx_queue_len: 500 };
        assert_eq!(parse_link(&body), Some(state));
    }

    /// Every machine has a loopback interface. Interface names have at most 15 bytes, so the other
    /// one cannot exist.
    #[test]
    fn the_kernel_reports_the_loopback_interface() {
        let state = Interface::open("lo").and_then(|interface| interface.state());
        assert_eq!(state.expect("a loopback interface").tx_dropped, 0);
        assert!(Interface::open("no-such-interface").is_err());
        let names: Vec<_> = list().expect("a dump").into_iter().map(|it| it.name).collect();
        assert!(names.contains(&"lo".to_owned()), "{names:?}");
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(body: Vec<u8>) {
            let _ = (parse_link(&body), ListedInterface::parse(&body));
        }
    }
}
