//! A worker of the tunnel that ends or hangs, beside a PEP in the same daemon, and the process that takes its place.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bentpipe_core::time::Instant;
use bentpipe_core::tunnel::RedundancySettings;
use bentpipe_gate::daemon::{FailMode, Plan, Reply, State, TunnelPeerPlan, TunnelPlan};
use bentpipe_gate::tunnel::{OsRandom, PrivateKey, keygen};
use bentpipe_sys::clock::Clock;
use rustix::process::Signal;

use crate::fail_closed::{BEHIND, PORT, ip, network, router, socket, tunnel};
use crate::kills::Ended;
use crate::router::{Host, SERVERS, until};
use crate::selection::reload_plan;
use crate::setup::{PROGRAM, Setup, is_possible, pep};
use crate::supervision::exchange;

/// The address of the client that the tunnel carries; its other one bypasses the tunnel.
const CLIENT: &str = "10.1.0.3";
/// A delay of 1 s, the start of the process, and a handshake, on a busy machine.
const CARRIES_AFTER_KILL: Instant = Instant::from_millis(6_000);
/// The same after 10 s without a report.
const CARRIES_AFTER_STOP: Instant = Instant::from_millis(17_000);
const REDUNDANCY_PPM: u64 = 330_000;
const KEYS: [&str; 2] = ["key", "far-key"];

/// A gateway with a PEP and a tunnel to the server.
struct Ends {
    setup: Setup,
    far: Child,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.far.kill();
        let _ = self.far.wait();
    }
}

fn public_key(folder: &Path, key: &str) -> String {
    PrivateKey::read(&folder.join(key)).expect("a key").public().to_string()
}

/// The plan of the tunnel's end at the server.
fn far_plan(setup: &Setup) -> Plan {
    let file = |name: &str| setup.folder.join(name).display().to_string();
    let near = setup.plan.tunnel.as_ref().expect("it has one");
    let tunnel = TunnelPlan {
        addresses: ["10.99.0.2/24", "fd99::2/64"].map(network).into(),
        private_key: file(KEYS[1]),
        peers: vec![TunnelPeerPlan {
            public_key: public_key(&setup.folder, KEYS[0]),
            endpoint: Some("10.2.0.1:51871".to_owned()),
            networks: ["10.99.0.1/32", "fd99::1/128", "10.1.0.3/32"].map(network).into(),
            ..near.peers[0].clone()
        }],
        ..near.clone()
    };
    Plan {
        name: "far".to_owned(),
        state_file: file("far.json"),
        control_file: file("far.control"),
        pep: None,
        tunnel: Some(tunnel),
        ..setup.plan.clone()
    }
}

impl Ends {
    fn new(test: &str) -> Self {
        let router = router(test);
        // What the tunnel carries does not arrive on the interface of the link.
        for arguments in [
            "add table inet clear",
            "add chain inet clear in { type filter hook prerouting priority -400 ; }",
            "add rule inet clear in iifname net0 ip daddr 10.9.0.0/24 counter",
            "add rule inet clear in iifname net0 ip6 daddr fd09::/64 counter",
        ] {
            router.command(Host::Server, &format!("nft {arguments}"));
        }
        router.on(Host::Client, || {
            ip(&format!("addr add {CLIENT}/24 dev net0"));
            ip(&format!("route add 10.9.0.0/24 via 10.1.0.1 src {CLIENT}"));
        });
        let setup = Setup::on(router, test, |plan| {
            let folder = Path::new(&plan.state_file).parent().expect("a folder").to_owned();
            keygen(&folder.join(KEYS[1]), &mut OsRandom::new()).expect("a new file");
            let mut tunnel = tunnel(&folder, FailMode::Closed);
            tunnel.peers[0].public_key = public_key(&folder, KEYS[1]);
            pep(plan).link.interfaces.push(tunnel.device.clone());
            plan.tunnel = Some(tunnel);
        });
        let mut far = setup.router.on(Host::Server, || {
            let mut command = Command::new(PROGRAM);
            command.args(["plan", "run"]).stdin(Stdio::piped()).spawn().expect("it starts")
        });
        let text = serde_json::to_vec(&far_plan(&setup)).expect("a plan");
        far.stdin.take().expect("a pipe").write_all(&text).expect("it reads its plan");
        let ends = Self { setup, far };
        until(|| ends.setup.folder.join("far.json").exists());
        ends
    }

    /// The tunnel's worker: the last one that was started.
    fn worker(&self) -> u32 {
        *self.setup.workers().last().expect("it runs")
    }

    /// A connection through the tunnel, split by the PEP.
    fn pair_in_tunnel(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let (client, server) = self.setup.pair(listener);
        assert_eq!(client.local_addr().expect("connected").ip().to_string(), CLIENT);
        (client, server)
    }

    /// Reloads other settings of the tunnel.
    fn reload(&mut self) {
        let plan = &mut self.setup.plan;
        let settings = &mut plan.tunnel.as_mut().expect("it has one").settings;
        settings.redundancy =
            RedundancySettings::Fixed { redundancy_ppm: REDUNDANCY_PPM as u32, window_symbols: 64 };
        assert_eq!(reload_plan(&self.setup, &self.setup.plan), Reply::Changed);
    }
}

/// Sends datagrams to the networks of the peer each 5 ms, from the client and from the gateway, and expects the packets to
/// the peer in the state never to become fewer.
fn send_and_watch(ends: &Setup, is_over: &AtomicBool) {
    let senders = [Host::Client, Host::Gateway];
    let sending: Vec<_> = senders
        .into_iter()
        .flat_map(|host| BEHIND.map(|address| (socket(&ends.router, host, address), address)))
        .collect();
    let mut sent_packets = 0;
    while !is_over.load(Ordering::Relaxed) {
        for (socket, address) in &sending {
            let _ = socket.send_to(b"secret", (*address, PORT));
        }
        let text = std::fs::read(ends.folder.join("state.json")).unwrap_or_default();
        if let Some(tunnel) = State::parse(&text).ok().and_then(|state| state.tunnel) {
            assert!(tunnel.peers[0].sent_packets >= sent_packets, "{tunnel:?}");
            sent_packets = tunnel.peers[0].sent_packets;
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert!(sent_packets > 0);
}

/// Given a PEP and a tunnel in one daemon, a split connection past the tunnel and one in it, and a signal that ends or stops
/// the tunnel's worker, expect data in the first one meanwhile and in both afterwards, new ones to be split, datagrams in the
/// tunnel again within this time, with the settings of the last reload, none in clear text, and counters that never fall.
fn the_worker_is_replaced_alone(test: &str, signal: Signal, within: Instant) {
    let mut ends = Ends::new(test);
    ends.reload();
    let ends = &ends;
    let setup = &ends.setup;
    let [past, inside] = [SERVERS[0], BEHIND[0]].map(|address| setup.listen(address));
    let received = BEHIND.map(|address| socket(&setup.router, Host::Server, address));
    let receive = || received.iter().all(|socket| socket.recv(&mut [0; 10]).is_ok());
    let drain = || received.iter().for_each(|socket| while socket.recv(&mut [0; 10]).is_ok() {});
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| send_and_watch(setup, &is_over));
        let _ended = Ended(&is_over);
        until(receive);
        let (client, server) = setup.pair(&past);
        let in_tunnel = ends.pair_in_tunnel(&inside);
        setup.state(|state| state.split_connections == 2);
        let pep_worker = setup.workers()[0];
        let clock = Clock::start();
        setup.signal(ends.worker(), signal);
        let worker = |state: &State| state.tunnel_worker.expect("it has one");
        setup.whole_state(|state| worker(state).missing == 1);
        exchange(&client, &server).expect("the PEP serves");
        setup.whole_state(|state| worker(state).missing == 0 && worker(state).failures == 1);
        // What the other end had received before.
        drain();
        until(receive);
        assert!(clock.now() <= within, "{}", clock.now());
        setup.whole_state(|state| {
            let peer = &state.tunnel.as_ref().expect("it has one").peers[0];
            peer.session_age_ns.is_some() && peer.redundancy_ppm == REDUNDANCY_PPM
        });
        exchange(&client, &server).expect("the PEP serves");
        exchange(&in_tunnel.0, &in_tunnel.1).expect("the tunnel carries it again");
        let _pairs = [setup.pair(&past), ends.pair_in_tunnel(&inside)];
        setup.state(|state| state.split_connections == 4 && state.unsplit_connections == 0);
        let workers = setup.workers_state(|workers| workers.is_splitting);
        assert_eq!((workers.missing, workers.failures), (0, 0));
        assert_eq!(setup.workers()[0], pep_worker);
        is_over.store(true, Ordering::Relaxed);
        watching.join().expect("the counters never fall");
    });
    let rules = setup.router.command(Host::Server, "nft list table inet clear");
    assert_eq!(rules.matches("counter packets 0 bytes 0").count(), 2, "{rules}");
}

#[test]
fn a_killed_worker_of_the_tunnel_is_replaced_beside_a_pep() {
    if is_possible() {
        the_worker_is_replaced_alone("tkill", Signal::KILL, CARRIES_AFTER_KILL);
    }
}

#[test]
fn a_hanging_worker_of_the_tunnel_is_replaced_beside_a_pep() {
    if is_possible() {
        the_worker_is_replaced_alone("tstop", Signal::STOP, CARRIES_AFTER_STOP);
    }
}

/// Given a killed worker and another device of the tunnel's name, expect no end of the daemon, and networks that are
/// unreachable until that device is gone; expect the worker then, and the unreachable routes that another program has removed. Expect the
/// settings of a reload meanwhile.
#[test]
fn a_start_of_the_worker_that_fails_is_repeated() {
    if !is_possible() {
        return;
    }
    let mut ends = Ends::new("tname");
    let worker = |state: &State| state.tunnel_worker.expect("it has one");
    {
        let setup = &ends.setup;
        setup.signal(setup.daemon.id(), Signal::STOP);
        setup.signal(ends.worker(), Signal::KILL);
        until(|| !setup.router.gateway("ip -oneline link").contains("bp0"));
        setup.router.gateway("ip link add bp0 type veth peer name bp1");
        setup.signal(setup.daemon.id(), Signal::CONT);
        setup.whole_state(|state| worker(state).missing == 1 && worker(state).failures == 1);
    }
    ends.reload();
    let setup = &ends.setup;
    let closed = || setup.router.gateway("ip route show type unreachable proto 98").lines().count();
    // After the first attempt.
    thread::sleep(Duration::from_millis(1_500));
    assert_eq!(setup.workers().len(), 1);
    assert_eq!(closed(), 1);
    setup.router.gateway("ip route flush type unreachable proto 98");
    setup.router.gateway("ip link del bp0");
    let state =
        setup.whole_state(|state| worker(state).missing == 0 && worker(state).failures == 1);
    let peer = &state.tunnel.as_ref().expect("it has one").peers[0];
    assert_eq!(peer.redundancy_ppm, REDUNDANCY_PPM);
    assert_eq!(closed(), 1);
    assert!(setup.router.gateway("ip route show 10.9.0.0/24 dev bp0").contains("10.9.0.0/24"));
}
