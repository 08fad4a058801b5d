//! Which peer has which addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Why a network is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkError {
    /// The prefix is longer than the address.
    Prefix(IpAddr, u8),
    /// Two peers have the same network.
    Repeated(IpAddr, u8),
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(address, prefix) => {
                write!(f, "the prefix of {address}/{prefix} is longer than its address")
            }
            Self::Repeated(address, prefix) => {
                write!(f, "the network {address}/{prefix} belongs to two peers; give it to one")
            }
        }
    }
}

impl std::error::Error for NetworkError {}

/// The networks of all peers, for longest-prefix matches.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    /// The prefix lengths in use, longest first, of IPv4 and of IPv6.
    lengths: [Vec<u8>; 2],
    /// The peer of each network: version, prefix length, left-aligned address.
    peers: BTreeMap<(usize, u8, u128), usize>,
}

impl Routes {
    /// Adds a network. Bits beyond the prefix are ignored.
    pub(super) fn insert(
        &mut self,
        address: IpAddr,
        prefix: u8,
        peer: usize,
    ) -> Result<(), NetworkError> {
        let (version, bits, width) = parts(address);
        if prefix > width {
            return Err(NetworkError::Prefix(address, prefix));
        }
        let former = self.peers.insert((version, prefix, masked(bits, prefix)), peer);
        if former.is_some_and(|former| former != peer) {
            return Err(NetworkError::Repeated(address, prefix));
        }
        let lengths = &mut self.lengths[version];
        if let Err(place) = lengths.binary_search_by(|length| prefix.cmp(length)) {
            lengths.insert(place, prefix);
        }
        Ok(())
    }

    /// The peer with the longest prefix of an address.
    pub(super) fn peer(&self, address: IpAddr) -> Option<usize> {
        let (version, bits, _) = parts(address);
        let find = |&prefix: &u8| self.peers.get(&(version, prefix, masked(bits, prefix)));
        self.lengths[version].iter().find_map(find).copied()
    }
}

/// The version, 0 for IPv4 and 1 for IPv6, the left-aligned address, and its width in bits.
fn parts(address: IpAddr) -> (usize, u128, u8) {
    match address {
        IpAddr::V4(address) => (0, u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (1, address.to_bits(), 128),
    }
}

fn masked(bits: u128, prefix: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn the_longest_prefix_counts() {
        let mut routes = Routes::default();
        for (peer, (network, prefix)) in
            [("0.0.0.0", 0), ("10.0.0.0", 8), ("10.1.2.3", 32), ("fd01::", 16)].iter().enumerate()
        {
            routes.insert(address(network), *prefix, peer).expect("a network");
        }
        let peer = |text| routes.peer(address(text));
        assert_eq!([peer("10.1.2.3"), peer("10.1.2.4"), peer("11.0.0.1")], [2, 1, 0].map(Some));
        assert_eq!([peer("fd01::7"), peer("fd02::7"), peer("::")], [Some(3), None, None]);
    }

    #[test]
    fn networks_that_cannot_be_routed_are_refused() {
        let mut routes = Routes::default();
        let ten = address("10.0.0.0");
        assert_eq!(routes.insert(ten, 33, 0), Err(NetworkError::Prefix(ten, 33)));
        assert_eq!(routes.insert(ten, 8, 0), Ok(()));
        assert_eq!(routes.insert(address("10.9.9.9"), 8, 0), Ok(()), "the same network again");
        assert_eq!(routes.insert(ten, 8, 1), Err(NetworkError::Repeated(ten, 8)));
    }

    proptest! {
        /// Given any networks, expect what a search through the list of them finds.
        #[test]
        fn the_table_agrees_with_a_list(
            networks in prop::collection::vec((any::<u8>(), 0u8..=32), 0..20), bits in any::<u8>(),
        ) {
            let of = |bits: u8| u32::from(bits) << 24;
            let mut routes = Routes::default();
            let mut list = Vec::new();
            for (peer, &(bits, prefix)) in networks.iter().enumerate() {
                let added = routes.insert(std::net::Ipv4Addr::from_bits(of(bits)).into(), prefix, peer);
                prop_assume!(added.is_ok());
                list.push((prefix, of(bits), peer));
            }
            let mask = |bits: u32, prefix: u8| u64::from(bits) >> (32 - prefix);
            let matching = list.iter().filter(|&&(prefix, network, _)| {
                mask(network, prefix) == mask(of(bits), prefix)
            });
            let expected = matching.max_by_key(|&&(prefix, ..)| prefix).map(|&(.., peer)| peer);
            prop_assert_eq!(routes.peer(std::net::Ipv4Addr::from_bits(of(bits)).into()), expected);
        }
    }
}
