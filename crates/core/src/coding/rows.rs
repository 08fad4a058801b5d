//! What symbols consist of: bytes, or only sizes.

use bentpipe_gf::{Kernel, Row, Sum};

/// Sources that one call of a kernel adds.
const BATCH: usize = 64;
/// Rows have whole vectors: see [`Row`].
const LINE_BYTES: usize = 64;

/// A row, and the factor that multiplies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The number of the row.
    pub row: usize,
    /// The factor.
    pub factor: u8,
}

/// Symbols in numbered rows, of which linear combinations are made. A symbol that is shorter than another one is continued by
/// zeros, so a sum is as long as its longest term.
pub trait SymbolRows {
    /// One symbol.
    type Symbol: ?Sized;

    /// Rows `0..rows` of empty symbols, with space for `symbol_bytes` bytes each.
    fn new(rows: usize, symbol_bytes: usize) -> Self;

    /// The size of a symbol in bytes.
    fn size(symbol: &Self::Symbol) -> usize;

    /// The symbol in a row.
    fn get(&self, row: usize) -> &Self::Symbol;

    /// Copies a symbol into a row.
    ///
    /// # Panics
    /// If it is longer than the row.
    fn set(&mut self, row: usize, symbol: &Self::Symbol);

    /// Makes the symbol in a row empty.
    fn clear(&mut self, row: usize);

    /// Multiplies the symbol in a row.
    fn scale(&mut self, row: usize, factor: u8);

    /// Adds terms to a row, which is none of them.
    fn add_to_one(&mut self, row: usize, terms: &[Term]);

    /// Adds a source to each row, multiplied by the row's factor. The source is none of the rows.
    fn add_to_each(&mut self, rows: &[Term], source: usize);
}

/// Symbols of bytes.
#[derive(Clone, Debug)]
pub struct ByteRows {
    kernel: Kernel,
    rows: Vec<Row>,
    /// Bytes behind the size of a symbol are zero.
    sizes: Vec<usize>,
    bytes_max: usize,
}

impl SymbolRows for ByteRows {
    type Symbol = [u8];

    fn new(rows: usize, symbol_bytes: usize) -> Self {
        Self {
            kernel: Kernel::fastest(),
            rows: vec![Row::zeros(symbol_bytes); rows],
            sizes: vec![0; rows],
            bytes_max: symbol_bytes,
        }
    }

    fn size(symbol: &[u8]) -> usize {
        symbol.len()
    }

    fn get(&self, row: usize) -> &[u8] {
        &self.rows[row].bytes()[..self.sizes[row]]
    }

    fn set(&mut self, row: usize, symbol: &[u8]) {
        assert!(symbol.len() <= self.bytes_max, "the symbol fits its row");
        let bytes = self.rows[row].bytes_mut();
        bytes[..symbol.len()].copy_from_slice(symbol);
        let before = std::mem::replace(&mut self.sizes[row], symbol.len());
        if before > symbol.len() {
            bytes[symbol.len()..before].fill(0);
        }
    }

    fn clear(&mut self, row: usize) {
        self.set(row, &[]);
    }

    fn scale(&mut self, row: usize, factor: u8) {
        let bytes = self.sizes[row].next_multiple_of(LINE_BYTES);
        self.kernel.scale(&mut self.rows[row].bytes_mut()[..bytes], factor);
    }

    fn add_to_one(&mut self, row: usize, terms: &[Term]) {
        let sizes = terms.iter().map(|term| self.sizes[term.row]);
        let size = sizes.max().unwrap_or(0);
        add_terms(self.kernel, &mut self.rows, row, terms, size.next_multiple_of(LINE_BYTES));
        self.sizes[row] = self.sizes[row].max(size);
    }

    fn add_to_each(&mut self, rows: &[Term], source: usize) {
        let size = self.sizes[source];
        add_source(self.kernel, &mut self.rows, rows, source, size.next_multiple_of(LINE_BYTES));
        for term in rows {
            self.sizes[term.row] = self.sizes[term.row].max(size);
        }
    }
}

/// Adds terms to the first `bytes` bytes of a row, which is none of them. No memory is allocated.
pub(super) fn add_terms(
    kernel: Kernel,
    rows: &mut [Row],
    row: usize,
    terms: &[Term],
    bytes: usize,
) {
    let mut sum = std::mem::take(&mut rows[row]);
    for terms in terms.chunks(BATCH) {
        let (mut sources, mut factors) = ([&[][..]; BATCH], [0; BATCH]);
        for (index, term) in terms.iter().enumerate() {
            sources[index] = &rows[term.row].bytes()[..bytes];
            factors[index] = term.factor;
        }
        let factors = &factors[..terms.len()];
        let mut sums = [Sum { row: &mut sum.bytes_mut()[..bytes], factors }];
        kernel.add_products(&mut sums, &sources[..terms.len()]);
    }
    rows[row] = sum;
}

/// Adds the first `bytes` bytes of a source to each row, which is another one. No memory is allocated.
pub(super) fn add_source(
    kernel: Kernel,
    rows: &mut [Row],
    terms: &[Term],
    source: usize,
    bytes: usize,
) {
    let added = std::mem::take(&mut rows[source]);
    for term in terms {
        let row = &mut rows[term.row].bytes_mut()[..bytes];
        kernel
            .add_products(&mut [Sum { row, factors: &[term.factor] }], &[&added.bytes()[..bytes]]);
    }
    rows[source] = added;
}

/// Symbols without bytes, for simulations: only their sizes.
#[derive(Clone, Debug)]
pub struct SizeRows {
    sizes: Vec<u32>,
    bytes_max: usize,
}

impl SymbolRows for SizeRows {
    /// The size in bytes.
    type Symbol = u32;

    fn new(rows: usize, symbol_bytes: usize) -> Self {
        Self { sizes: vec![0; rows], bytes_max: symbol_bytes }
    }

    fn size(symbol: &u32) -> usize {
        *symbol as usize
    }

    fn get(&self, row: usize) -> &u32 {
        &self.sizes[row]
    }

    fn set(&mut self, row: usize, symbol: &u32) {
        assert!(Self::size(symbol) <= self.bytes_max, "the symbol fits its row");
        self.sizes[row] = *symbol;
    }

    fn clear(&mut self, row: usize) {
        self.sizes[row] = 0;
    }

    fn scale(&mut self, _: usize, _: u8) {}

    fn add_to_one(&mut self, row: usize, terms: &[Term]) {
        let sizes = terms.iter().map(|term| self.sizes[term.row]);
        self.sizes[row] = self.sizes[row].max(sizes.max().unwrap_or(0));
    }

    fn add_to_each(&mut self, rows: &[Term], source: usize) {
        for term in rows {
            self.sizes[term.row] = self.sizes[term.row].max(self.sizes[source]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(terms: &[(usize, u8)]) -> Vec<Term> {
        terms.iter().map(|&(row, factor)| Term { row, factor }).collect()
    }

    /// 2 * 0x81 = 0x102 - 0x11D = 0x1F; 3 * 1 = 3.
    #[test]
    fn sums_are_as_long_as_the_longest_term() {
        let mut rows = ByteRows::new(4, 100);
        rows.set(1, &[0x81]);
        rows.set(2, &[1, 1]);
        rows.add_to_one(3, &terms(&[(1, 2), (2, 3)]));
        assert_eq!(rows.get(3), [0x1F ^ 3, 3]);
        rows.add_to_each(&terms(&[(1, 1), (0, 5)]), 2);
        assert_eq!((rows.get(0), rows.get(1)), (&[5, 5][..], &[0x80, 1][..]));
        rows.scale(0, 2);
        assert_eq!(rows.get(0), [10, 10]);
    }

    #[test]
    fn a_shorter_symbol_leaves_nothing_of_a_longer_one() {
        let mut rows = ByteRows::new(2, 100);
        rows.set(0, &[7; 100]);
        rows.set(0, &[1]);
        rows.set(1, &[0; 100]);
        rows.add_to_one(1, &terms(&[(0, 1)]));
        assert_eq!(rows.get(1)[..2], [1, 0]);
        assert!(rows.get(1)[2..].iter().all(|&byte| byte == 0));
        rows.clear(0);
        assert!(rows.get(0).is_empty());
    }

    #[test]
    #[should_panic(expected = "the symbol fits its row")]
    fn a_symbol_that_is_too_long_is_refused() {
        ByteRows::new(1, 100).set(0, &[0; 101]);
    }
}
