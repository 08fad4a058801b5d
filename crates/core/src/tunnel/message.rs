//! The messages of a coded tunnel, inside the encryption.
//!
//! | kind | fields | contents |
//! | --- | --- | --- |
//! | 0 uncoded | | a packet |
//! | 1 source | stream (2), symbol (4), time of sending in microseconds (4) | chunks of packets, each packet behind its sequence number (4) |
//! | 2 repair | stream (2), repair ID of RFC 8681 (8) | a combination of source symbols |
//! | 3 feedback | stream (2), receiver (2) | the message of [`super::Feedback`] |
//!
//! The first byte is the kind; numbers are big-endian. A *stream* is the symbols of one sender from its start, or from
//! that of its receiver: symbols and totals of feedback count within it. The number of the receiver changes when it
//! starts, and tells the sender that what it knew is gone.

use super::feedback::{Feedback, FeedbackError};
use crate::coding::framing::HEADER_BYTES as CHUNK_HEADER_BYTES;
use crate::coding::{RepairId, SymbolId};
use crate::packet::symbol::{RepairHeader, SourceHeader, StreamId};

const UNCODED: u8 = 0;
const SOURCE: u8 = 1;
const REPAIR: u8 = 2;
const FEEDBACK: u8 = 3;

/// Bytes before the packet of an uncoded message.
pub const UNCODED_BYTES: usize = 1;
/// Bytes before the symbol of a source message.
pub const SOURCE_BYTES: usize = 11;
/// Bytes before the symbol of a repair message.
pub const REPAIR_BYTES: usize = 3 + RepairId::BYTES;
/// Bytes before the message of a decoder.
pub const FEEDBACK_BYTES: usize = 5;
/// Bytes before a packet that begins in a symbol: the chunk's header and the sequence number.
pub const PACKET_BYTES: usize = CHUNK_HEADER_BYTES + SEQUENCE_BYTES;
/// Bytes of the sequence number before a coded packet.
pub const SEQUENCE_BYTES: usize = 4;

/// The number of a receiver; see the module's description.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverId(pub u16);

/// See the module's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A packet that is not coded.
    Uncoded(&'a [u8]),
    /// A source symbol.
    Source(SourceHeader, &'a [u8]),
    /// A repair symbol.
    Repair(RepairHeader, &'a [u8]),
    /// What a decoder has and misses.
    Feedback(FeedbackHeader, Feedback),
}

/// Whose feedback, and on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedbackHeader {
    /// The stream that the decoder receives.
    pub stream: StreamId,
    /// The decoder.
    pub receiver: ReceiverId,
}

/// An error in the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// It ends before its contents begin, or has none.
    Truncated,
    /// The kind is unknown.
    UnknownKind,
    /// The window of a repair symbol is empty.
    EmptyWindow,
    /// The message of a decoder is malformed.
    Feedback(FeedbackError),
}

impl SourceHeader {
    /// The bytes before the symbol.
    #[must_use]
    pub fn to_bytes(self) -> [u8; SOURCE_BYTES] {
        let mut bytes = [SOURCE; SOURCE_BYTES];
        bytes[1..3].copy_from_slice(&self.stream.0.to_be_bytes());
        bytes[3..7].copy_from_slice(&self.id.0.to_be_bytes());
        bytes[7..].copy_from_slice(&self.sent_us.to_be_bytes());
        bytes
    }
}

impl RepairHeader {
    /// The bytes before the symbol.
    #[must_use]
    pub fn to_bytes(self) -> [u8; REPAIR_BYTES] {
        let mut bytes = [REPAIR; REPAIR_BYTES];
        bytes[1..3].copy_from_slice(&self.stream.0.to_be_bytes());
        bytes[3..].copy_from_slice(&self.id.to_bytes());
        bytes
    }
}

impl FeedbackHeader {
    /// Appends the whole message.
    pub fn encode(self, feedback: &Feedback, bytes: &mut Vec<u8>) {
        bytes.push(FEEDBACK);
        bytes.extend(self.stream.0.to_be_bytes());
        bytes.extend(self.receiver.0.to_be_bytes());
        feedback.encode(bytes);
    }
}

/// The byte before an uncoded packet.
#[must_use]
pub const fn uncoded_header() -> [u8; UNCODED_BYTES] {
    [UNCODED]
}

impl<'a> Message<'a> {
    /// Reads a message, which takes all the bytes.
    ///
    /// # Errors
    /// If it is no message.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (&kind, rest) = bytes.split_first().ok_or(MessageError::Truncated)?;
        let contents = match kind {
            UNCODED => Self::Uncoded(rest),
            SOURCE => {
                let (header, symbol) = split::<{ SOURCE_BYTES - 1 }>(rest)?;
                let [a, b, c, d, e, f, g, h, i, j] = *header;
                let id = SymbolId(u32::from_be_bytes([c, d, e, f]));
                let sent_us = u32::from_be_bytes([g, h, i, j]);
                Self::Source(SourceHeader { stream: stream(a, b), id, sent_us }, symbol)
            }
            REPAIR => {
                let (&[a, b], rest) = split::<2>(rest)?;
                let (id, symbol) = split::<{ RepairId::BYTES }>(rest)?;
                let id = RepairId::from_bytes(*id).ok_or(MessageError::EmptyWindow)?;
                Self::Repair(RepairHeader { stream: stream(a, b), id }, symbol)
            }
            FEEDBACK => {
                let (&[a, b, c, d], rest) = split::<4>(rest)?;
                let feedback = Feedback::parse(rest).map_err(MessageError::Feedback)?;
                let receiver = ReceiverId(u16::from_be_bytes([c, d]));
                Self::Feedback(FeedbackHeader { stream: stream(a, b), receiver }, feedback)
            }
            _ => return Err(MessageError::UnknownKind),
        };
        match contents {
            Self::Uncoded([]) | Self::Source(_, []) | Self::Repair(_, []) => {
                Err(MessageError::Truncated)
            }
            contents => Ok(contents),
        }
    }
}

fn stream(high: u8, low: u8) -> StreamId {
    StreamId(u16::from_be_bytes([high, low]))
}

fn split<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), MessageError> {
    bytes.split_first_chunk().ok_or(MessageError::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::Density;
    use crate::tunnel::MissingRange;
    use proptest::prelude::*;

    #[test]
    fn messages_by_hand() {
        let header = SourceHeader { stream: StreamId(0x0102), id: SymbolId(3), sent_us: 4 };
        let bytes = [&header.to_bytes()[..], b"symbol"].concat();
        assert_eq!(bytes[..SOURCE_BYTES], [1, 1, 2, 0, 0, 0, 3, 0, 0, 0, 4]);
        assert_eq!(Message::parse(&bytes), Ok(Message::Source(header, b"symbol")));

        let id = RepairId { key: 5, density: Density::FULL, count: 6, first: SymbolId(7) };
        let header = RepairHeader { stream: StreamId(9), id };
        let bytes = [&header.to_bytes()[..], b"sum"].concat();
        assert_eq!(bytes[..REPAIR_BYTES], [2, 0, 9, 0, 5, 0xF0, 6, 0, 0, 0, 7]);
        assert_eq!(Message::parse(&bytes), Ok(Message::Repair(header, b"sum")));

        assert_eq!(Message::parse(&[0, 0x45]), Ok(Message::Uncoded(&[0x45])));
    }

    #[test]
    fn feedback_is_read_back() {
        let feedback = Feedback {
            serial: 7,
            highest: SymbolId(20),
            next: SymbolId(12),
            missing: vec![MissingRange { offset: 0, length: 3 }],
            is_truncated: false,
            deficit: 2,
            received: 18,
            bursts: 1,
            given_up: 0,
            delay_us: -5,
        };
        let header = FeedbackHeader { stream: StreamId(1), receiver: ReceiverId(2) };
        let mut bytes = Vec::new();
        header.encode(&feedback, &mut bytes);
        assert_eq!(bytes.len(), FEEDBACK_BYTES + 36);
        assert_eq!(Message::parse(&bytes), Ok(Message::Feedback(header, feedback)));
        for end in 0..bytes.len() {
            assert!(Message::parse(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn messages_without_contents_are_refused() {
        for bytes in [&[][..], &[0], &[1; SOURCE_BYTES], &[2; REPAIR_BYTES]] {
            assert_eq!(Message::parse(bytes), Err(MessageError::Truncated));
        }
        assert_eq!(Message::parse(&[4, 1, 1, 1]), Err(MessageError::UnknownKind));
        let empty = [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(Message::parse(&empty), Err(MessageError::EmptyWindow));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::parse(&bytes);
        }
    }
}
