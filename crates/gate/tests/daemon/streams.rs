//! Random streams through a daemon, with peers that reset and that are killed.
//!
//! `BENTPIPE_STRESS` times as many connections, each with a stream in both directions; by hand, 20 times. A failure prints the
//! seed, which `BENTPIPE_STRESS_SEED` replays.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bentpipe_core::rng::Rng;
use bentpipe_gate::daemon::Report;
use rustix::net::sockopt::set_socket_linger;

use crate::router::{Host, SERVERS, TIMEOUT};
use crate::setup::{Setup, is_possible, pep};

/// Connections at a time.
const CONCURRENT: usize = 8;
/// Streams of up to 50 MB are part of long tests only.
const LONG: usize = 100;
const PEER: &str = "BENTPIPE_STRESS_PEER";

/// The number of random cases, and their seed.
pub(crate) fn stress(default: usize) -> (usize, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let count = default * number("BENTPIPE_STRESS").unwrap_or(1) as usize;
    let seed = number("BENTPIPE_STRESS_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("{count} cases, BENTPIPE_STRESS_SEED={seed}");
    (count, seed)
}

/// The bytes of a stream.
#[derive(Clone)]
pub(crate) struct Data {
    rng: Rng,
    rest: Vec<u8>,
}

impl Data {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: Rng::stream(seed, "data"), rest: Vec::new() }
    }

    /// The next bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        while self.rest.len() < bytes {
            self.rest.extend(self.rng.next_u64().to_le_bytes());
        }
        self.rest.drain(..bytes).collect()
    }
}

/// What one end does.
#[derive(Clone, Copy, Debug)]
struct Script {
    seed: u64,
    bytes: usize,
    /// Whether it sends only when it has read everything.
    reads_first: bool,
    /// Between reads.
    pause: Duration,
    /// Whether it resets the connection when it has sent everything, and reads nothing.
    resets: bool,
}

impl Script {
    fn draw(rng: &mut Rng, is_long: bool) -> Self {
        let bound = match rng.below(100) {
            0..5 => 1,
            5..45 => 2_000,
            45..80 => 200_000,
            80..98 => 3_000_000,
            _ if is_long => 50_000_000,
            _ => 3_000_000,
        };
        Self {
            seed: rng.next_u64(),
            bytes: rng.below(bound) as usize,
            reads_first: false,
            pause: Duration::from_micros([0, 0, 0, 200][rng.below(4) as usize]),
            resets: rng.below(20) == 0,
        }
    }

    fn send(&self, mut stream: &TcpStream) -> io::Result<()> {
        let (mut data, mut left) = (Data::new(self.seed), self.bytes);
        while left > 0 {
            let piece = data.take(left.min(50_000));
            left -= piece.len();
            stream.write_all(&piece)?;
        }
        if !self.resets {
            stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }

    /// Reads to the end. Every byte must be that of the other end's stream. `progress` counts the reads of both ends: an
    /// end that sends only when it has read everything has nothing for the other one until then.
    fn receive(
        &self,
        mut stream: &TcpStream,
        other: &Self,
        progress: &AtomicU64,
    ) -> io::Result<usize> {
        let (mut data, mut found, mut piece) = (Data::new(other.seed), 0, vec![0; 30_000]);
        let reads = || progress.load(Ordering::Relaxed);
        loop {
            let before = reads();
            let read = match stream.read(&mut piece) {
                Ok(0) => return Ok(found),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock && reads() > before => continue,
                Err(error) => return Err(error),
            };
            progress.fetch_add(1, Ordering::Relaxed);
            assert!(
                piece[..read] == data.take(read)[..],
                "after {found} bytes: {self:?} {other:?}"
            );
            found += read;
            assert!(found <= other.bytes, "{self:?} {other:?}");
            if !self.pause.is_zero() {
                thread::sleep(self.pause);
            }
        }
    }

    /// Plays one end of a connection.
    fn play(self, stream: TcpStream, other: &Self, progress: &AtomicU64) {
        if self.resets {
            let _ = self.send(&stream);
            set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket");
            return;
        }
        let (sent, received) = if self.reads_first {
            let received = self.receive(&stream, other, progress);
            (self.send(&stream), received)
        } else {
            thread::scope(|scope| {
                let sender = scope.spawn(|| self.send(&stream));
                let received = self.receive(&stream, other, progress);
                (sender.join().expect("no panic"), received)
            })
        };
        match received {
            // The kernel reports a reset once, to the sender or to the receiver.
            Ok(found) if other.resets => assert!(sent.is_err(), "a FIN after {found}: {other:?}"),
            Ok(found) => assert_eq!(found, other.bytes, "a FIN too early: {other:?}"),
            Err(error) => {
                assert!(other.resets, "{error}: {self:?} {other:?}");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{other:?}");
            }
        }
    }
}

/// Two ends that do not wait for each other, and of which one at most resets.
fn draw_pair(rng: &mut Rng, is_long: bool) -> [Script; 2] {
    let mut pair: [Script; 2] = std::array::from_fn(|_| Script::draw(rng, is_long));
    let reads_first = rng.below(6) as usize;
    if let Some(script) = pair.get_mut(reads_first) {
        script.reads_first = true;
    }
    pair[1].resets &= !pair[0].resets;
    pair
}

/// Given random streams in both directions, slow readers, ends that send only after the FIN of the other, and ends that
/// reset, expect every byte to be the same, a FIN only after the last one, and a reset for a reset. Between them,
/// clients are killed: expect a part of their streams from the beginning.
#[test]
fn random_streams_arrive() {
    if !is_possible() {
        return;
    }
    let (count, seed) = stress(60);
    let setup = Setup::with("streams", |plan| pep(plan).link.tcp.not_sent_bytes = None);
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..CONCURRENT {
            let (setup, next) = (&setup, &next);
            scope.spawn(move || {
                // Connections of this thread only: so it knows to which client a server belongs.
                let port = 1_000 + thread as u16;
                let open = |address: &str| {
                    let address = SocketAddr::new(address.parse().expect("an address"), port);
                    setup.router.on(Host::Server, || TcpListener::bind(address).expect("a port"))
                };
                let listeners = SERVERS.map(open);
                while let number = next.fetch_add(1, Ordering::Relaxed)
                    && number < count as u64
                {
                    let mut rng = Rng::stream(seed, &number.to_string());
                    let listener = &listeners[rng.below(2) as usize];
                    if rng.below(20) == 0 {
                        kill_a_client(setup, listener, rng.next_u64());
                    } else {
                        let scripts = draw_pair(&mut rng, count >= LONG);
                        run(setup, listener, scripts, number);
                    }
                }
            });
        }
    });
    let all = |state: &Report| state.split_connections + state.unsplit_connections >= count as u64;
    let state = setup.state(|state| all(state) && state.open_connections == 0);
    let relayed = state.to_server_bytes + state.to_client_bytes;
    eprintln!(
        "{} connections, {relayed} bytes, {} resets, {} unsplit",
        state.split_connections, state.reset_connections, state.unsplit_connections
    );
}

fn run(setup: &Setup, listener: &TcpListener, [client, server]: [Script; 2], number: u64) {
    let address = listener.local_addr().expect("it is bound");
    let near = setup.connect(&address.ip().to_string(), address.port());
    let near = near.unwrap_or_else(|error| panic!("{number}: {error}"));
    let (far, _) = listener.accept().expect("the client connects");
    far.set_read_timeout(Some(TIMEOUT)).expect("not zero");
    far.set_write_timeout(Some(TIMEOUT)).expect("not zero");
    let progress = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| client.play(near, &server, &progress));
        scope.spawn(|| server.play(far, &client, &progress));
    });
}

/// A client in a process of its own, which is killed while it sends.
fn kill_a_client(setup: &Setup, listener: &TcpListener, seed: u64) {
    let address = listener.local_addr().expect("it is bound");
    let program = std::env::current_exe().expect("this program");
    let start = || {
        Command::new(program)
            .args(["--exact", "streams::peer_that_is_killed", "--ignored"])
            .env(PEER, format!("{address} {seed}"))
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts")
    };
    let mut process = setup.router.on(Host::Client, start);
    let (mut server, _) = listener.accept().expect("the client connects");
    server.set_read_timeout(Some(TIMEOUT)).expect("not zero");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_micros(seed % 30_000));
            process.kill().expect("it runs");
            process.wait().expect("it ends");
        });
        let (mut data, mut piece) = (Data::new(seed), vec![0; 30_000]);
        loop {
            match server.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => assert!(piece[..read] == data.take(read)[..], "seed {seed}"),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
    });
}

/// The process of [`kill_a_client`].
#[test]
#[ignore = "needs an address to connect to: random_streams_arrive starts it with one, also in make test"]
fn peer_that_is_killed() {
    let Ok(told) = std::env::var(PEER) else { return };
    let (address, seed) = told.split_once(' ').expect("an address and a seed");
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let mut data = Data::new(seed.parse().expect("a number"));
    while stream.write_all(&data.take(50_000)).is_ok() {}
}
