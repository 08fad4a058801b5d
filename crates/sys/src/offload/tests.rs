//! Segmentation and coalescing, compared with packets written byte by byte.

use super::*;
use proptest::prelude::*;

/// A packet with any headers that coalescing supports, and valid checksums.
#[derive(Clone, Debug)]
struct TestPacket {
    is_v4: bool,
    protocol: u8,
    flags: u8,
    sequence: u32,
    identification: u16,
    options: usize,
    payload: Vec<u8>,
}

impl TestPacket {
    fn bytes(&self) -> Vec<u8> {
        let transport_bytes = match self.protocol {
            TCP => 20 + self.options,
            _ => 8,
        } + self.payload.len();
        let mut packet = Vec::new();
        if self.is_v4 {
            packet.extend([0x45, 2]);
            packet.extend((20 + transport_bytes as u16).to_be_bytes());
            packet.extend(self.identification.to_be_bytes());
            packet.extend([0x40, 0, 64, self.protocol, 0, 0, 10, 84, 0, 1, 10, 84, 0, 2]);
            let sum = slow_sum(&packet);
            packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
        } else {
            packet.extend([0x60, 1, 2, 3]);
            packet.extend((transport_bytes as u16).to_be_bytes());
            packet.extend([self.protocol, 64]);
            packet.extend((0..32).map(|byte| byte * 7));
        }
        let transport = packet.len();
        packet.extend([0x23, 0x28, 0xc0, 1]);
        if self.protocol == TCP {
            packet.extend(self.sequence.to_be_bytes());
            packet.extend([1, 2, 3, 4, ((20 + self.options) * 4) as u8, self.flags]);
            packet.extend([9, 9, 0, 0, 0, 0]);
            packet.extend(std::iter::repeat_n(1, self.options));
        } else {
            packet.extend((transport_bytes as u16).to_be_bytes());
            packet.extend([0, 0]);
        }
        packet.extend(&self.payload);
        let field = transport + if self.protocol == TCP { 16 } else { 6 };
        let sum = !slow_transport_sum(&packet, transport);
        let sum = if sum == 0 { 0xffff } else { sum };
        packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// The packet as a kernel sends it to an offloading device: the checksum field holds the sum of
    /// the pseudo-header alone.
    fn offloaded(&self, segment_bytes: u16) -> (Offload, Vec<u8>) {
        let mut packet = self.bytes();
        let transport = if self.is_v4 { 20 } else { 40 };
        let checksum_offset = if self.protocol == TCP { 16 } else { 6 };
        let sum = slow_sum(&pseudo_header(&packet, transport));
        let field = transport + checksum_offset;
        packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        let header_bytes = packet.len() - self.payload.len();
        let gso_type = match (self.protocol, self.is_v4) {
            (TCP, true) => 1,
            (TCP, false) => 4,
            _ => 5,
        };
        let offload = Offload {
            flags: 1,
            gso_type,
            header_bytes: header_bytes as u16,
            segment_bytes,
            checksum_start: transport as u16,
            checksum_offset: checksum_offset as u16,
        };
        (offload, packet)
    }
}

/// RFC 1071, section 1, one word at a time.
fn slow_sum(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0, |sum: u16, word| {
        let (sum, carry) =
            sum.overflowing_add(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
        sum + u16::from(carry)
    })
}

fn pseudo_header(packet: &[u8], transport: usize) -> Vec<u8> {
    let (addresses, protocol) = if packet[0] >> 4 == 4 {
        (&packet[12..20], packet[9])
    } else {
        (&packet[8..40], packet[6])
    };
    let mut bytes = addresses.to_vec();
    bytes.extend([0, protocol]);
    bytes.extend(((packet.len() - transport) as u32).to_be_bytes());
    bytes
}

fn slow_transport_sum(packet: &[u8], transport: usize) -> u16 {
    let mut bytes = pseudo_header(packet, transport);
    bytes.extend(&packet[transport..]);
    slow_sum(&bytes)
}

fn segment(offload: Offload, packet: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut segmenter = Segmenter::new(offload, packet)?;
    let mut out = vec![0; 1 << 16];
    let next = || segmenter.write_next(&mut out).map(|bytes| out[..bytes].to_vec());
    Some(std::iter::from_fn(next).collect())
}

/// Coalesces what can be coalesced, and returns each packet with its header.
fn coalesce(packets: &[Vec<u8>]) -> Vec<(Offload, Vec<u8>)> {
    let mut coalesced = Vec::new();
    let mut rest = packets;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let Some(mut coalescer) = Coalescer::start(first) else {
            coalesced.push((Offload::default(), first.clone()));
            continue;
        };
        let start = coalescer.payload_start();
        let mut payload = first[start..].to_vec();
        while let Some((next, after)) = rest.split_first()
            && coalescer.push(next)
        {
            payload.extend(&next[start..]);
            rest = after;
        }
        let finished = coalescer.finish();
        coalesced.push((finished.offload, [finished.headers(), &payload].concat()));
    }
    coalesced
}

fn packets_of(protocol: u8) -> impl Strategy<Value = TestPacket> {
    let flags = prop::sample::select(vec![0x10, 0x18, 0x11, 0x19, 0x10, 0x18]);
    let payload = prop::collection::vec(any::<u8>(), 1..5_000);
    let options = (0..=10_usize).prop_map(|words| words * 4);
    (any::<bool>(), flags, any::<u32>(), any::<u16>(), options, payload).prop_map(
        move |(is_v4, flags, sequence, identification, options, payload)| TestPacket {
            is_v4,
            protocol,
            flags,
            sequence,
            identification,
            options,
            payload,
        },
    )
}

/// Given 2,500 bytes of TCP with FIN and a segment size of 1,000, expect three packets with
/// consecutive sequence numbers, FIN and PSH on the last, CWR on the first, and each identical to
/// one built alone.
#[test]
fn a_super_packet_is_segmented_as_a_link_would_carry_it() {
    let whole = TestPacket {
        is_v4: true,
        protocol: TCP,
        flags: 0x99,
        sequence: u32::MAX - 999,
        identification: u16::MAX,
        options: 12,
        payload: (0..2_500).map(|number| number as u8).collect(),
    };
    let (offload, packet) = whole.offloaded(1_000);
    let expected = [(0x90, 0..1_000), (0x10, 1_000..2_000), (0x19, 2_000..2_500)];
    let expected: Vec<_> = expected
        .into_iter()
        .zip(0_u16..)
        .map(|((flags, range), number)| {
            let sequence = whole.sequence.wrapping_add(1_000 * u32::from(number));
            let identification = whole.identification.wrapping_add(number);
            let payload = whole.payload[range].to_vec();
            TestPacket { flags, sequence, identification, payload, ..whole }.bytes()
        })
        .collect();
    assert_eq!(segment(offload, &packet).expect("a valid super-packet"), expected);
}

/// Packets that coalescing does not support are left alone: SYN, RST, URG, CWR, no payload, UDP.
#[test]
fn only_consecutive_plain_segments_are_coalesced() {
    let plain = TestPacket {
        is_v4: true,
        protocol: TCP,
        flags: 0x10,
        sequence: 7,
        identification: 7,
        options: 0,
        payload: vec![1; 100],
    };
    assert!(Coalescer::start(&plain.bytes()).is_some());
    for flags in [0x12, 0x14, 0x30, 0x90, 0x00] {
        assert!(
            Coalescer::start(&TestPacket { flags, ..plain.clone() }.bytes()).is_none(),
            "{flags:x}"
        );
    }
    assert!(
        Coalescer::start(&TestPacket { payload: Vec::new(), ..plain.clone() }.bytes()).is_none()
    );
    assert!(Coalescer::start(&TestPacket { protocol: UDP, ..plain.clone() }.bytes()).is_none());

    let mut coalescer = Coalescer::start(&plain.bytes()).expect("plain");
    let next = TestPacket { sequence: 107, identification: 8, ..plain.clone() };
    for other in [
        TestPacket { sequence: 108, ..next.clone() },
        TestPacket { identification: 9, ..next.clone() },
        TestPacket { options: 4, ..next.clone() },
        TestPacket { payload: vec![1; 101], ..next.clone() },
        TestPacket { flags: 0x12, ..next.clone() },
    ] {
        assert!(!coalescer.push(&other.bytes()), "{other:?}");
    }
    let mut fragment = next.bytes();
    fragment[6] = 0x20;
    assert!(!coalescer.push(&fragment));
    assert!(coalescer.push(&next.bytes()));
    let short =
        TestPacket { sequence: 207, identification: 9, payload: vec![1; 99], ..plain.clone() };
    assert!(coalescer.push(&short.bytes()));
    let after = TestPacket { sequence: 306, identification: 10, ..plain };
    assert!(!coalescer.push(&after.bytes()), "a short packet is the last");
}

/// Given a TCP packet, expect its checksum to be valid, and invalid with any bit of the segment changed; no other protocol
/// has one.
#[test]
fn a_changed_bit_makes_a_tcp_checksum_invalid() {
    for is_v4 in [true, false] {
        let packet = TestPacket {
            is_v4,
            protocol: TCP,
            flags: 0x10,
            sequence: 7,
            identification: 1,
            options: 4,
            payload: vec![9; 33],
        };
        let bytes = packet.bytes();
        assert!(has_valid_tcp_checksum(&bytes));
        for at in if is_v4 { 20 } else { 40 }..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert!(!has_valid_tcp_checksum(&changed), "{at}");
        }
        let udp = TestPacket { protocol: UDP, ..packet };
        assert!(!has_valid_tcp_checksum(&udp.bytes()));
    }
}

proptest! {
    /// Given a super-packet, expect packets no longer than the segment size with valid checksums,
    /// which coalesce into the super-packet again.
    #[test]
    fn coalescing_reverses_segmentation(source in packets_of(TCP), segment_bytes in 80_u16..1_461) {
        let (offload, packet) = source.offloaded(segment_bytes);
        let packets = segment(offload, &packet).expect("a valid super-packet");
        let transport = usize::from(offload.checksum_start);
        let packet_bytes_max = usize::from(offload.header_bytes + segment_bytes);
        for packet in &packets {
            prop_assert!(packet.len() <= packet_bytes_max);
            prop_assert_eq!(slow_transport_sum(packet, transport), 0xffff);
            if source.is_v4 {
                prop_assert_eq!(slow_sum(&packet[..20]), 0xffff);
            }
        }
        let coalesced = coalesce(&packets);
        prop_assert_eq!(coalesced.len(), 1);
        if packets.len() == 1 {
            prop_assert_eq!(&coalesced[0], &(Offload::default(), source.bytes()));
        } else {
            prop_assert_eq!(&coalesced[0], &(offload, packet));
        }
    }

    /// Given packets of one stream, some missing, expect the coalesced super-packets to segment
    /// into the same packets.
    #[test]
    fn segmentation_reverses_coalescing(
        source in packets_of(TCP),
        segment_bytes in 80_u16..1_461,
        missing: [bool; 64],
        last: [bool; 64],
    ) {
        let (offload, packet) = source.offloaded(segment_bytes);
        let mut packets = segment(offload, &packet).expect("a valid super-packet");
        let mut number = 0;
        packets.retain_mut(|packet| {
            number += 1;
            // PSH inside the stream, where an application ended a write.
            if last[number % 64] && !missing[(number + 1) % 64] {
                let transport = usize::from(offload.checksum_start);
                packet[transport + 13] |= 8;
                packet[transport + 16..transport + 18].copy_from_slice(&[0, 0]);
                let sum = !slow_transport_sum(packet, transport);
                let sum = if sum == 0 { 0xffff } else { sum };
                packet[transport + 16..transport + 18].copy_from_slice(&sum.to_be_bytes());
            }
            !missing[number % 64]
        });
        let coalesced = coalesce(&packets);
        let again: Vec<_> = coalesced
            .iter()
            .flat_map(|(offload, packet)| segment(*offload, packet).expect("a valid super-packet"))
            .collect();
        prop_assert_eq!(again, packets);
    }

    /// Given datagrams in one super-packet, expect each as if it had been sent alone, checksum
    /// included, with the payloads in order.
    #[test]
    fn datagrams_are_segmented(source in packets_of(UDP), segment_bytes in 80_u16..1_461) {
        let (offload, packet) = source.offloaded(segment_bytes);
        let packets = segment(offload, &packet).expect("a valid super-packet");
        let expected = source.payload.chunks(segment_bytes.into()).zip(0..).map(|(payload, number)| {
            let identification = source.identification.wrapping_add(number);
            TestPacket { identification, payload: payload.to_vec(), ..source.clone() }.bytes()
        });
        prop_assert_eq!(packets, expected.collect::<Vec<_>>());
    }

    /// Given a single packet with an offloaded checksum, expect the checksum to be computed.
    #[test]
    fn an_offloaded_checksum_is_computed(source in packets_of(TCP)) {
        let (offload, packet) = source.offloaded(0);
        let packets = segment(Offload { gso_type: 0, ..offload }, &packet).expect("a valid super-packet");
        prop_assert_eq!(packets, [source.bytes()]);
    }

    /// Given arbitrary bytes and nearly valid headers, expect termination, packets that fit or
    /// report that they do not, no more packets than bytes, and no panic.
    #[test]
    fn arbitrary_bytes_do_not_panic(
        source in packets_of(TCP),
        changes: Vec<(prop::sample::Index, u8)>,
        header: [u8; BYTES],
        is_near: bool,
        room in 0_usize..3_000,
        raw: Vec<u8>,
    ) {
        let (offload, mut packet) = source.offloaded(500);
        for (index, byte) in changes {
            let index = index.index(packet.len().min(90));
            packet[index] = byte;
        }
        let offload = if is_near { offload } else { Offload::parse(&header) };
        for packet in [&packet, &raw] {
            let mut out = vec![0; room];
            if let Some(mut segmenter) = Segmenter::new(offload, packet) {
                let count = std::iter::from_fn(|| segmenter.write_next(&mut out)).count();
                prop_assert!(count <= packet.len().max(1));
            }
            coalesce(&[packet.clone(), packet.clone(), raw.clone()]);
            let mut plain = Coalescer::start(&source.bytes());
            if let Some(coalescer) = &mut plain {
                let _ = coalescer.push(packet);
            }
        }
    }

    #[test]
    fn a_header_round_trips(bytes: [u8; BYTES]) {
        prop_assert_eq!(Offload::parse(&bytes).emit(), bytes);
    }
}
