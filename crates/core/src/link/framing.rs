//! Framing: the number of bits of an IP packet on the link.
//!
//! One formula serves all link layers. A packet gets a header and a trailer, is padded to a minimum
//! size, is segmented into cells of which the last is padded, expands by a ratio (bit stuffing,
//! base-band headers, transmission overhead), and is followed by inter-frame bytes (flags, preamble,
//! gap).

use crate::units::Bits;

/// The parameters of a link layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Size of the header and trailer of a frame.
    pub header_bytes: u32,
    /// Minimum size of packet, header and trailer; smaller frames are padded. Zero for no padding.
    pub min_bytes: u32,
    /// The cells, if frames are segmented.
    pub cells: Option<Cells>,
    /// Expansion of all of the above: numerator and denominator; bits are rounded to the nearest.
    pub expansion: (u64, u64),
    /// Bytes between frames, which do not expand.
    pub inter_frame_bytes: u32,
}

/// Fixed-size cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    /// Payload of a cell; the last cell of a frame is padded.
    pub payload_bytes: u32,
    /// Size of a cell.
    pub cell_bytes: u32,
}

impl Framing {
    /// A framing with only a header.
    #[must_use]
    pub const fn overhead(header_bytes: u32) -> Self {
        Self { header_bytes, min_bytes: 0, cells: None, expansion: (1, 1), inter_frame_bytes: 0 }
    }

    /// The size on the link of an IP packet of `ip_bytes`; at most 2^64 - 1 bits.
    ///
    /// # Panics
    /// If the payload of a cell or the denominator of the expansion is zero.
    #[must_use]
    pub fn frame(&self, ip_bytes: u32) -> Bits {
        let min_bytes = u64::from(self.min_bytes);
        let mut bytes = (u64::from(ip_bytes) + u64::from(self.header_bytes)).max(min_bytes);
        if let Some(cells) = self.cells {
            let count = bytes.div_ceil(cells.payload_bytes.into());
            bytes = count.saturating_mul(cells.cell_bytes.into());
        }
        let mut bits = bytes.saturating_mul(8);
        let (numerator, denominator) = self.expansion;
        if numerator != denominator {
            let (numerator, denominator) = (u128::from(numerator), u128::from(denominator));
            let product = u128::from(bits).saturating_mul(2 * numerator);
            let rounded = product.saturating_add(denominator) / (2 * denominator);
            bits = u64::try_from(rounded).unwrap_or(u64::MAX);
        }
        Bits(bits.saturating_add(8 * u64::from(self.inter_frame_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_is_added_to_each_packet() {
        assert_eq!(Framing::overhead(8).frame(1_500), Bits(8 * 1_508));
        assert_eq!(Framing::overhead(0).frame(0), Bits(0));
    }

    /// With 18 bytes of header and trailer, 46 bytes of IP make the minimum frame of 64 bytes.
    #[test]
    fn short_ethernet_frames_are_padded() {
        let ethernet = Framing { min_bytes: 64, ..Framing::overhead(18) };
        let bytes = [0, 40, 46, 47, 1_500].map(|ip| ethernet.frame(ip));
        assert_eq!(bytes, [64, 64, 64, 65, 1_518].map(|bytes| Bits(8 * bytes)));
    }

    /// 8 bytes of preamble and 12 of gap follow the padded frame.
    #[test]
    fn inter_frame_bytes_are_neither_padded_nor_expanded() {
        let line = Framing { min_bytes: 64, inter_frame_bytes: 20, ..Framing::overhead(18) };
        assert_eq!(line.frame(40), Bits(8 * 84));
        let expanded = Framing { expansion: (6, 5), inter_frame_bytes: 1, ..Framing::overhead(0) };
        assert_eq!(expanded.frame(10), Bits(96 + 8));
    }

    /// LLC/SNAP and the AAL5 trailer take 16 bytes; a cell carries 48 in 53. 32 bytes fill a cell
    /// and 33 begin a second; 9,236 / 48 = 192.4; 1,080 / 48 = 22.5.
    #[test]
    fn aal5_fills_whole_cells() {
        let cells = |ip| AAL5.frame(ip).0 / (8 * 53);
        assert_eq!([32, 33, 40, 80, 81].map(cells), [1, 2, 2, 2, 3]);
        assert_eq!(AAL5.frame(9_220), Bits(8 * 10_229));
        assert_eq!(AAL5.frame(1_064), Bits(8 * 1_219));
    }

    /// A cell of 53 bytes becomes 424 * 27 / 26 = 440.3 bits in an STS-3c, two become 880.6.
    #[test]
    fn expansion_is_rounded_once_a_packet_to_the_nearest_bit() {
        let sonet = Framing { expansion: (27, 26), ..AAL5 };
        assert_eq!([32, 33].map(|ip| sonet.frame(ip)), [Bits(440), Bits(881)]);
    }

    /// 8 bits * 17 / 16 = 8.5, and 24 * 17 / 16 = 25.5.
    #[test]
    fn half_a_bit_is_rounded_up() {
        let framing = Framing { expansion: (17, 16), ..Framing::overhead(0) };
        assert_eq!([1, 2, 3].map(|ip| framing.frame(ip)), [Bits(9), Bits(17), Bits(26)]);
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let cells = Some(Cells { payload_bytes: 1, cell_bytes: u32::MAX });
        for (cells, expansion) in [(None, (u64::MAX, 1)), (cells, (1, 1)), (cells, (u64::MAX, 1))] {
            let framing =
                Framing { cells, expansion, inter_frame_bytes: 1, ..Framing::overhead(u32::MAX) };
            assert_eq!(framing.frame(u32::MAX), Bits(u64::MAX));
        }
    }

    const AAL5: Framing = Framing {
        cells: Some(Cells { payload_bytes: 48, cell_bytes: 53 }),
        ..Framing::overhead(16)
    };
}
