//! Erasure coding of packets: a random linear code over a sliding window, as RFC 8681 over GF(2^8).
//!
//! A *symbol* is a row of bytes that is sent in one packet. Source symbols have consecutive ids and are sent unchanged
//! (the code is systematic). A repair symbol is a linear combination of the source symbols of the *window*, the last ones
//! that the receiver may still miss. Its coefficients follow from a key in its header, by the generator TinyMT32 of RFC
//! 8682.
//!
//! - [`Encoder`] keeps the window and makes repair symbols. [`Decoder`] recovers lost source symbols.
//! - [`Code`] has the coefficients: of this code, or of Reed-Solomon blocks for comparison.
//! - [`SymbolRows`] is what symbols consist of: bytes in real time ([`ByteRows`]), only their sizes in a simulation
//!   ([`SizeRows`]). Coefficients, ranks and sizes are the same in both.
//! - [`framing`] puts packets into symbols: several small ones into one, a large one into several.

mod code;
mod coefficients;
mod decoder;
mod encoder;
pub mod framing;
mod id;
mod rows;
mod tinymt32;

pub use code::Code;
pub use coefficients::{Density, coefficients};
pub use decoder::{Arrival, Decoder, Limits};
pub use encoder::Encoder;
pub use id::{RepairId, SymbolId, WINDOW_MAX};
pub use rows::{ByteRows, SizeRows, SymbolRows, Term};
pub use tinymt32::TinyMt32;
