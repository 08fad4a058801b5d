//! The part without privileges.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use bentpipe_core::time::Duration;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::packet_socket::SynSocket;
use bentpipe_sys::signals::EndSignals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, pread};
use rustix::time::{ClockId, clock_gettime};

use super::confine::{drop_privileges, filter_system_calls};
use super::handover::{receive, send};
use super::memory::Memory;
use super::metrics::Bounds;
use super::metrics_server::{Latest, Server};
use super::plan::REPORT;
use super::supply::Supplied;
use super::{Report, Start};
use crate::relay::{Relay, Slots};
use crate::side::Side;
use crate::transparent::{ALIVE, Alive, Intake, Taps};

/// Carries traffic until the privileged part is gone.
///
/// The plan comes with descriptors in this order: the listeners, by side and version, the raw sockets to them, those to
/// anywhere, the listener for metrics, if there is one, then the taps of each side, of both versions for each interface.
///
/// # Errors
/// What was handed over is not complete, or the kernel's error.
pub fn work(control: OwnedFd, supply: OwnedFd) -> io::Result<()> {
    // The privileged part ends this one. Ctrl-C and service managers send signals to both.
    let _blocked = EndSignals::block()?;
    let (message, descriptors) = receive(&control)?;
    let Start { plan: whole, worker } = Start::parse(&message)?;
    let plan = whole.of_worker(worker);
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| io::Error::other("a descriptor is missing"));
    let mut listeners = Vec::new();
    for side in Side::ALL {
        listeners.extend([(side, next()?), (side, next()?)]);
    }
    let mut pair = || Ok::<_, io::Error>([next()?, next()?]);
    let to_relay = [pair()?, pair()?];
    let outside = pair()?;
    let metrics = plan.metrics_address()?.map(|_| next()).transpose()?;
    let of_side = |side| std::iter::repeat_n(side, 2 * plan.side(side).interfaces.len());
    let syns = Side::ALL.into_iter().flat_map(of_side).zip(descriptors.map(SynSocket::from_fd));
    let taps = Taps { to_relay, outside, syns: syns.collect() };
    drop_privileges(plan.user, plan.group)?;
    let usage = Usage(File::open(Usage::FILE)?);
    let (alive, slots) = (Arc::new(Alive::start()?), Slots::new(plan.connections as u64));
    let supplied = Arc::new(Supplied::new(supply));
    let limits = (Arc::clone(&slots), Arc::clone(&alive));
    let intake = Intake::start(taps, supplied, limits, plan.intake())?;
    let relay = Relay::start(listeners, intake.dial(), plan.relay())?;
    let latest = Latest::default();
    if let Some(listener) = metrics {
        let bounds = Bounds { connections: whole.connections as u64, memory: Memory::of(&whole) };
        let server = Server { listener, latest: Arc::clone(&latest), bounds };
        std::thread::Builder::new().name("metrics".to_owned()).spawn(move || server.run())?;
    }
    filter_system_calls()?;
    let report = || report(&relay, &intake, &slots, &usage);
    run(&control, &alive, &latest, report)
}

/// Reports until the privileged part is gone: then the rules are gone, too, or will be.
fn run(
    control: &OwnedFd,
    alive: &Alive,
    latest: &Latest,
    report: impl Fn() -> Report,
) -> io::Result<()> {
    let clock = Clock::start();
    loop {
        let reported = clock.now();
        // The rule is renewed later.
        let holds_until = alive.now() + ALIVE;
        if send(control, &serde_json::to_vec(&report())?, &[]).is_err() {
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
            *latest.lock().unwrap_or_else(PoisonError::into_inner) = Report::parse(&message)?;
            alive.renew(holds_until);
        }
    }
}

/// What is left of a time.
fn rest_of(time: Duration, passed: Duration) -> Option<Timespec> {
    let rest = time.saturating_sub(passed).as_nanos();
    let (tv_sec, tv_nsec) = ((rest / 1_000_000_000) as i64, (rest % 1_000_000_000) as i64);
    (rest > 0).then_some(Timespec { tv_sec, tv_nsec })
}

fn report(relay: &Relay, intake: &Intake, slots: &Slots, usage: &Usage) -> Report {
    let (relay, intake) = (relay.counters(), intake.counters());
    let [split, unsplit, refused, expired] =
        [&intake.split, &intake.unsplit, &intake.refused, &intake.expired]
            .map(|counter| counter.load(Ordering::Relaxed));
    Report {
        open_connections: slots.open(),
        max_open_connections: slots.max_open(),
        split_connections: split,
        unsplit_connections: unsplit,
        refused_connections: refused + relay.refused(),
        reset_connections: relay.reset(),
        expired_connections: expired + relay.expired(),
        timed_out_connections: relay.idle(),
        to_server_bytes: relay.to_server_bytes(),
        to_client_bytes: relay.to_client_bytes(),
        memory_bytes: usage.resident_bytes(),
        cpu_ns: cpu_ns(),
        lan: relay.legs(Side::Lan),
        link: relay.legs(Side::Link),
    }
}

/// `/proc/self/status` (proc(5)), opened before files can no longer be opened.
struct Usage(File);

impl Usage {
    const FILE: &str = "/proc/self/status";

    /// `VmRSS`.
    fn resident_bytes(&self) -> u64 {
        let mut text = [0; 4_096];
        let bytes = pread(&self.0, &mut text[..], 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..bytes]);
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) * 1_024
    }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
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

    /// Given this process, expect its memory to be more than a page and less than a gigabyte.
    #[test]
    fn the_memory_of_this_process_is_read() {
        let usage = Usage(File::open(Usage::FILE).expect("a file"));
        assert!((4_097..1 << 30).contains(&usage.resident_bytes()));
    }
}
