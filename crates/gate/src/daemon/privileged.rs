//! The part with privileges: it opens sockets, owns the rules, and never reads traffic.

use std::fs;
use std::io;
use std::path::Path;

use bentpipe_sys::signals::Signals;

use super::control::Control;
use super::function::Function;
use super::memory::Memory;
use super::metrics_server::listen;
use super::pep_function::PepFunction;
use super::pep_sockets::{OpenPep, allow_descriptors};
use super::supervisor::{Ended, Supervisor};
use super::tunnel_device::{Underlay, open};
use super::tunnel_function::TunnelFunction;
use super::{PepPlan, Plan};

/// Runs a daemon until a signal ends it, or a worker ends before all have reported. The rules are removed in both cases,
/// and in the first one the unreachable routes to the networks of a tunnel, too; in the second one those alone that this
/// daemon has added.
///
/// # Errors
/// What could not be set up; nothing of it remains.
pub fn up(plan: &Plan) -> io::Result<Ended> {
    let signals = Signals::block()?;
    let functions = open_functions(plan)?;
    let metrics = plan.metrics_address()?.map(listen).transpose()?;
    let control = Control::open(&plan.control_file)?;
    let mut supervisor = Supervisor::new(plan, functions, metrics);
    let outcome = supervisor.run(&signals, &control);
    drop(control);
    let is_on_purpose = matches!(outcome, Ok(Ended::BySignal));
    let removed = supervisor.end(is_on_purpose);
    let _ = fs::remove_file(&plan.state_file);
    let outcome = outcome?;
    removed?;
    if is_on_purpose {
        remove_files(plan);
    }
    Ok(outcome)
}

/// The functions of a plan, with what their workers need at the start.
fn open_functions(plan: &Plan) -> io::Result<Vec<Box<dyn Function>>> {
    // The PEP may split the connections on the device of the tunnel, so that is opened first.
    let tunnel = plan.tunnel.as_ref().map(TunnelFunction::open).transpose()?;
    let mut functions: Vec<Box<dyn Function>> = Vec::new();
    // It is the first one: its metrics have bounds that other workers do not know.
    if let Some(pep) = &plan.pep {
        allow_descriptors(pep)?;
        functions.push(Box::new(PepFunction::open(pep, &plan.name)?));
        print_bounds(pep);
    }
    if let Some(tunnel) = tunnel {
        functions.push(Box::new(tunnel));
    }
    Ok(functions)
}

/// Opens what a daemon opens, prints its bounds, and changes nothing: the device of a tunnel exists for a moment, without
/// addresses and routes.
///
/// # Errors
/// As [`up`].
pub fn check(plan: &Plan) -> io::Result<()> {
    let underlay = plan.tunnel.as_ref().map(Underlay::resolve).transpose()?;
    let tunnel = plan.tunnel.as_ref().zip(underlay);
    // Until the end: the PEP may name its device.
    let _opened = tunnel.as_ref().map(|(plan, underlay)| open(plan, underlay)).transpose()?;
    if let Some((_, underlay)) = &tunnel {
        eprintln!("bentpipe-gate: packets of the tunnel have at most {} B", underlay.mtu);
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
