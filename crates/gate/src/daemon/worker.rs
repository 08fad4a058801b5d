//! The parts without privileges.

use std::io;
use std::os::fd::OwnedFd;

use bentpipe_sys::signals::Signals;

use super::handover::receive;
use super::{Part, Start, pep_worker, tunnel_worker};

/// Carries traffic until the privileged part is gone. Its plan comes with descriptors.
///
/// # Errors
/// What was handed over is not complete, or the kernel's error.
pub fn work(control: OwnedFd, supply: OwnedFd) -> io::Result<()> {
    // The privileged part ends this one. Ctrl-C and service managers send signals to both.
    let _blocked = Signals::block()?;
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
