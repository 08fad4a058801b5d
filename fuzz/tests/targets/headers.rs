//! Headers of IP packets: no bytes make a parser panic, and what is parsed is emitted and parsed back.

use bentpipe_core::packet::Ecn;
use bentpipe_core::packet::segment::Segment;
use bentpipe_core::wire::checksum::Checksum;
use bentpipe_core::wire::{FiveTuple, Headers, Payload, ecn, ipv4, ipv6, tcp, udp};

use crate::ITERATIONS;

#[test]
fn any_bytes() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let headers = Headers::of(bytes);
        assert_eq!(FiveTuple::of(bytes), headers.map(|headers| headers.tuple));
        if let Some(headers) = headers {
            check_offsets(bytes, &headers);
        }
        check_transport(bytes, headers.map(|headers| headers.tuple));
        check_ip(bytes);
        check_ecn(bytes);
    });
}

fn check_offsets(bytes: &[u8], headers: &Headers) {
    assert!(headers.total_bytes >= 20, "{headers:?}");
    assert!(headers.transport_offset >= 20, "{headers:?}");
    // Eight extension headers of 2,048 bytes at most each.
    assert!(headers.transport_offset <= 40 + 8 * 2_048, "{headers:?}");
    let ports = (headers.tuple.source_port, headers.tuple.destination_port);
    if headers.is_later_fragment || bytes.len() < headers.transport_offset + 4 {
        assert_eq!(ports, (0, 0), "{headers:?}");
    }
    assert_eq!(headers.tuple.reversed().reversed(), headers.tuple);
}

/// A parsed header without unknown options is emitted as the bytes that it was parsed from.
fn check_ip(bytes: &[u8]) {
    let mut out = Vec::new();
    if let Some((header, length)) = ipv4::Header::parse(bytes) {
        assert!((20..=60).contains(&length) && length <= bytes.len(), "{length}");
        header.emit(&mut out);
        // The checksum of the bytes may be wrong, and the reserved bit (RFC 791) is not emitted.
        assert_eq!(out[..6], [&[0x45], &bytes[1..6]].concat());
        assert_eq!(out[8..10], bytes[8..10]);
        assert_eq!(out[12..], bytes[12..20]);
        let mut sum = Checksum::default();
        sum.add(&out);
        assert_eq!(sum.finish(), 0);
    }
    out.clear();
    if let Some(header) = ipv6::Header::parse(bytes) {
        header.emit(&mut out);
        assert_eq!(out, bytes[..40]);
    }
}

fn check_transport(bytes: &[u8], tuple: Option<FiveTuple>) {
    for from in 0..bytes.len().min(60) {
        let header = udp::Header::parse(&bytes[from..]);
        assert_eq!(header.is_some(), bytes.len() - from >= 8);
        let Some(header) = tcp::Header::parse(&bytes[from..]) else { continue };
        assert!((20..=60).contains(&header.bytes), "{header:?}");
        let Some(tuple) = tuple else { continue };
        let mut out = Vec::new();
        let tuple = FiveTuple {
            source_port: header.source_port,
            destination_port: header.destination_port,
            ..tuple
        };
        tcp::emit(&mut out, &tuple, &header.segment, Payload::Zeros(0));
        let again = tcp::Header::parse(&out).expect("an emitted header is complete");
        assert_eq!((again.bytes, again.source_port), (out.len(), header.source_port));
        // A SYN without the MSS option gets one, which may take the room of a SACK block.
        let (sent, kept) = (header.segment.sack, again.segment.sack);
        assert!(kept.iter().eq(sent.iter().take(kept.iter().count())), "from {from}");
        assert!(kept == sent || header.segment.flags.syn(), "from {from}");
        assert_eq!(Segment { sack: sent, ..again.segment }, header.segment, "from {from}");
    }
}

/// A mark changes only the field and keeps the checksum of the IPv4 header as right or wrong as it was.
fn check_ecn(bytes: &[u8]) {
    let mut marked = bytes.to_vec();
    ecn::mark(&mut marked);
    let before = ecn::of(bytes);
    let expected = if before.is_capable() { Ecn::Ce } else { Ecn::NotEct };
    assert_eq!(ecn::of(&marked), expected);
    if matches!(before, Ecn::NotEct | Ecn::Ce) {
        assert_eq!(marked, bytes);
    }
    let Some((_, 20)) = ipv4::Header::parse(bytes) else { return };
    let [before, after] = [bytes, &marked].map(|packet| {
        let mut sum = Checksum::default();
        sum.add(&packet[..20]);
        sum.finish()
    });
    assert_eq!(before == 0, after == 0, "valid before and after, or neither");
}
