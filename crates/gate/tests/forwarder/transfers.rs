//! Transfers of real hosts while the tunnel loses datagrams, renews its sessions, roams and restarts.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bentpipe_core::rng::Rng;
use bentpipe_gate::tunnel::Limits;
use bentpipe_gate::tunnel::forwarder::TunnelCounters;
use ring::digest::{Context, Digest, SHA256};

use crate::hosts::{Hosts, PROGRAMS, settings};
use crate::requirements::is_possible;

/// `BENTPIPE_STRESS` times as many.
const TRANSFERS: u64 = 60;
const TRANSFERS_PER_EVENT: u64 = 20;
const AT_ONCE: u16 = 12;
/// Sizes are spread evenly over the powers of two up to this one, so that most connections are short.
const BYTES_MAX: u64 = 1 << 21;
const LIMITS: Limits = Limits { renew_packets: 500, end_packets: 20_000, ..Limits::DEFAULT };
/// The retransmission timer of TCP doubles with each try that an event or a loss takes.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Sends random bytes and returns their SHA-256.
fn send(stream: &mut TcpStream, rng: &mut Rng) -> Digest {
    let mut left = 1 << rng.below(BYTES_MAX.ilog2().into());
    left += rng.below(left);
    let mut hash = Context::new(&SHA256);
    let mut piece = [0; 16_384];
    while left > 0 {
        let bytes = left.min(1 + rng.below(piece.len() as u64));
        let piece = &mut piece[..bytes as usize];
        piece.fill_with(|| rng.next_u64() as u8);
        hash.update(piece);
        stream.write_all(piece).expect("the peer reads");
        left -= bytes;
    }
    stream.shutdown(Shutdown::Write).expect("the connection stands");
    hash.finish()
}

/// Reads to the end and returns the SHA-256.
fn receive(stream: &mut TcpStream) -> Digest {
    let mut hash = Context::new(&SHA256);
    let mut piece = [0; 65_536];
    loop {
        let bytes = stream.read(&mut piece).expect("bytes or the end, in time");
        if bytes == 0 {
            return hash.finish();
        }
        hash.update(&piece[..bytes]);
    }
}

/// Sends and receives at the same time; returns the hashes of both.
fn exchange(mut stream: TcpStream, mut rng: Rng) -> [Digest; 2] {
    stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a socket");
    let mut writer = stream.try_clone().expect("a descriptor");
    thread::scope(|scope| {
        let sent = scope.spawn(move || send(&mut writer, &mut rng));
        let received = receive(&mut stream);
        [sent.join().expect("no panic"), received]
    })
}

/// The handshakes that an end has made or answered, and the packets that it has recovered.
fn progress(counters: &TunnelCounters) -> [u64; 2] {
    let sessions = &counters.path.sessions;
    [sessions.as_initiator + sessions.answered_handshakes, counters.path.code.recovered]
}

fn add(sum: &mut [u64; 2], more: [u64; 2]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// What happens while transfers run. Returns the progress of an end that restarts.
fn disturb(hosts: &Hosts, event: u64) -> [u64; 2] {
    match event % 3 {
        0 => {
            hosts.roam();
            [0; 2]
        }
        1 => progress(&hosts.restart(0)),
        _ => progress(&hosts.restart(1)),
    }
}

/// Given 5 % loss in each direction, sessions that are renewed, an end whose address changes, and ends that restart,
/// expect the SHA-256 of what arrives to be that of what was sent, in both directions of every connection.
#[test]
fn random_transfers_are_identical() {
    if !is_possible(&PROGRAMS) {
        return;
    }
    let count = TRANSFERS * number("BENTPIPE_STRESS").unwrap_or(1);
    let seed = number("BENTPIPE_STRESS_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("BENTPIPE_STRESS_SEED={seed}");
    let hosts = Hosts::new("transfers", &settings(), LIMITS, Some(50));
    let next = AtomicU64::new(0);
    let before_restarts = Mutex::new([0, 0]);
    let work = |port: u16| {
        let address = SocketAddr::from(([10, 99, 0, 2], port));
        let listener = hosts.on(1, || TcpListener::bind(address).expect("an address"));
        loop {
            let transfer = next.fetch_add(1, Ordering::Relaxed);
            if transfer >= count {
                return;
            }
            if transfer % TRANSFERS_PER_EVENT == TRANSFERS_PER_EVENT / 2 {
                let ended = disturb(&hosts, transfer / TRANSFERS_PER_EVENT);
                add(&mut before_restarts.lock().expect("no panic"), ended);
            }
            let rng = |end| Rng::stream(seed + transfer, end);
            let [client, server] = thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let (stream, _) = listener.accept().expect("a connection");
                    exchange(stream, rng("server"))
                });
                let stream = hosts.on(0, || TcpStream::connect(address).expect("in two minutes"));
                [exchange(stream, rng("client")), server.join().expect("no panic")]
            });
            assert_eq!(client[0].as_ref(), server[1].as_ref(), "{transfer}, to the server");
            assert_eq!(server[0].as_ref(), client[1].as_ref(), "{transfer}, to the client");
        }
    };
    thread::scope(|scope| {
        for port in 0..AT_ONCE {
            let work = &work;
            scope.spawn(move || work(5_000 + port));
        }
    });
    let mut total = before_restarts.into_inner().expect("no panic");
    (0..2).for_each(|end| add(&mut total, progress(&hosts.counters(end))));
    let [handshakes, recovered] = total;
    eprintln!("{count} transfers, {handshakes} handshakes, {recovered} packets recovered");
    let events = count.div_ceil(TRANSFERS_PER_EVENT);
    assert!(handshakes > 2 * events, "sessions are renewed, too");
    assert!(recovered > count);
}
