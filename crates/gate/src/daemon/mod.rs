//! The daemon: a privileged part that opens sockets and owns the rules, and a worker without privileges
//! that carries the traffic.
//!
//! There is one worker, or several, each with some of the connections. They report once a second. Only when all have
//! reported does the privileged part renew the rule that holds new connections, so that they pass without the gateway
//! when a worker hangs or any part dies. It answers with the sum of the reports, from which a worker knows that the
//! rule holds connections: a SYN that passed must not be answered, too.

mod confine;
mod handover;
mod memory;
mod metrics;
mod metrics_server;
mod plan;
mod privileged;
mod report;
mod supply;
mod worker;

pub use metrics_server::Request as MetricsRequest;
pub use plan::{Leg, Plan, SidePlan, Start};
pub use privileged::{Ended, check, remove, up};
pub use report::Report;
pub use supply::Request as SocketRequest;
pub use worker::work;
