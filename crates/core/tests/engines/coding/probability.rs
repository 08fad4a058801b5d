//! How often `n` lost symbols are recovered from `n + d` repair symbols.
//!
//! For a matrix of `n + d` rows and `n` columns with uniform elements of GF(256), P(rank n) is the product of 1 - 256^-i for i from
//! d + 1 to n + d. At full density, coefficients of RFC 8681 are never zero, so the elements are uniform among 255.
//! A matrix has a lower rank if it maps some vector other than zero to zero. For one with w elements other than zero, a row of
//! uniform elements does so with probability 1/256, a row without zeros with 1/256 + 255/256 (-1/255)^w: zero for w = 1, as
//! one symbol is always recovered, 1/255 for w = 2, and then ever closer to 1/256. The expected number of such vectors, up to
//! a factor, is sum over w of C(n, w) 255^(w - 1) times that probability to the power n + d. With n = 10, the terms with small w vanish
//! (w = 2, d = 0: 45 * 255 / 255^10), and it is the same for both kinds of matrices to ten digits: 3.92156862745e-3 for d =
//! 0. P(rank < n) differs from it by less than its square, so the product applies. It does not for n = 1 (no failure
//! instead of 3.9e-3), and for n = 2 it is 0.4 % too small at d = 1.

use bentpipe_core::coding::{
    Arrival, Code, Decoder, Density, Encoder, Limits, RepairId, SizeRows, SymbolId,
};
use bentpipe_core::rng::Rng;

const WINDOW: u16 = 32;
const LOST: usize = 10;
const TRIALS: u32 = 100_000;
const LIMITS: Limits = Limits { span: WINDOW as usize, equations: 16, symbol_bytes: 1 };

/// The first `count` of a random permutation of `0..bound`.
fn choose(rng: &mut Rng, bound: u64, count: usize) -> Vec<u64> {
    let mut chosen = Vec::with_capacity(count);
    while chosen.len() < count {
        let drawn = rng.below(bound);
        if !chosen.contains(&drawn) {
            chosen.push(drawn);
        }
    }
    chosen
}

/// Whether ten random symbols of the window are recovered from `10 + extra` repair symbols with random keys.
fn is_recovered(rng: &mut Rng, extra: usize) -> bool {
    let mut decoder = Decoder::<SizeRows>::new(Code::Random, SymbolId(0), LIMITS);
    let lost = choose(rng, u64::from(WINDOW), LOST);
    for id in (0..u32::from(WINDOW)).filter(|&id| !lost.contains(&u64::from(id))) {
        decoder.on_source(SymbolId(id), &1);
    }
    for key in choose(rng, 1 << 16, LOST + extra) {
        let (key, density) = (key as u16, Density::FULL);
        let id = RepairId { key, density, count: WINDOW, first: SymbolId(0) };
        decoder.on_repair(id, &1);
    }
    decoder.deficit() == 0
}

fn failures(extra: usize) -> usize {
    let mut rng = Rng::stream(17, "coding");
    (0..TRIALS).filter(|_| !is_recovered(&mut rng, extra)).count()
}

/// P = 1 - product = 0.0039215: 392 of 100,000, standard deviation 19.8. 0.5 % of the binomial distribution is below 342 and
/// 0.5 % above 444.
#[test]
fn without_an_extra_symbol_one_of_255_fails() {
    let failures = failures(0);
    assert!((342..=444).contains(&failures), "{failures}");
}

/// P = 1.53e-5: 1.5 of 100,000. 0.5 % of the binomial distribution is above 5.
#[test]
fn with_one_extra_symbol_one_of_65_000_fails() {
    let failures = failures(1);
    assert!(failures <= 5, "{failures}");
}

/// P = 5.98e-8: 0.006 of 100,000. 0.5 % of the binomial distribution is above 1.
#[test]
fn with_two_extra_symbols_one_of_16_million_fails() {
    let failures = failures(2);
    assert!(failures <= 1, "{failures}");
}

/// A generator that is linear over GF(2) would not exceed the rank of its state, here 127 bits. Given more lost symbols than
/// that and three extra repair symbols (P = 2.3e-10 to fail), expect all to be recovered.
#[test]
fn the_generator_does_not_limit_the_rank() {
    let mut rng = Rng::stream(17, "rank");
    for (lost, trials) in [(65, 40), (128, 20), (256, 5)] {
        for _ in 0..trials {
            let limits = Limits { span: 256, equations: 256, symbol_bytes: 1 };
            let mut decoder = Decoder::<SizeRows>::new(Code::Random, SymbolId(0), limits);
            let mut innovative = 0;
            for key in choose(&mut rng, 1 << 16, usize::from(lost) + 3) {
                let (key, density) = (key as u16, Density::FULL);
                let id = RepairId { key, density, count: lost, first: SymbolId(0) };
                innovative += u16::from(decoder.on_repair(id, &1) == Arrival::Innovative);
            }
            assert_eq!((decoder.deficit(), innovative), (0, lost));
        }
    }
}

/// Given 1 % of random loss, a window of 64 and 10 % of repair symbols, expect fewer than 1 in 10,000 symbols to be given
/// up. The window of a symbol is covered by six repair symbols: with 64 symbols and 6.4 repair symbols, 0.7 of 70 packets
/// are lost on average, and more than six, which would be a failure, with a probability of 9e-6 (Poisson).
#[test]
fn random_loss_with_ten_percent_of_repair_symbols() {
    let mut rng = Rng::stream(17, "loss");
    let limits = Limits { span: 128, equations: 64, symbol_bytes: 1 };
    let mut encoder = Encoder::<SizeRows>::new(Code::Random, SymbolId(0), 64, 1);
    let mut decoder = Decoder::<SizeRows>::new(Code::Random, SymbolId(0), limits);
    let sent = 200_000u32;
    for number in 0..sent {
        let id = encoder.push(&1);
        if rng.below(100) > 0 {
            decoder.on_source(id, &1);
        }
        if number % 10 == 9 && rng.below(100) > 0 {
            let (id, symbol) = encoder.repair(number as u16, Density::FULL).expect("a window");
            decoder.on_repair(id, symbol);
        }
    }
    assert!(decoder.lost() < u64::from(sent / 10_000), "{}", decoder.lost());
}
