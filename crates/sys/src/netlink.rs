//! netlink(7): messages and their attributes, in host byte order, and requests.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::netlink::{NETFILTER, SOCK_DIAG};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::sockets::set;

/// From linux/netlink.h.
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
pub(crate) const NLM_F_REQUEST: u16 = 1;
pub(crate) const NLM_F_ACK: u16 = 4;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLA_F_NESTED: u16 = 1 << 15;
/// An attribute of errors, `NLMSGERR_ATTR_MSG`.
const ERROR_TEXT: u16 = 1;
pub(crate) const MESSAGE_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;

/// The kernel sends pages; no reply is longer (`netlink_recvmsg`).
const REPLY_BYTES: usize = 32 * 1024;
/// More replies than a dump of a million routes needs.
const REPLIES_MAX: usize = 10_000;
/// The kernel replies before send(2) returns. The timeout covers a kernel that does not.
const TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);
/// Replies to requests that timed out are skipped.
const LATE_REPLIES_MAX: usize = 16;

/// A socket for requests to a part of the kernel. It stays in the network namespace in which it was created, whichever
/// thread uses it.
#[derive(Debug)]
pub(crate) struct RequestSocket {
    socket: OwnedFd,
    sequence: AtomicU32,
}

impl RequestSocket {
    /// Opens a socket of rtnetlink(7) in the calling thread's network namespace. It needs no privilege.
    pub(crate) fn route() -> io::Result<Self> {
        // Protocol 0 of netlink is NETLINK_ROUTE.
        Self::open(None)
    }

    /// Opens a socket of nfnetlink in the calling thread's network namespace.
    pub(crate) fn netfilter() -> io::Result<Self> {
        Self::open(Some(NETFILTER))
    }

    /// Opens a socket of sock_diag(7) in the calling thread's network namespace.
    pub(crate) fn diag() -> io::Result<Self> {
        Self::open(Some(SOCK_DIAG))
    }

    fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        explain_errors(&socket)?;
        Ok(Self { socket, sequence: AtomicU32::new(0) })
    }

    /// Sends a request for a change, with these flags beside those of every request, and waits until it is done.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn change(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.request(kind, NLM_F_ACK | flags, body, NLMSG_ERROR, |_| Some(()))
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
        self.request(kind, 0, body, reply_kind, parse)
    }

    fn request<T>(
        &self,
        kind: u16,
        flags: u16,
        body: &[u8],
        reply_kind: u16,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<T> {
        let sequence = self.send(kind, flags, body)?;
        let mut reply = vec![0; REPLY_BYTES];
        for _ in 0..LATE_REPLIES_MAX {
            let (bytes, _) = recv(&self.socket, &mut reply[..], RecvFlags::empty())?;
            if let Some(body) = reply_body(&reply[..bytes], reply_kind, sequence)? {
                return parse(body).ok_or_else(truncated);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "no reply from the kernel to this request"))
    }

    /// Requests all objects of a kind, and passes the body of each to `read`.
    ///
    /// # Errors
    /// The kernel's error, or `Interrupted` if objects changed meanwhile.
    pub(crate) fn dump(
        &self,
        kind: u16,
        body: &[u8],
        mut read: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let sequence = self.send(kind, NLM_F_DUMP, body)?;
        let mut reply = vec![0; REPLY_BYTES];
        let mut is_interrupted = false;
        for _ in 0..REPLIES_MAX {
            let (bytes, _) = recv(&self.socket, &mut reply[..], RecvFlags::empty())?;
            for message in messages(&reply[..bytes]).filter(|each| each.sequence == sequence) {
                is_interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE if is_interrupted => return Err(io::ErrorKind::Interrupted.into()),
                    NLMSG_DONE | NLMSG_ERROR => return error(message.body).map_or(Ok(()), Err),
                    _ => read(message.body),
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "a netlink dump that does not end"))
    }

    /// Sends a request, and returns its sequence number.
    fn send(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<u32> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let request = message(kind, NLM_F_REQUEST | flags, sequence, body);
        send(&self.socket, &request, SendFlags::empty())?;
        Ok(sequence)
    }
}

impl AsFd for RequestSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// `struct nlmsghdr` of a request, and its body.
pub(crate) fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((MESSAGE_HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // The port of the sender, which the kernel fills in.
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

/// Appends an attribute of up to 65,531 bytes, and what fills its last 4 bytes.
pub(crate) fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend(((ATTRIBUTE_HEADER + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Appends an attribute that consists of others.
pub(crate) fn nested(bytes: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut value = Vec::new();
    fill(&mut value);
    attribute(bytes, kind | NLA_F_NESTED, &value);
}

/// The attributes in a body behind its header, with their kinds, up to the first one that is cut.
pub(crate) fn attributes(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(half(rest, 0)?), half(rest, 2)?);
        let value = rest.get(ATTRIBUTE_HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !NLA_F_NESTED, value))
    })
}

/// A message that was received.
pub(crate) struct Message<'bytes> {
    pub(crate) kind: u16,
    flags: u16,
    /// That of the request.
    pub(crate) sequence: u32,
    pub(crate) body: &'bytes [u8],
}

/// The messages of a reply, up to the first one that is cut.
pub(crate) fn messages(reply: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = reply;
    std::iter::from_fn(move || {
        let length = word(rest, 0)? as usize;
        let (kind, flags, sequence) = (half(rest, 4)?, half(rest, 6)?, word(rest, 8)?);
        let body = rest.get(MESSAGE_HEADER..length)?;
        rest = rest.get(length.checked_next_multiple_of(4)?..).unwrap_or_default();
        Some(Message { kind, flags, sequence, body })
    })
}

/// Lets the kernel say in words what is wrong, where it can, and not quote the request.
pub(crate) fn explain_errors(socket: impl AsFd + Copy) -> io::Result<()> {
    set(socket, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
    set(socket, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)
}

/// The error in the body of `NLMSG_ERROR` and `NLMSG_DONE`; `None` if there is none.
///
/// A request that the kernel does not know (EINVAL) is not an invalid input of a user, so it is of kind `Other`.
pub(crate) fn error(body: &[u8]) -> Option<io::Error> {
    let error = match word(body, 0).map(u32::cast_signed) {
        Some(0) => return None,
        Some(code) => io::Error::from_raw_os_error(code.saturating_neg()),
        None => return Some(truncated()),
    };
    // Behind the header of the request.
    let mut words = attributes(body.get(4 + MESSAGE_HEADER..).unwrap_or_default());
    let kind = match error.kind() {
        io::ErrorKind::InvalidInput => io::ErrorKind::Other,
        kind => kind,
    };
    let Some((_, text)) = words.find(|&(kind, _)| kind == ERROR_TEXT) else {
        let is_same = kind == error.kind();
        return Some(if is_same { error } else { io::Error::new(kind, error.to_string()) });
    };
    let text = String::from_utf8_lossy(text);
    let text = text.trim_end_matches('\0');
    Some(io::Error::new(kind, format!("{text}: {error}")))
}

/// The body of a reply. `None` if it is to another request, or of another kind.
fn reply_body(reply: &[u8], kind: u16, sequence: u32) -> io::Result<Option<&[u8]>> {
    let message = messages(reply).next().ok_or_else(truncated)?;
    if message.sequence != sequence {
        return Ok(None);
    }
    if message.kind == NLMSG_ERROR
        && let Some(error) = error(message.body)
    {
        return Err(error);
    }
    Ok((message.kind == kind).then_some(message.body))
}

pub(crate) fn truncated() -> io::Error {
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
        let reply = message(16, 0, 1, b"body");
        assert_eq!(reply_body(&reply, 16, 1).expect("a complete reply"), Some(&b"body"[..]));
        assert_eq!(reply_body(&reply, 16, 2).expect("a complete reply"), None);
        assert_eq!(reply_body(&reply, 17, 1).expect("a complete reply"), None);
    }

    /// Given the netlink error ENODEV, 19, expect it to be returned.
    #[test]
    fn the_error_of_a_request_is_returned() {
        let reply = message(NLMSG_ERROR, 0, 1, &(-19_i32).to_ne_bytes());
        let error = reply_body(&reply, 16, 1).expect_err("ENODEV");
        assert_eq!(error.raw_os_error(), Some(19));
    }

    /// Given an acknowledgement, error 0, expect it to be a reply of its own kind.
    #[test]
    fn an_acknowledgement_is_no_error() {
        let reply = message(NLMSG_ERROR, 0, 1, &0_i32.to_ne_bytes());
        assert!(reply_body(&reply, NLMSG_ERROR, 1).expect("no error").is_some());
        assert_eq!(reply_body(&reply, 16, 1).expect("no error"), None);
    }

    /// Given attributes of odd lengths, one of which consists of another, expect them to be read as they were written.
    #[test]
    fn attributes_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        attribute(&mut bytes, 1, b"odd");
        nested(&mut bytes, 2, |bytes| attribute(bytes, 3, b"inner"));
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!((bytes.len(), found.len(), found[0]), (24, 2, (1, &b"odd"[..])));
        assert_eq!(attributes(found[1].1).collect::<Vec<_>>(), [(3, &b"inner"[..])]);
    }

    /// Given EINVAL, 22, with and without what the kernel says is wrong, expect it in the text, and not the kind of bad input.
    #[test]
    fn an_error_is_explained() {
        let mut body = (-22_i32).to_ne_bytes().to_vec();
        let plain = error(&body).expect("an error");
        assert_eq!(plain.to_string(), "Invalid argument (os error 22)");
        assert_eq!(plain.kind(), io::ErrorKind::Other);
        body.extend([0; MESSAGE_HEADER]);
        attribute(&mut body, ERROR_TEXT, b"Invalid prefix\0");
        let found = error(&body).expect("an error");
        assert_eq!(found.to_string(), "Invalid prefix: Invalid argument (os error 22)");
        assert_eq!(found.kind(), io::ErrorKind::Other);
    }

    /// Given a reply that is truncated at any byte, expect an error.
    #[test]
    fn a_truncated_reply_is_an_error() {
        let reply = message(16, 0, 1, b"body");
        for end in 0..reply.len() {
            assert!(reply_body(&reply[..end], 16, 1).is_err(), "{end}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(reply: Vec<u8>, kind: u16, sequence: u32) {
            let _ = reply_body(&reply, kind, sequence);
            let _ = error(&reply);
            let found = messages(&reply).count();
            prop_assert!(found <= reply.len() / MESSAGE_HEADER);
            prop_assert!(attributes(&reply).count() <= reply.len() / ATTRIBUTE_HEADER);
        }
    }
}
