//! Gateways and the network between them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_gate::tunnel::{
    Datagram, HEADER_BYTES, Limits, Output, PeerId, PeerSettings, PrivateKey, Random, Settings,
    TAG_BYTES, Tunnel,
};

/// Half of the round trip of a GEO link.
pub(crate) const ONE_WAY: Duration = Duration::from_millis(300);
/// Nanoseconds from 1970 to some day of 2026.
pub(crate) const UNIX_NANOS: u64 = 1_780_000_000_000_000_000;
/// The only peer of a gateway that has one.
pub(crate) const PEER: PeerId = PeerId(0);

pub(crate) fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Random bytes that a seed repeats.
pub(crate) struct Seeded(pub(crate) Rng);

impl Random for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.0.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

pub(crate) fn private_key(name: &str) -> PrivateKey {
    PrivateKey::generate(&mut Seeded(Rng::stream(1, name)))
}

/// A gateway `name` with these peers, by name and endpoint.
pub(crate) fn settings(name: &str, peers: &[(&str, Option<SocketAddr>)]) -> Settings {
    let peer = |&(name, endpoint): &(&str, Option<SocketAddr>)| PeerSettings {
        public_key: private_key(name).public(),
        endpoint,
        keepalive: None,
    };
    Settings {
        private_key: private_key(name),
        peers: peers.iter().map(peer).collect(),
        limits: Limits::DEFAULT,
    }
}

/// A datagram that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// What the network does with a datagram: one delay for each copy that arrives.
pub(crate) type Fate = Box<dyn FnMut(&Sent) -> Vec<Duration>>;

/// A gateway, and when it started.
pub(crate) struct End {
    pub(crate) tunnel: Tunnel,
    pub(crate) address: SocketAddr,
    /// How much the wall clock of its host is behind.
    pub(crate) clock_behind: Duration,
    started: Instant,
    /// Payloads that arrived: when, from which peer, what.
    pub(crate) delivered: Vec<(Instant, PeerId, Vec<u8>)>,
    /// Payloads without a session.
    pub(crate) unsent: usize,
}

impl End {
    /// The time of this gateway: it counts from its start.
    fn local(&self, now: Instant) -> Instant {
        Instant::START + now.saturating_since(self.started)
    }

    /// The wall clock of its host.
    fn unix_nanos(&self, now: Instant) -> u64 {
        UNIX_NANOS + now.as_nanos() - self.clock_behind.as_nanos()
    }

    /// The payloads that arrived, in the sequence of their arrival.
    pub(crate) fn payloads(&self) -> Vec<&[u8]> {
        self.delivered.iter().map(|(.., payload)| &payload[..]).collect()
    }
}

/// Gateways with addresses, and datagrams in transit.
pub(crate) struct Network {
    pub(crate) now: Instant,
    pub(crate) ends: Vec<End>,
    fate: Fate,
    in_transit: BTreeMap<(Instant, u64), Sent>,
    /// All datagrams that were sent, with those that were lost.
    pub(crate) sent: Vec<Sent>,
    number: u64,
}

impl Network {
    pub(crate) fn new() -> Self {
        Self {
            now: Instant::START,
            ends: Vec::new(),
            fate: Box::new(|_| vec![ONE_WAY]),
            in_transit: BTreeMap::new(),
            sent: Vec::new(),
            number: 0,
        }
    }

    /// Adds a gateway; returns its number.
    pub(crate) fn add(&mut self, address: SocketAddr, settings: Settings) -> usize {
        let tunnel = self.tunnel(settings);
        self.ends.push(End {
            tunnel,
            address,
            clock_behind: Duration::ZERO,
            started: self.now,
            delivered: Vec::new(),
            unsent: 0,
        });
        self.ends.len() - 1
    }

    /// Kills a gateway and starts it again: it has nothing but its settings and the clock of its host.
    pub(crate) fn restart(&mut self, end: usize, settings: Settings) {
        self.ends[end].tunnel = self.tunnel(settings);
        self.ends[end].started = self.now;
    }

    fn tunnel(&mut self, settings: Settings) -> Tunnel {
        self.number += 1;
        let random = Box::new(Seeded(Rng::stream(self.number, "tunnel")));
        Tunnel::new(settings, random).expect("distinct keys")
    }

    /// What happens to datagrams from now on.
    pub(crate) fn set_fate(&mut self, fate: impl FnMut(&Sent) -> Vec<Duration> + 'static) {
        self.fate = Box::new(fate);
    }

    /// Sends a payload now; whether there was a session.
    pub(crate) fn send(&mut self, end: usize, peer: PeerId, payload: &[u8]) -> bool {
        let mut packet = vec![0; HEADER_BYTES];
        packet.extend_from_slice(payload);
        packet.extend_from_slice(&[0; TAG_BYTES]);
        let now = self.ends[end].local(self.now);
        match self.ends[end].tunnel.output(peer, &mut packet, now) {
            Ok(to) => self.transmit(end, to, packet),
            Err(_) => {
                self.ends[end].unsent += 1;
                return false;
            }
        }
        true
    }

    fn transmit(&mut self, end: usize, to: SocketAddr, bytes: Vec<u8>) {
        let sent = Sent { at: self.now, from: self.ends[end].address, to, bytes };
        for delay in (self.fate)(&sent) {
            self.number += 1;
            self.in_transit.insert((self.now + delay, self.number), sent.clone());
        }
        self.sent.push(sent);
    }

    fn transmit_all(&mut self, end: usize, datagrams: &[Datagram]) {
        for datagram in datagrams {
            self.transmit(end, datagram.to(), datagram.bytes().to_vec());
        }
    }

    /// Hands a datagram to a gateway now. Returns what it sends, which is in transit, too.
    pub(crate) fn arrive(
        &mut self,
        end: usize,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Option<Datagram> {
        let mut bytes = bytes.to_vec();
        let now = self.now;
        let gateway = &mut self.ends[end];
        let local = gateway.local(now);
        let answer = match gateway.tunnel.input(&mut bytes, from, local) {
            Output::Nothing => None,
            Output::Send(datagram) => Some(datagram),
            Output::Payload { peer, payload } => {
                gateway.delivered.push((now, peer, payload.to_vec()));
                None
            }
        };
        assert!(gateway.tunnel.is_consistent(), "session indexes leak");
        self.transmit_all(end, answer.as_slice());
        answer
    }

    /// Wakes the gateways that are due at this instant.
    fn wake(&mut self) {
        for end in 0..self.ends.len() {
            let gateway = &mut self.ends[end];
            let (local, unix_nanos) = (gateway.local(self.now), gateway.unix_nanos(self.now));
            if gateway.tunnel.next_wake().is_none_or(|at| at > local) {
                continue;
            }
            let mut datagrams = Vec::new();
            gateway.tunnel.wake(local, unix_nanos, &mut datagrams);
            assert!(gateway.tunnel.is_consistent(), "session indexes leak");
            let next = gateway.tunnel.next_wake();
            assert!(
                next.is_none_or(|at| at > local),
                "it would wake forever: {next:?} at {local:?}"
            );
            let again = datagrams.len();
            gateway.tunnel.wake(local, unix_nanos, &mut datagrams);
            assert_eq!(datagrams.len(), again, "a repeated wake-up has no effect");
            self.transmit_all(end, &datagrams);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let wakes = self.ends.iter().filter_map(|end| {
            let at = end.tunnel.next_wake()?.saturating_since(Instant::START);
            Some((end.started + at).max(self.now))
        });
        let arrivals = self.in_transit.keys().next().map(|&(at, _)| at);
        wakes.chain(arrivals).min()
    }

    /// Lets time pass until `end`, with all events up to it.
    pub(crate) fn run_until(&mut self, end: Instant) {
        while let Some(at) = self.next_event().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            while let Some(entry) = self.in_transit.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let Sent { from, to, bytes, .. } = entry.remove();
                if let Some(end) = self.ends.iter().position(|end| end.address == to) {
                    self.arrive(end, from, &bytes);
                }
            }
            self.wake();
        }
        self.now = self.now.max(end);
    }

    /// Kind, sender's number and length of the datagrams sent since `start`.
    pub(crate) fn log(&self, start: Instant) -> Vec<(u8, usize, usize)> {
        let entry = |sent: &Sent| {
            let end = self.ends.iter().position(|end| end.address == sent.from);
            (sent.bytes[0], end.expect("a gateway sent it"), sent.bytes.len())
        };
        self.sent.iter().filter(|sent| sent.at >= start).map(entry).collect()
    }
}

pub(crate) fn terminal_address() -> SocketAddr {
    address("192.0.2.1:4000")
}

pub(crate) fn hub_address() -> SocketAddr {
    address("[2001:db8::1]:4000")
}

/// A terminal (0), which knows where the hub is, and a hub (1), which learns where the terminal is.
pub(crate) fn pair() -> Network {
    pair_with(Limits::DEFAULT)
}

/// The same, with other limits of sessions.
pub(crate) fn pair_with(limits: Limits) -> Network {
    let mut network = Network::new();
    network.add(terminal_address(), Settings { limits, ..terminal() });
    network.add(hub_address(), Settings { limits, ..hub() });
    network
}

pub(crate) fn terminal() -> Settings {
    settings("terminal", &[("hub", Some(hub_address()))])
}

pub(crate) fn hub() -> Settings {
    settings("hub", &[("terminal", None)])
}

/// The terminal and the hub, some time after their handshake.
pub(crate) fn connected_pair() -> Network {
    let mut network = pair();
    network.run_until(ms(2_000));
    network
}
