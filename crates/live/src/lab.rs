//! A lab: the world, the island, and the link between them.

use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{thread, time};

use bentpipe_core::link::Counters;
use bentpipe_core::packet::Address;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_sim::plan::Plan;
use bentpipe_sim::{Host, Side};
use rustix::io::Errno;

use crate::addresses::{self, ipv4};
use crate::capture::{Captured, Recorder};
use crate::capture_file::CaptureFile;
use crate::driver::{Driver, Punctuality, Stop};
use crate::emulator::{Emulator, Function, Options};
use crate::error::LabError;
use crate::lateness::Limits;
use crate::measure::plain_link;
use crate::orders::Order;
use crate::ports::Ports;
use crate::verdict::{Faults, KernelWatch, Window, Windows};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::diag::{Connection, Diag};
use bentpipe_sys::interface::{Interface, InterfaceState};
use bentpipe_sys::netns::{self, Namespace};
use bentpipe_sys::route;
use bentpipe_sys::stamps::Stamps;
use bentpipe_sys::tun::{self, Tun};

/// The interface that leads to the link, in every host.
pub const INTERFACE: &str = "link";
/// A stall of 10 ms at a million packets a second must not look like a queue that is full; of many hosts
/// none sends so fast, and each packet that may wait takes memory.
const QUEUE_PACKETS: u32 = 10_000;
const QUEUE_PACKETS_OF_MANY: u32 = 1_000;
const MANY_HOSTS: usize = 8;
/// How often the kernel is asked for its counters, and for how long it may owe an answer.
const LOOK: time::Duration = time::Duration::from_millis(100);
const UNCHECKED_MAX: Duration = Duration::from_secs(1);
/// That of a gateway which leads to its hosts.
const INNER: &str = "hosts";
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
    /// Whether gateways are hosts, between their hosts and the link, for programs that work there.
    pub gateways: bool,
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
            gateways: false,
        }
    }
}

/// A lab that is up. All of it is gone when this is dropped, and its programs end.
pub struct Lab {
    /// By address, as all that is of hosts.
    hosts: Vec<Host>,
    namespaces: Vec<Arc<Namespace>>,
    driver: Mutex<Driver>,
    clock: Clock,
    stop: Stop,
    kernel: Vec<Interface>,
    diags: Vec<Mutex<Option<Diag>>>,
    /// What the kernel said last of the interfaces, and when, if it was not looked at yet.
    states: Mutex<Option<(Instant, Vec<std::io::Result<InterfaceState>>)>>,
    looks: Mutex<Looks>,
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
    /// What each function of a gateway counted.
    pub functions: Vec<Function>,
    /// What the conversations of measuring programs carried.
    pub ports: Ports,
    /// How punctual packets were.
    pub punctuality: Punctuality,
    /// Packets that the kernel dropped before the link, since the driver did not read them in time.
    /// `None` if it does not say.
    pub kernel_dropped: Option<u64>,
    /// Packets for which there was no memory.
    pub refused: u64,
    /// What was captured, if anything was to be.
    pub captured: Option<Captured>,
    /// The last windows of time, the oldest first; the last one is still open.
    pub windows: Vec<Window>,
    /// How many windows there were.
    pub window_count: u64,
    /// How many of them do not count.
    pub invalid_windows: u64,
    /// Why the figures do not count, if they do not.
    pub invalid: Option<String>,
}

/// What is known from look to look.
struct Looks {
    kernel: Vec<KernelWatch>,
    /// When the kernel was looked at last.
    looked_at: Instant,
    /// Why what it said does not do, if so.
    unchecked: Option<String>,
    windows: Windows,
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
            gateways: config.gateways,
            ..Options::default()
        };
        let mut emulator = Emulator::new(&config.plans, config.seed, options)?;
        let network = emulator.network().clone();
        let made = hosts_up(&network.hosts, &config)?;
        if let Some(file) = config.capture {
            emulator.capture(Recorder::start(CaptureFile::new(file), &config.plans)?);
        }
        let stop = Stop::new()?;
        let clock = Clock::start();
        let (mut namespaces, mut devices, mut inner) = (Vec::new(), Vec::new(), Vec::new());
        let (mut kernel, mut watches, mut diags) = (Vec::new(), Vec::new(), Vec::new());
        let stamps = stamps(&made);
        for ((host, [at_link, at_inner]), Host { name, .. }) in
            made.into_iter().zip(stamps).zip(&network.hosts)
        {
            watches.extend(host.kernel.iter().map(|_| KernelWatch::new(name)));
            devices.push((host.device, at_link));
            inner.extend(host.inner.map(|device| (device, at_inner)));
            namespaces.push(Arc::new(host.namespace));
            kernel.extend(host.kernel);
            diags.push(Mutex::new(host.diag));
        }
        devices.append(&mut inner);
        let mut driver = Driver::new(emulator, devices, clock, stop.clone());
        if config.super_packets {
            driver.take_super_packets();
        }
        Ok(Self {
            hosts: network.hosts,
            namespaces,
            driver: Mutex::new(driver),
            clock,
            stop,
            kernel,
            diags,
            states: Mutex::default(),
            looks: Mutex::new(Looks {
                kernel: watches,
                looked_at: Instant::START,
                unchecked: None,
                windows: Windows::new(config.limits),
            }),
            report: Mutex::default(),
            orders: Mutex::default(),
        })
    }

    /// The hosts, by address.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The namespace of a host.
    #[must_use]
    pub fn namespace(&self, host: impl Into<Address>) -> &Arc<Namespace> {
        &self.namespaces[host.into().0 as usize]
    }

    /// The TCP connections of a host as its kernel knows them; none where it does not tell.
    #[must_use]
    pub fn connections(&self, host: impl Into<Address>) -> Vec<Connection> {
        let mut diag =
            self.diags[host.into().0 as usize].lock().unwrap_or_else(PoisonError::into_inner);
        diag.as_mut().and_then(|diag| diag.connections().ok()).unwrap_or_default()
    }

    /// Runs the link in the calling thread until [`Lab::stop`].
    ///
    /// # Errors
    /// If a device fails.
    pub fn run(&self) -> Result<(), LabError> {
        let (is_over, over) = channel();
        let result = thread::scope(|scope| {
            thread::Builder::new()
                .name("bentpipe-counters".to_owned())
                .spawn_scoped(scope, move || self.look_at_kernel_until(&over))
                .map_err(no_threads)?;
            let result = self.move_packets();
            drop(is_over);
            result
        });
        self.look_at_kernel();
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        let at = driver.now();
        self.note(&mut driver, at);
        result
    }

    /// Asks for the interfaces' counters again and again: not the thread that moves packets, since the
    /// kernel answers only when nobody else sets an interface up or down (its rtnl lock).
    fn look_at_kernel_until(&self, over: &Receiver<()>) {
        while matches!(over.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout)) {
            self.look_at_kernel();
        }
    }

    fn look_at_kernel(&self) {
        let states = self.kernel.iter().map(Interface::state).collect();
        *self.states.lock().unwrap_or_else(PoisonError::into_inner) = Some((self.now(), states));
    }

    fn move_packets(&self) -> Result<(), LabError> {
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
                // What the kernel says of a deleted device: drivers/net/tun.c, tun_get.
                Err(error) if error.raw_os_error() == Some(Errno::BADFD.raw_os_error()) => {
                    let doing = format!("the device {INTERFACE} was deleted inside the lab");
                    return Err(LabError::machine(&doing, error, "set it up again, and let it be"));
                }
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
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let Looks { kernel, looked_at, unchecked, windows } = &mut *looks;
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((moment, states)) = states {
            *looked_at = moment;
            let reasons = kernel.iter_mut().zip(states).map(|(watch, state)| watch.take(state));
            *unchecked = reasons.fold(None, |first, reason| first.or(reason));
        } else if at.saturating_since(*looked_at) > UNCHECKED_MAX {
            let text = "the kernel has not told the counters of interfaces for a second, so it is not known \
                        what it dropped; to fix it: end what sets up interfaces all the time";
            unchecked.get_or_insert_with(|| text.to_owned());
        }
        let unchecked = unchecked.clone();
        let kernel_dropped = kernel.iter().map(KernelWatch::dropped).sum();
        let refused = driver.emulator_mut().refused();
        let punctuality = driver.punctuality();
        let faults = Faults {
            clock_steps: punctuality.clock_steps,
            future_stamps: punctuality.future_stamps,
            kernel_dropped,
            refused,
            too_long: punctuality.too_long,
            not_split: punctuality.not_split,
            not_taken: punctuality.not_taken,
        };
        let kernel_dropped = unchecked.is_none().then_some(kernel_dropped);
        let verdict = windows.look(at, &mut punctuality.lateness, faults, unchecked);
        let punctuality = Punctuality { lateness: verdict.lateness, ..punctuality.clone() };
        let emulator = driver.emulator_mut();
        let report = Report {
            at,
            directions: emulator.counters(),
            functions: emulator.functions(),
            ports: emulator.ports().clone(),
            punctuality,
            kernel_dropped,
            refused,
            captured: emulator.captured(),
            windows: verdict.windows,
            window_count: verdict.window_count,
            invalid_windows: verdict.invalid_windows,
            invalid: verdict.invalid,
        };
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }
}

/// Who listens at each host's device, and at that inside a gateway, where the kernel allows it. All
/// hosts at once: each listener waits for an RCU grace period.
fn stamps(hosts: &[HostUp]) -> Vec<[Option<Stamps>; 2]> {
    let listen = |host: &HostUp| {
        let on = |interface, device: &Tun| Stamps::listen(interface, device.queue_packets()).ok();
        let inner = || host.inner.as_ref().and_then(|device| on(INNER, device));
        let both = || Ok::<_, LabError>([on(INTERFACE, &host.device), inner()]);
        host.namespace.run(both).unwrap_or_default()
    };
    thread::scope(|scope| {
        let start = |host| thread::Builder::new().spawn_scoped(scope, move || listen(host)).ok();
        let started: Vec<_> = hosts.iter().map(start).collect();
        let join = |started: Option<thread::ScopedJoinHandle<'_, _>>| started?.join().ok();
        started.into_iter().map(|started| join(started).unwrap_or_default()).collect()
    })
}

/// A host that is up, with nothing at the other end of its device yet.
pub(crate) struct HostUp {
    pub(crate) namespace: Namespace,
    pub(crate) device: Tun,
    /// A gateway's to its hosts.
    inner: Option<Tun>,
    kernel: Vec<Interface>,
    diag: Option<Diag>,
}

/// Sets all hosts up at once: each waits for its kernel.
pub(crate) fn hosts_up(hosts: &[Host], config: &Config) -> Result<Vec<HostUp>, LabError> {
    let names = names(hosts);
    let up = |number: usize| host_up(Address(number as u32), hosts, &names, config);
    thread::scope(|scope| {
        let start = |number| {
            thread::Builder::new().spawn_scoped(scope, move || up(number)).map_err(no_threads)
        };
        let started: Vec<_> = (0..hosts.len()).map(start).collect();
        let made = started.into_iter().map(|host| match host?.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        made.collect()
    })
}

fn no_threads(error: std::io::Error) -> LabError {
    LabError::machine("starting a thread", error, "allow more threads (ulimit -u, pids.max)")
}

/// The content of `/etc/hosts` in every host. With several terminals the first one's host has the name
/// that it would have alone, too.
fn names(hosts: &[Host]) -> String {
    let mut names = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for (number, host) in (0..).zip(hosts) {
        let also = if number == Side::Island as u32 && host.name != Side::Island.name() {
            format!(" {}", Side::Island.name())
        } else {
            String::new()
        };
        names += &format!("{} {}{also}\n", ipv4(Address(number)), host.name);
    }
    names
}

fn host_up(
    address: Address,
    hosts: &[Host],
    names: &str,
    config: &Config,
) -> Result<HostUp, LabError> {
    let host = &hosts[address.0 as usize];
    let (namespace, (device, inner, kernel, diag)) = Namespace::new(names, || {
        // The kernel looks for IPv6 routers by packets of its own, which nobody asked the link to
        // carry. Where there is no IPv6 there is nothing to switch off.
        let _ = netns::set_sysctl("net.ipv6.conf.default.disable_ipv6", "1");
        // It may be that of the machine, which may be a router; hosts are none.
        netns::set_sysctl("net.ipv4.ip_forward", "0")
            .map_err(|error| LabError::machine("setting a host up", error, "mount /proc"))?;
        for (name, value) in &config.settings[host.side as usize] {
            netns::set_sysctl(name, value).map_err(|error| {
                let doing = format!("setting {name} to {value:?} on {}", host.name);
                LabError::machine(&doing, error, "leave the setting out")
            })?;
        }
        let queue_packets =
            if hosts.len() > MANY_HOSTS { QUEUE_PACKETS_OF_MANY } else { QUEUE_PACKETS };
        let up = |name, prefix| device_up(name, (address, prefix), queue_packets, config);
        let device = up(INTERFACE, addresses::PREFIX)?;
        let mut kernel = vec![counters(INTERFACE)?];
        let mut inner = None;
        if host.is_gateway {
            inner = Some(up(INNER, u32::BITS as u8)?);
            kernel.push(counters(INNER)?);
            forward(host, hosts)
                .map_err(|error| LabError::privileged("setting routes up", error))?;
        }
        Ok::<_, LabError>((device, inner, kernel, Diag::open().ok()))
    })?;
    Ok(HostUp { namespace, device, inner, kernel, diag })
}

fn device_up(
    name: &str,
    (host, prefix): (Address, u8),
    queue_packets: u32,
    config: &Config,
) -> Result<Tun, LabError> {
    let (address, Config { mtu, super_packets, .. }) = (ipv4(host), config);
    let (mtu, super_packets) = (*mtu, *super_packets);
    Ok(Tun::up(tun::Config { name, address, prefix, mtu, super_packets, queue_packets })?)
}

fn counters(interface: &str) -> Result<Interface, LabError> {
    Interface::open(interface).map_err(|error| {
        LabError::machine("asking for counters", error, "use a kernel with rtnetlink")
    })
}

/// Makes the calling thread's namespace a router: to its own hosts by one interface, to all others by the
/// other. What is for nobody in the lab goes towards the world.
fn forward(gateway: &Host, hosts: &[Host]) -> std::io::Result<()> {
    netns::set_sysctl("net.ipv4.ip_forward", "1")?;
    // Hosts have one way only: there is no better one to be told of.
    for which in ["all", "link", "hosts"] {
        netns::set_sysctl(&format!("net.ipv4.conf.{which}.send_redirects"), "0")?;
    }
    let is_own = |host: &Host| !host.is_gateway && host.gateway == gateway.gateway;
    for (number, _) in (0..).zip(hosts).filter(|(_, host)| is_own(host)) {
        route::add(ipv4(Address(number)), u32::BITS, INNER)?;
    }
    let towards_world = if gateway.side == Side::World { INNER } else { INTERFACE };
    route::add(std::net::Ipv4Addr::UNSPECIFIED, 0, towards_world)
}
