//! Every kernel that this processor supports gives the bytes of the portable one.
//!
//! `BENTPIPE_STRESS` times as many random cases for each kernel; by hand, 50 times.

#![expect(clippy::disallowed_methods, reason = "a test reads its number of cases")]

use bentpipe_gf::field::{dot, multiply};
use bentpipe_gf::{Kernel, Row, Sum};

const CASES: u64 = 20_000;

/// SplitMix64: independent of the arithmetic that is tested.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> usize {
        usize::try_from(self.next() % bound).expect("a small number")
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes);
        bytes
    }
}

fn cases() -> u64 {
    CASES * std::env::var("BENTPIPE_STRESS").map_or(1, |text| text.parse().expect("a number"))
}

/// Rows at any offset from a cache line.
struct Case {
    memory: Vec<u8>,
    bytes: usize,
    offsets: Vec<usize>,
    factors: Vec<Vec<u8>>,
    sums: Vec<Vec<u8>>,
}

impl Case {
    /// Of all lengths up to five vectors of 64 bytes, up to nine sources and eight rows; a factor in four is 0 or 1.
    fn random(random: &mut Random) -> Self {
        let (bytes, sources, rows) = (random.below(330), random.below(10), random.below(9));
        let memory = random.bytes(bytes + 64);
        let offsets = (0..sources).map(|_| random.below(65)).collect();
        let factors = (0..rows).map(|_| {
            let mut factors = random.bytes(sources);
            for factor in &mut factors {
                if random.below(4) == 0 {
                    *factor &= 1;
                }
            }
            factors
        });
        let factors = factors.collect();
        let sums = (0..rows).map(|_| random.bytes(bytes)).collect();
        Self { memory, bytes, offsets, factors, sums }
    }

    fn sources(&self) -> Vec<&[u8]> {
        self.offsets.iter().map(|&offset| &self.memory[offset..offset + self.bytes]).collect()
    }

    fn run(&self, kernel: Kernel) -> Vec<Vec<u8>> {
        let mut rows = self.sums.clone();
        let sums = rows.iter_mut().zip(&self.factors);
        let mut sums: Vec<_> = sums.map(|(row, factors)| Sum { row, factors }).collect();
        kernel.add_products(&mut sums, &self.sources());
        rows
    }
}

#[test]
fn every_kernel_adds_the_products_of_the_portable_one() {
    for kernel in Kernel::supported().filter(|&kernel| kernel != Kernel::PORTABLE) {
        let mut random = Random(1);
        for number in 0..cases() {
            let case = Case::random(&mut random);
            assert_eq!(case.run(kernel), case.run(Kernel::PORTABLE), "{} {number}", kernel.name());
        }
        eprintln!("{}: {} cases", kernel.name(), cases());
    }
}

#[test]
fn every_kernel_scales_as_the_portable_one() {
    for kernel in Kernel::supported() {
        let mut random = Random(2);
        for number in 0..cases() {
            let (bytes, element) = (random.below(330), random.next() as u8);
            let row = random.bytes(bytes);
            let mut scaled = row.clone();
            kernel.scale(&mut scaled, element);
            let expected: Vec<u8> = row.iter().map(|&byte| multiply(byte, element)).collect();
            assert_eq!(scaled, expected, "{} {number}", kernel.name());
        }
    }
}

/// Given random rows, expect each byte of a sum to be the dot product of its factors and its column.
#[test]
fn the_portable_kernel_gives_dot_products() {
    let mut random = Random(3);
    for _ in 0..200 {
        let case = Case::random(&mut random);
        let (sources, sums) = (case.sources(), case.run(Kernel::PORTABLE));
        for ((sum, before), factors) in sums.iter().zip(&case.sums).zip(&case.factors) {
            for column in 0..case.bytes {
                let bytes: Vec<u8> = sources.iter().map(|source| source[column]).collect();
                assert_eq!(sum[column], before[column] ^ dot(factors, &bytes));
            }
        }
    }
}

/// Given the rows of a block of a real tunnel, expect the same from all kernels, for more rows than one pass has.
#[test]
fn whole_lines_of_many_rows() {
    let mut random = Random(4);
    let sources: Vec<Row> = (0..65)
        .map(|_| {
            let mut row = Row::zeros(1_400);
            random.fill(row.bytes_mut());
            row
        })
        .collect();
    let sources: Vec<&[u8]> = sources.iter().map(Row::bytes).collect();
    let factors: Vec<Vec<u8>> = (0..13).map(|_| random.bytes(65)).collect();
    let mut results = Vec::new();
    for kernel in Kernel::supported() {
        let mut rows = vec![Row::zeros(1_400); 13];
        let sums = rows.iter_mut().zip(&factors);
        let mut sums: Vec<_> =
            sums.map(|(row, factors)| Sum { row: row.bytes_mut(), factors }).collect();
        kernel.add_products(&mut sums, &sources);
        results.push(rows.iter().map(|row| row.bytes().to_vec()).collect::<Vec<_>>());
    }
    assert!(results.iter().all(|result| result == &results[0]));
}

#[test]
fn the_fastest_kernel_is_the_first_one_and_the_portable_one_the_last() {
    let names: Vec<_> = Kernel::supported().map(Kernel::name).collect();
    assert_eq!(names.first(), Some(&Kernel::fastest().name()));
    assert_eq!(names.last(), Some(&"portable"));
}

#[test]
#[should_panic(expected = "a factor for each source")]
fn a_missing_factor_is_refused() {
    let mut row = [0; 64];
    Kernel::fastest()
        .add_products(&mut [Sum { row: &mut row, factors: &[1] }], &[&[0; 64], &[0; 64]]);
}

#[test]
#[should_panic(expected = "sources as long as rows")]
fn a_short_source_is_refused() {
    let mut row = [0; 64];
    Kernel::fastest().add_products(&mut [Sum { row: &mut row, factors: &[1] }], &[&[0; 63]]);
}
