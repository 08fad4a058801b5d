//! The packets inside the tunnel: their flows, and the largest segments of their TCP connections.

use bentpipe_core::packet::Ecn;
use bentpipe_core::tunnel::FlowKey;
use bentpipe_core::wire::{FiveTuple, Headers, TCP, ipv4, ipv6, tcp};

use crate::tunnel::random::{self, Random};
use std::net::IpAddr;

const SYN: u8 = 1 << 1;
const CHECKSUM: usize = 16;
/// The bits of the DSCP in a traffic class.
pub(super) const DSCP_MASK: u8 = 0b1111_1100;
const OPTION_END: u8 = 0;
const OPTION_NONE: u8 = 1;
const OPTION_MSS: u8 = 2;

/// The headers of a packet that is an IP packet of its length.
pub(super) fn headers(packet: &[u8]) -> Option<Headers> {
    Headers::of(packet).filter(|headers| headers.total_bytes == packet.len())
}

/// The type of service of IPv4, or the traffic class of IPv6: DSCP (RFC 2474) and ECN field (RFC 3168).
pub(super) fn traffic_class(packet: &[u8]) -> u8 {
    match packet {
        [first, class, ..] if first >> 4 == 4 => *class,
        [first, second, ..] => first << 4 | second >> 4,
        _ => 0,
    }
}

/// The traffic class of a datagram with packets of class `first`, followed by one of class `next`: the DSCP of the first
/// one; not ECN-capable unless all are; and CE only if all are. A mark of the datagram applies to all packets in it, and
/// each keeps its own mark inside.
pub(super) fn joint_class(first: u8, next: u8) -> u8 {
    let ecn = match (Ecn::of_traffic_class(first), Ecn::of_traffic_class(next)) {
        (Ecn::NotEct, _) | (_, Ecn::NotEct) => Ecn::NotEct,
        (Ecn::Ce, next) => next,
        (first, _) => first,
    };
    first & DSCP_MASK | ecn as u8
}

/// Lowers the maximum segment size that a SYN announces to what an MTU lets pass (RFC 4459, section 3.2), and updates
/// the checksum (RFC 1624, equation 3).
pub(super) fn clamp_mss(packet: &mut [u8], headers: &Headers, mtu: u16) {
    if headers.tuple.protocol != TCP || headers.is_later_fragment {
        return;
    }
    let ip_bytes =
        if headers.tuple.source.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
    let mss_max = mtu.saturating_sub((ip_bytes + tcp::HEADER_BYTES) as u16);
    let Some(transport) = packet.get_mut(headers.transport_offset..) else { return };
    if transport.len() < tcp::HEADER_BYTES || transport[13] & SYN == 0 {
        return;
    }
    let Some(at) = mss_offset(transport) else { return };
    let old = [transport[at], transport[at + 1]];
    if u16::from_be_bytes(old) <= mss_max {
        return;
    }
    let new = mss_max.to_be_bytes();
    transport[at..at + 2].copy_from_slice(&new);
    // Behind an odd number of bytes, a value is in two words, each byte in the other half.
    let word = |[high, low]: [u8; 2]| {
        u32::from(u16::from_be_bytes(if at % 2 == 0 { [high, low] } else { [low, high] }))
    };
    let checksum = u16::from_be_bytes([transport[CHECKSUM], transport[CHECKSUM + 1]]);
    let sum = u32::from(!checksum) + (word(old) ^ 0xffff) + word(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    transport[CHECKSUM..CHECKSUM + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Where the value of the MSS option is in a TCP header.
fn mss_offset(transport: &[u8]) -> Option<usize> {
    let header_bytes = usize::from(transport[12] >> 4) * 4;
    let header = transport.get(..header_bytes)?;
    let mut at = tcp::HEADER_BYTES;
    loop {
        match (*header.get(at)?, header.get(at + 1).copied()) {
            (OPTION_END, _) => return None,
            (OPTION_NONE, _) => at += 1,
            (OPTION_MSS, Some(4)) => return (at + 4 <= header_bytes).then_some(at + 2),
            (_, Some(length)) if length >= 2 => at += usize::from(length),
            _ => return None,
        }
    }
}

/// Keys of flows: hashes under a secret, so that nobody can choose flows with the same key.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowHasher([u64; 2]);

impl FlowHasher {
    pub(super) fn new(random: &mut dyn Random) -> Self {
        let mut secret = || u64::from_le_bytes(random::array(random));
        Self([secret(), secret() | 1])
    }

    /// The key of a flow; those of different contexts differ.
    pub(super) fn key(self, context: u64, tuple: &FiveTuple) -> FlowKey {
        let ports = u64::from(tuple.source_port) << 16 | u64::from(tuple.destination_port);
        let mut state = self.0[0] ^ context;
        state = self.mix(state ^ (ports << 8 | u64::from(tuple.protocol)));
        for address in [tuple.source, tuple.destination] {
            match address {
                IpAddr::V4(address) => state = self.mix(state ^ u64::from(address.to_bits())),
                IpAddr::V6(address) => {
                    let bits = address.to_bits();
                    state = self.mix(state ^ bits as u64);
                    state = self.mix(state ^ (bits >> 64) as u64);
                }
            }
        }
        state
    }

    /// Both halves of a product: every bit of the result depends on all bits.
    fn mix(self, word: u64) -> u64 {
        let product = u128::from(word ^ self.0[0]) * u128::from(self.0[1]);
        (product as u64 ^ (product >> 64) as u64).wrapping_add(word.rotate_left(23))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::OsRandom;
    use bentpipe_core::wire::checksum::Checksum;
    use proptest::prelude::*;

    /// A SYN with these options, with a correct checksum.
    fn syn(is_v4: bool, options: &[u8]) -> Vec<u8> {
        let tcp_bytes = tcp::HEADER_BYTES + options.len();
        let mut packet = if is_v4 { vec![0x45; 20] } else { vec![0x60; 40] };
        if is_v4 {
            packet[2..4].copy_from_slice(&(20 + tcp_bytes as u16).to_be_bytes());
            packet[6..8].fill(0);
            packet[9] = TCP;
        } else {
            packet[4..6].copy_from_slice(&(tcp_bytes as u16).to_be_bytes());
            packet[6] = TCP;
        }
        let start = packet.len();
        packet.resize(start + tcp::HEADER_BYTES, 7);
        packet[start + 12] = ((tcp_bytes / 4) as u8) << 4;
        packet[start + 13] = SYN;
        packet.extend(options);
        packet[start + 16..start + 18].fill(0);
        let sum = checksum(&packet);
        packet[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    fn checksum(packet: &[u8]) -> u16 {
        let headers = headers(packet).expect("a packet");
        let transport = &packet[headers.transport_offset..];
        let FiveTuple { source, destination, protocol, .. } = headers.tuple;
        let bytes = transport.len() as u32;
        let mut sum = Checksum::of_pseudo_header(source, destination, protocol, bytes);
        sum.add(transport);
        sum.finish()
    }

    /// Given an MSS option at an even or an odd offset, expect 1,400 - 40 or 1,400 - 60 and a correct checksum.
    #[test]
    fn a_large_mss_is_lowered() {
        for (is_v4, mss) in [(true, 1_360_u16), (false, 1_340)] {
            for options in [&[2, 4, 0xff, 0xff][..], &[1, 2, 4, 0xff, 0xff, 1, 1, 0]] {
                let mut packet = syn(is_v4, options);
                let headers = headers(&packet).expect("a packet");
                clamp_mss(&mut packet, &headers, 1_400);
                let at = packet.len() - options.len() + 2 + options.len() / 8;
                assert_eq!(packet[at..at + 2], mss.to_be_bytes());
                assert_eq!(checksum(&packet), 0);
            }
        }
    }

    #[test]
    fn a_small_mss_and_other_packets_are_not_changed() {
        let ack = |mut packet: Vec<u8>| {
            packet[33] = tcp::ACK;
            packet
        };
        for before in [
            syn(true, &[2, 4, 5, 0x50]),
            syn(true, &[]),
            syn(true, &[0, 2, 4, 0xff]),
            syn(true, &[3, 0, 2, 4]),
            syn(true, &[1, 1, 2, 4]),
            ack(syn(true, &[2, 4, 0xff, 0xff])),
        ] {
            let mut packet = before.clone();
            let headers = headers(&packet).expect("a packet");
            clamp_mss(&mut packet, &headers, 1_400);
            assert_eq!(packet, before);
        }
    }

    #[test]
    fn the_traffic_class_has_eight_bits() {
        let classes = [&[0x45, 0xb9][..], &[0x6b, 0x9f], &[]].map(traffic_class);
        assert_eq!(classes, [0xb9, 0xb9, 0]);
    }

    /// Given packets of DSCP EF, 46, and then of DSCP 1, in this order.
    #[test]
    fn packets_in_one_datagram_have_a_class_together() {
        let [not_ect, ect_1, ect_0, ce] = [0, 1, 2, 3];
        for (first, next, expected) in [
            (ect_0, ect_0, ect_0),
            (ect_0, ect_1, ect_0),
            (ect_1, ect_0, ect_1),
            (ect_0, not_ect, not_ect),
            (not_ect, ce, not_ect),
            (ce, not_ect, not_ect),
            (ce, ect_1, ect_1),
            (ect_0, ce, ect_0),
            (ce, ce, ce),
        ] {
            assert_eq!(joint_class(0xb8 | first, 4 | next), 0xb8 | expected, "{first} {next}");
        }
    }

    #[test]
    fn contexts_and_tuples_have_keys_of_their_own() {
        let hasher = FlowHasher::new(&mut OsRandom::new());
        let syn = headers(&syn(true, &[])).expect("a packet").tuple;
        let tuple = FiveTuple { source_port: 9, ..syn };
        let keys = [
            hasher.key(0, &tuple),
            hasher.key(1, &tuple),
            hasher.key(0, &tuple.reversed()),
            hasher.key(0, &FiveTuple { source_port: 8, ..tuple }),
            hasher.key(0, &FiveTuple { protocol: 17, ..tuple }),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.into_iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    proptest! {
        /// Given any packet and any options, expect a correct checksum to stay correct.
        #[test]
        fn checksums_stay_correct(
            is_v4: bool, options in prop::collection::vec(0_u8..6, 0..40), mtu in 576_u16..,
        ) {
            let mut options = options;
            options.truncate(options.len() / 4 * 4);
            let mut packet = syn(is_v4, &options);
            let headers = headers(&packet).expect("a packet");
            clamp_mss(&mut packet, &headers, mtu);
            prop_assert!(matches!(checksum(&packet), 0 | 0xffff));
        }

        #[test]
        fn any_bytes_are_handled(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(headers) = Headers::of(&bytes) {
                clamp_mss(&mut bytes, &headers, 600);
                traffic_class(&bytes);
            }
        }
    }
}
