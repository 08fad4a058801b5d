//! The daemon: a privileged part that opens sockets and owns the rules, and a worker without privileges
//! that carries the traffic.
//!
//! The worker reports once a second. Only then does the privileged part renew the rule that holds new
//! connections, so that they pass without the gateway when the worker hangs or either part dies.

mod confine;
mod handover;
mod plan;
mod privileged;
mod supply;
mod worker;

pub use plan::{Leg, Plan, SidePlan};
pub use privileged::{Ended, up};
pub use worker::work;

use serde::{Deserialize, Serialize};

/// What the worker counts, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Connections that are relayed now.
    pub open_connections: u64,
    /// Connections that were relayed.
    pub connections: u64,
    /// Connections that ended with a reset.
    pub resets: u64,
    /// Connections that were reset because there were too many.
    pub over_limit: u64,
    /// Connections that were reset after the idle limit.
    pub idle: u64,
    /// Connections whose servers refused.
    pub refused: u64,
    /// Connections whose servers did not answer.
    pub unanswered: u64,
    /// Connections that passed without the relay.
    pub passed: u64,
    /// Bytes relayed to servers.
    pub to_server_bytes: u64,
    /// Bytes relayed to clients.
    pub to_client_bytes: u64,
}
