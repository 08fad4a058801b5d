//! Engines with any configuration and any packets keep the contract of the conformance kit.

use std::sync::Arc;

use bentpipe_core::aggregation::{Aggregator, AggregatorConfig};
use bentpipe_core::conformance::{Guarantees, Script, check};
use bentpipe_core::engine::Engine;
use bentpipe_core::link::{
    Access, AccessConfig, Channel, ChannelState, CoDel, CoDelConfig, Direction, DirectionConfig,
    DropAtDequeue, DropAtEnqueue, DropTail, EarlyPacketDiscard, ErrorRates, FqCoDel, FqCoDelConfig,
    Framing, Limit, PerFlow, Processor, ProcessorConfig, Queue, Ratio, Red, RedConfig,
    SelectiveDrop, StrictPriority, TerminalPath, TerminalPathConfig, Unit,
};
use bentpipe_core::packet::{Address, Class, Ecn, FlowId, Origin, Packet, PacketId, Payload, Port};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::units::{BitRate, Bits, Probability};

use crate::ITERATIONS;
use crate::decoder::Decoder;

const PACKETS_MAX: usize = 200;
const CLASSES: u64 = 3;

#[test]
fn any_packets() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let mut decoder = Decoder::new(bytes);
        match decoder.below(5) {
            0 => check_direction(decoder),
            1 => check_processor(decoder),
            2 => check_aggregator(decoder),
            3 => check_access(decoder),
            _ => check_terminal_path(decoder),
        }
    });
}

fn assert_kept<E: Engine>(build: impl Fn() -> E, guarantees: &Guarantees, script: &Script) {
    if let Err(violation) = check(build, guarantees, script) {
        panic!("{violation}");
    }
}

/// Packets with gaps of 0 to 4 s; the kit wakes an engine once per millisecond.
fn script(decoder: &mut Decoder<'_>, ports: &[Port]) -> Script {
    let (mut script, mut now) = (Script::new(), Instant::START);
    while !decoder.is_empty() && script.len() < PACKETS_MAX {
        now += Duration::from_nanos(decoder.scaled(24));
        let port = ports[decoder.below(ports.len() as u64) as usize];
        let sequence = script.len() as u64;
        let flow = FlowId(decoder.below(6) as u32);
        let packet = Packet {
            id: PacketId::new(flow, Origin::Sender, sequence),
            created_at: now,
            flow,
            destination: Address(decoder.below(3) as u32),
            bytes: 1 + decoder.below(9_000) as u32,
            class: Class(decoder.below(CLASSES) as u8),
            ecn: Ecn::of_traffic_class(decoder.u8()),
            limited_by: None,
            transmitted: false,
            payload: Payload::Datagram { sequence, source: flow },
        };
        script.push((now, port, packet));
    }
    script
}

fn probability(decoder: &mut Decoder<'_>) -> Probability {
    let exponent = decoder.below(9) as i32;
    Probability::new(decoder.probability() * 0.1_f64.powi(exponent)).expect("0 to 1")
}

fn error_rates(decoder: &mut Decoder<'_>) -> ErrorRates {
    ErrorRates { bit_error_rate: probability(decoder), loss_rate: probability(decoder) }
}

/// A profile of up to four steps. A rate of zero at the end would never end, so the last is not.
fn profile<T: Copy>(
    decoder: &mut Decoder<'_>,
    mut value: impl FnMut(&mut Decoder<'_>, bool) -> T,
) -> Profile<T> {
    let count = decoder.below(4);
    if count == 0 {
        return Profile::Constant(value(decoder, true));
    }
    let mut at = Instant::START;
    let steps = (0..count).map(|number| {
        let step = (at, value(decoder, number + 1 == count));
        at += Duration::from_nanos(1 + decoder.scaled(24));
        step
    });
    Profile::steps(steps.collect()).expect("the times rise")
}

/// From 10 kbit/s up: a slower link would be woken for months.
fn rate(decoder: &mut Decoder<'_>, is_last: bool) -> BitRate {
    let is_outage = decoder.below(4) == 0 && !is_last;
    BitRate(if is_outage { 0 } else { 10_000 + decoder.scaled(32) })
}

fn delay(decoder: &mut Decoder<'_>) -> Duration {
    Duration::from_nanos(decoder.scaled(22))
}

fn channel(decoder: &mut Decoder<'_>) -> Channel {
    let stream = |name| Rng::stream(7, name);
    let state = |decoder: &mut Decoder<'_>| ChannelState {
        errors: error_rates(decoder),
        mean_duration: Duration::from_millis(1 + decoder.scaled(8)),
    };
    match decoder.below(4) {
        0 => Channel::clear(),
        1 => Channel::bit_errors(probability(decoder), stream("bits")),
        2 => Channel::gilbert_elliott(
            state(decoder),
            state(decoder),
            stream("states"),
            stream("bits"),
        ),
        _ => {
            let errors = profile(decoder, |decoder, _| error_rates(decoder));
            Channel::series(&errors, stream("bits"))
        }
    }
}

fn counted(decoder: &mut Decoder<'_>) -> Limit {
    match decoder.below(3) {
        0 => Limit::Bytes(decoder.scaled(10)),
        1 => Limit::LinkBytes(decoder.scaled(10)),
        _ => Limit::Packets(decoder.below(40)),
    }
}

fn limit(decoder: &mut Decoder<'_>) -> Limit {
    match decoder.below(3) {
        0 => Limit::Time(delay(decoder)),
        1 => Limit::Unlimited,
        _ => counted(decoder),
    }
}

/// A queue that drops at dequeue also holds the packet that is sent at once.
fn at_least_one(limit: Limit) -> Limit {
    match limit {
        Limit::Bytes(bytes) => Limit::Bytes(bytes.max(9_000)),
        Limit::LinkBytes(bytes) => Limit::LinkBytes(bytes.max(20_000)),
        Limit::Packets(packets) => Limit::Packets(packets.max(1)),
        Limit::Time(_) | Limit::Unlimited => Limit::Unlimited,
    }
}

fn red(decoder: &mut Decoder<'_>) -> DropAtEnqueue {
    let min_threshold = decoder.below(20);
    let config = RedConfig {
        limit: limit(decoder),
        unit: if decoder.flag() { Unit::Packets } else { Unit::Bytes },
        min_threshold,
        max_threshold: min_threshold + 1 + decoder.scaled(8),
        max_probability: Probability::new(decoder.probability().max(0.01)).expect("0 to 1"),
        weight: Probability::new(decoder.probability().max(0.001)).expect("0 to 1"),
        gentle: decoder.flag(),
        ecn: decoder.flag(),
        mean_packet_bytes: 1 + u32::from(decoder.u16()) % 2_000,
        mean_frame: Bits(8 * (1 + decoder.below(2_000))),
    };
    DropAtEnqueue::Red(Red::new(config, Rng::stream(7, "red")))
}

fn queue(decoder: &mut Decoder<'_>) -> Queue {
    let ratio = |decoder: &mut Decoder<'_>| Ratio::new(2.0 * decoder.probability()).expect("small");
    let kind = decoder.below(8);
    let dequeue = match kind {
        0..5 => {
            return Queue::DropAtEnqueue(match kind {
                0 => DropAtEnqueue::DropTail(DropTail::new(limit(decoder))),
                1 => red(decoder),
                2 => DropAtEnqueue::PerFlow(PerFlow::new(limit(decoder), limit(decoder))),
                3 => {
                    let (limit, threshold) = (counted(decoder), ratio(decoder));
                    DropAtEnqueue::EarlyPacketDiscard(EarlyPacketDiscard::new(limit, threshold))
                }
                _ => {
                    let limit = match counted(decoder) {
                        Limit::LinkBytes(bytes) => Limit::Bytes(bytes),
                        limit => limit,
                    };
                    let queue = SelectiveDrop::new(limit, ratio(decoder), ratio(decoder));
                    DropAtEnqueue::SelectiveDrop(queue)
                }
            });
        }
        5 => DropAtDequeue::CoDel(CoDel::new(CoDelConfig {
            limit: at_least_one(limit(decoder)),
            target: delay(decoder),
            interval: Duration::from_nanos(1 + decoder.scaled(22)),
            ecn: decoder.flag(),
        })),
        6 => {
            let config = FqCoDelConfig {
                limit: at_least_one(limit(decoder)),
                target: delay(decoder),
                interval: Duration::from_nanos(1 + decoder.scaled(22)),
                quantum_bytes: 1 + u32::from(decoder.u16()) % 3_000,
                queues: 1 + decoder.below(8) as u32,
                ecn: decoder.flag(),
            };
            DropAtDequeue::FqCoDel(FqCoDel::new(config, decoder.u64()))
        }
        _ => {
            let limit = at_least_one(limit(decoder));
            DropAtDequeue::StrictPriority(StrictPriority::new(limit, CLASSES as usize))
        }
    };
    Queue::DropAtDequeue(Box::new(dequeue))
}

fn check_direction(mut decoder: Decoder<'_>) {
    let delay = profile(&mut decoder, |decoder, _| delay(decoder));
    let config = DirectionConfig {
        rate: profile(&mut decoder, rate),
        delay: delay.clone(),
        framing: Framing::overhead(decoder.u8().into()),
        queue: queue(&mut decoder),
        channel: channel(&mut decoder),
    };
    let minimum = delay.values().min().expect("a profile has a value");
    let guarantees =
        Guarantees { minimum_delay: vec![(Direction::OUT, minimum)], ..Guarantees::default() };
    let script = script(&mut decoder, &[Direction::IN]);
    let build = || Direction::new(config.clone()).expect("the last rate is above zero");
    assert_kept(build, &guarantees, &script);
}

fn check_processor(mut decoder: Decoder<'_>) {
    let config = ProcessorConfig {
        packets_per_second: 1 + decoder.scaled(12),
        per_byte: Duration::from_nanos(decoder.scaled(8)),
        buffer_packets: 1 + decoder.below(40),
    };
    let guarantees = Guarantees {
        held_packets_max: Some(2 * config.buffer_packets + 1),
        ..Guarantees::default()
    };
    let script = script(&mut decoder, &[Processor::LAN, Processor::LINK]);
    assert_kept(|| Processor::new(config).expect("a rate"), &guarantees, &script);
}

fn check_aggregator(mut decoder: Decoder<'_>) {
    let tunnels: Arc<[_]> = [100, 101].map(FlowId).into();
    let config = AggregatorConfig {
        frame_bytes_max: 68 + u32::from(decoder.u16()) % 1_500,
        packet_bytes_max: 20 + u32::from(decoder.u16()) % 1_500,
        hold_time: delay(&mut decoder),
        classes: decoder.flag().then(|| vec![Class(decoder.below(CLASSES) as u8)]),
        tunnels,
        origin: Origin::Sender,
    };
    let script = script(&mut decoder, &[Aggregator::INNER, Aggregator::OUTER]);
    let build = || Aggregator::new(config.clone()).expect("there are tunnels");
    assert_kept(build, &Guarantees::default(), &script);
}

fn check_access(mut decoder: Decoder<'_>) {
    let config = AccessConfig {
        delay: delay(&mut decoder),
        jitter: delay(&mut decoder),
        rate: decoder.flag().then(|| rate(&mut decoder, true)),
    };
    let script = script(&mut decoder, &[Access::HOST, Access::NET]);
    let rngs = || ["up", "down"].map(|name| Rng::stream(7, name));
    let build = || Access::new(config, rngs()).expect("the rate is above zero");
    assert_kept(build, &Guarantees::default(), &script);
}

fn check_terminal_path(mut decoder: Decoder<'_>) {
    let delay = profile(&mut decoder, |decoder, _| delay(decoder));
    let minimum = delay.values().min().expect("a profile has a value");
    let config = TerminalPathConfig {
        delay,
        framing: Framing::overhead(decoder.u8().into()),
        channel: channel(&mut decoder),
    };
    let guarantees =
        Guarantees { minimum_delay: vec![(TerminalPath::OUT, minimum)], ..Guarantees::default() };
    let script = script(&mut decoder, &[TerminalPath::IN]);
    assert_kept(|| TerminalPath::new(config.clone()), &guarantees, &script);
}
