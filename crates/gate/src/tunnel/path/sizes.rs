//! The sizes of packets inside and outside the tunnel.

use std::net::SocketAddr;

use bentpipe_core::tunnel::message::{PACKET_BYTES, SOURCE_BYTES};
use bentpipe_core::wire::{ipv4, ipv6, udp};

use crate::tunnel::OVERHEAD_BYTES;

/// The smallest MTU inside the tunnel: what every IPv4 host accepts (RFC 791). IPv6 needs 1,280.
pub const MTU_MIN: u16 = 576;

/// What follows from the MTU of the network between the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The MTU inside the tunnel.
    pub mtu: u16,
    /// The size of a symbol: the largest packet fills one.
    pub symbol_bytes: u32,
}

impl Sizes {
    /// The largest sizes with which no datagram exceeds `outer_mtu`; `None` if the MTU inside would be below
    /// [`MTU_MIN`].
    #[must_use]
    pub fn of(outer_mtu: u16, outer_is_ipv6: bool) -> Option<Self> {
        let outer = ip_header_bytes(outer_is_ipv6) + udp::HEADER_BYTES;
        let added = outer + OVERHEAD_BYTES + SOURCE_BYTES + PACKET_BYTES;
        let mtu = outer_mtu.checked_sub(added as u16).filter(|&mtu| mtu >= MTU_MIN)?;
        Some(Self { mtu, symbol_bytes: u32::from(mtu) + PACKET_BYTES as u32 })
    }
}

/// The size of the IP packet around a datagram.
pub(super) fn ip_bytes(to: SocketAddr, datagram_bytes: usize) -> u32 {
    (ip_header_bytes(to.is_ipv6()) + udp::HEADER_BYTES + datagram_bytes) as u32
}

fn ip_header_bytes(is_ipv6: bool) -> usize {
    if is_ipv6 { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 1,500 - 20 - 8 - 29 - 11 - 6, and with 40 instead of 20.
    #[test]
    fn the_largest_packet_fills_a_symbol_and_a_datagram() {
        assert_eq!(Sizes::of(1_500, false), Some(Sizes { mtu: 1_426, symbol_bytes: 1_432 }));
        assert_eq!(Sizes::of(1_500, true), Some(Sizes { mtu: 1_406, symbol_bytes: 1_412 }));
        assert_eq!(Sizes::of(650, false), Some(Sizes { mtu: 576, symbol_bytes: 582 }));
        assert_eq!([Sizes::of(649, false), Sizes::of(0, true)], [None, None]);
    }
}
