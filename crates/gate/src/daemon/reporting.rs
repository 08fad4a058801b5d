//! The reports of a worker, and the messages of the privileged part.

use std::io;
use std::os::fd::OwnedFd;

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::handover::{receive, send};
use super::report::{ToWorker, WorkerReport};

/// How often a worker reports: the rule, which is renewed then, is in force for more than twice as long.
const INTERVAL: Duration = Duration::from_millis(750);

const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// As [`report_while`], for a worker whose threads need no watch.
pub(super) fn report_until_gone(
    control: &OwnedFd,
    now: impl Fn() -> Instant,
    report: impl FnMut() -> io::Result<WorkerReport>,
    on_message: impl FnMut(ToWorker, Instant),
) -> io::Result<()> {
    report_while(|| true, control, now, report, on_message)
}

/// Reports until the privileged part is gone or a report fails, and handles its messages with the time of the report
/// before them. Nothing is sent while the data threads do not progress: the privileged part must not take their worker
/// for one that serves.
pub(super) fn report_while(
    mut progresses: impl FnMut() -> bool,
    control: &OwnedFd,
    now: impl Fn() -> Instant,
    mut report: impl FnMut() -> io::Result<WorkerReport>,
    mut on_message: impl FnMut(ToWorker, Instant),
) -> io::Result<()> {
    let clock = Clock::start();
    let mut reported_at = now();
    loop {
        let began = clock.now();
        let message = serde_json::to_vec(&report()?)?;
        // What has come meanwhile answers the report before.
        while wait_for_message(control, NO_WAIT)? {
            let Some(message) = next_message(control)? else { return Ok(()) };
            on_message(message, reported_at);
        }
        if progresses() {
            reported_at = now();
            if send(control, &message, &[]).is_err() {
                return Ok(());
            }
        }
        while let Some(rest) = rest_of(INTERVAL, clock.now().saturating_since(began)) {
            if !wait_for_message(control, rest)? {
                continue;
            }
            let Some(message) = next_message(control)? else { return Ok(()) };
            on_message(message, reported_at);
        }
    }
}

/// Whether there is a message, or the other end is gone. It returns early if a signal interrupts it.
fn wait_for_message(control: &OwnedFd, time: Timespec) -> io::Result<bool> {
    match poll(&mut [PollFd::new(control, PollFlags::IN)], Some(&time)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The next message, or `None` if the other end is gone.
fn next_message(control: &OwnedFd) -> io::Result<Option<ToWorker>> {
    let (message, _) = receive(control)?;
    if message.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(&message)?)) }
}

/// What is left of a time.
fn rest_of(time: Duration, passed: Duration) -> Option<Timespec> {
    let rest = time.saturating_sub(passed).as_nanos();
    let (tv_sec, tv_nsec) = ((rest / 1_000_000_000) as i64, (rest % 1_000_000_000) as i64);
    (rest > 0).then_some(Timespec { tv_sec, tv_nsec })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given a second of which 300 ms have passed, expect the rest; given a time that is over, expect none.
    #[test]
    fn the_rest_of_a_time_is_waited() {
        let rest = rest_of(Duration::from_secs(1), Duration::from_millis(300)).expect("a rest");
        assert_eq!((rest.tv_sec, rest.tv_nsec), (0, 700_000_000));
        assert!(rest_of(Duration::from_secs(1), Duration::from_millis(1_000)).is_none());
    }
}
