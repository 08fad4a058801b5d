//! netlink(7): integers of messages, in host byte order, and requests to rtnetlink(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// From linux/netlink.h.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const MESSAGE_HEADER: usize = 16;

/// The longest reply, that for an interface, takes some 2 kB.
const REPLY_BYTES: usize = 16 * 1024;
/// The kernel replies before send(2) returns. The timeout covers a kernel that does not.
const TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);
/// Replies to requests that timed out are skipped.
const LATE_REPLIES_MAX: usize = 16;

/// A socket of rtnetlink(7). It stays in the network namespace in which it was created, whichever thread uses it,
/// and needs no privilege.
#[derive(Debug)]
pub(crate) struct RouteSocket {
    socket: OwnedFd,
    sequence: AtomicU32,
}

impl RouteSocket {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        // Protocol 0 of netlink is NETLINK_ROUTE.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self { socket, sequence: AtomicU32::new(0) })
    }

    /// Sends a request, and returns what `parse` reads in the body of its reply, of another kind.
    ///
    /// # Errors
    /// The kernel's error, or `InvalidData` if `parse` returns `None`.
    pub(crate) fn query<T>(
        &self,
        kind: u16,
        body: &[u8],
        reply_kind: u16,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<T> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        send(&self.socket, &message(kind, sequence, body), SendFlags::empty())?;
        let mut reply = [0; REPLY_BYTES];
        for _ in 0..LATE_REPLIES_MAX {
            let (bytes, _) = recv(&self.socket, &mut reply[..], RecvFlags::empty())?;
            if let Some(body) = reply_body(&reply[..bytes], reply_kind, sequence)? {
                return parse(body).ok_or_else(truncated);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "no reply from the kernel to this request"))
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// `struct nlmsghdr` of a request, and its body.
fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((MESSAGE_HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // The port of the sender, which the kernel fills in.
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

/// The body of a reply. `None` if it is to another request, or of another kind.
fn reply_body(reply: &[u8], kind: u16, sequence: u32) -> io::Result<Option<&[u8]>> {
    let length = word(reply, 0).ok_or_else(truncated)? as usize;
    let found = half(reply, 4).ok_or_else(truncated)?;
    let body = reply.get(MESSAGE_HEADER..length).ok_or_else(truncated)?;
    if word(reply, 8) != Some(sequence) {
        return Ok(None);
    }
    if found == NLMSG_ERROR {
        let code = word(body, 0).ok_or_else(truncated)?.cast_signed();
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    Ok((found == kind).then_some(body))
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "truncated netlink reply")
}

/// Reads 32 bits at an offset, if they are present.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

/// Reads 16 bits at an offset, if they are present.
pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(two.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Given a reply of kind 16 to request 1, expect its body for that kind and that request alone.
    #[test]
    fn a_reply_belongs_to_one_request() {
        let reply = message(16, 1, b"body");
        assert_eq!(reply_body(&reply, 16, 1).expect("a complete reply"), Some(&b"body"[..]));
        assert_eq!(reply_body(&reply, 16, 2).expect("a complete reply"), None);
        assert_eq!(reply_body(&reply, 17, 1).expect("a complete reply"), None);
    }

    /// Given the netlink error ENODEV, 19, expect it to be returned.
    #[test]
    fn the_error_of_a_request_is_returned() {
        let reply = message(NLMSG_ERROR, 1, &(-19_i32).to_ne_bytes());
        let error = reply_body(&reply, 16, 1).expect_err("ENODEV");
        assert_eq!(error.raw_os_error(), Some(19));
    }

    /// Given a reply that is truncated at any byte, expect an error.
    #[test]
    fn a_truncated_reply_is_an_error() {
        let reply = message(16, 1, b"body");
        for end in 0..reply.len() {
            assert!(reply_body(&reply[..end], 16, 1).is_err(), "{end}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(reply: Vec<u8>, kind: u16, sequence: u32) {
            let _ = reply_body(&reply, kind, sequence);
        }
    }
}
