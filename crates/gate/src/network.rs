//! Networks of IPv4 and IPv6, as plans name them.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An address with the length of its prefix, or a network: as text `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    /// The address.
    pub address: IpAddr,
    /// The bits of its prefix.
    pub prefix: u8,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed = || {
            let (address, prefix) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let prefix = prefix.parse().ok()?;
            let bits = if address.is_ipv4() { 32 } else { 128 };
            (prefix <= bits).then_some(Self { address, prefix })
        };
        parsed().ok_or_else(|| format!("{text:?} is no address with a prefix, such as 10.0.0.0/8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given texts of networks, expect those with an address and a prefix of its version to be read and written again.
    #[test]
    fn a_network_has_an_address_and_a_prefix() {
        for text in ["0.0.0.0/0", "10.99.0.1/24", "::/0", "fd00::/128"] {
            let network = Network::try_from(text.to_owned()).expect("a network");
            assert_eq!(network.to_string(), text);
        }
        for text in
            ["10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "/8", "a/8", "10.0.0.0/-1"]
        {
            assert!(Network::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
