//! TCP connections of a network namespace with their `tcp_info`, read by `sock_diag(7)` as ss(8)
//! does.
//!
//! A netlink socket stays in the network namespace in which it was created. With one socket per
//! namespace, no thread has to enter a namespace to query it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use crate::netlink::{
    MESSAGE_HEADER, NLMSG_DONE, NLMSG_ERROR, attributes, error, half, messages, truncated, word,
};

/// From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const INET_DIAG_INFO: u16 = 2;
/// AF_INET and AF_INET6. A dual-stack server accepts IPv4 on an AF_INET6 socket.
const FAMILIES: [u8; 2] = [2, 10];
const IPPROTO_TCP: u8 = 6;
/// Bit n is TCP state n: all but LISTEN, TIME-WAIT, CLOSE and NEW_SYN_RECV.
const STATES: u32 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
/// TCP_LISTEN. For this mask alone the kernel searches only its table of listeners
/// (`inet_diag_dump_icsk`).
const LISTENERS: u32 = 1 << 10;

const REQUEST: usize = 56;
const CONNECTION_HEADER: usize = 72;
/// The kernel sends pages; no reply is longer than the receive buffer.
const REPLY_BYTES: usize = 32 * 1024;
/// More replies than any namespace of a lab needs.
const REPLIES_MAX: usize = 1_000;
/// The kernel replies before send(2) returns. The timeout covers a kernel that does not.
const TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);

/// One end of a TCP connection. Names and units are those of `tcp_info` in linux/tcp.h. A field
/// that an older kernel does not report is zero, or `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct Connection {
    pub local_port: u16,
    pub remote_port: u16,
    pub snd_mss: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub rtt_us: u32,
    pub snd_ssthresh: u32,
    pub snd_cwnd: u32,
    pub total_retrans: u32,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub notsent_bytes: u32,
    pub min_rtt_us: u32,
    pub total_rto: Option<u16>,
}

impl Connection {
    /// The fields that every kernel reports, by name.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 15] {
        [
            ("local_port", self.local_port.into()),
            ("remote_port", self.remote_port.into()),
            ("snd_mss", self.snd_mss.into()),
            ("unacked", self.unacked.into()),
            ("sacked", self.sacked.into()),
            ("lost", self.lost.into()),
            ("retrans", self.retrans.into()),
            ("rtt_us", self.rtt_us.into()),
            ("snd_ssthresh", self.snd_ssthresh.into()),
            ("snd_cwnd", self.snd_cwnd.into()),
            ("total_retrans", self.total_retrans.into()),
            ("bytes_acked", self.bytes_acked),
            ("bytes_received", self.bytes_received),
            ("notsent_bytes", self.notsent_bytes.into()),
            ("min_rtt_us", self.min_rtt_us.into()),
        ]
    }
}

/// A `sock_diag` socket of one network namespace.
#[derive(Debug)]
pub struct Diag(OwnedFd);

impl Diag {
    /// Opens a socket in the calling thread's network namespace. Any thread may use it.
    ///
    /// # Errors
    /// If the kernel has no `sock_diag`.
    pub fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self(socket))
    }

    /// The TCP connections of the namespace.
    ///
    /// # Errors
    /// The kernel's error, for example if it lacks `inet_diag`.
    pub fn connections(&mut self) -> io::Result<Vec<Connection>> {
        self.dump(STATES)
    }

    /// Whether a TCP server is listening on a port.
    ///
    /// # Errors
    /// As [`Diag::connections`].
    pub fn is_listening(&mut self, port: u16) -> io::Result<bool> {
        Ok(self.dump(LISTENERS)?.iter().any(|listener| listener.local_port == port))
    }

    fn dump(&mut self, states: u32) -> io::Result<Vec<Connection>> {
        let mut found = Vec::new();
        let mut reply = vec![0; REPLY_BYTES];
        for family in FAMILIES {
            send(&self.0, &request(family, states), SendFlags::empty())?;
            for _ in 0..REPLIES_MAX {
                let (bytes, _) = recv(&self.0, &mut reply[..], RecvFlags::empty())?;
                if bytes == 0 || parse_dump(&reply[..bytes], &mut found)? {
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(family: u8, states: u32) -> [u8; MESSAGE_HEADER + REQUEST] {
    let mut bytes = [0; MESSAGE_HEADER + REQUEST];
    bytes[0..4].copy_from_slice(&((MESSAGE_HEADER + REQUEST) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    bytes[16] = family;
    bytes[17] = IPPROTO_TCP;
    bytes[18] = 1 << (INET_DIAG_INFO - 1);
    bytes[20..24].copy_from_slice(&states.to_ne_bytes());
    bytes
}

/// Parses one reply. Returns whether it ends the dump.
fn parse_dump(reply: &[u8], found: &mut Vec<Connection>) -> io::Result<bool> {
    for message in messages(reply) {
        match message.kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(error(message.body).unwrap_or_else(truncated)),
            SOCK_DIAG_BY_FAMILY => found.extend(parse_connection(message.body)),
            _ => {}
        }
    }
    Ok(false)
}

/// `struct inet_diag_msg` and its attributes.
fn parse_connection(body: &[u8]) -> Option<Connection> {
    let port = |at| body.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let (local_port, remote_port) = (port(4)?, port(6)?);
    let mut attributes = attributes(body.get(CONNECTION_HEADER..)?);
    let (_, info) = attributes.find(|&(kind, _)| kind == INET_DIAG_INFO)?;
    Some(Connection { local_port, remote_port, ..tcp_info(info) })
}

/// `struct tcp_info`; newer kernels append fields.
pub(crate) fn tcp_info(value: &[u8]) -> Connection {
    let word = |at| word(value, at).unwrap_or(0);
    let long = |at| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let long =
        |at| if cfg!(target_endian = "little") { long(at) } else { long(at).rotate_left(32) };
    Connection {
        local_port: 0,
        remote_port: 0,
        snd_mss: word(16),
        unacked: word(24),
        sacked: word(28),
        lost: word(32),
        retrans: word(36),
        rtt_us: word(68),
        snd_ssthresh: word(76),
        snd_cwnd: word(80),
        total_retrans: word(100),
        bytes_acked: long(120),
        bytes_received: long(128),
        notsent_bytes: word(144),
        min_rtt_us: word(148),
        total_rto: half(value, 240),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;

    use super::*;
    use crate::netns::is_listening_by_proc as is_listening;

    /// Given a loopback connection that carried 5,000 bytes, expect both ends, with 5,000 bytes
    /// acknowledged at one and received at the other, and a window of at least a segment. Skipped
    /// where the kernel has no `inet_diag`.
    #[test]
    fn both_ends_of_a_connection_are_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (mut server, _) = listener.accept().expect("a connection");
        client.write_all(&[7; 5_000]).expect("space in the send buffer");
        server.read_exact(&mut [0; 5_000]).expect("5,000 bytes");
        let ports = [&client, &server].map(|end| end.local_addr().expect("an address").port());
        let Ok(all) = Diag::open().and_then(|mut diag| diag.connections()) else { return };
        let [sent, received] =
            [[ports[0], ports[1]], [ports[1], ports[0]]].map(|[local, remote]| {
                let matches =
                    |end: &&Connection| end.local_port == local && end.remote_port == remote;
                *all.iter().find(matches).expect("an open connection")
            });
        assert_eq!(received.bytes_received, 5_000);
        // The SYN counts as a byte.
        assert_eq!(sent.bytes_acked, 5_001);
        assert!(sent.snd_cwnd > 0 && sent.snd_mss >= 536 && sent.rtt_us > 0, "{sent:?}");
        assert_eq!((sent.total_retrans, sent.notsent_bytes), (0, 0));
    }

    /// Given a listening socket, expect it to be reported while it is open, and not for the port of
    /// the connection's other end; expect `/proc` to agree.
    #[test]
    fn a_listening_socket_is_reported_until_it_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).expect("a connection");
        let other = client.local_addr().expect("an address").port();
        let Ok(mut diag) = Diag::open() else { return };
        let mut listening = |port| diag.is_listening(port).ok();
        let Some(found) = listening(address.port()) else { return };
        assert!(found && is_listening(address.port()).expect("a list"));
        assert_eq!(listening(other), Some(false));
        drop((client, listener));
        // A process that another test has just forked may still hold a copy.
        let mut is_gone = || {
            std::thread::sleep(std::time::Duration::from_millis(1));
            listening(address.port()) == Some(false)
        };
        assert!((0..10_000).any(|_| is_gone()));
        assert!(!is_listening(address.port()).expect("a list"));
    }

    /// Given a reply of two messages truncated at any byte, expect the complete ones.
    #[test]
    fn truncated_messages_are_ignored() {
        let mut one = vec![0; MESSAGE_HEADER + CONNECTION_HEADER + 4 + 104];
        let length = one.len() as u32;
        one[0..4].copy_from_slice(&length.to_ne_bytes());
        one[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        one[20..24].copy_from_slice(&[0x14, 0x51, 0x80, 0x00]);
        one[88..90].copy_from_slice(&108_u16.to_ne_bytes());
        one[90..92].copy_from_slice(&INET_DIAG_INFO.to_ne_bytes());
        one[172..176].copy_from_slice(&10_u32.to_ne_bytes());
        let both = [one.clone(), one.clone()].concat();
        for end in 0..both.len() {
            let mut found = Vec::new();
            assert!(!parse_dump(&both[..end], &mut found).expect("no error"));
            assert_eq!(found.len(), end / one.len());
        }
        let mut found = Vec::new();
        parse_dump(&both, &mut found).expect("no error");
        let expected = Connection {
            local_port: 5_201,
            remote_port: 32_768,
            snd_cwnd: 10,
            ..Connection::default()
        };
        assert_eq!(found, [expected; 2]);
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
            length in 0_u32..400,
            kind in prop_oneof![Just(SOCK_DIAG_BY_FAMILY), Just(NLMSG_ERROR), any::<u16>()],
        ) {
            if bytes.len() >= 6 {
                bytes[0..4].copy_from_slice(&length.to_ne_bytes());
                bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            }
            let mut found = Vec::new();
            let _ = parse_dump(&bytes, &mut found);
            prop_assert!(found.len() <= bytes.len() / MESSAGE_HEADER);
        }
    }
}
