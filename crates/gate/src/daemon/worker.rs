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
use crate::transparent::{Intake, IntakeCounters, Taps};

/// The descriptors that are handed over, in this order: the listeners of both versions, the raw sockets to them, those
/// to anywhere, then the taps.
const LISTENERS: usize = 2;
const RAW: usize = 4;

/// Carries traffic until the privileged part is gone.
///
/// # Errors
/// What was handed over is not complete, or the kernel's error.
pub fn work(control: OwnedFd, supply: OwnedFd) -> io::Result<()> {
    let (message, descriptors) = receive(&control)?;
    let plan: Plan = serde_json::from_slice(&message)?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| io::Error::other("a descriptor is missing"));
    let listeners = [next()?, next()?];
    let taps = Taps {
        to_relay: [next()?, next()?],
        outside: [next()?, next()?],
        syns: descriptors.map(SynSocket::from_fd).collect(),
    };
    drop_privileges(plan.user, plan.group)?;
    let intake = Intake::start(taps, Arc::new(Supplied::new(supply)), plan.intake())?;
    let relays = listeners
        .into_iter()
        .map(|listener| Relay::start(listener, intake.dial(), plan.relay()))
        .collect::<io::Result<Vec<_>>>()?;
    filter_system_calls()?;
    loop {
        let report = report(&relays, intake.counters());
        // The privileged part is gone: so are the rules, or they will be.
        if send(&control, &serde_json::to_vec(&report)?, &[]).is_err() {
            return Ok(());
        }
        std::thread::sleep(REPORT);
    }
}

/// The number of descriptors that are handed over with this many taps.
pub(super) const fn handed_over(taps: usize) -> usize {
    LISTENERS + RAW + taps
}

fn report(relays: &[Relay], intake: &IntakeCounters) -> Report {
    let sum = |count: fn(&Counters) -> u64| relays.iter().map(|each| count(each.counters())).sum();
    let total = sum(Counters::accepted);
    let over_limit = sum(Counters::over_limit);
    Report {
        open_connections: sum(Counters::open),
        connections: total - over_limit,
        resets: sum(Counters::reset),
        over_limit,
        idle: sum(Counters::idle),
        refused: intake.refused.load(Ordering::Relaxed),
        unanswered: intake.unanswered.load(Ordering::Relaxed),
        passed: intake.passed.load(Ordering::Relaxed),
        to_server_bytes: sum(Counters::to_server_bytes),
        to_client_bytes: sum(Counters::to_client_bytes),
    }
}
