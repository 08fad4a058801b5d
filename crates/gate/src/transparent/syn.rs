//! The SYN of a client, held until the server has answered.

use core::cmp::Ordering;
use core::net::{IpAddr, SocketAddr};
use core::ops::Range;

use bentpipe_core::packet::segment::Segment;
use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::pep::ConnectionKey;
use bentpipe_core::wire::checksum::Checksum;
use bentpipe_core::wire::{FiveTuple, Headers, Payload, TCP, ipv4, ipv6, tcp};

use rustix::io::Errno;

use crate::icmp;

/// RFC 1340 and its successors: the default time to live.
const TIME_TO_LIVE: u8 = 64;
/// The offsets of the flags and of the checksum in a TCP header.
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
/// The two ports, with which it begins.
const PORTS_BYTES: usize = 4;
/// Both addresses, and the time to live, in the headers of IPv4 and IPv6.
const V4_ADDRESSES: Range<usize> = 12..20;
const V4_TIME_TO_LIVE: usize = 8;
const V6_ADDRESSES: Range<usize> = 8..40;
const V6_HOP_LIMIT: usize = 7;
const FIN: u8 = 1;
const SYN: u8 = 1 << 1;

/// A SYN with a complete checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syn {
    packet: Vec<u8>,
    tuple: FiveTuple,
    /// The sequence number after the SYN and its data.
    next: SeqNumber,
}

impl Syn {
    /// Parses an IP packet. `None` if it is not a whole SYN or, with `has_checksum`, if its checksum is wrong;
    /// otherwise the checksum is computed.
    #[must_use]
    pub fn parse(packet: &[u8], has_checksum: bool) -> Option<Self> {
        let headers = Headers::of(packet)?;
        // What a device appended to a short frame is not part of the packet.
        let mut packet = packet.get(..headers.total_bytes)?.to_vec();
        let tuple = headers.tuple;
        if tuple.protocol != TCP || headers.is_later_fragment {
            return None;
        }
        let transport = packet.get_mut(headers.transport_offset..)?;
        let header = tcp::Header::parse(transport)?;
        if header.flags & (FIN | SYN | tcp::RST | tcp::ACK) != SYN {
            return None;
        }
        let SeqNumber(first) = header.segment.seq;
        let data = (transport.len() - header.bytes) as u32;
        if has_checksum && checksum(&tuple, transport) != 0 {
            return None;
        }
        set_checksum(&tuple, transport);
        Some(Self { packet, tuple, next: SeqNumber(first.wrapping_add(1).wrapping_add(data)) })
    }

    /// The packet, from its IP header on.
    #[must_use]
    pub fn packet(&self) -> &[u8] {
        &self.packet
    }

    /// The client and the server.
    #[must_use]
    pub fn ends(&self) -> Ends {
        Ends::of_tuple(&self.tuple)
    }

    /// The sequence number behind it, by which it differs from another SYN with its ends.
    pub(super) fn number(&self) -> u32 {
        self.next.0
    }

    /// This SYN and the same one from the server to the client, both with a time to live of 0, which no packet has that is
    /// forwarded: so the rules know them. They remove the sockets of an earlier connection that are in TIME-WAIT, as a SYN
    /// does that reopens it (RFC 9293, section 3.6.1), and open nothing.
    #[must_use]
    pub fn reopening(&self) -> [Vec<u8>; 2] {
        let mut from_client = self.packet.clone();
        let addresses = match self.tuple.source {
            IpAddr::V4(_) => {
                // The kernel sets the checksum of the header (raw(7)).
                from_client[V4_TIME_TO_LIVE] = 0;
                &V4_ADDRESSES
            }
            IpAddr::V6(_) => {
                from_client[V6_HOP_LIMIT] = 0;
                &V6_ADDRESSES
            }
        };
        let mut from_server = from_client.clone();
        from_server[addresses.clone()].rotate_left(addresses.len() / 2);
        if let Some(headers) = Headers::of(&self.packet) {
            let ports = headers.transport_offset..headers.transport_offset + PORTS_BYTES;
            from_server[ports].rotate_left(PORTS_BYTES / 2);
        }
        [from_client, from_server]
    }

    /// The packet with which a host without a server on that port answers: a reset that acknowledges the SYN
    /// (RFC 9293, section 3.10.7.1).
    #[must_use]
    pub fn refusal(&self) -> Vec<u8> {
        let tuple = self.tuple.reversed();
        let segment = Segment { ack: Some(self.next), ..Segment::default() };
        let mut out = Vec::with_capacity(ipv6::HEADER_BYTES + tcp::HEADER_BYTES);
        match (tuple.source, tuple.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
                source,
                destination,
                protocol: TCP,
                traffic_class: 0,
                identification: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                time_to_live: TIME_TO_LIVE,
                total_bytes: (ipv4::HEADER_BYTES + tcp::HEADER_BYTES) as u16,
            }
            .emit(&mut out),
            (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Header {
                source,
                destination,
                next_header: TCP,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: TIME_TO_LIVE,
                payload_bytes: tcp::HEADER_BYTES as u16,
            }
            .emit(&mut out),
            _ => unreachable!("both addresses are of one packet"),
        }
        let transport = out.len();
        tcp::emit(&mut out, &tuple, &segment, Payload::Bytes(&[]));
        out[transport + FLAGS] |= tcp::RST;
        set_checksum(&tuple, &mut out[transport..]);
        out
    }

    /// The ICMP error with which a router answers whose next hop does not lead to the server.
    ///
    /// Its source is the server's address, to which the client has a route.
    #[must_use]
    pub fn unreachable(&self, reason: Unreachable) -> Vec<u8> {
        let mut out = Vec::new();
        match (self.tuple.destination, self.tuple.source) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let code = match reason {
                    Unreachable::Network => 0,
                    Unreachable::Host => 1,
                    Unreachable::Prohibited => 13,
                };
                icmp::emit_v4(&self.packet, (from, to), [3, code, 0, 0, 0, 0, 0, 0], &mut out);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let code = match reason {
                    Unreachable::Network => 0,
                    Unreachable::Prohibited => 1,
                    Unreachable::Host => 3,
                };
                icmp::emit_v6(&self.packet, (from, to), [1, code, 0, 0, 0, 0, 0, 0], &mut out);
            }
            _ => unreachable!("both addresses are of one packet"),
        }
        out
    }
}

/// Why a server cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// There is no route to it.
    Network,
    /// It does not answer on its network.
    Host,
    /// A firewall forbids it.
    Prohibited,
}

impl Unreachable {
    /// What the error of a socket says about its peer, if it says that it cannot be reached (ip(7)).
    pub(super) fn of_error(error: Errno) -> Option<Self> {
        match error {
            Errno::NETUNREACH => Some(Self::Network),
            Errno::HOSTUNREACH => Some(Self::Host),
            Errno::ACCESS => Some(Self::Prohibited),
            _ => None,
        }
    }
}

/// The two ends of a connection. In order, those of the same two hosts follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The one that opened it.
    pub client: SocketAddr,
    /// The one that listens.
    pub server: SocketAddr,
}

impl Ord for Ends {
    fn cmp(&self, other: &Self) -> Ordering {
        let whole = |ends: &Self| (ends.hosts(), ends.client, ends.server);
        whole(self).cmp(&whole(other))
    }
}

impl PartialOrd for Ends {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl ConnectionKey for Ends {
    type Hosts = (IpAddr, IpAddr);

    fn hosts(&self) -> Self::Hosts {
        (self.client.ip(), self.server.ip())
    }

    fn first_of((client, server): Self::Hosts) -> Self {
        Self { client: SocketAddr::new(client, 0), server: SocketAddr::new(server, 0) }
    }
}

impl Ends {
    /// Those of a segment that a client has sent and that is no SYN. `None` for any other packet.
    pub(super) fn of_other(packet: &[u8]) -> Option<Self> {
        let headers = Headers::of(packet)?;
        if headers.tuple.protocol != TCP || headers.is_later_fragment {
            return None;
        }
        let header = tcp::Header::parse(packet.get(headers.transport_offset..)?)?;
        (header.flags & SYN == 0).then(|| Self::of_tuple(&headers.tuple))
    }

    /// Those of a packet of the client.
    fn of_tuple(tuple: &FiveTuple) -> Self {
        let client = SocketAddr::new(tuple.source, tuple.source_port);
        Self { client, server: SocketAddr::new(tuple.destination, tuple.destination_port) }
    }
}

/// The sum over a TCP segment; zero if its checksum is right.
fn checksum(tuple: &FiveTuple, transport: &[u8]) -> u16 {
    let bytes = u32::try_from(transport.len()).unwrap_or(u32::MAX);
    let mut sum = Checksum::of_pseudo_header(tuple.source, tuple.destination, TCP, bytes);
    sum.add(transport);
    sum.finish()
}

fn set_checksum(tuple: &FiveTuple, transport: &mut [u8]) {
    transport[CHECKSUM..CHECKSUM + 2].fill(0);
    let sum = checksum(tuple, transport).to_be_bytes();
    transport[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum);
}

#[cfg(test)]
mod tests;
