//! Vector registers of x86-64. With GFNI a product is one instruction, by a matrix for the polynomial of this field
//! (its own multiplication has 0x11B). Otherwise it is two shuffles, of products of low and of high nibbles.

#![expect(unsafe_code, reason = "vector instructions of a SIMD kernel")]

use std::arch::x86_64::*;

use super::lanes::{self, Block, Lanes};
use crate::field::{MATRICES, NIBBLE_PRODUCTS};

/// The three operands' XOR, as the truth table of VPTERNLOG.
const XOR_OF_THREE: i32 = 0x96;

#[derive(Clone, Copy)]
struct Gfni512(__m512i);

impl Lanes for Gfni512 {
    const BYTES: usize = 64;
    type Factor = __m512i;
    type Operand = __m512i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller has AVX-512 and 64 readable bytes.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller has AVX-512 and 64 writable bytes.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn factor(element: u8) -> __m512i {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_set1_epi64(MATRICES[usize::from(element)].cast_signed()) }
    }

    #[inline(always)]
    unsafe fn operand(self) -> __m512i {
        self.0
    }

    #[inline(always)]
    unsafe fn product(operand: __m512i, factor: __m512i) -> Self {
        // SAFETY: the caller has AVX-512 and GFNI.
        Self(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(operand, factor) })
    }

    #[inline(always)]
    unsafe fn sum(self, second: Self, third: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_ternarylogic_epi64::<XOR_OF_THREE>(self.0, second.0, third.0) })
    }
}

#[derive(Clone, Copy)]
struct Gfni256(__m256i);

impl Lanes for Gfni256 {
    const BYTES: usize = 32;
    type Factor = __m256i;
    type Operand = __m256i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller has AVX and 32 readable bytes.
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller has AVX and 32 writable bytes.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has AVX.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn factor(element: u8) -> __m256i {
        // SAFETY: the caller has AVX.
        unsafe { _mm256_set1_epi64x(MATRICES[usize::from(element)].cast_signed()) }
    }

    #[inline(always)]
    unsafe fn operand(self) -> __m256i {
        self.0
    }

    #[inline(always)]
    unsafe fn product(operand: __m256i, factor: __m256i) -> Self {
        // SAFETY: the caller has AVX and GFNI.
        Self(unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(operand, factor) })
    }

    #[inline(always)]
    unsafe fn sum(self, second: Self, third: Self) -> Self {
        // SAFETY: the caller has AVX2.
        Self(unsafe { _mm256_xor_si256(self.0, _mm256_xor_si256(second.0, third.0)) })
    }
}

#[derive(Clone, Copy)]
struct Avx2(__m256i);

impl Lanes for Avx2 {
    const BYTES: usize = 32;
    /// The products of low nibbles and of high nibbles, in both halves.
    type Factor = [__m256i; 2];
    /// Low nibbles and high nibbles.
    type Operand = [__m256i; 2];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller has AVX and 32 readable bytes.
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller has AVX and 32 writable bytes.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has AVX.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn factor(element: u8) -> [__m256i; 2] {
        let table = NIBBLE_PRODUCTS[usize::from(element)].as_ptr();
        // SAFETY: the caller has AVX2, and a table has 32 bytes.
        unsafe {
            let low = _mm_loadu_si128(table.cast());
            let high = _mm_loadu_si128(table.add(16).cast());
            [_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high)]
        }
    }

    #[inline(always)]
    unsafe fn operand(self) -> [__m256i; 2] {
        // SAFETY: the caller has AVX2.
        unsafe {
            let mask = _mm256_set1_epi8(0x0F);
            let high = _mm256_srli_epi64::<4>(self.0);
            [_mm256_and_si256(self.0, mask), _mm256_and_si256(high, mask)]
        }
    }

    #[inline(always)]
    unsafe fn product([low, high]: [__m256i; 2], factor: [__m256i; 2]) -> Self {
        // SAFETY: the caller has AVX2.
        Self(unsafe {
            let low = _mm256_shuffle_epi8(factor[0], low);
            _mm256_xor_si256(low, _mm256_shuffle_epi8(factor[1], high))
        })
    }

    #[inline(always)]
    unsafe fn sum(self, second: Self, third: Self) -> Self {
        // SAFETY: the caller has AVX2.
        Self(unsafe { _mm256_xor_si256(self.0, _mm256_xor_si256(second.0, third.0)) })
    }
}

#[derive(Clone, Copy)]
struct Ssse3(__m128i);

impl Lanes for Ssse3 {
    const BYTES: usize = 16;
    /// The products of low nibbles and of high nibbles.
    type Factor = [__m128i; 2];
    /// Low nibbles and high nibbles.
    type Operand = [__m128i; 2];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller has 16 readable bytes.
        Self(unsafe { _mm_loadu_si128(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller has 16 writable bytes.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: SSE2 is part of x86-64.
        Self(unsafe { _mm_setzero_si128() })
    }

    #[inline(always)]
    unsafe fn factor(element: u8) -> [__m128i; 2] {
        let table = NIBBLE_PRODUCTS[usize::from(element)].as_ptr();
        // SAFETY: a table has 32 bytes.
        unsafe { [_mm_loadu_si128(table.cast()), _mm_loadu_si128(table.add(16).cast())] }
    }

    #[inline(always)]
    unsafe fn operand(self) -> [__m128i; 2] {
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let mask = _mm_set1_epi8(0x0F);
            [_mm_and_si128(self.0, mask), _mm_and_si128(_mm_srli_epi64::<4>(self.0), mask)]
        }
    }

    #[inline(always)]
    unsafe fn product([low, high]: [__m128i; 2], factor: [__m128i; 2]) -> Self {
        // SAFETY: the caller has SSSE3.
        Self(unsafe {
            _mm_xor_si128(_mm_shuffle_epi8(factor[0], low), _mm_shuffle_epi8(factor[1], high))
        })
    }

    #[inline(always)]
    unsafe fn sum(self, second: Self, third: Self) -> Self {
        // SAFETY: SSE2 is part of x86-64.
        Self(unsafe { _mm_xor_si128(self.0, _mm_xor_si128(second.0, third.0)) })
    }
}

/// The two functions of a kernel, compiled for its instruction set.
macro_rules! kernel {
    ($module:ident, $lanes:ident, $features:literal) => {
        pub(super) mod $module {
            use super::{Block, Lanes, lanes};

            pub(crate) const BYTES: usize = super::$lanes::BYTES;

            /// # Safety
            /// As for [`lanes::add_products`].
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn add_products<const R: usize>(block: &Block<'_, R>) {
                // SAFETY: this function has the same conditions.
                unsafe { lanes::add_products::<super::$lanes, R>(block) }
            }

            /// # Safety
            /// The processor has the features, and the row at least `BYTES` bytes.
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn scale(row: &mut [u8], element: u8) {
                // SAFETY: this function has the same conditions.
                unsafe { lanes::scale::<super::$lanes>(row, element) }
            }
        }
    };
}

kernel!(gfni512, Gfni512, "avx512f,avx512bw,gfni");
kernel!(gfni256, Gfni256, "avx2,gfni");
kernel!(avx2, Avx2, "avx2");
kernel!(ssse3, Ssse3, "ssse3");
