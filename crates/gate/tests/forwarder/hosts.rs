//! Two hosts in network namespaces, each with a TUN device and a forwarder; for tests and benchmarks of the tunnel.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bentpipe_core::rng::Rng;
use bentpipe_core::tunnel::{
    ClassifierSettings, DeliverySettings, QueueSettings, RedundancySettings, SignalSettings,
    TitrationSettings, TunnelSettings,
};
use bentpipe_gate::tunnel::forwarder::{Forwarder, TunnelCounters};
use bentpipe_gate::tunnel::path::{PathPlan, PeerPlan, full_symbol_bytes, inner_mtu};
use bentpipe_gate::tunnel::{Limits, OsRandom, PeerSettings, PrivateKey};
use bentpipe_sys::SystemError;
use bentpipe_sys::netns::Namespace;
use bentpipe_sys::sockets::set_receive_buffer;
use bentpipe_sys::tun;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PORT: u16 = 7_777;
/// As the daemon's.
const SOCKET_BUFFER_BYTES: i32 = 4 << 20;
/// Where the relay takes datagrams of each host.
const RELAY_PORTS: [u16; 2] = [8_888, 8_889];
/// What the hosts need, beside root.
pub(crate) const PROGRAMS: [&str; 1] = ["ip"];

/// Repair of 10 % over 64 symbols; packets from 200 bytes are coded.
pub(crate) fn settings() -> TunnelSettings {
    TunnelSettings {
        classifier: ClassifierSettings { packet_size_bytes: 200, classes: None, young_bytes: 0 },
        redundancy: RedundancySettings::Fixed { redundancy_ppm: 100_000, window_symbols: 64 },
        overflow: None,
        titration: TitrationSettings::Immediate,
        hold_bytes: 1 << 20,
        queue: QueueSettings {
            rate_bps: 10_000_000_000,
            capacity_bytes: 1 << 30,
            packet_overhead_bytes: 0,
        },
        memory_symbols: 512,
        symbol_size_bytes: full_symbol_bytes(mtu()),
        density: 15,
        feedback_interval_ns: Some(10_000_000),
        delivery: DeliverySettings::Ordered { hold_time_ns: 100_000_000, pace_bps: None },
        congestion_signal: SignalSettings::Hidden,
    }
}

/// That of tunnels over Ethernet.
fn mtu() -> u16 {
    inner_mtu(1_500, false).expect("1,500 is enough")
}

fn private_key(end: usize) -> PrivateKey {
    PrivateKey::from_bytes([end as u8 + 1; 32])
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// The hosts have 192.0.2.1 and .2 on the link, and 10.99.0.1 and .2, fd99::1 and ::2 in the tunnel.
pub(crate) struct Hosts {
    names: [String; 2],
    relay: Option<Relay>,
    ends: Vec<End>,
}

/// What is left of an end when its forwarder restarts, and that forwarder.
struct End {
    tun: OwnedFd,
    settings: TunnelSettings,
    limits: Limits,
    forwarder: Mutex<Option<Forwarder>>,
}

impl Hosts {
    /// With a loss in thousandths, the datagrams pass a relay that loses so many.
    pub(crate) fn new(
        name: &str,
        settings: &TunnelSettings,
        limits: Limits,
        loss: Option<u64>,
    ) -> Self {
        let names = ["a", "b"].map(|host| format!("bp-{}-{name}-{host}", std::process::id()));
        let mut hosts = Self { names, relay: None, ends: Vec::new() };
        for name in &hosts.names {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        let [a, b] = &hosts.names;
        ip(&format!("link add link0 netns {a} type veth peer name link0 netns {b}"));
        for (end, name) in hosts.names.iter().enumerate() {
            ip(&format!("-n {name} addr add 192.0.2.{}/24 dev link0", end + 1));
            ip(&format!("-n {name} link set link0 up"));
        }
        hosts.relay = loss.map(|loss| hosts.on(1, || Relay::start(loss)));
        for (end, name) in hosts.names.iter().enumerate() {
            let tun = hosts.on(end, || device(end));
            ip(&format!("-n {name} addr add fd99::{}/64 dev tun0 nodad", end + 1));
            let (settings, forwarder) = (settings.clone(), Mutex::default());
            hosts.ends.push(End { tun, settings, limits, forwarder });
        }
        (0..2).for_each(|end| hosts.start(end));
        hosts
    }

    /// Starts the forwarder of an end. It knows the other by its first address.
    fn start(&self, end: usize) {
        let End { tun, settings, limits, forwarder } = &self.ends[end];
        let peer = if self.relay.is_some() {
            address(1, RELAY_PORTS[end])
        } else {
            address(1 - end, PORT)
        };
        let plan = plan(end, peer, settings, *limits);
        let started = self.on(end, || {
            let socket = UdpSocket::bind(address(end, PORT)).expect("a port");
            set_receive_buffer(&socket, SOCKET_BUFFER_BYTES).expect("a socket");
            let tun = tun.try_clone().expect("a descriptor");
            Forwarder::start(tun, socket, plan, Box::new(OsRandom::new())).expect("a forwarder")
        });
        *forwarder.lock().expect("no panic") = Some(started);
    }

    /// The counters of an end. Panics if its forwarder has failed.
    pub(crate) fn counters(&self, end: usize) -> TunnelCounters {
        let forwarder = self.ends[end].forwarder.lock().expect("no panic");
        let forwarder = forwarder.as_ref().expect("it runs");
        assert!(forwarder.failure().is_none(), "{end}: {:?}", forwarder.failure());
        forwarder.counters()
    }

    /// Ends the forwarder of an end and starts another; returns the counters of the first.
    #[allow(dead_code, reason = "the benchmarks use this module, too")]
    pub(crate) fn restart(&self, end: usize) -> TunnelCounters {
        let counters = self.counters(end);
        *self.ends[end].forwarder.lock().expect("no panic") = None;
        self.start(end);
        counters
    }

    /// Gives the first host another address on the link, as the second sees it. Only with a relay.
    #[allow(dead_code, reason = "the benchmarks use this module, too")]
    pub(crate) fn roam(&self) {
        let relay = self.relay.as_ref().expect("a relay");
        relay.is_roaming.store(true, Ordering::Relaxed);
    }

    /// Runs a closure in the namespace of a host.
    pub(crate) fn on<T: Send>(&self, end: usize, act: impl FnOnce() -> T + Send) -> T {
        let open = |path: String| File::open(path).expect("it exists").into();
        let net = open(format!("/run/netns/{}", self.names[end]));
        let namespace = Namespace::from_fds([net, open("/proc/self/ns/mnt".to_owned())]);
        namespace.run(|| Ok::<_, SystemError>(act())).expect("the namespace is entered")
    }
}

fn address(end: usize, port: u16) -> SocketAddr {
    ([192, 0, 2, end as u8 + 1], port).into()
}

/// Sends on datagrams of each host to the other, but for some.
struct Relay {
    is_stopping: Arc<AtomicBool>,
    is_roaming: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts on the second host.
    fn start(loss: u64) -> Self {
        let [stop, roam] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (is_stopping, is_roaming) = (Arc::clone(&stop), Arc::clone(&roam));
        let mut sockets = RELAY_PORTS.map(relay_socket);
        let thread = std::thread::spawn(move || {
            let mut random = Rng::stream(1, "relay");
            let mut buffer = [0; 2_000];
            while !stop.load(Ordering::Relaxed) {
                if roam.swap(false, Ordering::Relaxed) {
                    sockets[1] = relay_socket(0);
                }
                wait(&sockets);
                for from in 0..2 {
                    while let Ok(bytes) = sockets[from].recv(&mut buffer) {
                        if random.below(1_000) >= loss {
                            let to = address(1 - from, PORT);
                            let _ = sockets[1 - from].send_to(&buffer[..bytes], to);
                        }
                    }
                }
            }
        });
        Self { is_stopping, is_roaming, thread: Some(thread) }
    }
}

fn relay_socket(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind(address(1, port)).expect("a port");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

/// Waits for a datagram, for a short time.
fn wait(sockets: &[UdpSocket; 2]) {
    let mut sockets = sockets.each_ref().map(|socket| PollFd::new(socket, PollFlags::IN));
    let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let _ = poll(&mut sockets, Some(&timeout));
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn device(end: usize) -> OwnedFd {
    let tun = tun::Tun::create(tun::Config {
        name: "tun0",
        address: [10, 99, 0, end as u8 + 1].into(),
        prefix: 24,
        mtu: mtu(),
        super_packets: true,
        queue_packets: 1_000,
    });
    tun.expect("a TUN device").as_fd().try_clone_to_owned().expect("a descriptor")
}

fn plan(end: usize, peer: SocketAddr, settings: &TunnelSettings, limits: Limits) -> PathPlan {
    let other = 1 - end;
    let peer = PeerPlan {
        name: "peer".to_owned(),
        settings: PeerSettings {
            public_key: private_key(other).public(),
            endpoint: Some(peer),
            keepalive: None,
        },
        networks: vec![
            ([10, 99, 0, other as u8 + 1].into(), 32),
            ([0xfd99, 0, 0, 0, 0, 0, 0, other as u16 + 1].into(), 128),
        ],
    };
    PathPlan {
        private_key: private_key(end),
        peers: vec![peer],
        settings: settings.clone(),
        mtu: mtu(),
        limits,
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.ends.clear();
        self.relay = None;
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
