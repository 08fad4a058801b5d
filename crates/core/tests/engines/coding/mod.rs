//! The sliding-window code: encoder and decoder together.

mod probability;
mod properties;
