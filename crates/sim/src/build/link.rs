//! The engines of the hop.

use bentpipe_core::link::{
    self, Cells, Direction, DirectionConfig, DropTail, EarlyPacketDiscard, Framing, PerFlow,
    Processor, ProcessorConfig, Ratio, Red, RedConfig, SelectiveDrop, Tail, Unit,
};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::Duration;
use bentpipe_core::units::{BitRate, Bits, Carry, Probability};

use crate::plan::{self, Channel, Limit, Plan, Queue, RedUnit};

/// Forward, then the return of each terminal.
pub(super) fn directions(plan: &Plan, seed: u64) -> impl Iterator<Item = Direction> {
    let plans = std::iter::once(&plan.link.forward).chain(&plan.link.returns);
    let names = plan.direction_names().into_iter();
    plans.zip(names).map(move |(plan, name)| direction(plan, &format!("link.{name}"), seed))
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

fn direction(plan: &plan::Direction, name: &str, seed: u64) -> Direction {
    let stream = |part: &str| Rng::stream(seed, &format!("{name}.{part}"));
    let channel = match plan.channel {
        Channel::Clear => link::Channel::Clear,
        Channel::BitErrors { bit_error_rate } => link::Channel::bit_errors(
            Probability::new(bit_error_rate).expect("checked with the plan"),
            stream("channel"),
        ),
    };
    let rate = plan.rate_bps.profile(BitRate).expect("checked with the plan");
    let framing = framing(&plan.framing);
    let queue = queue(plan, &rate, framing, stream("queue"));
    let delay = plan.delay_ns.profile(Duration::from_nanos).expect("checked with the plan");
    Direction::new(DirectionConfig { rate, delay, framing, queue, channel })
        .expect("checked with the plan")
}

fn framing(plan: &plan::Framing) -> Framing {
    Framing {
        header_bytes: plan.header_bytes,
        least_bytes: plan.least_bytes,
        cells: plan
            .cells
            .map(|plan::Cells { payload_bytes, cell_bytes }| Cells { payload_bytes, cell_bytes }),
        expansion: plan.expansion,
        outside_bytes: plan.outside_bytes,
    }
}

/// RED scales by size, and ages over idle time, in packets of this size: the average packet that
/// tc-red(8) recommends to assume.
const RED_MEAN_BYTES: u32 = 1_000;

fn queue(plan: &plan::Direction, rate: &Profile<BitRate>, framing: Framing, rng: Rng) -> Tail {
    let share = |value| Probability::new(value).expect("checked with the plan");
    let ratio = |value| Ratio::new(value).expect("checked with the plan");
    match plan.queue {
        Queue::DropTail { limit } => Tail::DropTail(DropTail::new(limit.into())),
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
                idle_packet: typical_time(rate, framing.frame(RED_MEAN_BYTES)),
            };
            Tail::Red(Red::new(config, rng))
        }
        Queue::PerFlowDropTail { limit, per_flow_limit } => {
            Tail::PerFlow(PerFlow::new(limit.into(), per_flow_limit.into()))
        }
        Queue::EarlyPacketDiscard { limit, threshold } => {
            Tail::EarlyPacketDiscard(EarlyPacketDiscard::new(limit.into(), ratio(threshold)))
        }
        Queue::SelectiveDrop { limit, threshold, load_ratio } => Tail::SelectiveDrop(
            SelectiveDrop::new(limit.into(), ratio(threshold), ratio(load_ratio)),
        ),
        Queue::Codel { .. } | Queue::FqCodel { .. } | Queue::StrictPriority { .. } => {
            unreachable!("refused with the plan")
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
