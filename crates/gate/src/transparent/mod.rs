//! Connections that pass a gateway, relayed without a change of address: both peers see each other's address and
//! port, and a server that does not answer is not answered for.
//!
//! A SYN from a client is held (the firewall drops it and logs it to the SYN holder). The gateway opens the
//! connection to the server from the client's address. When the server has accepted, the SYN is sent on to the
//! relay's own listener, which answers in the name of the server. A server that refuses is quoted with a reset;
//! one that is silent leaves the client without an answer, as without a gateway.
//!
//! Clients are on the interfaces of either side, the LAN or the link; their servers are on the other.

mod apply;
mod dscp;
mod hold_lease;
mod kernel_parts;
mod matches;
mod rules;
mod selection;
mod shared_admission;
mod sockets;
mod syn;
mod syn_holder;
mod table;

pub use hold_lease::HoldLease;
pub use kernel_parts::{KERNEL_PARTS, KernelPart};
pub use rules::{LEASE, Rules, SYN_BYTES_MAX, SideRules, marks};
pub use selection::Connections;
pub(crate) use selection::ENTRIES_MAX;
pub use sockets::{Direct, LegSettings, Sockets, listener, raw};
pub use syn::{Ends, Syn};
pub use syn_holder::{SynHolder, Taps};
