//! One equation for missing symbols.

use bentpipe_gf::{Kernel, Row, Sum, field};

/// The sum of missing symbols, each times its coefficient, is a symbol that is known.
#[derive(Clone, Debug)]
pub(super) struct Equation {
    /// By column; zero for symbols that are known or not kept.
    pub(super) coefficients: Row,
    /// How many of them are not zero.
    pub(super) weight: usize,
    /// The row of the sum.
    pub(super) sum: usize,
    /// The column of the oldest missing symbol. Its coefficient is 1.
    pub(super) pivot: usize,
}

impl Equation {
    pub(super) fn coefficient(&self, column: usize) -> u8 {
        self.coefficients.bytes()[column]
    }

    /// Adds another equation times a factor.
    pub(super) fn add(&mut self, kernel: Kernel, factor: u8, other: &Row) {
        add_row(kernel, &mut self.coefficients, factor, other);
        self.weight = weight(&self.coefficients);
    }

    /// Removes a symbol, and returns its coefficient.
    pub(super) fn remove(&mut self, column: usize) -> u8 {
        let factor = std::mem::take(&mut self.coefficients.bytes_mut()[column]);
        self.weight -= usize::from(factor != 0);
        factor
    }

    /// Makes the oldest symbol the pivot, and its coefficient 1. The span begins at column `base`. Returns the factor for
    /// the sum; `None` if there is no symbol left.
    pub(super) fn normalize(&mut self, kernel: Kernel, base: usize) -> Option<u8> {
        self.pivot = leading(self.coefficients.bytes(), base)?;
        let factor = field::inverse(self.coefficient(self.pivot))?;
        kernel.scale(self.coefficients.bytes_mut(), factor);
        Some(factor)
    }
}

/// Adds a row of coefficients times a factor to another one.
pub(super) fn add_row(kernel: Kernel, row: &mut Row, factor: u8, other: &Row) {
    kernel.add_products(&mut [Sum { row: row.bytes_mut(), factors: &[factor] }], &[other.bytes()]);
}

/// The number of coefficients that are not zero.
pub(super) fn weight(row: &Row) -> usize {
    // Sums in bytes, which a compiler turns into vectors of bytes: this takes most of the time of elimination.
    let of_chunk = |chunk: &[u8]| chunk.iter().fold(0, |sum: u8, &c| sum + u8::from(c != 0));
    row.bytes().chunks(MAX_CHUNK).map(|chunk| usize::from(of_chunk(chunk))).sum()
}

/// A multiple of the longest vector whose count fits in a byte.
const MAX_CHUNK: usize = 192;

/// The first column with a coefficient other than zero, in a ring that begins at `base`.
fn leading(coefficients: &[u8], base: usize) -> Option<usize> {
    let is_set = |&coefficient: &u8| coefficient != 0;
    let (wrapped, first) = coefficients.split_at(base);
    let column = first.iter().position(is_set).map(|column| base + column);
    column.or_else(|| wrapped.iter().position(is_set))
}
