//! Arithmetic of GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D, as in RFC 8681, section 3.7.2),
//! on single elements and on rows of bytes.
//!
//! [`field`] has the tables and the operations on elements. [`Kernel`] adds multiples of many rows to several
//! other rows at once, with the vector instructions that the processor has. All kernels give the same bytes.
//! [`Row`] is memory for a row that begins on a cache line.

pub mod field;
mod kernel;
mod row;

pub use kernel::{Kernel, Sum};
pub use row::Row;
