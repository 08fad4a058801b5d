//! Sixty channels through a daemon that is reloaded, and whose rules another program deletes, again and again.
//!
//! `BENTPIPE_SOAK_MINUTES=120` for the soak of a release: a reload each minute, and a flush every five. Without it, some of
//! both in seconds.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bentpipe_core::rng::Rng;
use bentpipe_gate::daemon::{Reply, Report};

use crate::kills::Ended;
use crate::router::{Host, SERVERS, TIMEOUT};
use crate::selection::reload;
use crate::setup::{Setup, is_possible, pep};
use crate::streams::Data;

const CHANNELS: u64 = 60;
/// Periods from flush to flush.
const FLUSH: u32 = 5;
/// The number of periods, and their length, unless the environment has that of all.
const SHORT: (u32, Duration) = (20, Duration::from_millis(50));
const PIECE_MAX: u64 = 20_000;
/// From one exchange of a channel to the next.
const PAUSE: Duration = Duration::from_millis(250);
/// What the allocator may keep beyond what the processes had when all channels had been open for a while.
const GROWTH_MAX: u64 = 2_000_000;

/// What all channels have done.
#[derive(Default)]
struct Done {
    connections: AtomicU64,
    bytes: AtomicU64,
}

/// Opens one connection after the other until all is over. One channel in three keeps its first.
fn channel(setup: &Setup, number: u64, is_over: &AtomicBool, done: &Done) -> io::Result<()> {
    let mut rng = Rng::stream(number, "channel");
    let server = SERVERS[number as usize % 2];
    let address = SocketAddr::new(server.parse().expect("an address"), 2_000 + number as u16);
    let listener = setup.router.on(Host::Server, || TcpListener::bind(address))?;
    let is_short = |rng: &mut Rng| !number.is_multiple_of(3) && rng.below(20) == 0;
    while !is_over.load(Ordering::Relaxed) {
        let client = setup.connect(server, address.port())?;
        let (server, _) = listener.accept()?;
        server.set_read_timeout(Some(TIMEOUT))?;
        done.connections.fetch_add(1, Ordering::Relaxed);
        while !is_over.load(Ordering::Relaxed) {
            for (from, to) in [(&client, &server), (&server, &client)] {
                let bytes = rng.below(PIECE_MAX);
                carry(from, to, &Data::new(rng.next_u64()).take(bytes as usize))?;
                done.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            if is_short(&mut rng) {
                break;
            }
            thread::sleep(PAUSE);
        }
        for (from, mut to) in [(&client, &server), (&server, &client)] {
            from.shutdown(Shutdown::Write)?;
            assert_eq!(to.read(&mut [0])?, 0, "nothing but a FIN");
        }
    }
    Ok(())
}

/// Sends bytes that buffers have room for, and expects them at the other end.
fn carry(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    from.write_all(bytes)?;
    let mut received = vec![0; bytes.len()];
    to.read_exact(&mut received)?;
    assert!(received == bytes);
    Ok(())
}

/// The resident memory and the open descriptors of the daemon and its workers.
fn usage(setup: &Setup) -> (u64, usize) {
    let processes = [vec![setup.daemon.id()], setup.workers()].concat();
    let memory = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
        kilobytes * 1_024
    };
    let descriptors =
        |pid: &u32| std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
    (processes.iter().map(memory).sum(), processes.iter().map(descriptors).sum())
}

/// Given sixty channels, a change of what is left out in each period and a flush of all rules in every fifth, expect every
/// byte to arrive, connections to be split at the end, and the processes to need no more memory and descriptors in the last
/// three quarters than in the first one.
#[test]
fn sixty_channels_outlast_reloads_and_flushes() {
    if !is_possible() {
        return;
    }
    let minutes = std::env::var("BENTPIPE_SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    let (periods, period) = minutes.map_or(SHORT, |minutes| (minutes, Duration::from_secs(60)));
    let setup = Setup::with("soak", |plan| pep(plan).workers = 3);
    let (is_over, done) = (AtomicBool::new(false), Done::default());
    let mut most = [(0, 0); 2];
    thread::scope(|scope| {
        let _ended = Ended(&is_over);
        let channels: Vec<_> = (0..CHANNELS)
            .map(|number| {
                scope.spawn({
                    let (setup, is_over, done) = (&setup, &is_over, &done);
                    move || channel(setup, number, is_over, done)
                })
            })
            .collect();
        for number in 0..periods {
            thread::sleep(period);
            let lost = channels.iter().position(thread::ScopedJoinHandle::is_finished);
            assert_eq!(lost, None, "a channel has ended in period {number}");
            let left_out = [[9, 9 + (number % 2) as u16]];
            assert_eq!(reload(&setup, &left_out), Reply::Changed, "period {number}");
            if number % FLUSH == FLUSH - 1 {
                setup.router.gateway("nft flush ruleset");
            }
            let (memory, descriptors) = usage(&setup);
            let most = &mut most[usize::from(number >= periods / 4)];
            *most = (most.0.max(memory), most.1.max(descriptors));
            if minutes.is_some() {
                let [connections, bytes] =
                    [&done.connections, &done.bytes].map(|count| count.load(Ordering::Relaxed));
                eprintln!(
                    "{number}: {connections} connections, {bytes} B; {memory} B of memory, {descriptors} descriptors"
                );
            }
        }
        is_over.store(true, Ordering::Relaxed);
        for (number, channel) in channels.into_iter().enumerate() {
            let outcome = channel.join().expect("no panic");
            outcome.unwrap_or_else(|error| panic!("channel {number}: {error}"));
        }
    });
    let Report { split_connections, reset_connections, .. } =
        setup.state(|state| state.open_connections == 0);
    let connections = done.connections.load(Ordering::Relaxed);
    eprintln!("{connections} connections, {split_connections} split; {most:?}");
    assert_eq!(reset_connections, 0);
    let listener = setup.listen(SERVERS[0]);
    setup.workers_state(|workers| workers.is_splitting && workers.failures == 0);
    assert!(setup.relays(&listener));
    let [early, late] = most;
    assert!(late.0 <= early.0 + GROWTH_MAX, "{most:?}");
    // Each connection that is open or held has two.
    assert!(late.1 <= early.1 + 4 * CHANNELS as usize, "{most:?}");
}
