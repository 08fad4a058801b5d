//! The clients of channels on one host.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem::MaybeUninit;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use bentpipe_sim::workload::{Download, Downloads, ServiceTimes};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{RecvFlags, connect, recv};

use serde::Serialize;

use super::{ChannelReport, ChannelSettings, NewestSizes, Planned, Poll, now_ns};
use crate::addresses::ipv4;
use crate::error::LabError;

/// One connection, as observed by the client. Times are in ns on the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// When the client opened it.
    pub start_ns: u64,
    /// When the handshake was complete.
    pub established_ns: Option<u64>,
    /// When the first byte arrived.
    pub first_byte_ns: Option<u64>,
    /// When the last byte arrived.
    pub finished_ns: Option<u64>,
    /// The size of the download.
    pub bytes: u64,
    /// The server's host in the plan.
    pub host: Option<u32>,
}

/// Connections of a client that failed, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failures {
    /// Refused or reset by the peer.
    pub reset: u64,
    /// The kernel gave up.
    pub timed_out: u64,
    /// Closed by the server before the end of the download.
    pub truncated: u64,
    /// Other errors, for example that no port was free.
    pub other: u64,
}

impl Failures {
    fn add(&mut self, error: Errno) {
        match error {
            Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE => self.reset += 1,
            Errno::TIMEDOUT | Errno::HOSTUNREACH => self.timed_out += 1,
            _ => self.other += 1,
        }
    }
}

/// A client's number among all channels, and its report.
pub(super) type Report = (usize, ChannelReport);

/// How much is read at once.
const PIECE_BYTES: usize = 256 * 1024;

/// The client of one channel.
struct Channel {
    number: usize,
    settings: ChannelSettings,
    addresses: Vec<SocketAddrV4>,
    hosts: Vec<u32>,
    downloads: Downloads,
    service: ServiceTimes,
    /// The number of connections; `None` for no limit.
    limit: Option<u64>,
    socket: Option<OwnedFd>,
    /// Bytes of the newest connection that arrived.
    arrived: u64,
    report: ChannelReport,
}

/// See the module documentation.
pub(super) struct Client {
    poll: Poll,
    channels: Vec<Channel>,
    newest: NewestSizes,
    /// When channels open their next connections.
    starts: BinaryHeap<Reverse<(u64, usize)>>,
    piece: Vec<u8>,
}

impl Client {
    pub(super) fn new<'a>(
        planned: impl Iterator<Item = (usize, &'a Planned<'a>)>,
        seed: u64,
        newest: NewestSizes,
        stop: &Arc<OwnedFd>,
    ) -> rustix::io::Result<Self> {
        let channel = |(number, planned): (usize, &Planned<'_>)| Channel {
            number,
            addresses: planned
                .servers
                .iter()
                .map(|&host| SocketAddrV4::new(ipv4(host), planned.settings.port))
                .collect(),
            settings: planned.settings.clone(),
            hosts: planned.plan.servers.clone(),
            downloads: planned.downloads.clone(),
            service: ServiceTimes::of_client(
                planned.plan.client_jitter_ns,
                seed,
                &planned.flow.name,
            ),
            limit: planned.plan.connections,
            socket: None,
            arrived: 0,
            report: ChannelReport::default(),
        };
        let channels = planned.map(channel).collect();
        let (starts, piece) = (BinaryHeap::new(), Vec::with_capacity(PIECE_BYTES));
        Ok(Self { poll: Poll::new(stop)?, channels, newest, starts, piece })
    }

    /// Runs the clients until the end, after the start of the run has been received. The calling
    /// thread must be in the network namespace of the host.
    pub(super) fn run(mut self, begun: &Receiver<u64>) -> Result<Vec<Report>, LabError> {
        if let Ok(origin_ns) = begun.recv() {
            for (index, channel) in self.channels.iter().enumerate() {
                self.starts.push(Reverse((origin_ns + channel.settings.start_ns, index)));
            }
            self.serve_until_stopped().map_err(|error| {
                LabError::machine("running the clients of channels", error, "see dmesg")
            })?;
        }
        Ok(self.channels.into_iter().map(|each| (each.number, each.report)).collect())
    }

    fn serve_until_stopped(&mut self) -> rustix::io::Result<()> {
        loop {
            let due_ns = self.starts.peek().map(|Reverse((at_ns, _))| *at_ns);
            let Some(events) = self.poll.wait(due_ns)? else { return Ok(()) };
            for (token, flags) in events {
                self.on_event(token as usize, flags);
            }
            while let Some(&Reverse((at_ns, index))) = self.starts.peek()
                && at_ns <= now_ns()
            {
                self.starts.pop();
                self.open(index);
            }
        }
    }

    fn open(&mut self, index: usize) {
        let channel = &mut self.channels[index];
        let Some(Download { server, bytes }) = channel.downloads.next() else { return };
        // Before the server can accept.
        self.newest[channel.number].store(bytes, Ordering::Release);
        channel.arrived = 0;
        channel.report.connections.push(Connection {
            start_ns: now_ns(),
            bytes,
            host: channel.hosts.get(server as usize).copied(),
            ..Connection::default()
        });
        let opened = channel.settings.socket().and_then(|socket| {
            match connect(&socket, &channel.addresses[server as usize]) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                Err(error) => return Err(error),
            }
            self.poll.add(&socket, index as u64, EventFlags::OUT)?;
            Ok(socket)
        });
        match opened {
            Ok(socket) => channel.socket = Some(socket),
            Err(error) => self.fail(index, error),
        }
    }

    fn on_event(&mut self, index: usize, flags: EventFlags) {
        let Self { channels, poll, piece, .. } = self;
        let channel = &mut channels[index];
        let Some(socket) = &channel.socket else { return };
        let Some(connection) = channel.report.connections.last_mut() else { return };
        if connection.established_ns.is_none() {
            if let Err(error) | Ok(Err(error)) = socket_error(socket) {
                self.fail(index, error);
                return;
            }
            connection.established_ns = Some(now_ns());
            if let Err(error) = poll.modify(socket, index as u64, EventFlags::IN) {
                self.fail(index, error);
                return;
            }
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        match read_all(socket, piece) {
            Ok((bytes, is_at_end)) => {
                if bytes > 0 {
                    let now_ns = now_ns();
                    connection.first_byte_ns.get_or_insert(now_ns);
                    channel.arrived += bytes;
                    channel.report.received_bytes += bytes;
                    if channel.arrived >= connection.bytes {
                        connection.finished_ns.get_or_insert(now_ns);
                    }
                }
                if is_at_end {
                    channel.report.failures.truncated +=
                        u64::from(connection.finished_ns.is_none());
                    self.end(index);
                }
            }
            Err(error) => self.fail(index, error),
        }
    }

    fn fail(&mut self, index: usize, error: Errno) {
        self.channels[index].report.failures.add(error);
        self.end(index);
    }

    /// Closes the connection, and plans the next one.
    fn end(&mut self, index: usize) {
        let channel = &mut self.channels[index];
        channel.socket = None;
        let opened = channel.report.connections.len() as u64;
        let wait = channel.service.draw();
        if channel.limit.is_none_or(|limit| opened < limit) {
            self.starts.push(Reverse((now_ns() + wait.as_nanos(), index)));
        }
    }
}

/// Reads all that has arrived: its size, and whether the peer has closed.
fn read_all(socket: &OwnedFd, piece: &mut Vec<u8>) -> rustix::io::Result<(u64, bool)> {
    let mut bytes = 0;
    loop {
        let spare: &mut [MaybeUninit<u8>] = piece.spare_capacity_mut();
        match recv(socket, spare, RecvFlags::empty()) {
            Ok((_, 0)) => return Ok((bytes, true)),
            Ok((_, read)) => bytes += read as u64,
            Err(Errno::AGAIN) => return Ok((bytes, false)),
            Err(Errno::INTR) => {}
            // Data that arrived before an error count; the next call returns the error again or the
            // end.
            Err(error) if bytes == 0 => return Err(error),
            Err(_) => return Ok((bytes, false)),
        }
    }
}
