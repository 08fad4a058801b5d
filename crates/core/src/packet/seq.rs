//! Sequence numbers (RFC 9293, section 3.4): 32 bits on the wire, 64 bits in an endpoint.
//!
//! A [`Position`] counts from the SYN, which is position 0; the first byte of data is position 1. It
//! never wraps, so positions are compared directly. A segment carries a [`SeqNumber`], which
//! [`SeqNumber::to_position`] converts back, given a known position within 2^31 of it.

/// A position in one direction of a stream: the SYN is 0, data start at 1, the FIN follows the data.
pub type Position = u64;

/// A sequence number as in a TCP header, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// The sequence number of `position`, given the initial sequence number.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 is intended")]
    pub fn from_position(position: Position, initial: Self) -> Self {
        Self(initial.0.wrapping_add(position as u32))
    }

    /// The signed distance from `other` to this number.
    #[must_use]
    #[expect(
        clippy::cast_possible_wrap,
        reason = "two's complement distance, at most 2^31 either way"
    )]
    pub fn ahead_of(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// The position nearest to `anchor` that has this sequence number; 0 if that would lie before the
    /// SYN.
    #[must_use]
    #[expect(
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "positions are below 2^63; the sum is at least 0"
    )]
    pub fn to_position(self, initial: Self, anchor: Position) -> Position {
        let distance = self.ahead_of(Self::from_position(anchor, initial));
        (anchor as i64 + i64::from(distance)).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_restored_across_the_wrap() {
        let initial = SeqNumber(u32::MAX - 10);
        for position in [0, 1, 10, 11, 12, 1 << 31, (1 << 32) + 5, 3 << 33] {
            let number = SeqNumber::from_position(position, initial);
            for distance in [0, 1, 1000, (1 << 31) - 1] {
                assert_eq!(number.to_position(initial, position + distance), position);
                let before = position.saturating_sub(distance);
                assert_eq!(number.to_position(initial, before), position);
            }
        }
    }

    #[test]
    fn numbers_before_the_syn_become_position_0() {
        let initial = SeqNumber(100);
        assert_eq!(SeqNumber(99).to_position(initial, 0), 0);
        assert_eq!(SeqNumber(101).to_position(initial, 0), 1);
    }
}
