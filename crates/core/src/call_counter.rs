//! Counts the calls of engines: how many were made, when a run pauses, and which never end.
//!
//! Many calls at one instant are no error. In a conference of 10,000 participants that all send at
//! one instant the reflector makes 10^8 copies, and a slow-start burst over the largest window makes
//! some 6 million calls. A loop of zero delay is told from these by what no burst does. Once an
//! instant has seen [`CALLS_BEFORE_WATCH`] calls, two things are counted:
//! - the longest chain of calls of which each hands on what the one before sent. One that is longer
//!   than twice the number of engines comes to some engine three times without a wake-up in between.
//!   Directions and processors, through which every packet goes, hold it until a wake-up;
//! - wake-ups. The fastest link sends 431 packets of 29 bytes a nanosecond, and its engine is woken
//!   once for each at most. So [`WAKES_PER_ENGINE_MAX`] for each engine is ten times what happens.

use crate::time::Instant;

/// CallCounter at one instant that are merely counted.
const CALLS_BEFORE_WATCH: u64 = 1_000_000;
/// Wake-ups at one instant, for each engine, that no plan makes.
const WAKES_PER_ENGINE_MAX: u64 = 4_096;
/// Chains longer than this, more than twice the number of engines, are loops.
const CHAIN_MAX: u64 = 64;
const NEVER: u64 = u64::MAX;

/// Why an engine is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// It is due.
    Wake,
    /// It is given a packet; so many others wait to be handed over.
    Deliver { pending: u64 },
}

/// What happened at the present instant since it is watched.
#[derive(Debug, Default)]
struct Watch {
    wakes: u64,
    /// How many hand-overs followed each other.
    chain: u64,
    /// Packets of this length of chain that are not handed over.
    remaining: u64,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct CallCounter {
    /// How many may be made until somebody looks.
    until_check: u64,
    /// How many will have been made when none is left.
    made_at_check: u64,
    engines: u64,
    /// When that many were made, a run pauses.
    pause_at: u64,
    /// When that many were made, it is time to look whether the clock has moved.
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
    /// Watches an instant after `calls_before_watch` calls in it, or twice as many.
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

    /// Pauses when so many more were made.
    pub(crate) fn pause_after(&mut self, calls: u64) {
        let made = self.made();
        self.pause_at = made.saturating_add(calls);
        self.until_check = self.until_check.min(calls);
        self.made_at_check = made + self.until_check;
    }

    pub(crate) fn never_pause(&mut self) {
        self.pause_at = NEVER;
    }

    /// The next packet that is handed over comes from outside.
    #[inline]
    pub(crate) fn end_chain(&mut self) {
        if let Some(watch) = &mut self.watch {
            *watch = Watch { wakes: watch.wakes, ..Watch::default() };
        }
    }

    /// Counts a call. Whether [`CallCounter::check`] is to be asked, which then counts it.
    #[inline]
    pub(crate) fn count(&mut self) -> bool {
        let (until_check, is_due) = self.until_check.overflowing_sub(1);
        self.until_check = until_check;
        is_due
    }

    /// Looks at the call that is about to be made at `now`. Whether the run pauses instead of it, which
    /// it does only in the place of a wake-up.
    ///
    /// # Panics
    /// If engines call each other without end.
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
                // Hand-overs are breadth first: what waits now was sent by calls of one length.
                if watch.remaining == 0 {
                    watch.chain += 1;
                    watch.remaining = pending + 1;
                }
                watch.remaining -= 1;
            }
        }
        let Watch { wakes, chain, .. } = *watch;
        let endless = chain > CHAIN_MAX + 2 * self.engines;
        assert!(!endless, "engines hand each other packets without end at {now}");
        let endless = wakes > WAKES_PER_ENGINE_MAX * self.engines;
        assert!(!endless, "engines wake each other without end at {now}");
    }
}
