//! Erasure codes at equal overhead: the symbols that stay lost, and how long the recovered ones take.
//!
//! Usage: `bentpipe-bench-codes OUT.json [SYMBOLS]`
//!
//! A sliding window is compared with Reed-Solomon and RaptorQ (RFC 6330) blocks. Each code sends the same share of repair
//! over the same channel: a symbol of 64 bytes in each unit of time, repair among them. A block's repair follows the block.

use std::process::ExitCode;

use bentpipe_core::coding::{ByteRows, Code, Decoder, Density, Encoder, Limits, SymbolId};
use bentpipe_core::rng::Rng;
use raptorq::{
    EncodingPacket, ObjectTransmissionInformation, SourceBlockDecoder, SourceBlockEncoder,
};
use serde_json::{Value, json};

const SYMBOL_BYTES: usize = 64;
const SYMBOLS: u32 = 200_000;
const SEED: u64 = 1;

/// A channel on which bursts of losses follow each other at random.
#[derive(Clone, Copy)]
struct Losses {
    name: &'static str,
    probability: f64,
    /// The mean length of a burst in symbols.
    burst: f64,
}

const CHANNELS: [Losses; 3] = [
    Losses { name: "1 % random", probability: 0.01, burst: 1.0 / 0.99 },
    Losses { name: "5 % random", probability: 0.05, burst: 1.0 / 0.95 },
    Losses { name: "5 % in bursts of 10", probability: 0.05, burst: 10.0 },
];

struct Channel {
    losses: Losses,
    rng: Rng,
    is_bad: bool,
}

impl Channel {
    fn new(losses: Losses) -> Self {
        Self { losses, rng: Rng::stream(SEED, "codes.losses"), is_bad: false }
    }

    fn loses_next(&mut self) -> bool {
        let Losses { probability, burst, .. } = self.losses;
        let end = 1.0 / burst;
        let begin = probability / (1.0 - probability) * end;
        let draw = self.rng.below(1 << 32) as f64 / (1u64 << 32) as f64;
        self.is_bad = if self.is_bad { draw >= end } else { draw < begin };
        self.is_bad
    }
}

/// Symbols that stayed lost, and the delays of those that were recovered, in units of the time of a symbol.
#[derive(Default)]
struct Outcome {
    sources: u32,
    repairs: u32,
    lost: u32,
    delays: Vec<u32>,
}

impl Outcome {
    fn into_json(mut self) -> Value {
        self.delays.sort_unstable();
        let at = |share: usize| self.delays.get(self.delays.len() * share / 100).copied();
        json!({
            "overhead_percent": 100.0 * f64::from(self.repairs) / f64::from(self.sources),
            "residual_loss": f64::from(self.lost) / f64::from(self.sources),
            "recovered": self.delays.len(),
            "recovery_delay_p50_symbols": at(50),
            "recovery_delay_p95_symbols": at(95),
        })
    }
}

fn symbol(number: u32) -> [u8; SYMBOL_BYTES] {
    let mut rng = Rng::stream(u64::from(number), "codes.symbol");
    std::array::from_fn(|_| rng.below(256) as u8)
}

/// A repair symbol after each `every` source symbols, of the last `window` ones.
fn sliding(losses: Losses, symbols: u32, every: u32, window: u16) -> Outcome {
    let (first, mut channel) = (SymbolId(0), Channel::new(losses));
    let mut encoder = Encoder::<ByteRows>::new(Code::Random, first, window, SYMBOL_BYTES);
    let span = 4 * usize::from(window);
    let limits = Limits { span, equations: span, symbol_bytes: SYMBOL_BYTES };
    let mut decoder = Decoder::<ByteRows>::new(Code::Random, first, limits);
    let (mut outcome, mut time, mut sent_at) = (Outcome::default(), 0, Vec::new());
    let note = |decoder: &Decoder<ByteRows>, outcome: &mut Outcome, sent_at: &[u32], time: u32| {
        for &id in decoder.recovered() {
            assert_eq!(decoder.symbol(id), Some(&symbol(id.0)[..]), "symbol {}", id.0);
            outcome.delays.push(time - sent_at[id.0 as usize]);
        }
    };
    let mut received = 0;
    for number in 0..symbols {
        let source = symbol(number);
        let id = encoder.push(&source);
        sent_at.push(time);
        if !channel.loses_next() {
            received += 1;
            decoder.on_source(id, &source);
            note(&decoder, &mut outcome, &sent_at, time);
        }
        time += 1;
        if (number + 1) % every == 0 {
            outcome.repairs += 1;
            let repair = encoder.repair((outcome.repairs & 0xFFFF) as u16, Density::FULL);
            let (id, symbol) = repair.expect("a window");
            if !channel.loses_next() {
                decoder.on_repair(id, symbol);
                note(&decoder, &mut outcome, &sent_at, time);
            }
            time += 1;
        }
    }
    outcome.sources = symbols;
    outcome.lost = symbols - received - outcome.delays.len() as u32;
    outcome
}

/// Blocks of `sources` symbols, each followed by `repairs`. `decode` gets the numbers of the received source symbols of a
/// block and how many of its repair symbols were received first, and says whether all are recovered.
fn blocks(
    losses: Losses,
    symbols: u32,
    (sources, repairs): (u32, u32),
    mut decode: impl FnMut(u32, &[u32], &[u32]) -> bool,
) -> Outcome {
    let mut channel = Channel::new(losses);
    let mut outcome = Outcome::default();
    for block in 0..symbols / sources {
        let received: Vec<u32> = (0..sources).filter(|_| !channel.loses_next()).collect();
        let mut arrived = Vec::new();
        let mut recovered_at = None;
        for repair in 0..repairs {
            let is_lost = channel.loses_next();
            if is_lost || recovered_at.is_some() || received.len() == sources as usize {
                continue;
            }
            arrived.push(repair);
            let are_enough = received.len() + arrived.len() >= sources as usize;
            if are_enough && decode(block, &received, &arrived) {
                recovered_at = Some(sources + repair);
            }
        }
        let missing = (0..sources).filter(|number| !received.contains(number));
        match recovered_at {
            Some(at) => outcome.delays.extend(missing.map(|number| at - number)),
            None => outcome.lost += sources - received.len() as u32,
        }
        outcome.sources += sources;
        outcome.repairs += repairs;
    }
    outcome
}

fn reed_solomon(losses: Losses, symbols: u32, (sources, repairs): (u32, u32)) -> Outcome {
    let span = sources as usize;
    let limits = Limits { span, equations: repairs as usize, symbol_bytes: SYMBOL_BYTES };
    blocks(losses, symbols, (sources, repairs), |block, received, arrived| {
        let first = SymbolId(block * sources);
        let window = sources as u16;
        let mut encoder = Encoder::<ByteRows>::new(Code::ReedSolomon, first, window, SYMBOL_BYTES);
        let mut decoder = Decoder::<ByteRows>::new(Code::ReedSolomon, first, limits);
        (0..sources).for_each(|number| {
            encoder.push(&symbol(first.0 + number));
        });
        for &number in received {
            decoder.on_source(first.plus(number), &symbol(first.0 + number));
        }
        for &repair in arrived {
            let made = encoder.repair(repair as u16, Density::FULL);
            let (id, symbol) = made.expect("a block of at most 256 symbols");
            decoder.on_repair(id, symbol);
        }
        (0..sources)
            .all(|number| decoder.symbol(first.plus(number)) == Some(&symbol(first.0 + number)[..]))
    })
}

fn raptorq(losses: Losses, symbols: u32, (sources, repairs): (u32, u32)) -> Outcome {
    let bytes = u64::from(sources) * SYMBOL_BYTES as u64;
    let config = ObjectTransmissionInformation::new(bytes, SYMBOL_BYTES as u16, 1, 1, 8);
    blocks(losses, symbols, (sources, repairs), |block, received, arrived| {
        let first = block * sources;
        let data: Vec<u8> = (0..sources).flat_map(|number| symbol(first + number)).collect();
        let encoder = SourceBlockEncoder::new(0, &config, &data);
        let (of_source, of_repair) = (encoder.source_packets(), encoder.repair_packets(0, repairs));
        let of = |packets: &[EncodingPacket], numbers: &[u32]| -> Vec<EncodingPacket> {
            numbers.iter().map(|&number| packets[number as usize].clone()).collect()
        };
        let packets = [of(&of_source, received), of(&of_repair, arrived)].concat();
        let decoded = SourceBlockDecoder::new(0, &config, bytes).decode(packets);
        decoded.is_some_and(|found| {
            assert_eq!(found, data, "block {block}");
            true
        })
    })
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), symbols) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: bentpipe-bench-codes OUT.json [SYMBOLS]");
        return ExitCode::from(2);
    };
    let symbols = match symbols.map_or(Ok(SYMBOLS), |text| text.parse()) {
        Ok(symbols) if symbols >= 1_000 => symbols,
        _ => {
            eprintln!("bentpipe-bench-codes: SYMBOLS must be a number from 1000");
            return ExitCode::from(2);
        }
    };
    let mut rows = Vec::new();
    for losses in CHANNELS {
        for percent in [10, 20] {
            let every = 100 / percent;
            let small = (50, 50 * percent / 100);
            let large = (200, 200 * percent / 100);
            let cases = [
                ("sliding window of 64", sliding(losses, symbols, every, 64)),
                ("sliding window of 256", sliding(losses, symbols, every, 256)),
                ("Reed-Solomon, blocks of 50", reed_solomon(losses, symbols, small)),
                ("Reed-Solomon, blocks of 200", reed_solomon(losses, symbols, large)),
                ("RaptorQ, blocks of 50", raptorq(losses, symbols, small)),
                ("RaptorQ, blocks of 200", raptorq(losses, symbols, large)),
            ];
            for (code, outcome) in cases {
                let row = json!({
                    "losses": losses.name,
                    "overhead_set_percent": percent,
                    "code": code,
                    "outcome": outcome.into_json(),
                });
                eprintln!("{row}");
                rows.push(row);
            }
        }
    }
    let report = json!({ "seed": SEED, "symbols": symbols, "rows": rows });
    match std::fs::write(&path, format!("{report:#}\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bentpipe-bench-codes: cannot write {path}: {error}");
            ExitCode::from(2)
        }
    }
}
