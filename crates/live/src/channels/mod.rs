//! Channels in real time: clients that open one connection after another to servers on the hosts of
//! a lab, on kernel sockets.
//!
//! One thread serves all servers, and one thread on each host with clients runs its clients, both
//! with epoll(7). They are threads of the lab's process, because only it can open sockets in the
//! network namespaces of all hosts, and a socket stays in the namespace in which it was opened.
//!
//! Sizes, servers and service times are the simulator's, from the same random streams. A client sends
//! no request, so the server must know the size otherwise: a channel has its own port on every server,
//! and its newest connection's size is in memory that both threads share.
//!
//! Times are on the machine's monotonic clock.

mod client;
mod server;

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use bentpipe_core::packet::Address;
use bentpipe_sim::plan::{DownloadChannel, Flow, Plan, Workload};
use bentpipe_sim::workload::{Downloads, SizeTable};
use bentpipe_sys::netns::Namespace;
use bentpipe_sys::tcp_sockets;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::net::sockopt::{set_ip_tos, set_tcp_congestion};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::lab::Lab;
pub use client::{Connection, Failures};
pub use server::SenderTotals;

/// The settings of one channel that are not in its plan.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelSettings {
    /// The flow's index in the plan.
    pub flow: usize,
    /// The port of its servers.
    pub port: u16,
    /// When it starts, in ns after the start of the run.
    pub start_ns: u64,
    /// The host of the client.
    pub client: String,
    /// The hosts of the servers.
    pub servers: Vec<String>,
    /// The traffic class of its packets.
    pub traffic_class: u8,
    /// The maximum segment size, if it is not that of the link.
    pub mss_bytes: Option<u32>,
    /// The congestion control of the servers, by the kernel's name.
    pub congestion_control: String,
}

impl ChannelSettings {
    /// Opens a socket in the calling thread's network namespace.
    fn socket(&self) -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        if self.traffic_class > 0 {
            set_ip_tos(&socket, self.traffic_class)?;
        }
        if let Some(mss) = self.mss_bytes {
            let failed = |error: io::Error| {
                rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::INVAL)
            };
            tcp_sockets::set_max_segment(&socket, mss).map_err(failed)?;
        }
        set_tcp_congestion(&socket, &self.congestion_control)?;
        Ok(socket)
    }
}

/// What a channel did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChannelReport {
    /// The flow's index in the plan.
    pub flow: usize,
    /// The connections that its client started, in order.
    pub connections: Vec<Connection>,
    /// Connections that failed.
    pub failures: Failures,
    /// Bytes that its client received.
    pub received_bytes: u64,
    /// What its servers sent.
    pub sent: SenderTotals,
}

/// A channel of the plan with its draws.
struct Planned<'a> {
    settings: ChannelSettings,
    /// The hosts of the client and of the servers.
    client: Address,
    servers: Vec<Address>,
    plan: &'a DownloadChannel,
    flow: &'a Flow,
    downloads: Downloads,
}

/// The sizes of the channels' newest connections.
type NewestSizes = Arc<[AtomicU64]>;

/// Running channels. They end when this value is dropped.
pub struct Channels {
    /// Ends both kinds of threads.
    stop: Arc<OwnedFd>,
    begin: Vec<Sender<u64>>,
    clients: Vec<JoinHandle<Result<Vec<client::Report>, LabError>>>,
    server: Option<JoinHandle<io::Result<Vec<SenderTotals>>>>,
    flows: Vec<usize>,
}

impl Channels {
    /// Opens the servers of all channels of a plan and starts the threads. The clients wait for
    /// [`Channels::begin`].
    ///
    /// # Errors
    /// If there are not enough file descriptors, a port is in use, or no thread can be started.
    ///
    /// # Panics
    /// If the settings are not those of channels of the plan, or name other hosts than the lab's.
    pub fn start(
        lab: &Lab,
        plan: &Plan,
        seed: u64,
        all: Vec<ChannelSettings>,
    ) -> Result<Self, LabError> {
        raise_descriptor_limit(&all)?;
        let flows: Vec<_> = all.iter().map(|settings| settings.flow).collect();
        let planned = all.into_iter().map(|each| planned(lab, plan, seed, each));
        let planned = planned.collect::<Vec<_>>();
        let newest: NewestSizes = planned.iter().map(|_| AtomicU64::new(0)).collect();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(set_up_failed)?);
        let listeners = server::listen(lab, &planned)?;
        let server = server::Server::new(listeners, &planned, seed, newest.clone(), &stop)
            .map_err(set_up_failed)?;
        let thread = || thread::Builder::new().name("bentpipe-channels".to_owned());
        let server = thread().spawn(move || server.run()).map_err(thread_failed)?;
        let mut channels =
            Self { stop, begin: Vec::new(), clients: Vec::new(), server: Some(server), flows };
        let mut by_host = BTreeMap::<u32, Vec<usize>>::new();
        for (number, each) in planned.iter().enumerate() {
            by_host.entry(each.client.0).or_default().push(number);
        }
        for (host, numbers) in by_host {
            let of_host = numbers.iter().map(|&number| (number, &planned[number]));
            let client = client::Client::new(of_host, seed, newest.clone(), &channels.stop)
                .map_err(set_up_failed)?;
            let (begin, begun) = channel();
            let namespace: Arc<Namespace> = Arc::clone(lab.namespace(Address(host)));
            let run = move || namespace.run(move || client.run(&begun));
            channels.begin.push(begin);
            channels.clients.push(thread().spawn(run).map_err(thread_failed)?);
        }
        Ok(channels)
    }

    /// Starts the clients of a run that started at this time of the monotonic clock, in ns.
    pub fn begin(&self, origin_ns: u64) {
        // A thread that has failed says so at the end.
        for begin in &self.begin {
            let _ = begin.send(origin_ns);
        }
    }

    /// Ends all channels, and returns what they did. The link should have stopped.
    ///
    /// # Errors
    /// If a thread failed.
    pub fn finish(mut self) -> Result<Vec<ChannelReport>, LabError> {
        self.end();
        let mut reports: Vec<_> =
            self.flows.iter().map(|&flow| ChannelReport { flow, ..Default::default() }).collect();
        for client in self.clients.drain(..) {
            for (number, report) in joined(client)? {
                let ChannelReport { flow, sent, .. } = reports[number];
                reports[number] = ChannelReport { flow, sent, ..report };
            }
        }
        if let Some(server) = self.server.take() {
            let sent = joined(server).map_err(|error| {
                LabError::machine("serving channels", error, "see dmesg, or use fewer channels")
            })?;
            reports.iter_mut().zip(sent).for_each(|(report, sent)| report.sent = sent);
        }
        Ok(reports)
    }

    fn end(&mut self) {
        self.begin.clear();
        // The value is not read, so that it wakes every thread.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        self.end();
    }
}

fn joined<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn planned<'a>(lab: &Lab, plan: &'a Plan, seed: u64, settings: ChannelSettings) -> Planned<'a> {
    let host = |name: &String| lab.address_of(name).expect("a host of the lab");
    let flow = &plan.flows[settings.flow];
    let Workload::Channel(channel) = &flow.workload else { panic!("the flow is a channel") };
    let sizes = SizeTable::new(&channel.sizes);
    let servers = channel.servers.len() as u32;
    let downloads = Downloads::new(sizes, servers, seed, &flow.name);
    let (client, servers) = (host(&settings.client), settings.servers.iter().map(host).collect());
    Planned { settings, client, servers, plan: channel, flow, downloads }
}

fn set_up_failed(error: rustix::io::Errno) -> LabError {
    LabError::machine("opening sockets of channels", error, "allow more file descriptors")
}

fn thread_failed(error: io::Error) -> LabError {
    LabError::machine("starting a thread", error, "allow more threads (ulimit -u, pids.max)")
}

/// Descriptors of the process beside those of channels: those of the lab and of programs.
const OTHER_DESCRIPTORS: u64 = 1_024;

/// A channel has a listener at each server, and at each end a connection and one that closes.
fn raise_descriptor_limit(channels: &[ChannelSettings]) -> Result<(), LabError> {
    let needed = channels.iter().map(|each| each.servers.len() as u64 + 4).sum::<u64>();
    let needed = needed + OTHER_DESCRIPTORS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = maximum.map(|maximum| maximum.max(needed));
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).map_err(|error| {
        let doing = format!("allowing {needed} file descriptors for channels");
        LabError::machine(&doing, error, "raise the hard limit (ulimit -Hn)")
    })
}

/// The monotonic clock, in ns.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The token of the descriptor that ends a thread.
const STOP: u64 = u64::MAX;
const EVENTS: usize = 256;

/// An epoll(7) instance that also waits for the end.
struct Poll {
    epoll: OwnedFd,
    /// Kept open for `epoll`.
    _stop: Arc<OwnedFd>,
}

impl Poll {
    fn new(stop: &Arc<OwnedFd>) -> rustix::io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &**stop, EventData::new_u64(STOP), EventFlags::IN)?;
        Ok(Self { epoll, _stop: Arc::clone(stop) })
    }

    fn add(&self, socket: &OwnedFd, token: u64, flags: EventFlags) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(token), flags)
    }

    fn modify(&self, socket: &OwnedFd, token: u64, flags: EventFlags) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(token), flags)
    }

    /// The next events, or none at `due_ns`; `None` at the end.
    fn wait(&self, due_ns: Option<u64>) -> rustix::io::Result<Option<Vec<(u64, EventFlags)>>> {
        let timeout = due_ns.map(|due_ns| {
            let left_ns = due_ns.saturating_sub(now_ns());
            let tv_sec = (left_ns / 1_000_000_000).cast_signed();
            Timespec { tv_sec, tv_nsec: (left_ns % 1_000_000_000).cast_signed() }
        });
        let mut buffer = [MaybeUninit::<Event>::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => &*events,
            Err(rustix::io::Errno::INTR) => &[],
            Err(error) => return Err(error),
        };
        let found: Vec<_> = events.iter().map(|event| (event.data.u64(), event.flags)).collect();
        Ok((!found.iter().any(|event| event.0 == STOP)).then_some(found))
    }
}

/// An address of all interfaces.
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
