//! TCP as hosts run it: a connection is two [`Endpoint`]s, each a [`Sender`] and a [`Receiver`].
//!
//! Inside, bytes have [`seq::Position`]s that never wrap; [`Segment`]s carry 32-bit numbers. Loss
//! recovery is by cumulative ACKs (Reno, NewReno) or by SACK (RFC 6675 or RACK-TLP, with or without
//! proportional rate reduction; with undo where Linux is followed); congestion control is Reno or
//! CUBIC, with or without HyStart++, Hybla, or BBR, which paces.

pub mod config;
pub mod congestion;
mod cumulative;
mod endpoint;
mod exchange;
mod pacing;
mod prr;
mod rack;
mod rate;
mod reassembly;
mod receive_buffer;
mod receiver;
mod rtt;
mod rtt_linux;
mod scoreboard;
mod selective;
mod sender;
mod sliding;
#[cfg(test)]
mod tests;
mod undo;

pub use config::Config;
pub use endpoint::{Endpoint, Facts};
pub use exchange::{Ack, Outgoing, SenderCounters};
pub use reassembly::Reassembly;
pub use receiver::Receiver;
pub use rtt::RttEstimator;
pub use sender::Sender;
