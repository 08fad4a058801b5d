//! The engines of the hop.

use std::sync::Arc;

use bentpipe_core::link::{
    self, CoDel, CoDelConfig, Direction, DirectionConfig, DropTail, EarlyPacketDiscard, ErrorRates,
    FqCoDel, FqCoDelConfig, Framing, Head, PerFlow, Processor, ProcessorConfig, Ratio, Red,
    RedConfig, SelectiveDrop, StrictPriority, Tail, Unit,
};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::units::{BitRate, Bits, Carry, Probability};

use crate::plan::{self, Channel, ChannelState, Limit, Plan, Queue, RedUnit};

/// Forward, then the return of each terminal. `link` names the hop to the streams of chance.
pub(super) fn directions(plan: &Plan, link: &str, seed: u64) -> impl Iterator<Item = Direction> {
    let parts = std::iter::once(&plan.link.forward).chain(&plan.link.returns);
    // One list for all: with as many terminals and flows as a plan may have, a list each would take a
    // gigabyte.
    let priorities: Arc<[u8]> = plan.flows.iter().map(|flow| flow.priority).collect();
    let named = parts.zip(plan.direction_names());
    named.map(move |(part, name)| direction(part, &format!("{link}.{name}"), seed, &priorities))
}

/// The processors that exist: 0 is the hub's, 1 + t that of terminal t.
pub(super) fn processors(plan: &Plan) -> impl Iterator<Item = (u32, Processor)> {
    let gateways = std::iter::once(&plan.gateways.hub).chain(&plan.gateways.terminals);
    (0..).zip(gateways).filter_map(|(number, gateway)| {
        let plan = gateway.processor?;
        let processor = Processor::new(ProcessorConfig {
            packets_per_second: plan.packets_per_second,
            per_byte: Duration::from_nanos(plan.per_byte_ns),
            buffer_packets: plan.buffer_packets,
        });
        Some((number, processor.expect("checked with the plan")))
    })
}

fn direction(plan: &plan::Direction, name: &str, seed: u64, priorities: &Arc<[u8]>) -> Direction {
    let stream = |part: &str| Rng::stream(seed, &format!("{name}.{part}"));
    let channel = channel(&plan.channel, stream);
    let rate = plan.rate_bps.profile(BitRate).expect("checked with the plan");
    let framing = plan.framing.framing();
    let around = Surroundings { rate: &rate, framing, priorities, rng: stream("queue") };
    let queue = queue(&plan.queue, around);
    let delay = plan.delay_ns.profile(Duration::from_nanos).expect("checked with the plan");
    Direction::new(DirectionConfig { rate, delay, framing, queue, channel })
        .expect("checked with the plan")
}

fn channel(plan: &Channel, stream: impl Fn(&str) -> Rng) -> link::Channel {
    let share = |value| Probability::new(value).expect("checked with the plan");
    let rates = |bit_error_rate, loss_rate| ErrorRates {
        bit_error_rate: share(bit_error_rate),
        loss_rate: share(loss_rate),
    };
    let state = |state: &ChannelState| link::ChannelState {
        errors: rates(state.bit_error_rate, state.loss_rate),
        mean_duration: Duration::from_nanos(state.mean_duration_ns),
    };
    match plan {
        Channel::Clear => link::Channel::Clear,
        Channel::BitErrors { bit_error_rate } => {
            link::Channel::bit_errors(share(*bit_error_rate), stream("channel"))
        }
        Channel::GilbertElliott { good, bad } => {
            let (states, errors) = (stream("channel.states"), stream("channel"));
            link::Channel::gilbert_elliott(state(good), state(bad), states, errors)
        }
        Channel::ErrorSeries { steps } => {
            let steps = steps.iter().map(|step| {
                (Instant::from_nanos(step.at_ns), rates(step.bit_error_rate, step.loss_rate))
            });
            let steps = Profile::steps(steps.collect()).expect("checked with the plan");
            link::Channel::series(&steps, stream("channel"))
        }
    }
}

/// RED scales by size, and ages over idle time, in packets of this size: the average packet that
/// tc-red(8) recommends to assume.
const RED_MEAN_BYTES: u32 = 1_000;

/// What a queue may need to know beside its own settings.
struct Surroundings<'a> {
    rate: &'a Profile<BitRate>,
    framing: Framing,
    /// The priority of each flow, by flow number.
    priorities: &'a Arc<[u8]>,
    rng: Rng,
}

fn queue(plan: &Queue, around: Surroundings<'_>) -> link::Queue {
    let share = |value| Probability::new(value).expect("checked with the plan");
    let ratio = |value| Ratio::new(value).expect("checked with the plan");
    let nanos = Duration::from_nanos;
    let tail = |tail| link::Queue::Tail(tail);
    let head = |head| link::Queue::Head(Box::new(head));
    match *plan {
        Queue::DropTail { limit } => tail(Tail::DropTail(DropTail::new(limit.into()))),
        Queue::Red {
            limit,
            unit,
            min_threshold,
            max_threshold,
            max_probability,
            weight,
            gentle,
        } => {
            let config = RedConfig {
                limit: limit.into(),
                unit: match unit {
                    RedUnit::Packets => Unit::Packets,
                    RedUnit::Bytes => Unit::Bytes,
                },
                min_threshold,
                max_threshold,
                max_probability: share(max_probability),
                weight: share(weight),
                gentle,
                mean_bytes: RED_MEAN_BYTES,
                idle_packet: typical_time(around.rate, around.framing.frame(RED_MEAN_BYTES)),
            };
            tail(Tail::Red(Red::new(config, around.rng)))
        }
        Queue::PerFlowDropTail { limit, per_flow_limit } => {
            tail(Tail::PerFlow(PerFlow::new(limit.into(), per_flow_limit.into())))
        }
        Queue::EarlyPacketDiscard { limit, threshold } => {
            let queue = EarlyPacketDiscard::new(limit.into(), ratio(threshold));
            tail(Tail::EarlyPacketDiscard(queue))
        }
        Queue::SelectiveDrop { limit, threshold, load_ratio } => {
            let queue = SelectiveDrop::new(limit.into(), ratio(threshold), ratio(load_ratio));
            tail(Tail::SelectiveDrop(queue))
        }
        Queue::Codel { limit, target_ns, interval_ns } => {
            let (target, interval) = (nanos(target_ns), nanos(interval_ns));
            head(Head::CoDel(CoDel::new(CoDelConfig { limit: limit.into(), target, interval })))
        }
        Queue::FqCodel { limit, target_ns, interval_ns, quantum_bytes, queues } => {
            let (target, interval) = (nanos(target_ns), nanos(interval_ns));
            let limit = limit.into();
            let config = FqCoDelConfig { limit, target, interval, quantum_bytes, queues };
            let mut rng = around.rng;
            head(Head::FqCoDel(FqCoDel::new(config, rng.next_u64())))
        }
        Queue::StrictPriority { limit, classes } => {
            let priorities = Arc::clone(around.priorities);
            let queue = StrictPriority::new(limit.into(), classes.into(), priorities);
            head(Head::StrictPriority(queue))
        }
    }
}

/// How long a frame takes at the highest rate of the run, at least a nanosecond.
fn typical_time(rate: &Profile<BitRate>, frame: Bits) -> Duration {
    let rate = rate.values().max().expect("a profile has a value");
    let (time, _) = rate.transmit_time(frame, Carry::default());
    time.max(Duration::from_nanos(1))
}

impl From<Limit> for link::Limit {
    fn from(plan: Limit) -> Self {
        match plan {
            Limit::Bytes(most) => Self::Bytes(most),
            Limit::LinkBytes(most) => Self::LinkBytes(most),
            Limit::Packets(most) => Self::Packets(most),
            Limit::TimeNs(most) => Self::Time(Duration::from_nanos(most)),
            Limit::Unlimited => Self::Unlimited,
        }
    }
}
