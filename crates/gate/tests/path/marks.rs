//! DSCP and ECN field of packets and of the datagrams that carry them.

use bentpipe_core::packet::Ecn;
use bentpipe_core::time::Duration;
use bentpipe_core::tunnel::{RedundancySettings, TitrationSettings, TunnelSettings};
use bentpipe_core::wire::checksum::Checksum;
use bentpipe_core::wire::{UDP, ecn, ipv4, ipv6};
use bentpipe_gate::tunnel::Limits;
use bentpipe_gate::tunnel::path::HEADROOM;

use crate::world::{World, settings};

/// DSCP EF, and DSCP AF11.
const EF: u8 = 46 << 2;
const AF11: u8 = 10 << 2;
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// A datagram of UDP from a host of the terminal to one of the hub.
fn packet(is_v4: bool, traffic_class: u8) -> Vec<u8> {
    let mut packet = Vec::new();
    if is_v4 {
        ipv4::Header {
            source: [10, 0, 0, 1].into(),
            destination: [10, 1, 0, 1].into(),
            protocol: UDP,
            traffic_class,
            identification: 0x1234,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            time_to_live: 64,
            total_bytes: 500,
        }
        .emit(&mut packet);
    } else {
        ipv6::Header {
            source: [0xfd00, 0, 0, 0, 0, 0, 0, 1].into(),
            destination: [0xfd00, 1, 0, 0, 0, 0, 0, 1].into(),
            next_header: UDP,
            traffic_class,
            flow_label: 0xa_bcde,
            hop_limit: 64,
            payload_bytes: 460,
        }
        .emit(&mut packet);
    }
    packet.resize(500, 7);
    packet
}

/// What end 0 makes of packets in one batch: the traffic class and the bytes of each datagram.
fn sent(world: &mut World, packets: &[Vec<u8>]) -> Vec<(u8, Vec<u8>)> {
    let path = &mut world.ends[0].path;
    for packet in packets {
        let mut buffer = vec![0; HEADROOM];
        buffer.extend(packet);
        path.on_packet(world.now, &mut buffer);
    }
    path.flush(world.now);
    let datagrams = path.datagrams().iter().map(|(_, class, bytes)| (class, bytes.to_vec()));
    let datagrams = datagrams.collect();
    path.clear();
    datagrams
}

/// What end 1 delivers when a datagram of end 0 arrives with this ECN field.
fn delivered(world: &mut World, mut datagram: Vec<u8>, ecn: Ecn) -> Vec<Vec<u8>> {
    let from = world.ends[0].address;
    let path = &mut world.ends[1].path;
    path.on_datagram(world.now, &mut datagram, (from, ecn));
    let packets = path.packets().map(<[u8]>::to_vec).collect();
    path.clear();
    packets
}

/// Two ends with a session that code all packets, with a repair symbol for each, or none.
fn connected(is_coded: bool, titration: TitrationSettings) -> World {
    let mut settings = TunnelSettings {
        redundancy: RedundancySettings::Fixed { redundancy_ppm: 1_000_000, window_symbols: 64 },
        titration,
        ..settings()
    };
    settings.classifier.packet_size_bytes = if is_coded { 0 } else { 2_000 };
    World::connected(1, settings, Limits::DEFAULT)
}

/// Given packets of IPv4 and IPv6, coded and uncoded, expect the datagram of each to have its DSCP and ECN field, and the
/// repair its DSCP alone.
#[test]
fn datagrams_have_the_class_of_their_packet() {
    for (is_v4, is_coded) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut world = connected(is_coded, TitrationSettings::Immediate);
        for class in 0..=u8::MAX {
            let datagrams = sent(&mut world, &[packet(is_v4, class)]);
            let classes: Vec<_> = datagrams.iter().map(|&(class, _)| class).collect();
            let expected = [class, class & !CE];
            assert_eq!(classes, expected[..if is_coded { 2 } else { 1 }], "{is_v4} {is_coded}");
        }
    }
}

/// Given a repair symbol for each of two packets, 50 ms later, expect the DSCP of the newest packet that it covers.
#[test]
fn repair_has_the_dscp_of_its_newest_symbol() {
    let mut world = connected(true, TitrationSettings::Delayed { delay_ns: 50_000_000 });
    for class in [EF | ECT_0, AF11 | ECT_0] {
        world.now += Duration::from_millis(10);
        assert_eq!(sent(&mut world, &[packet(true, class)])[0].0, class);
    }
    for (expected, after) in [(EF, 40), (AF11, 10)] {
        let path = &mut world.ends[0].path;
        world.now += Duration::from_millis(after);
        path.wake(world.now, 1);
        let classes: Vec<_> = path.datagrams().iter().map(|(_, class, _)| class).collect();
        assert_eq!(classes, [expected]);
        path.clear();
    }
}

/// Given batches of packets that fit one symbol, expect the DSCP of the first, and an ECN field that holds for all.
#[test]
fn a_symbol_has_a_class_for_all_its_packets() {
    for (first, second, expected) in [
        (EF | ECT_0, AF11 | ECT_0, EF | ECT_0),
        (AF11 | ECT_1, EF | ECT_0, AF11 | ECT_1),
        (EF | ECT_0, EF, EF),
        (0, EF | ECT_0, 0),
        (EF | CE, EF | ECT_0, EF | ECT_0),
        (EF | CE, EF | CE, EF | CE),
    ] {
        let mut world = connected(true, TitrationSettings::Immediate);
        let datagrams = sent(&mut world, &[first, second].map(|class| packet(true, class)));
        assert_eq!(datagrams[0].0, expected, "{first:x} and {second:x}");
        let packets = delivered(&mut world, datagrams[0].1.clone(), Ecn::NotEct);
        assert_eq!(packets, [first, second].map(|class| packet(true, class)));
    }
    // Two fit a symbol of 1,432 bytes, so the third one begins another.
    let mut world = connected(true, TitrationSettings::Immediate);
    let classes = [EF, EF, AF11 | ECT_0].map(|class| packet(true, class));
    let datagrams = sent(&mut world, &classes);
    assert_eq!([datagrams[0].0, datagrams.last().expect("repair").0], [EF, AF11]);
    assert!(datagrams.iter().any(|&(class, _)| class == AF11 | ECT_0));
}

/// Given datagrams marked CE by the network, expect the packet of each to be marked if it is ECN-capable, with a correct
/// checksum, and nothing else to be changed; given other ECN fields, expect no change.
#[test]
fn marks_of_datagrams_arrive_inside() {
    for (is_v4, is_coded) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut world = connected(is_coded, TitrationSettings::Immediate);
        for class in [NOT_ECT, ECT_1, ECT_0, CE].map(|ecn| EF | ecn) {
            let before = packet(is_v4, class);
            for outer in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
                let (_, datagram) = sent(&mut world, std::slice::from_ref(&before)).swap_remove(0);
                let packets = delivered(&mut world, datagram, outer);
                let mut expected = before.clone();
                if outer == Ecn::Ce {
                    ecn::mark(&mut expected);
                    let is_marked = ecn::of(&packets[0]) == Ecn::Ce;
                    assert_eq!(is_marked, class != EF | NOT_ECT);
                }
                assert_eq!(packets, [expected], "{is_v4} {is_coded} {class:x} {outer:?}");
                let mut sum = Checksum::default();
                sum.add(&packets[0][..ipv4::HEADER_BYTES]);
                assert!(!is_v4 || sum.finish() == 0);
            }
        }
        let traffic = world.ends[1].counters(world.now).traffic;
        assert_eq!((traffic.ce_datagrams, traffic.unmarked_packets), (4, 1));
    }
}

/// Given a tunnel with packets of DSCP EF from the terminal, expect handshakes of both ends, and feedback of the hub, to have
/// DSCP CS0 and not to be ECN-capable.
#[test]
fn messages_of_the_tunnel_itself_have_no_class() {
    let mut world = World::new(1, settings(), Limits::DEFAULT);
    let classes = |world: &mut World, end: usize| {
        let path = &mut world.ends[end].path;
        path.wake(world.now, 1);
        let classes: Vec<_> = path.datagrams().iter().map(|(_, class, _)| class).collect();
        classes
    };
    assert_eq!(classes(&mut world, 0), [0], "the first message");
    let datagram = world.ends[0].path.datagrams().iter().next().expect("it is sent").2.to_vec();
    let from = world.ends[0].address;
    world.arrive(1, from, datagram);
    assert_eq!(classes(&mut world, 1), [0], "its answer");
    let mut world = World::connected(1, settings(), Limits::DEFAULT);
    let (_, datagram) = sent(&mut world, &[packet(true, EF | ECT_0)]).swap_remove(0);
    delivered(&mut world, datagram, Ecn::Ce);
    world.now += Duration::from_millis(20);
    assert_eq!(classes(&mut world, 1), [0], "feedback");
}
