//! The TCP of a host: a connection has two [`Endpoint`]s, each with a [`Sender`] and a
//! [`Receiver`].
//!
//! Internally, bytes have 64-bit [`Position`]s that never wrap; [`Segment`]s carry 32-bit
//! sequence numbers. Loss recovery uses cumulative ACKs (Reno, NewReno) or SACK (RFC 6675 or
//! RACK-TLP, optionally with proportional rate reduction; with undo in
//! [`config::StackVariant::Linux`]). Congestion control is Reno, CUBIC (with or without HyStart++),
//! Hybla, Vegas, Westwood+, or BBR with pacing.
//!
//! [`Position`]: crate::packet::seq::Position
//! [`Segment`]: crate::packet::segment::Segment

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
mod scoreboard;
mod selective;
mod sender;
mod sliding;
#[cfg(test)]
mod tests;
mod totals;
mod undo;

pub use config::Config;
pub use endpoint::{Endpoint, EndpointStats, Readiness, reset_for, time_wait_ack};
pub use exchange::{Ack, Outgoing, SenderCounters};
pub use reassembly::Reassembly;
pub use receiver::Receiver;
pub use rtt::RttEstimator;
pub use sender::Sender;
pub use totals::Totals;
