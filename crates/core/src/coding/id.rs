//! Ids of symbols, as in the headers of RFC 8681, section 4.

use super::coefficients::Density;

/// The largest window: its size has 12 bits in the header.
pub const WINDOW_MAX: u16 = 4_095;

/// The number of a source symbol. Numbers wrap after 2^32 - 1, and are compared by serial number arithmetic (RFC
/// 1982): of two ids, the one that is less than 2^31 behind is the earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SymbolId(pub u32);

impl SymbolId {
    /// The id `count` symbols later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// The id `count` symbols earlier.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// The signed distance from `other` to this id.
    #[must_use]
    #[expect(clippy::cast_possible_wrap, reason = "two's complement distance")]
    pub const fn ahead_of(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// The number of symbols from `earlier` to this id; `None` if this one is before it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Option<u32> {
        let distance = self.0.wrapping_sub(earlier.0);
        if distance < 1 << 31 { Some(distance) } else { None }
    }
}

/// What a receiver needs to know of a repair symbol: its window and its coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairId {
    /// Seed of the coefficients.
    pub key: u16,
    /// Density of the coefficients.
    pub density: Density,
    /// The number of source symbols in the window, at most [`WINDOW_MAX`].
    pub count: u16,
    /// The oldest one.
    pub first: SymbolId,
}

impl RepairId {
    /// Bytes of the header.
    pub const BYTES: usize = 8;

    /// The newest source symbol in the window.
    #[must_use]
    pub const fn last(self) -> SymbolId {
        self.first.plus(self.count as u32).minus(1)
    }

    /// The Repair FEC Payload ID (RFC 8681, section 4.1.3): key, density (4 bits) and window size (12 bits), first id.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let word = u64::from(self.key) << 48
            | u64::from(self.density.threshold()) << 44
            | u64::from(self.count & WINDOW_MAX) << 32
            | u64::from(self.first.0);
        word.to_be_bytes()
    }

    /// Reads a header. `None` if its window is empty.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let word = u64::from_be_bytes(bytes);
        let count = (word >> 32) as u16 & WINDOW_MAX;
        let density = Density::new((word >> 44) as u8 & 0xF)?;
        let first = SymbolId(word as u32);
        (count > 0).then_some(Self { key: (word >> 48) as u16, density, count, first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_by_hand() {
        let density = Density::new(10).expect("a threshold");
        let id = RepairId { key: 0x1234, density, count: 0x678, first: SymbolId(0x9ABC_DEF0) };
        let bytes = [0x12, 0x34, 0xA6, 0x78, 0x9A, 0xBC, 0xDE, 0xF0];
        assert_eq!((id.to_bytes(), id.last()), (bytes, SymbolId(0x9ABC_E567)));
        assert_eq!(RepairId::from_bytes(bytes), Some(id));
        assert_eq!(RepairId::from_bytes([1, 2, 0xF0, 0, 1, 2, 3, 4]), None);
    }

    #[test]
    fn ids_wrap() {
        let last = SymbolId(u32::MAX);
        assert_eq!(last.plus(1), SymbolId(0));
        assert_eq!(SymbolId(2).since(last), Some(3));
        assert_eq!(last.since(SymbolId(2)), None);
        assert_eq!(last.since(last), Some(0));
        assert_eq!(SymbolId(2).minus(3), last);
        assert_eq!((SymbolId(2).ahead_of(last), last.ahead_of(SymbolId(2))), (3, -3));
        assert_eq!(SymbolId(0).since(SymbolId(1 << 31)), None);
    }
}
