//! A TCP segment as the simulator carries it: the header fields that another host acts on, and the
//! length of the payload.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use crate::header_bytes;
use crate::packet::seq::SeqNumber;

/// The most SACK blocks that fit in 40 bytes of options; with timestamps it is one less (RFC 2018,
/// section 3).
pub const SACK_BLOCKS_MAX: usize = 4;
/// Size of the padded SACK option without blocks, and of each block.
const SACK_OPTION_BYTES: u32 = 4;
const SACK_BLOCK_BYTES: u32 = 8;

/// A TCP segment.
///
/// The fields that every segment has come first: see [`Packet`](crate::packet::Packet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Sequence number of the first byte, or of the SYN or FIN.
    pub seq: SeqNumber,
    /// Acknowledgment number, if the ACK flag is set.
    pub ack: Option<SeqNumber>,
    /// The timestamps option (RFC 7323).
    pub timestamps: Option<Timestamps>,
    /// Payload length in bytes.
    pub payload: u16,
    /// The window field of the header, scaled down.
    pub window: u16,
    /// Distinguishes the connections of one flow, as port numbers do.
    pub connection: u16,
    /// The flags. SYN and FIN take one sequence number each.
    pub flags: Flags,
    /// SACK blocks (RFC 2018), the newest first. The first block may report a duplicate (D-SACK,
    /// RFC 2883).
    pub sack: SackBlocks,
    /// The options of a SYN; `None` without SYN. A writer that reuses a packet therefore clears it only
    /// if the SYN flag was set.
    pub syn_options: Option<SynOptions>,
}

/// The flags of a TCP header that other hosts act on, by their bits on the wire. The ACK flag is
/// [`Segment::ack`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// The last segment of the stream.
    pub const FIN: Self = Self(1);
    /// The first segment of the stream.
    pub const SYN: Self = Self(1 << 1);
    /// The connection is aborted or refused.
    pub const RST: Self = Self(1 << 2);
    /// ECN-Echo (RFC 3168): a CE mark arrived; on a SYN, the host is ECN-capable.
    pub const ECE: Self = Self(1 << 6);
    /// Congestion window reduced (RFC 3168): the sender reacted to ECN-Echo.
    pub const CWR: Self = Self(1 << 7);
    const KNOWN: u8 = Self::FIN.0 | Self::SYN.0 | Self::RST.0 | Self::ECE.0 | Self::CWR.0;

    /// The supported flags among those of a header.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        Self(bits & Self::KNOWN)
    }

    /// The flags as bits of a header.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether SYN is set.
    #[must_use]
    pub fn syn(self) -> bool {
        self.contains(Self::SYN)
    }

    /// Whether FIN is set.
    #[must_use]
    pub fn fin(self) -> bool {
        self.contains(Self::FIN)
    }

    /// Whether RST is set.
    #[must_use]
    pub fn rst(self) -> bool {
        self.contains(Self::RST)
    }

    /// Whether all of `flags` are set.
    #[must_use]
    pub fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags without `flags`.
    #[must_use]
    pub fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// These flags if `set`, else none.
    #[must_use]
    pub fn when(self, set: bool) -> Self {
        if set { self } else { Self::default() }
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::SYN, "SYN"),
            (Self::FIN, "FIN"),
            (Self::RST, "RST"),
            (Self::ECE, "ECE"),
            (Self::CWR, "CWR"),
        ];
        let set = names.into_iter().filter(|(flag, _)| self.contains(*flag));
        f.debug_set().entries(set.map(|(_, name)| name)).finish()
    }
}

/// The options of a SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynOptions {
    /// Maximum segment size (RFC 6691): payload plus options that the sender of the SYN can receive.
    pub mss: u16,
    /// Window scale (RFC 7323), if offered.
    pub window_shift: Option<u8>,
    /// Whether SACK is permitted.
    pub sack: bool,
}

/// The timestamps option (RFC 7323). Values are in ticks of the sender's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// `TSval`: the sender's clock.
    pub value: u32,
    /// `TSecr`: the echoed value.
    pub echo: u32,
}

/// Up to [`SACK_BLOCKS_MAX`] SACK blocks, each from its first sequence number to the one after its last.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct SackBlocks {
    count: u8,
    /// Left and right edge of each block in network byte order, so that they need no alignment. Only the
    /// first `count` blocks are valid.
    blocks: [[[u8; 4]; 2]; SACK_BLOCKS_MAX],
}

impl PartialEq for SackBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for SackBlocks {}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl SackBlocks {
    /// Adds a block, if there is room for it.
    pub fn push(&mut self, first: SeqNumber, end: SeqNumber) {
        if let Some(slot) = self.blocks.get_mut(usize::from(self.count)) {
            *slot = [first.0.to_be_bytes(), end.0.to_be_bytes()];
            self.count += 1;
        }
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Whether there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Size of the padded option.
    #[must_use]
    pub fn option_bytes(&self) -> u32 {
        Self::bytes_of(self.count.into())
    }

    /// Size of the padded option with `blocks` blocks.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a handful of blocks")]
    pub(crate) fn bytes_of(blocks: usize) -> u32 {
        if blocks == 0 { 0 } else { SACK_OPTION_BYTES + SACK_BLOCK_BYTES * blocks as u32 }
    }

    /// The number of blocks that fit in `room` bytes, regardless of [`SACK_BLOCKS_MAX`].
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "at most the bytes of a packet")]
    pub(crate) fn fitting(room: u64) -> usize {
        (room.saturating_sub(SACK_OPTION_BYTES.into()) / u64::from(SACK_BLOCK_BYTES)) as usize
    }

    /// The blocks, newest first.
    pub fn iter(&self) -> impl Iterator<Item = (SeqNumber, SeqNumber)> + '_ {
        let number = |bytes| SeqNumber(u32::from_be_bytes(bytes));
        let blocks = self.blocks.iter().take(self.count.into());
        blocks.map(move |&[first, end]| (number(first), number(end)))
    }
}

impl Segment {
    /// The sequence numbers that the segment takes: payload, SYN and FIN.
    #[must_use]
    pub fn sequence_length(&self) -> u64 {
        u64::from(self.payload) + u64::from(self.flags.syn()) + u64::from(self.flags.fin())
    }

    /// Size of the TCP options, padded to words as hosts do: MSS 4, window scale 3 + 1, SACK permitted
    /// 2 + 2, timestamps 10 + 2, SACK 2 + 2 + 8 per block.
    #[must_use]
    pub fn option_bytes(&self) -> u32 {
        if self.syn_options.is_none() && self.timestamps.is_none() && self.sack.count == 0 {
            return 0;
        }
        let syn_options = self.syn_options.map_or(0, |syn_options| {
            4 + if syn_options.window_shift.is_some() { 4 } else { 0 }
                + if syn_options.sack { 4 } else { 0 }
        });
        let timestamps = if self.timestamps.is_some() { TIMESTAMP_OPTION_BYTES } else { 0 };
        syn_options + timestamps + self.sack.option_bytes()
    }

    /// Size at the IP layer.
    #[must_use]
    pub fn ip_bytes(&self) -> u32 {
        header_bytes::SEGMENT + self.option_bytes() + u32::from(self.payload)
    }
}

/// Size of the padded timestamps option.
pub const TIMESTAMP_OPTION_BYTES: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_what_hosts_send() {
        let data = Segment { payload: 1460, ack: Some(SeqNumber(1)), ..Segment::default() };
        assert_eq!(data.ip_bytes(), 1500);
        let timestamps = Some(Timestamps::default());
        let modern = Segment { payload: 1448, timestamps, ..data };
        assert_eq!(modern.ip_bytes(), 1500);
        let syn_options = Some(SynOptions { mss: 1460, window_shift: Some(7), sack: true });
        let syn = Segment { flags: Flags::SYN, syn_options, timestamps, ..Segment::default() };
        assert_eq!(syn.ip_bytes(), 64);
        assert_eq!(syn.sequence_length(), 1);
    }

    #[test]
    fn at_most_four_sack_blocks_are_carried() {
        let mut ack = Segment { ack: Some(SeqNumber(1)), ..Segment::default() };
        for n in 0..5 {
            ack.sack.push(SeqNumber(n * 10), SeqNumber(n * 10 + 5));
        }
        assert_eq!(ack.sack.iter().count(), 4);
        assert_eq!(ack.sack.iter().next(), Some((SeqNumber(0), SeqNumber(5))));
        assert_eq!(ack.ip_bytes(), 40 + 36);
    }
}
