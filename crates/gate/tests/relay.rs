//! The relay between real clients and servers on the loopback interface.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{array, io};

use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration as Limit, Instant};
use bentpipe_gate::relay::{Config, Counters, Dial, Dialed, Relay, prepare_leg};
use bentpipe_gate::{HeartbeatMonitor, Side};
use bentpipe_sys::clock::Clock;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, connect, listen, send, socket_with,
};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Connects to one server.
struct To(SocketAddr);

impl Dial for To {
    fn dial(&self, _client: BorrowedFd<'_>, _from: SocketAddr, _side: Side) -> io::Result<Dialed> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let server = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        prepare_leg(&server)?;
        match connect(&server, &self.0) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {
                Ok(Dialed { server, is_connected: false, permit: None })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Connects to each of these servers in turn, and keeps copies of the legs, as another process may for some time.
struct Copied {
    servers: Mutex<Vec<SocketAddr>>,
    copies: Mutex<Vec<OwnedFd>>,
}

impl Dial for Copied {
    fn dial(&self, client: BorrowedFd<'_>, from: SocketAddr, side: Side) -> io::Result<Dialed> {
        let server = self.servers.lock().expect("no panic").remove(0);
        let dialed = To(server).dial(client, from, side)?;
        self.copies.lock().expect("no panic").push(dialed.server.try_clone()?);
        Ok(dialed)
    }
}

/// Says that it was called, and waits for a message before it refuses; panics if there will be none.
struct Hanging(Mutex<(Sender<()>, Receiver<()>)>);

impl Dial for Hanging {
    fn dial(&self, _client: BorrowedFd<'_>, _from: SocketAddr, _side: Side) -> io::Result<Dialed> {
        let channels = self.0.lock().expect("no panic before");
        let (called, go) = &*channels;
        called.send(()).expect("the test waits");
        go.recv().expect("on purpose");
        Err(ErrorKind::ConnectionRefused.into())
    }
}

/// A relay to a server that listens, or does not.
struct Setup {
    relay: Relay,
    address: SocketAddr,
    server: TcpListener,
}

fn config() -> Config {
    let (connect_limit, idle_limit) = (Limit::from_secs(20), None);
    Config { threads: 2, pipes: 64, buffer_bytes: 256 * 1024, connect_limit, idle_limit }
}

fn any_port() -> TcpListener {
    TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a free port")
}

impl Setup {
    fn new(config: Config) -> Self {
        let server = any_port();
        let to = server.local_addr().expect("it is bound");
        let (relay, address) = relay_to(to, config);
        Self { relay, address, server }
    }

    /// A client and the server's end of its connection.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let client = with_timeouts(TcpStream::connect(self.address).expect("the relay listens"));
        let (server, _) = self.server.accept().expect("the relay connects");
        (client, with_timeouts(server))
    }

    /// Waits until a count has a value.
    fn until(&self, count: fn(&Counters) -> u64, value: u64) {
        until(|| count(self.relay.counters()) == value);
    }
}

fn until(mut condition: impl FnMut() -> bool) {
    let pause = Duration::from_millis(5);
    for _ in 0..TIMEOUT.as_millis() / pause.as_millis() {
        if condition() {
            return;
        }
        thread::sleep(pause);
    }
    panic!("this was waited for in vain");
}

fn relay_to(server: SocketAddr, config: Config) -> (Relay, SocketAddr) {
    relay_by(To(server), config)
}

fn relay_by(dial: impl Dial + 'static, config: Config) -> (Relay, SocketAddr) {
    let listener = any_port();
    listener.set_nonblocking(true).expect("a listener");
    let address = listener.local_addr().expect("it is bound");
    let listeners = vec![(Side::Lan, listener.into())];
    let relay = Relay::start(listeners, Arc::new(dial), config).expect("it starts");
    (relay, address)
}

/// A stream whose reads and writes end with an error, not never.
fn with_timeouts(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(TIMEOUT)).expect("not zero");
    stream.set_write_timeout(Some(TIMEOUT)).expect("not zero");
    stream
}

/// How a person at one end of a connection behaves.
#[derive(Clone, Debug)]
struct Behaviour {
    /// The stream of its data, and their number.
    data: Rng,
    bytes: usize,
    /// Whether it sends only when it has read everything.
    reads_first: bool,
    /// Pauses between reads.
    pause: Duration,
}

impl Behaviour {
    fn draw(rng: &mut Rng) -> Self {
        let largest = [1, 2_000, 200_000, 3_000_000][rng.below(4) as usize];
        Self {
            data: Rng::stream(rng.next_u64(), "data"),
            bytes: rng.below(largest) as usize,
            reads_first: false,
            pause: Duration::from_micros([0, 0, 300][rng.below(3) as usize]),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut data = self.data.clone();
        (0..self.bytes).map(|_| data.next_u64() as u8).collect()
    }

    fn send(&self, mut stream: &TcpStream) {
        stream.write_all(&self.bytes()).expect("it can be written");
        stream.shutdown(Shutdown::Write).expect("it is open");
    }

    fn receive(&self, mut stream: &TcpStream, other: &Self) {
        let (mut found, mut piece) = (Vec::new(), [0; 30_000]);
        loop {
            match stream.read(&mut piece).expect("no reset") {
                0 => break,
                read => found.extend_from_slice(&piece[..read]),
            }
            thread::sleep(self.pause);
        }
        assert!(found == other.bytes(), "{} bytes of {}", found.len(), other.bytes);
    }

    /// Sends and receives on one end of a connection.
    fn act(self, stream: TcpStream, other: Self) -> JoinHandle<()> {
        thread::spawn(move || {
            if self.reads_first {
                self.receive(&stream, &other);
                self.send(&stream);
                return;
            }
            thread::scope(|scope| {
                scope.spawn(|| self.send(&stream));
                self.receive(&stream, &other);
            });
        })
    }
}

/// Given random streams in both directions, slow readers and ends that send only after the FIN of the
/// other, expect the same bytes, and the FIN after them.
#[test]
fn streams_arrive_whole() {
    // Enough pipes, one for both directions of all connections of a thread, and none.
    for pipes in [64, 2, 0] {
        streams_arrive(Config { pipes, ..config() });
    }
}

fn streams_arrive(config: Config) {
    let setup = Setup::new(config);
    let mut rng = Rng::stream(1, "streams");
    let mut relayed = 0;
    for _ in 0..5 {
        let acts = (0..8).flat_map(|_| {
            let [mut client, mut server] = array::from_fn(|_| Behaviour::draw(&mut rng));
            let first = rng.below(3);
            (client.reads_first, server.reads_first) = (first == 1, first == 2);
            relayed += (client.bytes + server.bytes) as u64;
            let (near, far) = setup.connect();
            [client.clone().act(near, server.clone()), server.act(far, client)]
        });
        let acts: Vec<_> = acts.collect();
        for act in acts {
            act.join().expect("the data are the same");
        }
    }
    setup.until(Counters::ended, 40);
    let counters = setup.relay.counters();
    assert_eq!(counters.to_server_bytes() + counters.to_client_bytes(), relayed);
    assert_eq!((counters.open(), counters.reset()), (0, 0));
}

/// Given an end that resets its connection in the middle, expect a reset at the other end, never a FIN.
#[test]
fn a_reset_stays_a_reset() {
    let setup = Setup::new(config());
    for is_client in [true, false] {
        let (client, server) = setup.connect();
        let (mut resets, mut other) = if is_client { (client, server) } else { (server, client) };
        resets.write_all(&[7; 100_000]).expect("it can be written");
        other.read_exact(&mut [0; 1_000]).expect("some data arrive");
        set_socket_linger(&resets, Some(Duration::ZERO)).expect("a socket");
        drop(resets);
        let error = io::copy(&mut other, &mut io::sink()).expect_err("no FIN");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    setup.until(Counters::reset, 2);
}

/// Given urgent data between others, expect them all in their order, as data (RFC 6093, section 6).
#[test]
fn urgent_data_are_data() {
    let setup = Setup::new(config());
    let ends: [TcpStream; 2] = setup.connect().into();
    for (from, to) in [(0, 1), (1, 0)] {
        let (mut near, mut far) = (&ends[from], &ends[to]);
        near.write_all(b"before").expect("it can be written");
        far.read_exact(&mut [0; 6]).expect("the data arrive");
        near.write_all(b"and ").expect("it can be written");
        assert_eq!(send(near, b"!", SendFlags::OOB), Ok(1));
        near.write_all(b" after").expect("it can be written");
        let mut found = [0; 11];
        far.read_exact(&mut found).expect("the data arrive");
        assert_eq!(&found, b"and ! after");
    }
}

/// Given a relay that ends in the middle, expect resets at both ends, never a FIN.
#[test]
fn a_relay_that_ends_resets_its_connections() {
    let setup = Setup::new(config());
    let (mut client, mut server) = setup.connect();
    client.write_all(b"half of a").expect("it can be written");
    server.read_exact(&mut [0; 9]).expect("the data arrive");
    setup.relay.stop().expect("no thread failed");
    for mut end in [client, server] {
        let error = end.read(&mut [0; 9]).expect_err("no FIN");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// Given a port without a server, expect a reset at the client.
#[test]
fn a_server_that_refuses_resets_the_client() {
    let closed = any_port().local_addr().expect("it is bound");
    let (relay, address) = relay_to(closed, config());
    let mut client = with_timeouts(TcpStream::connect(address).expect("the relay listens"));
    let error = client.read(&mut [0; 1]).expect_err("no FIN");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    drop(client);
    until(|| relay.counters().open() == 0);
    assert_eq!((relay.counters().refused(), relay.counters().open()), (1, 0));
}

/// Given a leg that has ended, of which another process still has a copy, expect what its server does later to change
/// nothing of the next connection: one whose server is silent is reset after the limit.
#[test]
fn a_connection_has_no_events_of_one_before_it() {
    let (before, silent) = (any_port(), any_port());
    let servers = [&before, &silent].map(|each| each.local_addr().expect("it is bound"));
    // One connection fills the backlog; then the kernel drops SYNs.
    listen(&silent, 0).expect("it listens");
    let _fills = TcpStream::connect(servers[1]).expect("it listens");
    let dial = Copied { servers: Mutex::new(servers.to_vec()), copies: Mutex::default() };
    let config = Config { threads: 1, connect_limit: Limit::from_secs(1), ..config() };
    let (relay, address) = relay_by(dial, config);
    let first = TcpStream::connect(address).expect("the relay listens");
    let (server, _) = before.accept().expect("the relay connects");
    set_socket_linger(&first, Some(Duration::ZERO)).expect("a socket");
    drop(first);
    until(|| relay.counters().reset() == 1);
    let mut second = with_timeouts(TcpStream::connect(address).expect("the relay listens"));
    until(|| relay.counters().open() == 1);
    drop(server);
    let error = second.read(&mut [0; 1]).expect_err("no FIN");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!((relay.counters().expired(), relay.counters().open()), (1, 0));
}

/// Given a server that does not read, expect the client to be stopped by its window, and all data to arrive
/// once the server reads.
#[test]
fn a_slow_server_stops_the_client() {
    let setup = Setup::new(config());
    let (mut client, mut server) = setup.connect();
    client.set_nonblocking(true).expect("a socket");
    let (mut written, mut refusals) = (0, 0);
    // For some time: then the buffers on the way are full.
    while refusals < 1_000 {
        match client.write(&[1; 65_536]) {
            Ok(bytes) => (written, refusals) = (written + bytes, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                refusals += 1;
            }
        }
        assert!(written < 200_000_000, "nothing stops the client");
        thread::sleep(Duration::from_millis(1));
    }
    client.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(io::copy(&mut server, &mut io::sink()).expect("no reset"), written as u64);
}

/// Given a limit of a second without data, expect a reset after it.
#[test]
fn an_idle_connection_is_reset_after_the_limit() {
    let setup = Setup::new(Config { idle_limit: Some(Limit::from_secs(1)), ..config() });
    let (mut client, _server) = setup.connect();
    let clock = Clock::start();
    let error = client.read(&mut [0; 1]).expect_err("no FIN");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(clock.now() >= Instant::from_millis(900), "{}", clock.now());
    setup.until(Counters::idle, 1);
}

/// Given a relay of two threads without connections, expect both to go on; given one that waits for ever to open a
/// connection, expect that not all go on, although the other does; given one that panics, expect the reason.
#[test]
fn a_thread_that_hangs_or_panics_is_noticed() {
    let ((called, calls), (go, waits)) = (channel(), channel());
    let (mut relay, address) = relay_by(Hanging(Mutex::new((called, waits))), config());
    let mut monitor = HeartbeatMonitor::new(relay.heartbeats().iter().cloned());
    // A thread that has nothing to do waits for less.
    let interval = Duration::from_millis(300);
    let mut progresses = || {
        thread::sleep(interval);
        monitor.all_progressed()
    };
    for _ in 0..3 {
        until(&mut progresses);
    }
    let _client = TcpStream::connect(address).expect("the relay listens");
    calls.recv().expect("a thread opens the connection");
    // What it did before counts once.
    progresses();
    for _ in 0..3 {
        assert!(!progresses());
        assert!(relay.failure().is_none());
    }
    go.send(()).expect("it waits");
    until(&mut progresses);
    drop(go);
    let _other = TcpStream::connect(address).expect("the relay listens");
    let mut failure = None;
    until(|| {
        failure = relay.failure();
        failure.is_some()
    });
    let failure = failure.expect("a reason").to_string();
    assert_eq!(failure, "a thread of the relay has ended: it has panicked");
}
