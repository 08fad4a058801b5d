//! A lab: the world, the island, and the link between them.

use std::fs::File;
use std::net::Ipv4Addr;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time;

use bentpipe_core::link::Counters;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_sim::Side;
use bentpipe_sim::plan::Plan;

use crate::capture::{Captured, Recorder};
use crate::driver::{Driver, Punctuality, Stop};
use crate::emulator::{Emulator, Options};
use crate::error::LabError;
use crate::lateness::Limits;
use crate::measure::plain_link;
use crate::orders::Order;
use crate::ports::Ports;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::diag::{Connection, Diag};
use bentpipe_sys::netns::{self, Namespace};
use bentpipe_sys::stamps::Stamps;
use bentpipe_sys::tun::{self, KernelCounters, Tun};

/// The interface that leads to the link, on both sides.
pub const INTERFACE: &str = "link";
/// The network of both sides: a link is one hop at the IP layer.
const PREFIX: u8 = 24;
/// Programs are told that something has changed at most so often.
const SLICE: Duration = Duration::from_millis(100);

/// What a lab is made from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The hops, the first next to the world.
    pub plans: Vec<Plan>,
    /// Of the links' chance.
    pub seed: u64,
    /// The longest packet, in bytes at the IP layer.
    pub mtu: u16,
    /// Whether arrivals are kept for a replay.
    pub tap: bool,
    /// Kernel settings of each side, the world's first: names as sysctl(8) has them, and values.
    pub settings: [Vec<(String, String)>; 2],
    /// Server ports of measuring programs; see [`Options::control_ports`].
    pub control_ports: Option<(u16, u16)>,
    /// From where on a run does not count.
    pub limits: Limits,
    /// Where packets are captured to, if they are: pcapng.
    pub capture: Option<Arc<File>>,
    /// Whether the kernels of both sides leave segments to be cut and joined here.
    pub super_packets: bool,
}

impl Config {
    /// A lab with one link of this rate and delay both ways, and a queue without a limit.
    #[must_use]
    pub fn plain(rate_bps: u64, delay: Duration) -> Self {
        Self::of(vec![plain_link(rate_bps, delay, 0.0)])
    }

    /// A lab with these hops, and all else as usual.
    #[must_use]
    pub fn of(plans: Vec<Plan>) -> Self {
        Self {
            plans,
            seed: 1,
            mtu: 1_500,
            tap: false,
            settings: Default::default(),
            control_ports: None,
            limits: Limits::default(),
            capture: None,
            super_packets: false,
        }
    }
}

/// The address of a side.
#[must_use]
pub const fn address(side: Side) -> Ipv4Addr {
    match side {
        Side::World => Ipv4Addr::new(10, 84, 0, 1),
        Side::Island => Ipv4Addr::new(10, 84, 0, 2),
    }
}

/// A lab that is up. All of it is gone when this is dropped, and its programs end.
pub struct Lab {
    namespaces: [Arc<Namespace>; 2],
    driver: Mutex<Driver>,
    clock: Clock,
    stop: Stop,
    kernel: [KernelCounters; 2],
    diags: [Mutex<Option<Diag>>; 2],
    limits: Limits,
    report: Mutex<Report>,
    orders: Mutex<Vec<Orders>>,
}

/// Orders that belong together, and who waits to hear when they were followed.
struct Orders {
    orders: Vec<Order>,
    answer: SyncSender<Result<Instant, LabError>>,
}

/// A link that runs follows orders within its slice.
const ORDERS_WAIT: time::Duration = time::Duration::from_secs(5);

/// What a lab measured until `at`.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// When, since the lab was set up.
    pub at: Instant,
    /// What each direction counted, with its name.
    pub directions: Vec<(String, Counters)>,
    /// What the conversations of measuring programs carried.
    pub ports: Ports,
    /// How punctual packets were.
    pub punctuality: Punctuality,
    /// Packets that the kernel dropped before the link, since the driver did not read them in time.
    pub kernel_dropped: u64,
    /// Packets for which there was no memory.
    pub refused: u64,
    /// What was captured, if anything was to be.
    pub captured: Option<Captured>,
    /// Why the figures do not count, if they do not.
    pub invalid: Option<String>,
}

impl Lab {
    /// Sets a lab up; nothing moves until [`Lab::run`].
    ///
    /// # Errors
    /// If the plans are not for real time, or the machine lacks something.
    pub fn up(config: Config) -> Result<Self, LabError> {
        let options = Options {
            packet_bytes_max: config.mtu.into(),
            tap: config.tap,
            control_ports: config.control_ports,
            ..Options::default()
        };
        let mut emulator = Emulator::new(&config.plans, config.seed, options)?;
        let sides = sides_up(&config)?;
        if let Some(file) = config.capture {
            emulator.capture(Recorder::start(file, &config.plans)?);
        }
        let stop = Stop::new()?;
        let clock = Clock::start();
        let stamps = sides.namespaces.each_ref().map(|side| stamps(side));
        let mut driver = Driver::new(emulator, sides.devices, stamps, clock, stop.clone());
        if config.super_packets {
            driver.take_super_packets();
        }
        Ok(Self {
            namespaces: sides.namespaces,
            driver: Mutex::new(driver),
            clock,
            stop,
            kernel: sides.kernel,
            diags: sides.diags.map(Mutex::new),
            limits: config.limits,
            report: Mutex::default(),
            orders: Mutex::default(),
        })
    }

    /// The namespace of a side.
    #[must_use]
    pub fn namespace(&self, side: Side) -> &Arc<Namespace> {
        &self.namespaces[side as usize]
    }

    /// The TCP connections of a side as its kernel knows them; none where it does not tell.
    #[must_use]
    pub fn connections(&self, side: Side) -> Vec<Connection> {
        let mut diag = self.diags[side as usize].lock().unwrap_or_else(PoisonError::into_inner);
        diag.as_mut().and_then(|diag| diag.connections().ok()).unwrap_or_default()
    }

    /// Runs the link in the calling thread until [`Lab::stop`].
    ///
    /// # Errors
    /// If a device fails.
    pub fn run(&self) -> Result<(), LabError> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        driver.settle_in();
        loop {
            let until = driver.now() + SLICE;
            let go_on = driver.run_until(until);
            self.follow_orders(&mut driver);
            let at = driver.now();
            if !matches!(go_on, Ok(true)) {
                driver.emulator_mut().end_capture(at);
            }
            self.note(&mut driver, at);
            match go_on {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    return Err(LabError::machine("moving packets", error, "see dmesg"));
                }
            }
        }
    }

    /// Ends [`Lab::run`], from any thread.
    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Changes the link while it runs, by all of the orders at one moment or by none, and returns the
    /// moment.
    ///
    /// # Errors
    /// If one of the orders cannot be followed, or the link does not run.
    pub fn order(&self, orders: Vec<Order>) -> Result<Instant, LabError> {
        let (answer, answered) = sync_channel(1);
        let waiting = || self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        waiting().push(Orders { orders, answer });
        self.stop.interrupt();
        answered.recv_timeout(ORDERS_WAIT).unwrap_or_else(|error| {
            waiting().clear();
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, error);
            Err(LabError::machine("changing the link", error, "run the link"))
        })
    }

    fn follow_orders(&self, driver: &mut Driver) {
        let waiting =
            std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        for Orders { orders, answer } in waiting {
            let now = driver.now();
            let followed = driver.emulator_mut().order(now, &orders).map_err(LabError::from);
            // Who asked may have given up.
            let _ = answer.send(followed);
        }
    }

    /// Now, since the lab was set up.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// What was measured, a tenth of a second ago at most while the link runs.
    #[must_use]
    pub fn report(&self) -> Report {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The link, once it no longer runs.
    #[must_use]
    pub fn into_emulator(self) -> Emulator {
        self.driver.into_inner().unwrap_or_else(PoisonError::into_inner).into_emulator()
    }

    fn note(&self, driver: &mut Driver, at: Instant) {
        let directions = driver.emulator_mut().counters(at);
        let ports = driver.emulator_mut().ports().clone();
        let kernel_dropped = self.kernel.iter().map(KernelCounters::dropped).sum();
        let refused = driver.emulator_mut().refused();
        let mut report = Report {
            at,
            directions,
            ports,
            punctuality: driver.punctuality().clone(),
            kernel_dropped,
            refused,
            captured: driver.emulator_mut().captured(),
            invalid: None,
        };
        report.invalid = verdict(&report, self.limits);
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }
}

fn verdict(report: &Report, limits: Limits) -> Option<String> {
    if report.refused > 0 {
        return Some(format!("{} packets found no memory", report.refused));
    }
    if report.kernel_dropped > 0 {
        return Some(format!(
            "the kernel dropped {} packets before the link",
            report.kernel_dropped
        ));
    }
    if report.punctuality.not_split > 0 {
        let count = report.punctuality.not_split;
        return Some(format!("{count} super-packets could not be split"));
    }
    report.punctuality.lateness.verdict(limits, "lateness")
}

/// Both sides, the world first, with nothing between them yet.
pub(crate) struct Sides {
    pub(crate) namespaces: [Arc<Namespace>; 2],
    pub(crate) devices: [Tun; 2],
    pub(crate) kernel: [KernelCounters; 2],
    pub(crate) diags: [Option<Diag>; 2],
}

/// Who listens at a side's device, where the kernel allows it.
fn stamps(side: &Namespace) -> Option<Stamps> {
    side.run(|| Ok::<_, LabError>(Stamps::listen(INTERFACE).ok())).ok().flatten()
}

pub(crate) fn sides_up(config: &Config) -> Result<Sides, LabError> {
    let [world, island] = Side::ALL.map(|side| side_up(side, config));
    let ((world, of_world), (island, of_island)) = (world?, island?);
    Ok(Sides {
        namespaces: [world, island].map(Arc::new),
        devices: [of_world.device, of_island.device],
        kernel: [of_world.kernel, of_island.kernel],
        diags: [of_world.diag, of_island.diag],
    })
}

/// What is made inside a namespace and used from outside.
struct Inside {
    device: Tun,
    kernel: KernelCounters,
    diag: Option<Diag>,
}

fn side_up(side: Side, config: &Config) -> Result<(Namespace, Inside), LabError> {
    let [world, island] = Side::ALL.map(address);
    let hosts = format!(
        "127.0.0.1 localhost\n::1 localhost\n{world} {}\n{island} {}\n",
        Side::World.name(),
        Side::Island.name()
    );
    Namespace::new(&hosts, || {
        // The kernel looks for IPv6 routers by packets of its own, which nobody asked the link to
        // carry. Where there is no IPv6 there is nothing to switch off.
        let _ = netns::set_sysctl("net.ipv6.conf.default.disable_ipv6", "1");
        for (name, value) in &config.settings[side as usize] {
            netns::set_sysctl(name, value).map_err(|error| {
                let doing = format!("setting {name} to {value:?} in the {}", side.name());
                LabError::machine(&doing, error, "leave the setting out")
            })?;
        }
        let device = tun::Config {
            name: INTERFACE,
            address: address(side),
            prefix: PREFIX,
            mtu: config.mtu,
            super_packets: config.super_packets,
        };
        let device =
            Tun::up(device).map_err(|error| LabError::privileged("making a TUN device", error))?;
        let kernel = KernelCounters::open(INTERFACE)
            .map_err(|error| LabError::machine("reading counters", error, "mount /proc"))?;
        Ok(Inside { device, kernel, diag: Diag::open().ok() })
    })
}
