//! The data path of the tunnel: datagrams of strangers, messages of a peer that has the keys, and packets of hosts.

use std::net::SocketAddr;

use bentpipe_core::packet::Ecn;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::tunnel::{
    ClassifierSettings, DeliverySettings, OverflowSettings, QueueSettings, RedundancySettings,
    SignalSettings, TitrationSettings, TunnelSettings,
};
use bentpipe_gate::tunnel::path::{HEADROOM, Path, PathPlan, PeerPlan};
use bentpipe_gate::tunnel::{
    HEADER_BYTES, Limits, OVERHEAD_BYTES, PeerId, PeerSettings, PrivateKey, Random, Settings,
    TAG_BYTES, Tunnel,
};

use crate::ITERATIONS;
use crate::decoder::Decoder;

const STEPS_MAX: u64 = 200;

struct Seeded(Rng);

impl Random for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.0.next_u64() as u8);
    }
}

fn random(name: &str) -> Box<Seeded> {
    Box::new(Seeded(Rng::stream(1, name)))
}

fn address(end: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, end], 1))
}

fn peer(end: u8) -> PeerSettings {
    let public_key = PrivateKey::from_bytes([end; 32]).public();
    PeerSettings { public_key, endpoint: Some(address(end)), keepalive: None }
}

fn settings(decoder: &mut Decoder<'_>) -> TunnelSettings {
    let signals = [
        SignalSettings::Hidden,
        SignalSettings::Ecn,
        SignalSettings::Visible { share_ppm: 500_000 },
    ];
    let order = [
        DeliverySettings::Unordered,
        DeliverySettings::Ordered { hold_time_ns: 50_000_000, pace_bps: None },
        DeliverySettings::Ordered { hold_time_ns: 50_000_000, pace_bps: Some(1_000_000) },
    ];
    let overflow = [None, Some(OverflowSettings { repair_ppm: 1_150_000, window_symbols: 8 })];
    TunnelSettings {
        classifier: ClassifierSettings {
            packet_size_bytes: decoder.below(100) as u32,
            classes: None,
            young_bytes: 0,
        },
        redundancy: RedundancySettings::Fixed { redundancy_ppm: 500_000, window_symbols: 4 },
        overflow: overflow[decoder.below(2) as usize],
        titration: TitrationSettings::Immediate,
        hold_bytes: 10_000,
        queue: QueueSettings {
            rate_bps: 1_000_000,
            capacity_bytes: 5_000,
            packet_overhead_bytes: 0,
        },
        memory_symbols: 8,
        symbol_size_bytes: 64 + decoder.below(100) as u32,
        density: 15,
        feedback_interval_ns: Some(10_000_000),
        delivery: order[decoder.below(3) as usize],
        congestion_signal: signals[decoder.below(3) as usize],
    }
}

/// The hub, 2, with the terminal, 1, whose hosts have 0.0.0.0/1 and ::/1.
fn path(decoder: &mut Decoder<'_>) -> Path {
    let networks = vec![([0, 0, 0, 0].into(), 1), ([0_u16; 8].into(), 1)];
    let peer = PeerPlan { name: "terminal".to_owned(), settings: peer(1), networks };
    let plan = PathPlan {
        private_key: PrivateKey::from_bytes([2; 32]),
        peers: vec![peer],
        settings: settings(decoder),
        mtu: 600,
        limits: Limits { renew_packets: 50, end_packets: 100, ..Limits::DEFAULT },
    };
    Path::new(plan, random("path")).expect("a plan without contradictions")
}

/// A stranger's datagrams, whatever they are, lead to nothing.
#[test]
fn any_datagram() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let mut path = path(&mut Decoder::new(&[]));
        path.on_datagram(Instant::START, &mut bytes.to_vec(), (address(7), Ecn::Ce));
        path.flush(Instant::START);
        assert!(path.datagrams().is_empty());
        assert_eq!(path.packets().count(), 0);
    });
}

/// A terminal that has the keys and sends anything, and hosts that send anything.
struct Run {
    terminal: Tunnel,
    path: Path,
    now: Instant,
}

/// Whatever a peer with the keys and the hosts send, the path does not panic, leaks no buffer, sends no packet to hosts
/// that is not from the peer's networks, and has always something to wait for.
#[test]
fn any_messages_and_packets() {
    bolero::check!().with_iterations(ITERATIONS / 10).for_each(|bytes: &[u8]| {
        let mut decoder = Decoder::new(bytes);
        let settings = Settings {
            private_key: PrivateKey::from_bytes([1; 32]),
            peers: vec![peer(2)],
            limits: Limits::DEFAULT,
        };
        let terminal = Tunnel::new(settings, random("terminal")).expect("distinct keys");
        let mut run = Run { terminal, path: path(&mut decoder), now: Instant::START };
        run.wait(0);
        run.wait(1_000_000);
        for _ in 0..STEPS_MAX {
            if decoder.is_empty() {
                break;
            }
            run.step(&mut decoder);
        }
        run.wait(60_000_000_000);
    });
}

impl Run {
    fn step(&mut self, decoder: &mut Decoder<'_>) {
        match decoder.below(4) {
            0 => self.wait(decoder.scaled(30)),
            1 => {
                let mut buffer = vec![0; HEADROOM];
                buffer.extend(packet(decoder, false));
                self.path.on_packet(self.now, &mut buffer);
                self.path.flush(self.now);
            }
            _ => {
                let message = message(decoder);
                let mut datagram = vec![0; HEADER_BYTES];
                datagram.extend(message);
                datagram.extend([0; TAG_BYTES]);
                assert!(datagram.len() >= OVERHEAD_BYTES);
                if self.terminal.output(PeerId(0), &mut datagram, self.now).is_ok() {
                    // Any field, without a byte of its own in the corpus.
                    let ecn = Ecn::of_traffic_class(datagram.len() as u8);
                    self.path.on_datagram(self.now, &mut datagram, (address(1), ecn));
                    self.path.flush(self.now);
                }
            }
        }
        self.exchange();
    }

    /// Time passes.
    fn wait(&mut self, nanos: u64) {
        self.now += Duration::from_nanos(nanos);
        let mut out = Vec::new();
        let from = (address(1), Ecn::NotEct);
        self.terminal.wake(self.now, self.now.as_nanos(), &mut out);
        for datagram in out {
            self.path.on_datagram(self.now, &mut datagram.bytes().to_vec(), from);
        }
        self.path.wake(self.now, self.now.as_nanos());
        assert!(self.path.next_wake().is_none_or(|at| at > self.now), "no progress");
        self.exchange();
    }

    /// What the path sends arrives at once, and is answered.
    fn exchange(&mut self) {
        for packet in self.path.packets() {
            // The first bit of the source is zero, or it is an answer of this end to a host.
            let source = if packet[0] >> 4 == 4 { packet[12] } else { packet[8] };
            let is_answer = packet[9] == 1 || packet[6] == 58;
            assert!(source < 0x80 || is_answer, "{packet:?}");
        }
        let datagrams: Vec<_> =
            self.path.datagrams().iter().map(|(_, _, bytes)| bytes.to_vec()).collect();
        self.path.clear();
        assert!(self.path.is_consistent());
        for mut datagram in datagrams {
            let from = (address(1), Ecn::NotEct);
            let output = self.terminal.input(&mut datagram, address(2), self.now);
            if let bentpipe_gate::tunnel::Output::Send(answer) = output {
                self.path.on_datagram(self.now, &mut answer.bytes().to_vec(), from);
            }
        }
        self.path.clear();
    }
}

/// A packet that is often an IP packet from the networks of one end to those of the other.
fn packet(decoder: &mut Decoder<'_>, is_from_peer: bool) -> Vec<u8> {
    if decoder.below(8) == 0 {
        let length = decoder.scaled(8) as usize;
        return (0..length).map(|_| decoder.u8()).collect();
    }
    let more_max = if decoder.below(8) == 0 { 700 } else { 100 };
    let length = 24 + decoder.below(more_max) as usize;
    let mut packet = vec![decoder.u8(); length];
    let is_swapped = decoder.below(16) == 0;
    let (source, destination) = if is_from_peer == is_swapped { (200, 1) } else { (1, 200) };
    packet[..20].copy_from_slice(&[
        0x45,
        0,
        0,
        0,
        0,
        0,
        0x40,
        0,
        64,
        6,
        0,
        0,
        source,
        1,
        1,
        1,
        destination,
        1,
        1,
        1,
    ]);
    packet[1] = decoder.below(4) as u8;
    packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    packet[20..24].copy_from_slice(&[0, decoder.below(3) as u8, 0, 1]);
    packet
}

/// A message that is often a symbol with a packet. Streams and symbols have small numbers, so that they meet.
fn message(decoder: &mut Decoder<'_>) -> Vec<u8> {
    let kind = [0, 1, 1, 1, 1, 2, 2, 2, 3, 4][decoder.below(10) as usize];
    let stream = u8::from(decoder.below(16) == 0);
    let symbol = decoder.below(24) as u8;
    let mut message = vec![kind];
    match kind {
        1 => message.extend([0, stream, 0, 0, 0, symbol, 0, 0, 0, 0]),
        2 => {
            let count = 1 + decoder.below(6) as u8;
            message.extend([0, stream, 0, decoder.u8(), 0xf0, count, 0, 0, 0, symbol]);
        }
        3 => message.extend([0, stream, 0, decoder.below(2) as u8]),
        _ => {}
    }
    let packet = packet(decoder, true);
    if kind == 1 {
        // A chunk with a packet behind its sequence number; its header may be another one.
        let header = if decoder.below(8) == 0 { decoder.u16() } else { packet.len() as u16 + 4 };
        message.extend(header.to_be_bytes());
        message.extend([0, 0, 0, decoder.below(24) as u8]);
    }
    message.extend(packet);
    message
}
