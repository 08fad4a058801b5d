//! The kernel without vector instructions: the definition that all others are compared with.

use crate::field::PRODUCTS;

/// Adds a source times a factor to a destination of the same length.
pub(super) fn add_product(destination: &mut [u8], factor: u8, source: &[u8]) {
    let products = &PRODUCTS[usize::from(factor)];
    for (sum, &byte) in destination.iter_mut().zip(source) {
        *sum ^= products[usize::from(byte)];
    }
}

/// Multiplies a row by an element.
pub(super) fn scale(row: &mut [u8], element: u8) {
    let products = &PRODUCTS[usize::from(element)];
    for byte in row {
        *byte = products[usize::from(*byte)];
    }
}
