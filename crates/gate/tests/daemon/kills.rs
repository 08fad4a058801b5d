//! A daemon that is killed at random moments, under traffic.
//!
//! `BENTPIPE_STRESS` times as many kills; by hand, 50 times.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bentpipe_core::rng::Rng;
use bentpipe_core::time::Instant;
use bentpipe_sys::clock::Clock;
use rustix::process::Signal;

use crate::router::{Host, SERVERS, TIMEOUT};
use crate::setup::{PROGRAM, Setup, is_possible, pep};
use crate::streams::{Data, stress};

const TRAFFIC_PORT: u16 = 90;
/// Its first bytes: the seed of its data, their number, and that of the answer.
const HEADER_BYTES: usize = 24;
const BYTES_MAX: u64 = 2_000_000;
/// The time within which a new connection must pass.
const PASSES: Instant = Instant::from_millis(3_000);

/// What became of the streams.
#[derive(Default)]
struct Outcomes {
    whole: AtomicU64,
    reset: AtomicU64,
    /// Streams that ended with a FIN before their last byte.
    truncated: AtomicU64,
}

impl Outcomes {
    /// Reads a stream to its end.
    fn receive(&self, stream: &mut impl Read, mut data: Data, bytes: u64) {
        let (mut found, mut piece) = (0, vec![0; 30_000]);
        loop {
            match stream.read(&mut piece) {
                Ok(0) => return self.ended(found, bytes),
                Ok(read) => {
                    assert!(piece[..read] == data.take(read)[..], "after {found} of {bytes}");
                    found += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return count(&self.reset),
            }
        }
    }

    fn ended(&self, found: u64, bytes: u64) {
        if found != bytes {
            eprintln!("a FIN after {found} of {bytes} bytes");
        }
        count(if found == bytes { &self.whole } else { &self.truncated });
    }
}

/// Sets a flag when it is dropped.
pub(crate) struct Ended<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Sends a stream, and receives the answer.
fn client(setup: &Setup, rng: &mut Rng, outcomes: &Outcomes) -> io::Result<()> {
    let [seed, bytes, answer] = [rng.next_u64(), rng.below(BYTES_MAX), rng.below(BYTES_MAX)];
    let mut stream = setup.connect(SERVERS[0], TRAFFIC_PORT)?;
    stream.write_all(&[seed, bytes, answer].map(u64::to_le_bytes).concat())?;
    stream.write_all(&Data::new(seed).take(bytes as usize))?;
    stream.shutdown(Shutdown::Write)?;
    outcomes.receive(&mut stream, Data::new(!seed), answer);
    Ok(())
}

fn server(mut stream: &TcpStream, outcomes: &Outcomes) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut header = [0; HEADER_BYTES];
    let mut found = 0;
    while found < HEADER_BYTES {
        match stream.read(&mut header[found..])? {
            0 => {
                outcomes.ended(found as u64, HEADER_BYTES as u64);
                return Ok(());
            }
            read => found += read,
        }
    }
    let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at * 8 + byte]));
    let (seed, bytes, answer) = (field(0), field(1), field(2));
    outcomes.receive(&mut stream, Data::new(seed), bytes);
    stream.write_all(&Data::new(!seed).take(answer as usize))?;
    stream.shutdown(Shutdown::Write)
}

/// Given the privileged part or a worker of a daemon, with one or three workers, killed at a random moment under traffic,
/// expect a new connection to pass within 3 s, no FIN on a truncated stream, another worker in place of one that was
/// killed, and no rule left after they were removed.
#[test]
fn a_gateway_that_is_killed_breaks_nothing_else() {
    if !is_possible() {
        return;
    }
    let (kills, seed) = stress(2);
    let mut setup = Setup::new("kills");
    let probed = setup.listen(SERVERS[0]);
    let address = SocketAddr::new(SERVERS[0].parse().expect("an address"), TRAFFIC_PORT);
    let bind = || TcpListener::bind(address).expect("a free port");
    let listener = setup.router.on(Host::Server, bind);
    listener.set_nonblocking(true).expect("a listener");
    let outcomes = Outcomes::default();
    let mut rng = Rng::stream(seed, "kills");
    let mut longest = Instant::START;
    for number in 0..kills {
        let [is_over, is_unserved] = [false; 2].map(AtomicBool::new);
        let (taken, kills_worker) = thread::scope(|scope| {
            // Ends the threads if a check fails, too.
            let _ended = [Ended(&is_over), Ended(&is_unserved)];
            let clients: Vec<_> = (0..3)
                .map(|thread| {
                    let (setup, outcomes, is_over) = (&setup, &outcomes, &is_over);
                    scope.spawn(move || {
                        let mut rng = Rng::stream(seed, &format!("{number} {thread}"));
                        while !is_over.load(Ordering::Relaxed) {
                            let _ = client(setup, &mut rng, outcomes);
                        }
                    })
                })
                .collect();
            scope.spawn(|| serve(&listener, &outcomes, &is_unserved));
            thread::sleep(Duration::from_micros(rng.below(700_000)));
            let kills_worker = rng.below(2) == 0;
            let workers = setup.workers();
            let worker = workers[rng.below(workers.len() as u64) as usize];
            let killed = if kills_worker { worker } else { setup.daemon.id() };
            setup.signal(killed, Signal::KILL);
            let clock = Clock::start();
            setup.passes(&probed);
            let taken = clock.now();
            is_over.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().expect("no panic");
            }
            (taken, kills_worker)
        });
        assert!(taken <= PASSES, "{number}: {taken}, the worker was killed: {kills_worker}");
        longest = longest.max(taken);
        if kills_worker {
            setup.workers_state(|workers| workers.is_splitting && workers.failures == 1);
            setup.signal(setup.daemon.id(), Signal::TERM);
        }
        setup.daemon.wait().expect("it ends");
        assert!(setup.remove().status.success());
        setup.expect_nothing_left();
        pep(&mut setup.plan).workers = [1, 3][rng.below(2) as usize];
        setup.daemon = setup.router.start(PROGRAM, &setup.plan);
    }
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let Outcomes { whole, reset, truncated } = &outcomes;
    eprintln!(
        "{kills} kills: a new connection passed after {longest} at most; {} streams whole, {} reset",
        read(whole),
        read(reset)
    );
    assert_eq!(read(truncated), 0);
    assert!(read(whole) > 0);
}

/// Answers all clients.
fn serve(listener: &TcpListener, outcomes: &Outcomes, is_unserved: &AtomicBool) {
    thread::scope(|scope| {
        while !is_unserved.load(Ordering::Relaxed) {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            stream.set_nonblocking(false).expect("a socket");
            stream.set_write_timeout(Some(TIMEOUT)).expect("not zero");
            scope.spawn(move || {
                // A reset is counted by the end that reads.
                let _ = server(&stream, outcomes);
            });
        }
    });
}
