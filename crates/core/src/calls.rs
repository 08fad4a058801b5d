//! Counts the calls of engines: how many were made, when a run pauses, and which never end.
//!
//! Many calls at one instant are no error. In a conference of 10,000 participants that all send at
//! one instant the reflector makes 10^8 copies, and a slow-start burst over the largest window makes
//! some 6 million calls. A loop of zero delay is told from these by what no burst does. Once an
//! instant has seen [`UNWATCHED_CALLS`] calls, two things are counted:
//! - the longest chain of calls of which each hands on what the one before sent. One that is longer
//!   than twice the number of engines comes to some engine three times without a wake-up in between.
//!   Directions and processors, through which every packet goes, hold it until a wake-up;
//! - wake-ups. The fastest link sends 431 packets of 29 bytes a nanosecond, and its engine is woken
//!   once for each at most. So [`WAKES_PER_ENGINE_MAX`] for each engine is ten times what happens.

use crate::time::Instant;

/// Calls at one instant that are merely counted.
const UNWATCHED_CALLS: u64 = 1_000_000;
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
    HandOver { waiting: u64 },
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
pub(crate) struct Calls {
    /// How many may be made until somebody looks.
    left: u64,
    /// How many will have been made when none is left.
    limit: u64,
    engines: u64,
    /// When that many were made, a run pauses.
    pause_at: u64,
    /// When that many were made, it is time to look whether the clock has moved.
    look_at: u64,
    looked: Option<Instant>,
    watch: Option<Watch>,
    unwatched: u64,
}

impl Default for Calls {
    fn default() -> Self {
        Self::watching_after(UNWATCHED_CALLS)
    }
}

impl Calls {
    /// Watches an instant after `unwatched` calls in it, or twice as many.
    pub(crate) fn watching_after(unwatched: u64) -> Self {
        Self {
            left: 0,
            limit: 0,
            engines: 0,
            pause_at: NEVER,
            look_at: 0,
            looked: None,
            watch: None,
            unwatched,
        }
    }

    pub(crate) fn set_engines(&mut self, engines: usize) {
        self.engines = engines as u64;
    }

    pub(crate) fn made(&self) -> u64 {
        self.limit - self.left
    }

    /// Pauses when so many more were made.
    pub(crate) fn pause_after(&mut self, calls: u64) {
        let made = self.made();
        self.pause_at = made.saturating_add(calls);
        self.left = self.left.min(calls);
        self.limit = made + self.left;
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

    /// Counts a call. Whether [`Calls::look`] is to be asked, which then counts it.
    #[inline]
    pub(crate) fn count(&mut self) -> bool {
        let (left, none_left) = self.left.overflowing_sub(1);
        self.left = left;
        none_left
    }

    /// Looks at the call that is about to be made at `now`. Whether the run pauses instead of it, which
    /// it does only in the place of a wake-up.
    ///
    /// # Panics
    /// If engines call each other without end.
    #[cold]
    #[inline(never)]
    pub(crate) fn look(&mut self, now: Instant, step: Step) -> bool {
        self.left = 0;
        let made = self.limit;
        if matches!(step, Step::Wake) && made >= self.pause_at {
            return true;
        }
        self.follow(now, step, made);
        let next = match self.watch {
            Some(_) => 1,
            None => self.look_at.min(self.pause_at).saturating_sub(made).max(1),
        };
        self.left = next - 1;
        self.limit += next;
        false
    }

    fn follow(&mut self, now: Instant, step: Step, made: u64) {
        if self.looked.is_none_or(|looked| now > looked) {
            if self.watch.is_some() || made >= self.look_at {
                self.watch = None;
                self.looked = Some(now);
                self.look_at = made + self.unwatched;
            }
            return;
        }
        if self.watch.is_none() && made < self.look_at {
            return;
        }
        let watch = self.watch.get_or_insert_default();
        match step {
            Step::Wake => *watch = Watch { wakes: watch.wakes + 1, ..Watch::default() },
            Step::HandOver { waiting } => {
                // Hand-overs are breadth first: what waits now was sent by calls of one length.
                if watch.remaining == 0 {
                    watch.chain += 1;
                    watch.remaining = waiting + 1;
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
