//! Packets that rules of the firewall log to a program: `log group` of nft(8), over nfnetlink.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_timeout,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use crate::netlink::{
    NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR, attribute, attributes, error, message, messages,
    truncated,
};
use crate::sockets::set;

/// From linux/netfilter/nfnetlink.h and nfnetlink_log.h.
const ULOG: u16 = 4 << 8;
const CONFIG: u16 = ULOG | 1;
const PACKET: u16 = ULOG;
const CFG_CMD: u16 = 1;
const CFG_MODE: u16 = 2;
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
const PAYLOAD: u16 = 9;
/// `struct nfgenmsg`.
const FAMILY_HEADER: usize = 4;

/// More than the attributes of a packet beside its bytes.
const OTHER_BYTES: usize = 512;
/// Some 2,000 SYNs that wait to be read.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// A socket that receives the packets of one group.
#[derive(Debug)]
pub struct PacketLog(OwnedFd);

impl PacketLog {
    /// Memory to receive a packet of up to `bytes`.
    #[must_use]
    pub const fn buffer_bytes(bytes: usize) -> usize {
        bytes + OTHER_BYTES
    }

    /// Opens a socket that does not block, for the packets of a group up to so many bytes; what exceeds them is cut.
    /// It stays in the network namespace in which it was created.
    ///
    /// # Errors
    /// The kernel's error: it requires `CAP_NET_ADMIN`, and a group has one reader.
    pub fn open(group: u16, bytes: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        // Without CAP_NET_ADMIN in the initial user namespace, net.core.rmem_max limits it.
        if set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
            set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
        }
        // A full buffer loses packets, as any queue does; it is no error of the next one.
        set(&socket, libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, 1)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        send(&socket, &configuration(group, bytes), SendFlags::empty())?;
        let mut reply = [0; 256];
        let (length, _) = recv(&socket, &mut reply[..], RecvFlags::empty())?;
        let answer = messages(&reply[..length]).next().filter(|each| each.kind == NLMSG_ERROR);
        if let Some(error) = answer.map_or_else(|| Some(truncated()), |answer| error(answer.body)) {
            return Err(error);
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(socket))
    }

    /// Takes a socket that another process opened.
    #[must_use]
    pub fn from_fd(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Receives the next packet, from its IP header on. The buffer has at least [`PacketLog::buffer_bytes`].
    ///
    /// # Errors
    /// The kernel's error; `WouldBlock` if there is none.
    pub fn receive<'buffer>(&self, buffer: &'buffer mut [u8]) -> io::Result<&'buffer [u8]> {
        let (length, _) = recv(&self.0, &mut *buffer, RecvFlags::empty())?;
        let message = &buffer[..length.min(buffer.len())];
        Ok(payload(message).unwrap_or_default())
    }
}

impl AsFd for PacketLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<PacketLog> for OwnedFd {
    fn from(log: PacketLog) -> Self {
        log.0
    }
}

/// The request to receive the packets of a group.
fn configuration(group: u16, bytes: u32) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(group.to_be_bytes());
    attribute(&mut body, CFG_CMD, &[BIND]);
    attribute(&mut body, CFG_MODE, &[&bytes.to_be_bytes()[..], &[COPY_PACKET, 0]].concat());
    message(CONFIG, NLM_F_REQUEST | NLM_F_ACK, 0, &body)
}

/// The packet in a message; `None` in one of another kind.
fn payload(message: &[u8]) -> Option<&[u8]> {
    let log = messages(message).next().filter(|each| each.kind == PACKET)?;
    let mut attributes = attributes(log.body.get(FAMILY_HEADER..)?);
    attributes.find(|&(kind, _)| kind == PAYLOAD).map(|(_, packet)| packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::word;
    use proptest::prelude::*;

    fn log_message(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 7];
        for (kind, value) in attributes {
            attribute(&mut body, *kind, value);
        }
        message(kind, 0, 0, &body)
    }

    #[test]
    fn the_packet_is_found_behind_other_attributes() {
        let log = log_message(PACKET, &[(1, &[8, 0, 2, 0]), (10, b"odd"), (PAYLOAD, b"packet!")]);
        assert_eq!(payload(&log), Some(&b"packet!"[..]));
        assert_eq!(payload(&log_message(PACKET, &[(1, &[8, 0, 2, 0])])), None);
        assert_eq!(payload(&log_message(NLMSG_ERROR, &[(PAYLOAD, b"packet!")])), None);
    }

    #[test]
    fn the_configuration_names_the_group_and_the_length() {
        let message = configuration(0x1234, 0x500);
        assert_eq!(word(&message, 0), Some(message.len() as u32));
        assert_eq!(message[16..20], [0, 0, 0x12, 0x34]);
        assert_eq!(message[32..38], [0, 0, 5, 0, COPY_PACKET, 0]);
    }

    proptest! {
        /// Given any bytes, expect no panic.
        #[test]
        fn any_message_is_read(bytes: Vec<u8>) {
            let _ = payload(&bytes);
        }
    }
}
