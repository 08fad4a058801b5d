//! Identifiers of source symbols.

/// The identifier of a source symbol: symbols are numbered in the order in which they are sent, modulo
/// 2^32 (RFC 8681, encoding symbol ID). Two of them are compared within 2^31.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SymbolId(pub u32);

impl SymbolId {
    /// The identifier `count` symbols later.
    #[must_use]
    pub fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// The identifier `count` symbols earlier.
    #[must_use]
    pub fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// The signed distance from `other` to this identifier.
    #[must_use]
    #[expect(clippy::cast_possible_wrap, reason = "two's complement distance")]
    pub fn ahead_of(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_cross_the_wrap() {
        let last = SymbolId(u32::MAX);
        assert_eq!(last.plus(3), SymbolId(2));
        assert_eq!(SymbolId(2).minus(3), last);
        assert_eq!(SymbolId(2).ahead_of(last), 3);
        assert_eq!(last.ahead_of(SymbolId(2)), -3);
    }
}
