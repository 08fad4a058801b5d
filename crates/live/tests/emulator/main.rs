//! The emulator with packets as a kernel would send them, without a clock.

mod changes;
mod ecn;
mod hosts;
mod statistics;
