//! The encryption of the coded tunnel: sessions with peers over UDP, without sockets and without a clock.
//!
//! [`Tunnel`] is a state machine like the engines of `bentpipe-core`: datagrams and time are arguments, and what is to be
//! sent is returned. The caller owns the sockets, the clock and the buffers; payloads are sealed and opened in them,
//! without an allocation. What a payload means is the caller's business: [`path`] is the data path, and [`forwarder`] the
//! thread around it.
//!
//! `docs/model/tunnel-sessions.md` describes formats, timers and what an attacker can do.

mod format;
pub mod forwarder;
mod indexes;
mod keys;
mod limiter;
mod macs;
mod noise;
pub mod path;
mod peer;
mod peer_settings;
mod random;
mod replay;
mod session;
mod state;

pub use format::{
    COOKIE_REPLY_BYTES, Datagram, HEADER_BYTES, Header, INITIATION_BYTES, KEEPALIVE_BYTES, Kind,
    OVERHEAD_BYTES, RESPONSE_BYTES, TAG_BYTES,
};
pub use keys::{KEY_BYTES, KeyError, PrivateKey, PublicKey, keygen};
pub use peer_settings::{PeerId, PeerSettings};
pub use random::{OsRandom, Random};
pub use replay::{ReplayWindow, WINDOW};
pub use session::Limits;
pub use state::{NoSession, Output, PeerError, Settings, Statistics, Tunnel};
