//! Two hosts in network namespaces, each with a TUN device and a forwarder; for tests and benchmarks of the tunnel.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bentpipe_core::rng::Rng;
use bentpipe_core::tunnel::{
    ClassifierSettings, DeliverySettings, QueueSettings, RedundancySettings, SignalSettings,
    TitrationSettings, TunnelSettings,
};
use bentpipe_gate::tunnel::forwarder::{Forwarder, ForwarderConfig};
use bentpipe_gate::tunnel::path::{PeerPlan, Sizes};
use bentpipe_gate::tunnel::{OsRandom, PeerSettings, PrivateKey};
use bentpipe_sys::SystemError;
use bentpipe_sys::netns::Namespace;
use bentpipe_sys::tun;

const PORT: u16 = 7_777;
const RELAY_PORT: u16 = 8_888;
/// What the hosts need, beside root.
pub(crate) const PROGRAMS: [&str; 1] = ["ip"];

/// Repair of 10 % over 64 symbols; packets from 200 bytes are coded.
pub(crate) fn settings() -> TunnelSettings {
    TunnelSettings {
        classifier: ClassifierSettings { packet_size_bytes: 200, classes: None, young_bytes: 0 },
        redundancy: RedundancySettings::Fixed { redundancy_ppm: 100_000, window_symbols: 64 },
        titration: TitrationSettings::Immediate,
        hold_bytes: 1 << 20,
        queue: QueueSettings {
            rate_bps: 10_000_000_000,
            capacity_bytes: 1 << 30,
            packet_overhead_bytes: 0,
        },
        memory_symbols: 512,
        symbol_size_bytes: Sizes::of(1_500, false).expect("1,500 is enough").symbol_bytes,
        density: 15,
        feedback_interval_ns: Some(10_000_000),
        delivery: DeliverySettings::Ordered { hold_time_ns: 100_000_000 },
        congestion_signal: SignalSettings::Hidden,
    }
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
    pub(crate) forwarders: Vec<Forwarder>,
}

impl Hosts {
    /// With a loss in thousandths, the datagrams pass a relay that loses so many.
    pub(crate) fn new(name: &str, settings: &TunnelSettings, loss: Option<u64>) -> Self {
        let names = ["a", "b"].map(|host| format!("bp-{}-{name}-{host}", std::process::id()));
        let mut hosts = Self { names, relay: None, forwarders: Vec::new() };
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
        let start = |end| hosts.on(end, || forwarder(end, settings, loss.is_some()));
        hosts.forwarders = (0..2).map(start).collect();
        for (end, name) in hosts.names.iter().enumerate() {
            ip(&format!("-n {name} addr add fd99::{}/64 dev tun0 nodad", end + 1));
        }
        hosts
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
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts on the second host.
    fn start(loss: u64) -> Self {
        let socket = UdpSocket::bind(address(1, RELAY_PORT)).expect("a port");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_stopping);
        let thread = std::thread::spawn(move || {
            let mut random = Rng::stream(1, "relay");
            let mut buffer = [0; 2_000];
            while !stop.load(Ordering::Relaxed) {
                let Ok((bytes, from)) = socket.recv_from(&mut buffer) else { continue };
                let to = address(usize::from(from == address(0, PORT)), PORT);
                if random.below(1_000) >= loss {
                    let _ = socket.send_to(&buffer[..bytes], to);
                }
            }
        });
        Self { is_stopping, thread: Some(thread) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn forwarder(end: usize, settings: &TunnelSettings, has_relay: bool) -> Forwarder {
    let tun = tun::Tun::create(tun::Config {
        name: "tun0",
        address: [10, 99, 0, end as u8 + 1].into(),
        prefix: 24,
        mtu: Sizes::of(1_500, false).expect("1,500 is enough").mtu,
        super_packets: true,
        queue_packets: 1_000,
    });
    let tun = tun.expect("a TUN device").as_fd().try_clone_to_owned().expect("a descriptor");
    let socket = UdpSocket::bind(address(end, PORT)).expect("a port");
    let other = 1 - end;
    let peer = PeerPlan {
        name: "peer".to_owned(),
        settings: PeerSettings {
            public_key: private_key(other).public(),
            endpoint: Some(if has_relay { address(1, RELAY_PORT) } else { address(other, PORT) }),
            keepalive: None,
        },
        networks: vec![
            ([10, 99, 0, other as u8 + 1].into(), 32),
            ([0xfd99, 0, 0, 0, 0, 0, 0, other as u16 + 1].into(), 128),
        ],
    };
    let config = ForwarderConfig {
        private_key: private_key(end),
        peers: vec![peer],
        settings: settings.clone(),
        mtu: Sizes::of(1_500, false).expect("1,500 is enough").mtu,
        unix_nanos_at_start: 1,
        random: Box::new(OsRandom::new()),
    };
    Forwarder::start(tun, socket, config).expect("a forwarder")
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.forwarders.clear();
        self.relay = None;
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
