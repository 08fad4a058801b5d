//! The answer to packets that are larger than the MTU of the tunnel: "fragmentation needed" of ICMP (RFC 1191) and
//! "packet too big" of ICMPv6 (RFC 4443, section 3.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bentpipe_core::time::Duration;
use bentpipe_core::token_bucket::TokenRate;
use bentpipe_core::wire::{Headers, ipv4};

use crate::icmp::{self, ICMP, ICMP_V6};

/// Errors of ICMPv6 have types below.
const V6_INFORMATIONAL: u8 = 128;
const V6_REDIRECT: u8 = 137;
/// Addresses from 240.0.0.0 on are of class E, or the broadcast.
const V4_CLASS_E: u8 = 240;

/// The rate of answers, like Linux's `icmp_msgs_per_sec` and `icmp_msgs_burst`.
pub(super) const RATE: TokenRate = TokenRate { each: Duration::from_millis(1), burst: 50 };

/// Writes the answer to a packet that exceeds `mtu`. False if it gets none: RFC 1122, section 3.2.2, and RFC 4443,
/// section 2.4 (e).
///
/// The source of the answer is the destination of the packet: the tunnel may have no address to which hosts have a
/// route, and their reverse path filters accept this one. A packet to a group has no such address, so it gets no
/// answer, although RFC 4443 would allow one.
pub(super) fn answer(packet: &[u8], headers: &Headers, mtu: u16, out: &mut Vec<u8>) -> bool {
    let first = packet.get(headers.transport_offset).copied().unwrap_or(0);
    out.clear();
    match (headers.tuple.source, headers.tuple.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let dont_fragment =
                ipv4::Header::parse(packet).is_some_and(|(header, _)| header.dont_fragment);
            let is_error = headers.tuple.protocol == ICMP && !matches!(first, 0 | 8..=10 | 13..=18);
            let is_answered = dont_fragment && !is_error && !headers.is_later_fragment;
            if !is_answered || !is_host_v4(source) || !is_host_v4(destination) {
                return false;
            }
            let [high, low] = mtu.to_be_bytes();
            let head = [3, 4, 0, 0, 0, 0, high, low];
            icmp::emit_v4(packet, (destination, source), head, out);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let is_error = headers.tuple.protocol == ICMP_V6
                && (first < V6_INFORMATIONAL || first == V6_REDIRECT);
            if is_error || !is_host_v6(source) || !is_host_v6(destination) {
                return false;
            }
            let [high, low] = mtu.to_be_bytes();
            let head = [2, 0, 0, 0, 0, 0, high, low];
            icmp::emit_v6(packet, (destination, source), head, out);
        }
        _ => return false,
    }
    true
}

fn is_host_v4(address: Ipv4Addr) -> bool {
    let is_group = address.is_multicast() || address.octets()[0] >= V4_CLASS_E;
    !(is_group || address.is_unspecified() || address.is_loopback())
}

fn is_host_v6(address: Ipv6Addr) -> bool {
    !(address.is_multicast() || address.is_unspecified() || address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icmp::{V4_BYTES_MAX, V6_BYTES_MAX};
    use bentpipe_core::wire::UDP;
    use bentpipe_core::wire::checksum::Checksum;

    fn v4(dont_fragment: bool, protocol: u8, bytes: u16) -> Vec<u8> {
        let mut packet = Vec::new();
        ipv4::Header {
            source: [10, 0, 0, 1].into(),
            destination: [10, 1, 0, 1].into(),
            protocol,
            traffic_class: 0,
            identification: 7,
            dont_fragment,
            more_fragments: false,
            fragment_offset: 0,
            time_to_live: 9,
            total_bytes: bytes,
        }
        .emit(&mut packet);
        packet.resize(bytes.into(), 3);
        packet
    }

    fn answer_to(packet: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![1, 2, 3];
        let headers = Headers::of(packet).expect("a packet");
        answer(packet, &headers, 1_400, &mut out).then_some(out)
    }

    #[test]
    fn fragmentation_needed_names_the_mtu_and_quotes_the_packet() {
        let packet = v4(true, UDP, 1_401);
        let out = answer_to(&packet).expect("an answer");
        let (header, at) = ipv4::Header::parse(&out).expect("an IPv4 header");
        assert_eq!((header.source, header.destination).0, Ipv4Addr::new(10, 1, 0, 1));
        assert_eq!((header.destination, out.len()), (Ipv4Addr::new(10, 0, 0, 1), V4_BYTES_MAX));
        assert_eq!(out[at..at + 2], [3, 4]);
        assert_eq!(out[at + 6..at + 8], 1_400_u16.to_be_bytes());
        assert_eq!(out[at + 8..], packet[..out.len() - at - 8]);
        let mut sum = Checksum::default();
        sum.add(&out[at..]);
        assert_eq!(sum.finish(), 0);
    }

    #[test]
    fn packet_too_big_has_the_checksum_of_icmp_v6() {
        let mut packet = vec![0x60, 0, 0, 0, 6, 0, UDP, 9];
        packet.extend([0xfd; 16]);
        packet.extend([0xfc; 16]);
        packet.resize(40 + 0x600, 3);
        let out = answer_to(&packet).expect("an answer");
        assert_eq!(out[8..40], [[0xfc; 16], [0xfd; 16]].concat());
        assert_eq!(out.len(), V6_BYTES_MAX);
        assert_eq!((out[40], &out[44..48]), (2, &1_400_u32.to_be_bytes()[..]));
        let tuple = Headers::of(&out).expect("a packet").tuple;
        let bytes = (out.len() - 40) as u32;
        let mut sum = Checksum::of_pseudo_header(tuple.source, tuple.destination, ICMP_V6, bytes);
        sum.add(&out[40..]);
        assert_eq!(sum.finish(), 0);
    }

    #[test]
    fn errors_groups_and_packets_that_may_be_fragmented_get_no_answer() {
        assert_eq!(answer_to(&v4(false, UDP, 1_401)), None);
        // The type is 3: destination unreachable.
        assert_eq!(answer_to(&v4(true, ICMP, 1_401)), None);
        for first in [224, 240] {
            let mut group = v4(true, UDP, 1_401);
            group[16] = first;
            assert_eq!(answer_to(&group), None);
        }
        for (kind, is_answered) in [(1, false), (128, true), (137, false)] {
            let mut packet = vec![0x60, 0, 0, 0, 6, 0, ICMP_V6, 9];
            packet.extend([0xfd; 32]);
            packet.resize(40 + 0x600, kind);
            assert_eq!(answer_to(&packet).is_some(), is_answered, "type {kind}");
        }
    }

    /// Given a later fragment, expect an answer over IPv6 alone: RFC 1122 excludes those of IPv4.
    #[test]
    fn a_later_fragment_of_ipv6_has_its_answer() {
        let mut packet = vec![0x60, 0, 0, 0, 6, 0, 44, 9];
        packet.extend([0xfd; 32]);
        packet.extend([UDP, 0, 5, 1, 0, 0, 0, 7]);
        packet.resize(40 + 0x600, 3);
        assert!(answer_to(&packet).is_some());
        let mut packet = v4(true, UDP, 1_401);
        packet[7] = 100;
        assert_eq!(answer_to(&packet), None);
    }
}
