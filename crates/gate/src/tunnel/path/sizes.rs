//! The sizes of packets inside and outside the tunnel.

use std::net::SocketAddr;

use bentpipe_core::tunnel::message::{PACKET_BYTES, SOURCE_BYTES};
use bentpipe_core::wire::{ipv4, ipv6, udp};

use crate::tunnel::OVERHEAD_BYTES;

/// The smallest MTU inside the tunnel: what every IPv4 host accepts (RFC 791). IPv6 needs 1,280.
pub const MTU_MIN: u16 = 576;

/// The largest MTU inside a tunnel with which no datagram exceeds `outer_mtu`; `None` if it would be below [`MTU_MIN`].
#[must_use]
pub fn inner_mtu(outer_mtu: u16, outer_is_ipv6: bool) -> Option<u16> {
    let outer = ip_header_bytes(outer_is_ipv6) + udp::HEADER_BYTES;
    let added = outer + OVERHEAD_BYTES + SOURCE_BYTES + PACKET_BYTES;
    outer_mtu.checked_sub(added as u16).filter(|&mtu| mtu >= MTU_MIN)
}

/// The size of a symbol that the largest packet fills.
#[must_use]
pub fn full_symbol_bytes(inner_mtu: u16) -> u32 {
    u32::from(inner_mtu) + PACKET_BYTES as u32
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
        assert_eq!([inner_mtu(1_500, false), inner_mtu(1_500, true)], [Some(1_426), Some(1_406)]);
        assert_eq!([inner_mtu(650, false), inner_mtu(649, false)], [Some(576), None]);
        assert_eq!(inner_mtu(0, true), None);
        assert_eq!(full_symbol_bytes(1_426), 1_432);
    }
}
