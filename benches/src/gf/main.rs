//! Measures the kernels of GF(2^8) on one core, beside a copy of the same block and ISA-L where it is installed;
//! prints a table and writes JSON.
//!
//! Usage: `bentpipe-bench-gf OUT.json`. A block has 64 sources of 1,400 bytes, which fit the level-2 cache. Rates are
//! in GB/s of source bytes: sources times rows times bytes, divided by the time. Each is the best of several
//! batches, because other programs can only slow a batch down. The time of the sliding-window code follows. ISA-L encodes the same block in a C program that
//! `cc` compiles; its result must be the same.

use std::hint::black_box;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use bentpipe_core::coding::{ByteRows, Code, Decoder, Density, Encoder, Limits, SymbolId};
use bentpipe_core::rng::fnv1a;
use bentpipe_core::time::Duration;
use bentpipe_gf::{Kernel, Row, Sum};
use bentpipe_sys::clock::Clock;
use serde_json::{Map, Value, json};

const SOURCES: usize = 64;
const BYTES: usize = 1_400;
/// One repair symbol; two; a full pass over the sources; several passes.
const ROWS: [usize; 4] = [1, 2, 6, 20];
const BATCHES: u32 = 400;
/// Shorter than a time slice: some batches are not interrupted, even on a busy machine.
const BATCH: Duration = Duration::from_millis(1);
/// Calls between two readings of the clock.
const CALLS: u32 = 20;
/// Percent of source symbols that are lost, and source symbols of a batch.
const CODEC_LOST: [u32; 3] = [0, 1, 5];
const CODEC_SYMBOLS: u32 = 1_000;
const ISAL: &str = include_str!("isal.c");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [out] = &arguments[..] else {
        eprintln!("usage: bentpipe-bench-gf OUT.json");
        return ExitCode::from(2);
    };
    match measure().and_then(|found| std::fs::write(out, format!("{found:#}\n"))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bentpipe-bench-gf: {error}");
            ExitCode::from(1)
        }
    }
}

fn measure() -> io::Result<Value> {
    let mut terminal = io::stdout();
    let mut table = Map::new();
    writeln!(terminal, "{:>14} {:>9} {:>9} {:>9} {:>9}", "GB/s, rows:", "1", "2", "6", "20")?;
    let sources = sources();
    let isal = compile_isal()?;
    let mut hashes = ROWS.map(|_| None);
    for kernel in Kernel::supported() {
        let rates = ROWS.map(|rows| kernel_rate(kernel, &sources, rows));
        for (hash, (_, found)) in hashes.iter_mut().zip(rates) {
            let expected = *hash.get_or_insert(found);
            if expected != found {
                return Err(io::Error::other(format!("{}: wrong result", kernel.name())));
            }
        }
        print(&mut terminal, &mut table, kernel.name(), rates.map(|(rate, _)| rate))?;
    }
    print(&mut terminal, &mut table, "copy", ROWS.map(|_| copy_rate(&sources)))?;
    if let Some(program) = &isal {
        let mut rates = ROWS.map(|_| 0.0);
        for ((rate, rows), hash) in rates.iter_mut().zip(ROWS).zip(hashes) {
            let (found, its_hash) = isal_rate(program, rows)?;
            if Some(its_hash) != hash {
                return Err(io::Error::other("ISA-L has another result"));
            }
            *rate = found;
        }
        print(&mut terminal, &mut table, "ISA-L", rates)?;
        std::fs::remove_file(program)?;
    } else {
        writeln!(terminal, "ISA-L is not installed (libisal-dev), or there is no C compiler")?;
    }
    let codec = CODEC_LOST.map(|lost| (lost, codec_nanos(lost)));
    for (lost, [sender, receiver]) in codec {
        writeln!(
            terminal,
            "window {SOURCES}, 10 % of repair symbols, {lost} % lost: {sender:.0} ns for a source symbol at the sender, {receiver:.0} ns at the receiver"
        )?;
    }
    Ok(
        json!({ "codec_nanos": codec, "sources": SOURCES, "bytes": BYTES, "rows": ROWS, "gigabytes_per_second": table }),
    )
}

fn print(
    terminal: &mut impl Write,
    table: &mut Map<String, Value>,
    name: &str,
    rates: [f64; ROWS.len()],
) -> io::Result<()> {
    let columns: String = rates.iter().map(|rate| format!(" {rate:>9.1}")).collect();
    writeln!(terminal, "{name:>14}{columns}")?;
    table.insert(name.to_owned(), json!(rates));
    Ok(())
}

/// As in `isal.c`.
fn sources() -> Vec<Row> {
    let row = |source: usize| {
        let mut row = Row::zeros(BYTES);
        for (at, byte) in row.bytes_mut()[..BYTES].iter_mut().enumerate() {
            *byte = (source * 131 + at * 17 + (at >> 8) * 7) as u8;
        }
        row
    };
    (0..SOURCES).map(row).collect()
}

/// GB/s of a kernel, and a hash of the sums.
fn kernel_rate(kernel: Kernel, sources: &[Row], rows: usize) -> (f64, u64) {
    let sources: Vec<&[u8]> = sources.iter().map(|row| &row.bytes()[..BYTES]).collect();
    let factors: Vec<u8> = (0..rows * SOURCES).map(|i| (1 + i * 37 % 255) as u8).collect();
    let mut sums = vec![Row::zeros(BYTES); rows];
    let mut block: Vec<Sum<'_>> = sums
        .iter_mut()
        .zip(factors.chunks(SOURCES))
        .map(|(row, factors)| Sum { row: &mut row.bytes_mut()[..BYTES], factors })
        .collect();
    kernel.add_products(&mut block, &sources);
    let all: Vec<u8> = block.iter().flat_map(|sum| sum.row.iter().copied()).collect();
    let rate = rate(rows * SOURCES * BYTES, || {
        kernel.add_products(black_box(&mut block), black_box(&sources));
    });
    (rate, fnv1a(&all))
}

/// GB/s of a copy of each source to a row of its own.
fn copy_rate(sources: &[Row]) -> f64 {
    let mut copies = vec![Row::zeros(BYTES); sources.len()];
    rate(SOURCES * BYTES, || {
        for (copy, source) in black_box(&mut copies).iter_mut().zip(black_box(sources)) {
            copy.bytes_mut()[..BYTES].copy_from_slice(&source.bytes()[..BYTES]);
        }
    })
}

/// The mean time that sender and receiver take for a source symbol, with one repair symbol for ten of them, if `lost` percent
/// of source symbols are lost. The best of several runs.
fn codec_nanos(lost: u32) -> [f64; 2] {
    let (first, symbol) = (SymbolId(0), [7; BYTES]);
    let limits = Limits { span: 2 * SOURCES, equations: SOURCES, symbol_bytes: BYTES };
    let mut encoder = Encoder::<ByteRows>::new(Code::Random, first, SOURCES as u16, BYTES);
    let mut decoder = Decoder::<ByteRows>::new(Code::Random, first, limits);
    let clock = Clock::start();
    let mut best = [f64::INFINITY; 2];
    for _ in 0..BATCHES {
        let (mut ids, begin) = (Vec::new(), clock.now());
        let mut repairs = Vec::with_capacity(CODEC_SYMBOLS as usize / 10);
        for number in 0..CODEC_SYMBOLS {
            ids.push(encoder.push(black_box(&symbol)));
            if number % 10 == 9 {
                let repair = encoder.repair(number as u16, Density::FULL);
                repairs.extend(repair.map(|(id, symbol)| (id, symbol.to_vec())));
            }
        }
        let middle = clock.now();
        for (number, &id) in (0..CODEC_SYMBOLS).zip(&ids) {
            // 37 is prime to 100, so losses are spread.
            if number * 37 % 100 >= lost {
                decoder.on_source(id, black_box(&symbol));
            }
            if let (9, Some((id, symbol))) = (number % 10, repairs.get(number as usize / 10)) {
                decoder.on_repair(*id, black_box(symbol));
            }
        }
        let times = [middle.saturating_since(begin), clock.now().saturating_since(middle)];
        for (best, time) in best.iter_mut().zip(times) {
            *best = best.min(time.as_secs_f64() * 1e9 / f64::from(CODEC_SYMBOLS));
        }
    }
    assert_eq!(decoder.lost(), 0, "losses below the share of repair symbols, evenly spread");
    best
}

/// The best rate of several batches, for a call that reads this many bytes.
fn rate(bytes: usize, mut call: impl FnMut()) -> f64 {
    let clock = Clock::start();
    let mut best = 0.0f64;
    for _ in 0..BATCHES {
        let (begin, mut calls) = (clock.now(), 0);
        while clock.now().saturating_since(begin) < BATCH {
            (0..CALLS).for_each(|_| call());
            calls += CALLS;
        }
        let seconds = clock.now().saturating_since(begin).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
        let rate = f64::from(calls) * bytes as f64 / seconds / 1e9;
        best = best.max(rate);
    }
    best
}

/// Compiles the C program. `None` without a compiler or the library.
fn compile_isal() -> io::Result<Option<PathBuf>> {
    let program = std::env::temp_dir().join(format!("bp-bench-isal-{}", std::process::id()));
    let compiler = Command::new("cc")
        .args(["-O2", "-x", "c", "-", "-lisal", "-o"])
        .arg(&program)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut compiler) = compiler else { return Ok(None) };
    if let Some(mut input) = compiler.stdin.take() {
        input.write_all(ISAL.as_bytes())?;
    }
    Ok(compiler.wait()?.success().then_some(program))
}

/// GB/s of ISA-L, and a hash of its result.
fn isal_rate(program: &Path, rows: usize) -> io::Result<(f64, u64)> {
    let arguments = [SOURCES, rows, BYTES].map(|number| number.to_string());
    let output = Command::new(program)
        .args(arguments)
        .arg(BATCHES.to_string())
        .arg(BATCH.as_secs_f64().to_string())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words = text.split_once(' ');
    let parsed =
        words.and_then(|(rate, hash)| Some((rate.parse().ok()?, hash.trim().parse().ok()?)));
    parsed.ok_or_else(|| io::Error::other("no result from ISA-L"))
}
