//! Framing: how many bits an IP packet of a given size takes on the link.
//!
//! Every link layer here is one formula with other numbers. A packet gets a header and a trailer, is
//! padded to a least size, is cut into cells of which the last is padded, grows by a ratio (bit
//! stuffing, base-band headers, transmission overhead), and is surrounded by what belongs to the
//! line and not to the frame (flags, preamble, gap).

use crate::units::Bits;

/// The numbers of a link layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Bytes that header and trailer of the frame add to the IP packet.
    pub header_bytes: u32,
    /// The least size of packet and header; shorter ones are padded. Zero: no padding.
    pub least_bytes: u32,
    /// Cells, if frames are cut into cells.
    pub cells: Option<Cells>,
    /// Growth of all of the above: numerator and denominator, the bits rounded to the nearest.
    pub expansion: (u64, u64),
    /// Bytes between frames on the line, which do not grow.
    pub outside_bytes: u32,
}

/// Cells of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    /// Bytes of the frame that a cell carries; the last cell is padded.
    pub payload_bytes: u32,
    /// Bytes of a cell on the line.
    pub cell_bytes: u32,
}

impl Framing {
    /// A framing that adds a number of bytes to each packet.
    #[must_use]
    pub const fn overhead(header_bytes: u32) -> Self {
        Self { header_bytes, least_bytes: 0, cells: None, expansion: (1, 1), outside_bytes: 0 }
    }

    /// The bits that an IP packet of `ip_bytes` takes on the link.
    ///
    /// # Panics
    /// If a cell carries nothing or the denominator of the expansion is zero.
    #[must_use]
    pub fn frame(&self, ip_bytes: u32) -> Bits {
        let least = u64::from(self.least_bytes);
        let mut bytes = (u64::from(ip_bytes) + u64::from(self.header_bytes)).max(least);
        if let Some(cells) = self.cells {
            bytes = bytes.div_ceil(cells.payload_bytes.into()) * u64::from(cells.cell_bytes);
        }
        let mut bits = 8 * bytes;
        let (numerator, denominator) = self.expansion;
        if numerator != denominator {
            let product = u128::from(bits) * u128::from(numerator) * 2 + u128::from(denominator);
            bits = u64::try_from(product / (2 * u128::from(denominator))).unwrap_or(u64::MAX);
        }
        Bits(bits + 8 * u64::from(self.outside_bytes))
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
}
