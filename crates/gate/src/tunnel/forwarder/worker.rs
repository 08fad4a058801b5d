//! The thread.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use bentpipe_core::packet::Ecn;
use bentpipe_core::time::Instant;
use bentpipe_sys::clock::{Clock, unix_nanos};
use bentpipe_sys::datagrams::{ReceiveBatch, enable_gro, enable_traffic_class};
use bentpipe_sys::offload::{self, Offload, Segmenter};

use super::device::Device;
use super::wire::{Sender, is_network_error};
use super::{IoCounters, Shared, State};
use crate::tunnel::path::{HEADROOM, Path};

/// The messages that are received in a round: each has up to 64 datagrams.
const MESSAGES: usize = 8;
/// A round reads no more of the device after so many bytes: a burst of a TCP connection, but not so much that datagrams
/// have to wait for long.
const ROUND_BYTES: usize = 256 * 1_024;

pub(super) struct Worker {
    device: Device,
    socket: UdpSocket,
    wakeup: Arc<OwnedFd>,
    shared: Arc<Shared>,
    clock: Clock,
    batch: ReceiveBatch,
    sender: Sender,
    super_packet: Vec<u8>,
    segment: Vec<u8>,
}

impl Worker {
    pub(super) fn new(
        tun: OwnedFd,
        socket: UdpSocket,
        wakeup: Arc<OwnedFd>,
        shared: Arc<Shared>,
        clock: Clock,
    ) -> io::Result<Self> {
        // Without it every datagram is received alone.
        let _ = enable_gro(&socket);
        // Packets are sent as ECN-capable, so no mark may be missed.
        enable_traffic_class(&socket)?;
        Ok(Self {
            device: Device::new(tun)?,
            sender: Sender::new(socket.local_addr()?.is_ipv6()),
            socket,
            wakeup,
            shared,
            clock,
            batch: ReceiveBatch::new(MESSAGES),
            super_packet: vec![0; offload::BYTES + offload::PACKET_BYTES_MAX],
            segment: vec![0; HEADROOM + offload::PACKET_BYTES_MAX],
        })
    }

    pub(super) fn run(mut self) {
        let failure = loop {
            match self.round() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => break error,
            }
        };
        self.shared.for_thread().failure = Some(failure);
    }

    /// Reads and sends what there is, or waits. False if the thread is to end.
    fn round(&mut self) -> io::Result<bool> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.for_thread();
        let State { path, io, is_stopping, .. } = &mut *state;
        if *is_stopping {
            return Ok(false);
        }
        let from_hosts = self.read_device(path, io)?;
        let from_peers = self.read_socket(path)?;
        let now = self.clock.now();
        let is_due = path.next_wake().is_some_and(|at| at <= now);
        if is_due {
            path.wake(now, unix_nanos());
        } else if from_hosts || from_peers {
            path.flush(now);
        }
        let next_wake = path.next_wake();
        if is_due || from_hosts || from_peers {
            io.rounds += 1;
            self.sender.send(&self.socket, path.datagrams(), io)?;
            self.device.write(path.packets(), io);
            path.clear();
        }
        drop(state);
        if !from_hosts && !from_peers {
            self.wait(next_wake)?;
        }
        Ok(true)
    }

    /// Whether there was a packet.
    fn read_device(&mut self, path: &mut Path, io: &mut IoCounters) -> io::Result<bool> {
        let mut bytes = 0;
        while bytes < ROUND_BYTES {
            let Some(read) = self.device.read(&mut self.super_packet)? else { break };
            bytes += read.max(1);
            let now = self.clock.now();
            let Some((header, packet)) = self.super_packet[..read].split_first_chunk() else {
                io.unsegmented_packets += 1;
                continue;
            };
            let Some(mut segments) = Segmenter::new(Offload::parse(header), packet) else {
                io.unsegmented_packets += 1;
                continue;
            };
            while let Some(length) = segments.write_next(&mut self.segment[HEADROOM..]) {
                // The buffer has room for any packet.
                path.on_packet(now, &mut self.segment[..HEADROOM + length]);
            }
        }
        Ok(bytes > 0)
    }

    /// Whether there was a datagram.
    fn read_socket(&mut self, path: &mut Path) -> io::Result<bool> {
        let messages = match self.batch.receive(&self.socket) {
            Ok(messages) => messages,
            // An ICMP error for a datagram that was sent; the network may recover.
            Err(error) if is_network_error(&error) => return Ok(true),
            Err(error) => return Err(error),
        };
        let now = self.clock.now();
        for message in self.batch.messages() {
            let ecn = Ecn::of_traffic_class(message.traffic_class);
            for datagram in message.bytes.chunks_mut(message.datagram_bytes) {
                path.on_datagram(now, datagram, (message.from, ecn));
            }
        }
        Ok(messages > 0)
    }

    /// Waits for something to read, for a change by the owner, or until `next_wake`.
    fn wait(&mut self, next_wake: Option<Instant>) -> io::Result<()> {
        let timeout = next_wake.map(|at| {
            let nanos = at.saturating_since(self.clock.now()).as_nanos();
            Timespec {
                tv_sec: (nanos / 1_000_000_000).cast_signed(),
                tv_nsec: (nanos % 1_000_000_000).cast_signed(),
            }
        });
        let mut fds = [
            PollFd::from_borrowed_fd(self.device.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.wakeup.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[2].revents().is_empty() {
            let _ = rustix::io::read(&self.wakeup, &mut [0; 8]);
        }
        Ok(())
    }
}
