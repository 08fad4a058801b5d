//! A processor of any speed and buffer, fed on both sides: through the conformance kit, and against
//! a reference that computes in exact fractions which packet is served when.
//!
//! `PROPTEST_CASES` and `PROPTEST_RNG_SEED` (read by proptest) run more cases, or the same ones; a
//! failure prints the set-up that shows it.

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
    fn every_processor_keeps_the_laws(setup in setups()) {
        let guarantees = guarantees(&setup.config, &setup.shape);
        let verdict = check(|| setup.processor(), &guarantees, &setup.script());
        prop_assert!(verdict.is_ok(), "{}", verdict.expect_err("just seen"));
    }

    #[test]
    fn every_packet_is_served_when_the_reference_says(setup in setups()) {
        let (script, mut trace) = (setup.script(), VecTrace::default());
        let mut graph = Graph::default();
        let node = graph.add(setup.processor());
        for (at, port, packet) in &script {
            graph.inject(*at, (node, *port), packet.clone(), Some(&mut trace));
        }
        graph.run_until(END, Some(&mut trace));
        let ways = reference(&setup.config, &script);

        let egress = graph.drain_egress();
        let outputs: Vec<_> = egress.map(|(at, _, port, packet)| (at, port, packet)).collect();
        let mut served: Vec<_> =
            ways.iter().filter_map(|way| Some((way.service?, way.port, way.packet.clone()))).collect();
        served.sort_by_key(|(service, ..)| service.turn);
        let expected = served.iter().map(|(service, port, packet)| {
            (service.end, across(*port), packet.clone())
        });
        prop_assert_eq!(outputs, expected.collect::<Vec<_>>());
        let expected = served.iter().map(|(service, _, packet)| (service.start, packet.id));
        prop_assert_eq!(facts(&trace, EventKind::Transmitted), expected.collect::<Vec<_>>());
        let lost = EventKind::Dropped(DropCause::ProcessorOverload);
        let expected = ways.iter().filter(|way| way.service.is_none());
        let expected: Vec<_> = expected.map(|way| (way.came, way.packet.id)).collect();
        prop_assert_eq!(facts(&trace, lost), expected);
        prop_assert_eq!(graph.engine(node).counters(), counters(&ways));
        prop_assert_eq!(graph.engine(node).ledger().held, Count::default());
    }
}

/// One packet a second, and 50 ms a byte: 39 s for a packet of 764 bytes. One comes every 30 s.
#[test]
fn a_week_of_overload_stays_within_the_buffers() {
    let config = ProcessorConfig {
        packets_per_second: 1,
        per_byte: Duration::from_millis(50),
        buffer_packets: 10,
    };
    let shape = ArrivalPattern::week(both_sides(), 20_000);
    let setup = Setup { config, shape, seed: 1 };
    let guarantees = guarantees(&setup.config, &setup.shape);
    assert_eq!(guarantees.held_packets_max, Some(21));
    assert_eq!(check(|| setup.processor(), &guarantees, &setup.script()), Ok(()));
}

/// Later than anything that a set-up can do: 120 packets of 9,000 bytes at 99 us a byte and
/// one a second take four minutes.
const END: Instant = Instant::from_nanos(1 << 62);

fn configured() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let cases = from_environment.cases.max(1_000);
    ProptestConfig { cases, failure_persistence: None, ..from_environment }
}

/// A processor and what it is fed.
#[derive(Clone, Debug)]
struct Setup {
    config: ProcessorConfig,
    shape: ArrivalPattern,
    seed: u64,
}

impl Setup {
    fn processor(&self) -> Processor {
        Processor::new(self.config).expect("a rate above zero")
    }

    fn script(&self) -> Script {
        self.shape.script(self.seed)
    }
}

fn both_sides() -> Vec<Port> {
    vec![Processor::LAN, Processor::LINK]
}

fn across(side: Port) -> Port {
    if side == Processor::LAN { Processor::LINK } else { Processor::LAN }
}

/// No packet passes faster than the least one through an idle processor; at most one is in service.
fn guarantees(config: &ProcessorConfig, shape: &ArrivalPattern) -> Guarantees {
    let per_packet = Duration::from_nanos(NANOS_PER_SECOND / config.packets_per_second);
    let least = per_packet + config.per_byte.saturating_mul((*shape.bytes.start()).into());
    Guarantees {
        minimum_delay: both_sides().into_iter().map(|port| (port, least)).collect(),
        held_packets_max: Some(2 * config.buffer_packets + 1),
        ..Guarantees::default()
    }
}

/// `1..=mantissa_max` times a power of ten up to `exponent_max`: as many small as large numbers.
fn scaled(mantissa_max: u64, exponent_max: u32) -> impl Strategy<Value = u64> {
    (1..=mantissa_max, 0..=exponent_max)
        .prop_map(|(mantissa, exponent)| mantissa * 10u64.pow(exponent))
}

/// From a packet a second to ten in a nanosecond, most of them no round number of nanoseconds.
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
        4 => Just(both_sides()),
        1 => Just(vec![Processor::LAN]),
        1 => Just(vec![Processor::LINK]),
        1 => Just(vec![Processor::LAN, Processor::LINK, Processor::LINK, Processor::LINK]),
    ];
    let shape = (ports, 1u64..120, scaled(999, 7), scaled(99, 5), 1u64..40, 1u32..9_000).prop_map(
        |(ports, packets, span, pause, burst_packets_max, bytes_max)| ArrivalPattern {
            packets,
            span: Duration::from_nanos(span),
            pause_max: Duration::from_nanos(pause),
            burst_packets_max,
            bytes: 1..=bytes_max,
            ..ArrivalPattern::mixed(ports)
        },
    );
    (configs(), shape, any::<u64>()).prop_map(|(config, shape, seed)| Setup { config, shape, seed })
}

/// What becomes of one packet.
#[derive(Clone, Debug)]
struct Way {
    came: Instant,
    port: Port,
    packet: Packet,
    /// `None` if the buffer of its side was full.
    service: Option<Service>,
}

#[derive(Clone, Copy, Debug)]
struct Service {
    turn: usize,
    start: Instant,
    end: Instant,
}

/// Each packet's way. Who is in service and who waits when a packet comes depends only on those
/// that came before, so the whole schedule of these is made anew for each packet.
fn reference(config: &ProcessorConfig, script: &Script) -> Vec<Way> {
    let mut ways: Vec<Way> = Vec::new();
    for (came, port, packet) in script {
        let services = || ways.iter().filter_map(|way| Some((way.port, way.service?)));
        let is_busy = services().any(|(_, service)| service.end > *came);
        let waits = |(side, service): &(Port, Service)| side == port && service.start > *came;
        let waiting = services().filter(waits).count() as u64;
        let mut way = Way { came: *came, port: *port, packet: packet.clone(), service: None };
        if !is_busy || waiting < config.buffer_packets {
            way.service = Some(Service { turn: 0, start: *came, end: *came });
        }
        ways.push(way);
        schedule(config, &mut ways);
    }
    ways
}

/// Serves the packets that were let in, with time in units of 1 / packets_per_second nanoseconds,
/// in which every cost is a whole number.
fn schedule(config: &ProcessorConfig, ways: &mut [Way]) {
    let rate = u128::from(config.packets_per_second);
    let nanos = |exact: u128| u64::try_from(exact / rate).expect("before the end");
    let mut left: Vec<_> = (0..ways.len()).filter(|n| ways[*n].service.is_some()).collect();
    let (mut free_at, mut last) = (0, None);
    for turn in 0..left.len() {
        let free = Instant::from_nanos(nanos(free_at));
        // Those who came before the CPU became free: the other side's first, else the same side's.
        // If there are none, whoever comes next.
        let waits = |n: &usize| ways[*n].came < free;
        let other = left.iter().position(|n| waits(n) && Some(ways[*n].port) != last);
        let way = &mut ways[left.remove(other.unwrap_or(0))];
        last = Some(way.port);
        if way.came > free {
            free_at = u128::from(way.came.as_nanos()) * rate;
        }
        let start = Instant::from_nanos(nanos(free_at));
        let bytes = u128::from(way.packet.bytes);
        free_at +=
            u128::from(NANOS_PER_SECOND) + bytes * u128::from(config.per_byte.as_nanos()) * rate;
        way.service = Some(Service { turn, start, end: Instant::from_nanos(nanos(free_at)) });
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

fn counters(ways: &[Way]) -> ProcessorCounters {
    let mut counters = ProcessorCounters::default();
    for way in ways {
        let (side, bytes) = (usize::from(way.port.0), way.packet.bytes);
        counters.received[side].add(bytes);
        match way.service {
            Some(service) => {
                counters.forwarded[side].add(bytes);
                counters.busy += service.end - service.start;
            }
            None => counters.dropped[side].add(bytes),
        }
    }
    counters
}

/// The facts of one kind, as reported: when, and of which packet.
fn facts(trace: &VecTrace, kind: EventKind) -> Vec<(Instant, PacketId)> {
    let of_kind = trace.0.iter().filter(|event| event.kind == kind);
    of_kind.map(|event| (event.at, event.packet)).collect()
}
