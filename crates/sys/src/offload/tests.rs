//! Splitting and joining, against what is written here byte by byte.

use super::*;
use proptest::prelude::*;

/// A packet with any headers that a join may have, and its checksums.
#[derive(Clone, Debug)]
struct Made {
    is_v4: bool,
    protocol: u8,
    flags: u8,
    sequence: u32,
    identification: u16,
    options: usize,
    payload: Vec<u8>,
}

impl Made {
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

    /// As a kernel hands it over: the checksum holds the sum of the pseudo header alone.
    fn handed_over(&self, segment_bytes: u16) -> (Offload, Vec<u8>) {
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

/// RFC 1071, section 1, a word at a time.
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

fn split(offload: Offload, packet: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut split = Split::new(offload, packet)?;
    let mut out = vec![0; 1 << 16];
    let next = || split.write_next(&mut out).map(|bytes| out[..bytes].to_vec());
    Some(std::iter::from_fn(next).collect())
}

/// Joins what may be joined, and returns each with its header in front.
fn join(packets: &[Vec<u8>]) -> Vec<(Offload, Vec<u8>)> {
    let mut joined = Vec::new();
    let mut rest = packets;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let Some(mut join) = Join::begin(first) else {
            joined.push((Offload::default(), first.clone()));
            continue;
        };
        let start = join.payload_start();
        let mut payload = first[start..].to_vec();
        while let Some((next, after)) = rest.split_first()
            && join.add(next)
        {
            payload.extend(&next[start..]);
            rest = after;
        }
        let finished = join.finish();
        joined.push((finished.offload, [finished.headers(), &payload].concat()));
    }
    joined
}

fn made(protocol: u8) -> impl Strategy<Value = Made> {
    let flags = prop::sample::select(vec![0x10, 0x18, 0x11, 0x19, 0x10, 0x18]);
    let payload = prop::collection::vec(any::<u8>(), 1..5_000);
    let options = (0..=10_usize).prop_map(|words| words * 4);
    (any::<bool>(), flags, any::<u32>(), any::<u16>(), options, payload).prop_map(
        move |(is_v4, flags, sequence, identification, options, payload)| Made {
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

/// Given 2,500 bytes of TCP that end the stream, in pieces of 1,000, expect three packets: numbers that
/// go on, FIN and PSH on the last, CWR on the first, and each as if it had been made alone.
#[test]
fn a_super_packet_is_split_as_a_link_would_carry_it() {
    let whole = Made {
        is_v4: true,
        protocol: TCP,
        flags: 0x99,
        sequence: u32::MAX - 999,
        identification: u16::MAX,
        options: 12,
        payload: (0..2_500).map(|number| number as u8).collect(),
    };
    let (offload, packet) = whole.handed_over(1_000);
    let expected = [(0x90, 0..1_000), (0x10, 1_000..2_000), (0x19, 2_000..2_500)];
    let expected: Vec<_> = expected
        .into_iter()
        .zip(0_u16..)
        .map(|((flags, range), number)| {
            let sequence = whole.sequence.wrapping_add(1_000 * u32::from(number));
            let identification = whole.identification.wrapping_add(number);
            let payload = whole.payload[range].to_vec();
            Made { flags, sequence, identification, payload, ..whole }.bytes()
        })
        .collect();
    assert_eq!(split(offload, &packet).expect("it is one"), expected);
}

/// What is no plain part of a stream is left alone: SYN, RST, URG, CWR, no payload, UDP.
#[test]
fn only_plain_parts_of_a_stream_are_joined() {
    let plain = Made {
        is_v4: true,
        protocol: TCP,
        flags: 0x10,
        sequence: 7,
        identification: 7,
        options: 0,
        payload: vec![1; 100],
    };
    assert!(Join::begin(&plain.bytes()).is_some());
    for flags in [0x12, 0x14, 0x30, 0x90, 0x00] {
        assert!(Join::begin(&Made { flags, ..plain.clone() }.bytes()).is_none(), "{flags:x}");
    }
    assert!(Join::begin(&Made { payload: Vec::new(), ..plain.clone() }.bytes()).is_none());
    assert!(Join::begin(&Made { protocol: UDP, ..plain.clone() }.bytes()).is_none());

    let mut join = Join::begin(&plain.bytes()).expect("plain");
    let next = Made { sequence: 107, identification: 8, ..plain.clone() };
    for other in [
        Made { sequence: 108, ..next.clone() },
        Made { identification: 9, ..next.clone() },
        Made { options: 4, ..next.clone() },
        Made { payload: vec![1; 101], ..next.clone() },
        Made { flags: 0x12, ..next.clone() },
    ] {
        assert!(!join.add(&other.bytes()), "{other:?}");
    }
    let mut fragment = next.bytes();
    fragment[6] = 0x20;
    assert!(!join.add(&fragment));
    assert!(join.add(&next.bytes()));
    let short = Made { sequence: 207, identification: 9, payload: vec![1; 99], ..plain.clone() };
    assert!(join.add(&short.bytes()));
    let after = Made { sequence: 306, identification: 10, ..plain };
    assert!(!join.add(&after.bytes()), "a short one is the last");
}

proptest! {
    /// Given a super-packet, expect packets no larger than asked for, each with right checksums, which
    /// joined are the super-packet again.
    #[test]
    fn joining_undoes_splitting(made in made(TCP), segment_bytes in 80_u16..1_461) {
        let (offload, packet) = made.handed_over(segment_bytes);
        let packets = split(offload, &packet).expect("it is one");
        let transport = usize::from(offload.checksum_start);
        let most = usize::from(offload.header_bytes + segment_bytes);
        for packet in &packets {
            prop_assert!(packet.len() <= most);
            prop_assert_eq!(slow_transport_sum(packet, transport), 0xffff);
            if made.is_v4 {
                prop_assert_eq!(slow_sum(&packet[..20]), 0xffff);
            }
        }
        let joined = join(&packets);
        prop_assert_eq!(joined.len(), 1);
        if packets.len() == 1 {
            prop_assert_eq!(&joined[0], &(Offload::default(), made.bytes()));
        } else {
            prop_assert_eq!(&joined[0], &(offload, packet));
        }
    }

    /// Given packets of one stream, some missing, expect what is joined to split into the same.
    #[test]
    fn splitting_undoes_joining(
        made in made(TCP),
        segment_bytes in 80_u16..1_461,
        missing: [bool; 64],
        last: [bool; 64],
    ) {
        let (offload, packet) = made.handed_over(segment_bytes);
        let mut packets = split(offload, &packet).expect("it is one");
        let mut number = 0;
        packets.retain_mut(|packet| {
            number += 1;
            // PSH in the midst, as where an application wrote the end of a message.
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
        let joined = join(&packets);
        let again: Vec<_> = joined
            .iter()
            .flat_map(|(offload, packet)| split(*offload, packet).expect("it is one"))
            .collect();
        prop_assert_eq!(again, packets);
    }

    /// Given datagrams handed over as one, expect each as if it had been sent alone, checksum
    /// included, and the payload in order.
    #[test]
    fn datagrams_are_split(made in made(UDP), segment_bytes in 80_u16..1_461) {
        let (offload, packet) = made.handed_over(segment_bytes);
        let packets = split(offload, &packet).expect("it is one");
        let expected = made.payload.chunks(segment_bytes.into()).zip(0..).map(|(payload, number)| {
            let identification = made.identification.wrapping_add(number);
            Made { identification, payload: payload.to_vec(), ..made.clone() }.bytes()
        });
        prop_assert_eq!(packets, expected.collect::<Vec<_>>());
    }

    /// Given a packet alone whose checksum is left to be made, expect it made.
    #[test]
    fn a_checksum_that_is_left_is_made(made in made(TCP)) {
        let (offload, packet) = made.handed_over(0);
        let packets = split(Offload { gso_type: 0, ..offload }, &packet).expect("it is one");
        prop_assert_eq!(packets, [made.bytes()]);
    }

    /// Given any bytes and headers near right ones, expect an end, packets that fit or say that they do
    /// not, no more of them than there are bytes, and nothing that panics.
    #[test]
    fn no_bytes_are_too_strange(
        made in made(TCP),
        changes: Vec<(prop::sample::Index, u8)>,
        header: [u8; BYTES],
        is_near: bool,
        room in 0_usize..3_000,
        raw: Vec<u8>,
    ) {
        let (offload, mut packet) = made.handed_over(500);
        for (place, byte) in changes {
            let place = place.index(packet.len().min(90));
            packet[place] = byte;
        }
        let offload = if is_near { offload } else { Offload::parse(&header) };
        for packet in [&packet, &raw] {
            let mut out = vec![0; room];
            if let Some(mut split) = Split::new(offload, packet) {
                let count = std::iter::from_fn(|| split.write_next(&mut out)).count();
                prop_assert!(count <= packet.len().max(1));
            }
            join(&[packet.clone(), packet.clone(), raw.clone()]);
            let mut plain = Join::begin(&made.bytes());
            if let Some(join) = &mut plain {
                let _ = join.add(packet);
            }
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written(bytes: [u8; BYTES]) {
        prop_assert_eq!(Offload::parse(&bytes).emit(), bytes);
    }
}
