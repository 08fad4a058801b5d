//! Error messages of ICMP (RFC 792) and ICMPv6 (RFC 4443) as packets.

use std::net::{Ipv4Addr, Ipv6Addr};

use bentpipe_core::wire::checksum::Checksum;
use bentpipe_core::wire::{ipv4, ipv6};

pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMP_V6: u8 = 58;
/// The largest messages: RFC 1812, section 4.3.2.3, and RFC 4443, section 2.4 (c).
pub(crate) const V4_BYTES_MAX: usize = 576;
pub(crate) const V6_BYTES_MAX: usize = 1_280;
const HEADER_BYTES: usize = 8;
const HOP_LIMIT: u8 = 64;

/// Appends an error about `packet`. `head` has the type, the code, zeros for the checksum, and the second word.
pub(crate) fn emit_v4(
    packet: &[u8],
    (from, to): (Ipv4Addr, Ipv4Addr),
    head: [u8; HEADER_BYTES],
    out: &mut Vec<u8>,
) {
    let quoted = &packet[..packet.len().min(V4_BYTES_MAX - ipv4::HEADER_BYTES - HEADER_BYTES)];
    ipv4::Header {
        source: from,
        destination: to,
        protocol: ICMP,
        // Internetwork control, RFC 1812, section 4.3.2.5.
        traffic_class: 0xc0,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        time_to_live: HOP_LIMIT,
        total_bytes: (ipv4::HEADER_BYTES + HEADER_BYTES + quoted.len()) as u16,
    }
    .emit(out);
    finish(head, quoted, Checksum::default(), out);
}

/// As [`emit_v4`].
pub(crate) fn emit_v6(
    packet: &[u8],
    (from, to): (Ipv6Addr, Ipv6Addr),
    head: [u8; HEADER_BYTES],
    out: &mut Vec<u8>,
) {
    let quoted = &packet[..packet.len().min(V6_BYTES_MAX - ipv6::HEADER_BYTES - HEADER_BYTES)];
    let payload_bytes = HEADER_BYTES + quoted.len();
    ipv6::Header {
        source: from,
        destination: to,
        next_header: ICMP_V6,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: HOP_LIMIT,
        payload_bytes: payload_bytes as u16,
    }
    .emit(out);
    let bytes = payload_bytes as u32;
    let sum = Checksum::of_pseudo_header(from.into(), to.into(), ICMP_V6, bytes);
    finish(head, quoted, sum, out);
}

fn finish(head: [u8; HEADER_BYTES], quoted: &[u8], mut sum: Checksum, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend(head);
    out.extend_from_slice(quoted);
    sum.add(&out[start..]);
    out[start + 2..start + 4].copy_from_slice(&sum.finish().to_be_bytes());
}
