//! The parts without privileges.

use std::io;
use std::os::fd::OwnedFd;

use bentpipe_sys::signals::Signals;

use super::handover::receive;
use super::{Part, Start, pep_worker, tunnel_worker};

/// Carries traffic until the privileged part is gone. Its plan comes with descriptors, of which the first one is the listener
/// for metrics, if it serves them.
///
/// # Errors
/// What was handed over is not complete, or the kernel's error.
pub fn work(control: OwnedFd, supply: OwnedFd) -> io::Result<()> {
    // The privileged part ends this one. Ctrl-C and service managers send signals to both.
    let _blocked = Signals::block()?;
    let (message, mut descriptors) = receive(&control)?;
    let Start { user, group, serves_metrics, part } = Start::parse(&message)?;
    let ids = [user, group];
    let metrics = (serves_metrics && !descriptors.is_empty()).then(|| descriptors.remove(0));
    let handed = (metrics, descriptors);
    match part {
        Part::Pep(plan) => pep_worker::relay(ids, &plan, handed, [control, supply]),
        Part::Tunnel { plan, endpoints, mtu } => {
            tunnel_worker::forward(ids, (&plan, &endpoints, mtu), handed, &control)
        }
    }
}
