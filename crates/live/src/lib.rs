//! The link in real time: real programs, the kernel's own TCP, and the engines of the simulator.
//!
//! [`emulator::Emulator`] is the link with real packets, without a clock; [`driver::Driver`] runs it to
//! the clock between two [`tun::Tun`] devices; [`netns::Namespace`] is where a device and its programs
//! are. Everything belongs to one process: when that ends, however it ends, nothing is left.
//!
//! All system calls of bentpipe are in this crate.

pub mod capture;
pub mod clock;
pub mod commons;
pub mod diag;
pub mod driver;
pub mod emulator;
mod entrance;
pub mod error;
mod exit;
pub mod flows;
pub mod lab;
pub mod lateness;
pub mod measure;
pub mod netns;
pub mod offload;
pub mod orders;
pub mod outside;
pub mod ports;
pub mod program;
pub mod serve;
pub mod stamps;
pub mod store;
pub mod tun;

pub use error::LabError;
