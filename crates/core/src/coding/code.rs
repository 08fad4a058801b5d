//! The codes: how the coefficients of a repair symbol follow from its header.

use bentpipe_gf::field;

use super::coefficients::coefficients;
use super::id::{RepairId, WINDOW_MAX};

/// The elements of the field: the most symbols, source and repair, of a Reed-Solomon block.
const ELEMENTS: usize = 256;

/// A code. Sender and receiver use the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The random linear code of RFC 8681, for windows that slide.
    Random,
    /// A Reed-Solomon code, for comparison: the window is a block, whose symbols the sender releases together, and the key is the
    /// number of the repair symbol in its block. Any `n` repair symbols of a block recover any `n` lost source symbols. A block has
    /// at most 256 symbols, source and repair. The density is not used.
    ///
    /// The coefficient of source symbol `i` in repair symbol `j` is `1 / (i + x)`, `x = 255 - j`: a Cauchy matrix, whose square
    /// submatrices all have full rank (Blömer et al., An XOR-Based Erasure-Resilient Coding Scheme, ICSI TR-95-048, 1995).
    ReedSolomon,
}

impl Code {
    /// The largest window.
    #[must_use]
    pub const fn window_max(self) -> u16 {
        match self {
            Self::Random => WINDOW_MAX,
            Self::ReedSolomon => ELEMENTS as u16 - 1,
        }
    }

    /// Writes the coefficients of a repair symbol, oldest source symbol first, into as many bytes as its window has symbols. Returns
    /// whether the code has such a symbol.
    #[must_use]
    pub fn coefficients(self, id: RepairId, result: &mut [u8]) -> bool {
        match self {
            Self::Random => coefficients(id.key, id.density, result),
            Self::ReedSolomon => {
                if usize::from(id.key) + result.len() >= ELEMENTS {
                    return false;
                }
                let point = u8::MAX - id.key as u8;
                for (coefficient, index) in result.iter_mut().zip(0..) {
                    let inverse = field::inverse(point ^ index);
                    *coefficient = inverse.expect("all indices are below the point");
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ByteRows, Decoder, Density, Encoder, Limits, SymbolId};
    use super::*;

    const LIMITS: Limits = Limits { span: 256, equations: 64, symbol_bytes: 40 };

    /// The points of the repair symbols 0, 1, 2 are 255, 254, 253. Their sums (XOR) with 0, 1, 2 are below.
    #[test]
    fn coefficients_by_hand() {
        let id = |key| RepairId { key, density: Density::FULL, count: 3, first: SymbolId(0) };
        let mut result = [0; 3];
        for (key, sums) in [(0, [255, 254, 253]), (1, [254, 255, 252]), (2, [253, 252, 255])] {
            assert!(Code::ReedSolomon.coefficients(id(key), &mut result));
            for (coefficient, sum) in result.into_iter().zip(sums) {
                assert_eq!(field::multiply(coefficient, sum), 1);
            }
        }
        assert!(Code::ReedSolomon.coefficients(id(252), &mut result), "the last of 256 symbols");
        assert!(!Code::ReedSolomon.coefficients(id(253), &mut result), "one more");
    }

    #[test]
    fn all_coefficients_of_all_blocks_are_units() {
        let mut result = [0; 255];
        for count in 1..=255 {
            for key in 0..=255 - count {
                let id = RepairId { key, density: Density::FULL, count, first: SymbolId(0) };
                let result = &mut result[..usize::from(count)];
                assert!(Code::ReedSolomon.coefficients(id, result));
                assert!(!result.contains(&0), "{count} {key}");
            }
        }
    }

    /// Given every choice of three lost symbols of a block of eight and of three of its five repair symbols, expect all three to be
    /// recovered: a random code fails in one of 255 cases.
    #[test]
    fn any_three_repair_symbols_recover_any_three_lost_ones() {
        let triples = |count: u32| {
            let masks = (0u32..1 << count).filter(|mask| mask.count_ones() == 3);
            masks.map(move |mask| (0..count).filter(|bit| mask >> bit & 1 == 1).collect::<Vec<_>>())
        };
        let first = SymbolId(u32::MAX - 3);
        let mut encoder = Encoder::<ByteRows>::new(Code::ReedSolomon, first, 8, 40);
        for number in 0..8 {
            encoder.push(&[number * 29 + 1; 40]);
        }
        for lost in triples(8) {
            for repairs in triples(5) {
                let mut decoder = Decoder::<ByteRows>::new(Code::ReedSolomon, first, LIMITS);
                for number in (0..8).filter(|number| !lost.contains(number)) {
                    decoder.on_source(first.plus(number), &[number as u8 * 29 + 1; 40]);
                }
                for key in repairs {
                    let repair = encoder.repair(key as u16, Density::FULL);
                    let (id, symbol) = repair.expect("13 symbols of 256");
                    decoder.on_repair(id, symbol);
                }
                assert_eq!(decoder.deficit(), 0, "{lost:?}");
                for &number in &lost {
                    let symbol = decoder.symbol(first.plus(number));
                    assert_eq!(symbol, Some(&[number as u8 * 29 + 1; 40][..]));
                }
            }
        }
    }

    /// Given blocks of ten with one repair symbol each, and two lost symbols of the first one, expect the second block's repair symbol
    /// not to help: a sliding window would.
    #[test]
    fn blocks_are_independent() {
        for (code, deficit) in [(Code::ReedSolomon, 1), (Code::Random, 0)] {
            let mut encoder = Encoder::<ByteRows>::new(code, SymbolId(0), 20, 40);
            let mut decoder = Decoder::<ByteRows>::new(code, SymbolId(0), LIMITS);
            for block in 0..2 {
                if code == Code::ReedSolomon {
                    encoder.release_before(SymbolId(10 * block));
                }
                for number in 0..10u8 {
                    let id = encoder.push(&[number; 40]);
                    if block == 1 || number > 1 {
                        decoder.on_source(id, &[number; 40]);
                    }
                }
                // Another key for each block, as a sliding window needs it.
                let (id, symbol) = encoder.repair(block as u16, Density::FULL).expect("a block");
                decoder.on_repair(id, symbol);
            }
            assert_eq!(decoder.deficit(), deficit, "{code:?}");
        }
    }

    #[test]
    fn a_repair_symbol_beyond_the_block_is_refused() {
        let mut encoder = Encoder::<ByteRows>::new(Code::ReedSolomon, SymbolId(0), 255, 40);
        (0..255).for_each(|_| {
            encoder.push(&[1; 40]);
        });
        assert!(encoder.repair(0, Density::FULL).is_some());
        assert!(encoder.repair(1, Density::FULL).is_none());
        let id = RepairId { key: 1, density: Density::FULL, count: 255, first: SymbolId(0) };
        let mut decoder = Decoder::<ByteRows>::new(Code::ReedSolomon, SymbolId(0), LIMITS);
        assert_eq!(decoder.on_repair(id, &[1; 40]), super::super::Arrival::Refused);
    }
}
