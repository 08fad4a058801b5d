//! A forwarder between two TUN devices without a model, as the baseline for the cost of a lab.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bentpipe_core::packet::FlowId;
use bentpipe_sim::{Chain, Side};
use rustix::event::{PollFd, PollFlags, poll};

use super::Path;
use crate::driver::Stop;
use crate::error::LabError;
use crate::ingress::BATCH;
use crate::lab::{Config, hosts_up};
use bentpipe_sys::netns::Namespace;
use bentpipe_sys::offload;
use bentpipe_sys::schedule::request_real_time_scheduling;
use bentpipe_sys::tun::Tun;

/// The two sides of a lab, connected by a copy loop.
pub struct Forwarder {
    namespaces: [Arc<Namespace>; 2],
    devices: Mutex<[Tun; 2]>,
    stop: Stop,
    /// Packets delivered to each side.
    delivered: [AtomicU64; 2],
}

impl Forwarder {
    /// Brings the sides up as in a lab. Of the plans only the hosts matter.
    ///
    /// # Errors
    /// As [`crate::lab::Lab::up`].
    pub fn up(config: &Config) -> Result<Self, LabError> {
        let hosts = Chain::new(&config.plans, config.seed, FlowId(0), false)?.network.hosts;
        let [world, island] =
            hosts_up(&hosts[..2], config)?.try_into().unwrap_or_else(|_| unreachable!("two hosts"));
        Ok(Self {
            namespaces: [world.namespace, island.namespace].map(Arc::new),
            devices: Mutex::new([world.device, island.device]),
            stop: Stop::new()?,
            delivered: Default::default(),
        })
    }

    fn forward(&self) -> io::Result<()> {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = vec![0; offload::BYTES + offload::PACKET_BYTES_MAX];
        request_real_time_scheduling();
        loop {
            let mut moved = false;
            for side in Side::ALL {
                let to = &devices[side.other() as usize];
                for _ in 0..BATCH {
                    let Some(bytes) = devices[side as usize].receive(&mut buffer)? else { break };
                    moved = true;
                    if to.send(&buffer[..bytes]) {
                        self.delivered[side.other() as usize].fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            if !moved {
                let [world, island] = &*devices;
                let descriptors = [world.as_fd(), island.as_fd(), self.stop.as_fd()];
                let mut polled = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                poll(&mut polled, None)?;
                if !polled[2].revents().is_empty() {
                    return Ok(());
                }
            }
        }
    }
}

impl Path for Forwarder {
    fn namespace(&self, side: Side) -> &Arc<Namespace> {
        &self.namespaces[side as usize]
    }

    fn run(&self) -> Result<(), LabError> {
        self.forward().map_err(|error| LabError::machine("moving packets", error, "see dmesg"))
    }

    fn stop(&self) {
        self.stop.stop();
    }

    fn delivered(&self, side: Side) -> u64 {
        self.delivered[side as usize].load(Ordering::Relaxed)
    }
}
