//! Sequence numbers (RFC 9293, section 3.4): 32 bits on the wire, 64 bits inside.
//!
//! Inside, a [`Position`] counts from the SYN, which is position 0; the first byte of data is 1.
//! It never wraps, so comparisons are plain. [`Wire`] is what a segment carries; an anchor that is
//! known to be within 2^31 turns it back into a position.

/// A place in one direction's stream: 0 is the SYN, data starts at 1, the FIN follows the data.
pub type Position = u64;

/// A sequence number as a segment carries it, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wire(pub u32);

impl Wire {
    /// What the wire shows for `position` when the SYN has the number `initial`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 is meant")]
    pub fn from_position(position: Position, initial: Self) -> Self {
        Self(initial.0.wrapping_add(position as u32))
    }

    /// How far this number is ahead of `other`: less than zero if it is behind.
    #[must_use]
    #[expect(
        clippy::cast_possible_wrap,
        reason = "two's complement distance, at most 2^31 either way"
    )]
    pub fn ahead_of(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// The position nearest to `anchor` that the wire shows as this number. Numbers that would lie
    /// before the SYN come out as 0.
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
    fn positions_survive_the_wire_across_the_wrap() {
        let initial = Wire(u32::MAX - 10);
        for position in [0, 1, 10, 11, 12, 1 << 31, (1 << 32) + 5, 3 << 33] {
            let wire = Wire::from_position(position, initial);
            for distance in [0, 1, 1000, (1 << 31) - 1] {
                assert_eq!(wire.to_position(initial, position + distance), position);
                let before = position.saturating_sub(distance);
                assert_eq!(wire.to_position(initial, before), position);
            }
        }
    }

    #[test]
    fn numbers_from_before_the_syn_are_held_at_it() {
        let initial = Wire(100);
        assert_eq!(Wire(99).to_position(initial, 0), 0);
        assert_eq!(Wire(101).to_position(initial, 0), 1);
    }
}
