use super::*;
use bentpipe_core::packet::segment::{Flags, SynOptions};
use proptest::prelude::*;

/// A SYN of a client with three bytes of data (TCP Fast Open), and then what a device may append.
fn syn(client: &str, server: &str, flags: Flags) -> Vec<u8> {
    let (client, server): (SocketAddr, SocketAddr) =
        (client.parse().expect("an address"), server.parse().expect("an address"));
    let tuple = FiveTuple {
        source: client.ip(),
        destination: server.ip(),
        protocol: TCP,
        source_port: client.port(),
        destination_port: server.port(),
    };
    let options = SynOptions { mss: 1_460, window_shift: Some(7), sack: true };
    let seq = SeqNumber(u32::MAX - 1);
    let segment = Segment { seq, flags, syn_options: Some(options), ..Segment::default() };
    let (mut transport, mut packet) = (Vec::new(), Vec::new());
    tcp::emit(&mut transport, &tuple, &segment, Payload::Bytes(b"tfo"));
    transport.extend_from_slice(b"tfo");
    match (client.ip(), server.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
            source,
            destination,
            protocol: TCP,
            traffic_class: 0,
            identification: 9,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            time_to_live: 63,
            total_bytes: (ipv4::HEADER_BYTES + transport.len()) as u16,
        }
        .emit(&mut packet),
        (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Header {
            source,
            destination,
            next_header: TCP,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 63,
            payload_bytes: transport.len() as u16,
        }
        .emit(&mut packet),
        _ => panic!("two versions"),
    }
    packet.extend(transport);
    packet
}

const ENDS: [[&str; 2]; 2] =
    [["10.1.0.2:40000", "10.2.0.2:80"], ["[2001:db8::2]:40000", "[2001:db8:1::2]:443"]];

/// Given a SYN and padding after it, expect the packet without the padding, its ends, and the refusal that a
/// host sends: acknowledging the SYN and the three bytes, with right checksums.
#[test]
fn a_syn_is_refused_as_by_its_server() {
    for [client, server] in ENDS {
        let packet = syn(client, server, Flags::SYN);
        let padded = [&packet[..], &[0; 6]].concat();
        let found = Syn::parse(&padded, true).expect("a SYN");
        assert_eq!(found.packet(), packet);
        assert_eq!(found.ends().client.to_string(), client);
        assert_eq!(found.ends().server.to_string(), server);
        let refusal = found.refusal();
        let headers = Headers::of(&refusal).expect("a packet");
        assert_eq!(headers.total_bytes, refusal.len());
        assert_eq!(headers.tuple, found.tuple.reversed());
        let transport = &refusal[headers.transport_offset..];
        assert_eq!(checksum(&headers.tuple, transport), 0);
        let header = tcp::Header::parse(transport).expect("a header");
        assert_eq!(header.flags, tcp::RST | tcp::ACK);
        // 2^32 - 2, a SYN and three bytes.
        assert_eq!(header.segment.ack, Some(SeqNumber(2)));
    }
}

/// Given a SYN, expect one without hops and the same one in the other direction, both with right checksums.
#[test]
fn a_syn_that_opens_nothing_has_no_hops() {
    for ([client, server], hops) in ENDS.into_iter().zip([8, 7]) {
        let packet = syn(client, server, Flags::SYN);
        let held = Syn::parse(&packet, true).expect("a SYN");
        let [from_client, from_server] =
            held.reopening().map(|packet| Syn::parse(&packet, true).expect("a SYN"));
        let Ends { client, server } = held.ends();
        assert_eq!(from_client.ends(), held.ends());
        assert_eq!(from_server.ends(), Ends { client: server, server: client });
        for mut found in [from_client.packet, from_server.packet] {
            assert_eq!((found[hops], found.len()), (0, packet.len()));
            found[hops] = packet[hops];
            // What follows the ports is the same.
            assert_eq!(found[44..], packet[44..]);
        }
    }
}

/// Given a reset and a SYN of a client, expect the ends of the first one alone, also if it is cut behind its header.
#[test]
fn the_ends_of_what_is_no_syn_are_found() {
    for [client, server] in ENDS {
        let reset = syn(client, server, Flags::RST);
        let ends = Ends::of_other(&reset[..reset.len() - 3]).expect("the ends");
        assert_eq!(
            (ends.client.to_string(), ends.server.to_string()),
            (client.into(), server.into())
        );
        assert_eq!(Ends::of_other(&syn(client, server, Flags::SYN)), None);
        assert_eq!(Ends::of_other(&reset[..30]), None);
    }
}

/// Given a wrong checksum, expect no SYN if the sender has set it, and the right one if it was left to a
/// device.
#[test]
fn checksums_are_verified_or_set() {
    for [client, server] in ENDS {
        let whole = syn(client, server, Flags::SYN);
        let mut packet = whole.clone();
        let transport = Headers::of(&packet).expect("a packet").transport_offset;
        packet[transport + CHECKSUM] ^= 0x55;
        assert_eq!(Syn::parse(&packet, true), None);
        assert_eq!(Syn::parse(&packet, false).expect("a SYN").packet(), whole);
    }
}

/// Given another packet of TCP, or a truncated SYN, expect none.
#[test]
fn other_packets_are_no_syn() {
    let [client, server] = ENDS[0];
    assert_eq!(Syn::parse(&syn(client, server, Flags::FIN), true), None);
    let whole = syn(client, server, Flags::SYN);
    for bytes in 0..whole.len() {
        assert_eq!(Syn::parse(&whole[..bytes], false), None, "{bytes} bytes");
    }
}

proptest! {
    /// Given any bytes, expect no panic, and a SYN that parses again to itself.
    #[test]
    fn any_bytes_are_parsed(mut bytes in prop::collection::vec(any::<u8>(), 0..120), v6: bool) {
        if let Some(first) = bytes.first_mut() {
            *first = if v6 { 0x60 } else { 0x45 };
        }
        if let Some(syn) = Syn::parse(&bytes, false) {
            prop_assert_eq!(Syn::parse(syn.packet(), true), Some(syn.clone()));
            prop_assert!(Headers::of(&syn.refusal()).is_some());
        }
    }

    /// Given a SYN with any byte changed, expect no panic, and no SYN unless the change is in the IP header.
    #[test]
    fn a_changed_byte_is_found(at in 20..100usize, change in 1..=255u8) {
        let mut packet = syn(ENDS[0][0], ENDS[0][1], Flags::SYN);
        let at = at % packet.len();
        packet[at] ^= change;
        let found = Syn::parse(&packet, true);
        prop_assert!(at < ipv4::HEADER_BYTES || found.is_none());
    }
}

/// Given a SYN, expect errors of both versions that quote it, from the server's address, with the codes of RFC 792 and
/// RFC 4443 and right checksums.
#[test]
fn a_syn_to_no_host_is_answered_by_an_icmp_error() {
    let reasons = [Unreachable::Network, Unreachable::Host, Unreachable::Prohibited];
    for ([client, server], kind, codes) in [(ENDS[0], 3, [0, 1, 13]), (ENDS[1], 1, [0, 3, 1])] {
        let packet = syn(client, server, Flags::SYN);
        let held = Syn::parse(&packet, true).expect("a SYN");
        for (reason, code) in reasons.into_iter().zip(codes) {
            let error = held.unreachable(reason);
            let headers = Headers::of(&error).expect("a packet");
            let Ends { client, server } = held.ends();
            assert_eq!(
                (headers.tuple.source, headers.tuple.destination),
                (server.ip(), client.ip())
            );
            let message = &error[headers.transport_offset..];
            assert_eq!(message[..2], [kind, code]);
            assert_eq!(message[8..], packet);
            let mut sum = match client.ip() {
                IpAddr::V4(_) => Checksum::default(),
                IpAddr::V6(to) => {
                    let bytes = message.len() as u32;
                    Checksum::of_pseudo_header(server.ip(), to.into(), icmp::ICMP_V6, bytes)
                }
            };
            sum.add(message);
            assert_eq!(sum.finish(), 0);
        }
    }
}
