//! The link in real time: real programs, the kernel's TCP, and the engines of the simulator.
//!
//! [`emulator::Emulator`] is the link with real packets, without a clock. [`driver::Driver`] runs
//! it in real time between TUN devices. [`lab::Lab`] owns the namespaces with the devices and the
//! programs. All of it ends with the process, even with one that is killed.
//!
//! `bentpipe-sys` wraps the system calls.

pub mod addresses;
mod arrival_times;
mod backlog;
pub mod capture;
mod capture_file;
pub mod changes;
pub mod channels;
pub mod driver;
mod egress;
pub mod emulator;
pub mod error;
pub mod flows;
pub mod http;
mod ingress;
pub mod lab;
pub mod lateness;
pub mod measure;
mod plain_link;
pub mod ports;
pub mod punctuality;
pub mod serve;
pub mod store;
pub mod uplink;
pub mod verdict;

pub use error::LabError;
pub use plain_link::plain_link;
