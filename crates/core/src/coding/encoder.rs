//! The window of a sender, and repair symbols of it.

use super::code::Code;
use super::coefficients::Density;
use super::id::{RepairId, SymbolId};
use super::rows::{SymbolRows, Term};

/// Keeps the source symbols of the window, at most a fixed number, and makes repair symbols of them.
///
/// A repair symbol takes one multiplication of a symbol for each source symbol of the window. No memory is allocated
/// after creation.
#[derive(Clone, Debug)]
pub struct Encoder<R> {
    code: Code,
    /// A ring of source symbols, and the last repair symbol behind them.
    rows: R,
    window_max: usize,
    symbol_bytes: usize,
    first: SymbolId,
    /// The row of `first`.
    first_row: usize,
    count: usize,
    coefficients: Vec<u8>,
    terms: Vec<Term>,
}

impl<R: SymbolRows> Encoder<R> {
    /// An encoder whose first source symbol has the id `first`, with a window of at most `window_max` symbols of at
    /// most `symbol_bytes` bytes.
    ///
    /// # Panics
    /// If `window_max` is zero or above [`Code::window_max`].
    #[must_use]
    pub fn new(code: Code, first: SymbolId, window_max: u16, symbol_bytes: usize) -> Self {
        assert!((1..=code.window_max()).contains(&window_max), "a window that the code has");
        let window_max = usize::from(window_max);
        Self {
            code,
            rows: R::new(window_max + 1, symbol_bytes),
            window_max,
            symbol_bytes,
            first,
            first_row: 0,
            count: 0,
            coefficients: vec![0; window_max],
            terms: Vec::with_capacity(window_max),
        }
    }

    /// Adds a source symbol to the window and returns its id. The oldest symbol leaves a full window.
    ///
    /// # Panics
    /// If the symbol is larger than `symbol_bytes`.
    pub fn push(&mut self, symbol: &R::Symbol) -> SymbolId {
        assert!(R::size(symbol) <= self.symbol_bytes, "the symbol fits");
        if self.count == self.window_max {
            self.release(1);
        }
        let row = self.row(self.count);
        self.rows.set(row, symbol);
        self.count += 1;
        self.first.plus(self.count as u32 - 1)
    }

    /// Removes the symbols before `id` from the window: the receiver has them, or no longer wants them. The id of a symbol
    /// that was not sent yet changes nothing.
    pub fn release_before(&mut self, id: SymbolId) {
        let before = id.since(self.first).unwrap_or(0) as usize;
        if before <= self.count {
            self.release(before);
        }
    }

    fn release(&mut self, count: usize) {
        self.first = self.first.plus(count as u32);
        self.first_row = self.row(count);
        self.count -= count;
    }

    /// The row of the symbol `index` symbols after the first one.
    fn row(&self, index: usize) -> usize {
        (self.first_row + index) % self.window_max
    }

    /// The id of the oldest symbol in the window (of the next one, if the window is empty), and their number.
    #[must_use]
    pub fn window(&self) -> (SymbolId, usize) {
        (self.first, self.count)
    }

    /// The repair symbol of the window with this key; `None` if the window is empty, or the code has no such symbol. It is as
    /// long as the longest symbol that it contains. Symbols with the same key and the same window are equal.
    pub fn repair(&mut self, key: u16, density: Density) -> Option<(RepairId, &R::Symbol)> {
        self.repair_of(self.first, self.first.plus(self.count as u32), key, density)
    }

    /// The repair symbol of a part of the window: its symbols from `first` on, before `end`.
    pub fn repair_of(
        &mut self,
        first: SymbolId,
        end: SymbolId,
        key: u16,
        density: Density,
    ) -> Option<(RepairId, &R::Symbol)> {
        let from = first.since(self.first).unwrap_or(0) as usize;
        let to = (end.since(self.first)? as usize).min(self.count);
        let count = to.checked_sub(from).filter(|&count| count > 0)?;
        let first = self.first.plus(from as u32);
        let id = RepairId { key, density, count: count as u16, first };
        let drawn = &mut self.coefficients[..count];
        if !self.code.coefficients(id, drawn) {
            return None;
        }
        self.terms.clear();
        let first_row = (self.first_row + from) % self.window_max;
        let rows = (first_row..self.window_max).chain(0..first_row);
        let terms = rows.zip(drawn.iter()).filter(|&(_, &factor)| factor != 0);
        self.terms.extend(terms.map(|(row, &factor)| Term { row, factor }));
        let repair = self.window_max;
        self.rows.clear(repair);
        self.rows.add_to_one(repair, &self.terms);
        Some((id, self.rows.get(repair)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::{ByteRows, SizeRows};
    use super::*;

    fn density(threshold: u8) -> Density {
        Density::new(threshold).expect("a threshold")
    }

    /// Computed by a separate program with a bitwise field. The coefficients for key 7 are 28, 229, 252; for key 9 and DT 7
    /// 144, 219, 0; for key 300 38, 127, 230. The first byte for key 9: 144 * 'a' + 219 * 'b' = 153.
    #[test]
    fn repair_symbols_of_three_words() {
        let mut encoder = Encoder::<ByteRows>::new(Code::Random, SymbolId(u32::MAX), 8, 100);
        assert_eq!(encoder.push(b"alpha"), SymbolId(u32::MAX));
        assert_eq!(encoder.push(b"be"), SymbolId(0));
        assert_eq!(encoder.push(b"gamma-ray"), SymbolId(1));
        let (id, symbol) = encoder.repair(7, Density::FULL).expect("a window");
        assert_eq!(symbol, [248, 199, 182, 139, 19, 110, 153, 251, 51]);
        assert_eq!((id.count, id.first), (3, SymbolId(u32::MAX)));
        let (_, symbol) = encoder.repair(9, density(7)).expect("a window");
        assert_eq!(symbol, [153, 188, 241, 240, 148], "without the third, longest symbol");
        let (_, symbol) = encoder.repair(300, Density::FULL).expect("a window");
        assert_eq!(symbol, [210, 79, 15, 120, 175, 171, 185, 72, 237]);
    }

    /// Given a window of two, at the third symbol, expect the first one to leave, and sizes of the others to count.
    #[test]
    fn the_oldest_symbol_leaves_a_full_window() {
        let mut encoder = Encoder::<SizeRows>::new(Code::Random, SymbolId(5), 2, 100);
        assert!(encoder.repair(1, Density::FULL).is_none());
        for size in [100, 20, 30] {
            encoder.push(&size);
        }
        assert_eq!(encoder.window(), (SymbolId(6), 2));
        let (id, &size) = encoder.repair(1, Density::FULL).expect("a window");
        assert_eq!((id.first, id.count, size), (SymbolId(6), 2, 30));
    }

    /// Given symbols 0 to 2 of 10, 20 and 30 bytes, expect a repair of the first two to be that of an encoder without the
    /// third, and none of symbols that have left the window.
    #[test]
    fn a_part_of_the_window() {
        let (mut whole, mut part) =
            (Encoder::<SizeRows>::new(Code::Random, SymbolId(0), 3, 100), None);
        for size in [10, 20, 30] {
            whole.push(&size);
            part = part.or_else(|| (size == 20).then(|| whole.clone()));
        }
        let of = |encoder: &mut Encoder<SizeRows>, first, end| {
            let repair = encoder.repair_of(SymbolId(first), SymbolId(end), 7, Density::FULL);
            repair.map(|(id, &size)| (id, size))
        };
        let mut part = part.expect("two symbols");
        assert_eq!(of(&mut whole, 0, 2), of(&mut part, 0, 3));
        assert_eq!(of(&mut whole, u32::MAX, 2), of(&mut part, 0, 2), "clipped to the window");
        assert_eq!(of(&mut whole, 2, 2), None);
        whole.release_before(SymbolId(2));
        assert_eq!(of(&mut whole, 0, 2), None);
        assert_eq!(
            of(&mut whole, 0, 3).map(|(id, size)| (id.first, id.count, size)),
            Some((SymbolId(2), 1, 30))
        );
    }

    #[test]
    fn acknowledged_symbols_leave_the_window() {
        let mut encoder = Encoder::<SizeRows>::new(Code::Random, SymbolId(u32::MAX), 3, 100);
        for size in [10, 20, 30] {
            encoder.push(&size);
        }
        encoder.release_before(SymbolId(0));
        assert_eq!(encoder.window(), (SymbolId(0), 2));
        encoder.release_before(SymbolId(u32::MAX));
        encoder.release_before(SymbolId(3));
        assert_eq!(encoder.window(), (SymbolId(0), 2), "an id that was not sent");
        encoder.release_before(SymbolId(2));
        assert_eq!(encoder.window(), (SymbolId(2), 0));
        assert_eq!(encoder.push(&40), SymbolId(2));
        assert_eq!(encoder.window(), (SymbolId(2), 1));
    }
}
