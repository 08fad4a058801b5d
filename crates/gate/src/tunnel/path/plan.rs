//! What a path is made of.

use std::fmt;
use std::net::IpAddr;

use bentpipe_core::tunnel::{SettingError, TunnelSettings};

use super::routes::{NetworkError, Routes};
use super::sizes::MTU_MIN;
use crate::tunnel::{Limits, PeerError, PeerSettings, PrivateKey};

/// A peer.
#[derive(Clone, Debug)]
pub struct PeerPlan {
    /// Its name, for the counters.
    pub name: String,
    /// Its key, and where it can be reached.
    pub settings: PeerSettings,
    /// The networks behind it, by address and prefix length. Packets for them are sent to it, and packets from it must
    /// come from them.
    pub networks: Vec<(IpAddr, u8)>,
}

/// What a [`super::Path`] is made of.
pub struct PathPlan {
    /// The static key of this end.
    pub private_key: PrivateKey,
    /// All that this end talks to.
    pub peers: Vec<PeerPlan>,
    /// The code and its policies.
    pub settings: TunnelSettings,
    /// The MTU inside the tunnel: see [`super::inner_mtu`].
    pub mtu: u16,
    /// [`Limits::DEFAULT`]; tests have shorter ones.
    pub limits: Limits,
}

impl PathPlan {
    pub(super) fn check(&self) -> Result<Routes, PlanError> {
        self.settings.check()?;
        if self.mtu < MTU_MIN {
            return Err(PlanError::Mtu(self.mtu));
        }
        let mut routes = Routes::default();
        for (number, peer) in self.peers.iter().enumerate() {
            for &(address, prefix) in &peer.networks {
                routes.insert(address, prefix, number)?;
            }
        }
        Ok(routes)
    }
}

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// Two ends have the same key.
    Peer(PeerError),
    /// A network cannot be routed.
    Network(NetworkError),
    /// A setting of the code or its policies.
    Setting(SettingError),
    /// The MTU is too small.
    Mtu(u16),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(error) => error.fmt(f),
            Self::Network(error) => error.fmt(f),
            Self::Setting((field, message)) => write!(f, "{field} {message}"),
            Self::Mtu(mtu) => write!(f, "the MTU inside the tunnel is {mtu}, below {MTU_MIN}"),
        }
    }
}

impl std::error::Error for PlanError {}

impl From<PeerError> for PlanError {
    fn from(error: PeerError) -> Self {
        Self::Peer(error)
    }
}

impl From<NetworkError> for PlanError {
    fn from(error: NetworkError) -> Self {
        Self::Network(error)
    }
}

impl From<SettingError> for PlanError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}
