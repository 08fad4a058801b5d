//! Networks of IPv4 and IPv6, and interfaces, as plans name them.

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

impl Network {
    /// The address with zeros after the prefix.
    pub(crate) fn first(&self) -> IpAddr {
        let host = |bits: u8| u32::from(bits.saturating_sub(self.prefix));
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(host(32)).unwrap_or(0);
                IpAddr::V4((address.to_bits() & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(host(128)).unwrap_or(0);
                IpAddr::V6((address.to_bits() & mask).into())
            }
        }
    }

    /// Whether an address is in this network.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let other = Self { address, prefix: self.prefix };
        address.is_ipv4() == self.address.is_ipv4() && other.first() == self.first()
    }

    /// Whether two networks have an address in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (wide, narrow) =
            if self.prefix <= other.prefix { (self, other) } else { (other, self) };
        wide.contains(narrow.address)
    }
}

/// Whether the kernel allows this name of an interface (`dev_valid_name`). It takes a name with a percent sign as a pattern,
/// and a quote would end the name in the rules.
pub(crate) fn is_interface(name: &str) -> bool {
    let is_bad = |byte: u8| byte <= b' ' || b"/:%\"\\\x7f".contains(&byte);
    (1..16).contains(&name.len()) && ![".", ".."].contains(&name) && !name.bytes().any(is_bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given an address with a prefix, expect the network that it is in, and what that contains.
    #[test]
    fn a_network_contains_addresses_and_networks() {
        let network = |text: &str| Network::try_from(text.to_owned()).expect("a network");
        for (text, first) in [
            ("10.1.2.3/16", "10.1.0.0"),
            ("10.1.2.3/0", "0.0.0.0"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("fd00::5/64", "fd00::"),
            ("fd00::5/0", "::"),
        ] {
            assert_eq!(network(text).first().to_string(), first);
        }
        let wide = network("10.0.0.0/8");
        assert!(wide.overlaps(&network("10.1.0.0/16")) && network("10.1.0.0/16").overlaps(&wide));
        assert!(!wide.overlaps(&network("11.0.0.0/8")) && !wide.overlaps(&network("::/0")));
        assert!(wide.contains("10.9.9.9".parse().expect("an address")));
    }

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
