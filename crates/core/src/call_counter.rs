//! Counts the calls of engines, to pause runs and to detect endless loops at one instant.
//!
//! Many calls at one instant are legitimate. In a conference of 10,000 participants that all send at
//! one instant the reflector makes 10^8 copies, and a slow-start burst over the largest window makes
//! some 6 million calls. After [`CALLS_BEFORE_WATCH`] calls at one instant, two counts that no burst
//! increases distinguish a zero-delay loop from a burst:
//! - The length of the chain of calls in which each delivers a packet that the previous one sent. A
//!   chain of more than twice the number of engines reaches some engine three times without a wake-up
//!   in between. Directions and processors, which every packet passes, hold it until a wake-up.
//! - The number of wake-ups. The fastest link sends 431 packets of 29 bytes per nanosecond, and its
//!   engine is woken at most once for each. [`WAKES_PER_ENGINE_MAX`] for each engine is ten times that.

use crate::time::Instant;

/// Calls at one instant before they are watched for loops.
const CALLS_BEFORE_WATCH: u64 = 1_000_000;
/// Wake-ups at one instant for each engine; more are a loop.
const WAKES_PER_ENGINE_MAX: u64 = 4_096;
/// A chain longer than this plus twice the number of engines is a loop.
const CHAIN_MAX: u64 = 64;
const NEVER: u64 = u64::MAX;

/// The reason for which an engine is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// It is due.
    Wake,
    /// A packet is delivered to it; `pending` others are still to be delivered.
    Deliver { pending: u64 },
}

/// The counts at the current instant since the watch began.
#[derive(Debug, Default)]
struct Watch {
    wakes: u64,
    /// The length of the chain of deliveries.
    chain: u64,
    /// Packets at this length of the chain that are still to be delivered.
    remaining: u64,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct CallCounter {
    /// The number of calls until the next check.
    until_check: u64,
    /// The number of calls made at the next check.
    made_at_check: u64,
    engines: u64,
    /// The number of calls after which a run pauses.
    pause_at: u64,
    /// The number of calls after which the counter checks whether the clock has moved.
    next_clock_check: u64,
    last_instant: Option<Instant>,
    watch: Option<Watch>,
    calls_before_watch: u64,
}

impl Default for CallCounter {
    fn default() -> Self {
        Self::watching_after(CALLS_BEFORE_WATCH)
    }
}

impl CallCounter {
    /// Begins to watch an instant after `calls_before_watch` to twice as many calls at it.
    pub(crate) fn watching_after(calls_before_watch: u64) -> Self {
        Self {
            until_check: 0,
            made_at_check: 0,
            engines: 0,
            pause_at: NEVER,
            next_clock_check: 0,
            last_instant: None,
            watch: None,
            calls_before_watch,
        }
    }

    pub(crate) fn set_engines(&mut self, engines: usize) {
        self.engines = engines as u64;
    }

    pub(crate) fn made(&self) -> u64 {
        self.made_at_check - self.until_check
    }

    /// Pauses the run after this many more calls.
    pub(crate) fn pause_after(&mut self, calls: u64) {
        let made = self.made();
        self.pause_at = made.saturating_add(calls);
        self.until_check = self.until_check.min(calls);
        self.made_at_check = made + self.until_check;
    }

    pub(crate) fn never_pause(&mut self) {
        self.pause_at = NEVER;
    }

    /// Begins a new chain: the next packet is injected from outside the graph.
    #[inline]
    pub(crate) fn end_chain(&mut self) {
        if let Some(watch) = &mut self.watch {
            *watch = Watch { wakes: watch.wakes, ..Watch::default() };
        }
    }

    /// Counts a call. Returns whether the caller must call [`CallCounter::check`], which then counts it.
    #[inline]
    pub(crate) fn count(&mut self) -> bool {
        let (until_check, is_due) = self.until_check.overflowing_sub(1);
        self.until_check = until_check;
        is_due
    }

    /// Checks the call that is about to be made at `now`. Returns whether the run pauses instead, which
    /// it does only before a wake-up.
    ///
    /// # Panics
    /// If engines call each other endlessly at one instant.
    #[cold]
    #[inline(never)]
    pub(crate) fn check(&mut self, now: Instant, step: Step) -> bool {
        self.until_check = 0;
        let made = self.made_at_check;
        if matches!(step, Step::Wake) && made >= self.pause_at {
            return true;
        }
        self.track(now, step, made);
        let next = match self.watch {
            Some(_) => 1,
            None => self.next_clock_check.min(self.pause_at).saturating_sub(made).max(1),
        };
        self.until_check = next - 1;
        self.made_at_check += next;
        false
    }

    fn track(&mut self, now: Instant, step: Step, made: u64) {
        if self.last_instant.is_none_or(|last_instant| now > last_instant) {
            if self.watch.is_some() || made >= self.next_clock_check {
                self.watch = None;
                self.last_instant = Some(now);
                self.next_clock_check = made + self.calls_before_watch;
            }
            return;
        }
        if self.watch.is_none() && made < self.next_clock_check {
            return;
        }
        let watch = self.watch.get_or_insert_default();
        match step {
            Step::Wake => *watch = Watch { wakes: watch.wakes + 1, ..Watch::default() },
            Step::Deliver { pending } => {
                // Delivery is breadth first: all pending packets were sent at one length of the chain.
                if watch.remaining == 0 {
                    watch.chain += 1;
                    watch.remaining = pending + 1;
                }
                watch.remaining -= 1;
            }
        }
        let Watch { wakes, chain, .. } = *watch;
        let endless = chain > CHAIN_MAX + 2 * self.engines;
        assert!(!endless, "engines send each other packets without end at {now}");
        let endless = wakes > WAKES_PER_ENGINE_MAX * self.engines;
        assert!(!endless, "engines wake each other without end at {now}");
    }
}
