//! The IPv4 header (RFC 791), without options.

use core::net::Ipv4Addr;

use super::checksum::Checksum;
use crate::header_bytes;

/// Size of a header without options.
pub const HEADER_BYTES: usize = header_bytes::IPV4 as usize;

const DONT_FRAGMENT: u16 = 1 << 14;
const MORE_FRAGMENTS: u16 = 1 << 13;
const OFFSET: u16 = MORE_FRAGMENTS - 1;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Protocol number (IANA).
    pub protocol: u8,
    /// Type of service: DSCP and ECN.
    pub traffic_class: u8,
    /// Identification: the fragments of one packet have the same.
    pub identification: u16,
    /// The Don't Fragment flag.
    pub dont_fragment: bool,
    /// The More Fragments flag.
    pub more_fragments: bool,
    /// Fragment offset in units of eight bytes, below 2^13.
    pub fragment_offset: u16,
    /// Time to live.
    pub time_to_live: u8,
    /// Total length.
    pub total_bytes: u16,
}

impl Header {
    /// Appends the header with its checksum.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = 0x45;
        bytes[1] = self.traffic_class;
        bytes[2..4].copy_from_slice(&self.total_bytes.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.identification.to_be_bytes());
        let flag = |set, flag| if set { flag } else { 0 };
        let fragment = flag(self.dont_fragment, DONT_FRAGMENT)
            | flag(self.more_fragments, MORE_FRAGMENTS)
            | self.fragment_offset & OFFSET;
        bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
        bytes[8] = self.time_to_live;
        bytes[9] = self.protocol;
        bytes[12..16].copy_from_slice(&self.source.octets());
        bytes[16..20].copy_from_slice(&self.destination.octets());
        let mut sum = Checksum::default();
        sum.add(&bytes);
        bytes[10..12].copy_from_slice(&sum.finish().to_be_bytes());
        out.extend_from_slice(&bytes);
    }

    /// Parses a header and returns it with its length, options included. `None` if it is truncated or
    /// inconsistent. Does not verify the checksum, which hosts may offload to hardware.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<(Self, usize)> {
        let bytes: &[u8; HEADER_BYTES] = packet.first_chunk()?;
        let header_bytes = usize::from(bytes[0] & 0x0f) * 4;
        let total_bytes = u16::from_be_bytes([bytes[2], bytes[3]]);
        let fits = header_bytes >= HEADER_BYTES
            && header_bytes <= packet.len()
            && header_bytes <= usize::from(total_bytes);
        if bytes[0] >> 4 != 4 || !fits {
            return None;
        }
        let fragment = u16::from_be_bytes([bytes[6], bytes[7]]);
        let header = Self {
            source: Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]),
            destination: Ipv4Addr::new(bytes[16], bytes[17], bytes[18], bytes[19]),
            protocol: bytes[9],
            traffic_class: bytes[1],
            identification: u16::from_be_bytes([bytes[4], bytes[5]]),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset: fragment & OFFSET,
            time_to_live: bytes[8],
            total_bytes,
        };
        Some((header, header_bytes))
    }
}
