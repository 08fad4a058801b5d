//! The IPv6 header (RFC 8200), and how to skip its extension headers.

use core::net::Ipv6Addr;

use crate::header_bytes;

/// Size of the header without extension headers.
pub const HEADER_BYTES: usize = header_bytes::IPV6 as usize;
/// RFC 8200, section 4.1, recommends at most seven extension headers, two of them of the same kind. The
/// ports of a packet with more are not read.
pub const EXTENSION_HEADERS_MAX: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Next header: a protocol number (IANA).
    pub next_header: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, below 2^20.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Payload length.
    pub payload_bytes: u16,
}

/// The upper-layer protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// The protocol; the next extension header if the packet is truncated or has too many.
    pub protocol: u8,
    /// The offset of its header, which may be beyond the end of the packet.
    pub offset: usize,
    /// Whether this is a fragment other than the first.
    pub is_later_fragment: bool,
}

impl Header {
    /// Appends the header.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        out.extend_from_slice(&word.to_be_bytes());
        out.extend_from_slice(&self.payload_bytes.to_be_bytes());
        out.extend_from_slice(&[self.next_header, self.hop_limit]);
        out.extend_from_slice(&self.source.octets());
        out.extend_from_slice(&self.destination.octets());
    }

    /// Parses a header. `None` if it is truncated.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = packet.first_chunk()?;
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if word >> 28 != 6 {
            return None;
        }
        let address = |from: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[from..from + 16]);
            Ipv6Addr::from(octets)
        };
        Some(Self {
            source: address(8),
            destination: address(24),
            next_header: bytes[6],
            traffic_class: (word >> 20 & 0xff) as u8,
            flow_label: word & 0xf_ffff,
            hop_limit: bytes[7],
            payload_bytes: u16::from_be_bytes([bytes[4], bytes[5]]),
        })
    }

    /// The length of the packet, this header included. A payload length of zero means a jumbogram
    /// (RFC 2675): then all of `packet` counts.
    #[must_use]
    pub fn total_bytes(&self, packet: &[u8]) -> usize {
        match self.payload_bytes {
            0 => packet.len().max(HEADER_BYTES),
            bytes => HEADER_BYTES + usize::from(bytes),
        }
    }

    /// Skips the extension headers of `packet`, which begins with this header.
    #[must_use]
    pub fn upper(&self, packet: &[u8]) -> Upper {
        let mut upper =
            Upper { protocol: self.next_header, offset: HEADER_BYTES, is_later_fragment: false };
        for _ in 0..EXTENSION_HEADERS_MAX {
            let rest = packet.get(upper.offset..).unwrap_or_default();
            let Some(&[next, length, high, low]) = rest.first_chunk() else { break };
            let length = usize::from(length);
            let bytes = match upper.protocol {
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6 => {
                    8 * (length + 1)
                }
                // RFC 4302, section 2.2: in 4-byte words, minus two.
                AUTHENTICATION => 4 * (length + 2),
                FRAGMENT => {
                    // The offset is in the upper 13 bits.
                    upper.is_later_fragment = u16::from_be_bytes([high, low]) >> 3 != 0;
                    8
                }
                _ => break,
            };
            upper.protocol = next;
            upper.offset += bytes;
            if upper.is_later_fragment {
                break;
            }
        }
        upper
    }
}
