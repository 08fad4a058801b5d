//! The daemon: a privileged part that opens sockets and owns the rules, and workers without privileges
//! that carry the traffic.
//!
//! The PEP has one worker, or several, each with some of the connections; the tunnel has one. They report more than
//! once a second, as long as their threads that carry traffic go on. Only when all have reported does the privileged part
//! renew the rule that holds new connections, so that they pass without the gateway when a thread hangs or any part dies.
//! It answers with the sum of the reports, from which a worker knows that the rule holds connections: a SYN that passed
//! must not be answered, too. A worker that has ended or hangs is replaced alone (`function_workers.rs`).

mod confine;
mod control;
mod function;
mod function_workers;
mod handover;
mod leftovers;
mod log;
mod memory;
mod metrics;
mod metrics_server;
mod metrics_text;
mod pep_function;
mod pep_plan;
mod pep_sockets;
mod pep_worker;
mod plan;
mod plan_checks;
mod privileged;
mod report;
mod reporting;
mod service_manager;
mod socket_broker;
mod supervisor;
mod tunnel_device;
mod tunnel_function;
mod tunnel_metrics;
mod tunnel_plan;
mod tunnel_report;
mod tunnel_worker;
mod unreachable_routes;
mod usage;
mod worker;
mod worker_process;

pub use control::Reply;
pub use leftovers::Leftovers;
pub use metrics_server::{Page as MetricsPage, Request as MetricsRequest};
pub(crate) use pep_plan::WORKERS_MAX;
pub use pep_plan::{Leg, PepPlan, SidePlan};
pub(crate) use plan::TABLE_PREFIX;
pub use plan::{Part, Plan, Start};
pub use privileged::{check, up};
pub use report::{PepWorkers, Report, State};
pub use socket_broker::Request as SocketRequest;
pub use supervisor::Ended;
pub use tunnel_plan::{FailMode, TunnelPeerPlan, TunnelPlan};
pub(crate) use tunnel_plan::{KEEPALIVE_MIN_NS, PEERS_MAX};
pub use tunnel_report::{TunnelPeerReport, TunnelReport, TunnelWorker};
pub use worker::work;
