//! Recovery of lost source symbols by incremental Gaussian elimination.
//!
//! A repair symbol is an equation for the missing source symbols of its window. Equations are kept in reduced row echelon
//! form, with the oldest missing symbol of each as its pivot: no other equation contains it. A missing symbol can be computed
//! from what was received if and only if it is the only symbol of an equation, so each one is delivered as early as
//! possible. The oldest symbol that is kept can only be a pivot; so when it is given up, at most one equation goes with
//! it, and nothing is lost for the other symbols.

mod equation;
#[cfg(test)]
mod tests;

use bentpipe_gf::{Kernel, Row};

use super::code::Code;
use super::id::{RepairId, SymbolId};
use super::rows::{SymbolRows, Term};
use equation::{Equation, add_row, weight};

/// Bounds of a decoder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of consecutive source symbols that are kept, known or missing: at least the sender's window, and
    /// as many more as packets may overtake each other.
    pub span: usize,
    /// The number of equations that are kept. If there is one more, the one for the oldest symbol is dropped.
    pub equations: usize,
    /// The largest symbol.
    pub symbol_bytes: usize,
}

/// What became of a symbol that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A source symbol that was missing, or a repair symbol that is a new equation.
    Innovative,
    /// A source symbol that was known, or a repair symbol that follows from what is known.
    Redundant,
    /// A source symbol that is no longer kept, or a repair symbol of one.
    Stale,
    /// Larger than the limits allow, or not of the code.
    Refused,
}

/// Keeps the newest source symbols of a sender, known or missing, and recovers missing ones.
///
/// The span begins at the first id of the sender, and moves on with the newest id that a packet names. A symbol that leaves the
/// span is given up. All memory is allocated on creation: `span + equations + 1` symbols, and `equations + 1` rows of
/// coefficients, as many as the power of two from `span` on.
///
/// The work for a packet is bounded. A repair symbol takes one multiplication of a symbol for each known symbol of its window
/// and two for each equation; a source symbol takes two for each equation. An id far ahead takes one step for each
/// symbol of the span.
#[derive(Clone, Debug)]
pub struct Decoder<R> {
    code: Code,
    limits: Limits,
    /// The columns of coefficients, a power of two: ids wrap at a multiple of it, so the lowest bits of an id are its
    /// column.
    columns: usize,
    kernel: Kernel,
    /// Known symbols and the sums of equations.
    rows: R,
    free_rows: Vec<usize>,
    /// The oldest id that is kept.
    base: SymbolId,
    /// The number of ids from `base` to the newest one.
    count: usize,
    /// The row of each known symbol, by column.
    known: Vec<Option<usize>>,
    equations: Vec<Equation>,
    /// Coefficients of equations that are not in use.
    spare: Vec<Row>,
    recovered: Vec<SymbolId>,
    lost: u64,
    drawn: Vec<u8>,
    terms: Vec<Term>,
}

impl<R: SymbolRows> Decoder<R> {
    /// A decoder for a sender whose first source symbol has the id `first`.
    ///
    /// # Panics
    /// If `span` or `equations` is zero.
    #[must_use]
    pub fn new(code: Code, first: SymbolId, limits: Limits) -> Self {
        assert!(limits.span > 0 && limits.equations > 0, "space for a symbol and an equation");
        let columns = limits.span.next_power_of_two();
        let rows = limits.span + limits.equations + 1;
        Self {
            code,
            limits,
            columns,
            kernel: Kernel::fastest(),
            rows: R::new(rows, limits.symbol_bytes),
            free_rows: (0..rows).collect(),
            base: first,
            count: 0,
            known: vec![None; columns],
            equations: Vec::with_capacity(limits.equations + 1),
            spare: vec![Row::zeros(columns); limits.equations + 1],
            recovered: Vec::with_capacity(limits.span),
            lost: 0,
            drawn: vec![0; limits.span],
            terms: Vec::with_capacity(rows),
        }
    }

    /// Takes a source symbol. [`Self::recovered`] then has the symbols that could be computed with it.
    pub fn on_source(&mut self, id: SymbolId, symbol: &R::Symbol) -> Arrival {
        self.recovered.clear();
        if R::size(symbol) > self.limits.symbol_bytes {
            return Arrival::Refused;
        }
        if !self.advance_to(id) {
            return Arrival::Stale;
        }
        let column = self.column(id);
        if self.known[column].is_some() {
            return Arrival::Redundant;
        }
        let row = self.take_row();
        self.rows.set(row, symbol);
        self.known[column] = Some(row);
        self.terms.clear();
        let mut without_pivot = None;
        for (index, equation) in self.equations.iter_mut().enumerate() {
            let factor = equation.remove(column);
            if factor != 0 {
                self.terms.push(Term { row: equation.sum, factor });
            }
            if equation.pivot == column {
                without_pivot = Some(index);
            }
        }
        self.rows.add_to_each(&self.terms, row);
        if let Some(index) = without_pivot {
            let equation = self.equations.swap_remove(index);
            self.insert(equation);
        }
        self.collect();
        Arrival::Innovative
    }

    /// Takes a repair symbol. [`Self::recovered`] then has the symbols that could be computed with it.
    pub fn on_repair(&mut self, id: RepairId, symbol: &R::Symbol) -> Arrival {
        self.recovered.clear();
        let count = usize::from(id.count);
        let fits = R::size(symbol) <= self.limits.symbol_bytes;
        if count == 0 || count > self.limits.span || !fits {
            return Arrival::Refused;
        }
        if !self.advance_to(id.first.plus(u32::from(id.count) - 1)) {
            return Arrival::Stale;
        }
        if self.missing_count() == 0 {
            return Arrival::Redundant;
        }
        let mut row = self.spare.pop().expect("more rows of coefficients than equations");
        row.bytes_mut().fill(0);
        let arrival = self.substitute_known(id, &mut row);
        if arrival != Arrival::Innovative {
            self.spare.push(row);
            return arrival;
        }
        let sum = self.take_row();
        self.rows.set(sum, symbol);
        self.rows.add_to_one(sum, &self.terms);
        let weight = weight(&row);
        self.insert(Equation { coefficients: row, weight, sum, pivot: 0 });
        self.collect();
        if self.equations.len() > self.limits.equations {
            self.drop_oldest();
        }
        Arrival::Innovative
    }

    /// Writes the coefficients of a repair symbol for missing symbols into a row of zeros, reduced by all equations. What has to
    /// be added to the repair symbol is then in `terms`.
    fn substitute_known(&mut self, id: RepairId, row: &mut Row) -> Arrival {
        let drawn = &mut self.drawn[..usize::from(id.count)];
        if !self.code.coefficients(id, drawn) {
            return Arrival::Refused;
        }
        self.terms.clear();
        for (index, &factor) in drawn.iter().enumerate().filter(|&(_, &factor)| factor != 0) {
            let symbol = id.first.plus(index as u32);
            if symbol.since(self.base).is_none() {
                return Arrival::Stale;
            }
            let column = symbol.0 as usize & (self.columns - 1);
            match self.known[column] {
                Some(row) => self.terms.push(Term { row, factor }),
                None => row.bytes_mut()[column] = factor,
            }
        }
        // An equation contains no pivot of another one, so their order makes no difference.
        for equation in &self.equations {
            let factor = row.bytes()[equation.pivot];
            if factor != 0 {
                add_row(self.kernel, row, factor, &equation.coefficients);
                self.terms.push(Term { row: equation.sum, factor });
            }
        }
        if weight(row) == 0 { Arrival::Redundant } else { Arrival::Innovative }
    }

    /// Adds an equation that contains no pivot of another one, and removes its own pivot from the others.
    fn insert(&mut self, mut new: Equation) {
        let base = self.column(self.base);
        let Some(factor) = new.normalize(self.kernel, base) else {
            self.recycle(new);
            return;
        };
        self.rows.scale(new.sum, factor);
        self.terms.clear();
        for equation in &mut self.equations {
            let factor = equation.coefficient(new.pivot);
            if factor != 0 {
                equation.add(self.kernel, factor, &new.coefficients);
                self.terms.push(Term { row: equation.sum, factor });
            }
        }
        self.rows.add_to_each(&self.terms, new.sum);
        self.equations.push(new);
    }

    /// Makes symbols known that are alone in an equation. No other equation contains them.
    fn collect(&mut self) {
        while let Some(index) = self.equations.iter().position(|equation| equation.weight == 1) {
            let solved = self.equations.swap_remove(index);
            self.known[solved.pivot] = Some(solved.sum);
            let offset = self.offset(solved.pivot);
            self.recovered.push(self.base.plus(offset as u32));
            self.spare.push(solved.coefficients);
        }
        let base = self.base;
        self.recovered.sort_unstable_by_key(|id| id.since(base));
    }

    /// Extends the span to `id`. Returns whether it is kept.
    fn advance_to(&mut self, id: SymbolId) -> bool {
        let Some(distance) = id.since(self.base) else { return false };
        let count = distance as usize + 1;
        let given_up = count.saturating_sub(self.limits.span);
        if given_up > 0 {
            self.give_up(given_up);
        }
        self.count = self.count.max(count - given_up);
        true
    }

    /// Moves the base on. An equation with an older symbol than the new base has an older pivot, too.
    fn give_up(&mut self, given_up: usize) {
        let (mask, base) = (self.columns - 1, self.column(self.base));
        let kept = given_up.min(self.count);
        for offset in 0..kept {
            match self.known[(base + offset) & mask].take() {
                Some(row) => self.free_rows.push(row),
                None => self.lost += 1,
            }
        }
        self.lost += (given_up - kept) as u64;
        let mut index = 0;
        while let Some(equation) = self.equations.get(index) {
            if equation.pivot.wrapping_sub(base) & mask < given_up {
                let equation = self.equations.swap_remove(index);
                self.recycle(equation);
            } else {
                index += 1;
            }
        }
        self.base = self.base.plus(given_up as u32);
        self.count -= kept;
    }

    /// Drops the equation for the oldest symbol, which is the next one to be given up. The other equations stay true.
    fn drop_oldest(&mut self) {
        let by_age = |&index: &usize| self.offset(self.equations[index].pivot);
        if let Some(oldest) = (0..self.equations.len()).min_by_key(by_age) {
            let equation = self.equations.swap_remove(oldest);
            self.recycle(equation);
        }
    }

    fn recycle(&mut self, equation: Equation) {
        self.free_rows.push(equation.sum);
        self.spare.push(equation.coefficients);
    }

    fn take_row(&mut self) -> usize {
        self.free_rows.pop().expect("as many rows as symbols and equations")
    }

    fn column(&self, id: SymbolId) -> usize {
        id.0 as usize & (self.columns - 1)
    }

    /// How far the symbol of a column is from the base.
    fn offset(&self, column: usize) -> usize {
        column.wrapping_sub(self.column(self.base)) & (self.columns - 1)
    }

    fn missing_count(&self) -> usize {
        let used = self.limits.span + self.limits.equations + 1 - self.free_rows.len();
        self.count + self.equations.len() - used
    }

    /// The symbols that the last packet made known, in order, without the symbol of that packet itself.
    #[must_use]
    pub fn recovered(&self) -> &[SymbolId] {
        &self.recovered
    }

    /// Empties [`Self::recovered`], after a symbol that this decoder did not get.
    pub fn clear_recovered(&mut self) {
        self.recovered.clear();
    }

    /// A symbol that is known and kept. A recovered one may be longer than it was sent, by zeros.
    #[must_use]
    pub fn symbol(&self, id: SymbolId) -> Option<&R::Symbol> {
        let offset = id.since(self.base)? as usize;
        let row = self.known[self.column(id)].filter(|_| offset < self.count)?;
        Some(self.rows.get(row))
    }

    /// The id behind the newest one, and that of the oldest symbol that is kept.
    #[must_use]
    pub fn span(&self) -> std::ops::Range<SymbolId> {
        self.base..self.base.plus(self.count as u32)
    }

    /// The missing symbols, oldest first.
    pub fn missing(&self) -> impl Iterator<Item = SymbolId> {
        let ids = (0..self.count).map(|offset| self.base.plus(offset as u32));
        ids.filter(|&id| self.known[self.column(id)].is_none())
    }

    /// Whether a symbol is among [`Self::missing`].
    #[must_use]
    #[inline]
    pub fn is_missing(&self, id: SymbolId) -> bool {
        let is_kept = id.since(self.base).is_some_and(|offset| (offset as usize) < self.count);
        is_kept && self.known[self.column(id)].is_none()
    }

    /// How many more equations could make all missing symbols known.
    #[must_use]
    pub fn deficit(&self) -> usize {
        self.missing_count() - self.equations.len()
    }

    /// The number of symbols that were given up.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
