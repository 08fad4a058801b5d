//! The TCP header (RFC 9293) with the options that the simulator supports: maximum segment size, window
//! scale and timestamps (RFC 7323), SACK (RFC 2018).

use super::{FiveTuple, Payload, TCP};
use crate::header_bytes;
use crate::packet::segment::{Flags, SackBlocks, Segment, SynOptions, Timestamps};
use crate::packet::seq::SeqNumber;
use crate::wire::checksum::Checksum;

/// Size of a header without options.
pub const HEADER_BYTES: usize = header_bytes::TCP as usize;
/// Maximum size of the options: the data offset has four bits.
pub const OPTION_BYTES_MAX: usize = 40;
/// The RST flag.
pub const RST: u8 = 1 << 2;
/// The ACK flag.
pub const ACK: u8 = 1 << 4;

/// RFC 9293, section 3.7.1: the maximum segment size over IPv4 if a SYN has no such option.
const DEFAULT_MSS: u16 = 536;

/// Option kinds.
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NO_OPERATION: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// All eight flags, as on the wire.
    pub flags: u8,
    /// Size of the header with options.
    pub bytes: usize,
    /// The segment, with a payload length of zero.
    pub segment: Segment,
}

/// TCP options, padded to words as hosts pad them.
struct Options {
    bytes: [u8; OPTION_BYTES_MAX],
    length: usize,
}

impl Options {
    fn of(segment: &Segment) -> Self {
        let mut options = Self { bytes: [0; OPTION_BYTES_MAX], length: 0 };
        if let Some(SynOptions { mss, window_shift, sack }) = segment.syn_options {
            let [high, low] = mss.to_be_bytes();
            options.push(&[kind::MSS, 4, high, low]);
            if let Some(shift) = window_shift {
                options.push(&[kind::NO_OPERATION, kind::WINDOW_SCALE, 3, shift]);
            }
            if sack {
                options.push(&[kind::NO_OPERATION, kind::NO_OPERATION, kind::SACK_PERMITTED, 2]);
            }
        }
        if let Some(Timestamps { value, echo }) = segment.timestamps {
            options.push(&[kind::NO_OPERATION, kind::NO_OPERATION, kind::TIMESTAMPS, 10]);
            options.push(&value.to_be_bytes());
            options.push(&echo.to_be_bytes());
        }
        options.push_sack(&segment.sack);
        options
    }

    /// Omits blocks for which there is no room.
    fn push_sack(&mut self, sack: &SackBlocks) {
        let room = (OPTION_BYTES_MAX - self.length).saturating_sub(4) / 8;
        let count = sack.iter().count().min(room);
        if count == 0 {
            return;
        }
        self.push(&[kind::NO_OPERATION, kind::NO_OPERATION, kind::SACK, (2 + 8 * count) as u8]);
        for (SeqNumber(first), SeqNumber(end)) in sack.iter().take(count) {
            self.push(&first.to_be_bytes());
            self.push(&end.to_be_bytes());
        }
    }

    fn push(&mut self, option: &[u8]) {
        let end = self.length + option.len();
        self.bytes[self.length..end].copy_from_slice(option);
        self.length = end;
    }
}

/// Appends the header of a segment with the addresses and ports of `tuple`. The payload length is that of
/// `payload`, not of the segment.
pub fn emit(out: &mut Vec<u8>, tuple: &FiveTuple, segment: &Segment, payload: Payload<'_>) {
    let options = Options::of(segment);
    let options = &options.bytes[..options.length];
    let flags = segment.flags.bits() | if segment.ack.is_some() { ACK } else { 0 };
    let mut header = [0; HEADER_BYTES];
    header[0..2].copy_from_slice(&tuple.source_port.to_be_bytes());
    header[2..4].copy_from_slice(&tuple.destination_port.to_be_bytes());
    header[4..8].copy_from_slice(&segment.seq.0.to_be_bytes());
    header[8..12].copy_from_slice(&segment.ack.map_or(0, |ack| ack.0).to_be_bytes());
    // The data offset, in the upper four bits.
    let words = (HEADER_BYTES + options.len()) / 4;
    header[12] = (words << 4) as u8;
    header[13] = flags;
    header[14..16].copy_from_slice(&segment.window.to_be_bytes());
    let bytes = HEADER_BYTES + options.len() + payload.len();
    let FiveTuple { source, destination, .. } = *tuple;
    let transport_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut sum = Checksum::of_pseudo_header(source, destination, TCP, transport_bytes);
    sum.add(&header);
    sum.add(options);
    payload.add_to(&mut sum);
    header[16..18].copy_from_slice(&sum.finish().to_be_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(options);
}

impl Header {
    /// Parses a header from what follows the IP header. `None` if it is truncated. Ignores unknown and
    /// inconsistent options.
    #[must_use]
    pub fn parse(transport: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER_BYTES] = transport.first_chunk()?;
        let u16_at = |from: usize| u16::from_be_bytes([header[from], header[from + 1]]);
        let u32_at = |from: usize| u32::from(u16_at(from)) << 16 | u32::from(u16_at(from + 2));
        let bytes = usize::from(header[12] >> 4) * 4;
        let options = transport.get(HEADER_BYTES..bytes)?;
        let flags = header[13];
        let mut segment = Segment {
            seq: SeqNumber(u32_at(4)),
            ack: (flags & ACK != 0).then_some(SeqNumber(u32_at(8))),
            flags: Flags::from_bits(flags),
            window: u16_at(14),
            ..Segment::default()
        };
        read_options(options, &mut segment);
        Some(Self { source_port: u16_at(0), destination_port: u16_at(2), flags, bytes, segment })
    }
}

fn read_options(mut rest: &[u8], segment: &mut Segment) {
    while let Some((&kind, after)) = rest.split_first() {
        match kind {
            kind::END => return,
            kind::NO_OPERATION => rest = after,
            _ => {
                let Some(&length) = after.first() else { return };
                let Some(value) = rest.get(2..length.into()) else { return };
                read_option(kind, value, segment);
                rest = &rest[length.into()..];
            }
        }
    }
}

fn read_option(kind: u8, value: &[u8], segment: &mut Segment) {
    let known = SynOptions { mss: DEFAULT_MSS, ..segment.syn_options.unwrap_or_default() };
    let known = segment.syn_options.unwrap_or(known);
    match (kind, value) {
        (kind::MSS, &[high, low]) => {
            segment.syn_options =
                Some(SynOptions { mss: u16::from_be_bytes([high, low]), ..known });
        }
        (kind::WINDOW_SCALE, &[shift]) => {
            segment.syn_options = Some(SynOptions { window_shift: Some(shift), ..known });
        }
        (kind::SACK_PERMITTED, &[]) => {
            segment.syn_options = Some(SynOptions { sack: true, ..known })
        }
        (kind::TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
            let value = u32::from_be_bytes([a, b, c, d]);
            let echo = u32::from_be_bytes([e, f, g, h]);
            segment.timestamps = Some(Timestamps { value, echo });
        }
        (kind::SACK, blocks) => {
            for block in blocks.chunks_exact(8) {
                let number = |from: usize| {
                    let [a, b, c, d] = [0, 1, 2, 3].map(|offset| block[from + offset]);
                    SeqNumber(u32::from_be_bytes([a, b, c, d]))
                };
                segment.sack.push(number(0), number(4));
            }
        }
        _ => {}
    }
}
