//! What the tunnel is told of a peer.

use std::net::SocketAddr;

use bentpipe_core::time::Duration;

use super::keys::PublicKey;

/// A peer by its place in [`super::Settings::peers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub usize);

/// A gateway at the other end.
#[derive(Clone, Copy, Debug)]
pub struct PeerSettings {
    /// Its static key.
    pub public_key: PublicKey,
    /// Where it can be reached. `None` if it roams: then it is where its last authenticated packet came from.
    pub endpoint: Option<SocketAddr>,
    /// The interval after which something is sent to it at the latest: for a peer that is reached through a NAT, and to
    /// notice a restart while no data flow.
    pub keepalive: Option<Duration>,
}
