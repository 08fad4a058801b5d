//! The part without privileges.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bentpipe_sys::packet_socket::SynSocket;

use super::confine::{drop_privileges, filter_system_calls};
use super::handover::{receive, send};
use super::plan::REPORT;
use super::supply::Supplied;
use super::{Plan, Report};
use crate::relay::{Counters, Relay};
use crate::transparent::{Intake, IntakeCounters, Side, Taps};

/// Carries traffic until the privileged part is gone.
///
/// The plan comes with descriptors in this order: the listeners, by side and version, the raw sockets to them, those to
/// anywhere, then the taps of each side, of both versions for each interface.
///
/// # Errors
/// What was handed over is not complete, or the kernel's error.
pub fn work(control: OwnedFd, supply: OwnedFd) -> io::Result<()> {
    let (message, descriptors) = receive(&control)?;
    let plan: Plan = serde_json::from_slice(&message)?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| io::Error::other("a descriptor is missing"));
    let mut pair = || Ok::<_, io::Error>([next()?, next()?]);
    let listeners = [pair()?, pair()?].into_iter().flatten().collect();
    let to_relay = [pair()?, pair()?];
    let outside = pair()?;
    let of_side = |side| std::iter::repeat_n(side, 2 * plan.side(side).interfaces.len());
    let syns = Side::ALL.into_iter().flat_map(of_side).zip(descriptors.map(SynSocket::from_fd));
    let taps = Taps { to_relay, outside, syns: syns.collect() };
    drop_privileges(plan.user, plan.group)?;
    let intake = Intake::start(taps, Arc::new(Supplied::new(supply)), plan.intake())?;
    let relay = Relay::start(listeners, intake.dial(), plan.relay())?;
    filter_system_calls()?;
    loop {
        let report = report(relay.counters(), intake.counters());
        // The privileged part is gone: so are the rules, or they will be.
        if send(&control, &serde_json::to_vec(&report)?, &[]).is_err() {
            return Ok(());
        }
        std::thread::sleep(REPORT);
    }
}

fn report(relay: &Counters, intake: &IntakeCounters) -> Report {
    Report {
        open_connections: relay.open(),
        connections: relay.accepted() - relay.over_limit(),
        resets: relay.reset(),
        over_limit: relay.over_limit(),
        idle: relay.idle(),
        refused: intake.refused.load(Ordering::Relaxed),
        unanswered: intake.unanswered.load(Ordering::Relaxed),
        passed: intake.passed.load(Ordering::Relaxed),
        to_server_bytes: relay.to_server_bytes(),
        to_client_bytes: relay.to_client_bytes(),
    }
}
