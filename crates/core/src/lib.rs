//! The engines of bentpipe: everything that decides what happens to a packet, without I/O.
//!
//! This crate has no clock, socket, thread or file. Time is an argument, random numbers come from
//! named streams, and packets leave through a context that the caller owns. The same engines
//! therefore run in virtual time, in real time and in a replay.
//!
//! [`engine::Engine`] is the contract: `input`, `wake` and `next_wake`. [`graph::Graph`] connects
//! engines and is the only event loop. [`conformance`] holds the checks that every engine must pass.

pub mod aggregation;
mod call_counter;
pub mod coding;
pub mod conformance;
pub mod delays;
pub mod drop_cause;
pub mod drop_counts;
pub mod engine;
pub mod graph;
pub mod header_bytes;
pub mod link;
pub mod packet;
pub mod pep;
pub mod play_out;
pub mod profile;
mod ring;
pub mod rng;
pub mod tcp;
pub mod time;
pub mod token_bucket;
pub mod trace;
pub mod tunnel;
pub mod units;
mod wake_queue;
pub mod wire;
mod wires;
