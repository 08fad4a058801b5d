//! The verdict on a run: faults and lateness, by windows of time.
//!
//! A run is valid if all of its windows are. Windows show when a long-running lab was
//! valid. A check that cannot be made counts as failed.

use std::collections::VecDeque;
use std::io;

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::interface::InterfaceState;

use crate::lateness::Lateness;

/// The length of a window: enough for a share of 1 in 100 at 10 packets per second.
pub const WINDOW: Duration = Duration::from_secs(10);

/// How many windows are kept; older ones are only counted.
pub const WINDOWS_KEPT: usize = 60;

/// What makes a window invalid. It decides which figures of its time do not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Whether the kernel dropped packets is unknown.
    Unchecked,
    /// Arrival times are unknown.
    Clock,
    /// Packets were lost that the link did not drop.
    Lost,
    /// Packets left the link late.
    Late,
}

impl Fault {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unchecked => "unchecked",
            Self::Clock => "clock",
            Self::Lost => "lost",
            Self::Late => "late",
        }
    }
}

/// Counters of faults that make a window invalid, since the lab was brought up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Steps of the real-time clock.
    pub clock_steps: u64,
    /// Packets stamped after they were read.
    pub future_stamps: u64,
    /// Packets that the kernel dropped before the link.
    pub kernel_dropped: u64,
    /// Packets that arrived while the packet store was full.
    pub store_full: u64,
    /// Packets longer than the MTU.
    pub too_long: u64,
    /// Super-packets that could not be segmented.
    pub unsegmented: u64,
    /// Packets that the receiving kernel rejected.
    pub rejected: u64,
}

impl Faults {
    fn since(self, before: Self) -> Self {
        let Self { clock_steps, future_stamps, kernel_dropped, store_full, .. } = self;
        Self {
            clock_steps: clock_steps.saturating_sub(before.clock_steps),
            future_stamps: future_stamps.saturating_sub(before.future_stamps),
            kernel_dropped: kernel_dropped.saturating_sub(before.kernel_dropped),
            store_full: store_full.saturating_sub(before.store_full),
            too_long: self.too_long.saturating_sub(before.too_long),
            unsegmented: self.unsegmented.saturating_sub(before.unsegmented),
            rejected: self.rejected.saturating_sub(before.rejected),
        }
    }

    /// Describes the first fault: what, why it matters, and the fix.
    fn reason(self) -> Option<(Fault, String)> {
        use Fault::{Clock, Lost};
        let packets = |count: u64| match count {
            1 => "1 packet".to_owned(),
            _ => format!("{count} packets"),
        };
        let found = [
            (
                self.clock_steps,
                Clock,
                "the machine's clock was set during the run, so packet timestamps are from two \
                different clocks; to fix it: do not set the clock during a run (NTP may slew it)"
                    .to_owned(),
            ),
            (
                self.future_stamps,
                Clock,
                format!(
                    "{} had a timestamp later than the time of the read, so the arrival time is unknown; \
                 to fix it: do not set the machine's clock during a run",
                    packets(self.future_stamps)
                ),
            ),
            (
                self.kernel_dropped,
                Lost,
                format!(
                    "the kernel dropped {} before the link, because the link did not read them in time; to fix \
                 it: send less, stop other programs, or use --super-packets",
                    packets(self.kernel_dropped)
                ),
            ),
            (
                self.store_full,
                Lost,
                format!(
                    "{} arrived while the link's packet store of 1 GiB was full; to fix it: \
                 limit the queue, or reduce the rate or the delay",
                    packets(self.store_full)
                ),
            ),
            (
                self.too_long,
                Lost,
                format!(
                    "{} longer than the MTU arrived at the link, which dropped them; to fix it: \
                 do not change the MTU of the interfaces to the link",
                    packets(self.too_long)
                ),
            ),
            (
                self.unsegmented,
                Lost,
                format!(
                    "{} super-packets from a kernel could not be segmented; to fix it: do not use --super-packets",
                    self.unsegmented
                ),
            ),
            (
                self.rejected,
                Lost,
                format!(
                    "the receiving kernel rejected {} from the link; to fix it: keep the interfaces to the \
                 link up, and send IP packets only",
                    packets(self.rejected)
                ),
            ),
        ];
        found.into_iter().find_map(|(count, fault, text)| (count > 0).then_some((fault, text)))
    }
}

/// Monitors the kernel's state of a host's interface to the link.
#[derive(Debug)]
pub struct InterfaceMonitor {
    host: String,
    dropped: u64,
    queue_len: Option<u32>,
}

impl InterfaceMonitor {
    /// Takes the host's name, for messages.
    #[must_use]
    pub fn new(host: &str) -> Self {
        Self { host: host.to_owned(), dropped: 0, queue_len: None }
    }

    /// Packets that the kernel dropped before the link, as far as reported.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Checks the state of the interface. Returns why the check failed, if it did.
    pub fn check(&mut self, state: io::Result<InterfaceState>) -> Option<String> {
        let host = &self.host;
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                return Some(format!(
                    "the packet counters of the interface to the link in the {host} could not be read \
                     ({error}), so packets that the kernel dropped are not counted; to fix it: do not \
                     change the interface"
                ));
            }
        };
        if state.tx_dropped < self.dropped {
            return Some(format!(
                "the packet counters of the interface to the link in the {host} decreased, so packets that \
                 the kernel dropped are not counted; to fix it: do not change the interface"
            ));
        }
        self.dropped = state.tx_dropped;
        let queue_len = *self.queue_len.get_or_insert(state.tx_queue_len);
        (queue_len != state.tx_queue_len).then(|| {
            format!(
                "the queue length of the interface to the link in the {host} was changed from {queue_len} \
                 packets to {}, so the time that packets waited there is unknown; to fix it: do not \
                 change txqueuelen",
                state.tx_queue_len
            )
        })
    }
}

/// A window of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Its start, since the lab was brought up.
    pub start: Instant,
    /// Its end, or the time of the last observation.
    pub end: Instant,
    /// Packets that left the link.
    pub packets: u64,
    /// The median lateness.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The maximum lateness.
    pub max: Duration,
    /// Packets that counted as late.
    pub late: u64,
    /// See [`Lateness::slowdown`].
    pub slowdown: f64,
    /// What makes it invalid, if it is.
    pub fault: Option<Fault>,
    /// Why it is invalid, if it is.
    pub invalid: Option<String>,
}

impl Window {
    /// The times in ns and the packets, by name.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 7] {
        [
            ("start_ns", self.start.as_nanos()),
            ("end_ns", self.end.as_nanos()),
            ("packets", self.packets),
            ("p50_ns", self.p50.as_nanos()),
            ("p99_ns", self.p99.as_nanos()),
            ("max_ns", self.max.as_nanos()),
            ("late_packets", self.late),
        ]
    }
}

/// The verdict on a run so far.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The latest windows, the oldest first; the last one is still open.
    pub windows: Vec<Window>,
    /// The number of windows, including those no longer kept.
    pub window_count: u64,
    /// The number of invalid windows.
    pub invalid_windows: u64,
    /// The lateness of all packets.
    pub lateness: Lateness,
    /// See [`Lateness::slowdown`].
    pub slowdown: f64,
    /// What makes the run invalid, if it is: the first fault but lateness, if there is another.
    pub fault: Option<Fault>,
    /// Why the run is invalid, if it is.
    pub invalid: Option<String>,
}

/// Collects the windows of a run, which starts with it.
#[derive(Debug, Default)]
pub struct Windows {
    /// Whether the link has no priority over other programs. Then a reason says so.
    lacks_priority: bool,
    /// The windows that are closed.
    closed: VecDeque<Window>,
    closed_count: u64,
    invalid_count: u64,
    /// Of those with another fault than lateness, if there are any: lateness alone has a bound.
    first_invalid: Option<Window>,
    lateness: Lateness,
    /// The start of the open window.
    start: Instant,
    faults_before: Faults,
    unchecked: Option<String>,
}

impl Windows {
    /// Notes whether the link has priority over other programs.
    pub fn set_priority(&mut self, has_priority: bool) {
        self.lacks_priority = !has_priority;
    }

    /// Takes the observations until `at`: the `lateness` of packets since the last window was
    /// closed, which is restarted if this call closes one; the faults so far; and why the checks are
    /// incomplete, if they are.
    pub fn observe(
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
        let verdict = self.verdict(at, open.clone(), whole);
        if at.saturating_since(self.start) >= WINDOW {
            self.close(open, faults);
            self.lateness.merge(lateness);
            lateness.restart();
        }
        verdict
    }

    fn open_window(&self, at: Instant, lateness: &Lateness, faults: Faults) -> Window {
        let unchecked = self.unchecked.clone().map(|reason| (Fault::Unchecked, reason));
        let found = unchecked.or_else(|| faults.since(self.faults_before).reason());
        let late = || lateness.reason(!self.lacks_priority).map(|reason| (Fault::Late, reason));
        let (fault, invalid) = found.or_else(late).unzip();
        Window {
            start: self.start,
            end: at,
            packets: lateness.count(),
            p50: lateness.quantile(0.5),
            p99: lateness.quantile(0.99),
            max: lateness.max(),
            late: lateness.late(),
            slowdown: lateness.slowdown(at.saturating_since(self.start)),
            fault,
            invalid,
        }
    }

    fn verdict(&self, at: Instant, open: Window, lateness: Lateness) -> Verdict {
        let invalid_windows = self.invalid_count + u64::from(open.invalid.is_some());
        let window_count = self.closed_count + 1;
        let first = graver(self.first_invalid.as_ref(), &open);
        let invalid = first.and_then(|first| {
            let reason = first.invalid.as_ref()?;
            if window_count == 1 {
                return Some(reason.clone());
            }
            let seconds = |at: Instant| at.as_nanos() as f64 / 1e9;
            let (start, end) = (seconds(first.start), seconds(first.end));
            Some(format!(
                "from {start:.1} s to {end:.1} s ({invalid_windows} of {window_count} windows of time are \
                 invalid): {reason}"
            ))
        });
        let late = || lateness.reason(!self.lacks_priority);
        let invalid = invalid.or_else(late);
        let fault = first.and_then(|first| first.fault);
        let fault = fault.or(invalid.is_some().then_some(Fault::Late));
        let windows = self.closed.iter().cloned().chain([open]).collect();
        let slowdown = lateness.slowdown(at.saturating_since(Instant::START));
        Verdict { windows, window_count, invalid_windows, lateness, slowdown, fault, invalid }
    }

    fn close(&mut self, window: Window, faults: Faults) {
        self.start = window.end;
        self.faults_before = faults;
        self.unchecked = None;
        self.closed_count += 1;
        if window.invalid.is_some() {
            self.invalid_count += 1;
        }
        self.first_invalid = graver(self.first_invalid.as_ref(), &window).cloned();
        if self.closed.len() + 1 == WINDOWS_KEPT {
            self.closed.pop_front();
        }
        self.closed.push_back(window);
    }
}

/// The first of two windows in time that is invalid, but another fault outweighs lateness.
fn graver<'a>(before: Option<&'a Window>, window: &'a Window) -> Option<&'a Window> {
    let Some(fault) = window.fault else { return before };
    before.filter(|first| first.fault != Some(Fault::Late) || fault == Fault::Late).or(Some(window))
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

    /// A run with an observation each second, and packets that are 40 us late.
    struct Run {
        windows: Windows,
        lateness: Lateness,
        faults: Faults,
        at: u64,
    }

    impl Run {
        fn new() -> Self {
            let (windows, lateness) = <(Windows, Lateness)>::default();
            Self { windows, lateness, faults: Faults::default(), at: 0 }
        }

        fn observe(&mut self, unchecked: Option<&str>) -> Verdict {
            self.at += 1;
            (0..100).for_each(|_| self.lateness.add(Duration::from_micros(40)));
            let unchecked = unchecked.map(str::to_owned);
            self.windows.observe(seconds(self.at), &mut self.lateness, self.faults, unchecked)
        }

        fn advance(&mut self, seconds: u64) -> Verdict {
            (1..seconds).for_each(|_| drop(self.observe(None)));
            self.observe(None)
        }
    }

    /// Given one of each fault, expect an invalid run, with the count and a fix.
    #[test]
    fn each_fault_makes_a_run_invalid() {
        let none = Faults::default();
        for (faults, text) in [
            (Faults { clock_steps: 1, ..none }, "clock was set during the run"),
            (Faults { future_stamps: 3, ..none }, "3 packets had a timestamp later than"),
            (Faults { kernel_dropped: 1, ..none }, "the kernel dropped 1 packet before the link"),
            (Faults { store_full: 4, ..none }, "4 packets arrived while the link's packet store"),
            (Faults { too_long: 5, ..none }, "5 packets longer than the MTU"),
            (
                Faults { unsegmented: 6, ..none },
                "6 super-packets from a kernel could not be segmented",
            ),
            (Faults { rejected: 7, ..none }, "the receiving kernel rejected 7 packets"),
        ] {
            let mut run = Run::new();
            assert_eq!(run.observe(None).invalid, None);
            run.faults = faults;
            let reason = run.observe(None).invalid.expect(text);
            assert!(reason.contains(text) && reason.contains("; to fix it: "), "{reason}");
        }
    }

    /// Given an interface that was deleted, counters that decreased, or another queue length,
    /// expect a reason that names the host; otherwise none.
    #[test]
    fn unreliable_interface_counters_fail_the_check() {
        let mut monitor = InterfaceMonitor::new("world");
        assert_eq!(monitor.check(state(0, 500)), None);
        assert_eq!((monitor.check(state(3, 500)), monitor.dropped()), (None, 3));
        let deleted =
            monitor.check(Err(io::Error::from_raw_os_error(19))).expect("a deleted interface");
        assert!(deleted.contains("in the world could not be read (No such device"), "{deleted}");
        assert!(monitor.check(state(2, 500)).expect("a lower count").contains("decreased"));
        let longer = monitor.check(state(3, 9_000)).expect("a longer queue");
        assert!(longer.contains("from 500 packets to 9000"), "{longer}");
    }

    /// Given counters that are unreadable at 3 s, expect this window to be invalid to its end, for
    /// this reason first, and the next one valid.
    #[test]
    fn a_check_that_cannot_be_made_counts_as_failed() {
        let mut run = Run::new();
        run.advance(2);
        run.faults.rejected = 1;
        assert_eq!(run.observe(Some("unreadable")).invalid.as_deref(), Some("unreadable"));
        let verdict = run.advance(7);
        assert_eq!(verdict.windows.len(), 1);
        assert_eq!(verdict.invalid.as_deref(), Some("unreadable"));
        let verdict = run.observe(None);
        let reasons: Vec<_> =
            verdict.windows.iter().map(|window| window.invalid.as_deref()).collect();
        assert_eq!(reasons, [Some("unreadable"), None]);
    }

    /// Given a packet that is 20 ms late at 15 s, expect the window from 10 s to 20 s to be invalid
    /// and no other, and the whole run to be invalid with this window named.
    #[test]
    fn a_fault_invalidates_its_window_only() {
        let mut run = Run::new();
        run.advance(14);
        run.lateness.add(Duration::from_millis(20));
        let verdict = run.advance(21);
        let invalid: Vec<_> =
            verdict.windows.iter().map(|window| window.invalid.is_some()).collect();
        assert_eq!(invalid, [false, true, false, false]);
        assert_eq!((verdict.window_count, verdict.invalid_windows), (4, 1));
        let late = &verdict.windows[1];
        assert_eq!((late.start, late.end, late.packets), (seconds(10), seconds(20), 1_001));
        assert_eq!((late.max, verdict.lateness.max()), (Duration::from_millis(20), late.max));
        assert_eq!((late.late, verdict.lateness.late()), (1, 1));
        assert_eq!(verdict.lateness.count(), 3_501);
        assert_eq!(late.fault.map(Fault::name), Some("late"));
        let reason = verdict.invalid.expect("one packet is too late");
        let start =
            "from 10.0 s to 20.0 s (1 of 4 windows of time are invalid): packets were late by";
        assert!(reason.starts_with(start), "{reason}");
    }

    /// Given a late packet at 5 s, one that was lost at 15 s and then more windows than are kept, expect the loss to be
    /// the fault, with its window: lateness has a bound and loss has none.
    #[test]
    fn another_fault_outweighs_lateness() {
        let mut run = Run::new();
        run.advance(5);
        run.lateness.add(Duration::from_millis(20));
        assert_eq!(run.advance(9).fault, Some(Fault::Late));
        run.faults.kernel_dropped = 1;
        for seconds in [1, 10 * (1 + WINDOWS_KEPT as u64)] {
            let verdict = run.advance(seconds);
            assert_eq!(verdict.fault, Some(Fault::Lost));
            let reason = verdict.invalid.expect("a packet was lost");
            assert!(
                reason.starts_with("from 10.0 s to ") && reason.contains("dropped 1 packet"),
                "{reason}"
            );
        }
    }

    /// Given 10 packets in a window of which one is 2 ms late, expect it to be valid, with a bound of its
    /// own: all 10 may be on a chain of 2 s. Given 3 late ones of 12, expect it to be invalid.
    #[test]
    fn one_packet_in_a_short_window_may_be_late() {
        let mut run = Run::new();
        // After 1,000 packets on time, so that the whole run is within a percent.
        run.advance(10);
        let observe = |run: &mut Run, at: u64| {
            run.windows.observe(seconds(at), &mut run.lateness, Faults::default(), None)
        };
        (0..9).for_each(|_| run.lateness.add(Duration::from_micros(40)));
        run.lateness.add(Duration::from_millis(2));
        let verdict = observe(&mut run, 12);
        assert_eq!((verdict.windows[1].packets, verdict.invalid), (10, None));
        let exact = (2e-3 + 9.0 * 40e-6) / 2.0;
        let slowdown = verdict.windows[1].slowdown;
        assert!(slowdown >= exact && slowdown < 1.004 * exact, "{slowdown}");
        run.lateness.add(Duration::from_millis(2));
        assert_eq!(observe(&mut run, 13).invalid_windows, 0, "2 of 11");
        run.lateness.add(Duration::from_millis(2));
        assert_eq!(observe(&mut run, 14).invalid_windows, 1, "3 of 12");
    }

    /// Given three late packets in each window of 300, expect valid windows, and a valid run; given three
    /// in each window of 30, valid windows, and an invalid run from 60 packets on.
    #[test]
    fn few_late_packets_in_each_window_add_up() {
        for (packets, valid_windows) in [(300, 5), (30, 1)] {
            let mut run = Run::new();
            for number in 1..=5_u64 {
                (3..packets).for_each(|_| run.lateness.add(Duration::from_micros(40)));
                (0..3).for_each(|_| run.lateness.add(Duration::from_millis(2)));
                let at = seconds(10 * number);
                let verdict = run.windows.observe(at, &mut run.lateness, Faults::default(), None);
                assert_eq!(verdict.invalid_windows, 0);
                let fault = (number > valid_windows).then_some(Fault::Late);
                assert_eq!(verdict.fault, fault, "{number} windows of {packets} packets");
            }
        }
    }

    /// Given a day with an invalid first window, expect 60 windows kept, all counted, and the first
    /// reason reported.
    #[test]
    fn memory_is_bounded_and_the_first_reason_is_kept() {
        let mut run = Run::new();
        run.faults.store_full = 1;
        let verdict = run.advance(24 * 3_600);
        assert_eq!(verdict.windows.len(), WINDOWS_KEPT);
        assert_eq!((verdict.window_count, verdict.invalid_windows), (8_640, 1));
        assert_eq!(verdict.windows[59].end, seconds(24 * 3_600));
        assert_eq!(verdict.windows[0].start, seconds(24 * 3_600 - 600));
        assert!(verdict.windows.iter().all(|window| window.invalid.is_none()));
        assert!(verdict.invalid.expect("the first").contains(": 1 packet"));
    }
}
