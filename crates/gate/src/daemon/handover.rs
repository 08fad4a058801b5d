//! Messages with file descriptors (unix(7), `SCM_RIGHTS`), between the privileged part and its workers, and
//! with clients of the control socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The most descriptors in a message; the kernel's limit is 253.
pub(super) const DESCRIPTORS_MAX: usize = 64;
/// The longest message.
pub(super) const BYTES_MAX: usize = 64 * 1024;

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
pub(super) fn receive(channel: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; BYTES_MAX];
    let parts = &mut [IoSliceMut::new(&mut message)];
    let received = match recvmsg(channel, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
        // The other end was closed, and had not read everything.
        Err(Errno::CONNRESET) => return Ok((Vec::new(), Vec::new())),
        received => received?,
    };
    message.truncate(received.bytes);
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    Ok((message, descriptors))
}
