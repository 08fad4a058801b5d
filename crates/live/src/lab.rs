//! A lab: hosts in network namespaces, and the link between them.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{thread, time};

use bentpipe_core::link::Counters;
use bentpipe_core::packet::Address;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_sim::plan::Plan;
use bentpipe_sim::{Host, Side, without_programs};
use rustix::io::Errno;

use crate::addresses::{self, ipv4};
use crate::capture::{Captured, Recorder};
use crate::capture_file::CaptureFile;
use crate::changes::LinkChange;
use crate::driver::{Driver, Stop};
use crate::emulator::{ClassValues, Emulator, Function, Options};
use crate::error::LabError;
use crate::lateness::Limits;
use crate::plain_link::plain_link;
use crate::ports::PortCounts;
use crate::punctuality::Punctuality;
use crate::verdict::{Fault, Faults, InterfaceMonitor, Window, Windows};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::diag::{Connection, Diag};
use bentpipe_sys::interface::{Interface, InterfaceState};
use bentpipe_sys::netns::{self, Namespace};
use bentpipe_sys::route;
use bentpipe_sys::sysctl;
use bentpipe_sys::timestamps::Timestamps;
use bentpipe_sys::tun::{self, Tun};

/// The interface to the link, in every host.
pub const INTERFACE: &str = "link";
/// The queue length of a device: a stall of 10 ms at a million packets per second must not fill it.
/// With many hosts none sends as fast, and each queued packet takes memory.
const QUEUE_PACKETS: u32 = 10_000;
const QUEUE_PACKETS_OF_MANY: u32 = 1_000;
const MANY_HOSTS: usize = 8;
/// How often the kernel's interface counters are read, and their maximum age for a valid run.
const COUNTER_INTERVAL: time::Duration = time::Duration::from_millis(100);
const COUNTER_AGE_MAX: Duration = Duration::from_secs(1);
/// The interface of a gateway to its hosts.
const INNER: &str = "hosts";
/// How often the report is updated.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The configuration of a lab.
#[derive(Clone, Debug)]
pub struct Config {
    /// The hops; the first is next to the world.
    pub plans: Vec<Plan>,
    /// The random seed.
    pub seed: u64,
    /// The MTU: the longest IP packet, in bytes.
    pub mtu: u16,
    /// Whether to record arrivals and changes for a replay.
    pub tap: bool,
    /// Sysctls of the hosts of each side, the world's first: names as in sysctl(8), and values.
    pub settings: [Vec<(String, String)>; 2],
    /// Sysctls of single hosts by name, which are set after those of the side.
    pub host_settings: BTreeMap<String, Vec<(String, String)>>,
    /// Server ports of measuring programs; see [`Options::control_ports`].
    pub control_ports: Option<(u16, u16)>,
    /// The limits of lateness for a valid run; by default those of the link.
    pub limits: Option<Limits>,
    /// The file to capture packets to, in pcapng.
    pub capture: Option<Arc<File>>,
    /// Whether segmentation is offloaded to the lab: kernels exchange super-packets with it.
    pub super_packets: bool,
    /// Whether all gateways are hosts themselves, between their hosts and the link, for programs
    /// that run there. Those with a PEP or a tunnel are in any case.
    pub gateways: bool,
}

impl Config {
    /// A lab with one hop of this rate and delay in both directions, and unlimited queues.
    #[must_use]
    pub fn plain(rate_bps: u64, delay: Duration) -> Self {
        Self::of(vec![plain_link(rate_bps, delay, 0.0)])
    }

    /// A lab with these hops and default settings.
    #[must_use]
    pub fn of(plans: Vec<Plan>) -> Self {
        Self {
            plans,
            seed: 1,
            mtu: 1_500,
            tap: false,
            settings: Default::default(),
            host_settings: BTreeMap::new(),
            control_ports: None,
            limits: None,
            capture: None,
            super_packets: false,
            gateways: false,
        }
    }
}

/// A lab that is up. Dropping it removes the namespaces and kills the programs.
pub struct Lab {
    /// By address, like all vectors with an entry per host.
    hosts: Vec<Host>,
    namespaces: Vec<Arc<Namespace>>,
    driver: Mutex<Driver>,
    clock: Clock,
    stop: Stop,
    kernel: Vec<Interface>,
    diags: Vec<Mutex<Option<Diag>>>,
    /// The last state of the interfaces and when it was read, until a report has used it.
    states: Mutex<Option<(Instant, Vec<std::io::Result<InterfaceState>>)>>,
    checks: Mutex<Checks>,
    report: Mutex<Report>,
    pending: Mutex<Vec<PendingChanges>>,
    /// Those of the configuration.
    limits: Option<Limits>,
}

/// Changes to be applied together, and the channel for the result.
struct PendingChanges {
    changes: Vec<LinkChange>,
    reply: SyncSender<Result<Instant, LabError>>,
}

/// A running link applies changes within a report interval.
const CHANGES_TIMEOUT: time::Duration = time::Duration::from_secs(5);

/// The measurements of a lab until `at`.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The time since the lab was brought up.
    pub at: Instant,
    /// The counters of each direction, with its name.
    pub directions: Vec<(String, Counters)>,
    /// The classes of queues.
    pub classes: Vec<ClassValues>,
    /// The counters of each gateway function.
    pub functions: Vec<Function>,
    /// The traffic of measuring programs.
    pub ports: PortCounts,
    /// The punctuality of packets.
    pub punctuality: Punctuality,
    /// Packets that the kernel dropped before the link because the driver did not read them in
    /// time. `None` if unknown.
    pub kernel_dropped: Option<u64>,
    /// Packets that arrived while the packet store was full.
    pub store_full: u64,
    /// The state of the capture, if there is one.
    pub captured: Option<Captured>,
    /// The latest windows, the oldest first; the last one is still open.
    pub windows: Vec<Window>,
    /// The number of windows so far.
    pub window_count: u64,
    /// The number of invalid windows.
    pub invalid_windows: u64,
    /// By how much of its time a connection can be slower, at most; see
    /// [`Lateness::slowdown`](crate::lateness::Lateness::slowdown).
    pub slowdown: f64,
    /// Why the run is invalid, if it is.
    pub invalid: Option<String>,
    /// What makes it invalid, if it is.
    pub fault: Option<Fault>,
}

/// The state of the checks between updates of the report.
struct Checks {
    kernel: Vec<InterfaceMonitor>,
    /// When the interface counters were last read.
    counters_read_at: Instant,
    /// Why the counters cannot be trusted, if so.
    unchecked: Option<String>,
    windows: Windows,
}

impl Lab {
    /// Brings a lab up. Packets move only during [`Lab::run`].
    ///
    /// # Errors
    /// If the plans cannot run in real time, or the machine lacks something.
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
            let plans = without_programs(&config.plans);
            emulator.capture(Recorder::start(CaptureFile::new(file), &plans)?);
        }
        let stop = Stop::new()?;
        let clock = Clock::start();
        let (mut namespaces, mut devices, mut inner) = (Vec::new(), Vec::new(), Vec::new());
        let (mut kernel, mut monitors, mut diags) = (Vec::new(), Vec::new(), Vec::new());
        let timestamps = open_timestamps(&made);
        for ((host, [at_link, at_inner]), Host { name, .. }) in
            made.into_iter().zip(timestamps).zip(&network.hosts)
        {
            monitors.extend(host.kernel.iter().map(|_| InterfaceMonitor::new(name)));
            devices.push((host.device, at_link));
            inner.extend(host.inner.map(|device| (device, at_inner)));
            namespaces.push(Arc::new(host.namespace));
            kernel.extend(host.kernel);
            diags.push(Mutex::new(host.diag));
        }
        devices.append(&mut inner);
        let limits = config.limits.unwrap_or_else(|| emulator.limits());
        let mut driver = Driver::new(emulator, devices, clock, stop.clone());
        driver.set_limits(limits);
        if config.super_packets {
            driver.enable_super_packets();
        }
        let lab = Self {
            hosts: network.hosts,
            namespaces,
            driver: Mutex::new(driver),
            clock,
            stop,
            kernel,
            diags,
            states: Mutex::default(),
            checks: Mutex::new(Checks {
                kernel: monitors,
                counters_read_at: Instant::START,
                unchecked: None,
                windows: Windows::default(),
            }),
            report: Mutex::default(),
            pending: Mutex::default(),
            limits: config.limits,
        };
        // A report is complete from the start: nobody has to wait for the first one.
        lab.update_report(&mut lab.driver(), Instant::START);
        Ok(lab)
    }

    fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The TCP connections of a host; none if its kernel does not report them.
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
        // Before the first report: the lab may have been up for longer than counters may be old.
        self.read_counters();
        let (run_guard, ended) = channel();
        let result = thread::scope(|scope| {
            thread::Builder::new()
                .name("bentpipe-counters".to_owned())
                .spawn_scoped(scope, move || self.read_counters_until(&ended))
                .map_err(spawn_failed)?;
            let result = self.move_packets();
            drop(run_guard);
            result
        });
        self.read_counters();
        let mut driver = self.driver();
        let at = driver.now();
        self.update_report(&mut driver, at);
        result
    }

    /// Reads the interface counters periodically, in a thread of its own: the kernel's reply waits
    /// while another process configures an interface (rtnl lock), and the thread that moves packets
    /// must not.
    fn read_counters_until(&self, ended: &Receiver<()>) {
        while matches!(ended.recv_timeout(COUNTER_INTERVAL), Err(RecvTimeoutError::Timeout)) {
            self.read_counters();
        }
    }

    fn read_counters(&self) {
        let states = self.kernel.iter().map(Interface::state).collect();
        *self.states.lock().unwrap_or_else(PoisonError::into_inner) = Some((self.now(), states));
    }

    fn move_packets(&self) -> Result<(), LabError> {
        let mut driver = self.driver();
        let has_priority = driver.prepare_thread();
        self.checks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .windows
            .set_priority(has_priority);
        loop {
            let until = driver.now() + REPORT_INTERVAL;
            let result = driver.run_until(until);
            self.apply_pending(&mut driver);
            let at = driver.now();
            if !matches!(result, Ok(true)) {
                driver.emulator_mut().end_capture(at);
            }
            self.update_report(&mut driver, at);
            match result {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // The error of a deleted device: `tun_get` in drivers/net/tun.c.
                Err(error) if error.raw_os_error() == Some(Errno::BADFD.raw_os_error()) => {
                    let doing = format!("the device {INTERFACE} was deleted inside the lab");
                    return Err(LabError::machine(
                        &doing,
                        error,
                        "bring the lab up again, and keep the device",
                    ));
                }
                Err(error) => {
                    return Err(LabError::machine("moving packets", error, "see dmesg"));
                }
            }
        }
    }

    /// The address of a host by its name. `island` is the host of the first terminal.
    #[must_use]
    pub fn address_of(&self, name: &str) -> Option<Address> {
        let number = self.hosts.iter().position(|host| host.name == name);
        let island = (name == Side::Island.name()).then_some(Side::Island as usize);
        number.or(island).map(|number| Address(number as u32))
    }

    /// Ends [`Lab::run`], from any thread.
    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Applies changes to the running link, all at the same time or none, and returns that time.
    ///
    /// # Errors
    /// If one of the changes is impossible, or the link is not running.
    pub fn apply(&self, changes: Vec<LinkChange>) -> Result<Instant, LabError> {
        let (reply, replied) = sync_channel(1);
        let waiting = || self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        waiting().push(PendingChanges { changes, reply });
        self.stop.interrupt();
        replied.recv_timeout(CHANGES_TIMEOUT).unwrap_or_else(|error| {
            waiting().clear();
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, error);
            Err(LabError::machine("changing the link", error, "run the link"))
        })
    }

    fn apply_pending(&self, driver: &mut Driver) {
        let waiting =
            std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        for PendingChanges { changes, reply } in waiting {
            let now = driver.now();
            let applied = driver.emulator_mut().apply(now, &changes).map_err(LabError::from);
            if applied.is_ok() && self.limits.is_none() {
                let limits = driver.emulator_mut().limits();
                driver.set_limits(limits);
            }
            // The receiver may have timed out.
            let _ = reply.send(applied);
        }
    }

    /// The time since the lab was brought up.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The latest report, at most a tenth of a second old while the link runs. Before it runs it is
    /// that of the set-up, with all counters 0.
    #[must_use]
    pub fn report(&self) -> Report {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the link, which must not be running.
    #[must_use]
    pub fn into_emulator(self) -> Emulator {
        self.driver.into_inner().unwrap_or_else(PoisonError::into_inner).into_emulator()
    }

    fn update_report(&self, driver: &mut Driver, at: Instant) {
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let Checks { kernel, counters_read_at, unchecked, windows } = &mut *checks;
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((read_at, states)) = states {
            *counters_read_at = read_at;
            let reasons =
                kernel.iter_mut().zip(states).map(|(monitor, state)| monitor.check(state));
            *unchecked = reasons.fold(None, |first, reason| first.or(reason));
        } else if at.saturating_since(*counters_read_at) > COUNTER_AGE_MAX {
            let text = "the kernel has not reported interface counters for a second, so packets that it dropped \
                        are not counted; to fix it: stop programs that configure interfaces continually";
            unchecked.get_or_insert_with(|| text.to_owned());
        }
        let unchecked = unchecked.clone();
        let kernel_dropped = kernel.iter().map(InterfaceMonitor::dropped).sum();
        let store_full = driver.emulator_mut().store_full();
        let punctuality = driver.punctuality();
        let faults = Faults {
            clock_steps: punctuality.clock_steps,
            future_stamps: punctuality.future_stamps,
            kernel_dropped,
            store_full,
            too_long: punctuality.too_long,
            unsegmented: punctuality.unsegmented,
            rejected: punctuality.rejected,
        };
        let kernel_dropped = unchecked.is_none().then_some(kernel_dropped);
        let verdict = windows.observe(at, &mut punctuality.lateness, faults, unchecked);
        let punctuality = Punctuality { lateness: verdict.lateness, ..punctuality.clone() };
        let emulator = driver.emulator_mut();
        let report = Report {
            at,
            directions: emulator.counters(),
            classes: emulator.classes(),
            functions: emulator.functions(),
            ports: emulator.ports().clone(),
            punctuality,
            kernel_dropped,
            store_full,
            captured: emulator.captured(),
            windows: verdict.windows,
            window_count: verdict.window_count,
            invalid_windows: verdict.invalid_windows,
            slowdown: verdict.slowdown,
            fault: verdict.fault,
            invalid: verdict.invalid,
        };
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }
}

/// Opens the packet socket of each host's devices, where the kernel allows it. All hosts in
/// parallel: each socket waits for an RCU grace period.
fn open_timestamps(hosts: &[HostUp]) -> Vec<[Option<Timestamps>; 2]> {
    let open = |host: &HostUp| {
        let on = |interface, device: &Tun| Timestamps::open(interface, device.queue_packets()).ok();
        let inner = || host.inner.as_ref().and_then(|device| on(INNER, device));
        let both = || Ok::<_, LabError>([on(INTERFACE, &host.device), inner()]);
        host.namespace.run(both).unwrap_or_default()
    };
    thread::scope(|scope| {
        let start = |host| thread::Builder::new().spawn_scoped(scope, move || open(host)).ok();
        let started: Vec<_> = hosts.iter().map(start).collect();
        let join = |started: Option<thread::ScopedJoinHandle<'_, _>>| started?.join().ok();
        started.into_iter().map(|started| join(started).unwrap_or_default()).collect()
    })
}

/// A host that is up and not connected to a link yet.
pub(crate) struct HostUp {
    pub(crate) namespace: Namespace,
    pub(crate) device: Tun,
    /// The device of a gateway to its hosts.
    inner: Option<Tun>,
    kernel: Vec<Interface>,
    diag: Option<Diag>,
}

/// Brings all hosts up in parallel, because each waits for the kernel.
pub(crate) fn hosts_up(hosts: &[Host], config: &Config) -> Result<Vec<HostUp>, LabError> {
    let names = etc_hosts(hosts);
    let up = |number: usize| host_up(Address(number as u32), hosts, &names, config);
    thread::scope(|scope| {
        let start = |number| {
            thread::Builder::new().spawn_scoped(scope, move || up(number)).map_err(spawn_failed)
        };
        let started: Vec<_> = (0..hosts.len()).map(start).collect();
        let made = started.into_iter().map(|host| match host?.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        made.collect()
    })
}

fn spawn_failed(error: std::io::Error) -> LabError {
    LabError::machine("starting a thread", error, "allow more threads (ulimit -u, pids.max)")
}

/// The content of `/etc/hosts` in every host. With several terminals, the host of the first one is
/// also called `island`.
fn etc_hosts(hosts: &[Host]) -> String {
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
        // Without this the kernel sends IPv6 router solicitations over the link. The sysctl is
        // missing where there is no IPv6.
        let _ = sysctl::set("net.ipv6.conf.default.disable_ipv6", "1");
        // A new namespace may inherit the machine's value, and the machine may be a router.
        sysctl::set("net.ipv4.ip_forward", "0").map_err(|error| {
            LabError::machine("disabling IP forwarding on a host", error, "mount /proc")
        })?;
        let own = config.host_settings.get(&host.name).into_iter().flatten();
        for (name, value) in config.settings[host.side as usize].iter().chain(own) {
            sysctl::set(name, value).map_err(|error| {
                let doing = format!("setting {name} to {value:?} on {}", host.name);
                LabError::machine(&doing, error, "remove the setting")
            })?;
        }
        let queue_packets =
            if hosts.len() > MANY_HOSTS { QUEUE_PACKETS_OF_MANY } else { QUEUE_PACKETS };
        let up = |name, prefix| device_up(name, (address, prefix), queue_packets, config);
        let device = up(INTERFACE, addresses::PREFIX)?;
        let mut kernel = vec![open_counters(INTERFACE)?];
        let mut inner = None;
        if host.has_programs {
            netns::mount_private_folder().map_err(|error| {
                let doing = format!("mounting {} on {}", netns::PRIVATE_FOLDER, host.name);
                LabError::machine(&doing, error, "make that folder")
            })?;
        }
        if host.is_gateway {
            inner = Some(up(INNER, u32::BITS as u8)?);
            kernel.push(open_counters(INNER)?);
            set_up_router(host, hosts)
                .map_err(|error| LabError::privileged("setting up routes", error))?;
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
    Ok(Tun::create(tun::Config { name, address, prefix, mtu, super_packets, queue_packets })?)
}

fn open_counters(interface: &str) -> Result<Interface, LabError> {
    Interface::open(interface).map_err(|error| {
        LabError::machine("reading interface counters", error, "use a kernel with rtnetlink")
    })
}

/// Makes the calling thread's namespace a router: through one interface to its own hosts, through
/// the other to all others. Packets to unknown destinations go towards the world.
fn set_up_router(gateway: &Host, hosts: &[Host]) -> std::io::Result<()> {
    sysctl::set("net.ipv4.ip_forward", "1")?;
    // Hosts have a single route, so ICMP redirects would be of no use.
    for which in ["all", "link", "hosts"] {
        sysctl::set(&format!("net.ipv4.conf.{which}.send_redirects"), "0")?;
    }
    let is_own = |host: &Host| !host.is_gateway && host.gateway == gateway.gateway;
    for (number, _) in (0..).zip(hosts).filter(|(_, host)| is_own(host)) {
        route::add(ipv4(Address(number)), u32::BITS, INNER)?;
    }
    let towards_world = if gateway.side == Side::World { INNER } else { INTERFACE };
    route::add(std::net::Ipv4Addr::UNSPECIFIED, 0, towards_world)
}
