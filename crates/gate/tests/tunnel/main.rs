//! The sessions of the tunnel, in virtual time, over a network that loses, repeats, delays and forges datagrams.

mod cookies;
mod forged;
mod handshake;
mod network;
mod properties;
mod renewal;
mod restart;
mod roaming;
