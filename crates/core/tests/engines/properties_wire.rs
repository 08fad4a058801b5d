//! Property tests of header emitters and parsers: headers are parsed as they were emitted, checksums are
//! correct, and no bytes make a parser panic or read out of bounds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bentpipe_core::packet::segment::{Flags, Segment, SynOptions, Timestamps};
use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::wire::checksum::Checksum;
use bentpipe_core::wire::{FiveTuple, Headers, Payload, TCP, UDP, ipv4, ipv6, pcapng, tcp, udp};
use proptest::prelude::*;

fn tuple(protocol: u8) -> impl Strategy<Value = FiveTuple> {
    let v4 = any::<[[u8; 4]; 2]>().prop_map(|ends| ends.map(IpAddr::from));
    let v6 = any::<[[u8; 16]; 2]>().prop_map(|ends| ends.map(IpAddr::from));
    let ports = any::<(u16, u16)>();
    (prop_oneof![v4, v6], ports).prop_map(move |([source, destination], ports)| FiveTuple {
        source,
        destination,
        protocol,
        source_port: ports.0,
        destination_port: ports.1,
    })
}

fn segment() -> impl Strategy<Value = Segment> {
    let syn_options = (any::<u16>(), any::<Option<u8>>(), any::<bool>())
        .prop_map(|(mss, window_shift, sack)| SynOptions { mss, window_shift, sack });
    let timestamps = any::<Option<(u32, u32)>>()
        .prop_map(|both| both.map(|(value, echo)| Timestamps { value, echo }));
    let numbers = (any::<u32>(), any::<Option<u32>>(), any::<u16>(), any::<u8>());
    let blocks = prop::collection::vec(any::<(u32, u32)>(), 0..=3);
    (numbers, prop::option::of(syn_options), timestamps, blocks).prop_map(
        |((seq, ack, window, bits), syn_options, timestamps, blocks)| {
            let (seq, ack, flags) = (SeqNumber(seq), ack.map(SeqNumber), Flags::from_bits(bits));
            let mut segment =
                Segment { seq, ack, timestamps, window, syn_options, flags, ..Segment::default() };
            for (first, end) in blocks {
                segment.sack.push(SeqNumber(first), SeqNumber(end));
            }
            segment
        },
    )
}

/// An IP header of either version in front of `transport`.
fn packet(tuple: &FiveTuple, transport: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match (tuple.source, tuple.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
            source,
            destination,
            protocol: tuple.protocol,
            traffic_class: 0,
            identification: 7,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            time_to_live: 64,
            total_bytes: (ipv4::HEADER_BYTES + transport.len()) as u16,
        }
        .emit(&mut out),
        (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Header {
            source,
            destination,
            next_header: tuple.protocol,
            traffic_class: 0,
            flow_label: 5,
            hop_limit: 64,
            payload_bytes: transport.len() as u16,
        }
        .emit(&mut out),
        _ => unreachable!("both ends have addresses of one version"),
    }
    out.extend_from_slice(transport);
    out
}

/// The sum over pseudo header, header and payload, which is zero if the checksum is correct.
fn sum(tuple: &FiveTuple, transport: &[u8]) -> u16 {
    let FiveTuple { source, destination, protocol, .. } = *tuple;
    let bytes = transport.len() as u32;
    let mut sum = Checksum::of_pseudo_header(source, destination, protocol, bytes);
    sum.add(transport);
    sum.finish()
}

proptest! {
    #[test]
    fn an_ipv4_header_is_parsed_back(
        (source, destination) in any::<([u8; 4], [u8; 4])>(),
        (protocol, traffic_class, time_to_live) in any::<(u8, u8, u8)>(),
        (identification, fragment_offset) in (any::<u16>(), 0..1u16 << 13),
        (dont_fragment, more_fragments) in any::<(bool, bool)>(),
        total_bytes in 20..=u16::MAX,
    ) {
        let header = ipv4::Header {
            source: source.into(),
            destination: destination.into(),
            protocol,
            traffic_class,
            identification,
            dont_fragment,
            more_fragments,
            fragment_offset,
            time_to_live,
            total_bytes,
        };
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        prop_assert_eq!(ipv4::Header::parse(&bytes), Some((header, 20)));
        let mut sum = Checksum::default();
        sum.add(&bytes);
        prop_assert_eq!(sum.finish(), 0);
    }

    #[test]
    fn an_ipv6_header_is_parsed_back(
        (source, destination) in any::<([u8; 16], [u8; 16])>(),
        (next_header, traffic_class, hop_limit) in any::<(u8, u8, u8)>(),
        (flow_label, payload_bytes) in (0..1u32 << 20, any::<u16>()),
    ) {
        let header = ipv6::Header {
            source: source.into(),
            destination: destination.into(),
            next_header,
            traffic_class,
            flow_label,
            hop_limit,
            payload_bytes,
        };
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        prop_assert_eq!(ipv6::Header::parse(&bytes), Some(header));
    }

    #[test]
    fn a_tcp_header_is_parsed_back_with_a_correct_checksum(
        tuple in tuple(TCP),
        sent in segment(),
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = Vec::new();
        tcp::emit(&mut bytes, &tuple, &sent, Payload::Bytes(&payload));
        let header = tcp::Header::parse(&bytes).expect("complete");
        prop_assert_eq!(header.bytes, bytes.len());
        let ports = (header.source_port, header.destination_port);
        prop_assert_eq!(ports, (tuple.source_port, tuple.destination_port));
        // Three blocks fit with timestamps, fewer with SYN options.
        let known: Vec<_> = sent.sack.iter().take(header.segment.sack.iter().count()).collect();
        prop_assert_eq!(header.segment.sack.iter().collect::<Vec<_>>(), known);
        let mut expected = sent;
        expected.sack = header.segment.sack;
        prop_assert_eq!(header.segment, expected);
        if sent.option_bytes() <= 40 {
            prop_assert_eq!(header.segment, sent);
            prop_assert_eq!(bytes.len() as u32, 20 + sent.option_bytes());
        }
        bytes.extend_from_slice(&payload);
        prop_assert_eq!(sum(&tuple, &bytes), 0);
        prop_assert_eq!(FiveTuple::of(&packet(&tuple, &bytes)), Some(tuple));
    }

    #[test]
    fn a_udp_header_is_parsed_back_with_a_correct_checksum(
        tuple in tuple(UDP),
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = Vec::new();
        udp::emit(&mut bytes, &tuple, Payload::Bytes(&payload));
        let header = udp::Header::parse(&bytes).expect("complete");
        prop_assert_eq!(usize::from(header.bytes), 8 + payload.len());
        prop_assert_ne!(header.checksum, 0);
        bytes.extend_from_slice(&payload);
        prop_assert_eq!(sum(&tuple, &bytes), 0);
        let of = FiveTuple::of(&packet(&tuple, &bytes));
        prop_assert_eq!(of, Some(tuple));
        prop_assert_eq!(of.map(|tuple| tuple.reversed().reversed()), Some(tuple));
    }

    /// Given a payload of zeros that are not stored, expect the checksum of as many bytes of zero.
    #[test]
    fn a_payload_that_is_not_stored_counts_as_zeros(
        tuple in tuple(TCP),
        segment in segment(),
        count in 0..2_000usize,
    ) {
        let zeros = vec![0; count];
        for emit in [
            |out: &mut Vec<u8>, tuple: &FiveTuple, segment: &Segment, payload: Payload<'_>| {
                tcp::emit(out, tuple, segment, payload);
            },
            |out: &mut Vec<u8>, tuple: &FiveTuple, _: &Segment, payload: Payload<'_>| {
                udp::emit(out, tuple, payload);
            },
        ] {
            let (mut with, mut without) = (Vec::new(), Vec::new());
            emit(&mut with, &tuple, &segment, Payload::Bytes(&zeros));
            emit(&mut without, &tuple, &segment, Payload::Zeros(count));
            prop_assert_eq!(with, without);
        }
    }

    /// The first byte is set to a known version, which random bytes have only one time in eight.
    #[test]
    fn no_bytes_make_a_parser_panic(
        version in prop::sample::select(vec![0x40u8, 0x60, 0x45, 0x00]),
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = version | *first & 0x0f;
        }
        let headers = Headers::of(&bytes);
        prop_assert_eq!(FiveTuple::of(&bytes), headers.map(|headers| headers.tuple));
        if let Some(Headers { total_bytes, transport_offset, .. }) = headers {
            prop_assert!(total_bytes >= 20);
            prop_assert!(transport_offset >= 20);
            // Eight extension headers of 2,048 bytes at most each.
            prop_assert!(transport_offset <= 40 + 8 * 2_048);
        }
        for from in 0..bytes.len().min(60) {
            let header = tcp::Header::parse(&bytes[from..]);
            prop_assert!(header.is_none_or(|header| (20..=60).contains(&header.bytes)));
            let header = udp::Header::parse(&bytes[from..]);
            prop_assert_eq!(header.is_some(), bytes.len() - from >= 8);
        }
    }

    /// Given chains of extension headers of random kinds and lengths, as of a malicious host, expect no panic.
    #[test]
    fn no_chain_of_extension_headers_makes_the_parser_panic(
        kinds in prop::collection::vec(
            prop::sample::select(vec![0u8, 43, 44, 51, 60, 135, 139, 140, 6, 17, 50, 59]), 1..20,
        ),
        lengths in prop::collection::vec(0..3u8, 20),
        cut in 0..400usize,
    ) {
        let mut transport = Vec::new();
        for (index, _) in kinds.iter().enumerate() {
            let next = kinds.get(index + 1).copied().unwrap_or(UDP);
            transport.extend_from_slice(&[next, lengths[index], 0, 0, 1, 2, 3, 4]);
            transport.extend(vec![0; 8 * usize::from(lengths[index])]);
        }
        let ends = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let tuple = FiveTuple {
            source: ends, destination: ends, protocol: kinds[0], source_port: 0, destination_port: 0,
        };
        let mut bytes = packet(&tuple, &transport);
        bytes.truncate(cut);
        prop_assert_eq!(Headers::of(&bytes).is_some(), bytes.len() >= 40);
    }

    /// Every block contains its length twice, all lengths are multiples of four, and their sum is that of the
    /// file.
    #[test]
    fn a_capture_is_a_sequence_of_complete_blocks(
        name in ".{0,40}",
        packets in prop::collection::vec(
            (any::<u32>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..100), any::<u32>(),
                prop::option::of(".{0,40}")),
            0..20,
        ),
    ) {
        let mut out = Vec::new();
        pcapng::section(&mut out, &name);
        pcapng::interface(&mut out, &pcapng::Interface { name: &name, snap_length: 80 });
        for (interface, at_ns, bytes, original_bytes, comment) in &packets {
            pcapng::packet(&mut out, &pcapng::Packet {
                interface: *interface,
                at_ns: *at_ns,
                bytes,
                original_bytes: *original_bytes,
                comment: comment.as_deref(),
            });
        }
        let (mut blocks, mut rest) = (0, &out[..]);
        while !rest.is_empty() {
            let number = |from: usize| {
                u32::from_le_bytes([rest[from], rest[from + 1], rest[from + 2], rest[from + 3]])
            };
            let length = number(4) as usize;
            prop_assert_eq!(length % 4, 0);
            prop_assert_eq!(number(length - 4) as usize, length);
            rest = &rest[length..];
            blocks += 1;
        }
        prop_assert_eq!(blocks, 2 + packets.len());
    }
}

/// Given a UDP datagram in two fragments, expect the second one to have the same addresses and protocol, and
/// no ports, although its first bytes could be read as ports.
#[test]
fn later_fragments_have_no_ports() {
    let ends = [[10, 0, 0, 1], [10, 64, 0, 1]].map(Ipv4Addr::from);
    let first = ipv4::Header {
        source: ends[0],
        destination: ends[1],
        protocol: UDP,
        traffic_class: 0,
        identification: 1,
        dont_fragment: false,
        more_fragments: true,
        fragment_offset: 0,
        time_to_live: 64,
        total_bytes: 28,
    };
    let payload = [0x12, 0x34, 0x56, 0x78, 0, 8, 0, 0];
    let second = ipv4::Header { more_fragments: false, fragment_offset: 1, ..first };
    let [first, second] = [first, second].map(|header| {
        let mut packet = Vec::new();
        header.emit(&mut packet);
        packet.extend_from_slice(&payload);
        Headers::of(&packet).expect("complete")
    });
    assert_eq!((first.tuple.source_port, first.tuple.destination_port), (0x1234, 0x5678));
    assert_eq!((second.tuple.source_port, second.tuple.destination_port), (0, 0));
    assert!(second.is_later_fragment && !first.is_later_fragment);
    assert_eq!((first.tuple.source, first.tuple.protocol), (ends[0].into(), UDP));
    assert_eq!(
        FiveTuple { source_port: 0x1234, destination_port: 0x5678, ..second.tuple },
        first.tuple
    );
}

/// Hop-by-hop options of 8 bytes, routing of 16, an authentication header of 4 (4 + 2) = 24 bytes and
/// a first fragment, then TCP: the ports are at 40 + 8 + 16 + 24 + 8 = 96.
#[test]
fn ports_are_found_behind_extension_headers() {
    let localhost = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let ends = |protocol, source_port, destination_port| FiveTuple {
        source: localhost,
        destination: localhost,
        protocol,
        source_port,
        destination_port,
    };
    let chain = |offset: u16| {
        let mut transport = vec![43, 0, 0, 0, 0, 0, 0, 0];
        transport.extend([51, 1].into_iter().chain([0; 14]));
        transport.extend([44, 4].into_iter().chain([0; 22]));
        let [high, low] = (offset << 3 | 1).to_be_bytes();
        transport.extend([TCP, 0, high, low, 0, 0, 0, 9]);
        transport.extend([0x01, 0xbb, 0xc0, 0x00]);
        Headers::of(&packet(&ends(0, 0, 0), &transport)).expect("complete")
    };
    let first = chain(0);
    assert_eq!(first.tuple, ends(TCP, 443, 49_152));
    assert_eq!((first.transport_offset, first.total_bytes), (96, 100));
    let later = chain(1);
    assert_eq!(later.tuple, ends(TCP, 0, 0));
    assert!(later.is_later_fragment);
}

/// Given nine headers of destination options, one more than the bound, expect the ninth as protocol.
#[test]
fn extension_headers_beyond_the_bound_are_not_skipped() {
    let chain = |count: usize| {
        let mut transport: Vec<u8> =
            (0..count - 1).flat_map(|_| [60, 0, 0, 0, 0, 0, 0, 0]).collect();
        transport.extend([UDP, 0, 0, 0, 0, 0, 0, 0]);
        transport.extend([0, 53, 0, 54, 0, 8, 0, 0]);
        let ends = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let tuple = FiveTuple {
            source: ends,
            destination: ends,
            protocol: 60,
            source_port: 0,
            destination_port: 0,
        };
        let found = FiveTuple::of(&packet(&tuple, &transport)).expect("complete");
        (found.protocol, found.source_port, found.destination_port)
    };
    assert_eq!(chain(8), (UDP, 53, 54));
    assert_eq!(chain(9), (60, 0, 0));
}

/// ICMP has no ports, whatever its first bytes are; nor has a UDP header of which three bytes are left, nor
/// are ports read beyond the length in the IP header.
#[test]
fn ports_are_read_only_where_they_exist() {
    let tuple = FiveTuple {
        source: Ipv4Addr::LOCALHOST.into(),
        destination: Ipv4Addr::LOCALHOST.into(),
        protocol: 1,
        source_port: 0,
        destination_port: 0,
    };
    let ports = |packet: &[u8]| {
        FiveTuple::of(packet).map(|tuple| (tuple.source_port, tuple.destination_port))
    };
    assert_eq!(ports(&packet(&tuple, &[8, 0, 1, 2, 3, 4])), Some((0, 0)));
    let udp = FiveTuple { protocol: UDP, ..tuple };
    assert_eq!(ports(&packet(&udp, &[0, 53, 0])), Some((0, 0)));
    let mut padded = packet(&udp, &[0, 53, 0]);
    padded.extend([7, 7, 7]);
    assert_eq!(ports(&padded), Some((0, 0)));
    assert_eq!(ports(&packet(&udp, &[0, 53, 0, 7])), Some((53, 7)));
}

/// Given a total length below the header length, a header length beyond the packet, or another version.
#[test]
fn an_invalid_ip_header_has_no_tuple() {
    let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, UDP, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert!(FiveTuple::of(&packet).is_some());
    assert!(FiveTuple::of(&packet[..19]).is_none());
    packet[3] = 19;
    assert!(FiveTuple::of(&packet).is_none());
    packet[3] = 24;
    packet[0] = 0x46;
    assert!(FiveTuple::of(&packet).is_none());
    packet[0] = 0x44;
    assert!(FiveTuple::of(&packet).is_none());
    packet[0] = 0x55;
    assert!(FiveTuple::of(&packet).is_none());
    assert!(FiveTuple::of(&[]).is_none());
    assert!(FiveTuple::of(&[0x60; 39]).is_none());
}

/// The options of a Linux SYN, byte by byte: 20 + 24 bytes.
#[test]
fn the_options_of_a_syn() {
    let syn_options = Some(SynOptions { mss: 1460, window_shift: Some(7), sack: true });
    let timestamps = Some(Timestamps { value: 1, echo: 0 });
    let syn = Segment { flags: Flags::SYN, syn_options, timestamps, ..Segment::default() };
    let tuple = FiveTuple {
        source: Ipv4Addr::new(10, 0, 0, 1).into(),
        destination: Ipv4Addr::new(10, 64, 0, 1).into(),
        protocol: TCP,
        source_port: 49_152,
        destination_port: 5_201,
    };
    let mut bytes = Vec::new();
    tcp::emit(&mut bytes, &tuple, &syn, Payload::Zeros(0));
    let options = [2, 4, 0x05, 0xb4, 1, 3, 3, 7, 1, 1, 4, 2, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(bytes[20..], options);
    assert_eq!((bytes[12], bytes[13]), (11 << 4, Flags::SYN.bits()));
}
