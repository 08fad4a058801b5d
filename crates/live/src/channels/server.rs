//! The servers of all channels.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bentpipe_core::packet::Address;
use bentpipe_sim::workload::ServiceTimes;
use bentpipe_sys::tcp_sockets;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{
    RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, bind, listen as listen_on, recv,
    send, shutdown,
};
use serde::Serialize;

use super::{ANY, NewestSizes, Planned, Poll, now_ns};
use crate::error::LabError;
use crate::lab::Lab;

/// What the servers of a channel sent, over all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SenderTotals {
    /// Connections that were accepted.
    pub connections: u64,
    /// Bytes written.
    pub sent_bytes: u64,
    /// Bytes acknowledged.
    pub acked_bytes: u64,
    /// Retransmitted segments.
    pub retransmitted_segments: u64,
    /// Retransmission timeouts; `None` if the kernel does not report them.
    pub timeouts: Option<u64>,
    /// The minimum round-trip time, in microseconds.
    pub rtt_min_us: Option<u32>,
    /// The sum of the smoothed round-trip times at the ends of connections, in microseconds.
    pub rtt_sum_us: u64,
}

/// The kernel's value before the first sample (linux/tcp.h).
const UNKNOWN_RTT_US: u32 = u32::MAX;

/// The tokens of listeners are above those of connections.
const LISTENERS: u64 = 1 << 62;
/// Connections that wait to be accepted; a channel has one at a time.
const BACKLOG: i32 = 16;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// A listener of a channel on one of its hosts.
pub(super) struct Listener {
    socket: OwnedFd,
    channel: usize,
}

/// Opens the listeners of all channels on their hosts.
pub(super) fn listen(lab: &Lab, planned: &[Planned<'_>]) -> Result<Vec<Listener>, LabError> {
    let mut listeners = Vec::new();
    for host in (0..lab.hosts().len() as u32).map(Address) {
        let here = planned.iter().enumerate().filter(|(_, each)| each.servers.contains(&host));
        let here: Vec<_> = here.map(|(channel, each)| (channel, &each.settings)).collect();
        if here.is_empty() {
            continue;
        }
        let open = || {
            here.iter()
                .map(|&(channel, settings)| {
                    let opened = settings.socket().and_then(|socket| {
                        set_socket_reuseaddr(&socket, true)?;
                        bind(&socket, &SocketAddrV4::new(ANY, settings.port))?;
                        listen_on(&socket, BACKLOG)?;
                        Ok(Listener { socket, channel })
                    });
                    opened.map_err(|error| {
                        let doing = format!("listening on port {} for a channel", settings.port);
                        LabError::machine(&doing, error, "use fewer channels")
                    })
                })
                .collect::<Result<Vec<_>, _>>()
        };
        listeners.extend(lab.namespace(host).run(open)?);
    }
    Ok(listeners)
}

/// A connection that was accepted.
struct Connection {
    socket: OwnedFd,
    channel: usize,
    /// Bytes to be written.
    left: u64,
    size: u64,
    /// Whether it waits for room in the send buffer.
    is_blocked: bool,
}

struct Channel {
    service: ServiceTimes,
    totals: SenderTotals,
}

/// See the module documentation.
pub(super) struct Server {
    poll: Poll,
    listeners: Vec<Listener>,
    channels: Vec<Channel>,
    newest: NewestSizes,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// When the first bytes of connections are due.
    due: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Server {
    pub(super) fn new(
        listeners: Vec<Listener>,
        planned: &[Planned<'_>],
        seed: u64,
        newest: NewestSizes,
        stop: &Arc<OwnedFd>,
    ) -> rustix::io::Result<Self> {
        let poll = Poll::new(stop)?;
        for (token, listener) in (LISTENERS..).zip(&listeners) {
            poll.add(&listener.socket, token, EventFlags::IN)?;
        }
        let channel = |each: &Planned<'_>| Channel {
            service: ServiceTimes::of_server(each.plan.server_jitter_ns, seed, &each.flow.name),
            totals: SenderTotals::default(),
        };
        Ok(Self {
            poll,
            listeners,
            channels: planned.iter().map(channel).collect(),
            newest,
            connections: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
        })
    }

    /// Serves until the end, and returns the totals of each channel.
    pub(super) fn run(mut self) -> io::Result<Vec<SenderTotals>> {
        loop {
            let due_ns = self.due.peek().map(|Reverse((at_ns, _))| *at_ns);
            let Some(events) = self.poll.wait(due_ns)? else { break };
            let mut accepts = Vec::new();
            for (token, flags) in events {
                if token >= LISTENERS {
                    accepts.push((token - LISTENERS) as usize);
                } else {
                    self.on_event(token as usize, flags);
                }
            }
            while let Some(&Reverse((at_ns, number))) = self.due.peek()
                && at_ns <= now_ns()
            {
                self.due.pop();
                self.write(number);
            }
            // Last, since a number that was freed in this round may still have an event in it.
            accepts.into_iter().for_each(|listener| self.accept(listener));
        }
        (0..self.connections.len()).for_each(|number| self.close(number));
        Ok(self.channels.into_iter().map(|channel| channel.totals).collect())
    }

    fn accept(&mut self, listener: usize) {
        let Listener { socket, channel } = &self.listeners[listener];
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // A client that reset the connection before it was accepted counts it.
        let Ok(accepted) = accept_with(socket, flags) else { return };
        let number = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let channel = *channel;
        let of_channel = &mut self.channels[channel];
        of_channel.totals.connections += 1;
        let size = self.newest[channel].load(Ordering::Acquire);
        if self.poll.add(&accepted, number as u64, EventFlags::empty()).is_err() {
            self.free.push(number);
            return;
        }
        self.due.push(Reverse((now_ns() + of_channel.service.draw().as_nanos(), number)));
        let connection =
            Connection { socket: accepted, channel, left: size, size, is_blocked: false };
        self.connections[number] = Some(connection);
    }

    fn on_event(&mut self, number: usize, flags: EventFlags) {
        let Some(connection) = &mut self.connections[number] else { return };
        if flags.contains(EventFlags::ERR) {
            self.close(number);
        } else if connection.is_blocked {
            self.write(number);
        } else if connection.left == 0 {
            // The client sends nothing: it has closed, or it has reset the connection.
            let mut byte = [0; 1];
            if !matches!(recv(&connection.socket, &mut byte, RecvFlags::empty()), Err(Errno::AGAIN))
            {
                self.close(number);
            }
        }
    }

    /// Writes what the send buffer has room for, and closes the sending direction behind the end.
    fn write(&mut self, number: usize) {
        let Self { connections, channels, poll, .. } = self;
        let Some(connection) = &mut connections[number] else { return };
        let totals = &mut channels[connection.channel].totals;
        while connection.left > 0 {
            let piece = &ZEROS[..connection.left.min(ZEROS.len() as u64) as usize];
            match send(&connection.socket, piece, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    connection.left -= sent as u64;
                    totals.sent_bytes += sent as u64;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return self.close(number),
            }
        }
        connection.is_blocked = connection.left > 0;
        let flags = if connection.is_blocked { EventFlags::OUT } else { EventFlags::IN };
        let mut done = poll.modify(&connection.socket, number as u64, flags);
        if !connection.is_blocked {
            done = done.and_then(|()| shutdown(&connection.socket, Shutdown::Write));
        }
        if done.is_err() {
            self.close(number);
        }
    }

    fn close(&mut self, number: usize) {
        let Some(connection) = self.connections[number].take() else { return };
        self.free.push(number);
        self.due.retain(|Reverse((_, due))| *due != number);
        let totals = &mut self.channels[connection.channel].totals;
        let Ok(info) = tcp_sockets::info(&connection.socket) else { return };
        // The kernel also counts the SYN and the FIN.
        let written = connection.size - connection.left;
        totals.acked_bytes += info.bytes_acked.saturating_sub(1).min(written);
        totals.retransmitted_segments += u64::from(info.total_retrans);
        if let Some(timeouts) = info.total_rto {
            *totals.timeouts.get_or_insert(0) += u64::from(timeouts);
        }
        totals.rtt_sum_us += u64::from(info.rtt_us);
        if info.min_rtt_us < UNKNOWN_RTT_US {
            let min = totals.rtt_min_us.map_or(info.min_rtt_us, |min| min.min(info.min_rtt_us));
            totals.rtt_min_us = Some(min);
        }
    }
}
