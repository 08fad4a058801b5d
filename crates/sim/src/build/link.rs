//! Builds the engines of the link and of access lines.

use bentpipe_core::link::{
    self, Access, AccessConfig, CoDel, CoDelConfig, Direction, DirectionConfig, DropAtDequeue,
    DropAtEnqueue, DropTail, EarlyPacketDiscard, ErrorRates, FqCoDel, FqCoDelConfig, Framing,
    PerFlow, Ratio, Red, RedConfig, SelectiveDrop, SharedRate, SharingClass, StrictPriority, Unit,
};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::units::{BitRate, Probability};

use crate::plan::{self, Channel, ChannelState, Limit, Plan, Queue, RedUnit};

/// The directions, in the plan's order. `link` is the prefix of the random streams' names.
pub(super) fn directions<'a>(
    plan: &'a Plan,
    link: &'a str,
    seed: u64,
) -> impl Iterator<Item = Direction> + 'a {
    let of = move |part: &plan::Direction| direction(part, &format!("{link}.{}", part.name), seed);
    plan.directions.iter().map(of)
}

/// The branches with an engine: the number of the direction, that of the gateway, and the engine.
pub(super) fn branches<'a>(
    plan: &'a Plan,
    link: &'a str,
    seed: u64,
) -> impl Iterator<Item = (u32, u32, link::TerminalPath)> + 'a {
    plan.branches().map(move |(direction, branch)| {
        let gateway = &plan.gateways[branch.gateway as usize].name;
        let name = format!("{link}.{}.{gateway}", direction.name);
        let stream = |part: &str| Rng::stream(seed, &format!("{name}.{part}"));
        let engine = link::TerminalPath::new(link::TerminalPathConfig {
            delay: Profile::Constant(Duration::from_nanos(branch.delay_ns)),
            framing: direction.framing.framing(),
            channel: channel(&branch.channel, stream),
        });
        (direction.from, branch.gateway, engine)
    })
}

/// The access line between a host and its gateway.
pub(super) fn access(host: &plan::Host, seed: u64) -> Access {
    let stream =
        |direction: &str| Rng::stream(seed, &format!("host.{}.jitter.{direction}", host.name));
    let config = AccessConfig {
        delay: Duration::from_nanos(host.delay_ns),
        jitter: Duration::from_nanos(host.jitter_ns),
        rate: host.rate_bps.map(BitRate),
    };
    Access::new(config, [stream("out"), stream("in")]).expect("checked with the plan")
}

fn direction(plan: &plan::Direction, name: &str, seed: u64) -> Direction {
    let stream = |part: &str| Rng::stream(seed, &format!("{name}.{part}"));
    let channel = channel(&plan.channel, stream);
    let rate = plan.rate_bps.profile(BitRate).expect("checked with the plan");
    let framing = plan.framing.framing();
    let context = QueueContext { framing, rng: stream("queue") };
    let queue = queue(&plan.queue, context);
    let delay = plan.delay_ns.profile(Duration::from_nanos).expect("checked with the plan");
    let direction = Direction::new(DirectionConfig { rate, delay, framing, queue, channel });
    let jitter = Duration::from_nanos(plan.jitter_ns);
    direction.expect("checked with the plan").with_jitter(jitter, stream("jitter"))
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
        Channel::Clear => link::Channel::clear(),
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

/// A queue for a direction of a running link; `rng` draws its random numbers.
#[must_use]
pub fn new_queue(plan: &Queue, framing: &plan::Framing, rng: Rng) -> link::Queue {
    queue(plan, QueueContext { framing: framing.framing(), rng })
}

/// What a queue needs in addition to its settings.
struct QueueContext {
    framing: Framing,
    rng: Rng,
}

fn queue(plan: &Queue, context: QueueContext) -> link::Queue {
    let share = |value| Probability::new(value).expect("checked with the plan");
    let ratio = |value| Ratio::new(value).expect("checked with the plan");
    let nanos = Duration::from_nanos;
    let tail = |tail| link::Queue::DropAtEnqueue(tail);
    let head = |head| link::Queue::DropAtDequeue(Box::new(head));
    match plan.clone() {
        Queue::DropTail { limit } => tail(DropAtEnqueue::DropTail(DropTail::new(limit.into()))),
        Queue::Red {
            limit,
            unit,
            min_threshold,
            max_threshold,
            max_probability,
            weight,
            gentle,
            mean_packet_bytes,
            ecn,
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
                ecn,
                mean_packet_bytes,
                mean_frame: context.framing.frame(mean_packet_bytes),
            };
            tail(DropAtEnqueue::Red(Red::new(config, context.rng)))
        }
        Queue::PerFlowDropTail { limit, per_flow_limit } => {
            tail(DropAtEnqueue::PerFlow(PerFlow::new(limit.into(), per_flow_limit.into())))
        }
        Queue::EarlyPacketDiscard { limit, threshold } => {
            let queue = EarlyPacketDiscard::new(limit.into(), ratio(threshold));
            tail(DropAtEnqueue::EarlyPacketDiscard(queue))
        }
        Queue::SelectiveDrop { limit, threshold, load_ratio } => {
            let queue = SelectiveDrop::new(limit.into(), ratio(threshold), ratio(load_ratio));
            tail(DropAtEnqueue::SelectiveDrop(queue))
        }
        Queue::Codel { limit, target_ns, interval_ns, ecn } => {
            let (target, interval) = (nanos(target_ns), nanos(interval_ns));
            let config = CoDelConfig { limit: limit.into(), target, interval, ecn };
            head(DropAtDequeue::CoDel(CoDel::new(config)))
        }
        Queue::FqCodel { limit, target_ns, interval_ns, quantum_bytes, queues, ecn } => {
            let (target, interval) = (nanos(target_ns), nanos(interval_ns));
            let limit = limit.into();
            let config = FqCoDelConfig { limit, target, interval, quantum_bytes, queues, ecn };
            let mut rng = context.rng;
            head(DropAtDequeue::FqCoDel(FqCoDel::new(config, rng.next_u64())))
        }
        Queue::StrictPriority { limit, classes } => {
            let queue = StrictPriority::new(limit.into(), classes.into());
            head(DropAtDequeue::StrictPriority(queue))
        }
        Queue::SharedRate { limit, classes } => {
            head(DropAtDequeue::SharedRate(shared_rate(classes, limit, context)))
        }
    }
}

/// A queue with these classes; those without a queue of their own have this limit.
fn shared_rate(
    classes: Vec<plan::SharingClass>,
    limit: Limit,
    QueueContext { framing, mut rng }: QueueContext,
) -> SharedRate {
    SharedRate::new(classes.into_iter().map(|class| {
        let rng = Rng::stream(rng.next_u64(), "class");
        sharing_class(class, limit, QueueContext { framing, rng })
    }))
}

fn sharing_class(class: plan::SharingClass, limit: Limit, context: QueueContext) -> SharingClass {
    let queue = match class.queue.unwrap_or(Queue::DropTail { limit }) {
        Queue::DropTail { limit } => {
            DropAtDequeue::StrictPriority(StrictPriority::new(limit.into(), 1))
        }
        managed => match queue(&managed, context) {
            link::Queue::DropAtDequeue(queue) => *queue,
            link::Queue::DropAtEnqueue(_) => unreachable!("checked with the plan"),
        },
    };
    SharingClass {
        queue,
        reserved: class.reserved_bps.map(BitRate),
        weight: class.weight,
        ceiling: class.ceiling_bps.map(BitRate),
    }
}

impl From<Limit> for link::Limit {
    fn from(plan: Limit) -> Self {
        match plan {
            Limit::Bytes(max) => Self::Bytes(max),
            Limit::LinkBytes(max) => Self::LinkBytes(max),
            Limit::Packets(max) => Self::Packets(max),
            Limit::TimeNs(max) => Self::Time(Duration::from_nanos(max)),
            Limit::Unlimited => Self::Unlimited,
        }
    }
}
