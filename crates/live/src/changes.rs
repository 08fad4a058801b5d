//! Changes to a running link, and the profiles that they give the engine of a direction.
//!
//! The rate of a direction is that of the plan or of the last change, and zero during an outage.
//! The plan's own outages stay in place when the rate changes. The engine gets rate and outages as
//! one profile.

use bentpipe_core::link::{self, Change, Channel, ErrorRates};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::units::{BitRate, Probability};
use bentpipe_sim::Side;
use bentpipe_sim::build::new_queue;
use bentpipe_sim::plan::{self, Heading, Plan, PlanError};

/// A change to the directions of one hop that start at one side. `None` leaves a value unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkChange {
    /// The index of the hop; 0 is next to the world.
    pub hop: usize,
    /// The side at which the direction starts: for the island, the return directions of all
    /// terminals.
    pub from: Side,
    /// The new rate, greater than zero.
    pub rate: Option<BitRate>,
    /// The new propagation delay, for frames sent from now on.
    pub delay: Option<Duration>,
    /// The new jitter, for frames sent from now on.
    pub jitter: Option<Duration>,
    /// The new bit error rate, for frames whose transmission starts from now on. It and `loss_rate`
    /// replace all errors of the direction together; one that is `None` is then zero.
    pub bit_error_rate: Option<Probability>,
    /// The new loss rate, for frames whose transmission starts from now on.
    pub loss_rate: Option<Probability>,
    /// The new queue; the packets that wait enter it in the order of their arrival.
    pub queue: Option<plan::Queue>,
    /// The length of an outage that starts now and replaces any other, at most [`OUTAGE_MAX`]. Zero
    /// ends an outage.
    pub outage: Option<Duration>,
}

/// An outage of no fixed end: 146 years, after which the clock can still represent as long a time.
pub const OUTAGE_MAX: Duration = Duration::from_nanos(1 << 62);

/// The limit of a plan: 100 days.
const DELAY_MAX: Duration = Duration::from_secs(100 * 86_400);

impl LinkChange {
    /// A change that leaves all values as they are.
    #[must_use]
    pub const fn none(hop: usize, from: Side) -> Self {
        Self {
            hop,
            from,
            rate: None,
            delay: None,
            jitter: None,
            bit_error_rate: None,
            loss_rate: None,
            queue: None,
            outage: None,
        }
    }

    /// Parses a list of changes from JSON; see [`plan::Change`].
    ///
    /// # Errors
    /// The first field that is invalid.
    pub fn parse_list(json: &str) -> Result<Vec<Self>, PlanError> {
        Ok(plan::Change::parse_list(json)?.into_iter().map(Self::from).collect())
    }

    /// The new channel of the direction with this random stream, if its errors change.
    fn channel(&self, rng: impl FnOnce() -> Rng) -> Option<Channel> {
        let loss_rate = self.loss_rate.unwrap_or_default();
        if loss_rate.get() == 0.0 {
            let no_loss = self.loss_rate.map(|_| Probability::default());
            return self.bit_error_rate.or(no_loss).map(|rate| Channel::bit_errors(rate, rng()));
        }
        let bit_error_rate = self.bit_error_rate.unwrap_or_default();
        let errors = ErrorRates { bit_error_rate, loss_rate };
        Some(Channel::series(&Profile::Constant(errors), rng()))
    }
}

impl From<plan::Change> for LinkChange {
    fn from(change: plan::Change) -> Self {
        let share = |value| Probability::new(value).expect("checked with the change");
        let from = match change.direction {
            Heading::Forward => Side::World,
            Heading::Return => Side::Island,
        };
        Self {
            hop: change.hop,
            from,
            rate: change.rate_bps.map(BitRate),
            delay: change.delay_ns.map(Duration::from_nanos),
            jitter: change.jitter_ns.map(Duration::from_nanos),
            bit_error_rate: change.bit_error_rate.map(share),
            loss_rate: change.loss_rate.map(share),
            queue: change.queue,
            outage: change.outage_ns.map(Duration::from_nanos),
        }
    }
}

/// The rate and outage schedules of all directions, with the changes applied.
#[derive(Debug)]
pub(crate) struct RateSchedules {
    /// The directions of each hop, in the plan's order.
    hops: Vec<Vec<RateSchedule>>,
    /// The most classes that a queue has had from the start.
    classes: u8,
    seed: u64,
    /// How many changes were applied. Each has random streams of its own.
    changes: u64,
}

impl RateSchedules {
    pub(crate) fn new(plans: &[Plan], seed: u64) -> Self {
        let schedule = |direction: &plan::Direction| RateSchedule {
            rate: direction.rate_bps.profile(BitRate).expect("checked with the plan"),
            outage: None,
            shortest_delay: shortest(&direction.delay_ns),
            jitter: Duration::from_nanos(direction.jitter_ns),
            framing: direction.framing.clone(),
        };
        let of_plan = |plan: &Plan| plan.directions.iter().map(schedule).collect();
        let directions = plans.iter().flat_map(|plan| &plan.directions);
        let classes = directions.filter_map(|direction| direction.queue.classes()).max();
        let hops = plans.iter().map(of_plan).collect();
        Self { hops, classes: classes.unwrap_or(1), seed, changes: 0 }
    }

    /// The shortest delay that a packet has over all hops, in either direction, from now on.
    pub(crate) fn shortest_delay(&self) -> Duration {
        let [forward, back] = self.over_hops(|schedule| schedule.shortest_delay);
        forward.min(back)
    }

    /// The shortest delay, and the jitter, that packets there and back have over all hops, from now on.
    pub(crate) fn round_trip(&self) -> (Duration, Duration) {
        let [forward, back] = self.over_hops(|schedule| schedule.shortest_delay);
        let [forward_jitter, back_jitter] = self.over_hops(|schedule| schedule.jitter);
        (forward + back, forward_jitter + back_jitter)
    }

    /// The sum of a value over all hops, forward and back; of several returns the smallest counts.
    fn over_hops(&self, value: impl Fn(&RateSchedule) -> Duration) -> [Duration; 2] {
        let sum = |of_hop: &dyn Fn(&[RateSchedule]) -> Option<Duration>| {
            let of_hops = self.hops.iter().filter_map(|hop| of_hop(hop));
            of_hops.fold(Duration::ZERO, |sum, delay| sum + delay)
        };
        [sum(&|hop| hop.first().map(&value)), sum(&|hop| hop.iter().skip(1).map(&value).min())]
    }

    /// Checks that a change is possible.
    pub(crate) fn check(&self, change: &LinkChange) -> Result<(), PlanError> {
        let (field, problem) = match change {
            LinkChange { hop, .. } if *hop >= self.hops.len() => ("hop", "there is no such hop"),
            LinkChange { rate: Some(BitRate(0)), .. } => {
                ("rate", "must be greater than zero; to stop the link, set an outage")
            }
            LinkChange { delay: Some(delay), .. } if *delay > DELAY_MAX => ("delay", "is too long"),
            LinkChange { queue: Some(queue), .. }
                if queue.classes().is_some_and(|classes| classes != self.classes) =>
            {
                ("queue", "needs as many classes as the link has had from the start")
            }
            _ => return Ok(()),
        };
        Err(PlanError { field: field.to_owned(), problem: problem.to_owned() })
    }

    /// The new queue of a direction, after [`RateSchedules::apply`]; `None` if it stays.
    pub(crate) fn new_queue(
        &self,
        change: &LinkChange,
        (direction, name): (usize, &str),
    ) -> Option<link::Queue> {
        let framing = &self.hops[change.hop][direction].framing;
        let stream = format!("link.{name}.queue.{}", self.changes);
        let queue = change.queue.as_ref()?;
        Some(new_queue(queue, framing, Rng::stream(self.seed, &stream)))
    }

    /// Applies a checked change at `now` to one direction, given by its index and its name. Returns
    /// the change for its engine.
    pub(crate) fn apply(
        &mut self,
        now: Instant,
        change: &LinkChange,
        (direction, name): (usize, &str),
    ) -> Change {
        self.changes += 1;
        let schedule = &mut self.hops[change.hop][direction];
        let mut engine_change = Change::default();
        if let Some(rate) = change.rate {
            schedule.set_rate(rate);
        }
        if let Some(time) = change.outage {
            schedule.set_outage(now, time);
        }
        if change.rate.is_some() || change.outage.is_some() {
            engine_change.rate = Some(schedule.profile());
        }
        if let Some(delay) = change.delay {
            schedule.shortest_delay = delay;
            engine_change.delay = Some(Profile::Constant(delay));
        }
        let stream = |part| Rng::stream(self.seed, &format!("link.{name}.{part}.{}", self.changes));
        engine_change.channel = change.channel(|| stream("channel"));
        schedule.jitter = change.jitter.unwrap_or(schedule.jitter);
        engine_change.jitter = change.jitter.map(|max| (max, stream("jitter")));
        engine_change
    }
}

#[derive(Clone, Debug)]
struct RateSchedule {
    /// The rate without the outage that was set: the plan's outages are part of it.
    rate: Profile<BitRate>,
    /// The start and the end of the outage that was set.
    outage: Option<(Instant, Instant)>,
    /// The shortest present or future delay.
    shortest_delay: Duration,
    jitter: Duration,
    framing: plan::Framing,
}

fn shortest(delay_ns: &plan::Series) -> Duration {
    let delays = delay_ns.profile(Duration::from_nanos).expect("checked with the plan");
    delays.values().min().unwrap_or(Duration::ZERO)
}

impl RateSchedule {
    fn steps(&self) -> Vec<(Instant, BitRate)> {
        match &self.rate {
            Profile::Constant(rate) => vec![(Instant::START, *rate)],
            Profile::Steps(steps) => steps.clone(),
        }
    }

    fn set_rate(&mut self, rate: BitRate) {
        let mut steps = self.steps();
        steps.iter_mut().filter(|step| step.1.0 > 0).for_each(|step| step.1 = rate);
        self.rate = profile(steps);
    }

    fn set_outage(&mut self, now: Instant, time: Duration) {
        self.outage = None;
        if time > Duration::ZERO {
            self.outage = Some((now, now + time.min(OUTAGE_MAX)));
            return;
        }
        // This also ends an outage of the plan; the rate after it applies from now on.
        let mut steps = self.steps();
        let present = steps.partition_point(|step| step.0 <= now) - 1;
        let after = steps[present..].iter().map(|step| step.1).find(|rate| rate.0 > 0);
        let ends = steps[present..].iter_mut().take_while(|step| step.1.0 == 0);
        ends.for_each(|step| step.1 = after.expect("the last rate is above zero"));
        self.rate = profile(steps);
    }

    /// The rate, zero during the outage.
    fn profile(&self) -> Profile<BitRate> {
        let Some((from, until)) = self.outage else { return self.rate.clone() };
        let (mut steps, rest) = (self.steps(), self.steps());
        steps.retain(|step| step.0 < from);
        steps.extend([(from, BitRate(0)), (until, self.rate.at(until))]);
        steps.extend(rest.into_iter().filter(|step| step.0 > until));
        profile(steps)
    }
}

fn profile(steps: Vec<(Instant, BitRate)>) -> Profile<BitRate> {
    match *steps {
        [(_, rate)] => Profile::Constant(rate),
        _ => Profile::steps(steps).expect("times increase from the start"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn schedule(steps: &[(u64, u64)]) -> RateSchedule {
        let steps = steps.iter().map(|&(ms, rate)| (at(ms), BitRate(rate)));
        RateSchedule {
            rate: profile(steps.collect()),
            outage: None,
            shortest_delay: Duration::ZERO,
            jitter: Duration::ZERO,
            framing: plan::Framing {
                header_bytes: 0,
                min_bytes: 0,
                cells: None,
                expansion: (1, 1),
                inter_frame_bytes: 0,
            },
        }
    }

    fn steps(schedule: &RateSchedule) -> Vec<(u64, u64)> {
        let whole = RateSchedule { rate: schedule.profile(), ..schedule.clone() }.steps();
        whole.into_iter().map(|(at, rate)| (at.as_nanos() / MS, rate.0)).collect()
    }

    /// Given two hops of 10 ms each way, and returns of 30 ms with jitter of 5 ms set, expect a round
    /// trip of 60 ms, and jitter of 5 ms.
    #[test]
    fn a_round_trip_is_over_all_hops_and_changes_with_them() {
        let plan = crate::plain_link::plain_link(1_000_000, Duration::from_millis(10), 0.0);
        let mut schedules = RateSchedules::new(&[plan.clone(), plan], 1);
        assert_eq!(schedules.round_trip(), (Duration::from_millis(40), Duration::ZERO));
        let delay = Some(Duration::from_millis(30));
        let jitter = Some(Duration::from_millis(5));
        let change = LinkChange { delay, jitter, ..LinkChange::none(1, Side::Island) };
        schedules.apply(at(1), &change, (1, "return"));
        let expected = (Duration::from_millis(60), Duration::from_millis(5));
        assert_eq!(schedules.round_trip(), expected);
        assert_eq!(schedules.shortest_delay(), Duration::from_millis(20));
    }

    /// Given a plan with an outage from 10 to 20 ms, expect it to stay when the rate is set.
    #[test]
    fn a_rate_change_keeps_the_outages_of_the_plan() {
        let mut schedule = schedule(&[(0, 8), (10, 0), (20, 5)]);
        schedule.set_rate(BitRate(3));
        assert_eq!(steps(&schedule), [(0, 3), (10, 0), (20, 3)]);
    }

    #[test]
    fn an_outage_suspends_the_rate_and_restores_it() {
        let mut schedule = schedule(&[(0, 8), (10, 6), (20, 5)]);
        schedule.set_outage(at(5), Duration::from_millis(10));
        assert_eq!(steps(&schedule), [(0, 8), (5, 0), (15, 6), (20, 5)]);
        // The last outage applies, shorter or longer.
        schedule.set_outage(at(7), Duration::from_millis(1));
        assert_eq!(steps(&schedule), [(0, 8), (7, 0), (8, 8), (10, 6), (20, 5)]);
        schedule.set_rate(BitRate(9));
        assert_eq!(steps(&schedule), [(0, 9), (7, 0), (8, 9), (10, 9), (20, 9)]);
        schedule.set_outage(at(9), Duration::from_millis(11));
        assert_eq!(steps(&schedule), [(0, 9), (9, 0), (20, 9)]);
        schedule.set_outage(at(9), Duration::ZERO);
        assert_eq!(steps(&schedule), [(0, 9), (10, 9), (20, 9)]);
    }

    #[test]
    fn an_outage_can_begin_at_the_start() {
        let mut schedule = schedule(&[(0, 8)]);
        schedule.set_outage(Instant::START, Duration::from_millis(3));
        assert_eq!(steps(&schedule), [(0, 0), (3, 8)]);
    }

    #[test]
    fn a_change_can_end_an_outage_of_the_plan() {
        let mut schedule = schedule(&[(0, 8), (10, 0), (20, 5), (30, 0), (40, 4)]);
        schedule.set_outage(at(12), Duration::ZERO);
        assert_eq!(steps(&schedule), [(0, 8), (10, 5), (20, 5), (30, 0), (40, 4)]);
    }

    #[test]
    fn the_longest_outage_leaves_time_after_it() {
        let mut schedule = schedule(&[(0, 8)]);
        schedule.set_outage(at(1), Duration::from_nanos(u64::MAX));
        assert_eq!(steps(&schedule)[2].1, 8);
    }
}
