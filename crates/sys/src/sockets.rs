//! Socket options that the standard library lacks.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};

/// Enables receive timestamps (`SO_TIMESTAMPNS`, socket(7)).
///
/// # Errors
/// The kernel's error.
pub fn enable_timestamps(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Sets the receive buffer size. Root may exceed `net.core.rmem_max` (`SO_RCVBUFFORCE`, socket(7)).
///
/// # Errors
/// The kernel's error.
pub fn set_receive_buffer(socket: &UdpSocket, bytes: i32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// Sets the segment size of UDP segmentation offload (`UDP_SEGMENT`, udp(7)).
///
/// # Errors
/// The kernel's error.
pub fn set_udp_segment(socket: &UdpSocket, bytes: i32) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes)
}

/// Sets an option of any socket to an integer.
#[allow(unsafe_code, reason = "neither std nor rustix has these options")]
pub(crate) fn set(socket: impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let bytes = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads one int, which outlives the call.
    let done = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value, bytes)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives the head of a datagram. Returns its length and its `CLOCK_REALTIME` timestamp in
/// seconds and nanoseconds. Requires [`enable_timestamps`].
///
/// # Errors
/// The kernel's error.
#[allow(unsafe_code, reason = "only recvmsg returns the kernel's timestamp")]
pub fn recv_timestamped(socket: &UdpSocket, head: &mut [u8]) -> io::Result<(usize, i64, i64)> {
    let mut control = [0_u64; 16];
    // SAFETY: every pointer is to memory of the length passed with it. The control message is read
    // only if its type says that it is a timespec.
    let (bytes, timestamp) = unsafe {
        let mut part = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let bytes = libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0);
        if bytes < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let timestamped = !header.is_null() && (*header).cmsg_type == libc::SCM_TIMESTAMPNS;
        let timestamp =
            timestamped.then(|| libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned());
        (bytes.cast_unsigned(), timestamp)
    };
    let timestamp = timestamp.ok_or_else(|| io::Error::other("the datagram has no timestamp"))?;
    Ok((bytes, timestamp.tv_sec, timestamp.tv_nsec))
}
