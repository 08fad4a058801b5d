//! The maximum throughput of a path: one TCP flow, and small packets.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sim::Side;

use super::{HEADER_BYTES, Path, while_running};
use crate::error::LabError;
use crate::lab::Config;
use bentpipe_sys::clock::Clock;

const PORT: u16 = 9_001;
const ANY: (Ipv4Addr, u16) = (Ipv4Addr::UNSPECIFIED, PORT);
/// A connection reaches its full rate within this time.
const WARM_UP: Duration = Duration::from_millis(500);
/// Packet rates are quoted for IP packets of 64 bytes.
const SMALL_PACKET_BYTES: usize = 64;

/// A lab with a link that is faster than any machine here, so that it is not the bottleneck.
#[must_use]
pub fn unlimited_link(super_packets: bool) -> Config {
    Config { super_packets, ..Config::plain(100_000_000_000, Duration::ZERO) }
}

/// The goodput of one TCP flow over a path, in bit/s, after half a second of warm-up.
///
/// # Errors
/// If the path or a socket fails.
pub fn tcp_bits_per_second(path: &dyn Path, from: Side, time: Duration) -> Result<f64, LabError> {
    let failed = |error| LabError::machine("measuring", error, "try again");
    let to = SocketAddr::from((path.address(from.other()), PORT));
    while_running(path, || {
        let receiver = path.namespace(from.other());
        let listener = receiver.run(|| TcpListener::bind(ANY).map_err(failed))?;
        let connect = || TcpStream::connect(to).map_err(failed);
        let sender = path.namespace(from).run(connect)?;
        let (receiver, _) = listener.accept().map_err(failed)?;
        let received = AtomicU64::new(0);
        thread::scope(|scope| {
            // Both threads end when the connection is shut down below.
            scope.spawn(|| send_zeros(&sender));
            scope.spawn(|| discard(&receiver, &received));
            let rate = rate(time, || received.load(Ordering::Relaxed));
            sender.shutdown(std::net::Shutdown::Both).map_err(failed)?;
            receiver.shutdown(std::net::Shutdown::Both).map_err(failed)?;
            Ok(rate * 8.0)
        })
    })
}

fn send_zeros(mut to: &TcpStream) {
    let zeros = vec![0; 128 << 10];
    while to.write_all(&zeros).is_ok() {}
}

fn discard(mut from: &TcpStream, received: &AtomicU64) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// How many IP packets of 64 bytes per second reach the other side when more are sent. They are
/// counted where the path delivers them, because no program can read so many.
///
/// # Errors
/// If the path or a socket fails.
pub fn small_packets_per_second(
    path: &dyn Path,
    from: Side,
    time: Duration,
) -> Result<f64, LabError> {
    let failed = |error: io::Error| LabError::machine("measuring", error, "try again");
    let to = SocketAddr::from((path.address(from.other()), PORT));
    while_running(path, || {
        // Without a socket the kernel would answer each packet with an ICMP error.
        let _sink = path.namespace(from.other()).run(|| UdpSocket::bind(ANY).map_err(failed))?;
        let source = (Ipv4Addr::UNSPECIFIED, 0);
        let sender = path.namespace(from).run(|| UdpSocket::bind(source).map_err(failed))?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let payload = [0; SMALL_PACKET_BYTES - HEADER_BYTES];
                while !stop.load(Ordering::Relaxed) {
                    // A full kernel queue is not an error here.
                    let _ = sender.send_to(&payload, to);
                }
            });
            let rate = rate(time, || path.delivered(from.other()));
            stop.store(true, Ordering::Relaxed);
            Ok(rate)
        })
    })
}

/// The growth of a count per second, after the warm-up.
#[expect(clippy::cast_precision_loss, reason = "a rate for display")]
fn rate(time: Duration, count: impl Fn() -> u64) -> f64 {
    let clock = Clock::start();
    clock.wait_until(Instant::START + WARM_UP);
    let (start, before) = (clock.now(), count());
    clock.wait_until(start + time);
    let (end, after) = (clock.now(), count());
    (after - before) as f64 / (end - start).as_secs_f64()
}
