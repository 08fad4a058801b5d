//! Addresses of hosts; the destination and the class of a packet.

use std::net::Ipv4Addr;

use bentpipe_core::packet::{Address, Class};
/// The network of all hosts, which are one hop apart at the IP layer.
const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 0);
/// The prefix length of the network.
pub const PREFIX: u8 = 24;

/// The IPv4 address of a host. The world has the first one.
#[must_use]
pub fn ipv4(host: impl Into<Address>) -> Ipv4Addr {
    Ipv4Addr::from_bits(NETWORK.to_bits() + 1 + host.into().0)
}

/// The destination host of a packet, out of `hosts`. Packets to other networks go to `fallback`,
/// which may forward them. `None` for an address of the lab's network that no host has.
pub(crate) fn destination(packet: &[u8], fallback: Address, hosts: usize) -> Option<Address> {
    let bytes = match packet {
        [first, ..] if first >> 4 == 4 => packet.get(16..20),
        _ => None,
    };
    let Some(bytes) = bytes.and_then(|bytes| bytes.try_into().ok()) else { return Some(fallback) };
    let address = u32::from_be_bytes(bytes);
    if address >> (u32::BITS - u32::from(PREFIX))
        != NETWORK.to_bits() >> (u32::BITS - u32::from(PREFIX))
    {
        return Some(fallback);
    }
    let number = address.checked_sub(NETWORK.to_bits() + 1)?;
    Some(Address(number)).filter(|address| (address.0 as usize) < hosts)
}

/// The class of a packet among `classes`, of which class 0 is served first: its precedence, the
/// three highest bits of the traffic class (RFC 2474, section 4.2.2), scaled. With two classes,
/// precedences from 4 on are class 0: CS4, AF41, EF and above.
pub(crate) fn class(packet: &[u8], classes: u8) -> Class {
    if classes <= 1 {
        return Class(0);
    }
    let precedence = match packet {
        [first, class, ..] if first >> 4 == 4 => class >> 5,
        [first, ..] if first >> 4 == 6 => (first & 0xf) >> 1,
        _ => 0,
    };
    // Rounded to the nearest; no product is halfway.
    Class(
        ((classes - 1) * (PRECEDENCE_MAX - precedence) * 2 + PRECEDENCE_MAX) / (2 * PRECEDENCE_MAX),
    )
}

const PRECEDENCE_MAX: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(traffic_class: u8, destination: Ipv4Addr) -> Vec<u8> {
        let mut packet = vec![0; 20];
        (packet[0], packet[1]) = (0x45, traffic_class);
        packet[16..].copy_from_slice(&destination.octets());
        packet
    }

    #[test]
    fn a_packet_goes_to_the_host_with_its_address() {
        for number in [0, 1, 7] {
            let packet = packet(0, ipv4(Address(number)));
            assert_eq!(destination(&packet, Address(3), 8), Some(Address(number)));
        }
    }

    #[test]
    fn packets_to_other_networks_go_to_the_fallback() {
        for other in [[10, 83, 255, 255], [10, 84, 1, 0], [1, 1, 1, 1], [224, 0, 0, 1]] {
            assert_eq!(destination(&packet(0, other.into()), Address(3), 8), Some(Address(3)));
        }
        for odd in [&[][..], &[0x45; 19], &[0x60; 40]] {
            assert_eq!(destination(odd, Address(3), 8), Some(Address(3)));
        }
    }

    /// Two gateways would forward it to each other until its TTL expires.
    #[test]
    fn packets_to_unassigned_addresses_of_the_lab_are_dropped() {
        for unassigned in [[10, 84, 0, 0], [10, 84, 0, 9], [10, 84, 0, 255]] {
            assert_eq!(destination(&packet(0, unassigned.into()), Address(3), 8), None);
        }
    }

    /// DSCP 46 (EF) has precedence 5, 34 (AF41) 4, 26 (AF31) 3, 8 (CS1) 1, 48 (CS6) 6.
    #[test]
    fn the_class_is_the_precedence_scaled() {
        let of = |dscp: u8, classes| class(&packet(dscp << 2, Ipv4Addr::LOCALHOST), classes).0;
        assert_eq!([46, 34, 26, 8, 0].map(|dscp| of(dscp, 2)), [0, 0, 1, 1, 1]);
        assert_eq!([48, 46, 34, 26, 8, 0].map(|dscp| of(dscp, 3)), [0, 1, 1, 1, 2, 2]);
        let each: Vec<_> = (0..8).map(|precedence| of(precedence << 3, 8)).collect();
        assert_eq!(each, [7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(of(46, 1), 0, "one class holds all");
        assert_eq!(class(&[0x6a, 0x00, 0, 0], 8), Class(2), "precedence 5 of IPv6");
    }
}
