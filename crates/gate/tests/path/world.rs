//! Two gateways with a network between them, and hosts that send numbered packets.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bentpipe_core::packet::Ecn;
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::tunnel::{
    ClassifierSettings, DeliverySettings, QueueSettings, RedundancySettings, SignalSettings,
    TitrationSettings, TunnelSettings,
};
use bentpipe_core::wire::{UDP, ipv4};
use bentpipe_gate::tunnel::path::{HEADROOM, Path, PathCounters, PathPlan, PeerPlan};
use bentpipe_gate::tunnel::{Limits, PeerSettings, PrivateKey, Random};

/// Half of the round trip of a GEO link.
pub(crate) const ONE_WAY: Duration = Duration::from_millis(300);
/// Nanoseconds from 1970 to some day of 2026.
const UNIX_NANOS: u64 = 1_780_000_000_000_000_000;
/// IPv4 and UDP headers, and the packet's number.
pub(crate) const PACKET_BYTES_MIN: usize = 20 + 8 + 4;

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// The seed of this run, which it prints: 1, or that of the environment.
pub(crate) fn seed() -> u64 {
    let seed = number("BENTPIPE_STRESS_SEED").unwrap_or(1);
    eprintln!("BENTPIPE_STRESS_SEED={seed}");
    seed
}

/// Random bytes that a seed repeats.
struct Seeded(Rng);

impl Random for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.0.next_u64() as u8);
    }
}

/// All packets are coded, with fixed redundancy of 10 % over 64 symbols.
pub(crate) fn settings() -> TunnelSettings {
    TunnelSettings {
        classifier: ClassifierSettings { packet_size_bytes: 0, classes: None, young_bytes: 0 },
        redundancy: RedundancySettings::Fixed { redundancy_ppm: 100_000, window_symbols: 64 },
        overflow: None,
        titration: TitrationSettings::Immediate,
        hold_bytes: 1 << 20,
        queue: QueueSettings {
            rate_bps: 1_000_000_000,
            capacity_bytes: 1 << 30,
            packet_overhead_bytes: 0,
        },
        memory_symbols: 512,
        symbol_size_bytes: 1_432,
        density: 15,
        feedback_interval_ns: Some(20_000_000),
        delivery: DeliverySettings::Ordered { hold_time_ns: 1_000_000_000, pace_bps: None },
        congestion_signal: SignalSettings::Hidden,
    }
}

/// What the network does with datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub(crate) delay: Duration,
    /// Up to so much is added at random.
    pub(crate) jitter: Duration,
    /// Losses that begin, in millionths of the datagrams, and how many datagrams each takes.
    pub(crate) loss_ppm: u64,
    pub(crate) burst: u64,
    pub(crate) duplicate_ppm: u64,
    pub(crate) flip_ppm: u64,
}

impl Channel {
    pub(crate) const CLEAN: Self = Self {
        delay: ONE_WAY,
        jitter: Duration::ZERO,
        loss_ppm: 0,
        burst: 1,
        duplicate_ppm: 0,
        flip_ppm: 0,
    };
}

/// One end, and the hosts behind it.
pub(crate) struct End {
    pub(crate) path: Path,
    pub(crate) address: SocketAddr,
    started: Instant,
    /// The next packet of each flow that starts here.
    next: BTreeMap<u16, u32>,
    /// For each flow that ends here, the next packet, if order is kept.
    expected: BTreeMap<u16, u32>,
    pub(crate) sent: u64,
    pub(crate) delivered: u64,
    pub(crate) first_delivered_at: Option<Instant>,
    /// Packets behind a later one of their flow.
    pub(crate) late: u64,
    /// The datagrams left of a burst of losses.
    burst_left: u64,
}

impl End {
    fn local(&self, now: Instant) -> Instant {
        Instant::START + now.saturating_since(self.started)
    }

    pub(crate) fn counters(&self, now: Instant) -> PathCounters {
        self.path.counters(self.local(now))
    }
}

/// A datagram in transit: where to, where from, and its bytes.
type InTransit = (SocketAddr, SocketAddr, Vec<u8>);

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) ends: [End; 2],
    pub(crate) channel: Channel,
    pub(crate) rng: Rng,
    settings: TunnelSettings,
    limits: Limits,
    in_transit: BTreeMap<(Instant, u64), InTransit>,
    number: u64,
    /// Datagrams sent and lost.
    pub(crate) datagrams: [u64; 2],
    /// Copies of some datagrams that were not lost, with their receivers.
    pub(crate) recorded: Vec<(usize, Vec<u8>)>,
    largest: usize,
}

fn private_key(end: usize) -> PrivateKey {
    PrivateKey::generate(&mut Seeded(Rng::stream(1, ["terminal", "hub"][end])))
}

fn address(end: usize, port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, end as u8], port))
}

/// The terminal is end 0 with the hosts in 10.0.0.0/16 and fd00::/32. It knows where the hub is, end 1 with 10.1.0.0/16 and
/// fd00:1::/32.
pub(crate) fn plan(end: usize, settings: &TunnelSettings, limits: Limits) -> PathPlan {
    let peer = PeerPlan {
        name: ["hub", "terminal"][end].to_owned(),
        settings: PeerSettings {
            public_key: private_key(1 - end).public(),
            endpoint: (end == 0).then(|| address(1, 1)),
            keepalive: None,
        },
        networks: vec![
            ([10, 1 - end as u8, 0, 0].into(), 16),
            ([0xfd00, 1 - end as u16, 0, 0, 0, 0, 0, 0].into(), 32),
        ],
    };
    PathPlan {
        private_key: private_key(end),
        peers: vec![peer],
        settings: settings.clone(),
        mtu: 1_426,
        limits,
    }
}

/// Byte number `at` of packet `number` of a flow.
fn content(flow: u16, number: u32, at: usize) -> u8 {
    let word = u64::from(number) << 16 | u64::from(flow);
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (at % 57)) as u8
}

/// A packet of a host behind `end`, for a host behind the other end.
pub(crate) fn packet(end: usize, flow: u16, number: u32, bytes: usize) -> Vec<u8> {
    let mut packet = Vec::with_capacity(bytes);
    ipv4::Header {
        source: [10, end as u8, 0, 1].into(),
        destination: [10, 1 - end as u8, 0, 1].into(),
        protocol: UDP,
        traffic_class: 0b10,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        time_to_live: 64,
        total_bytes: bytes as u16,
    }
    .emit(&mut packet);
    packet.extend(flow.to_be_bytes());
    packet.extend([0; 6]);
    packet.extend(number.to_be_bytes());
    packet.extend((PACKET_BYTES_MIN..bytes).map(|at| content(flow, number, at)));
    packet
}

impl World {
    pub(crate) fn new(seed: u64, settings: TunnelSettings, limits: Limits) -> Self {
        let end = |end: usize| End {
            path: path(seed, end, plan(end, &settings, limits)),
            address: address(end, 1),
            started: Instant::START,
            next: BTreeMap::new(),
            expected: BTreeMap::new(),
            sent: 0,
            delivered: 0,
            first_delivered_at: None,
            late: 0,
            burst_left: 0,
        };
        Self {
            now: Instant::START,
            ends: [end(0), end(1)],
            channel: Channel::CLEAN,
            rng: Rng::stream(seed, "network"),
            settings,
            limits,
            in_transit: BTreeMap::new(),
            number: seed,
            datagrams: [0; 2],
            recorded: Vec::new(),
            largest: 0,
        }
    }

    /// Two ends with a session.
    pub(crate) fn connected(seed: u64, settings: TunnelSettings, limits: Limits) -> Self {
        let mut world = Self::new(seed, settings, limits);
        world.run_for(Duration::from_secs(2));
        world
    }

    /// Sends packets of hosts behind an end in one batch, of these sizes.
    pub(crate) fn send(&mut self, end: usize, flow: u16, sizes: &[usize]) {
        let from = &mut self.ends[end];
        let now = from.local(self.now);
        for &bytes in sizes {
            let next = from.next.entry(flow).or_default();
            let mut buffer = vec![0; HEADROOM];
            buffer.extend(packet(end, flow, *next, bytes));
            *next += 1;
            from.sent += 1;
            from.path.on_packet(now, &mut buffer);
        }
        from.path.flush(now);
        self.drain(end);
    }

    /// Kills an end and starts it again: it has nothing but its settings.
    pub(crate) fn restart(&mut self, end: usize) {
        self.number += 1;
        let plan = plan(end, &self.settings, self.limits);
        self.ends[end].path = path(self.number, end, plan);
        self.ends[end].started = self.now;
    }

    /// Gives the terminal another address; what is sent to the former one is lost.
    pub(crate) fn roam(&mut self) {
        let port = self.ends[0].address.port() + 1;
        self.ends[0].address = address(0, port);
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let until = self.now + duration;
        loop {
            let arrival = self.in_transit.keys().next().map(|&(at, _)| at);
            let wakes = self.ends.iter().filter_map(|end| {
                let at = end.path.next_wake()?;
                Some(end.started + at.saturating_since(Instant::START))
            });
            let Some(at) = wakes.chain(arrival).min().filter(|&at| at <= until) else { break };
            self.now = at.max(self.now);
            while let Some(entry) = self.in_transit.first_entry()
                && entry.key().0 <= self.now
            {
                let (to, from, bytes) = entry.remove();
                if let Some(end) = (0..2).find(|&end| self.ends[end].address == to) {
                    self.arrive(end, from, bytes);
                }
            }
            for end in 0..2 {
                let now = self.ends[end].local(self.now);
                let path = &mut self.ends[end].path;
                path.wake(now, UNIX_NANOS + self.now.as_nanos());
                assert!(path.next_wake().is_none_or(|at| at > now), "no progress at {now}");
                self.drain(end);
            }
        }
        self.now = until;
    }

    /// A datagram arrives. Nothing is sent before the batch ends.
    pub(crate) fn arrive(&mut self, end: usize, from: SocketAddr, mut bytes: Vec<u8>) {
        let now = self.ends[end].local(self.now);
        self.ends[end].path.on_datagram(now, &mut bytes, (from, Ecn::NotEct));
    }

    /// Takes what an end sends and delivers.
    pub(crate) fn drain(&mut self, end: usize) {
        let from = &self.ends[end];
        let datagrams: Vec<_> =
            from.path.datagrams().iter().map(|(to, _, bytes)| (to, bytes.to_vec())).collect();
        for (to, bytes) in datagrams {
            self.transmit(end, to, bytes);
        }
        let end = &mut self.ends[end];
        let packets: Vec<_> = end.path.packets().map(<[u8]>::to_vec).collect();
        end.path.clear();
        assert!(end.path.is_consistent());
        for packet in packets {
            end.check(&packet, self.now);
        }
    }

    /// The size of the largest datagram so far.
    pub(crate) fn largest_datagram(&self) -> usize {
        self.largest
    }

    fn happens(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.rng.below(1_000_000) < ppm
    }

    fn transmit(&mut self, end: usize, to: SocketAddr, mut bytes: Vec<u8>) {
        self.datagrams[0] += 1;
        self.largest = self.largest.max(bytes.len());
        if self.ends[end].burst_left == 0 && self.happens(self.channel.loss_ppm) {
            self.ends[end].burst_left = self.channel.burst;
        }
        if self.ends[end].burst_left > 0 {
            self.ends[end].burst_left -= 1;
            self.datagrams[1] += 1;
            return;
        }
        if self.rng.below(50) == 0 && self.recorded.len() < 1_000 {
            self.recorded.push((1 - end, bytes.clone()));
        }
        if self.happens(self.channel.flip_ppm) {
            let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let copies = 1 + u64::from(self.happens(self.channel.duplicate_ppm));
        for _ in 0..copies {
            let jitter = match self.channel.jitter.as_nanos() {
                0 => 0,
                jitter => self.rng.below(jitter),
            };
            let at = self.now + self.channel.delay + Duration::from_nanos(jitter);
            self.number += 1;
            let from = self.ends[end].address;
            self.in_transit.insert((at, self.number), (to, from, bytes.clone()));
        }
    }
}

fn path(seed: u64, end: usize, plan: PathPlan) -> Path {
    let random = Seeded(Rng::stream(seed, ["path of the terminal", "path of the hub"][end]));
    Path::new(plan, Box::new(random)).expect("a plan without contradictions")
}

impl End {
    /// Every packet that is delivered was sent like that, but for a mark.
    fn check(&mut self, delivered: &[u8], now: Instant) {
        let flow = u16::from_be_bytes([delivered[20], delivered[21]]);
        let number = u32::from_be_bytes([28, 29, 30, 31].map(|at| delivered[at]));
        let expected = packet(usize::from(delivered[13]), flow, number, delivered.len());
        assert_eq!(delivered[20..], expected[20..], "flow {flow}, packet {number}");
        assert!(delivered[..20] == expected[..20] || delivered[1] == 0b11, "an intact header");
        let next = self.expected.entry(flow).or_default();
        self.late += u64::from(number < *next);
        *next = (*next).max(number + 1);
        self.delivered += 1;
        self.first_delivered_at.get_or_insert(now);
    }
}
