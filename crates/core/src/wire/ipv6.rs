//! The header of IPv6 (RFC 8200), and the way past its extension headers.

use core::net::Ipv6Addr;

/// Bytes of the header without extension headers.
pub const HEADER_BYTES: usize = 40;
/// RFC 8200, section 4.1, recommends seven extension headers at most, among them two of the same
/// kind. Whoever sends more gets no ports read.
pub const EXTENSION_HEADERS_MAX: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who sent it.
    pub source: Ipv6Addr,
    /// Whom it is for.
    pub destination: Ipv6Addr,
    /// What follows: a number of IANA's list of protocols.
    pub next_header: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// What the sender calls the flow: below 2^20.
    pub flow_label: u32,
    /// How many routers it may pass.
    pub hop_limit: u8,
    /// What follows this header.
    pub payload_bytes: u16,
}

/// What follows the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// The protocol. An extension header's if the packet is cut short there, or has too many.
    pub protocol: u8,
    /// Where it begins, which may be beyond what is there.
    pub offset: usize,
    /// Whether this is a fragment that does not begin with the protocol's header.
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

    /// Reads the header. `None` if it is cut short.
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

    /// The length of the packet, this header included. A length of zero is said of what is too long
    /// for the field (RFC 2675), so all of `packet` counts then.
    #[must_use]
    pub fn total_bytes(&self, packet: &[u8]) -> usize {
        match self.payload_bytes {
            0 => packet.len().max(HEADER_BYTES),
            bytes => HEADER_BYTES + usize::from(bytes),
        }
    }

    /// The way past the extension headers of `packet`, which begins with this header.
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
                // RFC 4302, section 2.2: in words of four bytes, less two.
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
