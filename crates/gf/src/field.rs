//! The field GF(2^8) modulo 0x11D: a byte is a polynomial over GF(2), bit n the coefficient of x^n. Addition is
//! XOR.

/// x^8 + x^4 + x^3 + x^2 + 1, without x^8. It is primitive: the powers of x (the byte 2) are all 255 elements
/// other than zero.
const REDUCTION: u8 = 0x1D;
/// The number of elements other than zero.
const UNITS: usize = 255;

/// Twice the powers of 2, so that the sum of two logarithms needs no remainder.
const POWERS: [u8; 2 * UNITS] = powers();
/// The logarithm to the base 2 of each element; that of zero is unused.
const LOGARITHMS: [u8; 256] = logarithms();
/// The products of each element with all others, for loops over bytes.
pub(crate) static PRODUCTS: [[u8; 256]; 256] = products();
/// The products of each element with the 16 values of a low nibble, and with those of a high one, for byte
/// shuffles of 16 entries.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", test))]
pub(crate) static NIBBLE_PRODUCTS: [[u8; 32]; 256] = nibble_products();
/// Multiplication by each element as an 8x8 matrix over GF(2), in the layout of the x86 instruction
/// GF2P8AFFINEQB: byte 7 - n has the bits of the operand whose sum is bit n of the product.
#[cfg(any(target_arch = "x86_64", test))]
pub(crate) static MATRICES: [u64; 256] = matrices();

/// The product of two elements.
#[must_use]
pub const fn multiply(left: u8, right: u8) -> u8 {
    if left == 0 || right == 0 {
        return 0;
    }
    POWERS[LOGARITHMS[left as usize] as usize + LOGARITHMS[right as usize] as usize]
}

/// The inverse of an element; `None` for zero.
#[must_use]
pub const fn inverse(element: u8) -> Option<u8> {
    if element == 0 {
        return None;
    }
    Some(POWERS[UNITS - LOGARITHMS[element as usize] as usize])
}

/// The sum of the products of the elements of two rows of equal length.
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn dot(left: &[u8], right: &[u8]) -> u8 {
    assert_eq!(left.len(), right.len(), "one factor for each element");
    left.iter().zip(right).fold(0, |sum, (&left, &right)| sum ^ multiply(left, right))
}

const fn double(element: u8) -> u8 {
    element << 1 ^ if element & 0x80 == 0 { 0 } else { REDUCTION }
}

const fn powers() -> [u8; 2 * UNITS] {
    let mut table = [1; 2 * UNITS];
    let mut index = 1;
    while index < table.len() {
        table[index] = double(table[index - 1]);
        index += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < UNITS {
        table[POWERS[index] as usize] = index as u8;
        index += 1;
    }
    table
}

const fn products() -> [[u8; 256]; 256] {
    let mut table = [[0; 256]; 256];
    let mut left = 1;
    while left < 256 {
        let mut right = 1;
        while right < 256 {
            table[left][right] = multiply(left as u8, right as u8);
            right += 1;
        }
        left += 1;
    }
    table
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", test))]
const fn nibble_products() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut element = 0;
    while element < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[element][nibble] = multiply(element as u8, nibble as u8);
            table[element][16 + nibble] = multiply(element as u8, (nibble as u8) << 4);
            nibble += 1;
        }
        element += 1;
    }
    table
}

#[cfg(any(target_arch = "x86_64", test))]
const fn matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut element = 0;
    while element < 256 {
        let mut bit = 0;
        while bit < 8 {
            // The product with x^bit has the output bits that this bit of the operand contributes to.
            let column = multiply(element as u8, 1 << bit);
            let mut output = 0;
            while output < 8 {
                let is_set = (column >> output & 1) as u64;
                table[element] |= is_set << (8 * (7 - output) + bit);
                output += 1;
            }
            bit += 1;
        }
        element += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication of polynomials, bit by bit: x^8 is replaced by the other terms of 0x11D.
    fn long_product(left: u8, right: u8) -> u8 {
        let mut wide = (0..8).fold(0u16, |sum, bit| {
            sum ^ if right >> bit & 1 == 1 { u16::from(left) << bit } else { 0 }
        });
        for bit in (8..15).rev() {
            if wide >> bit & 1 == 1 {
                wide ^= 0x11D << (bit - 8);
            }
        }
        u8::try_from(wide).expect("reduced")
    }

    fn all_pairs() -> impl Iterator<Item = (u8, u8)> {
        (0..=255).flat_map(|left| (0..=255).map(move |right| (left, right)))
    }

    #[test]
    fn products_are_those_of_polynomials() {
        for (left, right) in all_pairs() {
            let product = long_product(left, right);
            assert_eq!(multiply(left, right), product, "{left} {right}");
            assert_eq!(PRODUCTS[usize::from(left)][usize::from(right)], product);
            let nibbles = &NIBBLE_PRODUCTS[usize::from(left)];
            let sum = nibbles[usize::from(right & 15)] ^ nibbles[usize::from(16 + (right >> 4))];
            assert_eq!(sum, product, "{left} {right}");
        }
    }

    /// The definition of GF2P8AFFINEQB in Intel's manual: bit n is the parity of byte 7 - n of the matrix and
    /// the operand.
    #[test]
    fn matrices_multiply() {
        for (left, right) in all_pairs() {
            let rows = MATRICES[usize::from(left)].to_le_bytes();
            let product = (0..8).fold(0, |sum, bit| {
                sum | u8::from((rows[7 - bit] & right).count_ones() % 2 == 1) << bit
            });
            assert_eq!(product, multiply(left, right), "{left} {right}");
        }
    }

    /// 2 * 0x8E: the top bit of 0x8E = 142 moves to x^8 = 0x1D, and 0x1C ^ 0x1D = 1.
    #[test]
    fn inverses_by_hand_and_of_all_elements() {
        assert_eq!(inverse(0), None);
        assert_eq!(inverse(1), Some(1));
        assert_eq!(inverse(2), Some(0x8E));
        for element in 1..=255 {
            assert_eq!(inverse(element).map(|inverse| multiply(element, inverse)), Some(1));
        }
    }

    /// 2 * 3 = 6, 4 * 0x80 = x^9 = 2 * 0x1D = 0x3A; their sum is 0x3C.
    #[test]
    fn a_dot_product_by_hand() {
        assert_eq!(dot(&[2, 4, 0], &[3, 0x80, 9]), 0x3C);
        assert_eq!(dot(&[], &[]), 0);
    }
}
