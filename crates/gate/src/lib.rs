//! Gateway functions that carry other people's traffic.
//!
//! The split-TCP PEP (RFC 3135) ends the TCP connection of a client, opens another one to the server,
//! and relays the data between the two. Each of the two connections is a leg.
//!
//! The tunnel carries sealed packets between gateways; so far its sessions, without the data path.

pub mod daemon;
pub mod relay;
mod side;
pub mod transparent;
pub mod tunnel;

pub use side::Side;
