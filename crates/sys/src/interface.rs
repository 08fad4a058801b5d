//! State of a network interface: dropped packets and queue length (rtnetlink(7), `RTM_GETLINK`).
//!
//! Interfaces are identified by index, because their names can change.

use std::io;

use crate::netlink::{RouteSocket, half, word};

/// From linux/rtnetlink.h and linux/if_link.h.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_TXQLEN: u16 = 13;
const IFLA_STATS64: u16 = 23;
/// `tx_dropped` is the eighth field of `struct rtnl_link_stats64`.
const TX_DROPPED: usize = 7 * 8;

/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// Packets that the kernel has dropped on transmit since the interface was created. A TUN
    /// device drops a packet when its queue is full or no process has it open.
    pub tx_dropped: u64,
    /// The transmit queue length, in packets.
    pub tx_queue_len: u32,
}

/// An interface to query.
#[derive(Debug)]
pub struct Interface {
    socket: RouteSocket,
    index: u32,
}

impl Interface {
    /// Looks an interface up in the calling thread's network namespace. Any thread may query it.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn open(name: &str) -> io::Result<Self> {
        let socket = RouteSocket::open()?;
        let index = rustix::net::netdevice::name_to_index(&socket, name)?;
        Ok(Self { socket, index })
    }

    /// The current state.
    ///
    /// # Errors
    /// The kernel's error, for example if the interface was deleted.
    pub fn state(&self) -> io::Result<InterfaceState> {
        let mut request = [0; LINK_HEADER];
        request[4..8].copy_from_slice(&self.index.to_ne_bytes());
        self.socket.query(RTM_GETLINK, &request, RTM_NEWLINK, parse_link)
    }
}

/// The attributes after `struct ifinfomsg`.
fn parse_link(body: &[u8]) -> Option<InterfaceState> {
    let mut rest = body.get(LINK_HEADER..)?;
    let (mut tx_dropped, mut tx_queue_len) = (None, None);
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length);
        let value = rest.get(ATTRIBUTE_HEADER..length)?;
        match kind {
            IFLA_STATS64 => {
                let eight = value.get(TX_DROPPED..TX_DROPPED + 8)?;
                tx_dropped = Some(u64::from_ne_bytes(eight.try_into().ok()?));
            }
            IFLA_TXQLEN => tx_queue_len = word(value, 0),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(InterfaceState { tx_dropped: tx_dropped?, tx_queue_len: tx_queue_len? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Given a reply with a 5-byte name, a queue length of 500 and statistics with 7 in the eighth
    /// field, expect these two values; without the statistics, nothing instead of zero.
    #[test]
    fn a_reply_without_statistics_has_no_state() {
        let statistics: Vec<u8> =
            (0..25_u64).flat_map(|number| u64::to_ne_bytes(number % 8)).collect();
        let mut body = vec![0; LINK_HEADER];
        body.extend(attribute(3, b"link\0"));
        body.extend(attribute(IFLA_TXQLEN, &500_u32.to_ne_bytes()));
        assert_eq!(parse_link(&body), None);
        body.extend(attribute(IFLA_STATS64, &statistics));
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
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(body: Vec<u8>) {
            let _ = parse_link(&body);
        }
    }
}
