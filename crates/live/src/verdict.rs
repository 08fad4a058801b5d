//! Whether a run counts: what went wrong in it, in windows of time.
//!
//! A run counts if all of its windows do, so that a lab that stays up can tell when it was good and when
//! not. A check that cannot be made counts as failed.

use std::collections::VecDeque;
use std::io;

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::interface::InterfaceState;

use crate::lateness::{Lateness, Limits};

/// How long a window is: long enough for a percentile at 10 packets a second.
pub const WINDOW: Duration = Duration::from_secs(10);

/// So many windows are kept; of older ones there is only a count.
pub const WINDOWS_KEPT: usize = 60;

/// What makes a window invalid, whatever the lateness: how often, since the lab was set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Steps of the real-time clock.
    pub clock_steps: u64,
    /// Packets stamped after they were read.
    pub future_stamps: u64,
    /// Packets that the kernel dropped before the link.
    pub kernel_dropped: u64,
    /// Packets for which there was no memory.
    pub refused: u64,
    /// Packets longer than the MTU.
    pub too_long: u64,
    /// Super-packets that could not be split.
    pub not_split: u64,
    /// Packets that the receiving kernel did not take.
    pub not_taken: u64,
}

impl Faults {
    fn since(self, before: Self) -> Self {
        let Self { clock_steps, future_stamps, kernel_dropped, refused, .. } = self;
        Self {
            clock_steps: clock_steps.saturating_sub(before.clock_steps),
            future_stamps: future_stamps.saturating_sub(before.future_stamps),
            kernel_dropped: kernel_dropped.saturating_sub(before.kernel_dropped),
            refused: refused.saturating_sub(before.refused),
            too_long: self.too_long.saturating_sub(before.too_long),
            not_split: self.not_split.saturating_sub(before.not_split),
            not_taken: self.not_taken.saturating_sub(before.not_taken),
        }
    }

    /// The first of them, why it matters, and what helps.
    fn reason(self) -> Option<String> {
        let packets = |count: u64| match count {
            1 => "1 packet".to_owned(),
            _ => format!("{count} packets"),
        };
        let found = [
            (self.clock_steps, "the machine's clock was set during the run, so the time-stamps of packets \
                are of two clocks; to fix it: let nothing set the clock meanwhile (a time service may slew it)"
                .to_owned()),
            (self.future_stamps, format!(
                "{} had a time-stamp later than when the link read it, so it is not known when they came; \
                 to fix it: let nothing set the machine's clock meanwhile",
                packets(self.future_stamps))),
            (self.kernel_dropped, format!(
                "the kernel dropped {} before the link, since the link did not read them in time; to fix \
                 it: send less, end other programs, or use --super-packets",
                packets(self.kernel_dropped))),
            (self.refused, format!(
                "{} found no memory in the link, which holds 1 GiB of packets on their way; to fix it: \
                 limit the queue, or take a lower rate or delay",
                packets(self.refused))),
            (self.too_long, format!(
                "{} of more bytes than the MTU came to the link, which did not carry them; to fix it: \
                 leave the MTU of the interfaces to the link as it is",
                packets(self.too_long))),
            (self.not_split, format!(
                "{} super-packets from a kernel could not be split; to fix it: leave --super-packets off",
                self.not_split)),
            (self.not_taken, format!(
                "the receiving kernel refused {} from the link; to fix it: leave the interfaces to the \
                 link up, and send IP packets only",
                packets(self.not_taken))),
        ];
        found.into_iter().find_map(|(count, text)| (count > 0).then_some(text))
    }
}

/// What the kernel says of the interface to the link on one side, from look to look.
#[derive(Debug)]
pub struct KernelWatch {
    place: String,
    dropped: u64,
    queue_len: Option<u32>,
}

impl KernelWatch {
    /// Of the interface at a place, which texts name.
    #[must_use]
    pub fn new(place: &str) -> Self {
        Self { place: place.to_owned(), dropped: 0, queue_len: None }
    }

    /// Packets that the kernel dropped before the link, as far as it said.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes what the kernel said at a look. Why it does not do, if so.
    pub fn take(&mut self, state: io::Result<InterfaceState>) -> Option<String> {
        let place = &self.place;
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                return Some(format!(
                    "the packet counters of the interface to the link in the {place} could not be read \
                     ({error}), so it is not known what the kernel dropped; to fix it: leave the \
                     interface as the lab made it"
                ));
            }
        };
        if state.tx_dropped < self.dropped {
            return Some(format!(
                "the packet counters of the interface to the link in the {place} went back, so it is not \
                 known what the kernel dropped; to fix it: leave the interface as the lab made it"
            ));
        }
        self.dropped = state.tx_dropped;
        let queue_len = *self.queue_len.get_or_insert(state.tx_queue_len);
        (queue_len != state.tx_queue_len).then(|| {
            format!(
                "the queue of the interface to the link in the {place} was changed from {queue_len} \
                 packets to {}, so it is not known how long packets waited there; to fix it: leave \
                 txqueuelen as it is",
                state.tx_queue_len
            )
        })
    }
}

/// A part of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// When it began, since the lab was set up.
    pub start: Instant,
    /// When it ended, or until when it was looked at.
    pub end: Instant,
    /// Packets that came out of the link.
    pub packets: u64,
    /// The lateness that half of them did not exceed.
    pub p50: Duration,
    /// The lateness that no more than 1 in 100 exceeded, or one if there are fewer.
    pub p99: Duration,
    /// The latest.
    pub max: Duration,
    /// Why it does not count, if so.
    pub invalid: Option<String>,
}

/// What is said of a run so far.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The last windows, the oldest first; the last one is still open.
    pub windows: Vec<Window>,
    /// How many windows there were, with those that are no longer kept.
    pub window_count: u64,
    /// How many of them do not count.
    pub invalid_windows: u64,
    /// The lateness of all packets.
    pub lateness: Lateness,
    /// Why the run does not count, if so.
    pub invalid: Option<String>,
}

/// Gathers windows as a run goes on.
#[derive(Debug)]
pub struct Windows {
    limits: Limits,
    /// Of windows that are over.
    closed: VecDeque<Window>,
    closed_count: u64,
    invalid_count: u64,
    first_invalid: Option<Window>,
    lateness: Lateness,
    /// Of the open window.
    start: Instant,
    faults_before: Faults,
    unchecked: Option<String>,
}

impl Windows {
    /// For a run that begins now.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            closed: VecDeque::new(),
            closed_count: 0,
            invalid_count: 0,
            first_invalid: None,
            lateness: Lateness::default(),
            start: Instant::START,
            faults_before: Faults::default(),
            unchecked: None,
        }
    }

    /// Takes what was seen until `at`: the `lateness` of packets since the last window was closed, which
    /// is emptied if this look closes one; the faults so far; and why this look is not complete, if so.
    pub fn look(
        &mut self,
        at: Instant,
        lateness: &mut Lateness,
        faults: Faults,
        unchecked: Option<String>,
    ) -> Verdict {
        self.unchecked = self.unchecked.take().or(unchecked);
        let open = self.open_window(at, lateness, faults);
        let mut whole = self.lateness.clone();
        whole.merge(lateness);
        let verdict = self.verdict(open.clone(), whole);
        if at.saturating_since(self.start) >= WINDOW {
            self.close(open, faults);
            self.lateness.merge(lateness);
            *lateness = Lateness::default();
        }
        verdict
    }

    fn open_window(&self, at: Instant, lateness: &Lateness, faults: Faults) -> Window {
        let (p99, max) = (lateness.p99(), lateness.max());
        let invalid = self.unchecked.clone();
        let invalid = invalid.or_else(|| faults.since(self.faults_before).reason());
        let invalid = invalid.or_else(|| self.limits.reason(p99, max));
        let (packets, p50) = (lateness.count(), lateness.quantile(0.5));
        Window { start: self.start, end: at, packets, p50, p99, max, invalid }
    }

    fn verdict(&self, open: Window, lateness: Lateness) -> Verdict {
        let invalid_windows = self.invalid_count + u64::from(open.invalid.is_some());
        let window_count = self.closed_count + 1;
        let first =
            self.first_invalid.as_ref().or(Some(&open).filter(|open| open.invalid.is_some()));
        let invalid = first.and_then(|first| {
            let reason = first.invalid.as_ref()?;
            if window_count == 1 {
                return Some(reason.clone());
            }
            let seconds = |at: Instant| at.as_nanos() as f64 / 1e9;
            let (start, end) = (seconds(first.start), seconds(first.end));
            Some(format!(
                "from {start:.1} s to {end:.1} s: {reason} ({invalid_windows} of {window_count} windows of \
                 time are invalid)"
            ))
        });
        let invalid = invalid.or_else(|| lateness.verdict(self.limits));
        let windows = self.closed.iter().cloned().chain([open]).collect();
        Verdict { windows, window_count, invalid_windows, lateness, invalid }
    }

    fn close(&mut self, window: Window, faults: Faults) {
        self.start = window.end;
        self.faults_before = faults;
        self.unchecked = None;
        self.closed_count += 1;
        if window.invalid.is_some() {
            self.invalid_count += 1;
            self.first_invalid.get_or_insert_with(|| window.clone());
        }
        if self.closed.len() + 1 == WINDOWS_KEPT {
            self.closed.pop_front();
        }
        self.closed.push_back(window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Instant {
        Instant::START + Duration::from_secs(count)
    }

    fn state(tx_dropped: u64, tx_queue_len: u32) -> io::Result<InterfaceState> {
        Ok(InterfaceState { tx_dropped, tx_queue_len })
    }

    /// A run with a look each second, and packets that are 40 us late.
    struct Run {
        windows: Windows,
        lateness: Lateness,
        faults: Faults,
        at: u64,
    }

    impl Run {
        fn new() -> Self {
            let (windows, lateness) = (Windows::new(Limits::default()), Lateness::default());
            Self { windows, lateness, faults: Faults::default(), at: 0 }
        }

        fn look(&mut self, unchecked: Option<&str>) -> Verdict {
            self.at += 1;
            (0..100).for_each(|_| self.lateness.add(Duration::from_micros(40)));
            let unchecked = unchecked.map(str::to_owned);
            self.windows.look(seconds(self.at), &mut self.lateness, self.faults, unchecked)
        }

        fn go_on(&mut self, seconds: u64) -> Verdict {
            (1..seconds).for_each(|_| drop(self.look(None)));
            self.look(None)
        }
    }

    /// Given one of each fault, expect the run invalid, with the count and what helps.
    #[test]
    fn each_fault_makes_a_run_invalid() {
        let none = Faults::default();
        for (faults, said) in [
            (Faults { clock_steps: 1, ..none }, "clock was set during the run"),
            (Faults { future_stamps: 3, ..none }, "3 packets had a time-stamp later than"),
            (Faults { kernel_dropped: 1, ..none }, "the kernel dropped 1 packet before the link"),
            (Faults { refused: 4, ..none }, "4 packets found no memory"),
            (Faults { too_long: 5, ..none }, "5 packets of more bytes than the MTU"),
            (Faults { not_split: 6, ..none }, "6 super-packets from a kernel could not be split"),
            (Faults { not_taken: 7, ..none }, "the receiving kernel refused 7 packets"),
        ] {
            let mut run = Run::new();
            assert_eq!(run.look(None).invalid, None);
            run.faults = faults;
            let reason = run.look(None).invalid.expect(said);
            assert!(reason.contains(said) && reason.contains("; to fix it: "), "{reason}");
        }
    }

    /// Given an interface that is gone, whose counters went back, or whose queue has another length,
    /// expect a reason that names its host; else none.
    #[test]
    fn counters_that_do_not_say_all_are_no_check() {
        let mut watch = KernelWatch::new("world");
        assert_eq!(watch.take(state(0, 500)), None);
        assert_eq!((watch.take(state(3, 500)), watch.dropped()), (None, 3));
        let gone = watch.take(Err(io::Error::from_raw_os_error(19))).expect("it is gone");
        assert!(gone.contains("in the world could not be read (No such device"), "{gone}");
        assert!(watch.take(state(2, 500)).expect("it went back").contains("went back"));
        let longer = watch.take(state(3, 9_000)).expect("a longer queue");
        assert!(longer.contains("from 500 packets to 9000"), "{longer}");
    }

    /// Given a look at 3 s that could not be made, expect the window invalid to its end, before any other
    /// reason, and the next one valid.
    #[test]
    fn a_check_that_cannot_be_made_counts_as_failed() {
        let mut run = Run::new();
        run.go_on(2);
        run.faults.not_taken = 1;
        assert_eq!(run.look(Some("unreadable")).invalid.as_deref(), Some("unreadable"));
        let verdict = run.go_on(7);
        assert_eq!(verdict.windows.len(), 1);
        assert_eq!(verdict.invalid.as_deref(), Some("unreadable"));
        let verdict = run.look(None);
        let reasons: Vec<_> =
            verdict.windows.iter().map(|window| window.invalid.as_deref()).collect();
        assert_eq!(reasons, [Some("unreadable"), None]);
    }

    /// Given a packet that is 20 ms late at 15 s, expect the window from 10 s to 20 s invalid and no
    /// other, and the whole run invalid, with the window named.
    #[test]
    fn a_lab_recovers_window_by_window() {
        let mut run = Run::new();
        run.go_on(14);
        run.lateness.add(Duration::from_millis(20));
        let verdict = run.go_on(21);
        let invalid: Vec<_> =
            verdict.windows.iter().map(|window| window.invalid.is_some()).collect();
        assert_eq!(invalid, [false, true, false, false]);
        assert_eq!((verdict.window_count, verdict.invalid_windows), (4, 1));
        let late = &verdict.windows[1];
        assert_eq!((late.start, late.end, late.packets), (seconds(10), seconds(20), 1_001));
        assert_eq!((late.max, verdict.lateness.max()), (Duration::from_millis(20), late.max));
        assert_eq!(verdict.lateness.count(), 3_501);
        let reason = verdict.invalid.expect("one is too late");
        assert!(reason.starts_with("from 10.0 s to 20.0 s: lateness maximum is 0.02"), "{reason}");
        assert!(reason.ends_with("(1 of 4 windows of time are invalid)"), "{reason}");
    }

    /// Given 10 packets in a window of which one is 2 ms late, expect it valid, as one in 100 would be;
    /// given a second one, not.
    #[test]
    fn one_packet_in_a_window_may_be_late() {
        let mut run = Run::new();
        // Of 990 on time at first, so that the whole run is within a percent.
        run.go_on(10);
        let look = |run: &mut Run, at: u64| {
            run.windows.look(seconds(at), &mut run.lateness, Faults::default(), None)
        };
        (0..9).for_each(|_| run.lateness.add(Duration::from_micros(40)));
        run.lateness.add(Duration::from_millis(2));
        let verdict = look(&mut run, 12);
        assert_eq!((verdict.windows[1].packets, verdict.invalid), (10, None));
        run.lateness.add(Duration::from_millis(2));
        assert_eq!(look(&mut run, 13).invalid_windows, 1);
    }

    /// Given a day, of which the first window is invalid, expect 60 windows kept, all counted, and the
    /// reason still known.
    #[test]
    fn memory_stays_flat_and_nothing_is_forgotten() {
        let mut run = Run::new();
        run.faults.refused = 1;
        let verdict = run.go_on(24 * 3_600);
        assert_eq!(verdict.windows.len(), WINDOWS_KEPT);
        assert_eq!((verdict.window_count, verdict.invalid_windows), (8_640, 1));
        assert_eq!(verdict.windows[59].end, seconds(24 * 3_600));
        assert_eq!(verdict.windows[0].start, seconds(24 * 3_600 - 600));
        assert!(verdict.windows.iter().all(|window| window.invalid.is_none()));
        assert!(verdict.invalid.expect("the first").starts_with("from 0.0 s to 10.0 s: 1 packet"));
    }
}
