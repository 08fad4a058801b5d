//! What somebody orders of a link that runs, as what becomes of it in the engine.
//!
//! The rate of a direction is what the plan says or what was ordered last, and nothing during an
//! outage; the plan's own outages stay where they are when the rate is ordered. The engine is given
//! both as one profile.

use bentpipe_core::link::{Change, Channel};
use bentpipe_core::profile::Profile;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::units::{BitRate, Probability};
use bentpipe_sim::Side;
use bentpipe_sim::plan::{self, Plan, PlanError};

/// An order to the directions of one hop that lead away from a side. What is not ordered stays as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order {
    /// Which hop, from 0, the one next to the world.
    pub hop: usize,
    /// The side from which the direction leads away: from the island, those of all terminals.
    pub from: Side,
    /// The rate from now on; above zero.
    pub rate: Option<BitRate>,
    /// The delay of frames that leave from now on.
    pub delay: Option<Duration>,
    /// The chance that a bit is wrong, of frames whose transmission starts from now on.
    pub bit_error_rate: Option<Probability>,
    /// For how long nothing is sent from now on, whatever outage there is; at most [`OUTAGE_MAX`].
    /// Zero ends one.
    pub outage: Option<Duration>,
}

/// An outage until further notice: 146 years, which leaves as long for what waits.
pub const OUTAGE_MAX: Duration = Duration::from_nanos(1 << 62);

/// As in a plan: 100 days.
const DELAY_MAX: Duration = Duration::from_secs(100 * 86_400);

impl Order {
    /// An order that changes nothing.
    #[must_use]
    pub const fn to(hop: usize, from: Side) -> Self {
        Self { hop, from, rate: None, delay: None, bit_error_rate: None, outage: None }
    }
}

/// What the directions of a chain do as time goes on, as far as orders change it.
#[derive(Debug)]
pub(crate) struct Courses {
    /// Of each hop, its directions in the plan's order.
    hops: Vec<Vec<Course>>,
    seed: u64,
    /// How many orders were given: each that changes a channel has a stream of chance of its own.
    orders: u64,
}

impl Courses {
    pub(crate) fn new(plans: &[Plan], seed: u64) -> Self {
        let course = |direction: &plan::Direction| Course {
            rate: direction.rate_bps.profile(BitRate).expect("checked with the plan"),
            outage: None,
            shortest_delay: shortest(&direction.delay_ns),
        };
        let of_plan = |plan: &Plan| plan.directions.iter().map(course).collect();
        Self { hops: plans.iter().map(of_plan).collect(), seed, orders: 0 }
    }

    /// The shortest time that a packet takes over all hops, whichever way it goes, from now on.
    pub(crate) fn shortest_delay(&self) -> Duration {
        let over_hops = |directions: &dyn Fn(&[Course]) -> Option<Duration>| {
            let of_hops = self.hops.iter().filter_map(|hop| directions(hop));
            of_hops.fold(Duration::ZERO, |sum, delay| sum + delay)
        };
        let forward = over_hops(&|hop| hop.first().map(|course| course.shortest_delay));
        let back = over_hops(&|hop| hop.iter().skip(1).map(|course| course.shortest_delay).min());
        forward.min(back)
    }

    /// Looks whether there is what an order is for, and it can be followed.
    pub(crate) fn check(&self, order: &Order) -> Result<(), PlanError> {
        let (field, problem) = match order {
            Order { hop, .. } if *hop >= self.hops.len() => ("hop", "there is no such hop"),
            Order { rate: Some(BitRate(0)), .. } => ("rate", "must be above zero; order an outage"),
            Order { delay: Some(delay), .. } if *delay > DELAY_MAX => ("delay", "is too long"),
            _ => return Ok(()),
        };
        Err(PlanError { field: field.to_owned(), problem: problem.to_owned() })
    }

    /// What an order that was checked changes at `now`, in a direction by its number and its name.
    pub(crate) fn follow(
        &mut self,
        now: Instant,
        order: &Order,
        (direction, name): (usize, &str),
    ) -> Change {
        self.orders += 1;
        let course = &mut self.hops[order.hop][direction];
        let mut change = Change::default();
        if let Some(rate) = order.rate {
            course.set_rate(rate);
        }
        if let Some(time) = order.outage {
            course.set_outage(now, time);
        }
        if order.rate.is_some() || order.outage.is_some() {
            change.rate = Some(course.profile());
        }
        if let Some(delay) = order.delay {
            course.shortest_delay = delay;
            change.delay = Some(Profile::Constant(delay));
        }
        change.channel = order.bit_error_rate.map(|rate| {
            let stream = format!("link.{name}.channel.{}", self.orders);
            Channel::bit_errors(rate, Rng::stream(self.seed, &stream))
        });
        change
    }
}

#[derive(Clone, Debug)]
struct Course {
    /// The plan's, or the one that was ordered, with the plan's outages.
    rate: Profile<BitRate>,
    /// The outage that was ordered, from and until.
    outage: Option<(Instant, Instant)>,
    /// The shortest that the delay is or will be, as far as it is known.
    shortest_delay: Duration,
}

fn shortest(delay_ns: &plan::Series) -> Duration {
    let delays = delay_ns.profile(Duration::from_nanos).expect("checked with the plan");
    delays.values().min().unwrap_or(Duration::ZERO)
}

impl Course {
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
        // The plan may have an outage just now: it ends too, and the rate after it holds.
        let mut steps = self.steps();
        let present = steps.partition_point(|step| step.0 <= now) - 1;
        let after = steps[present..].iter().map(|step| step.1).find(|rate| rate.0 > 0);
        let ends = steps[present..].iter_mut().take_while(|step| step.1.0 == 0);
        ends.for_each(|step| step.1 = after.expect("the last rate is above zero"));
        self.rate = profile(steps);
    }

    /// The rate, and nothing during the outage.
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
        _ => Profile::steps(steps).expect("rises from the start"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn course(steps: &[(u64, u64)]) -> Course {
        let steps = steps.iter().map(|&(ms, rate)| (at(ms), BitRate(rate)));
        Course { rate: profile(steps.collect()), outage: None, shortest_delay: Duration::ZERO }
    }

    fn steps(course: &Course) -> Vec<(u64, u64)> {
        let whole = Course { rate: course.profile(), ..course.clone() }.steps();
        whole.into_iter().map(|(at, rate)| (at.as_nanos() / MS, rate.0)).collect()
    }

    /// Given a plan with an outage from 10 to 20 ms, expect it to stay when the rate is ordered.
    #[test]
    fn an_ordered_rate_keeps_the_plans_outages() {
        let mut course = course(&[(0, 8), (10, 0), (20, 5)]);
        course.set_rate(BitRate(3));
        assert_eq!(steps(&course), [(0, 3), (10, 0), (20, 3)]);
    }

    #[test]
    fn an_outage_hides_the_rate_and_gives_it_back() {
        let mut course = course(&[(0, 8), (10, 6), (20, 5)]);
        course.set_outage(at(5), Duration::from_millis(10));
        assert_eq!(steps(&course), [(0, 8), (5, 0), (15, 6), (20, 5)]);
        // The last word counts, shorter or longer.
        course.set_outage(at(7), Duration::from_millis(1));
        assert_eq!(steps(&course), [(0, 8), (7, 0), (8, 8), (10, 6), (20, 5)]);
        course.set_rate(BitRate(9));
        assert_eq!(steps(&course), [(0, 9), (7, 0), (8, 9), (10, 9), (20, 9)]);
        course.set_outage(at(9), Duration::from_millis(11));
        assert_eq!(steps(&course), [(0, 9), (9, 0), (20, 9)]);
        course.set_outage(at(9), Duration::ZERO);
        assert_eq!(steps(&course), [(0, 9), (10, 9), (20, 9)]);
    }

    #[test]
    fn an_outage_from_the_start_has_no_rate_before_it() {
        let mut course = course(&[(0, 8)]);
        course.set_outage(Instant::START, Duration::from_millis(3));
        assert_eq!(steps(&course), [(0, 0), (3, 8)]);
    }

    #[test]
    fn an_outage_of_the_plan_can_be_ended() {
        let mut course = course(&[(0, 8), (10, 0), (20, 5), (30, 0), (40, 4)]);
        course.set_outage(at(12), Duration::ZERO);
        assert_eq!(steps(&course), [(0, 8), (10, 5), (20, 5), (30, 0), (40, 4)]);
    }

    #[test]
    fn an_outage_until_further_notice_leaves_time_for_what_waits() {
        let mut course = course(&[(0, 8)]);
        course.set_outage(at(1), Duration::from_nanos(u64::MAX));
        assert_eq!(steps(&course)[2].1, 8);
    }
}
