//! Super-packets: packets of several segments that a kernel exchanges with a device that offloads
//! segmentation (GSO and GRO in Linux).
//!
//! [`segment`] turns a super-packet into the packets that a link would carry, and [`coalesce`]
//! turns consecutive packets into a super-packet. Both are functions of bytes. The header in front
//! of a packet says what remains to be done (`struct virtio_net_hdr`; Virtual I/O Device 1.3,
//! section 5.1.6).

pub mod coalesce;
pub mod segment;
#[cfg(test)]
mod tests;

use bentpipe_core::wire::checksum::Checksum;
use bentpipe_core::wire::{Headers, TCP, UDP, ipv6, tcp, udp};

pub use coalesce::{Coalescer, write_parts};
pub use segment::Segmenter;

/// The size of the header in front of each packet.
pub const BYTES: usize = 10;
/// The longest packet without that header: the IP length field has two bytes.
pub const PACKET_BYTES_MAX: usize = 65_535;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
const GSO_UDP: u8 = 5;
/// A flag of the type: the packet has CWR set.
const GSO_ECN: u8 = 0x80;

/// The offsets of the checksums in the TCP and UDP headers.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
const TCP_FLAGS: usize = 13;
const TCP_SEQUENCE: usize = 4;
/// PSH and FIN belong to the last segment.
const TCP_LAST: u8 = 1 | TCP_PUSH;
const TCP_PUSH: u8 = 1 << 3;
/// CWR belongs to the first segment (RFC 3168, section 6.1.2).
const TCP_CWR: u8 = 1 << 7;

/// The header in front of a packet: the work left to the device. Integers are in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Bit 0: the checksum is still to be computed, from `checksum_start` on.
    pub flags: u8,
    /// The kind of super-packet, or `GSO_NONE`.
    pub gso_type: u8,
    /// The length of all headers, as a hint.
    pub header_bytes: u16,
    /// The payload of each segment except the last.
    pub segment_bytes: u16,
    /// The offset of the first byte to checksum.
    pub checksum_start: u16,
    /// The offset of the checksum field from `checksum_start`.
    pub checksum_offset: u16,
}

impl Offload {
    /// Parses the header.
    #[must_use]
    pub fn parse(bytes: &[u8; BYTES]) -> Self {
        let field = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            header_bytes: field(2),
            segment_bytes: field(4),
            checksum_start: field(6),
            checksum_offset: field(8),
        }
    }

    /// Emits the header.
    #[must_use]
    pub fn emit(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..2].copy_from_slice(&[self.flags, self.gso_type]);
        let fields =
            [self.header_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset];
        for (out, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            out.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }
}

/// The offsets of the parts of a complete packet that is not a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    headers: Headers,
    /// Where the transport header starts.
    transport: usize,
    /// Where the payload starts.
    payload: usize,
    /// Where the TCP or UDP checksum is.
    checksum: usize,
}

impl Layout {
    /// `None` if the packet is neither TCP nor UDP, is a fragment, or its headers contradict its
    /// length.
    fn of(packet: &[u8]) -> Option<Self> {
        let headers = Headers::of(packet)?;
        let is_v4 = packet[0] >> 4 == 4;
        // All but the first two bits: MF and the fragment offset (RFC 791, section 3.1).
        let is_fragment = headers.is_later_fragment || (is_v4 && half(packet, 6) & 0x3fff != 0);
        let transport = headers.transport_offset;
        let header = packet.get(transport..)?;
        let (bytes, checksum) = match headers.tuple.protocol {
            TCP => (usize::from(header.get(12)? >> 4) * 4, TCP_CHECKSUM),
            UDP => (udp::HEADER_BYTES, UDP_CHECKSUM),
            _ => return None,
        };
        let header_bytes_min =
            if checksum == TCP_CHECKSUM { tcp::HEADER_BYTES } else { udp::HEADER_BYTES };
        let fits = bytes >= header_bytes_min && transport + bytes <= packet.len();
        let is_whole = headers.total_bytes == packet.len() && packet.len() <= PACKET_BYTES_MAX;
        (fits && is_whole && !is_fragment).then_some(Self {
            headers,
            transport,
            payload: transport + bytes,
            checksum: transport + checksum,
        })
    }

    /// The checksum of the pseudo-header for so many bytes of transport header and payload.
    fn pseudo_header(&self, transport_bytes: usize) -> Checksum {
        let tuple = &self.headers.tuple;
        let bytes = transport_bytes as u32;
        Checksum::of_pseudo_header(tuple.source, tuple.destination, tuple.protocol, bytes)
    }
}

/// Whether a packet is TCP and its checksum is valid: only then it may become part of a super-packet.
#[must_use]
pub fn has_valid_tcp_checksum(packet: &[u8]) -> bool {
    Layout::of(packet).filter(|layout| layout.headers.tuple.protocol == TCP).is_some_and(|layout| {
        let transport = &packet[layout.transport..];
        let mut sum = layout.pseudo_header(transport.len());
        sum.add(transport);
        sum.finish() == 0
    })
}

/// A 16-bit field in network byte order.
fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn set_half(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn sequence(transport: &[u8]) -> u32 {
    u32::from(half(transport, TCP_SEQUENCE)) << 16 | u32::from(half(transport, TCP_SEQUENCE + 2))
}

/// Sets the length of an IP header, its checksum, and in IPv4 its identification.
fn set_ip(header: &mut [u8], transport_offset: usize, total_bytes: usize, identification: u16) {
    if header[0] >> 4 == 6 {
        set_half(header, 4, (total_bytes - ipv6::HEADER_BYTES) as u16);
        return;
    }
    set_half(header, 2, total_bytes as u16);
    set_half(header, 4, identification);
    set_half(header, 10, 0);
    let mut sum = Checksum::default();
    sum.add(&header[..transport_offset]);
    set_half(header, 10, sum.finish());
}

/// The identification of an IPv4 header; zero in IPv6.
fn identification(header: &[u8]) -> u16 {
    if header[0] >> 4 == 4 { half(header, 4) } else { 0 }
}
