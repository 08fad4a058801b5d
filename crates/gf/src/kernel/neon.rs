//! Vector registers of AArch64: a product is two table look-ups, of products of low and of high nibbles.

#![expect(unsafe_code, reason = "vector instructions of a SIMD kernel")]

use std::arch::aarch64::*;

use super::lanes::{self, Block, Lanes};
use crate::field::NIBBLE_PRODUCTS;

pub(super) const BYTES: usize = 16;

#[derive(Clone, Copy)]
struct Neon(uint8x16_t);

impl Lanes for Neon {
    const BYTES: usize = BYTES;
    /// The products of low nibbles and of high nibbles.
    type Factor = [uint8x16_t; 2];
    /// Low nibbles and high nibbles.
    type Operand = [uint8x16_t; 2];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller has NEON and 16 readable bytes.
        Self(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller has NEON and 16 writable bytes.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has NEON.
        Self(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn factor(element: u8) -> [uint8x16_t; 2] {
        let table = NIBBLE_PRODUCTS[usize::from(element)].as_ptr();
        // SAFETY: the caller has NEON, and a table has 32 bytes.
        unsafe { [vld1q_u8(table), vld1q_u8(table.add(16))] }
    }

    #[inline(always)]
    unsafe fn operand(self) -> [uint8x16_t; 2] {
        // SAFETY: the caller has NEON.
        unsafe { [vandq_u8(self.0, vdupq_n_u8(0x0F)), vshrq_n_u8::<4>(self.0)] }
    }

    #[inline(always)]
    unsafe fn product([low, high]: [uint8x16_t; 2], factor: [uint8x16_t; 2]) -> Self {
        // SAFETY: the caller has NEON.
        Self(unsafe { veorq_u8(vqtbl1q_u8(factor[0], low), vqtbl1q_u8(factor[1], high)) })
    }

    #[inline(always)]
    unsafe fn sum(self, second: Self, third: Self) -> Self {
        // SAFETY: the caller has NEON.
        Self(unsafe { veorq_u8(self.0, veorq_u8(second.0, third.0)) })
    }
}

/// # Safety
/// As for [`lanes::add_products`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn add_products<const R: usize>(block: &Block<'_, R>) {
    // SAFETY: this function has the same conditions.
    unsafe { lanes::add_products::<Neon, R>(block) }
}

/// # Safety
/// The processor has NEON, and the row at least `BYTES` bytes.
#[target_feature(enable = "neon")]
pub(super) unsafe fn scale(row: &mut [u8], element: u8) {
    // SAFETY: this function has the same conditions.
    unsafe { lanes::scale::<Neon>(row, element) }
}
