//! The parts without privileges.

use std::io;
use std::os::fd::OwnedFd;

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::signals::EndSignals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::handover::{receive, send};
use super::plan::REPORT;
use super::report::{ToWorker, WorkerReport};
use super::{Part, Start, pep_worker, tunnel_worker};

/// Carries traffic until the privileged part is gone. Its plan comes with descriptors.
///
/// # Errors
/// What was handed over is not complete, or the kernel's error.
pub fn work(control: OwnedFd, supply: OwnedFd) -> io::Result<()> {
    // The privileged part ends this one. Ctrl-C and service managers send signals to both.
    let _blocked = EndSignals::block()?;
    let (message, descriptors) = receive(&control)?;
    let Start { plan, part } = Start::parse(&message)?;
    let missing = || io::Error::other("the plan has no such function");
    match part {
        Part::Pep { .. } => {
            let pep = plan.pep.as_ref().ok_or_else(missing)?;
            pep_worker::relay(&plan, pep, descriptors, [control, supply])
        }
        Part::Tunnel { endpoints, mtu } => {
            let tunnel = plan.tunnel.as_ref().ok_or_else(missing)?;
            tunnel_worker::forward(&plan, tunnel, (endpoints, mtu), descriptors, &control)
        }
    }
}

/// Reports until the privileged part is gone or a report fails, and handles its messages with the time of the report
/// before them.
pub(super) fn report_until_gone(
    control: &OwnedFd,
    now: impl Fn() -> Instant,
    report: impl Fn() -> io::Result<WorkerReport>,
    mut on_message: impl FnMut(ToWorker, Instant),
) -> io::Result<()> {
    let clock = Clock::start();
    loop {
        let (reported, reported_at) = (clock.now(), now());
        if send(control, &serde_json::to_vec(&report()?)?, &[]).is_err() {
            return Ok(());
        }
        while let Some(rest) = rest_of(REPORT, clock.now().saturating_since(reported)) {
            match poll(&mut [PollFd::new(control, PollFlags::IN)], Some(&rest)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let (message, _) = receive(control)?;
            if message.is_empty() {
                return Ok(());
            }
            on_message(serde_json::from_slice(&message)?, reported_at);
        }
    }
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
