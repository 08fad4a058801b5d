//! Property tests of the processor: the conformance kit, and a reference that computes in exact fractions
//! when each packet is served.
//!
//! `PROPTEST_CASES` and `PROPTEST_RNG_SEED` (read by proptest) run more cases, or the same ones again; a
//! failure prints the setup.

use bentpipe_core::conformance::{ArrivalPattern, Guarantees, Script, check};
use bentpipe_core::engine::{Count, Engine};
use bentpipe_core::graph::Graph;
use bentpipe_core::link::{Processor, ProcessorConfig, ProcessorCounters};
use bentpipe_core::packet::{Packet, PacketId, Port};
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, EventKind, VecTrace};
use proptest::prelude::*;

proptest! {
    #![proptest_config(configured())]

    #[test]
    fn every_processor_keeps_the_invariants(setup in setups()) {
        let guarantees = guarantees(&setup.config, &setup.pattern);
        let verdict = check(|| setup.processor(), &guarantees, &setup.script());
        prop_assert!(verdict.is_ok(), "{}", verdict.expect_err("it is an error"));
    }

    #[test]
    fn every_packet_has_the_times_of_the_reference(setup in setups()) {
        let (script, mut trace) = (setup.script(), VecTrace::default());
        let mut graph = Graph::default();
        let node = graph.add(setup.processor());
        for (at, port, packet) in &script {
            graph.inject(*at, (node, *port), packet.clone(), Some(&mut trace));
        }
        graph.run_until(END, Some(&mut trace));
        let all_times = reference(&setup.config, &script);

        let egress = graph.drain_egress();
        let outputs: Vec<_> = egress.map(|(at, _, port, packet)| (at, port, packet)).collect();
        let mut served: Vec<_> =
            all_times.iter().filter_map(|times| Some((times.service?, times.port, times.packet.clone()))).collect();
        served.sort_by_key(|(service, ..)| service.order);
        let expected = served.iter().map(|(service, port, packet)| {
            (service.end, opposite(*port), packet.clone())
        });
        prop_assert_eq!(outputs, expected.collect::<Vec<_>>());
        let expected = served.iter().map(|(service, _, packet)| (service.start, packet.id));
        prop_assert_eq!(events(&trace, EventKind::Transmitted), expected.collect::<Vec<_>>());
        let dropped = EventKind::Dropped(DropCause::ProcessorOverload);
        let expected = all_times.iter().filter(|times| times.service.is_none());
        let expected: Vec<_> = expected.map(|times| (times.arrived, times.packet.id)).collect();
        prop_assert_eq!(events(&trace, dropped), expected);
        prop_assert_eq!(graph.engine(node).counters(), counters(&all_times));
        prop_assert_eq!(graph.engine(node).ledger().held, Count::default());
    }
}

/// Given one packet per second and 50 ms per byte, 39 s for a packet of 764 bytes, and one every 30 s.
#[test]
fn a_week_of_overload_stays_within_the_buffers() {
    let config = ProcessorConfig {
        packets_per_second: 1,
        per_byte: Duration::from_millis(50),
        buffer_packets: 10,
    };
    let pattern = ArrivalPattern::week(both_ports(), 20_000);
    let setup = Setup { config, pattern, seed: 1 };
    let guarantees = guarantees(&setup.config, &setup.pattern);
    assert_eq!(guarantees.held_packets_max, Some(21));
    assert_eq!(check(|| setup.processor(), &guarantees, &setup.script()), Ok(()));
}

/// Later than all events of a setup: 120 packets of 9,000 bytes at 99 us per byte and one per second take
/// four minutes.
const END: Instant = Instant::from_nanos(1 << 62);

fn configured() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let cases = from_environment.cases.max(1_000);
    ProptestConfig { cases, failure_persistence: None, ..from_environment }
}

/// A processor and its input.
#[derive(Clone, Debug)]
struct Setup {
    config: ProcessorConfig,
    pattern: ArrivalPattern,
    seed: u64,
}

impl Setup {
    fn processor(&self) -> Processor {
        Processor::new(self.config).expect("a rate above zero")
    }

    fn script(&self) -> Script {
        self.pattern.script(self.seed)
    }
}

fn both_ports() -> Vec<Port> {
    vec![Processor::LAN, Processor::LINK]
}

fn opposite(side: Port) -> Port {
    if side == Processor::LAN { Processor::LINK } else { Processor::LAN }
}

/// The minimum delay is that of the smallest packet in an idle processor; at most one packet is in service.
fn guarantees(config: &ProcessorConfig, pattern: &ArrivalPattern) -> Guarantees {
    let per_packet = Duration::from_nanos(NANOS_PER_SECOND / config.packets_per_second);
    let min_delay = per_packet + config.per_byte.saturating_mul((*pattern.bytes.start()).into());
    Guarantees {
        minimum_delay: both_ports().into_iter().map(|port| (port, min_delay)).collect(),
        held_packets_max: Some(2 * config.buffer_packets + 1),
        ..Guarantees::default()
    }
}

/// `1..=mantissa_max` times a power of ten up to `exponent_max`: as many small as large numbers.
fn scaled(mantissa_max: u64, exponent_max: u32) -> impl Strategy<Value = u64> {
    (1..=mantissa_max, 0..=exponent_max)
        .prop_map(|(mantissa, exponent)| mantissa * 10u64.pow(exponent))
}

/// From one packet per second to ten per nanosecond; most service times are not integers in nanoseconds.
fn configs() -> impl Strategy<Value = ProcessorConfig> {
    let per_byte = prop_oneof![2 => Just(0), 1 => scaled(99, 3)].prop_map(Duration::from_nanos);
    (scaled(9_999, 6), per_byte, 0u64..30).prop_map(
        |(packets_per_second, per_byte, buffer_packets)| ProcessorConfig {
            packets_per_second,
            per_byte,
            buffer_packets,
        },
    )
}

fn setups() -> impl Strategy<Value = Setup> {
    let ports = prop_oneof![
        4 => Just(both_ports()),
        1 => Just(vec![Processor::LAN]),
        1 => Just(vec![Processor::LINK]),
        1 => Just(vec![Processor::LAN, Processor::LINK, Processor::LINK, Processor::LINK]),
    ];
    let pattern = (ports, 1u64..120, scaled(999, 7), scaled(99, 5), 1u64..40, 1u32..9_000)
        .prop_map(|(ports, packets, span, pause, burst_packets_max, bytes_max)| ArrivalPattern {
            packets,
            span: Duration::from_nanos(span),
            pause_max: Duration::from_nanos(pause),
            burst_packets_max,
            bytes: 1..=bytes_max,
            ..ArrivalPattern::mixed(ports)
        });
    (configs(), pattern, any::<u64>()).prop_map(|(config, pattern, seed)| Setup {
        config,
        pattern,
        seed,
    })
}

/// The times of one packet.
#[derive(Clone, Debug)]
struct PacketTimes {
    arrived: Instant,
    port: Port,
    packet: Packet,
    /// `None` if the input buffer was full.
    service: Option<Service>,
}

#[derive(Clone, Copy, Debug)]
struct Service {
    order: usize,
    start: Instant,
    end: Instant,
}

/// The times of each packet. Which packets are in service or wait when a packet arrives depends only on
/// earlier packets, so their whole schedule is recomputed for each packet.
fn reference(config: &ProcessorConfig, script: &Script) -> Vec<PacketTimes> {
    let mut all_times: Vec<PacketTimes> = Vec::new();
    for (arrived, port, packet) in script {
        let services = || all_times.iter().filter_map(|times| Some((times.port, times.service?)));
        let is_busy = services().any(|(_, service)| service.end > *arrived);
        let waits = |(side, service): &(Port, Service)| side == port && service.start > *arrived;
        let waiting = services().filter(waits).count() as u64;
        let mut times =
            PacketTimes { arrived: *arrived, port: *port, packet: packet.clone(), service: None };
        if !is_busy || waiting < config.buffer_packets {
            times.service = Some(Service { order: 0, start: *arrived, end: *arrived });
        }
        all_times.push(times);
        schedule(config, &mut all_times);
    }
    all_times
}

/// Serves the accepted packets, with time in units of 1 / packets_per_second nanoseconds, in which every
/// service time is an integer.
fn schedule(config: &ProcessorConfig, all_times: &mut [PacketTimes]) {
    let rate = u128::from(config.packets_per_second);
    let nanos = |exact: u128| u64::try_from(exact / rate).expect("before the end");
    let mut unserved: Vec<_> =
        (0..all_times.len()).filter(|n| all_times[*n].service.is_some()).collect();
    let (mut free_at, mut last) = (0, None);
    for order in 0..unserved.len() {
        let free = Instant::from_nanos(nanos(free_at));
        // Of the packets that arrived before the CPU became free, one of the other side, else of the same
        // side; if there are none, the next to arrive.
        let waits = |n: &usize| all_times[*n].arrived < free;
        let other = unserved.iter().position(|n| waits(n) && Some(all_times[*n].port) != last);
        let times = &mut all_times[unserved.remove(other.unwrap_or(0))];
        last = Some(times.port);
        if times.arrived > free {
            free_at = u128::from(times.arrived.as_nanos()) * rate;
        }
        let start = Instant::from_nanos(nanos(free_at));
        let bytes = u128::from(times.packet.bytes);
        free_at +=
            u128::from(NANOS_PER_SECOND) + bytes * u128::from(config.per_byte.as_nanos()) * rate;
        times.service = Some(Service { order, start, end: Instant::from_nanos(nanos(free_at)) });
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

fn counters(all_times: &[PacketTimes]) -> ProcessorCounters {
    let mut counters = ProcessorCounters::default();
    for times in all_times {
        let (side, bytes) = (usize::from(times.port.0), times.packet.bytes);
        counters.received[side].add(bytes);
        match times.service {
            Some(service) => {
                counters.forwarded[side].add(bytes);
                counters.busy += service.end - service.start;
            }
            None => counters.dropped[side].add(bytes),
        }
    }
    counters
}

/// The events of one kind: when, and of which packet.
fn events(trace: &VecTrace, kind: EventKind) -> Vec<(Instant, PacketId)> {
    let of_kind = trace.0.iter().filter(|event| event.kind == kind);
    of_kind.map(|event| (event.at, event.packet)).collect()
}
