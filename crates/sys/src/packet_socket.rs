//! Copies of the TCP SYNs that arrive at an interface, before any rule of the firewall applies to them.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::tcp_sockets::{Version, get, set};

/// A packet socket (packet(7)) that receives SYNs for this host's hardware address.
#[derive(Debug)]
pub struct SynSocket(OwnedFd);

/// A packet that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its length; what exceeds the buffer is lost.
    pub bytes: usize,
    /// Whether its transport checksum is complete. A sender on this machine leaves it to the device.
    pub has_checksum: bool,
}

// The ancillary data of a packet filter, and the types of packets (linux/filter.h, linux/if_packet.h).
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
const PACKET_HOST: u32 = 0;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE_INDEXED: u16 = 0x50;
const LOAD_INDEX_FROM_IPV4_LENGTH: u16 = 0xb1;
const AND: u16 = 0x54;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
const ALL: u32 = 0xffff;

const TCP: u32 = 6;
const SYN: u32 = 0x02;
/// FIN, SYN, RST and ACK.
const FLAGS: u32 = 0x17;

const fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// The filter: a packet for this host, TCP, not a later fragment, SYN without FIN, RST and ACK. The offsets are
/// from the IP header.
const V4: [libc::sock_filter; 12] = [
    statement(LOAD_HALF, PACKET_TYPE),
    jump(JUMP_IF_EQUAL, PACKET_HOST, 0, 9),
    statement(LOAD_BYTE, 9),
    jump(JUMP_IF_EQUAL, TCP, 0, 7),
    statement(LOAD_HALF, 6),
    jump(JUMP_IF_ANY_BIT, 0x1fff, 5, 0),
    statement(LOAD_INDEX_FROM_IPV4_LENGTH, 0),
    statement(LOAD_BYTE_INDEXED, 13),
    statement(AND, FLAGS),
    jump(JUMP_IF_EQUAL, SYN, 0, 1),
    statement(RETURN, ALL),
    statement(RETURN, 0),
];

/// As for IPv4; a SYN behind extension headers passes without the relay.
const V6: [libc::sock_filter; 9] = [
    statement(LOAD_HALF, PACKET_TYPE),
    jump(JUMP_IF_EQUAL, PACKET_HOST, 0, 6),
    statement(LOAD_BYTE, 6),
    jump(JUMP_IF_EQUAL, TCP, 0, 4),
    statement(LOAD_BYTE, 40 + 13),
    statement(AND, FLAGS),
    jump(JUMP_IF_EQUAL, SYN, 0, 1),
    statement(RETURN, ALL),
    statement(RETURN, 0),
];

impl SynSocket {
    /// Opens a socket that does not block.
    ///
    /// # Errors
    /// The kernel's error; it requires `CAP_NET_RAW`.
    #[allow(unsafe_code, reason = "neither std nor rustix binds a packet socket")]
    pub fn open(interface: &str, version: Version) -> io::Result<Self> {
        let (protocol, filter): (_, &[libc::sock_filter]) = match version {
            Version::V4 => (libc::ETH_P_IP, &V4),
            Version::V6 => (libc::ETH_P_IPV6, &V6),
        };
        let name = CString::new(interface)?;
        // SAFETY: the name ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // Protocol 0 receives nothing until the filter is there.
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: a new descriptor has no other owner.
        let socket = unsafe {
            let socket = libc::socket(libc::AF_PACKET, kind, 0);
            if socket < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(socket)
        };
        set_filter(&socket, filter)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        // SAFETY: the kernel reads one address of the length passed with it.
        let bound = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = (protocol as u16).to_be();
            address.sll_ifindex = index.cast_signed();
            let bytes = size_of_val(&address) as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes)
        };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(socket)) }
    }

    /// Opens several sockets, of which each receives some connections: all SYNs of a connection arrive at one
    /// (packet(7), `PACKET_FANOUT`).
    ///
    /// # Errors
    /// As [`SynSocket::open`].
    pub fn open_group(interface: &str, version: Version, sockets: usize) -> io::Result<Vec<Self>> {
        let opened: io::Result<Vec<_>> =
            (0..sockets).map(|_| Self::open(interface, version)).collect();
        let opened = opened?;
        if let [first, others @ ..] = &opened[..]
            && !others.is_empty()
        {
            // The kernel chooses a number that no other group has.
            let unique = (libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16;
            set(first, libc::SOL_PACKET, libc::PACKET_FANOUT, unique.cast_signed())?;
            let group = get(first, libc::SOL_PACKET, libc::PACKET_FANOUT)? & 0xffff;
            let join = (libc::PACKET_FANOUT_HASH << 16).cast_signed() | group;
            for other in others {
                set(other, libc::SOL_PACKET, libc::PACKET_FANOUT, join)?;
            }
        }
        Ok(opened)
    }

    /// Takes a socket that another process opened.
    #[must_use]
    pub fn from_fd(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Receives the next packet, from its IP header on.
    ///
    /// # Errors
    /// The kernel's error; `WouldBlock` if there is none.
    #[allow(unsafe_code, reason = "only recvmsg returns the state of the checksum")]
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut control = [0_u64; 8];
        // SAFETY: every pointer is to memory of the length passed with it. The control message is read
        // only if its type says what it is.
        unsafe {
            let mut part =
                libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            let bytes = libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0);
            if bytes < 0 {
                return Err(io::Error::last_os_error());
            }
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            let is_auxiliary = !header.is_null()
                && (*header).cmsg_level == libc::SOL_PACKET
                && (*header).cmsg_type == libc::PACKET_AUXDATA;
            let status = is_auxiliary
                .then(|| libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned())
                .map_or(0, |auxiliary| auxiliary.tp_status);
            let has_checksum = status & libc::TP_STATUS_CSUMNOTREADY == 0;
            Ok(Received { bytes: bytes.cast_unsigned(), has_checksum })
        }
    }
}

impl AsFd for SynSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<SynSocket> for OwnedFd {
    fn from(socket: SynSocket) -> Self {
        socket.0
    }
}

#[allow(unsafe_code, reason = "rustix has no SO_ATTACH_FILTER")]
fn set_filter(socket: &OwnedFd, filter: &[libc::sock_filter]) -> io::Result<()> {
    let len = filter.len() as u16;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which outlives the call, and does not write to it.
    let done = unsafe {
        let bytes = size_of_val(&program) as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const program).cast(), bytes)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
