//! Options of UDP sockets that the standard library has no names for, and stamps of what comes.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Has the kernel stamp each packet that comes (`SO_TIMESTAMPNS`, socket(7)).
///
/// # Errors
/// What the kernel says.
pub fn stamp_received(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Sets how much may wait to be received. Root may pass the machine's limit; others get up to it.
///
/// # Errors
/// What the kernel says.
pub fn set_receive_buffer(socket: &UdpSocket, bytes: i32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// Has the kernel cut what is sent into datagrams of so many bytes (`UDP_SEGMENT`, udp(7)).
///
/// # Errors
/// What the kernel says.
pub fn cut_datagrams(socket: &UdpSocket, bytes: i32) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes)
}

#[allow(unsafe_code, reason = "the standard library has no names for these options")]
fn set(socket: &UdpSocket, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one int, which lives during the call.
    let done = unsafe {
        let value = (&raw const value).cast();
        let bytes = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, value, bytes)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives the first bytes of a datagram: how many, and its stamp in seconds and nanoseconds of the
/// machine's real-time clock. To be called after [`stamp_received`].
///
/// # Errors
/// What the kernel says, or that it stamps nothing.
#[allow(unsafe_code, reason = "recvmsg gives the kernel's stamp, and nobody else does")]
pub fn receive_stamped(socket: &UdpSocket, head: &mut [u8]) -> io::Result<(usize, i64, i64)> {
    let mut control = [0_u64; 16];
    // SAFETY: every pointer is to memory of the length that is given with it; the control message is
    // read only if the kernel says that it is a timespec.
    let (bytes, stamp) = unsafe {
        let mut part = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let bytes = libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0);
        if bytes < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let stamped = !header.is_null() && (*header).cmsg_type == libc::SCM_TIMESTAMPNS;
        let stamp =
            stamped.then(|| libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned());
        (bytes.cast_unsigned(), stamp)
    };
    let stamp = stamp.ok_or_else(|| io::Error::other("the kernel stamps no packets"))?;
    Ok((bytes, stamp.tv_sec, stamp.tv_nsec))
}
