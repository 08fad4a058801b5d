//! A TCP segment as the simulator carries it: every field that another host acts on, and the length
//! of the payload instead of the payload.

use core::fmt;

use super::seq::Wire;

/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER_BYTES: u32 = 20;
/// Bytes of a TCP header without options.
pub const TCP_HEADER_BYTES: u32 = 20;
/// Bytes of both headers without options.
pub(super) const HEADER_BYTES: u32 = IPV4_HEADER_BYTES + TCP_HEADER_BYTES;
/// The most SACK blocks that fit beside a timestamp (RFC 2018, section 3).
pub const SACK_BLOCKS_MAX: usize = 3;

/// A TCP segment.
///
/// Fields that every segment has come first: see [`Packet`](crate::packet::Packet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Number of the first byte (or of the SYN or FIN).
    pub seq: Wire,
    /// The next number expected from the other side, if anything was received.
    pub ack: Option<Wire>,
    /// Timestamps (RFC 7323).
    pub timestamps: Option<Timestamps>,
    /// Bytes of payload.
    pub payload: u16,
    /// The receive window as the header carries it, scaled down.
    pub window: u16,
    /// Tells the connections of one flow apart, as port numbers do.
    pub connection: u16,
    /// Options of a SYN.
    pub offer: Option<Offer>,
    /// Opens the stream; takes one number.
    pub syn: bool,
    /// Ends the stream; takes one number.
    pub fin: bool,
    /// Ranges received beyond `ack` (RFC 2018), the newest first.
    pub sack: SackBlocks,
}

/// What a SYN offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Largest payload plus options that the sender of this SYN takes in (RFC 6691).
    pub mss: u16,
    /// Shift of its window field (RFC 7323), if it scales.
    pub window_shift: Option<u8>,
    /// Whether it understands SACK.
    pub sack: bool,
}

/// The timestamp option. Values are in the sender's own clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The value that this segment answers.
    pub echo: u32,
}

/// Up to [`SACK_BLOCKS_MAX`] ranges, each from its first number to the one after its last.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct SackBlocks {
    count: u8,
    /// Two numbers a block, in the byte order of the wire, so that they need no alignment. Only the
    /// first `count` blocks mean anything.
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
    /// Adds a block. Those that do not fit are left out, as on the wire.
    pub fn push(&mut self, first: Wire, end: Wire) {
        if let Some(slot) = self.blocks.get_mut(usize::from(self.count)) {
            *slot = [first.0.to_be_bytes(), end.0.to_be_bytes()];
            self.count += 1;
        }
    }

    /// Forgets all blocks.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the padded option.
    #[must_use]
    pub fn option_bytes(&self) -> u32 {
        match u32::from(self.count) {
            0 => 0,
            blocks => 4 + 8 * blocks,
        }
    }

    /// The blocks, newest first.
    pub fn iter(&self) -> impl Iterator<Item = (Wire, Wire)> + '_ {
        let number = |bytes| Wire(u32::from_be_bytes(bytes));
        let blocks = self.blocks.iter().take(self.count.into());
        blocks.map(move |&[first, end]| (number(first), number(end)))
    }
}

impl Segment {
    /// Numbers that the segment takes: payload, SYN and FIN.
    #[must_use]
    pub fn sequence_length(&self) -> u64 {
        u64::from(self.payload) + u64::from(self.syn) + u64::from(self.fin)
    }

    /// Bytes of TCP options, padded to words as hosts do: MSS 4, window scale 3 + 1, SACK permitted
    /// 2 + 2, timestamps 10 + 2, SACK 2 + 2 + 8 a block.
    #[must_use]
    pub fn option_bytes(&self) -> u32 {
        if self.offer.is_none() && self.timestamps.is_none() && self.sack.count == 0 {
            return 0;
        }
        let offer = self.offer.map_or(0, |offer| {
            4 + if offer.window_shift.is_some() { 4 } else { 0 } + if offer.sack { 4 } else { 0 }
        });
        let timestamps = if self.timestamps.is_some() { TIMESTAMP_OPTION_BYTES } else { 0 };
        offer + timestamps + self.sack.option_bytes()
    }

    /// Size at the IP layer.
    #[must_use]
    pub fn ip_bytes(&self) -> u32 {
        HEADER_BYTES + self.option_bytes() + u32::from(self.payload)
    }
}

/// Bytes of the padded timestamp option.
pub const TIMESTAMP_OPTION_BYTES: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_what_hosts_send() {
        let data = Segment { payload: 1460, ack: Some(Wire(1)), ..Segment::default() };
        assert_eq!(data.ip_bytes(), 1500);
        let timestamps = Some(Timestamps::default());
        let modern = Segment { payload: 1448, timestamps, ..data };
        assert_eq!(modern.ip_bytes(), 1500);
        let offer = Some(Offer { mss: 1460, window_shift: Some(7), sack: true });
        let syn = Segment { syn: true, offer, timestamps, ..Segment::default() };
        assert_eq!(syn.ip_bytes(), 64);
        assert_eq!(syn.sequence_length(), 1);
    }

    #[test]
    fn at_most_three_sack_blocks_are_carried() {
        let mut ack = Segment { ack: Some(Wire(1)), ..Segment::default() };
        for n in 0..5 {
            ack.sack.push(Wire(n * 10), Wire(n * 10 + 5));
        }
        assert_eq!(ack.sack.iter().count(), 3);
        assert_eq!(ack.sack.iter().next(), Some((Wire(0), Wire(5))));
        assert_eq!(ack.ip_bytes(), 40 + 28);
    }
}
