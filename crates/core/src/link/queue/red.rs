//! Random early detection (Floyd and Jacobson, "Random Early Detection Gateways for Congestion
//! Avoidance", IEEE/ACM Transactions on Networking 1(4), 1993; RFC 2309): packets are dropped at random
//! before the queue is full, with a probability that increases with the average queue length.
//!
//! - Average: `avg <- (1 - w) avg + w q` at every arrival, with the backlog `q`. An arrival at an empty
//!   queue counts as the `m` packets of the mean size that could have been sent since the queue became
//!   empty: `avg <- (1 - w)^m avg`, with `m` at least one, since the arrival itself is a sample. The rates
//!   are those during the idle time.
//! - Between the thresholds a packet is dropped with `p_a = p_b / (1 - count p_b)`, where `count` is the
//!   number of packets accepted since the last drop: gaps between drops are then uniform on `1..=1/p_b`
//!   (the second of the two methods in the paper). The paper's figure 2 increments `count` before it is
//!   used, which shortens every gap but the first by one; the formula in the text is used here.
//! - `p_b` increases from zero to `max_probability` between the thresholds. Above the upper one every
//!   packet is dropped, or, if gentle (Floyd, "Recommendation on using the 'gentle' variant of RED",
//!   2000), `p_b` increases to one at twice the upper threshold.
//! - In bytes, `p_b` is scaled by the packet size over the mean size, so that each byte, and not each
//!   packet, is dropped with the same probability.
//! - With ECN, a packet of an ECN-capable transport is marked instead of dropped at random (RFC 3168,
//!   section 7). Where every packet is dropped, it is dropped, too: `ecn harddrop` of tc-red(8). For the
//!   gaps a mark counts as a drop.
//!
//! Not modelled: adaptation of `max_probability`.

use super::{Limit, Occupancy, PacketSize, Unit, Verdict};
use crate::packet::Ecn;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::trace::DropCause;
use crate::units::{BitRate, Bits, Probability};

/// The parameters of a [`Red`] queue.
#[derive(Clone, Copy, Debug)]
pub struct RedConfig {
    /// The hard limit, whatever the average.
    pub limit: Limit,
    /// The unit of the average and of the thresholds.
    pub unit: Unit,
    /// Nothing is dropped below this average.
    pub min_threshold: u64,
    /// From this average on every packet is dropped, or, if gentle, more than `max_probability`.
    pub max_threshold: u64,
    /// The drop probability `p_b` as the average reaches `max_threshold`.
    pub max_probability: Probability,
    /// The weight `w` of a sample in the average.
    pub weight: Probability,
    /// Whether the probability increases above `max_threshold`, to one at twice that.
    pub gentle: bool,
    /// Whether packets of ECN-capable transports are marked instead of dropped.
    pub ecn: bool,
    /// The mean packet size (`mean_pktsize_` in ns-2, `avpkt` in tc-red(8)): the reference for packet
    /// sizes if bytes are counted.
    pub mean_packet_bytes: u32,
    /// A packet of the mean size on the link: a step of the average while the queue is empty.
    pub mean_frame: Bits,
}

/// Why a packet is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DropKind {
    Random,
    /// The average is above the thresholds.
    Forced,
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Red {
    config: RedConfig,
    rng: Rng,
    /// The rate of the transmitter.
    rate: Profile<BitRate>,
    waiting: Occupancy,
    average: f64,
    /// While the queue is empty: the instant up to which `idle_work` is counted.
    idle_from: Instant,
    /// The capacity that was unused while the queue was empty and is not in the average yet, in bits
    /// times nanoseconds per second.
    idle_work: u128,
    /// Packets accepted between the thresholds since the last drop.
    count: u64,
}

impl Red {
    /// An empty queue that draws from `rng`. Its direction sets the rate.
    ///
    /// # Panics
    /// If the thresholds do not increase, or a packet of the mean size has no bytes or no bits.
    #[must_use]
    pub fn new(config: RedConfig, rng: Rng) -> Self {
        assert!(config.min_threshold < config.max_threshold, "thresholds increase");
        assert!(config.mean_packet_bytes > 0, "packets have a size");
        assert!(config.mean_frame > Bits(0), "frames have a size");
        Self {
            config,
            rng,
            rate: Profile::Constant(BitRate(0)),
            waiting: Occupancy::default(),
            average: 0.0,
            idle_from: Instant::START,
            idle_work: 0,
            count: 0,
        }
    }

    /// See `DropAtEnqueue::admit`.
    pub fn admit(&mut self, now: Instant, size: PacketSize, ecn: Ecn, wait: Duration) -> Verdict {
        self.sample(now);
        let is_marked = match self.drop_kind(size) {
            None => false,
            Some(DropKind::Random) if self.config.ecn && ecn.is_capable() => true,
            Some(_) => return Verdict::Drop(DropCause::Red),
        };
        match self.config.limit.admit(&self.waiting, size, wait) {
            Ok(()) if is_marked => Verdict::Mark,
            result => result.into(),
        }
    }

    /// Counts a packet that begins to wait.
    pub fn on_enqueue(&mut self, size: PacketSize) {
        self.waiting.on_enqueue(size);
    }

    /// Counts a packet whose transmission starts at `at`.
    pub fn on_dequeue(&mut self, at: Instant, size: PacketSize) {
        self.waiting.on_dequeue(size);
        if self.waiting.packets == 0 {
            self.idle_from = at;
            self.idle_work = 0;
        }
    }

    /// Sets the rate of the transmitter from `now` on.
    pub(super) fn set_rate(&mut self, now: Instant, rate: Profile<BitRate>) {
        if self.waiting.packets == 0 {
            self.count_idle(now);
        }
        self.rate = rate;
    }

    /// The hard limit.
    pub(super) fn limit(&self) -> Limit {
        self.config.limit
    }

    /// The packets that wait.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.waiting
    }

    fn sample(&mut self, now: Instant) {
        let weight = self.config.weight.get();
        if self.waiting.packets > 0 {
            let queued = float(self.config.unit.count(&self.waiting));
            self.average += weight * (queued - self.average);
            return;
        }
        self.count_idle(now);
        let packet = float(self.config.mean_frame.0) * 1e9;
        let packets = (float_wide(self.idle_work) / packet).max(1.0);
        self.average *= libm::pow(1.0 - weight, packets);
        self.idle_work = 0;
    }

    /// Adds the unused capacity until `now` to `idle_work`.
    fn count_idle(&mut self, now: Instant) {
        let rate = &self.rate;
        while self.idle_from < now {
            let until = rate.next_change(self.idle_from).map_or(now, |change| change.min(now));
            let nanos = u128::from((until - self.idle_from).as_nanos());
            self.idle_work += nanos * u128::from(rate.at(self.idle_from).0);
            self.idle_from = until;
        }
    }

    /// Whether the packet is to be dropped or marked, and why. Draws nothing below the lower threshold.
    fn drop_kind(&mut self, size: PacketSize) -> Option<DropKind> {
        if self.average < float(self.config.min_threshold) {
            self.count = 0;
            return None;
        }
        let base = self.base_probability(size);
        // count p_b reaches one at the end of the longest gap.
        let remaining = 1.0 - float(self.count) * base;
        let hit = remaining <= base || self.rng.open_unit() * remaining <= base;
        self.count = if hit { 0 } else { self.count + 1 };
        let kind = if self.is_forced() { DropKind::Forced } else { DropKind::Random };
        hit.then_some(kind)
    }

    /// Whether the average is where every packet is dropped.
    fn is_forced(&self) -> bool {
        let max = float(self.config.max_threshold);
        self.average >= if self.config.gentle { 2.0 * max } else { max }
    }

    /// `p_b`, for an average of at least the lower threshold.
    fn base_probability(&self, size: PacketSize) -> f64 {
        let config = &self.config;
        let (min, max) = (float(config.min_threshold), float(config.max_threshold));
        let max_p = config.max_probability.get();
        let base = if self.average < max {
            max_p * (self.average - min) / (max - min)
        } else if config.gentle && self.average < 2.0 * max {
            max_p + (1.0 - max_p) * (self.average - max) / max
        } else {
            return 1.0;
        };
        match config.unit {
            Unit::Packets => base,
            Unit::Bytes | Unit::LinkBytes => {
                (base * f64::from(size.bytes) / f64::from(config.mean_packet_bytes)).min(1.0)
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimator does not need more than 53 bits")]
fn float(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "an estimator does not need more than 53 bits")]
fn float_wide(number: u128) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::FlowId;

    const SOME: Duration = Duration::from_millis(1);
    const RED: Verdict = Verdict::Drop(DropCause::Red);

    /// Thresholds 5 and 15 packets, `p_b` at most 1/32; a packet of the mean size takes 10 ms.
    fn config(weight: f64) -> RedConfig {
        let probability = |value| Probability::new(value).expect("a probability");
        RedConfig {
            limit: Limit::Packets(100),
            unit: Unit::Packets,
            min_threshold: 5,
            max_threshold: 15,
            max_probability: probability(1.0 / 32.0),
            weight: probability(weight),
            gentle: false,
            ecn: false,
            mean_packet_bytes: 500,
            mean_frame: Bits(8 * 500),
        }
    }

    /// The verdict on a packet that may not be marked.
    fn admit(queue: &mut Red, now: Instant, bytes: u32, wait: Duration) -> Verdict {
        queue.admit(now, size(bytes), Ecn::NotEct, wait)
    }

    fn size(bytes: u32) -> PacketSize {
        PacketSize { flow: FlowId(0), bytes, link_bytes: bytes + 8 }
    }

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// A queue in which `packets` packets of 500 bytes wait.
    fn holding(config: RedConfig, packets: u32) -> Red {
        let mut queue = Red::new(config, Rng::stream(1, "red"));
        queue.set_rate(ms(0), Profile::Constant(BitRate(400_000)));
        (0..packets).for_each(|_| queue.on_enqueue(size(500)));
        queue
    }

    /// The number of packets from one drop to the next, with a constant backlog.
    fn gaps(queue: &mut Red, bytes: u32, drops: usize) -> Vec<usize> {
        let mut gaps = vec![1];
        while gaps.len() <= drops {
            let last = gaps.len() - 1;
            if admit(queue, ms(0), bytes, SOME) == RED {
                gaps.push(1);
            } else {
                gaps[last] += 1;
            }
        }
        gaps.truncate(drops);
        gaps
    }

    fn mean(gaps: &[usize]) -> f64 {
        float(gaps.iter().sum::<usize>() as u64) / float(gaps.len() as u64)
    }

    /// w = 1/4 and 4, 4, 4, 8 packets: 1, 1 + 3/4, 1.75 + 2.25/4, 2.3125 + 5.6875/4. Quarters are exact.
    #[test]
    fn the_average_matches_a_hand_computed_series() {
        let mut queue = holding(config(0.25), 4);
        let mut averages = Vec::new();
        for more in [0, 0, 0, 4] {
            (0..more).for_each(|_| queue.on_enqueue(size(500)));
            assert_eq!(admit(&mut queue, ms(0), 500, SOME), Verdict::Enqueue);
            averages.push(queue.average);
        }
        assert_eq!(averages, [1.0, 1.75, 2.312_5, 3.734_375]);
    }

    /// After 30 ms with an empty queue, at 10 ms per packet, the average has three samples of zero:
    /// 8 / 2^3 = 1. An arrival 5 ms later adds one, as less than a packet counts as one.
    #[test]
    fn the_average_decays_while_the_queue_is_empty() {
        let mut queue = holding(config(0.5), 1);
        queue.average = 8.0;
        queue.on_dequeue(ms(100), size(500));
        assert_eq!(admit(&mut queue, ms(130), 500, Duration::ZERO), Verdict::Enqueue);
        assert_eq!(queue.average, 1.0);
        assert_eq!(admit(&mut queue, ms(135), 500, Duration::ZERO), Verdict::Enqueue);
        assert_eq!(queue.average, 0.5);
    }

    /// At 10 ms per packet, then an outage of 20 ms, then 5 ms per packet: 40 ms of an empty queue are one
    /// packet before the outage and two after it, 8 / 2^3 = 1. The highest rate would make it eight.
    #[test]
    fn idle_time_is_weighted_by_the_current_rate() {
        let steps = [(0, 400_000), (110, 0), (130, 800_000)];
        let steps = steps.map(|(at, rate)| (ms(at), BitRate(rate)));
        let rate = Profile::steps(steps.to_vec()).expect("increases from zero");
        let mut queue = holding(config(0.5), 1);
        queue.set_rate(ms(0), rate);
        queue.average = 8.0;
        queue.on_dequeue(ms(100), size(500));
        assert_eq!(admit(&mut queue, ms(140), 500, Duration::ZERO), Verdict::Enqueue);
        assert_eq!(queue.average, 1.0);
    }

    /// 10 ms at 10 ms per packet, and after a change 10 ms at 5 ms per packet: three packets.
    #[test]
    fn a_rate_change_keeps_the_idle_time_before_it() {
        let mut queue = holding(config(0.5), 1);
        queue.average = 8.0;
        queue.on_dequeue(ms(100), size(500));
        queue.set_rate(ms(110), Profile::Constant(BitRate(800_000)));
        assert_eq!(admit(&mut queue, ms(120), 500, Duration::ZERO), Verdict::Enqueue);
        assert_eq!(queue.average, 1.0);
    }

    #[test]
    fn below_the_lower_threshold_nothing_is_dropped_and_above_the_upper_everything() {
        let mut below = holding(config(1.0), 4);
        assert!((0..10_000).all(|_| admit(&mut below, ms(0), 500, SOME) == Verdict::Enqueue));
        let mut above = holding(config(1.0), 15);
        assert!((0..1_000).all(|_| admit(&mut above, ms(0), 500, SOME) == RED));
    }

    /// In the middle between the thresholds p_b = 1/64: gaps are uniform on 1..=64, mean (64 + 1) / 2 =
    /// 1/(2 p_b) + 1/2. Of 64,000 each length occurs 1,000 times, deviation 31.4; the bound is five of them.
    #[test]
    fn gaps_between_drops_are_uniform() {
        let gaps = gaps(&mut holding(config(1.0), 10), 500, 64_000);
        let mut counts = [0u64; 65];
        gaps.iter().for_each(|&gap| counts[gap] += 1);
        assert!(counts[1..].iter().all(|count| count.abs_diff(1_000) < 157), "{counts:?}");
        assert!((mean(&gaps) - 32.5).abs() < 5.0 * 18.47 / libm::sqrt(64_000.0), "{}", mean(&gaps));
    }

    /// In bytes and in the middle between the thresholds, a packet of twice the mean size has p_b = 1/32
    /// and one of a quarter 1/256: mean gaps 16.5 and 128.5. The error of the mean of 4,000 uniform gaps on
    /// 1..=n is n / sqrt(12 * 4,000): 0.15 and 1.17; the bound is five of them.
    #[test]
    fn in_bytes_a_large_packet_is_dropped_more_often() {
        let bytes = RedConfig {
            unit: Unit::Bytes,
            min_threshold: 2_500,
            max_threshold: 7_500,
            ..config(1.0)
        };
        let large = mean(&gaps(&mut holding(bytes, 10), 1_000, 4_000));
        assert!((large - 16.5).abs() < 0.74, "{large}");
        let small = mean(&gaps(&mut holding(bytes, 10), 125, 4_000));
        assert!((small - 128.5).abs() < 5.9, "{small}");
    }

    /// Gentle: at 15 packets p_b is still 1/32, at 22.5 (in bytes) the mean of 1/32 and 1, at 30 one.
    #[test]
    fn gentle_raises_the_probability_to_one_at_twice_the_upper_threshold() {
        let gentle = RedConfig { gentle: true, ..config(1.0) };
        let base = |average| {
            let mut queue = holding(gentle, 0);
            queue.average = average;
            queue.base_probability(size(500))
        };
        assert_eq!([5.0, 10.0, 15.0].map(base), [0.0, 1.0 / 64.0, 1.0 / 32.0]);
        assert_eq!(base(22.5), (1.0 / 32.0 + 1.0) / 2.0);
        assert_eq!(base(30.0), 1.0);
        let mut full = holding(gentle, 30);
        assert!((0..100).all(|_| admit(&mut full, ms(0), 500, SOME) == RED));
    }

    /// In the middle between the thresholds p_b = 1/64 and gaps have a mean of 32.5: of 65,000 packets some
    /// 2,000 are marked if they are ECN-capable, and the same ones are dropped otherwise.
    #[test]
    fn with_ecn_random_drops_become_marks() {
        let verdicts = |ecn, packet| {
            let mut queue = holding(RedConfig { ecn, ..config(1.0) }, 10);
            let verdict = |_| queue.admit(ms(0), size(500), packet, SOME);
            (0..65_000).map(verdict).collect::<Vec<_>>()
        };
        let dropped = verdicts(true, Ecn::NotEct);
        assert_eq!(dropped, verdicts(false, Ecn::Ect0), "ECN is off, or the packet is not capable");
        let hits = dropped.iter().filter(|&&verdict| verdict == RED).count();
        assert!((1_850..2_150).contains(&hits), "{hits}");
        for packet in [Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
            let marked = verdicts(true, packet);
            let same = |(a, b): (&Verdict, &Verdict)| (*a == Verdict::Mark) == (*b == RED);
            assert!(marked.iter().zip(&dropped).all(same), "{packet:?}");
            assert!(!marked.contains(&RED));
        }
    }

    /// Given a forced drop or a full queue, expect no mark.
    #[test]
    fn forced_drops_and_a_full_queue_are_not_marked() {
        let ect = |queue: &mut Red| queue.admit(ms(0), size(500), Ecn::Ect0, SOME);
        let ecn = RedConfig { ecn: true, ..config(1.0) };
        assert_eq!(ect(&mut holding(ecn, 15)), RED);
        assert_eq!(ect(&mut holding(RedConfig { gentle: true, ..ecn }, 30)), RED);
        let mut full = holding(RedConfig { limit: Limit::Packets(10), ..ecn }, 10);
        let verdicts: Vec<_> = (0..200).map(|_| ect(&mut full)).collect();
        assert!(verdicts.iter().all(|&verdict| verdict == Verdict::Drop(DropCause::QueueFull)));
    }

    #[test]
    fn the_hard_limit_does_not_depend_on_the_average() {
        let mut queue = holding(RedConfig { limit: Limit::Packets(20), ..config(0.002) }, 20);
        assert_eq!(admit(&mut queue, ms(0), 500, SOME), Verdict::Drop(DropCause::QueueFull));
        assert_eq!(admit(&mut queue, ms(0), 500, Duration::ZERO), Verdict::Enqueue);
    }

    /// Given an average that falls below the lower threshold, expect a new gap: the second of two packets
    /// of the longest gap (p_b = 1/2: two packets) is not certain to be dropped.
    #[test]
    fn an_average_below_the_threshold_starts_a_new_gap() {
        let probability = Probability::new(1.0).expect("one");
        let certain = RedConfig { max_probability: probability, ..config(1.0) };
        let mut hits = 0;
        for seed in 0..100 {
            let mut queue = Red::new(certain, Rng::stream(seed, "red"));
            queue.count = 1;
            assert_eq!(admit(&mut queue, ms(0), 500, SOME), Verdict::Enqueue);
            (0..10).for_each(|_| queue.on_enqueue(size(500)));
            hits += u32::from(admit(&mut queue, ms(0), 500, SOME) == RED);
        }
        // Binomial, 100 times 1/2: mean 50, deviation 5; the bound is five of them.
        assert!(hits.abs_diff(50) < 25, "{hits}");
    }
}
