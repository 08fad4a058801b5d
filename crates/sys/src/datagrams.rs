//! Many datagrams in one system call: `recvmmsg` and `sendmmsg`, and runs of datagrams of equal size in one message, which
//! the kernel splits and joins (UDP GSO and GRO; udp(7), `UDP_SEGMENT` and `UDP_GRO`).

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::net::{Ipv4Addr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd;

use crate::sockets::set;

/// The most datagrams in a message: `UDP_MAX_SEGMENTS` of the kernels that have the fewest.
pub const RUN_DATAGRAMS_MAX: usize = 64;
/// The most bytes in a message: those of a UDP datagram over IPv4.
pub const RUN_BYTES_MAX: usize = 65_507;
/// The most messages in a call.
const MESSAGES_MAX: usize = 64;
/// The buffer of a message that is received.
const BUFFER_BYTES: usize = 65_536;
/// In words: three control messages of an integer each fit.
const CONTROL_WORDS: usize = 9;

/// Lets the kernel join datagrams that it receives (`UDP_GRO`).
///
/// # Errors
/// The kernel's error: it is older than Linux 5.0.
pub fn enable_gro(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Lets the kernel report the traffic class of what it receives: `IP_RECVTOS` (ip(7)), and `IPV6_RECVTCLASS` (ipv6(7)) for
/// a socket of IPv6. Such a socket needs both, since it may have peers of IPv4.
///
/// # Errors
/// The kernel's error.
pub fn enable_traffic_class(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_IP, libc::IP_RECVTOS, 1)?;
    if socket.local_addr()?.is_ipv6() {
        set(socket, libc::SOL_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }
    Ok(())
}

/// An address as the kernel has it: the larger of its two forms.
#[derive(Clone, Copy)]
#[repr(C)]
union Address {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Address {
    #[allow(unsafe_code, reason = "the structures of libc have no other constructor")]
    fn zeroed() -> Self {
        // SAFETY: both forms are integers, for which zero is a value.
        unsafe { std::mem::zeroed() }
    }

    /// The address for a socket of IPv6 or IPv4, with its length.
    fn new(address: SocketAddr, socket_is_v6: bool) -> (Self, libc::socklen_t) {
        let mut result = Self::zeroed();
        let port = address.port().to_be();
        let ip = match (address.ip(), socket_is_v6) {
            (IpAddr::V4(ip), true) => IpAddr::V6(ip.to_ipv6_mapped()),
            (ip, _) => ip,
        };
        match ip {
            IpAddr::V4(ip) => {
                result.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: port,
                    sin_addr: libc::in_addr { s_addr: ip.to_bits().to_be() },
                    sin_zero: [0; 8],
                };
                (result, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            IpAddr::V6(ip) => {
                let scope = match address {
                    SocketAddr::V6(address) => address.scope_id(),
                    SocketAddr::V4(_) => 0,
                };
                result.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: port,
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                    sin6_scope_id: scope,
                };
                (result, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    /// The address; an IPv4 address that a socket of IPv6 shows is one of IPv4.
    #[allow(unsafe_code, reason = "the form of a union is known by its family alone")]
    fn get(&self) -> Option<SocketAddr> {
        // SAFETY: both forms begin with the family, and the memory is initialised to its end.
        unsafe {
            match i32::from(self.v4.sin_family) {
                libc::AF_INET => {
                    let ip = Ipv4Addr::from_bits(u32::from_be(self.v4.sin_addr.s_addr));
                    Some(SocketAddr::from((ip, u16::from_be(self.v4.sin_port))))
                }
                libc::AF_INET6 => {
                    let ip = Ipv6Addr::from(self.v6.sin6_addr.s6_addr);
                    let mut address =
                        std::net::SocketAddrV6::new(ip, u16::from_be(self.v6.sin6_port), 0, 0);
                    address.set_scope_id(self.v6.sin6_scope_id);
                    Some(match ip.to_ipv4_mapped() {
                        Some(ip) => SocketAddr::from((ip, address.port())),
                        None => address.into(),
                    })
                }
                _ => None,
            }
        }
    }
}

/// Control messages of one message (cmsg(3)).
#[derive(Clone, Copy, Default)]
struct Control {
    /// Aligned as their headers.
    words: [u64; CONTROL_WORDS],
    bytes: usize,
}

impl Control {
    /// Appends a control message.
    #[allow(unsafe_code, reason = "control messages are written with the macros of libc")]
    fn push<const N: usize>(&mut self, level: libc::c_int, kind: libc::c_int, value: [u8; N]) {
        // SAFETY: a message that ends within the words is written there. Each begins at a multiple of the alignment, which
        // is what CMSG_SPACE rounds up to.
        unsafe {
            let end = self.bytes + libc::CMSG_SPACE(N as u32) as usize;
            assert!(end <= size_of_val(&self.words), "the control messages fit");
            let header = self.words.as_mut_ptr().byte_add(self.bytes).cast::<libc::cmsghdr>();
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = libc::CMSG_LEN(N as u32) as _;
            libc::CMSG_DATA(header).cast::<[u8; N]>().write(value);
            self.bytes = end;
        }
    }

    /// Those of a run: none for a single datagram of traffic class 0.
    fn of(run: &Run, socket_is_v6: bool) -> io::Result<Self> {
        let mut control = Self::default();
        if run.datagrams() > 1 {
            let bytes = u16::try_from(run.datagram_bytes)
                .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, bytes.to_ne_bytes());
        }
        if run.traffic_class != 0 {
            let class = libc::c_int::from(run.traffic_class).to_ne_bytes();
            // By the address: a socket of IPv6 sends to a mapped one with the header of IPv4.
            if socket_is_v6 && !run.to.ip().to_canonical().is_ipv4() {
                control.push(libc::SOL_IPV6, libc::IPV6_TCLASS, class);
            } else {
                control.push(libc::SOL_IP, libc::IP_TOS, class);
            }
        }
        Ok(control)
    }
}

/// Memory for the datagrams of one call.
pub struct ReceiveBatch {
    buffers: Vec<u8>,
    addresses: Vec<Address>,
    controls: Vec<[u64; CONTROL_WORDS]>,
    /// The bytes of each message that was received, and what the kernel says of it.
    received: Vec<(usize, Ancillary)>,
}

/// What the control messages of a message say.
#[derive(Clone, Copy, Debug, Default)]
struct Ancillary {
    /// The size of its datagrams, if the kernel has joined some.
    datagram_bytes: Option<usize>,
    traffic_class: u8,
}

/// A message: one datagram, or several of equal size, of which the last may be shorter.
pub struct Received<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The size of each datagram but the last.
    pub datagram_bytes: usize,
    /// DSCP and ECN field of their IP headers; 0 without [`enable_traffic_class`]. The kernel joins none that differ in it.
    pub traffic_class: u8,
    /// All datagrams.
    pub bytes: &'a mut [u8],
}

impl ReceiveBatch {
    /// Memory for so many messages, at most 64.
    #[must_use]
    pub fn new(messages: usize) -> Self {
        let messages = messages.clamp(1, MESSAGES_MAX);
        Self {
            buffers: vec![0; messages * BUFFER_BYTES],
            addresses: vec![Address::zeroed(); messages],
            controls: vec![[0; CONTROL_WORDS]; messages],
            received: Vec::with_capacity(messages),
        }
    }

    /// Receives the messages that wait, without blocking. Returns their number.
    ///
    /// # Errors
    /// The kernel's error, except EAGAIN and EINTR.
    #[allow(unsafe_code, reason = "no other crate offers recvmmsg")]
    pub fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        self.received.clear();
        let messages = self.addresses.len();
        // SAFETY: integers and null pointers.
        let mut parts: [libc::iovec; MESSAGES_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: likewise.
        let mut headers: [libc::mmsghdr; MESSAGES_MAX] = unsafe { std::mem::zeroed() };
        let buffers = self.buffers.chunks_exact_mut(BUFFER_BYTES);
        let memory = buffers.zip(&mut self.addresses).zip(&mut self.controls);
        for ((part, header), ((buffer, address), control)) in
            parts.iter_mut().zip(&mut headers).zip(memory)
        {
            *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let message = &mut header.msg_hdr;
            message.msg_name = (&raw mut *address).cast();
            message.msg_namelen = size_of::<Address>() as libc::socklen_t;
            message.msg_iov = part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(control) as _;
        }
        // SAFETY: each header refers to memory of the given length that nothing else refers to meanwhile.
        let count = unsafe {
            let (flags, timeout) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
            let count = messages as libc::c_uint;
            libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags as _, timeout)
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        }
        for header in &headers[..count as usize] {
            self.received.push((header.msg_len as usize, Ancillary::of(&header.msg_hdr)));
        }
        Ok(count as usize)
    }

    /// The messages of the last call.
    pub fn messages(&mut self) -> impl Iterator<Item = Received<'_>> {
        let buffers = self.buffers.chunks_exact_mut(BUFFER_BYTES).zip(&self.addresses);
        self.received.iter().zip(buffers).filter_map(
            |(&(bytes, Ancillary { datagram_bytes, traffic_class }), (buffer, address))| {
                let datagram_bytes = datagram_bytes.unwrap_or(bytes).max(1);
                let (from, bytes) = (address.get()?, &mut buffer[..bytes]);
                Some(Received { from, datagram_bytes, traffic_class, bytes })
            },
        )
    }
}

impl Ancillary {
    #[allow(unsafe_code, reason = "control messages are read with the macros of libc")]
    fn of(message: &libc::msghdr) -> Self {
        let mut result = Self::default();
        // SAFETY: the kernel has written the control messages and their length. The type of each says what its value is: an
        // int, but one byte for `IP_TOS`.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(message);
            while !header.is_null() {
                let data = libc::CMSG_DATA(header);
                let int = || data.cast::<libc::c_int>().read_unaligned();
                match ((*header).cmsg_level, (*header).cmsg_type) {
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        result.datagram_bytes = usize::try_from(int()).ok();
                    }
                    (libc::SOL_IP, libc::IP_TOS) => result.traffic_class = *data,
                    (libc::SOL_IPV6, libc::IPV6_TCLASS) => result.traffic_class = int() as u8,
                    _ => {}
                }
                header = libc::CMSG_NXTHDR(message, header);
            }
        }
        result
    }
}

/// Datagrams of equal size and traffic class to one address, of which the last may be shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where they go.
    pub to: SocketAddr,
    /// Where they are, one behind the other.
    pub bytes: Range<usize>,
    /// The size of each but the last.
    pub datagram_bytes: usize,
    /// DSCP and ECN field of their IP headers.
    pub traffic_class: u8,
}

impl Run {
    /// The number of datagrams.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(self.datagram_bytes.max(1))
    }
}

/// Sends runs from the first on, without blocking: 64 at most. Returns how many were sent.
///
/// # Errors
/// The kernel's error for the first run, EAGAIN among them. EIO, EINVAL and EMSGSIZE for a run of several datagrams may
/// mean that the device cannot split it.
#[allow(unsafe_code, reason = "no other crate offers sendmmsg with control messages")]
pub fn send_runs(
    socket: &UdpSocket,
    socket_is_v6: bool,
    bytes: &[u8],
    runs: &[Run],
) -> io::Result<usize> {
    let runs = &runs[..runs.len().min(MESSAGES_MAX)];
    let mut addresses = [Address::zeroed(); MESSAGES_MAX];
    let mut controls = [Control::default(); MESSAGES_MAX];
    // SAFETY: integers and null pointers.
    let mut parts: [libc::iovec; MESSAGES_MAX] = unsafe { std::mem::zeroed() };
    // SAFETY: likewise.
    let mut headers: [libc::mmsghdr; MESSAGES_MAX] = unsafe { std::mem::zeroed() };
    for (index, run) in runs.iter().enumerate() {
        let content = &bytes[run.bytes.clone()];
        // The kernel only reads it.
        parts[index] =
            libc::iovec { iov_base: content.as_ptr().cast_mut().cast(), iov_len: content.len() };
        let (address, address_bytes) = Address::new(run.to, socket_is_v6);
        addresses[index] = address;
        let message = &mut headers[index].msg_hdr;
        message.msg_name = (&raw mut addresses[index]).cast();
        message.msg_namelen = address_bytes;
        message.msg_iov = &raw mut parts[index];
        message.msg_iovlen = 1;
        controls[index] = Control::of(run, socket_is_v6)?;
        if controls[index].bytes > 0 {
            message.msg_control = controls[index].words.as_mut_ptr().cast();
            message.msg_controllen = controls[index].bytes as _;
        }
    }
    // SAFETY: each header refers to memory of the given length, which outlives the call.
    let sent = unsafe {
        let (count, flags) = (runs.len() as libc::c_uint, libc::MSG_DONTWAIT as _);
        libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(address: &str) -> [UdpSocket; 2] {
        [0, 1].map(|_| UdpSocket::bind((address, 0)).expect("a port"))
    }

    /// All datagrams that wait.
    fn receive(batch: &mut ReceiveBatch, socket: &UdpSocket) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut datagrams = Vec::new();
        while batch.receive(socket).expect("a socket") > 0 {
            for message in batch.messages() {
                let chunks = message.bytes.chunks(message.datagram_bytes);
                datagrams.extend(chunks.map(|datagram| (message.from, datagram.to_vec())));
            }
        }
        datagrams
    }

    /// Given runs of 1, 3 and 2 datagrams, expect the six datagrams, with and without joining at the receiver.
    #[test]
    fn runs_arrive_as_datagrams() {
        for is_joined in [false, true] {
            let [sender, receiver] = pair("127.0.0.1");
            if is_joined {
                enable_gro(&receiver).expect("Linux 5.0");
            }
            let to = receiver.local_addr().expect("it is bound");
            let bytes: Vec<u8> = (0..=255).cycle().take(3_000).collect();
            let run = |bytes, datagram_bytes| Run { to, bytes, datagram_bytes, traffic_class: 0 };
            let runs = [run(0..10, 10), run(10..310, 100), run(310..1_000, 400)];
            assert_eq!(runs.each_ref().map(Run::datagrams), [1, 3, 2]);
            assert_eq!(send_runs(&sender, false, &bytes, &runs).expect("it is sent"), 3);
            let mut batch = ReceiveBatch::new(4);
            let received = receive(&mut batch, &receiver);
            let expected = [0..10, 10..110, 110..210, 210..310, 310..710, 710..1_000];
            let from = sender.local_addr().expect("it is bound");
            let expected: Vec<_> =
                expected.into_iter().map(|range| (from, bytes[range].to_vec())).collect();
            assert_eq!(received, expected);
        }
    }

    /// Given a socket of IPv6 that also takes IPv4, expect addresses of IPv4 as such in both directions.
    #[test]
    fn a_socket_of_ipv6_has_peers_of_ipv4() {
        let Ok(both) = UdpSocket::bind("[::]:0") else {
            eprintln!("skipped: no IPv6");
            return;
        };
        let [peer, _] = pair("127.0.0.1");
        let to = peer.local_addr().expect("it is bound");
        let run = Run { to, bytes: 0..3, datagram_bytes: 3, traffic_class: 0 };
        assert_eq!(send_runs(&both, true, b"abc", &[run]).expect("it is sent"), 1);
        let port = both.local_addr().expect("it is bound").port();
        peer.send_to(b"defg", ("127.0.0.1", port)).expect("it is sent");
        let mut batch = ReceiveBatch::new(1);
        assert_eq!(receive(&mut batch, &both), [(to, b"defg".to_vec())]);
        let received = receive(&mut batch, &peer);
        assert_eq!(received, [(SocketAddr::from(([127, 0, 0, 1], port)), b"abc".to_vec())]);
    }

    /// Given runs of one and of three datagrams for each of four traffic classes, expect each datagram to have that of its
    /// run: over IPv4, over IPv6, and between IPv4 and a socket of IPv6.
    #[test]
    fn traffic_classes_arrive() {
        let cases = [
            ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1:0", "127.0.0.1"),
            ("127.0.0.1:0", "[::]:0", "127.0.0.1"),
            ("[::]:0", "[::]:0", "::ffff:127.0.0.1"),
        ];
        for (sender, receiver, to) in cases {
            let bind = |address: &str| UdpSocket::bind(address).ok();
            let (Some(sender), Some(receiver)) = (bind(sender), bind(receiver)) else {
                eprintln!("skipped: no IPv6");
                continue;
            };
            enable_gro(&receiver).expect("Linux 5.0");
            enable_traffic_class(&receiver).expect("a socket");
            let port = receiver.local_addr().expect("it is bound").port();
            let to = SocketAddr::new(to.parse().expect("an address"), port);
            let runs = [0, 0xba, 0x03, 0xff].map(|traffic_class| {
                [0..10, 10..40].map(|bytes| Run { to, bytes, datagram_bytes: 10, traffic_class })
            });
            let socket_is_v6 = sender.local_addr().expect("it is bound").is_ipv6();
            assert_eq!(
                send_runs(&sender, socket_is_v6, &[7; 40], runs.as_flattened()).ok(),
                Some(8)
            );
            let mut batch = ReceiveBatch::new(16);
            let mut classes = Vec::new();
            while batch.receive(&receiver).expect("a socket") > 0 {
                classes.extend(batch.messages().flat_map(|message| {
                    let count = message.bytes.len() / 10;
                    std::iter::repeat_n(message.traffic_class, count)
                }));
            }
            let expected = [0, 0xba, 0x03, 0xff].map(|class| [class; 4]);
            assert_eq!(classes, expected.as_flattened(), "{to} from {sender:?}");
        }
    }

    #[test]
    fn a_datagram_without_class_needs_no_control_message() {
        let to = SocketAddr::from(([192, 0, 2, 1], 1));
        let control = |bytes, traffic_class| {
            Control::of(&Run { to, bytes, datagram_bytes: 10, traffic_class }, false)
        };
        let bytes = |bytes, class| control(bytes, class).map(|control| control.bytes).ok();
        let sizes = [bytes(0..10, 0), bytes(0..20, 0), bytes(0..10, 1), bytes(0..20, 1)];
        let [none, segment, class, both] = sizes.map(|bytes| bytes.expect("a size of a run"));
        assert!(none == 0 && segment > 0 && class > 0 && both == segment + class);
    }

    #[test]
    fn an_address_survives_its_form() {
        for text in ["192.0.2.1:53", "[2001:db8::1]:65535", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            for socket_is_v6 in [address.is_ipv6(), true] {
                assert_eq!(Address::new(address, socket_is_v6).0.get(), Some(address));
            }
        }
        assert_eq!(Address::zeroed().get(), None);
    }

    #[test]
    fn an_error_is_that_of_the_first_run() {
        let [sender, receiver] = pair("127.0.0.1");
        let to = receiver.local_addr().expect("it is bound");
        let bytes = vec![0; 70_000];
        let run =
            |bytes: Range<usize>| Run { to, datagram_bytes: bytes.len(), bytes, traffic_class: 0 };
        let too_long = [run(0..70_000), run(0..1)];
        let error = send_runs(&sender, false, &bytes, &too_long).expect_err("too long");
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        let second = [run(0..1), run(0..70_000)];
        assert_eq!(send_runs(&sender, false, &bytes, &second).expect("the first"), 1);
    }
}
