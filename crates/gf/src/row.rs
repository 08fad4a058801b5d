//! Memory for rows.

/// Bytes of a cache line, and of the widest vector register.
const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; LINE_BYTES]);

/// A row of bytes that begins on a cache line and has whole ones: no load of a kernel crosses a line, and no kernel has
/// a remainder to handle. An empty row has no memory.
#[derive(Clone, Debug, Default)]
pub struct Row(Box<[Line]>);

impl Row {
    /// A row of zeros of at least `bytes` bytes, rounded up to cache lines.
    #[must_use]
    pub fn zeros(bytes: usize) -> Self {
        Self(vec![Line([0; LINE_BYTES]); bytes.div_ceil(LINE_BYTES)].into_boxed_slice())
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.0.len() * LINE_BYTES;
        #[expect(unsafe_code, reason = "no safe cast from an aligned array to its bytes")]
        // SAFETY: `Line` is `repr(C)` with 64 bytes and an alignment of 64, so a slice of lines has no padding and
        // all its bytes are initialised. The result borrows `self`.
        unsafe {
            std::slice::from_raw_parts(self.0.as_ptr().cast(), bytes)
        }
    }

    /// The bytes, to be changed.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.0.len() * LINE_BYTES;
        #[expect(unsafe_code, reason = "no safe cast from an aligned array to its bytes")]
        // SAFETY: as above, and any byte is valid in a line. The result borrows `self` mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_whole_lines_of_zeros_and_keeps_what_is_written() {
        let mut row = Row::zeros(65);
        assert_eq!(row.bytes(), [0; 128]);
        assert_eq!(row.bytes().as_ptr().align_offset(64), 0);
        row.bytes_mut()[127] = 9;
        assert_eq!(row.bytes()[126..], [0, 9]);
        assert!(Row::default().bytes().is_empty());
        assert!(Row::zeros(0).bytes_mut().is_empty());
    }
}
