//! Simulates a plan packet by packet in virtual time.
//!
//! A [`plan::Plan`] is complete: every number is an integer in SI units. [`run::Simulation`] builds
//! the graph, runs it and returns [`record::Table`]s. Tables hold what happened; the caller derives
//! and plots figures. This crate uses no clock and no threads; the caller runs simulations in
//! parallel.

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

pub use build::{Chain, Host, InterfaceId, Network, NextHop, Side, without_programs};
pub use memory::MemoryEstimate;
pub use plan::{Plan, PlanError};
pub use run::{Outcome, RunError, Simulation};
