//! Messages with file descriptors (unix(7), `SCM_RIGHTS`), between the privileged part and its workers, and
//! with clients of the control socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

/// The most descriptors in a message; the kernel's limit is 253.
pub(super) const DESCRIPTORS_MAX: usize = 64;
/// The longest message; that of the longest plan has 106 kB. The kernel takes 208 KiB (`net.core.wmem_default`).
pub(super) const BYTES_MAX: usize = 128 * 1024;

/// A pair of sockets that keep the bounds of messages.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends a message with descriptors.
pub(super) fn send(
    channel: impl AsFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if message.len() > BYTES_MAX {
        return Err(io::Error::other(format!(
            "a message of {} B is too long; at most {BYTES_MAX} B",
            message.len()
        )));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for a message"));
    }
    sendmsg(channel, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message. An empty one means that the other end is closed.
///
/// # Errors
/// The message is longer than [`BYTES_MAX`], some of its descriptors are missing, or the kernel's error.
pub(super) fn receive(channel: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (message, descriptors, missing) = receive_some(channel)?;
    missing.map_or(Ok((message, descriptors)), |missing| Err(missing.into()))
}

/// Descriptors of a message were not received (`MSG_CTRUNC`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing;

impl From<Missing> for io::Error {
    fn from(_: Missing) -> Self {
        Self::other(
            "descriptors of a message are missing: this process has as many open files as it may; to fix it: fewer \
             connections, or a higher limit (LimitNOFILE= in a systemd unit, or `ulimit -n`)",
        )
    }
}

/// Receives a message with those of its descriptors for which there is room, and whether others are missing.
///
/// # Errors
/// As [`receive`], but for missing descriptors.
pub(super) fn receive_some(
    channel: impl AsFd,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>, Option<Missing>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; BYTES_MAX];
    let parts = &mut [IoSliceMut::new(&mut message)];
    let received = match recvmsg(channel, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
        // The other end was closed, and had not read everything.
        Err(Errno::CONNRESET) => return Ok((Vec::new(), Vec::new(), None)),
        received => received?,
    };
    if received.flags.contains(ReturnFlags::TRUNC) {
        let text = format!("a message, such as a plan, is too long; at most {BYTES_MAX} B");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    message.truncate(received.bytes);
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    let missing = received.flags.contains(ReturnFlags::CTRUNC).then_some(Missing);
    Ok((message, descriptors, missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends what `send` refuses.
    fn send_unchecked(channel: &OwnedFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        sendmsg(channel, &[IoSlice::new(message)], &mut control, SendFlags::empty())
            .expect("it can be sent");
    }

    #[test]
    fn a_message_that_is_too_long_is_named_and_not_parsed() {
        let (one, other) = pair().expect("a pair");
        for (bytes, is_received) in [(BYTES_MAX, true), (BYTES_MAX + 1, false)] {
            send_unchecked(&one, &vec![b'7'; bytes], &[other.as_fd()]);
            let received = receive(&other);
            assert_eq!(received.is_ok(), is_received, "{bytes}");
            let Err(error) = received else { continue };
            assert!(error.to_string().contains("too long; at most 131072 B"), "{error}");
        }
    }

    /// Given more descriptors than there is room for, as at the limit of open files, expect an error; expect what there
    /// is room for where that is asked for.
    #[test]
    fn missing_descriptors_are_an_error() {
        let (one, other) = pair().expect("a pair");
        for (sent, is_missing) in [(DESCRIPTORS_MAX, false), (2 * DESCRIPTORS_MAX, true)] {
            let descriptors = vec![other.as_fd(); sent];
            send_unchecked(&one, b"some", &descriptors);
            let (message, received, missing) = receive_some(&other).expect("a message");
            assert_eq!(message, b"some");
            assert!(received.len() >= DESCRIPTORS_MAX);
            assert_eq!((received.len() < sent, missing.is_some()), (is_missing, is_missing));
            send_unchecked(&one, b"all", &descriptors);
            let received = receive(&other).map(|(_, received)| received.len());
            assert_eq!(received.is_ok(), !is_missing);
            let Err(error) = received else { continue };
            assert!(error.to_string().contains("to fix it"), "{error}");
        }
    }
}
