//! Runs a plan packet by packet in virtual time.
//!
//! A [`plan::Plan`] is complete: every number is there, in integers and SI units. [`run::Simulation`]
//! builds the graph, runs it and returns [`record::Table`]s: facts only, nothing is summarised or
//! drawn here. There is no clock and no thread in this crate; many runs in parallel are the
//! caller's.

pub mod build;
mod capture;
mod conservation;
pub mod memory;
pub mod node;
pub mod plan;
pub mod points;
pub mod record;
pub mod run;
pub mod workload;

pub use build::{Chain, Host, InterfaceId, Network, NextHop, Side};
pub use memory::MemoryEstimate;
pub use plan::{Plan, PlanError};
pub use run::{Outcome, RunError, Simulation};
