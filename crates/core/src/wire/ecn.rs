//! The ECN field of packets as bytes (RFC 3168, section 5): the two lowest bits of the IPv4 type of
//! service and of the IPv6 traffic class.

use crate::packet::Ecn;

/// The ECN field of an IPv4 or IPv6 packet; [`Ecn::NotEct`] for anything else.
#[must_use]
pub fn of(packet: &[u8]) -> Ecn {
    match packet {
        [first, class, ..] if first >> 4 == 4 => Ecn::of_traffic_class(*class),
        [first, second, ..] if first >> 4 == 6 => Ecn::of_traffic_class(second >> 4),
        _ => Ecn::NotEct,
    }
}

/// Marks an ECN-capable packet as CE and updates the IPv4 header checksum (RFC 1624, equation 3). No
/// transport checksum covers the field.
pub fn mark(packet: &mut [u8]) {
    if !matches!(of(packet), Ecn::Ect0 | Ecn::Ect1) {
        return;
    }
    match packet {
        [first, class, rest @ ..] if *first >> 4 == 4 => {
            let old = u16::from_be_bytes([*first, *class]);
            *class |= Ecn::Ce as u8;
            let new = u16::from_be_bytes([*first, *class]);
            // The checksum is at offset 10.
            if let Some(field) = rest.get_mut(8..10) {
                let checksum = u16::from_be_bytes([field[0], field[1]]);
                let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = (sum & 0xffff) + (sum >> 16);
                field.copy_from_slice(&(!(sum as u16)).to_be_bytes());
            }
        }
        [first, second, ..] if *first >> 4 == 6 => *second |= (Ecn::Ce as u8) << 4,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::checksum::Checksum;
    use crate::wire::{UDP, ipv4};
    use core::net::Ipv4Addr;

    fn ipv4_header(traffic_class: u8, identification: u16) -> Vec<u8> {
        let mut packet = Vec::new();
        ipv4::Header {
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 64, 0, 1),
            protocol: UDP,
            traffic_class,
            identification,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            time_to_live: 64,
            total_bytes: 28,
        }
        .emit(&mut packet);
        packet.extend([0; 8]);
        packet
    }

    /// Over a header with a correct checksum the sum is zero. Identifications from 0 to 65,535 give
    /// every checksum.
    #[test]
    fn marking_updates_the_ipv4_checksum() {
        for identification in 0..=u16::MAX {
            // DSCP EF with ECT(1) and ECT(0).
            for class in [0xb9, 0xba] {
                let mut packet = ipv4_header(class, identification);
                mark(&mut packet);
                let mut sum = Checksum::default();
                sum.add(&packet[..ipv4::HEADER_BYTES]);
                assert_eq!((packet[1], sum.finish()), (0xbb, 0), "{identification}");
            }
        }
    }

    #[test]
    fn other_packets_are_not_changed() {
        for class in [0xb8, 0xbb] {
            let before = ipv4_header(class, 7);
            let mut packet = before.clone();
            mark(&mut packet);
            assert_eq!(packet, before);
        }
        for strange in [vec![], vec![0x45], vec![0x45, 0x02], vec![0x62], vec![0x12, 0xff, 3]] {
            mark(&mut strange.clone());
            assert_eq!(of(&strange[..strange.len().min(1)]), Ecn::NotEct);
        }
    }

    /// Traffic class 0xba spans the first two bytes, next to the flow label.
    #[test]
    fn the_field_of_ipv6_is_in_its_second_byte() {
        let mut packet = vec![0x6b, 0xa7, 1, 2];
        assert_eq!(of(&packet), Ecn::Ect0);
        mark(&mut packet);
        assert_eq!(packet, [0x6b, 0xb7, 1, 2]);
        assert_eq!(of(&packet), Ecn::Ce);
    }
}
