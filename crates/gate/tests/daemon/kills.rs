//! A daemon with a fault at a random moment, under traffic.
//!
//! `BENTPIPE_STRESS=100` for so many of each fault.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use rustix::process::Signal;

use crate::router::{Host, SERVERS, TIMEOUT};
use crate::setup::{PROGRAM, Setup, is_possible, pep};
use crate::streams::{Data, stress};

const TRAFFIC_PORT: u16 = 90;
/// Its first bytes: the seed of its data, their number, and that of the answer.
const HEADER_BYTES: usize = 24;
const BYTES_MAX: u64 = 2_000_000;
/// The time in which new connections are opened: longer than rules hold them for nobody, and than SYNs are repeated.
const WATCHED: Instant = Instant::from_millis(4_000);

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

/// What happens to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The privileged part is killed.
    DaemonKilled,
    /// A worker is killed.
    WorkerKilled,
    /// The privileged part does not run for a while.
    DaemonStopped,
    /// A worker hangs.
    WorkerStopped,
    /// Another program deletes all rules of the firewall.
    RulesFlushed,
}

impl Fault {
    const ALL: [Self; 5] = [
        Self::DaemonKilled,
        Self::WorkerKilled,
        Self::DaemonStopped,
        Self::WorkerStopped,
        Self::RulesFlushed,
    ];

    fn happen(self, setup: &Setup, worker: u32) {
        match self {
            Self::DaemonKilled => setup.signal(setup.daemon.id(), Signal::KILL),
            Self::WorkerKilled => setup.signal(worker, Signal::KILL),
            Self::DaemonStopped => setup.signal(setup.daemon.id(), Signal::STOP),
            Self::WorkerStopped => setup.signal(worker, Signal::STOP),
            Self::RulesFlushed => {
                setup.router.gateway("nft flush ruleset");
            }
        }
    }

    /// The time within which a new connection must pass. Where nothing but the end of a lease lets it pass, its SYN is
    /// repeated after 1 s, too early, and after 3 s (RFC 6298).
    fn passes_within(self) -> Duration {
        Duration::from_millis(if self.is_silent() { 4_000 } else { 3_000 })
    }

    /// Whether the end of a lease alone shows it.
    fn is_silent(self) -> bool {
        matches!(self, Self::DaemonStopped | Self::WorkerStopped)
    }

    /// Expects the daemon to recover, and its state to have the worker that failed.
    fn expect_recovery(self, setup: &Setup) {
        if self == Self::DaemonKilled {
            return;
        }
        if self == Self::DaemonStopped {
            setup.signal(setup.daemon.id(), Signal::CONT);
        }
        let failures = usize::from(matches!(self, Self::WorkerKilled | Self::WorkerStopped));
        setup.workers_state(|workers| workers.is_splitting && workers.failures == failures as u64);
        setup.signal(setup.daemon.id(), Signal::TERM);
    }
}

/// Lets clients transfer streams until a fault happens after some time, and opens connections one after the other from then
/// on. Returns the longest time that one took.
fn under_traffic(
    setup: &Setup,
    (probed, listener): (&TcpListener, &TcpListener),
    outcomes: &Outcomes,
    rng: &mut Rng,
    fault: Fault,
) -> Duration {
    let [is_over, is_unserved] = [false; 2].map(AtomicBool::new);
    thread::scope(|scope| {
        // Ends the threads if a check fails, too.
        let _ended = [Ended(&is_over), Ended(&is_unserved)];
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let (mut rng, is_over) = (Rng::stream(rng.next_u64(), "client"), &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let _ = client(setup, &mut rng, outcomes);
                    }
                })
            })
            .collect();
        scope.spawn(|| serve(listener, outcomes, &is_unserved));
        thread::sleep(std::time::Duration::from_micros(rng.below(700_000)));
        let workers = setup.workers();
        let worker = workers[rng.below(workers.len() as u64) as usize];
        fault.happen(setup, worker);
        let (clock, mut longest) = (Clock::start(), Duration::ZERO);
        while clock.now() < WATCHED {
            let opened = clock.now();
            setup.passes(probed);
            longest = longest.max(clock.now().saturating_since(opened));
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("no panic");
        }
        longest
    })
}

/// Given a daemon with one or three workers, and each fault at a random moment under traffic, expect every new
/// connection to pass within 3 s (4 s if something hangs), no FIN on a truncated stream, no reset unless a worker ends, the daemon to recover, and no rule left
/// after they were removed.
#[test]
fn a_fault_of_a_gateway_breaks_nothing_else() {
    if !is_possible() {
        return;
    }
    let (times, seed) = stress(1);
    let mut setup = Setup::new("faults");
    let probed = setup.listen(SERVERS[0]);
    let address = SocketAddr::new(SERVERS[0].parse().expect("an address"), TRAFFIC_PORT);
    let bind = || TcpListener::bind(address).expect("a free port");
    let listener = setup.router.on(Host::Server, bind);
    listener.set_nonblocking(true).expect("a listener");
    let mut rng = Rng::stream(seed, "faults");
    for (number, fault) in (0..times).flat_map(|number| Fault::ALL.map(|fault| (number, fault))) {
        let outcomes = Outcomes::default();
        let longest = under_traffic(&setup, (&probed, &listener), &outcomes, &mut rng, fault);
        let [whole, reset, truncated] = [&outcomes.whole, &outcomes.reset, &outcomes.truncated]
            .map(|counter| counter.load(Ordering::Relaxed));
        eprintln!(
            "{number} {fault:?}: a connection took {longest} at most; {whole} whole, {reset} reset"
        );
        assert!(longest <= fault.passes_within(), "{longest}");
        assert_eq!(truncated, 0);
        if matches!(fault, Fault::DaemonStopped | Fault::RulesFlushed) {
            assert_eq!(reset, 0, "{fault:?}");
        }
        fault.expect_recovery(&setup);
        setup.daemon.wait().expect("it ends");
        assert!(setup.remove().status.success());
        setup.expect_nothing_left();
        pep(&mut setup.plan).workers = [1, 3][rng.below(2) as usize];
        setup.daemon = setup.router.start(PROGRAM, &setup.plan);
    }
}

/// Answers all clients.
fn serve(listener: &TcpListener, outcomes: &Outcomes, is_unserved: &AtomicBool) {
    thread::scope(|scope| {
        while !is_unserved.load(Ordering::Relaxed) {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(std::time::Duration::from_millis(1));
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
