//! The engines of bentpipe: everything that decides what happens to a packet, and nothing that
//! performs it. There is no clock, socket, thread or file in this crate. Time arrives as an
//! argument, chance comes from named random streams, and packets leave through a context that the
//! caller owns, so the same engines run in virtual time, in real time and in a replay.
//!
//! The contract is [`engine::Engine`]: two verbs (`input`, `wake`) and one question (`next_wake`).
//! [`graph::Graph`] wires engines together and is the only event loop. [`conformance`] holds the
//! checks that every engine must pass.

pub mod aggregation;
mod call_counter;
pub mod conformance;
pub mod engine;
pub mod graph;
pub mod link;
pub mod packet;
pub mod profile;
mod ring;
pub mod rng;
pub mod tcp;
pub mod time;
pub mod trace;
pub mod units;
mod wake_queue;
pub mod wire;
mod wires;
