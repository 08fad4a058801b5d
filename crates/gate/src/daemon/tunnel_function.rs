//! The tunnel as a function of the daemon: its device, its settings, and the routes that refuse packets without it.
//!
//! The kernel removes the device with the process of the worker. The next process gets another device of that name, with
//! the same addresses and routes, so rules that name it hold for both. Names of peers are not looked up again: that can
//! take longer than the leases of a PEP in the same daemon.

use std::io;
use std::os::fd::OwnedFd;

use bentpipe_core::time::Instant;

use super::function::{Function, WorkerHealth, WorkerResources};
use super::report::{State, ToWorker, WorkerReport};
use super::tunnel_device::{Underlay, configure, open};
use super::tunnel_plan::{FailMode, TunnelPlan};
use super::tunnel_report::{TunnelPeerReport, TunnelReport, TunnelWorker};
use super::unreachable_routes::{self, UnreachableRoutes, networks};
use super::worker_process::WorkerProcess;
use super::{Part, Plan};

/// See the module documentation.
pub(super) struct TunnelFunction {
    /// With the settings of the last reload.
    plan: TunnelPlan,
    underlay: Underlay,
    /// The device and the socket for the first process.
    opened: Option<[OwnedFd; 2]>,
    /// Removed again unless the worker reports.
    unreachable: UnreachableRoutes,
    /// What the worker has counted so far, in all its processes.
    counts: Option<TunnelReport>,
    /// What the processes before the present one have counted.
    earlier: Option<TunnelReport>,
}

impl TunnelFunction {
    /// Opens the device and the socket, and adds routes to the networks of the peers.
    pub(super) fn open(plan: &TunnelPlan) -> io::Result<Self> {
        let underlay = Underlay::resolve(plan)?;
        let opened = open(plan, &underlay)?;
        let unreachable = UnreachableRoutes::add(plan)?;
        configure(plan, &underlay)?;
        Ok(Self {
            plan: plan.clone(),
            underlay,
            opened: Some(opened),
            unreachable,
            counts: None,
            earlier: None,
        })
    }

    fn open_again(&self) -> io::Result<[OwnedFd; 2]> {
        let opened = open(&self.plan, &self.underlay)?;
        // Another program may have removed them.
        unreachable_routes::restore(&self.plan)?;
        configure(&self.plan, &self.underlay)?;
        Ok(opened)
    }
}

impl Function for TunnelFunction {
    fn name(&self) -> &'static str {
        "the tunnel"
    }

    fn workers(&self) -> usize {
        1
    }

    fn open(&mut self, _: usize) -> io::Result<WorkerResources> {
        let opened = match self.opened.take() {
            Some(opened) => opened,
            None => self.open_again()?,
        };
        Ok(WorkerResources {
            part: Part::Tunnel {
                plan: self.plan.clone(),
                endpoints: self.underlay.endpoints.clone(),
                mtu: self.underlay.mtu,
            },
            descriptors: opened.into(),
            sockets: None,
        })
    }

    fn started(&mut self) {
        std::mem::take(&mut self.unreachable).keep();
    }

    fn on_report(&mut self, _: usize, report: WorkerReport) {
        let WorkerReport::Tunnel(mut report) = report else { return };
        if let Some(earlier) = &self.earlier {
            report.add_earlier(earlier);
        }
        self.counts = Some(report);
    }

    fn on_end(&mut self, _: usize, _: Instant) -> String {
        if let Some(counts) = &mut self.counts {
            counts.end();
            self.earlier = Some(counts.clone());
        }
        match self.plan.fail {
            FailMode::Closed => "the networks of its peers are unreachable".to_owned(),
            FailMode::Open => {
                "packets for the networks of its peers take other routes, in clear text".to_owned()
            }
        }
    }

    fn apply(&mut self, new: &Plan, processes: &[&WorkerProcess]) -> Result<(), String> {
        let Some(tunnel) = &new.tunnel else { return Ok(()) };
        let settings = ToWorker::Settings(tunnel.settings.clone());
        let message = serde_json::to_vec(&settings).unwrap_or_default();
        // A process that has ended needs none: the next one gets the new settings at its start.
        let refuses = |process: &&WorkerProcess| {
            process.send(&message).is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe)
        };
        if processes.iter().any(refuses) {
            return Err("the worker of the tunnel does not read its settings".to_owned());
        }
        self.plan.settings = tunnel.settings.clone();
        Ok(())
    }

    fn add_to(&self, state: &mut State, health: WorkerHealth, _: Instant) {
        state.tunnel.clone_from(&self.counts);
        let WorkerHealth { missing, failures } = health;
        state.tunnel_worker = Some(TunnelWorker { missing, failures });
    }

    fn totals(&self) -> Option<String> {
        let peers = &self.counts.as_ref()?.peers;
        let sum = |count: fn(&TunnelPeerReport) -> u64| peers.iter().map(count).sum::<u64>();
        let (sent, received) = (sum(|peer| peer.sent_packets), sum(|peer| peer.received_packets));
        Some(format!("the tunnel sent {sent} packets and received {received}"))
    }

    fn remove(&mut self, is_on_purpose: bool) -> io::Result<()> {
        if is_on_purpose { unreachable_routes::remove(networks(&self.plan)) } else { Ok(()) }
    }
}
