//! The part with privileges: it opens sockets, owns the rules, and never reads traffic.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use bentpipe_sys::signals::Signals;

use super::control::Control;
use super::memory::Memory;
use super::metrics_server::listen;
use super::pep_sockets::{OpenPep, allow_descriptors};
use super::supervisor::{Ended, Supervisor};
use super::tunnel_device::OpenTunnel;
use super::unreachable_routes::{self, UnreachableRoutes, networks};
use super::{PepPlan, Plan};

/// Runs a daemon until a signal ends it, or a worker that is not replaced is gone. The rules are removed in both cases,
/// and the unreachable routes to the networks of a tunnel in the first one.
///
/// # Errors
/// What could not be set up; nothing of it remains.
pub fn up(plan: &Plan) -> io::Result<Ended> {
    let signals = Signals::block()?;
    let mut opened = Opened::default();
    if let Some(tunnel) = &plan.tunnel {
        opened.tunnel = Some(OpenTunnel::open(tunnel)?);
        opened.unreachable = UnreachableRoutes::add(tunnel)?;
        // The PEP may split the connections on this device.
        opened.tunnel.iter().try_for_each(|opened| opened.configure(tunnel))?;
    }
    if let Some(pep) = &plan.pep {
        allow_descriptors(pep)?;
        opened.pep = Some(OpenPep::open(pep, &plan.name)?.open_logs()?);
        print_bounds(pep);
    }
    let metrics = plan.metrics_address()?.map(listen).transpose()?;
    let control = Control::open(&plan.control_file)?;
    let outcome = opened.run(plan, metrics, &signals, &control);
    drop(control);
    let removed = plan.pep.as_ref().map_or(Ok(()), |pep| pep.rules(&plan.name).remove());
    let _ = fs::remove_file(&plan.state_file);
    let outcome = outcome?;
    let is_on_purpose = outcome == Ended::BySignal;
    let tunnel = plan.tunnel.as_ref().filter(|_| is_on_purpose);
    removed.and(tunnel.map_or(Ok(()), |tunnel| unreachable_routes::remove(networks(tunnel))))?;
    if is_on_purpose {
        remove_files(plan);
    }
    Ok(outcome)
}

/// Opens what a daemon opens, prints its bounds, and changes nothing: the device of a tunnel exists for a moment, without
/// addresses and routes.
///
/// # Errors
/// As [`up`].
pub fn check(plan: &Plan) -> io::Result<()> {
    // Until the end: the PEP may name its device.
    let opened = plan.tunnel.as_ref().map(OpenTunnel::open).transpose()?;
    if let Some(tunnel) = &opened {
        eprintln!("bentpipe-gate: packets of the tunnel have at most {} B", tunnel.mtu);
    }
    if let Some(pep) = &plan.pep {
        allow_descriptors(pep)?;
        OpenPep::open(pep, &plan.name)?;
        print_bounds(pep);
    }
    plan.metrics_address()?.map(listen).transpose()?;
    Ok(())
}

fn print_bounds(plan: &PepPlan) {
    let memory = Memory::of(plan);
    let processes = match plan.workers {
        1 => "a process".to_owned(),
        several => format!("{several} processes"),
    };
    eprintln!(
        "bentpipe-gate: at most {} connections, with at most {} MB in {processes} and {} MB in the kernel",
        plan.connections,
        memory.processes.div_ceil(1_000_000),
        memory.kernel.div_ceil(1_000_000),
    );
}

/// Removes what its starter wrote. A service manager may keep the folder.
fn remove_files(plan: &Plan) {
    for file in &plan.files {
        let _ = fs::remove_file(file);
    }
    if let Some(folder) = plan.files.first().and_then(|file| Path::new(file).parent()) {
        let _ = fs::remove_dir(folder);
    }
}

/// What was opened.
#[derive(Default)]
struct Opened {
    pep: Option<OpenPep>,
    tunnel: Option<OpenTunnel>,
    /// Removed again unless the workers start.
    unreachable: UnreachableRoutes,
}

impl Opened {
    /// Starts the workers, and supervises them.
    fn run(
        self,
        plan: &Plan,
        metrics: Option<OwnedFd>,
        signals: &Signals,
        control: &Control,
    ) -> io::Result<Ended> {
        let Self { pep, tunnel, unreachable } = self;
        pep.as_ref().map_or(Ok(()), |pep| pep.rules.add())?;
        let mut supervisor = Supervisor::start(plan, pep, tunnel, metrics)?;
        unreachable.keep();
        supervisor.run(signals, control)
    }
}
