//! Datagrams to the socket, in runs of equal size.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::datagrams::{RUN_BYTES_MAX, RUN_DATAGRAMS_MAX, Run, send_runs};

use super::IoCounters;
use crate::tunnel::path::{DatagramEnd, Datagrams};

/// How long the thread waits for room in the socket's buffer, for all datagrams of a round together. Meanwhile the device's
/// queue fills, which is where packets belong that the link does not take; and nothing is received.
const ROOM_TIMEOUT: Duration = Duration::from_millis(100);

pub(super) struct Sender {
    socket_is_v6: bool,
    /// Whether the kernel splits runs; not all devices can.
    has_gso: bool,
    runs: Vec<Run>,
}

impl Sender {
    pub(super) fn new(socket_is_v6: bool) -> Self {
        Self { socket_is_v6, has_gso: true, runs: Vec::new() }
    }

    /// Sends all datagrams; counts those that the kernel does not take.
    pub(super) fn send(
        &mut self,
        socket: &UdpSocket,
        datagrams: &Datagrams,
        io: &mut IoCounters,
    ) -> io::Result<()> {
        self.runs.clear();
        let limit = if self.has_gso { RUN_DATAGRAMS_MAX } else { 1 };
        coalesce(datagrams, limit, &mut self.runs);
        let mut next = 0;
        let mut wait = SendWait::default();
        while next < self.runs.len() {
            io.send_calls += 1;
            match send_runs(socket, self.socket_is_v6, datagrams.bytes(), &self.runs[next..]) {
                Ok(sent) => next += sent.max(1),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !wait.for_room(socket) {
                        io.unsent_datagrams += self.runs[next].datagrams() as u64;
                        next += 1;
                    }
                }
                Err(error) if self.runs[next].datagrams() > 1 && is_gso_error(&error) => {
                    self.has_gso &= error.raw_os_error() != Some(libc::EIO);
                    self.split(next);
                }
                Err(error) if is_network_error(&error) || is_datagram_error(&error) => {
                    io.unsent_datagrams += self.runs[next].datagrams() as u64;
                    next += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes a run of each datagram of a run.
    fn split(&mut self, place: usize) {
        let run = self.runs[place].clone();
        let starts = run.bytes.clone().step_by(run.datagram_bytes);
        let parts = starts.map(|start| {
            let end = run.bytes.end.min(start + run.datagram_bytes);
            Run { bytes: start..end, datagram_bytes: end - start, ..run }
        });
        self.runs.splice(place..=place, parts.collect::<Vec<_>>());
    }
}

/// Coalesces consecutive datagrams of equal size and traffic class to one address, of which the last may be shorter.
fn coalesce(datagrams: &Datagrams, limit: usize, runs: &mut Vec<Run>) {
    let mut start = 0;
    let mut is_closed = true;
    for &DatagramEnd { to, traffic_class, end } in datagrams.ends() {
        let bytes = end - start;
        let last = runs.last_mut().filter(|run| {
            let fits = bytes <= run.datagram_bytes && run.bytes.len() + bytes <= RUN_BYTES_MAX;
            let is_alike = run.to == to && run.traffic_class == traffic_class;
            !is_closed && is_alike && fits && run.datagrams() < limit
        });
        match last {
            Some(run) => {
                run.bytes.end = end;
                is_closed = bytes < run.datagram_bytes;
            }
            None => {
                runs.push(Run { to, bytes: start..end, datagram_bytes: bytes, traffic_class });
                is_closed = false;
            }
        }
        start = end;
    }
}

/// The time for which a round may wait for room in the socket's buffer.
#[derive(Default)]
struct SendWait {
    /// Started by the first wait.
    clock: Option<Clock>,
}

impl SendWait {
    /// Whether there is room, before the time is over.
    fn for_room(&mut self, socket: &UdpSocket) -> bool {
        let waited = self.clock.get_or_insert_with(Clock::start).now();
        let rest_ns = (Instant::START + ROOM_TIMEOUT).saturating_since(waited).as_nanos();
        let timeout = Timespec { tv_sec: 0, tv_nsec: rest_ns.cast_signed() };
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }
}

/// Whether an error tells of a datagram that was sent (ICMP), not of the socket. It is reported once.
pub(super) fn is_network_error(error: &io::Error) -> bool {
    let errors = [
        libc::ECONNREFUSED,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::EMSGSIZE,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::EPROTO,
    ];
    error.raw_os_error().is_some_and(|number| errors.contains(&number))
}

/// Whether the kernel refuses one datagram, and may take the next.
fn is_datagram_error(error: &io::Error) -> bool {
    let errors = [
        libc::EACCES,
        libc::EADDRNOTAVAIL,
        libc::EAFNOSUPPORT,
        libc::EINVAL,
        libc::EIO,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::EPERM,
    ];
    error.raw_os_error().is_some_and(|number| errors.contains(&number))
}

fn is_gso_error(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn coalesced(datagrams: &[(u16, usize)], limit: usize) -> Vec<(u16, usize, usize)> {
        let mut all = Datagrams::default();
        for &(port, bytes) in datagrams {
            all.push(address(port), 0, &vec![0; bytes]);
        }
        let mut runs = Vec::new();
        coalesce(&all, limit, &mut runs);
        assert_eq!(runs.first().map_or(0, |run| run.bytes.start), 0);
        assert!(runs.windows(2).all(|pair| pair[0].bytes.end == pair[1].bytes.start));
        runs.iter().map(|run| (run.to.port(), run.bytes.len(), run.datagrams())).collect()
    }

    #[test]
    fn a_shorter_datagram_ends_a_run() {
        let datagrams = [(1, 100), (1, 100), (1, 50), (1, 50), (1, 60), (2, 60), (2, 60)];
        assert_eq!(coalesced(&datagrams, 64), [(1, 250, 3), (1, 50, 1), (1, 60, 1), (2, 120, 2)]);
        assert_eq!(coalesced(&datagrams, 1).len(), datagrams.len());
        assert_eq!(coalesced(&[], 64), []);
    }

    /// Given datagrams of equal size, expect those of each traffic class that follow each other to be a run.
    #[test]
    fn another_traffic_class_ends_a_run() {
        let mut all = Datagrams::default();
        for class in [2, 2, 0, 2, 2, 2, 0xb8, 0xba] {
            all.push(address(1), class, &[0; 100]);
        }
        let mut runs = Vec::new();
        coalesce(&all, 64, &mut runs);
        let runs: Vec<_> = runs.iter().map(|run| (run.traffic_class, run.datagrams())).collect();
        assert_eq!(runs, [(2, 2), (0, 1), (2, 3), (0xb8, 1), (0xba, 1)]);
    }

    #[test]
    fn a_run_is_bounded() {
        assert_eq!(coalesced(&[(1, 10); 130], 64), [(1, 640, 64), (1, 640, 64), (1, 20, 2)]);
        let large = coalesced(&[(1, 1_500); 50], 64);
        assert_eq!(large, [(1, 43 * 1_500, 43), (1, 7 * 1_500, 7)]);
    }

    /// Given a run that the kernel cannot send, expect each datagram that fits to be sent alone.
    #[test]
    fn a_run_that_cannot_be_split_by_the_kernel_is_sent_by_the_datagram() {
        let [sender, receiver] = [0, 1].map(|_| UdpSocket::bind(address(0)).expect("a port"));
        let to = receiver.local_addr().expect("it is bound");
        let mut wire = Sender::new(false);
        let mut datagrams = Datagrams::default();
        // Loopback has an MTU of 65,536, so a segment of 40,000 bytes is one that fits.
        (0..5).for_each(|number| datagrams.push(to, 0, &[number; 100]));
        let mut io = IoCounters::default();
        wire.send(&sender, &datagrams, &mut io).expect("a socket");
        assert_eq!((io.send_calls, io.unsent_datagrams), (1, 0));
        wire.runs = vec![Run { to, bytes: 0..250, datagram_bytes: 100, traffic_class: 7 }];
        wire.split(0);
        let sizes: Vec<_> = wire.runs.iter().map(|run| run.bytes.clone()).collect();
        assert_eq!(sizes, [0..100, 100..200, 200..250]);
        assert!(wire.runs.iter().all(|run| run.traffic_class == 7));
    }
}
