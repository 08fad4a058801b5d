//! The choice of a kernel, and the checks of lengths that all kernels rely on.

#![expect(unsafe_code, reason = "calls of kernels for features that the processor has")]

mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use lanes::Block;

/// The most destinations of one pass over the sources. With two vectors for each they take 12 registers.
const BLOCK_ROWS: usize = 6;
/// As above for instruction sets of 16 registers, in which a product needs two more.
const NARROW_BLOCK_ROWS: usize = 3;

/// A destination: a row, and the factor of each source that is added to it.
#[derive(Debug)]
pub struct Sum<'a> {
    /// The row that the products are added to.
    pub row: &'a mut [u8],
    /// One factor for each source.
    pub factors: &'a [u8],
}

/// A set of functions for one instruction set, which this processor supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(InstructionSet);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstructionSet {
    #[cfg(target_arch = "x86_64")]
    Gfni512,
    #[cfg(target_arch = "x86_64")]
    Gfni256,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

use InstructionSet::*;

impl InstructionSet {
    /// Fastest first.
    const ALL: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Gfni512,
        #[cfg(target_arch = "x86_64")]
        Gfni256,
        #[cfg(target_arch = "x86_64")]
        Avx2,
        #[cfg(target_arch = "x86_64")]
        Ssse3,
        #[cfg(target_arch = "aarch64")]
        Neon,
        Portable,
    ];

    #[cfg(target_arch = "x86_64")]
    fn is_supported(self) -> bool {
        match self {
            Gfni512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("gfni")
            }
            Gfni256 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"),
            Avx2 => is_x86_feature_detected!("avx2"),
            Ssse3 => is_x86_feature_detected!("ssse3"),
            Portable => true,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_supported(self) -> bool {
        match self {
            Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Portable => true,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_supported(self) -> bool {
        true
    }

    /// Bytes of a vector: shorter rows are left to the portable kernel.
    fn vector_bytes(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Gfni512 => x86::gfni512::BYTES,
            #[cfg(target_arch = "x86_64")]
            Gfni256 => x86::gfni256::BYTES,
            #[cfg(target_arch = "x86_64")]
            Avx2 => x86::avx2::BYTES,
            #[cfg(target_arch = "x86_64")]
            Ssse3 => x86::ssse3::BYTES,
            #[cfg(target_arch = "aarch64")]
            Neon => neon::BYTES,
            Portable => 1,
        }
    }

    fn block_rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Gfni512 => BLOCK_ROWS,
            #[cfg(target_arch = "aarch64")]
            Neon => BLOCK_ROWS,
            _ => NARROW_BLOCK_ROWS,
        }
    }
}

impl Kernel {
    /// The fastest kernel for this processor.
    #[must_use]
    pub fn fastest() -> Self {
        Self::supported().next().unwrap_or(Self::PORTABLE)
    }

    /// The kernel without vector instructions.
    pub const PORTABLE: Self = Self(Portable);

    /// The kernels that this processor supports, fastest first.
    pub fn supported() -> impl Iterator<Item = Self> {
        InstructionSet::ALL.iter().copied().filter(|set| set.is_supported()).map(Self)
    }

    /// The name of the instruction set.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Gfni512 => "GFNI, AVX-512",
            #[cfg(target_arch = "x86_64")]
            Gfni256 => "GFNI, AVX2",
            #[cfg(target_arch = "x86_64")]
            Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Ssse3 => "SSSE3",
            #[cfg(target_arch = "aarch64")]
            Neon => "NEON",
            Portable => "portable",
        }
    }

    /// Adds to each row the sources times its factors. The sources are read once for several rows.
    ///
    /// # Panics
    /// If the rows and the sources are not all of the same length, or if a row does not have one factor for each
    /// source.
    pub fn add_products(self, sums: &mut [Sum<'_>], sources: &[&[u8]]) {
        let Some(bytes) = sums.first().map(|sum| sum.row.len()) else { return };
        assert!(sources.iter().all(|source| source.len() == bytes), "sources as long as rows");
        for sum in &*sums {
            assert_eq!(sum.row.len(), bytes, "rows of equal length");
            assert_eq!(sum.factors.len(), sources.len(), "a factor for each source");
        }
        if bytes < self.0.vector_bytes() || self == Self::PORTABLE {
            for sum in sums {
                for (&factor, source) in sum.factors.iter().zip(sources) {
                    portable::add_product(sum.row, factor, source);
                }
            }
            return;
        }
        for sums in sums.chunks_mut(self.0.block_rows()) {
            // SAFETY: the lengths were checked above and are at least that of a vector.
            unsafe {
                match sums.len() {
                    1 => self.add_block::<1>(sums, sources, bytes),
                    2 => self.add_block::<2>(sums, sources, bytes),
                    3 => self.add_block::<3>(sums, sources, bytes),
                    4 => self.add_block::<4>(sums, sources, bytes),
                    5 => self.add_block::<5>(sums, sources, bytes),
                    _ => self.add_block::<BLOCK_ROWS>(sums, sources, bytes),
                }
            }
        }
    }

    /// # Safety
    /// There are `R` sums. All rows and sources have `bytes` bytes, at least those of a vector; each sum has as many
    /// factors as there are sources.
    unsafe fn add_block<const R: usize>(
        self,
        sums: &mut [Sum<'_>],
        sources: &[&[u8]],
        bytes: usize,
    ) {
        let block: Block<'_, R> = Block {
            destinations: std::array::from_fn(|row| sums[row].row.as_mut_ptr()),
            factors: std::array::from_fn(|row| sums[row].factors),
            sources,
            bytes,
        };
        // SAFETY: a kernel exists only for an instruction set that the processor supports. The block's lengths are the
        // caller's condition, and its destinations come from mutable borrows, so they overlap nothing.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Gfni512 => x86::gfni512::add_products(&block),
                #[cfg(target_arch = "x86_64")]
                Gfni256 => x86::gfni256::add_products(&block),
                #[cfg(target_arch = "x86_64")]
                Avx2 => x86::avx2::add_products(&block),
                #[cfg(target_arch = "x86_64")]
                Ssse3 => x86::ssse3::add_products(&block),
                #[cfg(target_arch = "aarch64")]
                Neon => neon::add_products(&block),
                Portable => {}
            }
        }
    }

    /// Multiplies a row by an element.
    pub fn scale(self, row: &mut [u8], element: u8) {
        if row.len() < self.0.vector_bytes() {
            portable::scale(row, element);
            return;
        }
        // SAFETY: a kernel exists only for an instruction set that the processor supports, and the row is not shorter
        // than its vector.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Gfni512 => x86::gfni512::scale(row, element),
                #[cfg(target_arch = "x86_64")]
                Gfni256 => x86::gfni256::scale(row, element),
                #[cfg(target_arch = "x86_64")]
                Avx2 => x86::avx2::scale(row, element),
                #[cfg(target_arch = "x86_64")]
                Ssse3 => x86::ssse3::scale(row, element),
                #[cfg(target_arch = "aarch64")]
                Neon => neon::scale(row, element),
                Portable => portable::scale(row, element),
            }
        }
    }
}
