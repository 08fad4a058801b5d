//! A worker of the PEP.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bentpipe_sys::packet_log::PacketLog;

use super::confine::{RELAY_CALLS, drop_privileges, filter_system_calls};
use super::memory::Memory;
use super::metrics::Bounds;
use super::metrics_server::{Latest, serve};
use super::report::{StateMessage, ToWorker, WorkerReport};
use super::reporting::report_while;
use super::socket_broker::BrokeredSockets;
use super::usage::{Usage, cpu_ns};
use super::{PepPlan, Report};
use crate::Side;
use crate::heartbeat::HeartbeatMonitor;
use crate::relay::Relay;
use crate::transparent::{HoldLease, LEASE, SynHolder, Taps};

/// Relays connections until the privileged part is gone.
///
/// Its descriptors come in this order: the listeners, by side and version, the raw sockets to them, those for
/// refusals, those to anywhere, then the logs of SYNs of each side.
pub(super) fn relay(
    ids: [u32; 2],
    whole: &PepPlan,
    (metrics, descriptors): (Option<OwnedFd>, Vec<OwnedFd>),
    [control, supply]: [OwnedFd; 2],
) -> io::Result<()> {
    let pep = whole.of_worker();
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| io::Error::other("a descriptor is missing"));
    let mut listeners = Vec::new();
    for side in Side::ALL {
        listeners.extend([(side, next()?), (side, next()?)]);
    }
    let mut pair = || Ok::<_, io::Error>([next()?, next()?]);
    let to_relay = [pair()?, pair()?];
    let [refusals, outside] = [pair()?, pair()?];
    let syns = Side::ALL.into_iter().zip(descriptors.map(PacketLog::from_fd));
    let taps = Taps { to_relay, refusals, outside, syns: syns.collect() };
    drop_privileges(ids)?;
    let usage = Usage::open()?;
    let lease = Arc::<HoldLease>::default();
    let sockets = Arc::new(BrokeredSockets::new(supply));
    // The end of the process ends their threads. To wait for one that hangs would keep it.
    let syn_holder = SynHolder::start(taps, sockets, Arc::clone(&lease), pep.admission())?;
    let mut syn_holder = ManuallyDrop::new(syn_holder);
    let relay = Relay::start(listeners, syn_holder.dial(), pep.relay())?;
    let mut relay = ManuallyDrop::new(relay);
    let heartbeats = relay.heartbeats().iter().chain([syn_holder.heartbeat()]);
    let mut monitor = HeartbeatMonitor::new(heartbeats.cloned());
    let latest = Latest::default();
    if let Some(listener) = metrics {
        let bounds = Bounds { connections: whole.connections as u64, memory: Memory::of(whole) };
        serve(listener, &latest, Some(bounds))?;
    }
    filter_system_calls(RELAY_CALLS)?;
    let report = || match relay.failure().or_else(|| syn_holder.failure()) {
        Some(error) => Err(error),
        None => Ok(WorkerReport::Pep(Box::new(report(&relay, &syn_holder, &usage)))),
    };
    report_while(
        || monitor.all_progressed(),
        &control,
        || lease.now(),
        report,
        |message, reported| {
            let ToWorker::State(StateMessage { state, is_renewed }) = message else { return };
            if is_renewed {
                // The rules were renewed after the report.
                lease.renew(reported + LEASE);
            }
            latest.set(*state);
        },
    )
}

fn report(relay: &Relay, syn_holder: &SynHolder, usage: &Usage) -> Report {
    let (open, max_open) = syn_holder.connections();
    let (relay, admission) = (relay.counters(), syn_holder.counters());
    Report {
        open_connections: open as u64,
        max_open_connections: max_open as u64,
        split_connections: admission.split,
        unsplit_connections: admission.unsplit,
        refused_connections: admission.refused + relay.refused(),
        reset_connections: admission.reset + relay.reset(),
        expired_connections: admission.expired + relay.expired(),
        timed_out_connections: relay.idle(),
        to_server_bytes: relay.to_server_bytes(),
        to_client_bytes: relay.to_client_bytes(),
        memory_bytes: usage.resident_bytes(),
        cpu_ns: cpu_ns(),
        lan: relay.legs(Side::Lan),
        link: relay.legs(Side::Link),
    }
}
