use super::super::encoder::Encoder;
use super::super::rows::{ByteRows, SizeRows};
use super::super::{Code, Density, WINDOW_MAX};
use super::*;

const LIMITS: Limits = Limits { span: 8, equations: 4, symbol_bytes: 100 };

fn ids(first: u32, count: u32) -> Vec<SymbolId> {
    (0..count).map(|index| SymbolId(first.wrapping_add(index))).collect()
}

/// A sender with the window that a receiver of [`LIMITS`] allows, its symbols, and the receiver.
struct Pair {
    encoder: Encoder<ByteRows>,
    decoder: Decoder<ByteRows>,
}

impl Pair {
    fn new(first: u32) -> Self {
        let first = SymbolId(first);
        Self {
            encoder: Encoder::new(Code::Random, first, 8, 100),
            decoder: Decoder::new(Code::Random, first, LIMITS),
        }
    }

    fn send(&mut self, symbol: &[u8]) -> Arrival {
        let id = self.encoder.push(symbol);
        self.decoder.on_source(id, symbol)
    }

    fn lose(&mut self, symbol: &[u8]) -> SymbolId {
        self.encoder.push(symbol)
    }

    fn repair(&mut self, key: u16) -> Arrival {
        let (id, symbol) = self.encoder.repair(key, Density::FULL).expect("a window");
        self.decoder.on_repair(id, symbol)
    }

    fn bytes(&self, id: SymbolId) -> &[u8] {
        self.decoder.symbol(id).expect("known")
    }
}

/// Given one lost symbol of three, at the repair symbol, expect it to be recovered, with zeros up to the longest one.
#[test]
fn one_lost_symbol_needs_one_repair_symbol() {
    let mut pair = Pair::new(u32::MAX);
    assert_eq!(pair.send(b"alpha"), Arrival::Innovative);
    let lost = pair.lose(b"be");
    assert_eq!(pair.send(b"gamma-ray"), Arrival::Innovative);
    assert_eq!(pair.decoder.missing().collect::<Vec<_>>(), [lost]);
    assert_eq!(pair.decoder.deficit(), 1);
    assert_eq!(pair.repair(7), Arrival::Innovative);
    assert_eq!(pair.decoder.recovered(), [lost]);
    assert_eq!(pair.bytes(lost), b"be\0\0\0\0\0\0\0");
    assert_eq!(pair.repair(8), Arrival::Redundant, "nothing is missing");
    assert!(pair.decoder.recovered().is_empty());
    assert_eq!(pair.decoder.on_source(lost, b"be"), Arrival::Redundant);
}

/// Given two lost symbols, expect nothing at the first equation, both at the second one, in order.
#[test]
fn two_lost_symbols_need_two_equations() {
    let mut pair = Pair::new(3);
    let lost = [pair.lose(b"one"), pair.lose(b"two")];
    assert_eq!(pair.repair(1), Arrival::Innovative);
    assert_eq!((pair.decoder.recovered().len(), pair.decoder.deficit()), (0, 1));
    assert_eq!(pair.repair(1), Arrival::Redundant, "the same equation again");
    assert_eq!(pair.repair(2), Arrival::Innovative);
    assert_eq!(pair.decoder.recovered(), lost);
    assert_eq!((pair.bytes(lost[0]), pair.bytes(lost[1])), (&b"one"[..], &b"two"[..]));
}

/// Given an equation for two symbols, at the late arrival of the pivot, expect the other symbol.
#[test]
fn a_late_source_symbol_completes_an_equation() {
    for late in [0, 1] {
        let mut pair = Pair::new(0);
        let lost = [pair.lose(b"one"), pair.lose(b"two")];
        pair.repair(1);
        let symbols: [&[u8]; 2] = [b"one", b"two"];
        assert_eq!(pair.decoder.on_source(lost[late], symbols[late]), Arrival::Innovative);
        assert_eq!(pair.decoder.recovered(), [lost[1 - late]]);
        assert_eq!(pair.bytes(lost[1 - late]), symbols[1 - late]);
    }
}

/// Given three missing symbols and two equations, at the arrival of the third one, expect the other two.
#[test]
fn an_equation_that_loses_its_pivot_gets_another_one() {
    for late in 0..3 {
        let mut pair = Pair::new(0);
        let symbols: [&[u8]; 3] = [b"one", b"two", b"three"];
        let lost: Vec<_> = symbols.iter().map(|symbol| pair.lose(symbol)).collect();
        pair.repair(1);
        pair.repair(2);
        pair.decoder.on_source(lost[late], symbols[late]);
        let expected: Vec<_> = lost.iter().copied().filter(|&id| id != lost[late]).collect();
        assert_eq!(pair.decoder.recovered(), expected);
        for (&id, symbol) in lost.iter().zip(symbols) {
            assert_eq!(&pair.bytes(id)[..symbol.len()], symbol);
        }
    }
}

/// Given a span of 8, at id 9, expect ids 0 and 1 to be given up: 0 is lost, 1 was known.
#[test]
fn old_symbols_are_given_up() {
    let mut decoder = Decoder::<SizeRows>::new(Code::Random, SymbolId(0), LIMITS);
    decoder.on_source(SymbolId(1), &10);
    assert_eq!(decoder.on_source(SymbolId(9), &10), Arrival::Innovative);
    assert_eq!(decoder.span(), SymbolId(2)..SymbolId(10));
    assert_eq!((decoder.lost(), decoder.missing().count()), (1, 7));
    assert_eq!(decoder.on_source(SymbolId(1), &10), Arrival::Stale);
    assert_eq!(decoder.symbol(SymbolId(1)), None);
    assert_eq!(decoder.symbol(SymbolId(9)), Some(&10));
    let repair = |first, count| RepairId { key: 1, density: Density::FULL, count, first };
    assert_eq!(decoder.on_repair(repair(SymbolId(1), 2), &10), Arrival::Stale, "of symbol 1");
    assert_eq!(decoder.on_repair(repair(SymbolId(2), 2), &10), Arrival::Innovative);
    assert_eq!(decoder.on_repair(repair(SymbolId(0), 2), &10), Arrival::Stale);
}

/// Given an equation for ids 0 and 1, when 0 is given up, expect the equation to go, and another one to serve 1.
#[test]
fn an_equation_goes_with_its_oldest_symbol() {
    let mut decoder = Decoder::<SizeRows>::new(Code::Random, SymbolId(0), LIMITS);
    let repair = |key, first, count| RepairId { key, density: Density::FULL, count, first };
    decoder.on_repair(repair(1, SymbolId(0), 2), &10);
    decoder.on_repair(repair(2, SymbolId(1), 2), &10);
    assert_eq!(decoder.deficit(), 1);
    decoder.on_source(SymbolId(8), &10);
    assert_eq!(decoder.deficit(), 6, "ids 1 to 7 miss, one equation is left");
    assert_eq!(decoder.on_source(SymbolId(2), &10), Arrival::Innovative);
    assert_eq!(decoder.recovered(), [SymbolId(1)]);
}

/// Given an id 2^30 ahead, expect all before it to be given up in one step.
#[test]
fn a_jump_empties_the_span() {
    let mut decoder = Decoder::<SizeRows>::new(Code::Random, SymbolId(0), LIMITS);
    let repair = RepairId { key: 1, density: Density::FULL, count: 3, first: SymbolId(0) };
    decoder.on_repair(repair, &10);
    decoder.on_source(SymbolId(5), &10);
    decoder.on_source(SymbolId(1 << 30), &10);
    assert_eq!(decoder.span(), SymbolId((1 << 30) - 7)..SymbolId((1 << 30) + 1));
    assert_eq!((decoder.lost(), decoder.deficit()), ((1 << 30) - 8, 7));
}

#[test]
fn what_exceeds_the_limits_is_refused() {
    let mut decoder = Decoder::<SizeRows>::new(Code::Random, SymbolId(0), LIMITS);
    let repair = |key, count| RepairId { key, density: Density::FULL, count, first: SymbolId(0) };
    assert_eq!(decoder.on_source(SymbolId(0), &101), Arrival::Refused);
    assert_eq!(decoder.on_repair(repair(1, 1), &101), Arrival::Refused);
    assert_eq!(decoder.on_repair(repair(1, 0), &1), Arrival::Refused);
    assert_eq!(decoder.on_repair(repair(1, 9), &1), Arrival::Refused);
    for key in 1..=4 {
        assert_eq!(decoder.on_repair(repair(key, 8), &1), Arrival::Innovative);
    }
    assert_eq!(decoder.deficit(), 4);
}

/// Given four equations for eight missing symbols, which is the limit: at a fifth one, expect the deficit to stay, and at one
/// for the first symbol alone, expect that symbol.
#[test]
fn one_equation_too_many_drops_the_oldest_unless_it_recovers_a_symbol() {
    let mut decoder = Decoder::<SizeRows>::new(Code::Random, SymbolId(0), LIMITS);
    let repair = |key, count| RepairId { key, density: Density::FULL, count, first: SymbolId(0) };
    for key in 1..=5 {
        assert_eq!(decoder.on_repair(repair(key, 8), &1), Arrival::Innovative);
    }
    assert_eq!(decoder.deficit(), 4);
    assert_eq!(decoder.on_repair(repair(6, 1), &1), Arrival::Innovative);
    assert_eq!(decoder.recovered(), [SymbolId(0)]);
    assert_eq!(decoder.deficit(), 3);
}

/// Given the largest window across the wrap of ids, with its first, a middle and its last symbol lost, expect all to be
/// recovered from three repair symbols.
#[test]
fn the_largest_window_across_the_wrap() {
    let first = 0u32.wrapping_sub(2_000);
    let limits = Limits { span: 4_096, equations: 8, symbol_bytes: 4 };
    let mut encoder = Encoder::<ByteRows>::new(Code::Random, SymbolId(first), WINDOW_MAX, 4);
    let mut decoder = Decoder::<ByteRows>::new(Code::Random, SymbolId(first), limits);
    let all = ids(first, u32::from(WINDOW_MAX));
    let lost = [all[0], all[2_000], all[4_094]];
    for &id in &all {
        assert_eq!(encoder.push(&id.0.to_le_bytes()), id);
        if !lost.contains(&id) {
            decoder.on_source(id, &id.0.to_le_bytes());
        }
    }
    for key in 0..3 {
        let (id, symbol) = encoder.repair(key, Density::FULL).expect("a window");
        assert_eq!(decoder.on_repair(id, symbol), Arrival::Innovative);
    }
    assert_eq!(decoder.recovered(), lost);
    for id in lost {
        assert_eq!(decoder.symbol(id), Some(&id.0.to_le_bytes()[..]));
    }
}
