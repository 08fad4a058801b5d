//! The link in real time: real programs, the kernel's own TCP, and the engines of the simulator.
//!
//! [`emulator::Emulator`] is the link with real packets, without a clock; [`driver::Driver`] runs it to
//! the clock between TUN devices; [`lab::Lab`] has the namespaces with the devices and the programs.
//! Everything belongs to one process: when that ends, however it ends, nothing is left.
//!
//! What Linux gives for this is in `bentpipe-sys`.

pub mod addresses;
mod backlog;
pub mod capture;
mod capture_file;
pub mod driver;
pub mod emulator;
mod entrance;
pub mod error;
mod exit;
pub mod flows;
pub mod lab;
pub mod lateness;
pub mod measure;
pub mod orders;
pub mod outside;
pub mod ports;
pub mod serve;
pub mod store;
pub mod verdict;

pub use error::LabError;
