//! Measurements of this machine: the accuracy of a lab whose hosts timestamp what they send and
//! receive, and the throughput of a lab compared with a copy loop.

mod delay;
mod forwarder;
mod throughput;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;

use bentpipe_core::header_bytes;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_sim::Side;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::netns::Namespace;
use bentpipe_sys::sockets;
use rustix::time::{ClockId, clock_gettime};

use crate::addresses::ipv4;
use crate::error::LabError;
use crate::lab::Lab;

pub use delay::{DelayErrors, OfferedLoad, delay_errors, delay_errors_of};
pub use forwarder::Forwarder;
pub use throughput::{small_packets_per_second, tcp_bits_per_second, unlimited_link};

/// Two sides and a forwarder of packets between them.
pub trait Path: Sync {
    /// The namespace of a side.
    fn namespace(&self, side: Side) -> &Arc<Namespace>;
    /// Moves packets in the calling thread until [`Path::stop`].
    ///
    /// # Errors
    /// If a device fails.
    fn run(&self) -> Result<(), LabError>;
    /// Ends [`Path::run`], from any thread.
    fn stop(&self);
    /// The packets delivered to a side, at most a tenth of a second ago.
    fn delivered(&self, side: Side) -> u64;
    /// The address of a side as seen from the other one.
    fn address(&self, side: Side) -> Ipv4Addr {
        ipv4(side)
    }
    /// The CPU time, user and system, spent on moving packets so far. Called by the thread that
    /// runs the path.
    fn cpu_time(&self) -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::from_nanos(
            time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs(),
        )
    }
    /// Why the path considers the run invalid, if it does.
    fn invalid(&self) -> Option<String> {
        None
    }
}

impl Path for Lab {
    fn namespace(&self, side: Side) -> &Arc<Namespace> {
        Lab::namespace(self, side)
    }

    fn run(&self) -> Result<(), LabError> {
        Lab::run(self)
    }

    fn stop(&self) {
        Lab::stop(self);
    }

    fn delivered(&self, side: Side) -> u64 {
        let report = self.report();
        // Each hop has a forward and a return direction: the last forward one ends on the island,
        // the first return one in the world.
        let last = match side {
            Side::World => report.directions.get(1),
            Side::Island => report.directions.iter().rev().nth(1),
        };
        last.map_or(0, |(_, counters)| counters.delivered.packets)
    }

    fn invalid(&self) -> Option<String> {
        self.report().invalid
    }
}

const PORT: u16 = 9_000;
/// What a datagram adds to its payload.
const HEADER_BYTES: usize = header_bytes::DATAGRAM as usize;
/// How long the last packets may take after they were sent.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);
/// Packets that arrive while the receiver waits for a processor must fit.
const RECEIVE_BUFFER_BYTES: i32 = 64 << 20;

/// A packet as its two hosts saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its sequence number.
    pub sequence: u64,
    /// The time just before the send call.
    pub sent: Instant,
    /// The receiving kernel's timestamp (`SO_TIMESTAMPNS`, socket(7)).
    pub received: Instant,
    /// Whether the send call returned at once. If not, the time at which the link got the packet is
    /// unknown.
    pub sent_at_once: bool,
}

/// A stream of datagrams of one size at equal intervals.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// The sending side.
    pub from: Side,
    /// The packet size at the IP layer.
    pub packet_bytes: usize,
    /// The time between packets.
    pub interval: Duration,
    /// The number of packets.
    pub packets: u64,
}

/// Sends a stream over a running path, and returns the received packets in order of arrival.
///
/// # Errors
/// If a socket fails.
///
/// # Panics
/// If packets are too short for a sequence number and a time.
pub fn measure(path: &dyn Path, stream: Stream, clock: Clock) -> Result<Vec<Sample>, LabError> {
    assert!(stream.packet_bytes >= HEADER_BYTES + 16, "a packet must hold two numbers");
    let failed = |error| LabError::machine("measuring", error, "try again");
    let bind = |side: Side, port| {
        let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        path.namespace(side).run(|| UdpSocket::bind(local).map_err(failed))
    };
    let receiver = bind(stream.from.other(), PORT)?;
    prepare(&receiver).map_err(failed)?;
    let sender = bind(stream.from, 0)?;
    sender.connect((path.address(stream.from.other()), PORT)).map_err(failed)?;
    thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, stream, clock));
        let slow = send(&sender, stream, clock).map_err(failed)?;
        let mut samples = receiving.join().expect("it does not panic").map_err(failed)?;
        for packet in &mut samples {
            packet.sent_at_once = slow.binary_search(&packet.sequence).is_err();
        }
        Ok(samples)
    })
}

/// The longest send call of a packet that counts: beyond it the packet was delayed between its send
/// time and the link.
const SEND_TIME_MAX: Duration = Duration::from_micros(100);

/// Returns the sequence numbers of packets with too long a send call, in order.
fn send(socket: &UdpSocket, stream: Stream, clock: Clock) -> io::Result<Vec<u64>> {
    let mut packet = vec![0; stream.packet_bytes - HEADER_BYTES];
    let mut slow = Vec::new();
    let mut next = clock.now() + Duration::from_millis(10);
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    for sequence in 0..stream.packets {
        clock.wait_until(next);
        packet[..8].copy_from_slice(&sequence.to_le_bytes());
        let now = clock.now();
        packet[8..16].copy_from_slice(&now.as_nanos().to_le_bytes());
        socket.send(&packet)?;
        if clock.now().saturating_since(now) > SEND_TIME_MAX {
            slow.push(sequence);
        }
        next += stream.interval;
    }
    Ok(slow)
}

/// Streams with shorter intervals are received in batches: timestamps are the kernel's, and waking
/// the receiver for each packet would cost the path CPU time.
const BATCH_BELOW: Duration = Duration::from_micros(20);
const BATCH: Duration = Duration::from_millis(1);

fn receive(socket: &UdpSocket, stream: Stream, clock: Clock) -> io::Result<Vec<Sample>> {
    let mut samples = Vec::with_capacity(stream.packets as usize);
    let mut pause_at = Instant::START;
    // The read timeout covers the delay of the first packet; the others follow at once.
    while (samples.len() as u64) < stream.packets {
        match receive_one(socket, clock) {
            Ok(packet) => {
                samples.push(packet);
                // Packets that arrived before the last pause were waiting.
                if stream.interval < BATCH_BELOW && packet.received > pause_at {
                    thread::sleep(std::time::Duration::from_nanos(BATCH.as_nanos()));
                    pause_at = clock.now();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(samples)
}

/// Enables kernel timestamps, a large receive buffer and a read timeout.
fn prepare(socket: &UdpSocket) -> io::Result<()> {
    socket.set_read_timeout(Some(TIMEOUT))?;
    sockets::set_receive_buffer(socket, RECEIVE_BUFFER_BYTES)?;
    sockets::enable_timestamps(socket)
}

fn receive_one(socket: &UdpSocket, clock: Clock) -> io::Result<Sample> {
    let mut head = [0; 16];
    let (_, seconds, nanos) = sockets::recv_timestamped(socket, &mut head)?;
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    Ok(Sample {
        sequence: number(&head[..8]),
        sent: Instant::from_nanos(number(&head[8..])),
        received: clock.from_real_time(seconds, nanos),
        sent_at_once: true,
    })
}

/// The difference of each packet's arrival from the link's model: packets of one size, in order,
/// over hops of a rate and a delay, without loss. The model is Lindley's recursion on the send
/// times, independent of the emulator. Negative is early. Packets delayed before the link are left
/// out.
#[must_use]
pub fn errors_ns(samples: &[Sample], frame_bits: u64, hops: &[(u64, Duration)]) -> Vec<i64> {
    let mut free_at = vec![0_u64; hops.len()];
    let expected = |packet: &Sample| {
        let mut at = packet.sent.as_nanos();
        for (&(rate_bps, delay), free_at) in hops.iter().zip(&mut free_at) {
            let time = frame_bits * 1_000_000_000 / rate_bps;
            *free_at = at.max(*free_at) + time;
            at = *free_at + delay.as_nanos();
        }
        at
    };
    let expected: Vec<_> = samples.iter().map(expected).collect();
    let errors = samples.iter().zip(expected).filter(|(packet, _)| packet.sent_at_once);
    errors.map(|(packet, at)| packet.received.as_nanos().cast_signed() - at.cast_signed()).collect()
}

/// Runs a path in a thread during `body`.
///
/// # Errors
/// The error of the path, or of `body`.
pub fn while_running<T>(
    path: &dyn Path,
    body: impl FnOnce() -> Result<T, LabError>,
) -> Result<T, LabError> {
    with_cpu_time(path, body).map(|(result, _)| result)
}

/// Like [`while_running`], and returns the CPU time spent on moving packets.
fn with_cpu_time<T>(
    path: &dyn Path,
    body: impl FnOnce() -> Result<T, LabError>,
) -> Result<(T, Duration), LabError> {
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            let before = path.cpu_time();
            path.run().map(|()| path.cpu_time().saturating_sub(before))
        });
        let result = body();
        path.stop();
        let cpu_time = running.join().expect("it does not panic")?;
        Ok((result?, cpu_time))
    })
}
