//! Packets that the programs of a lab send, and the headers of their devices.

use bentpipe_core::packet::Address;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::wire::ecn;
use bentpipe_live::addresses::ipv4;
use bentpipe_live::emulator::{Emulator, Options, replay};
use bentpipe_live::plain_link;
use bentpipe_sim::InterfaceId;
use bentpipe_sim::plan::{
    Aggregator, Branch, Function, Gateway, Host, Limit, Plan, Queue, SharingClass,
};
use bentpipe_sys::offload::{self, Coalescer, Offload, Segmenter};

use crate::ITERATIONS;
use crate::decoder::Decoder;

/// A packet without the larger part of its payload.
const PACKET_BYTES_MAX: usize = 512;

/// Given packets of any bytes from any interface, expect each to leave unchanged but for ECN or to be
/// counted, no slot to be lost, and a replay of the record to give the same events.
#[test]
fn any_packets_in_a_lab() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let mut decoder = Decoder::new(bytes);
        let plans = [plan(&mut decoder)];
        let options = Options {
            packet_bytes_max: PACKET_BYTES_MAX,
            tap: true,
            gateways: decoder.flag(),
            control_ports: decoder.flag().then_some((5_000, 5_003)),
            ..Options::default()
        };
        let mut emulator = Emulator::new(&plans, 1, options).expect("a link");
        let (mut now, mut arrived) = (Instant::START, Vec::new());
        while !decoder.is_empty() {
            now += Duration::from_nanos(decoder.scaled(20));
            arrive(&mut emulator, &mut decoder, now, &mut arrived);
            if decoder.flag() {
                emulator.run_until(now);
            }
            check_departures(&mut emulator, &arrived);
        }
        let end = now + Duration::from_secs(60);
        emulator.run_until(end);
        check_departures(&mut emulator, &arrived);
        assert_eq!(emulator.stored(), 0, "every slot is free");
        let (record, hash) = emulator.into_record().expect("a record");
        assert_eq!(replay(&plans, 1, &record, end).expect("a replay"), hash);
    });
}

fn plan(decoder: &mut Decoder<'_>) -> Plan {
    let mut plan = plain_link(1_000_000, Duration::from_millis(2), 1e-5);
    let bits = decoder.u8();
    if bits & 1 > 0 {
        // A second terminal.
        let (gateway, back) = (plan.gateways[1].clone(), plan.directions[1].clone());
        let branch = plan.directions[0].to[0].clone();
        plan.directions[0].to.push(Branch { gateway: 2, ..branch });
        plan.gateways.push(Gateway { name: "terminal-2".to_owned(), ..gateway });
        let name = "return-2".to_owned();
        plan.directions.push(bentpipe_sim::plan::Direction { name, from: 2, ..back });
    }
    if bits & 2 > 0 {
        let (name, delay_ns) = ("far".to_owned(), 9_000_000);
        plan.hosts.push(Host { name, gateway: 0, delay_ns, jitter_ns: 0, rate_bps: None });
    }
    if bits & 4 > 0 {
        let aggregator = Aggregator {
            frame_size_bytes: 1_500,
            packet_size_bytes: 300,
            hold_time_ns: 5_000_000,
            classes: None,
        };
        for gateway in &mut plan.gateways {
            gateway.functions = vec![Function::Aggregator(aggregator.clone())];
        }
    }
    let queue = match bits >> 3 & 3 {
        0 => Queue::DropTail { limit: Limit::Packets(3) },
        1 => Queue::StrictPriority { limit: Limit::Packets(9), classes: 3 },
        2 => Queue::Codel {
            limit: Limit::Packets(9),
            target_ns: 1_000,
            interval_ns: 100_000,
            ecn: true,
        },
        _ => Queue::SharedRate {
            limit: Limit::Unlimited,
            classes: [Some(5_000), None].map(sharing_class).into(),
        },
    };
    plan.directions.iter_mut().for_each(|direction| direction.queue = queue.clone());
    plan
}

/// A class with a ceiling if it has a reserved rate.
fn sharing_class(reserved_bps: Option<u64>) -> SharingClass {
    SharingClass {
        queue: None,
        reserved_bps,
        weight: 2,
        ceiling_bps: reserved_bps.map(|bps| 2 * bps),
    }
}

fn arrive(
    emulator: &mut Emulator,
    decoder: &mut Decoder<'_>,
    now: Instant,
    arrived: &mut Vec<Vec<u8>>,
) {
    let network = emulator.network();
    let interfaces = network.hosts.len() + network.inner.len();
    let from = InterfaceId(decoder.below(interfaces as u64) as u32);
    let to = Address(decoder.below(8) as u32);
    let is_plain = decoder.flag();
    let length = decoder.u16();
    let mut packet = decoder.bytes(usize::from(length) % (PACKET_BYTES_MAX + 1)).to_vec();
    if is_plain && packet.len() >= 20 {
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&ipv4(to).octets());
    }
    let slot = emulator.alloc().expect("a free slot");
    emulator.bytes_mut(slot)[..packet.len()].copy_from_slice(&packet);
    emulator.arrive(now, from, slot, packet.len());
    arrived.push(packet);
}

fn check_departures(emulator: &mut Emulator, arrived: &[Vec<u8>]) {
    let mut departures = Vec::new();
    emulator.take_departures(&mut departures);
    for departure in &departures {
        let bytes = emulator.bytes(departure);
        let is_known = arrived.iter().any(|packet| {
            let mut marked = packet.clone();
            ecn::mark(&mut marked);
            bytes == packet || bytes == marked
        });
        assert!(is_known, "a packet that nobody sent: {bytes:?}");
        emulator.free(departure.slot);
    }
}

/// Given any header of a device before any packet, expect a refusal, or segments that carry its payload.
#[test]
fn any_offload() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let Some((header, packet)) = bytes.split_first_chunk::<{ offload::BYTES }>() else {
            return;
        };
        let offload = Offload::parse(header);
        assert_eq!(offload.emit(), *header);
        let mut segments: Vec<Vec<u8>> = Vec::new();
        let mut buffer = vec![0; offload::PACKET_BYTES_MAX];
        if let Some(mut segmenter) = Segmenter::new(offload, packet) {
            while let Some(length) = segmenter.write_next(&mut buffer) {
                segments.push(buffer.get(..length).unwrap_or_default().to_vec());
            }
            assert!(!segments.is_empty());
            let total: usize = segments.iter().map(Vec::len).sum();
            assert!(total >= packet.len() || segments.len() == 1, "{total} bytes");
        }
        coalesce(segments.iter().map(Vec::as_slice).chain([packet]));
    });
}

/// Coalesces packets as a device does, and segments each super-packet again.
fn coalesce<'a>(packets: impl Iterator<Item = &'a [u8]>) {
    let (mut current, mut members): (Option<Coalescer>, Vec<&[u8]>) = (None, Vec::new());
    for packet in packets {
        if let Some(coalescer) = &mut current
            && coalescer.push(packet)
        {
            members.push(packet);
            continue;
        }
        check_super_packet(current.take(), &members);
        current = Coalescer::start(packet);
        members = vec![packet];
    }
    check_super_packet(current, &members);
}

fn check_super_packet(coalescer: Option<Coalescer>, members: &[&[u8]]) {
    let Some(coalescer) = coalescer else { return };
    let start = coalescer.payload_start();
    let coalesced = coalescer.finish();
    let mut whole = coalesced.headers().to_vec();
    members.iter().for_each(|packet| whole.extend_from_slice(&packet[start..]));
    let mut segmenter = Segmenter::new(coalesced.offload, &whole).expect("a valid super-packet");
    let mut buffer = vec![0; offload::PACKET_BYTES_MAX];
    for packet in members {
        let length = segmenter.write_next(&mut buffer).expect("as many packets");
        assert_eq!(length, packet.len());
        assert_eq!(buffer[start..length], packet[start..]);
    }
    assert_eq!(segmenter.write_next(&mut buffer), None);
}
