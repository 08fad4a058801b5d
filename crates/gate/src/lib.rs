//! Gateway functions that carry other people's traffic.
//!
//! The split-TCP PEP (RFC 3135) ends the TCP connection of a client, opens another one to the server,
//! and relays the data between the two. Each of the two connections is a leg.
//!
//! The tunnel carries coded and sealed packets between gateways: its sessions, its data path, and the thread that forwards.

pub mod commands;
pub mod config;
mod counts;
pub mod daemon;
mod heartbeat;
mod icmp;
mod network;
pub mod relay;
pub mod transparent;
pub mod tunnel;

pub use bentpipe_core::pep::Side;
pub use counts::{Count, Counts};
pub use heartbeat::{Heartbeat, HeartbeatMonitor};
pub use network::Network;
