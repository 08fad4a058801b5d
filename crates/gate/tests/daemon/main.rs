//! The daemon on a router between two networks, with real clients and servers. It takes root, and for the
//! networks and what is seen from outside the programs `ip` and `nft`.

mod asymmetric;
mod dscp;
mod ending;
mod fail_closed;
mod fragments;
mod kills;
mod limits;
mod metrics;
mod relaying;
#[path = "../requirements/mod.rs"]
mod requirements;
mod reuse;
#[path = "../router/mod.rs"]
mod router;
mod selection;
mod setup;
mod soak;
mod start;
mod streams;
mod supervision;
mod tables;
mod tunnel_restart;
