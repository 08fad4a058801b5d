//! TCP as hosts run it.
pub mod segment;
pub mod seq;
pub use segment::{Offer, SackBlocks, Segment, Timestamps};
