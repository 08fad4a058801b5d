//! The Internet checksum of IP, TCP and UDP (RFC 1071).

use core::net::IpAddr;

/// A running one's complement sum of 16-bit words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u64);

impl Checksum {
    /// The sum of the TCP or UDP pseudo header: RFC 9293, section 3.1, and RFC 8200, section 8.1. The
    /// two differ only in the order of their fields, which does not change the sum.
    #[must_use]
    pub fn of_pseudo_header(
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        transport_bytes: u32,
    ) -> Self {
        let mut sum = Self::default();
        for address in [source, destination] {
            match address {
                IpAddr::V4(address) => sum.add(&address.octets()),
                IpAddr::V6(address) => sum.add(&address.octets()),
            }
        }
        sum.add(&[0, protocol]);
        sum.add(&transport_bytes.to_be_bytes());
        sum
    }

    /// Adds bytes at an even offset. A last odd byte is padded with zero, so only the last part of a
    /// message may have an odd length.
    pub fn add(&mut self, bytes: &[u8]) {
        // In native byte order and by words of more than 16 bits, which is several times as fast: the
        // sum is byte-swapped on little-endian machines (RFC 1071, section 2).
        let mut words = bytes.chunks_exact(4);
        let sum: u64 = words
            .by_ref()
            .map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]])))
            .sum();
        self.0 += u64::from(u16::from_be(folded(sum)));
        let mut rest = words.remainder().iter().copied();
        while let Some(high) = rest.next() {
            self.0 += u64::from(u16::from_be_bytes([high, rest.next().unwrap_or(0)]));
        }
    }

    /// The value of the checksum field. Over a message with a correct checksum it is zero.
    #[must_use]
    pub fn finish(self) -> u16 {
        !folded(self.0)
    }
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn checksum(bytes: &[u8]) -> u16 {
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum.finish()
    }

    /// RFC 1071, section 3: the sum of 0001 f203 f4f5 f6f7 is ddf2.
    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&bytes), !0xddf2);
    }

    /// The header in Wikipedia's article on the IPv4 header checksum: b861.
    #[test]
    fn a_header_with_its_checksum_sums_to_zero() {
        let mut header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x00, 0x00, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(checksum(&header), 0xb861);
        header[10..12].copy_from_slice(&[0xb8, 0x61]);
        assert_eq!(checksum(&header), 0);
    }

    #[test]
    fn an_odd_byte_is_padded_with_zero() {
        assert_eq!(checksum(&[1, 2, 3]), checksum(&[1, 2, 3, 0]));
        assert_eq!(checksum(&[]), 0xffff);
    }

    proptest! {
        /// Given any bytes, in two parts of which the first is even, expect the sum computed as RFC 1071
        /// defines it: a word and a carry at a time.
        #[test]
        fn any_bytes_have_the_sum_of_rfc_1071(bytes: Vec<u8>, cut: prop::sample::Index) {
            let cut = cut.index(bytes.len() + 1) & !1;
            let mut sum = Checksum::default();
            sum.add(&bytes[..cut]);
            sum.add(&bytes[cut..]);
            let slow = bytes.chunks(2).fold(0_u16, |sum, word| {
                let word = u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]);
                let (sum, carry) = sum.overflowing_add(word);
                sum + u16::from(carry)
            });
            prop_assert_eq!(sum.finish(), !slow);
        }
    }

    /// Given only words ffff, expect the end-around carry to be added until none is left.
    #[test]
    fn end_around_carries_are_added() {
        assert_eq!(checksum(&[0xff; 65_534]), 0);
    }
}
