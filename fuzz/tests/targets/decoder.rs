//! Decodes the bytes of a fuzzer into numbers.

/// Takes numbers from the front of some bytes; zeros after their end.
#[derive(Clone, Copy)]
pub(crate) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, fewer at the end.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number<const N: usize>(&mut self) -> u64 {
        self.bytes(N).iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.number::<1>() as u8
    }

    pub(crate) fn u16(&mut self) -> u16 {
        self.number::<2>() as u16
    }

    pub(crate) fn u32(&mut self) -> u32 {
        self.number::<4>() as u32
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.number::<8>()
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// A number below `bound`, which is at most 2^16.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        u64::from(if bound <= 256 { self.u8().into() } else { self.u16() }) % bound
    }

    /// As many small as large numbers: a byte times a power of two up to 2^`exponent_max`.
    pub(crate) fn scaled(&mut self, exponent_max: u64) -> u64 {
        let mantissa = u64::from(self.u8());
        mantissa << self.below(exponent_max + 1)
    }

    pub(crate) fn probability(&mut self) -> f64 {
        f64::from(self.u8()) / 255.0
    }
}
