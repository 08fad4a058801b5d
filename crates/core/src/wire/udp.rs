//! The UDP header (RFC 768).

use super::{FiveTuple, Payload, UDP};
use crate::header_bytes;
use crate::wire::checksum::Checksum;

/// Size of the header.
pub const HEADER_BYTES: usize = header_bytes::UDP as usize;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Length of header and payload.
    pub bytes: u16,
    /// Checksum; zero if there is none.
    pub checksum: u16,
}

/// Appends the header of a datagram with the addresses and ports of `tuple`. The length field saturates
/// at 65,535 bytes.
pub fn emit(out: &mut Vec<u8>, tuple: &FiveTuple, payload: Payload<'_>) {
    let bytes = u16::try_from(HEADER_BYTES + payload.len()).unwrap_or(u16::MAX);
    let mut header = [0; HEADER_BYTES];
    header[0..2].copy_from_slice(&tuple.source_port.to_be_bytes());
    header[2..4].copy_from_slice(&tuple.destination_port.to_be_bytes());
    header[4..6].copy_from_slice(&bytes.to_be_bytes());
    let FiveTuple { source, destination, .. } = *tuple;
    let mut sum = Checksum::of_pseudo_header(source, destination, UDP, bytes.into());
    sum.add(&header);
    payload.add_to(&mut sum);
    // Zero means no checksum, so a checksum of zero is sent as ffff.
    let checksum = match sum.finish() {
        0 => 0xffff,
        checksum => checksum,
    };
    header[6..8].copy_from_slice(&checksum.to_be_bytes());
    out.extend_from_slice(&header);
}

impl Header {
    /// Parses a header from what follows the IP header. `None` if it is truncated.
    #[must_use]
    pub fn parse(transport: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = transport.first_chunk()?;
        let field = |from: usize| u16::from_be_bytes([bytes[from], bytes[from + 1]]);
        Some(Self {
            source_port: field(0),
            destination_port: field(2),
            bytes: field(4),
            checksum: field(6),
        })
    }
}
