//! The format of a frame: IP packets behind one IP and UDP header, each preceded by a separator with its
//! length, as in Simplemux (draft-saldana-tsvwg-simplemux-12, normal flavour, all packets of one
//! protocol).
//!
//! The first separator has the Single Protocol Bit, a Length Extension bit and 6 bits of length, and the
//! protocol follows it. Later separators have a Length Extension bit and 7 bits of length. While the
//! extension bit is set, a byte with one more extension bit and 7 more bits of length follows. The most
//! significant bits come first.
//!
//! [`FrameWriter`] and [`FrameReader`] work on bytes. The engine works on lengths, by [`packed_bytes`].

use crate::header_bytes;

/// Size of the IPv4 and UDP headers of a frame.
pub const FRAME_HEADER_BYTES: u32 = header_bytes::DATAGRAM;
/// Protocol number of IPv4 in IP (RFC 2003).
const IPV4_IN_IP: u8 = 4;
/// Bits of a length in the first byte of the first separator, and in every other byte.
const FIRST_BITS: u32 = 6;
const NEXT_BITS: u32 = 7;
/// Single Protocol Bit, in the first separator: all packets are of the protocol that follows it.
const ONE_PROTOCOL: u8 = 1 << 7;
/// Length Extension bit, in the first separator and in later ones.
const MORE_IN_FIRST: u8 = 1 << FIRST_BITS;
const MORE: u8 = 1 << NEXT_BITS;
/// The most bytes of a length.
const LENGTH_BYTES_MAX: usize = 3;

/// The size of a packet in a frame, with its separator.
#[must_use]
pub fn packed_bytes(bytes: u32, is_first: bool) -> u32 {
    let in_first_byte = if is_first { FIRST_BITS } else { NEXT_BITS };
    let length_bytes = match bytes.checked_ilog2().map_or(1, |log| log + 1) {
        bits if bits <= in_first_byte => 1,
        bits if bits <= in_first_byte + NEXT_BITS => 2,
        _ => 3,
    };
    // Only the first separator is followed by the protocol.
    length_bytes + u32::from(is_first) + bytes
}

/// Writes packets into the payload of a frame.
#[derive(Clone, Debug, Default)]
pub struct FrameWriter {
    payload: Vec<u8>,
}

impl FrameWriter {
    /// Appends a packet and returns whether it fits: the length of 2^20 bytes or more does not fit the
    /// first separator, but is larger than any IP packet.
    pub fn push(&mut self, packet: &[u8]) -> bool {
        let is_first = self.payload.is_empty();
        let (flags, more) = if is_first { (ONE_PROTOCOL, MORE_IN_FIRST) } else { (0, MORE) };
        let Ok(length) = u32::try_from(packet.len()) else { return false };
        if length >> (FIRST_BITS + 2 * NEXT_BITS) > 0 {
            return false;
        }
        let count = packed_bytes(length, is_first) - length - u32::from(is_first);
        for index in (0..count).rev() {
            let group = (length >> (index * NEXT_BITS)) as u8;
            let follows = index > 0;
            let byte = if index == count - 1 {
                flags | (group & (more - 1)) | if follows { more } else { 0 }
            } else {
                (group & (MORE - 1)) | if follows { MORE } else { 0 }
            };
            self.payload.push(byte);
        }
        if is_first {
            self.payload.push(IPV4_IN_IP);
        }
        self.payload.extend_from_slice(packet);
        true
    }

    /// Returns the payload and begins an empty one.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.payload)
    }
}

/// An error in the payload of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A separator or a packet ends beyond the payload.
    Truncated,
    /// A length has more than three bytes.
    LengthTooLong,
    /// The protocol is not IPv4, or the packets have different protocols.
    UnknownProtocol,
}

/// Reads the packets in the payload of a frame, in order. The iterator ends after the first error.
#[derive(Clone, Debug)]
pub struct FrameReader<'a> {
    rest: &'a [u8],
    is_first: bool,
}

impl<'a> FrameReader<'a> {
    /// A reader of a payload, from its beginning.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload, is_first: true }
    }

    fn byte(&mut self) -> Result<u8, FrameError> {
        let (&byte, rest) = self.rest.split_first().ok_or(FrameError::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    fn packet(&mut self) -> Result<&'a [u8], FrameError> {
        let more = if self.is_first { MORE_IN_FIRST } else { MORE };
        let mut byte = self.byte()?;
        if self.is_first && byte & ONE_PROTOCOL == 0 {
            return Err(FrameError::UnknownProtocol);
        }
        let mut length = usize::from(byte & (more - 1));
        let mut follows = byte & more != 0;
        for _ in 1..LENGTH_BYTES_MAX {
            if !follows {
                break;
            }
            byte = self.byte()?;
            length = length << NEXT_BITS | usize::from(byte & (MORE - 1));
            follows = byte & MORE != 0;
        }
        if follows {
            return Err(FrameError::LengthTooLong);
        }
        if std::mem::take(&mut self.is_first) && self.byte()? != IPV4_IN_IP {
            return Err(FrameError::UnknownProtocol);
        }
        let (packet, rest) = self.rest.split_at_checked(length).ok_or(FrameError::Truncated)?;
        self.rest = rest;
        Ok(packet)
    }
}

impl<'a> Iterator for FrameReader<'a> {
    type Item = Result<&'a [u8], FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let packet = self.packet();
        if packet.is_err() {
            self.rest = &[];
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn separators_have_the_size_that_lengths_need() {
        let sizes = [63, 64, 8_191, 8_192, 127, 128, 16_383, 16_384];
        let first = sizes.map(|bytes| packed_bytes(bytes, true) - bytes);
        assert_eq!(first, [2, 3, 3, 4, 3, 3, 4, 4], "with the protocol");
        let next = sizes.map(|bytes| packed_bytes(bytes, false) - bytes);
        assert_eq!(next, [1, 1, 2, 2, 1, 2, 2, 3]);
    }

    /// A packet of 100 bytes (binary 1100100) needs 7 bits, so two bytes; one of 3 bytes needs one.
    #[test]
    fn a_frame_by_hand() {
        let mut frame = FrameWriter::default();
        assert!(frame.push(&[7; 100]) && frame.push(&[1, 2, 3]));
        let payload = frame.take();
        assert_eq!(payload[..3], [0b1100_0000, 0b0110_0100, 4]);
        assert_eq!(payload[103..], [3, 1, 2, 3]);
    }

    #[test]
    fn errors_are_reported() {
        let errors =
            |payload: &[u8]| FrameReader::new(payload).filter_map(Result::err).collect::<Vec<_>>();
        assert_eq!(errors(&[0b1000_0101, 4, 1, 2]), [FrameError::Truncated]);
        assert_eq!(errors(&[0b1000_0001]), [FrameError::Truncated]);
        assert_eq!(errors(&[0b0000_0001, 4, 1]), [FrameError::UnknownProtocol]);
        assert_eq!(errors(&[0b1000_0001, 41, 1]), [FrameError::UnknownProtocol]);
        assert_eq!(errors(&[0b1100_0000, 0x80, 0x80, 1]), [FrameError::LengthTooLong]);
        assert_eq!(errors(&[]), []);
    }

    fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let lengths = prop_oneof![0usize..200, 0usize..20_000];
        let packet = lengths.prop_flat_map(|n| prop::collection::vec(any::<u8>(), n));
        prop::collection::vec(packet, 0..12)
    }

    proptest! {
        /// Given any packets, expect to read them back, and the payload size of `packed_bytes`.
        #[test]
        fn packets_are_read_back(packets in packets()) {
            let mut frame = FrameWriter::default();
            let mut expected = 0;
            for (index, packet) in packets.iter().enumerate() {
                prop_assert!(frame.push(packet));
                expected += packed_bytes(u32::try_from(packet.len()).expect("short"), index == 0);
            }
            let payload = frame.take();
            prop_assert_eq!(payload.len(), expected as usize);
            let back: Result<Vec<_>, _> = FrameReader::new(&payload).collect();
            prop_assert_eq!(back.expect("the payload is complete"), packets);
        }

        /// Given any bytes, expect the reader to end without a panic and every packet to be part of them.
        #[test]
        fn reading_any_bytes_ends(payload in prop::collection::vec(any::<u8>(), 0..400)) {
            let taken = FrameReader::new(&payload).filter_map(Result::ok);
            let bytes: usize = taken.map(<[u8]>::len).sum();
            prop_assert!(bytes <= payload.len());
        }
    }
}
