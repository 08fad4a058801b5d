//! What this machine can do: a lab whose hosts stamp what they send and what they get, and how much a
//! lab carries beside a loop that only copies.

mod bare;
mod ceiling;
mod delay;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sim::{Plan, Side};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::netns::Namespace;
use bentpipe_sys::sockets;
use rustix::time::{ClockId, clock_gettime};

use crate::addresses::ipv4;
use crate::error::LabError;
use crate::lab::Lab;

pub use bare::Bare;
pub use ceiling::{small_packets_per_second, tcp_bits_per_second, wide};
pub use delay::{DelayErrors, Load, delay_errors, delay_errors_of};

/// Two sides with something between them that moves packets.
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
    /// How many packets have reached a side, a tenth of a second ago at most.
    fn delivered(&self, side: Side) -> u64;
    /// The address at which a side is reached from the other one.
    fn address(&self, side: Side) -> Ipv4Addr {
        ipv4(side)
    }
    /// The CPU time, user and system, that moving packets has taken so far. It is asked for by the
    /// thread that runs the path.
    fn cpu_time(&self) -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::from_nanos(
            time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs(),
        )
    }
    /// Why the path itself says that the run is invalid, if it does.
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
        // Forward and return of each hop: the last forward ends on the island, the first return in
        // the world.
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
/// IPv4 and UDP headers without options.
pub const HEADER_BYTES: usize = 28;
/// How long the last packets may take after they were sent.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);
/// A datagram that has not come within the sender's last and this is lost.
const RECEIVE_BUFFER_BYTES: i32 = 64 << 20;

/// A packet on its way, as its two hosts saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its place in the sender's sequence.
    pub sequence: u64,
    /// Just before the sender gave it to its kernel.
    pub sent: Instant,
    /// When the receiver's kernel had it (`SO_TIMESTAMPNS`, socket(7)).
    pub received: Instant,
    /// Whether the sender's kernel took it at once. If not, nobody knows when the link saw it.
    pub is_certain: bool,
}

/// What is sent: datagrams of one size at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// The side that sends.
    pub from: Side,
    /// Their size at the IP layer.
    pub packet_bytes: usize,
    /// From one to the next.
    pub interval: Duration,
    /// How many.
    pub packets: u64,
}

/// Sends a stream over a path, which must be running, and returns what came of it, in the order in
/// which it arrived.
///
/// # Errors
/// If a socket fails.
///
/// # Panics
/// If packets have no room for a sequence number and a time.
pub fn measure(path: &dyn Path, stream: Stream, clock: Clock) -> Result<Vec<Seen>, LabError> {
    assert!(stream.packet_bytes >= HEADER_BYTES + 16, "a packet holds two numbers");
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
        let mut seen = receiving.join().expect("it does not panic").map_err(failed)?;
        for packet in &mut seen {
            packet.is_certain = slow.binary_search(&packet.sequence).is_err();
        }
        Ok(seen)
    })
}

/// A packet that took longer to send was held up between its stamp and the link.
const SEND_TIME_MAX: Duration = Duration::from_micros(100);

/// Returns the numbers of the packets that took too long to send, in order.
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

/// Streams with less between packets are received in batches: the stamps are the kernel's, and waking
/// the receiver for each packet would be charged to the path.
const BATCH_BELOW: Duration = Duration::from_micros(20);
const BATCH: Duration = Duration::from_millis(1);

fn receive(socket: &UdpSocket, stream: Stream, clock: Clock) -> io::Result<Vec<Seen>> {
    let mut seen = Vec::with_capacity(stream.packets as usize);
    let mut pause_at = Instant::START;
    // The first may be on its way for long; after it the next is near.
    while (seen.len() as u64) < stream.packets {
        match receive_one(socket, clock) {
            Ok(packet) => {
                seen.push(packet);
                // What came before the last pause was waiting.
                if stream.interval < BATCH_BELOW && packet.received > pause_at {
                    thread::sleep(std::time::Duration::from_nanos(BATCH.as_nanos()));
                    pause_at = clock.now();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(seen)
}

/// Stamps by the kernel, room for what comes while this process waits for a processor, and an end.
fn prepare(socket: &UdpSocket) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    sockets::set_receive_buffer(socket, RECEIVE_BUFFER_BYTES)?;
    sockets::stamp_received(socket)
}

fn receive_one(socket: &UdpSocket, clock: Clock) -> io::Result<Seen> {
    let mut head = [0; 16];
    let (_, seconds, nanos) = sockets::receive_stamped(socket, &mut head)?;
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    Ok(Seen {
        sequence: number(&head[..8]),
        sent: Instant::from_nanos(number(&head[8..])),
        received: clock.at_real_time(seconds, nanos),
        is_certain: true,
    })
}

/// How much later each packet came than the link's model says: those of one size that come in order
/// over a link of `rate_bps` and `delay` without loss. The model is Lindley's recursion on when they
/// were sent, and knows nothing of the emulator. Negative is early. Packets that were held up before
/// the link are left out.
#[must_use]
pub fn errors_ns(seen: &[Seen], frame_bits: u64, hops: &[(u64, Duration)]) -> Vec<i64> {
    let mut free_at = vec![0_u64; hops.len()];
    let expected = |packet: &Seen| {
        let mut at = packet.sent.as_nanos();
        for (&(rate_bps, delay), free_at) in hops.iter().zip(&mut free_at) {
            let time = frame_bits * 1_000_000_000 / rate_bps;
            *free_at = at.max(*free_at) + time;
            at = *free_at + delay.as_nanos();
        }
        at
    };
    let expected: Vec<_> = seen.iter().map(expected).collect();
    let errors = seen.iter().zip(expected).filter(|(packet, _)| packet.is_certain);
    errors.map(|(packet, at)| packet.received.as_nanos().cast_signed() - at.cast_signed()).collect()
}

/// Moves packets in a thread while `body` does something.
///
/// # Errors
/// That of the path, or of `body`.
pub fn while_running<T>(
    path: &dyn Path,
    body: impl FnOnce() -> Result<T, LabError>,
) -> Result<T, LabError> {
    with_cpu_time(path, body).map(|(result, _)| result)
}

/// As [`while_running`]; the CPU time that moving the packets took comes with the result.
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

/// A link of the same rate and delay both ways, without a limit to its queue. A plan has traffic,
/// which has no part in a lab.
///
/// # Panics
/// If a plan may not hold these numbers.
#[must_use]
pub fn plain_link(rate_bps: u64, delay: Duration, bit_error_rate: f64) -> Plan {
    let channel = if bit_error_rate == 0.0 {
        r#"{"kind":"clear"}"#.to_owned()
    } else {
        format!(r#"{{"kind":"bit_errors","bit_error_rate":{bit_error_rate}}}"#)
    };
    let direction = format!(
        r#""rate_bps":{{"kind":"constant","value":{rate_bps}}},
            "delay_ns":{{"kind":"constant","value":{}}},
            "framing":{{"header_bytes":0,"min_bytes":0,"cells":null,"expansion":[1,1],
                        "inter_frame_bytes":0}},
            "queue":{{"discipline":"drop_tail","limit":{{"unit":"unlimited"}}}},
            "channel":{channel}"#,
        delay.as_nanos()
    );
    let nothing_more = r#""delay_ns":0,"channel":{"kind":"clear"}"#;
    let text = format!(
        r#"{{"format_version":3,"stop_ns":1000000000,"sample_interval_ns":null,
            "packet_events":false,"hosts":[],
            "gateways":[{{"name":"hub","functions":[]}},{{"name":"terminal","functions":[]}}],
            "directions":[
                {{"name":"forward","from":0,"to":[{{"gateway":1,{nothing_more}}}],{direction}}},
                {{"name":"return","from":1,"to":[{{"gateway":0,{nothing_more}}}],{direction}}}],
            "flows":[{{"name":"none","terminal":0,"direction":"forward","start_ns":0,"priority":0,
                       "workload":{{"kind":"constant_rate","rate_bps":8000,"payload_bytes":1000,
                                    "duration_ns":1000000000}}}}]}}"#
    );
    Plan::parse(&text).expect("a plan")
}
