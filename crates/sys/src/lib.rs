//! Linux facilities for labs and gateways: clock, TUN devices, namespaces, child processes, packet
//! timestamps, offloads.
//!
//! This crate contains all system calls without a safe wrapper, and all unsafe code of bentpipe
//! outside the SIMD kernels of `bentpipe-gf`. It does not depend on plans, links or labs.

pub mod clock;
pub mod datagrams;
pub mod diag;
pub mod error;
pub mod interface;
mod netlink;
pub mod netns;
pub mod nftables;
pub mod offload;
pub mod packet_log;
mod parent;
pub mod program;
pub mod route;
pub mod schedule;
pub mod shared_pid_namespace;
pub mod signals;
pub mod sockets;
pub mod sysctl;
pub mod tcp_sockets;
pub mod time_wait;
pub mod timestamps;
pub mod tun;
mod unshare;
pub mod user_namespace;

pub use error::SystemError;
