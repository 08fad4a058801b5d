//! The loops that all vector kernels share, over the operations of one instruction set.

#![expect(unsafe_code, reason = "vector instructions and unchecked loads of a SIMD kernel")]
#![expect(clippy::needless_range_loop, reason = "indices are constants after unrolling")]

/// A vector register of one instruction set.
///
/// All functions are unsafe, because the processor must support that set. Only functions that enable it
/// by `target_feature` may call them: they are inlined there.
pub(super) trait Lanes: Copy {
    /// Bytes of the register.
    const BYTES: usize;
    /// An element in the form that multiplies a register.
    type Factor: Copy;
    /// A register in the form that is multiplied.
    type Operand: Copy;

    /// Loads `BYTES` bytes, aligned or not.
    unsafe fn load(from: *const u8) -> Self;
    /// Stores `BYTES` bytes, aligned or not.
    unsafe fn store(self, to: *mut u8);
    unsafe fn zero() -> Self;
    unsafe fn factor(element: u8) -> Self::Factor;
    unsafe fn operand(self) -> Self::Operand;
    unsafe fn product(operand: Self::Operand, factor: Self::Factor) -> Self;
    /// The sum of three registers.
    unsafe fn sum(self, second: Self, third: Self) -> Self;
}

/// Rows and factors of a kernel, with lengths that were checked: each destination has `bytes` bytes and overlaps no other
/// row, each source has `bytes` bytes, and there are as many factors for each destination as sources.
pub(super) struct Block<'a, const R: usize> {
    pub(super) destinations: [*mut u8; R],
    pub(super) factors: [&'a [u8]; R],
    pub(super) sources: &'a [&'a [u8]],
    pub(super) bytes: usize,
}

/// Adds to each destination the sources times its factors. Sums of two vectors for each destination stay in registers
/// while all sources are read.
///
/// # Safety
/// The block is as described there, it has at least `V::BYTES` bytes, and the processor supports `V`.
#[inline(always)]
pub(super) unsafe fn add_products<V: Lanes, const R: usize>(block: &Block<'_, R>) {
    let mut at = 0;
    // SAFETY: each iteration stays within the `bytes` of all rows.
    unsafe {
        while at + 2 * V::BYTES <= block.bytes {
            strip::<V, R, 2>(block, at);
            at += 2 * V::BYTES;
        }
        if at + V::BYTES <= block.bytes {
            strip::<V, R, 1>(block, at);
            at += V::BYTES;
        }
        if at < block.bytes {
            rest::<V, R>(block, at);
        }
    }
}

/// # Safety
/// As for [`add_products`], with `at + C * V::BYTES <= block.bytes`.
#[inline(always)]
unsafe fn strip<V: Lanes, const R: usize, const C: usize>(block: &Block<'_, R>, at: usize) {
    // SAFETY: the columns from `at` are within the destinations, by this function's condition.
    unsafe {
        let mut sums = [[V::zero(); C]; R];
        for row in 0..R {
            for column in 0..C {
                sums[row][column] = V::load(block.destinations[row].add(at + column * V::BYTES));
            }
        }
        let sums = add_sources(sums, block, at);
        for row in 0..R {
            for column in 0..C {
                sums[row][column].store(block.destinations[row].add(at + column * V::BYTES));
            }
        }
    }
}

/// The last bytes from `at`, fewer than a vector: the sums of the last whole vector are computed, and only those of
/// columns that no strip has changed are added.
///
/// # Safety
/// As for [`add_products`], with `at < block.bytes`.
#[inline(always)]
unsafe fn rest<V: Lanes, const R: usize>(block: &Block<'_, R>, at: usize) {
    let start = block.bytes - V::BYTES;
    // SAFETY: a block has at least `V::BYTES` bytes, so `start` is within all rows; `at` is, too. No register has more
    // than 64 bytes.
    unsafe {
        let sums = add_sources([[V::zero(); 1]; R], block, start);
        for (row, [sum]) in sums.into_iter().enumerate() {
            let mut bytes = [0; 64];
            sum.store(bytes.as_mut_ptr());
            let changed =
                std::slice::from_raw_parts_mut(block.destinations[row].add(at), block.bytes - at);
            for (byte, sum) in changed.iter_mut().zip(&bytes[at - start..]) {
                *byte ^= sum;
            }
        }
    }
}

/// Adds the products of all sources to sums of `C` vectors from column `at`. Two sources at a time, for the
/// instruction that adds three registers.
///
/// # Safety
/// As for [`strip`].
#[inline(always)]
unsafe fn add_sources<V: Lanes, const R: usize, const C: usize>(
    mut sums: [[V; C]; R],
    block: &Block<'_, R>,
    at: usize,
) -> [[V; C]; R] {
    let count = block.sources.len();
    // SAFETY: `index` is below the number of sources, which is that of each row's factors.
    unsafe {
        let mut index = 0;
        while index + 1 < count {
            let first = operands::<V, C>(block.sources.get_unchecked(index), at);
            let second = operands::<V, C>(block.sources.get_unchecked(index + 1), at);
            for row in 0..R {
                let factors = block.factors[row];
                let first_factor = V::factor(*factors.get_unchecked(index));
                let second_factor = V::factor(*factors.get_unchecked(index + 1));
                for column in 0..C {
                    sums[row][column] = sums[row][column].sum(
                        V::product(first[column], first_factor),
                        V::product(second[column], second_factor),
                    );
                }
            }
            index += 2;
        }
        if index < count {
            let last = operands::<V, C>(block.sources.get_unchecked(index), at);
            for row in 0..R {
                let factor = V::factor(*block.factors[row].get_unchecked(index));
                for column in 0..C {
                    let product = V::product(last[column], factor);
                    sums[row][column] = sums[row][column].sum(product, V::zero());
                }
            }
        }
    }
    sums
}

/// # Safety
/// `at + C * V::BYTES` is at most the length of the source, and the processor supports `V`.
#[inline(always)]
unsafe fn operands<V: Lanes, const C: usize>(source: &[u8], at: usize) -> [V::Operand; C] {
    // SAFETY: the columns from `at` are within the source, by this function's condition.
    unsafe {
        let start = source.as_ptr().add(at);
        // A closure would not inherit the instruction set of the function that this one is inlined in.
        let mut operands = [V::load(start).operand(); C];
        for column in 1..C {
            operands[column] = V::load(start.add(column * V::BYTES)).operand();
        }
        operands
    }
}

/// Multiplies a row of at least `V::BYTES` bytes by an element, in place.
///
/// # Safety
/// The processor supports `V`.
#[inline(always)]
pub(super) unsafe fn scale<V: Lanes>(row: &mut [u8], element: u8) {
    let last = row.len() - V::BYTES;
    // SAFETY: `at` is at most `last`, so all vectors are within the row.
    unsafe {
        let factor = V::factor(element);
        // Before its bytes are changed: this vector overlaps the one before it.
        let end = V::product(V::load(row.as_ptr().add(last)).operand(), factor);
        for at in (0..last).step_by(V::BYTES) {
            let place = row.as_mut_ptr().add(at);
            V::product(V::load(place).operand(), factor).store(place);
        }
        end.store(row.as_mut_ptr().add(last));
    }
}
