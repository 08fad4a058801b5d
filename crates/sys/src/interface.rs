//! What the kernel says of a network interface: the packets that it dropped there, and how many may
//! wait (rtnetlink(7), `RTM_GETLINK`).
//!
//! By the number of the interface, since its name may change, and by a netlink socket, which belongs to
//! the namespace that it was made in, whoever asks by it later.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::netlink::{half, word};

/// Numbers of linux/netlink.h, linux/rtnetlink.h and linux/if_link.h.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_TXQLEN: u16 = 13;
const IFLA_STATS64: u16 = 23;
/// `tx_dropped` is the eighth number of `struct rtnl_link_stats64`.
const TX_DROPPED: usize = 7 * 8;

const MESSAGE_HEADER: usize = 16;
/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// An answer for one interface takes some 2 kB.
const ANSWER_BYTES: usize = 16 * 1024;
/// The kernel answers before the request returns; this is for a kernel that does not.
const TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);
/// An answer that came after its time-out is passed over.
const LATE_ANSWERS_MAX: usize = 16;

/// What the kernel says of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// Packets for the interface that the kernel dropped since it is there. Of a TUN device: because
    /// its queue was full, or nobody had it open.
    pub tx_dropped: u64,
    /// How many packets its queue holds.
    pub tx_queue_len: u32,
}

/// A way to ask the kernel about one interface.
#[derive(Debug)]
pub struct Interface {
    socket: OwnedFd,
    index: u32,
    sequence: AtomicU32,
}

impl Interface {
    /// An interface of the calling thread's network namespace; it can be asked about from any.
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

    /// What the kernel says now.
    ///
    /// # Errors
    /// What the kernel says instead, such as that there is no such interface any more.
    pub fn state(&self) -> io::Result<InterfaceState> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        send(&self.socket, &request(self.index, sequence), SendFlags::empty())?;
        let mut answer = [0; ANSWER_BYTES];
        for _ in 0..LATE_ANSWERS_MAX {
            let (bytes, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
            if let Some(state) = read_answer(&answer[..bytes], sequence)? {
                return Ok(state);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel answers other requests only"))
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

/// What an answer says, if it is one to this request.
fn read_answer(answer: &[u8], sequence: u32) -> io::Result<Option<InterfaceState>> {
    let incomplete = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is cut");
    let length = word(answer, 0).ok_or_else(incomplete)? as usize;
    let kind = half(answer, 4).ok_or_else(incomplete)?;
    let body = answer.get(MESSAGE_HEADER..length).ok_or_else(incomplete)?;
    if word(answer, 8) != Some(sequence) {
        return Ok(None);
    }
    match kind {
        NLMSG_ERROR => {
            let code = word(body, 0).ok_or_else(incomplete)?.cast_signed();
            Err(io::Error::from_raw_os_error(code.saturating_neg()))
        }
        RTM_NEWLINK => read_link(body).map(Some).ok_or_else(incomplete),
        _ => Ok(None),
    }
}

/// The attributes behind `struct ifinfomsg`.
fn read_link(body: &[u8]) -> Option<InterfaceState> {
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

    /// Given an interface with a name of five bytes, a queue of 500 and statistics whose eighth number
    /// is 7, expect these two; without the statistics, an error and not zero.
    #[test]
    fn an_answer_that_says_nothing_of_drops_is_an_error() {
        let statistics: Vec<u8> =
            (0..25_u64).flat_map(|number| u64::to_ne_bytes(number % 8)).collect();
        let mut body = vec![0; LINK_HEADER];
        body.extend(attribute(3, b"link\0"));
        body.extend(attribute(IFLA_TXQLEN, &500_u32.to_ne_bytes()));
        assert!(read_answer(&message(RTM_NEWLINK, 1, &body), 1).is_err());
        body.extend(attribute(IFLA_STATS64, &statistics));
        let answer = message(RTM_NEWLINK, 1, &body);
        let state = InterfaceState { tx_dropped: 7, tx_queue_len: 500 };
        assert_eq!(read_answer(&answer, 1).expect("it is whole"), Some(state));
        assert_eq!(read_answer(&answer, 2).expect("it is another's"), None);
    }

    /// Given the error ENODEV, 19, expect it said.
    #[test]
    fn an_interface_that_is_gone_is_an_error() {
        let error = message(NLMSG_ERROR, 1, &(-19_i32).to_ne_bytes());
        let error = read_answer(&error, 1).expect_err("it is gone");
        assert_eq!(error.raw_os_error(), Some(19));
    }

    /// Every machine has a loopback interface, and nobody's name is as long as this one.
    #[test]
    fn the_kernel_answers() {
        let state = Interface::open("lo").and_then(|interface| interface.state());
        assert_eq!(state.expect("a loopback interface").tx_dropped, 0);
        assert!(Interface::open("no-such-interface").is_err());
    }

    proptest! {
        #[test]
        fn no_answer_is_too_strange(answer: Vec<u8>, body: Vec<u8>, sequence: u32) {
            let _ = read_answer(&answer, sequence);
            let _ = read_answer(&message(RTM_NEWLINK, sequence, &body), sequence);
            let _ = read_link(&body);
        }
    }
}
