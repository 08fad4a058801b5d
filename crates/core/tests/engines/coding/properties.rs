//! Any loss, order and duplicates: what is delivered is what was sent, and all that could be computed is delivered.

use bentpipe_core::coding::{
    ByteRows, Code, Decoder, Density, Encoder, Limits, RepairId, SizeRows, SymbolId, coefficients,
};
use bentpipe_gf::field::{inverse, multiply};
use proptest::prelude::*;

const SYMBOL_BYTES: usize = 150;

/// What a sender does, and what becomes of the packet.
#[derive(Clone, Debug)]
struct Step {
    /// The size of a source symbol; `None` sends a repair symbol.
    source: Option<usize>,
    threshold: u8,
    /// Symbols that leave the window before.
    acknowledged: u32,
    /// How many times the packet arrives.
    copies: usize,
    /// How many packets overtake each of them, at most.
    delay: usize,
}

#[derive(Clone, Debug)]
struct Script {
    first: u32,
    window: u16,
    steps: Vec<Step>,
}

fn steps() -> impl Strategy<Value = Script> {
    let source = prop_oneof![2 => (0..=SYMBOL_BYTES).prop_map(Some), 1 => Just(None)];
    let threshold = prop_oneof![Just(15), 0u8..=15];
    let acknowledged = prop_oneof![9 => Just(0), 1 => 0u32..4];
    let copies = prop_oneof![2 => Just(0usize), 4 => Just(1), 1 => Just(2)];
    let delay = prop_oneof![3 => Just(0usize), 1 => 0usize..20];
    let step = (source, threshold, acknowledged, copies, delay).prop_map(
        |(source, threshold, acknowledged, copies, delay)| Step {
            source,
            threshold,
            acknowledged,
            copies,
            delay,
        },
    );
    let first = prop_oneof![Just(0), any::<u32>(), (0u32..60).prop_map(|back| u32::MAX - back)];
    (first, 1u16..20, prop::collection::vec(step, 1..120))
        .prop_map(|(first, window, steps)| Script { first, window, steps })
}

#[derive(Clone, Debug)]
enum Sent {
    Source(SymbolId, Vec<u8>),
    Repair(RepairId, Vec<u8>),
}

/// The source symbols of a script, and the packets in the order in which they arrive.
fn send(script: &Script) -> (Vec<Vec<u8>>, Vec<Sent>) {
    let mut encoder =
        Encoder::<ByteRows>::new(Code::Random, SymbolId(script.first), script.window, SYMBOL_BYTES);
    let (mut symbols, mut arriving) = (Vec::new(), Vec::new());
    for (number, step) in script.steps.iter().enumerate() {
        encoder.release_before(encoder.window().0.plus(step.acknowledged));
        let packet = if let Some(size) = step.source {
            let symbol: Vec<u8> = (0..size).map(|at| (number * 31 + at * 7) as u8).collect();
            let id = encoder.push(&symbol);
            assert_eq!(id, SymbolId(script.first).plus(symbols.len() as u32));
            symbols.push(symbol.clone());
            Sent::Source(id, symbol)
        } else {
            let density = Density::new(step.threshold).expect("a threshold");
            let Some((id, symbol)) = encoder.repair(number as u16, density) else { continue };
            Sent::Repair(id, symbol.to_vec())
        };
        for copy in 0..step.copies {
            arriving.push((number + step.delay * (copy + 1), packet.clone()));
        }
    }
    arriving.sort_by_key(|(time, _)| *time);
    (symbols, arriving.into_iter().map(|(_, packet)| packet).collect())
}

/// The symbols that follow from some packets, by plain Gaussian elimination over all of them.
fn computable(first: u32, count: usize, packets: &[Sent]) -> Vec<bool> {
    let mut rows: Vec<Vec<u8>> = packets
        .iter()
        .map(|packet| {
            let mut row = vec![0; count];
            match packet {
                Sent::Source(id, _) => row[id.0.wrapping_sub(first) as usize] = 1,
                Sent::Repair(id, _) => {
                    let start = id.first.0.wrapping_sub(first) as usize;
                    let end = start + usize::from(id.count);
                    coefficients(id.key, id.density, &mut row[start..end]);
                }
            }
            row
        })
        .collect();
    let mut rank = 0;
    for column in 0..count {
        let Some(pivot) = (rank..rows.len()).find(|&row| rows[row][column] != 0) else { continue };
        rows.swap(rank, pivot);
        let scale = inverse(rows[rank][column]).expect("not zero");
        rows[rank].iter_mut().for_each(|element| *element = multiply(*element, scale));
        let pivot = rows[rank].clone();
        for (index, row) in rows.iter_mut().enumerate() {
            let factor = row[column];
            if index != rank && factor != 0 {
                row.iter_mut().zip(&pivot).for_each(|(e, &p)| *e ^= multiply(p, factor));
            }
        }
        rank += 1;
    }
    let mut known = vec![false; count];
    for row in rows {
        let mut set = (0..count).filter(|&column| row[column] != 0);
        if let (Some(column), None) = (set.next(), set.next()) {
            known[column] = true;
        }
    }
    known
}

/// Whether a symbol was delivered as it was sent, with zeros up to the longest symbol of its equation.
fn is_same(found: &[u8], sent: &[u8]) -> bool {
    found.starts_with(sent) && found[sent.len()..].iter().all(|&byte| byte == 0)
}

/// Gives packets to decoders with and without bytes, which must agree. Returns the former, and which symbols it delivered.
fn receive(script: &Script, symbols: &[Vec<u8>], packets: &[Sent], limits: Limits) -> Vec<bool> {
    let first = SymbolId(script.first);
    let mut real = Decoder::<ByteRows>::new(Code::Random, first, limits);
    let mut simulated = Decoder::<SizeRows>::new(Code::Random, first, limits);
    let mut delivered = vec![false; symbols.len()];
    for packet in packets {
        let (arrival, other) = match packet {
            Sent::Source(id, symbol) => {
                let other = simulated.on_source(*id, &(symbol.len() as u32));
                (real.on_source(*id, symbol), other)
            }
            Sent::Repair(id, symbol) => {
                let other = simulated.on_repair(*id, &(symbol.len() as u32));
                (real.on_repair(*id, symbol), other)
            }
        };
        assert_eq!(arrival, other);
        assert_eq!(real.recovered(), simulated.recovered());
        assert_eq!((real.span(), real.lost()), (simulated.span(), simulated.lost()));
        let mut made_known = real.recovered().to_vec();
        if let (Sent::Source(id, _), bentpipe_core::coding::Arrival::Innovative) = (packet, arrival)
        {
            made_known.push(*id);
        }
        for id in made_known {
            let index = id.since(first).expect("sent") as usize;
            assert!(!std::mem::replace(&mut delivered[index], true), "{id:?} once");
            let found = real.symbol(id).expect("known");
            assert!(is_same(found, &symbols[index]), "{id:?}");
            assert_eq!(simulated.symbol(id), Some(&(found.len() as u32)));
        }
        assert!(real.missing().all(|id| real.symbol(id).is_none()));
        assert!(real.deficit() <= real.missing().count());
    }
    delivered
}

proptest! {
    /// Given a span that keeps all symbols, expect those to be delivered that follow from the packets, at each moment: a
    /// script's beginning is a script, too.
    #[test]
    fn what_can_be_computed_is_delivered(script in steps()) {
        let (symbols, packets) = send(&script);
        let limits = Limits { span: 128, equations: 128, symbol_bytes: SYMBOL_BYTES };
        let delivered = receive(&script, &symbols, &packets, limits);
        prop_assert_eq!(delivered, computable(script.first, symbols.len(), &packets));
    }

    /// Given a span as short as the window and few equations, expect the symbols that are delivered to be those that were sent.
    #[test]
    fn what_is_delivered_was_sent(script in steps(), equations in 1usize..5) {
        let (symbols, packets) = send(&script);
        let span = usize::from(script.window);
        let limits = Limits { span, equations, symbol_bytes: SYMBOL_BYTES };
        let delivered = receive(&script, &symbols, &packets, limits);
        let all = computable(script.first, symbols.len(), &packets);
        prop_assert!(delivered.iter().zip(all).all(|(&delivered, known)| known || !delivered));
    }
}
