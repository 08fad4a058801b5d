//! What Linux gives to labs and gateways: the clock, TUN devices, namespaces, programs that end with
//! their maker, time stamps and offloads.
//!
//! All system calls without a safe form are here, and with them all unsafe code of bentpipe outside
//! SIMD kernels. Nothing here knows of plans, links or labs.

pub mod clock;
pub mod diag;
pub mod error;
pub mod interface;
mod maker;
mod netlink;
pub mod netns;
pub mod offload;
pub mod program;
pub mod route;
pub mod schedule;
pub mod shared_pid_namespace;
pub mod sockets;
pub mod stamps;
pub mod tun;

pub use error::SystemError;
