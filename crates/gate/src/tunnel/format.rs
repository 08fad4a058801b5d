//! The layout of the datagrams. Integers are in network byte order.
//!
//! A handshake and a cookie reply have one length each, so a parser only compares lengths and copies; no field says how
//! long another one is.

use std::net::SocketAddr;

/// Length of a tag of AES-256-GCM.
pub const TAG_BYTES: usize = 16;
/// Length of the header before the sealed payload: kind, session index, counter.
pub const HEADER_BYTES: usize = 13;
/// Bytes that sealing adds to a payload.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;

pub(super) const MAC_BYTES: usize = 32;
pub(super) const COOKIE_NONCE_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
const INDEX_BYTES: usize = 4;
const START_BYTES: usize = 1 + INDEX_BYTES;
/// The Noise payload of the first message: a timestamp.
const TIMESTAMP_BYTES: usize = 8;

/// Noise's first message of IK: `e`, the sealed static key, the sealed timestamp.
pub(super) const NOISE_1_BYTES: usize =
    KEY_BYTES + KEY_BYTES + TAG_BYTES + TIMESTAMP_BYTES + TAG_BYTES;
/// Noise's second message of IK: `e`, the sealed session index of the responder.
pub(super) const NOISE_2_BYTES: usize = KEY_BYTES + INDEX_BYTES + TAG_BYTES;

/// Length of a first handshake message.
pub const INITIATION_BYTES: usize = START_BYTES + NOISE_1_BYTES + 2 * MAC_BYTES;
/// Length of a second handshake message.
pub const RESPONSE_BYTES: usize = START_BYTES + NOISE_2_BYTES + MAC_BYTES;
/// Length of a cookie reply.
pub const COOKIE_REPLY_BYTES: usize = START_BYTES + COOKIE_NONCE_BYTES + MAC_BYTES + TAG_BYTES;

/// Where the two MACs of a first handshake message begin.
pub(super) const MAC_1_AT: usize = START_BYTES + NOISE_1_BYTES;
pub(super) const MAC_2_AT: usize = MAC_1_AT + MAC_BYTES;
/// Where the MAC of a second handshake message begins.
pub(super) const RESPONSE_MAC_AT: usize = START_BYTES + NOISE_2_BYTES;

/// The session index at one end, which that end chose at random: it finds the session of a datagram.
pub(super) type Index = u32;

/// The first byte of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first message of a handshake.
    HandshakeInitiation = 1,
    /// The second message of a handshake.
    HandshakeResponse = 2,
    /// A cookie for an initiator whose address a loaded responder wants to see confirmed.
    CookieReply = 3,
    /// A sealed payload of the caller.
    Data = 4,
    /// A sealed message of the tunnel itself: one byte, which says whether it wants an answer.
    Keepalive = 5,
}

/// A datagram whose length fits its kind; nothing in it is authenticated yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The session index of the initiator.
    HandshakeInitiation(u32),
    /// The session index of the initiator.
    HandshakeResponse(u32),
    /// The session index of the initiator.
    CookieReply(u32),
    /// [`Kind::Data`] or [`Kind::Keepalive`].
    Transport {
        /// Which of both.
        kind: Kind,
        /// The session index of the receiver.
        receiver: u32,
        /// The number of the packet in its session and direction: the nonce.
        counter: u64,
    },
}

impl Header {
    /// Reads the header of a datagram; `None` if its length does not fit its kind.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let (&kind, rest) = datagram.split_first()?;
        let (index, rest) = rest.split_first_chunk()?;
        let index = u32::from_be_bytes(*index);
        let transport = |kind| {
            let counter = u64::from_be_bytes(*rest.first_chunk()?);
            Some(Self::Transport { kind, receiver: index, counter })
        };
        match (kind, datagram.len()) {
            (1, INITIATION_BYTES) => Some(Self::HandshakeInitiation(index)),
            (2, RESPONSE_BYTES) => Some(Self::HandshakeResponse(index)),
            (3, COOKIE_REPLY_BYTES) => Some(Self::CookieReply(index)),
            (4, OVERHEAD_BYTES..) => transport(Kind::Data),
            (5, KEEPALIVE_BYTES) => transport(Kind::Keepalive),
            _ => None,
        }
    }

    /// Writes the header of a transport packet.
    pub(super) fn write_transport(out: &mut [u8], kind: Kind, receiver: Index, counter: u64) {
        write_start(out, kind, receiver);
        out[START_BYTES..HEADER_BYTES].copy_from_slice(&counter.to_be_bytes());
    }
}

/// Length of a keepalive.
pub const KEEPALIVE_BYTES: usize = OVERHEAD_BYTES + 1;

/// Writes kind and session index, with which each datagram begins; returns them.
pub(super) fn write_start(out: &mut [u8], kind: Kind, index: Index) -> [u8; START_BYTES] {
    let mut start = [kind as u8; START_BYTES];
    start[1..].copy_from_slice(&index.to_be_bytes());
    out[..START_BYTES].copy_from_slice(&start);
    start
}

/// Kind and session index of a datagram that was parsed.
pub(super) fn start(datagram: &[u8]) -> &[u8] {
    &datagram[..START_BYTES]
}

/// The Noise message of a first or second handshake message that was parsed.
pub(super) fn noise(datagram: &[u8]) -> &[u8] {
    let end = if datagram.len() == INITIATION_BYTES { MAC_1_AT } else { RESPONSE_MAC_AT };
    &datagram[START_BYTES..end]
}

/// The same, to write it.
pub(super) fn noise_mut(datagram: &mut [u8]) -> &mut [u8] {
    let end = if datagram.len() == INITIATION_BYTES { MAC_1_AT } else { RESPONSE_MAC_AT };
    &mut datagram[START_BYTES..end]
}

/// Nonce and sealed cookie of a cookie reply that was parsed.
pub(super) fn cookie_parts(reply: &[u8]) -> (&[u8], &[u8]) {
    reply[START_BYTES..].split_at(COOKIE_NONCE_BYTES)
}

/// A datagram of the tunnel itself, which the caller sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    to: SocketAddr,
    length: u8,
    bytes: [u8; INITIATION_BYTES],
}

impl Datagram {
    pub(super) fn new(to: SocketAddr, content: &[u8]) -> Self {
        let mut bytes = [0; INITIATION_BYTES];
        bytes[..content.len()].copy_from_slice(content);
        let length = u8::try_from(content.len()).expect("no datagram of the tunnel is longer");
        Self { to, length, bytes }
    }

    /// Where to send it.
    #[must_use]
    pub fn to(&self) -> SocketAddr {
        self.to
    }

    /// Its content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl std::fmt::Debug for Datagram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} to {}", Header::parse(self.bytes()), self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of `docs/model/tunnel-sessions.md`, added by hand: 5 + 32 + 48 + 24 + 64, 5 + 32 + 20 + 32, 5 + 16 + 48.
    #[test]
    fn the_lengths_are_those_of_the_page() {
        assert_eq!([INITIATION_BYTES, RESPONSE_BYTES, COOKIE_REPLY_BYTES], [173, 89, 69]);
        assert_eq!([OVERHEAD_BYTES, KEEPALIVE_BYTES], [29, 30]);
        let simulated = bentpipe_core::tunnel::SESSION_BYTES as usize;
        assert_eq!(OVERHEAD_BYTES, simulated, "a simulation counts the same");
        // An answer to a stranger is shorter than what it answers: nothing is amplified.
        assert_eq!(INITIATION_BYTES.min(RESPONSE_BYTES), RESPONSE_BYTES);
        assert_eq!(INITIATION_BYTES.min(COOKIE_REPLY_BYTES), COOKIE_REPLY_BYTES);
    }

    /// Given each first byte and each length up to 200, then a header is read exactly where the table of lengths has one.
    #[test]
    fn only_the_lengths_of_the_table_are_read() {
        for kind in 0..=255 {
            for length in 0..200 {
                let mut datagram = vec![0; length];
                if let Some(first) = datagram.first_mut() {
                    *first = kind;
                }
                let expected =
                    matches!((kind, length), (1, 173) | (2, 89) | (3, 69) | (4, 29..) | (5, 30));
                assert_eq!(Header::parse(&datagram).is_some(), expected, "{kind} {length}");
            }
        }
    }

    #[test]
    fn a_transport_header_is_read_as_it_was_written() {
        let mut datagram = [0; 29];
        Header::write_transport(&mut datagram, Kind::Data, 0x0102_0304, 0x0506_0708_090a_0b0c);
        assert_eq!(datagram[..13], [4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let (receiver, counter) = (0x0102_0304, 0x0506_0708_090a_0b0c);
        let expected = Header::Transport { kind: Kind::Data, receiver, counter };
        assert_eq!(Header::parse(&datagram), Some(expected));
    }
}
