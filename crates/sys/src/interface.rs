//! State of a network interface: dropped packets and queue length (rtnetlink(7), `RTM_GETLINK`).
//!
//! Interfaces are identified by index, because their names can change. A netlink socket stays in
//! the network namespace in which it was created, whichever thread uses it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::netlink::{half, word};

/// From linux/netlink.h, linux/rtnetlink.h and linux/if_link.h.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_TXQLEN: u16 = 13;
const IFLA_STATS64: u16 = 23;
/// `tx_dropped` is the eighth field of `struct rtnl_link_stats64`.
const TX_DROPPED: usize = 7 * 8;

const MESSAGE_HEADER: usize = 16;
/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// A reply for one interface takes some 2 kB.
const REPLY_BYTES: usize = 16 * 1024;
/// The kernel replies before send(2) returns. The timeout covers a kernel that does not.
const TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);
/// Replies to requests that timed out are skipped.
const LATE_REPLIES_MAX: usize = 16;

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
    socket: OwnedFd,
    index: u32,
    sequence: AtomicU32,
}

impl Interface {
    /// Looks an interface up in the calling thread's network namespace. Any thread may query it.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn open(name: &str) -> io::Result<Self> {
        // Protocol 0 of netlink is NETLINK_ROUTE.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        let index = rustix::net::netdevice::name_to_index(&socket, name)?;
        Ok(Self { socket, index, sequence: AtomicU32::new(0) })
    }

    /// The current state.
    ///
    /// # Errors
    /// The kernel's error, for example if the interface was deleted.
    pub fn state(&self) -> io::Result<InterfaceState> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        send(&self.socket, &request(self.index, sequence), SendFlags::empty())?;
        let mut reply = [0; REPLY_BYTES];
        for _ in 0..LATE_REPLIES_MAX {
            let (bytes, _) = recv(&self.socket, &mut reply[..], RecvFlags::empty())?;
            if let Some(state) = parse_reply(&reply[..bytes], sequence)? {
                return Ok(state);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "no reply from the kernel to this request"))
    }
}

/// `struct nlmsghdr` and `struct ifinfomsg`.
fn request(index: u32, sequence: u32) -> [u8; MESSAGE_HEADER + LINK_HEADER] {
    let mut bytes = [0; MESSAGE_HEADER + LINK_HEADER];
    bytes[0..4].copy_from_slice(&((MESSAGE_HEADER + LINK_HEADER) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    bytes[20..24].copy_from_slice(&index.to_ne_bytes());
    bytes
}

/// Parses a reply. `None` if it is to another request.
fn parse_reply(reply: &[u8], sequence: u32) -> io::Result<Option<InterfaceState>> {
    let incomplete = || io::Error::new(io::ErrorKind::InvalidData, "truncated netlink reply");
    let length = word(reply, 0).ok_or_else(incomplete)? as usize;
    let kind = half(reply, 4).ok_or_else(incomplete)?;
    let body = reply.get(MESSAGE_HEADER..length).ok_or_else(incomplete)?;
    if word(reply, 8) != Some(sequence) {
        return Ok(None);
    }
    match kind {
        NLMSG_ERROR => {
            let code = word(body, 0).ok_or_else(incomplete)?.cast_signed();
            Err(io::Error::from_raw_os_error(code.saturating_neg()))
        }
        RTM_NEWLINK => parse_link(body).map(Some).ok_or_else(incomplete),
        _ => Ok(None),
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

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = (MESSAGE_HEADER as u32 + body.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Given a reply with a 5-byte name, a queue length of 500 and statistics with 7 in the eighth
    /// field, expect these two values; without the statistics, an error instead of zero.
    #[test]
    fn a_reply_without_statistics_is_an_error() {
        let statistics: Vec<u8> =
            (0..25_u64).flat_map(|number| u64::to_ne_bytes(number % 8)).collect();
        let mut body = vec![0; LINK_HEADER];
        body.extend(attribute(3, b"link\0"));
        body.extend(attribute(IFLA_TXQLEN, &500_u32.to_ne_bytes()));
        assert!(parse_reply(&message(RTM_NEWLINK, 1, &body), 1).is_err());
        body.extend(attribute(IFLA_STATS64, &statistics));
        let reply = message(RTM_NEWLINK, 1, &body);
        let state = InterfaceState { tx_dropped: 7, tx_queue_len: 500 };
        assert_eq!(parse_reply(&reply, 1).expect("a complete reply"), Some(state));
        assert_eq!(parse_reply(&reply, 2).expect("a reply to another request"), None);
    }

    /// Given the netlink error ENODEV, 19, expect it to be returned.
    #[test]
    fn the_error_of_a_deleted_interface_is_returned() {
        let error = message(NLMSG_ERROR, 1, &(-19_i32).to_ne_bytes());
        let error = parse_reply(&error, 1).expect_err("ENODEV");
        assert_eq!(error.raw_os_error(), Some(19));
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
        fn arbitrary_replies_do_not_panic(reply: Vec<u8>, body: Vec<u8>, sequence: u32) {
            let _ = parse_reply(&reply, sequence);
            let _ = parse_reply(&message(RTM_NEWLINK, sequence, &body), sequence);
            let _ = parse_link(&body);
        }
    }
}
