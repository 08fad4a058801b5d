//! ECN marking of real packets, without a clock.

use core::net::Ipv4Addr;

use bentpipe_core::packet::Ecn;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::wire::checksum::Checksum;
use bentpipe_core::wire::{UDP, ecn, ipv4};
use bentpipe_live::emulator::{Emulator, Options, replay};
use bentpipe_live::plain_link;
use bentpipe_sim::Side;
use bentpipe_sim::plan::{Limit, Queue};

const BYTES: usize = 1_250;

fn write_header(out: &mut [u8], traffic_class: u8, identification: u16) {
    let mut header = Vec::new();
    ipv4::Header {
        source: Ipv4Addr::new(10, 0, 0, 1),
        destination: Ipv4Addr::new(10, 64, 0, 1),
        protocol: UDP,
        traffic_class,
        identification,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        time_to_live: 64,
        total_bytes: BYTES as u16,
    }
    .emit(&mut header);
    out[..header.len()].copy_from_slice(&header);
}

/// Given 100 packets of 10 ms each that arrive at once at a CoDel queue, every second one
/// ECN-capable, expect all capable ones to be delivered, some of them marked with a valid checksum,
/// and only others to be dropped; and a replay of the record to give the same events.
#[test]
fn capable_packets_are_marked_and_others_dropped() {
    let mut plan = plain_link(1_000_000, Duration::from_millis(5), 0.0);
    let (target_ns, interval_ns) = (5_000_000, 50_000_000);
    plan.directions[0].queue =
        Queue::Codel { limit: Limit::Unlimited, target_ns, interval_ns, ecn: true };
    let plans = [plan];
    let options = Options { tap: true, ..Options::default() };
    let mut emulator = Emulator::new(&plans, 1, options).expect("a plain link");
    for number in 0..100u16 {
        let class = if number % 2 == 0 { Ecn::Ect0 } else { Ecn::NotEct };
        let slot = emulator.alloc().expect("a free slot");
        write_header(emulator.bytes_mut(slot), class as u8, number);
        emulator.arrive(Instant::START, Side::World, slot, BYTES);
    }
    let end = Instant::START + Duration::from_secs(2);
    emulator.run_until(end);
    let mut departures = Vec::new();
    emulator.take_departures(&mut departures);
    let (mut capable, mut marked) = (0, 0);
    for departure in departures {
        let packet = emulator.bytes(&departure);
        let mut sum = Checksum::default();
        sum.add(&packet[..ipv4::HEADER_BYTES]);
        assert_eq!(sum.finish(), 0);
        let found = ecn::of(packet);
        assert_eq!(found.is_capable(), packet[5].is_multiple_of(2), "by the identification");
        capable += u64::from(found.is_capable());
        marked += u64::from(found == Ecn::Ce);
        emulator.free(departure.slot);
    }
    let (_, counters) = emulator.counters().swap_remove(0);
    let dropped: u64 = counters.dropped.iter().map(|count| count.packets).sum();
    assert_eq!((capable, marked), (50, counters.marked.packets));
    assert!(marked > 3 && dropped > 3, "{marked} marked, {dropped} dropped");
    let (record, hash) = emulator.into_record().expect("a record");
    assert_eq!(replay(&plans, 1, &record, end).expect("the same plans"), hash);
}
