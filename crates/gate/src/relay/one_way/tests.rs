//! A direction between real sockets, in which every order of readiness may occur.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use bentpipe_core::rng::Rng;
use bentpipe_core::time::Duration;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::tcp_sockets::{set_max_segment, set_not_sent_low_water};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData};
use rustix::net::sockopt;

use super::*;
use crate::relay::{EVENTS_OF_LEGS, prepare_leg};

/// RFC 9293, section 3.8.6.1: a closed window is probed after one RTO, 200 ms here, and then after twice as much.
/// Nothing is lost on the loopback interface, so that no wait is longer than some of these.
const LIMIT: Duration = Duration::from_secs(5);
const SOURCE: u64 = 0;
const DESTINATION: u64 = 1;

/// A direction with its peers.
struct Model {
    near: TcpStream,
    from: OwnedFd,
    to: OwnedFd,
    far: TcpStream,
    epoll: OwnedFd,
    one_way: OneWay,
    pipes: Pipes,
    sent: Vec<u8>,
    /// The number of bytes that arrived; all were those that were sent.
    found: usize,
    clock: Clock,
}

/// A connection with small buffers and segments: the peer's end, and the leg.
fn connection(rng: &mut Rng) -> (TcpStream, OwnedFd) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut bytes = || [4_096, 16_384, 131_072][rng.below(3) as usize];
    sockopt::set_socket_recv_buffer_size(&listener, bytes()).expect("a socket");
    sockopt::set_socket_send_buffer_size(&listener, bytes()).expect("a socket");
    set_max_segment(&listener, 500).expect("a socket");
    let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (leg, _) = listener.accept().expect("the peer connects");
    sockopt::set_socket_recv_buffer_size(&peer, bytes()).expect("a socket");
    for socket in [&peer, &leg] {
        socket.set_nonblocking(true).expect("a socket");
    }
    (peer, leg.into())
}

impl Model {
    fn new(rng: &mut Rng) -> Self {
        let ((near, from), (far, to)) = (connection(rng), connection(rng));
        for leg in [&from, &to] {
            prepare_leg(leg).expect("a socket");
        }
        if rng.below(2) == 0 {
            set_not_sent_low_water(&to, 2_048).expect("a socket");
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("an instance");
        for (leg, token) in [(&from, SOURCE), (&to, DESTINATION)] {
            let token = EventData::new_u64(token);
            epoll::add(&epoll, leg, token, EVENTS_OF_LEGS).expect("a socket");
        }
        let bytes = [1, 4_096, 262_144][rng.below(3) as usize];
        let pipes = Pipes::new(rng.below(3) as usize, bytes);
        let (one_way, clock) = (OneWay::default(), Clock::start());
        Self { near, from, to, far, epoll, one_way, pipes, sent: Vec::new(), found: 0, clock }
    }

    /// Waits for events for so many milliseconds, and has one turn if there was one.
    fn serve(&mut self, milliseconds: i64) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
        let mut buffer = [std::mem::MaybeUninit::<Event>::uninit(); 2];
        let (events, _) =
            epoll::wait(&self.epoll, &mut buffer, Some(&timeout)).expect("an instance");
        for Event { data, flags } in events.iter().copied() {
            match data.u64() {
                SOURCE => self.one_way.source_ready(flags),
                _ => self.one_way.destination_ready(flags),
            }
        }
        let turn = self.one_way.turn(self.from.as_fd(), self.to.as_fd(), &mut self.pipes);
        assert!(!turn.expect("no reset").is_unfinished, "a turn is longer than all that is sent");
    }

    fn write(&mut self, rng: &mut Rng) {
        let bytes: Vec<u8> = (0..rng.below(20_000)).map(|_| rng.next_u64() as u8).collect();
        let written = if rng.below(8) == 0 {
            let urgent = send(&self.near, b"!", SendFlags::OOB | SendFlags::NOSIGNAL);
            urgent.map_or(&[][..], |_| &b"!"[..])
        } else {
            &bytes[..self.near.write(&bytes).unwrap_or(0)]
        };
        self.sent.extend_from_slice(written);
    }

    /// Reads once. Returns whether it was the end.
    fn read(&mut self, bytes: usize) -> bool {
        let mut piece = vec![0; bytes];
        match self.far.read(&mut piece) {
            Ok(read) => {
                assert!(piece[..read] == self.sent[self.found..][..read], "at {}", self.found);
                self.found += read;
                read == 0
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    }

    /// Reads and serves until a condition holds.
    fn until(&mut self, condition: impl Fn(&Self, bool) -> bool) {
        let until = self.clock.now() + LIMIT;
        loop {
            let is_end = self.read(65_536);
            if condition(self, is_end) {
                return;
            }
            assert!(
                self.clock.now() < until,
                "{} of {} bytes, {:?}",
                self.found,
                self.sent.len(),
                self.one_way
            );
            self.serve(1);
        }
    }
}

/// Given random writes, reads and turns with small buffers and pipes, expect every byte that was written to arrive once
/// the reader takes them all, whatever was done before, and then the end.
#[test]
fn a_direction_never_waits_for_what_it_has() {
    for seed in 0..60 {
        let mut rng = Rng::stream(seed, "direction");
        let mut model = Model::new(&mut rng);
        for _ in 0..4 {
            for _ in 0..rng.below(20) {
                match rng.below(3) {
                    0 => model.write(&mut rng),
                    1 => drop(model.read(1 + rng.below(30_000) as usize)),
                    _ => model.serve(0),
                }
            }
            model.until(|model, _| model.found == model.sent.len());
        }
        model.near.shutdown(Shutdown::Write).expect("it is open");
        model.until(|_, is_end| is_end);
        assert_eq!(model.found, model.sent.len());
    }
}
