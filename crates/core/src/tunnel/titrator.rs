//! When repair is sent.
//!
//! Losses of a congested link are tail drops at its input queue. Repair that follows its sources at once
//! meets the same full queue, and takes the place of originals. A titrator holds repair back until the
//! queue has drained below a threshold. Repair that comes too late is of no use either: each held
//! repair has a deadline, after which TCP would have retransmitted what it covers.
//!
//! Originals never enter the titrator: they are sent at once and have priority. The caller releases
//! repair one by one and adds each to the queue before it asks for the next.

use std::collections::VecDeque;

use crate::engine::Count;
use crate::time::{Duration, Instant};

/// When repair is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Titration {
    /// Never: no repair is sent.
    None,
    /// At once.
    Immediate,
    /// After a fixed delay, whatever the queue holds.
    Delayed(Duration),
    /// While the queue's occupancy is below a threshold, for at most the hold time.
    Titrated {
        /// Repair is released while the queue holds fewer bytes.
        threshold_bytes: u64,
        /// The longest wait; repair not released by then expires.
        hold_time: Duration,
    },
}

/// The settings of a titrator.
#[derive(Clone, Copy, Debug)]
pub struct TitratorConfig {
    /// When repair is released.
    pub titration: Titration,
    /// The most bytes that wait.
    pub hold_bytes_max: u64,
    /// The most repairs that wait.
    pub hold_packets_max: usize,
}

/// What became of repair. Offered = released + expired + obsolete + overflowed + refused + held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TitratorCounts {
    /// Repair offered.
    pub offered: Count,
    /// Sent.
    pub released: Count,
    /// Not sent by its deadline.
    pub expired: Count,
    /// Cancelled: the decoder has what it covers.
    pub obsolete: Count,
    /// Dropped because the hold buffer was full.
    pub overflowed: Count,
    /// Not taken, because no repair is sent.
    pub refused: Count,
    /// Waiting now.
    pub held: Count,
}

#[derive(Clone, Debug)]
struct Held<T> {
    offered_at: Instant,
    bytes: u32,
    item: T,
}

/// See the module's description. `T` is a repair, or a token for one that is made when it is released.
#[derive(Clone, Debug)]
pub struct Titrator<T> {
    config: TitratorConfig,
    /// In order of arrival; due times and deadlines have the same order.
    held: VecDeque<Held<T>>,
    counts: TitratorCounts,
}

impl<T> Titrator<T> {
    /// A titrator that holds nothing.
    #[must_use]
    pub fn new(config: TitratorConfig) -> Self {
        Self { config, held: VecDeque::new(), counts: TitratorCounts::default() }
    }

    /// Takes a repair of `bytes` that was made now.
    ///
    /// If the buffer is full, the repair that has waited longest is dropped: it covers the least of what
    /// is still missing, and expires first.
    pub fn offer(&mut self, now: Instant, bytes: u32, item: T) {
        self.expire(now);
        self.counts.offered.add(bytes);
        if self.config.titration == Titration::None {
            self.counts.refused.add(bytes);
            return;
        }
        self.counts.held.add(bytes);
        self.held.push_back(Held { offered_at: now, bytes, item });
        self.shrink();
    }

    /// The next repair to send now, if one is due and the queue, which holds `occupancy_bytes`, has room
    /// for it.
    pub fn release(&mut self, now: Instant, occupancy_bytes: u64) -> Option<T> {
        self.expire(now);
        let due = self.due(self.held.front()?);
        if now < due || !self.admits(occupancy_bytes) {
            return None;
        }
        let Held { bytes, item, .. } = self.take_first()?;
        self.counts.released.add(bytes);
        Some(item)
    }

    /// Cancels the repair of which `is_obsolete` holds: the decoder has all it covers.
    pub fn cancel(&mut self, now: Instant, mut is_obsolete: impl FnMut(&T) -> bool) {
        self.expire(now);
        let counts = &mut self.counts;
        self.held.retain(|held| {
            let is_kept = !is_obsolete(&held.item);
            if !is_kept {
                counts.held.remove(held.bytes);
                counts.obsolete.add(held.bytes);
            }
            is_kept
        });
    }

    /// The held repair of which `is_meant` holds.
    #[must_use]
    pub fn count(&self, is_meant: impl Fn(&T) -> bool) -> u32 {
        let count = self.held.iter().filter(|held| is_meant(&held.item)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Drops the repair whose deadline has come.
    pub fn expire(&mut self, now: Instant) {
        while let Some(deadline) = self.deadline()
            && deadline <= now
        {
            let Some(Held { bytes, .. }) = self.take_first() else { return };
            self.counts.expired.add(bytes);
        }
    }

    /// When repair will next be released or expire.
    ///
    /// `below_at` is when the queue's occupancy will be below a threshold, from now on: that of
    /// [`super::ShadowQueue::below_at`]. `None` if that is not known beforehand: the owner of a real
    /// queue asks for a release whenever it has dequeued a packet.
    #[must_use]
    pub fn next_wake(&self, below_at: impl FnOnce(u64) -> Option<Instant>) -> Option<Instant> {
        let first = self.held.front()?;
        match self.config.titration {
            Titration::Titrated { threshold_bytes, .. } => {
                let release = below_at(threshold_bytes).map(|at| at.max(first.offered_at));
                release.into_iter().chain(self.deadline()).min()
            }
            _ => Some(self.due(first)),
        }
    }

    /// Changes the settings; what waits follows the new ones.
    pub fn reconfigure(&mut self, now: Instant, config: TitratorConfig) {
        self.expire(now);
        self.config = config;
        self.shrink();
        if config.titration == Titration::None {
            while let Some(Held { bytes, .. }) = self.take_first() {
                self.counts.refused.add(bytes);
            }
        }
    }

    /// The counts.
    #[must_use]
    pub fn counts(&self) -> TitratorCounts {
        self.counts
    }

    fn due(&self, held: &Held<T>) -> Instant {
        match self.config.titration {
            Titration::Delayed(delay) => held.offered_at + delay,
            _ => held.offered_at,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let Titration::Titrated { hold_time, .. } = self.config.titration else { return None };
        Some(self.held.front()?.offered_at + hold_time)
    }

    fn admits(&self, occupancy_bytes: u64) -> bool {
        match self.config.titration {
            Titration::None => false,
            Titration::Immediate | Titration::Delayed(_) => true,
            Titration::Titrated { threshold_bytes, .. } => occupancy_bytes < threshold_bytes,
        }
    }

    fn shrink(&mut self) {
        let TitratorConfig { hold_bytes_max, hold_packets_max, .. } = self.config;
        while self.counts.held.bytes > hold_bytes_max || self.held.len() > hold_packets_max {
            let Some(Held { bytes, .. }) = self.take_first() else { return };
            self.counts.overflowed.add(bytes);
        }
    }

    fn take_first(&mut self) -> Option<Held<T>> {
        let first = self.held.pop_front()?;
        self.counts.held.remove(first.bytes);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Framing;
    use crate::tunnel::{ShadowQueue, ShadowQueueConfig};
    use crate::units::BitRate;
    use proptest::prelude::*;

    const TITRATED: Titration =
        Titration::Titrated { threshold_bytes: 3_000, hold_time: Duration::from_millis(400) };

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn titrator(titration: Titration) -> Titrator<u32> {
        Titrator::new(TitratorConfig { titration, hold_bytes_max: 5_000, hold_packets_max: 10 })
    }

    fn count(packets: u64, bytes: u64) -> Count {
        Count { packets, bytes }
    }

    #[test]
    fn repair_is_held_while_the_queue_is_at_the_threshold() {
        let mut titrator = titrator(TITRATED);
        titrator.offer(ms(0), 1_000, 1);
        titrator.offer(ms(1), 1_000, 2);
        assert_eq!(titrator.release(ms(1), 3_000), None);
        assert_eq!(titrator.release(ms(1), 2_999), Some(1), "the one that has waited longest");
        assert_eq!(titrator.release(ms(1), 3_999), None, "the queue has grown by it");
        assert_eq!(titrator.next_wake(|_| Some(ms(9))), Some(ms(9)));
        assert_eq!(titrator.next_wake(|_| None), Some(ms(401)), "the deadline");
        assert_eq!(titrator.release(ms(401), 0), None);
        assert_eq!(titrator.counts().expired, count(1, 1_000));
        assert_eq!(titrator.next_wake(|_| Some(ms(9))), None);
    }

    #[test]
    fn the_other_modes_ignore_the_queue() {
        let mut none = titrator(Titration::None);
        none.offer(ms(0), 1_000, 1);
        assert_eq!((none.release(ms(0), 0), none.next_wake(queue_is_not_asked)), (None, None));
        assert_eq!(none.counts().refused, count(1, 1_000));

        let mut immediate = titrator(Titration::Immediate);
        immediate.offer(ms(5), 1_000, 1);
        assert_eq!(immediate.next_wake(queue_is_not_asked), Some(ms(5)));
        assert_eq!(immediate.release(ms(5), 1 << 40), Some(1));

        let mut delayed = titrator(Titration::Delayed(Duration::from_millis(100)));
        delayed.offer(ms(5), 1_000, 1);
        assert_eq!(delayed.next_wake(queue_is_not_asked), Some(ms(105)));
        assert_eq!([104, 105].map(|at| delayed.release(ms(at), 1 << 40)), [None, Some(1)]);
    }

    fn queue_is_not_asked(_threshold: u64) -> Option<Instant> {
        unreachable!("only titrated repair waits for the queue")
    }

    #[test]
    fn decoded_symbols_cancel_held_repair() {
        let mut titrator = titrator(TITRATED);
        (1..=3).for_each(|repair| titrator.offer(ms(0), 100 * repair, repair));
        titrator.cancel(ms(1), |&repair| repair != 2);
        assert_eq!(titrator.counts().obsolete, count(2, 400));
        assert_eq!(titrator.release(ms(1), 0), Some(2));
    }

    /// Given a buffer of 5,000 bytes, expect the third repair of 2,000 to displace the first, and one of
    /// 6,000 all of them and itself.
    #[test]
    fn a_full_buffer_drops_the_oldest_repair() {
        let mut titrator = titrator(TITRATED);
        (1..=3).for_each(|repair| titrator.offer(ms(0), 2_000, repair));
        assert_eq!(titrator.counts().overflowed, count(1, 2_000));
        titrator.offer(ms(0), 6_000, 4);
        assert_eq!(titrator.counts().overflowed, count(4, 12_000));
        assert_eq!(titrator.counts().held, Count::default());
    }

    #[test]
    fn held_repair_follows_new_settings() {
        let mut titrator = titrator(TITRATED);
        (1..=2).for_each(|repair| titrator.offer(ms(0), 1_000, repair));
        let config =
            |titration| TitratorConfig { titration, hold_bytes_max: 9_000, hold_packets_max: 1 };
        titrator.reconfigure(ms(1), config(Titration::Immediate));
        assert_eq!(titrator.counts().overflowed, count(1, 1_000));
        titrator.reconfigure(ms(2), config(Titration::None));
        assert_eq!(titrator.counts().refused, count(1, 1_000));
    }

    /// Sends 200 packets of 1,500 bytes at once into a queue of 120 kB at 16 Mbit/s, with repair after each
    /// tenth. Returns the originals and the repair that fit, and when the last repair was sent.
    fn burst(titration: Titration) -> (u32, u32, Instant) {
        let (rate, framing) = (BitRate(16_000_000), Framing::overhead(18));
        let mut queue =
            ShadowQueue::new(ShadowQueueConfig { rate, framing, capacity_bytes: 120_000 });
        let (hold_bytes_max, hold_packets_max) = (1 << 20, 1_000);
        let mut titrator =
            Titrator::new(TitratorConfig { titration, hold_bytes_max, hold_packets_max });
        let (mut originals, mut repairs, mut now) = (0, 0, ms(0));
        let mut release = |titrator: &mut Titrator<()>, queue: &mut ShadowQueue, now| {
            while titrator.release(now, queue.occupancy_bytes(now)).is_some() {
                repairs += u32::from(queue.push(now, 1_500));
            }
        };
        for number in 1..=200 {
            originals += u32::from(queue.push(now, 1_500));
            if number % 10 == 0 {
                titrator.offer(now, 1_500, ());
                release(&mut titrator, &mut queue, now);
            }
        }
        while let Some(wake) = titrator.next_wake(|threshold| queue.below_at(now, threshold)) {
            now = wake;
            release(&mut titrator, &mut queue, now);
        }
        (originals, repairs, now)
    }

    /// A packet has 1,518 bytes on the link, so 79 fit. Sent at once, repair is each eleventh of them: 7 of
    /// 20 fit, in the place of as many originals. Titrated with a threshold of 12 kB, all 20 follow when the
    /// queue has drained to 11,999 bytes at 2 bytes per microsecond, the last one 19 packets later:
    /// (119,922 - 11,999 + 19 * 1,518) / 2 us.
    #[test]
    fn titrated_repair_survives_the_overflow_that_it_is_for() {
        let (originals, repairs, _) = burst(Titration::Immediate);
        assert_eq!((originals, repairs), (72, 7));
        let hold_time = Duration::from_millis(500);
        let titrated = burst(Titration::Titrated { threshold_bytes: 12_000, hold_time });
        assert_eq!(titrated, (79, 20, Instant::from_nanos(68_382_500)));
        let (originals, repairs, _) = burst(Titration::Titrated {
            threshold_bytes: 12_000,
            hold_time: Duration::from_millis(54),
        });
        assert_eq!(
            (originals, repairs),
            (79, 1),
            "the first goes after 53.96 ms; the others expire"
        );
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Original(u32),
        Repair(u32),
        Cancel(u32),
        /// A wake that nothing asked for.
        Wake,
    }

    fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
        let event = prop_oneof![
            (40u32..1_500).prop_map(Event::Original),
            (40u32..1_500).prop_map(Event::Repair),
            (0u32..40).prop_map(Event::Cancel),
            Just(Event::Wake),
        ];
        prop::collection::vec((0u64..30_000_000, event), 0..120)
    }

    fn titrations() -> impl Strategy<Value = Titration> {
        let millis = |max| (0u64..max).prop_map(Duration::from_millis);
        prop_oneof![
            Just(Titration::None),
            Just(Titration::Immediate),
            millis(50).prop_map(Titration::Delayed),
            (0u64..6_000, millis(200)).prop_map(|(threshold_bytes, hold_time)| {
                Titration::Titrated { threshold_bytes, hold_time }
            }),
        ]
    }

    /// A titrator before a shadow queue, and when it sent each repair.
    struct Run {
        titrator: Titrator<u32>,
        queue: ShadowQueue,
        released: Vec<(Instant, u32)>,
        repairs: u32,
    }

    impl Run {
        fn new(titration: Titration) -> Self {
            let framing = Framing::overhead(18);
            let rate = BitRate(1_000_003);
            let config = ShadowQueueConfig { rate, framing, capacity_bytes: 12_000 };
            let queue = ShadowQueue::new(config);
            Self { titrator: titrator(titration), queue, released: Vec::new(), repairs: 0 }
        }

        fn next_wake(&self, now: Instant) -> Option<Instant> {
            self.titrator.next_wake(|threshold| self.queue.below_at(now, threshold))
        }

        fn release(&mut self, now: Instant) {
            while let Some(item) = self.titrator.release(now, self.queue.occupancy_bytes(now)) {
                self.queue.push(now, 1_000);
                self.released.push((now, item));
            }
        }

        fn play(&mut self, now: Instant, event: Event) {
            match event {
                Event::Original(bytes) => {
                    self.queue.push(now, bytes);
                }
                Event::Repair(bytes) => {
                    self.titrator.offer(now, bytes, self.repairs);
                    self.repairs += 1;
                }
                Event::Cancel(one) => self.titrator.cancel(now, |&item| item % 40 == one),
                Event::Wake => {}
            }
            self.release(now);
        }

        /// Wakes it whenever it asks for that before `end`.
        fn run_until(&mut self, mut now: Instant, end: Instant) {
            while let Some(wake) = self.next_wake(now)
                && wake < end
            {
                assert!(wake >= now, "a wake in the past");
                let before = self.titrator.counts();
                now = wake;
                self.release(now);
                assert_ne!(self.titrator.counts(), before, "a wake for nothing");
            }
        }

        fn assert_conservation(&self) {
            let TitratorCounts { offered, released, expired, obsolete, overflowed, refused, held } =
                self.titrator.counts();
            let parts = [released, expired, obsolete, overflowed, refused, held];
            let packets: u64 = parts.iter().map(|part| part.packets).sum();
            let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
            assert_eq!(Count { packets, bytes }, offered);
            assert!(held.bytes <= 5_000 && held.packets <= 10);
        }
    }

    proptest! {
        /// Given any events, expect every wake to do something and the counts to add up. Given wakes
        /// that nothing asked for in addition, expect the same repair at the same nanoseconds.
        #[test]
        fn wakes_are_exact(titration in titrations(), events in events()) {
            let all = [false, true].map(|is_quiet| {
                let (mut run, mut now) = (Run::new(titration), Instant::START);
                for &(gap, event) in &events {
                    let at = now + Duration::from_nanos(gap);
                    run.run_until(now, at);
                    now = at;
                    if !is_quiet || !matches!(event, Event::Wake) {
                        run.play(now, event);
                    }
                    run.assert_conservation();
                }
                run.run_until(now, now + Duration::from_secs(60));
                run.assert_conservation();
                (run.released, run.titrator.counts())
            });
            prop_assert_eq!(&all[0], &all[1]);
            prop_assert_eq!(all[0].1.held, Count::default());
            prop_assert!(all[0].0.is_sorted());
        }
    }
}
