//! The sessions of the tunnel: headers, keys, and two gateways with an attacker between them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_gate::tunnel::{
    Header, Kind, Limits, OVERHEAD_BYTES, Output, PeerId, PeerSettings, PrivateKey, PublicKey,
    Random, Settings, Tunnel,
};

use crate::ITERATIONS;
use crate::decoder::Decoder;

const STEPS_MAX: u64 = 200;
const PAYLOAD_AT: usize = 13;

struct Seeded(Rng);

impl Random for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.0.next_u64() as u8);
    }
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, end as u8], 1))
}

/// One of two gateways that know each other. Their keys are those of their numbers.
fn gateway(end: usize, start: u64) -> Tunnel {
    let key = |end: usize| {
        let name = ["terminal", "hub"][end];
        PrivateKey::generate(&mut Seeded(Rng::stream(1, name)))
    };
    let peer = PeerSettings {
        public_key: key(1 - end).public(),
        endpoint: Some(address(1 - end)),
        keepalive: None,
    };
    let settings = Settings {
        private_key: key(end),
        peers: vec![peer],
        limits: Limits { renew_packets: 8, end_packets: 20, ..Limits::DEFAULT },
    };
    let random = Seeded(Rng::stream(start * 2 + end as u64, "tunnel"));
    Tunnel::new(settings, Box::new(random)).expect("distinct keys")
}

/// A header that is read has the kind of the first byte and its numbers. Whatever the bytes are, a gateway does not answer
/// them and leaves them as they are: none has a MAC by chance.
#[test]
fn any_header() {
    let from = address(0);
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let header = Header::parse(bytes);
        if let Some(Header::Transport { kind, receiver, counter }) = header {
            assert_eq!(bytes[0], kind as u8);
            assert!(bytes.len() >= OVERHEAD_BYTES);
            assert_eq!(bytes[1..5], receiver.to_be_bytes());
            assert_eq!(bytes[5..13], counter.to_be_bytes());
        }
        assert!(header.is_none() || (1..=Kind::Keepalive as u8).contains(&bytes[0]));
        let mut datagram = bytes.to_vec();
        let mut tunnel = gateway(1, 1);
        assert_eq!(tunnel.input(&mut datagram, from, Instant::START), Output::Nothing);
        assert_eq!(datagram, bytes);
    });
}

/// A text that is a key is written as it was read, but for white space around it.
#[test]
fn any_key() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(key) = PublicKey::parse(text) {
            assert_eq!(key.to_string(), text.trim());
        }
        // Any 32 bytes have a text that is read again.
        if let Some(bytes) = bytes.first_chunk() {
            let key = PublicKey::from_bytes(*bytes);
            assert_eq!(PublicKey::parse(&key.to_string()), Ok(key));
        }
    });
}

/// Two gateways; all their datagrams pass an attacker, who keeps them.
struct Run {
    ends: [Tunnel; 2],
    now: Instant,
    starts: u64,
    /// The wall clock of each end at the start.
    unix_nanos: [u64; 2],
    /// Receiver and bytes.
    datagrams: Vec<(usize, Vec<u8>)>,
    payloads: [u64; 2],
    delivered: [BTreeSet<u64>; 2],
}

/// Whatever the attacker delivers, changes, repeats or drops, payloads are delivered as they were sent and at most once,
/// and no session index leaks.
#[test]
fn any_events() {
    bolero::check!().with_iterations(ITERATIONS / 10).for_each(|bytes: &[u8]| {
        let mut run = Run {
            ends: [gateway(0, 1), gateway(1, 1)],
            now: Instant::START,
            starts: 1,
            unix_nanos: [1 << 50; 2],
            datagrams: Vec::new(),
            payloads: [0; 2],
            delivered: [BTreeSet::new(), BTreeSet::new()],
        };
        let mut decoder = Decoder::new(bytes);
        for _ in 0..STEPS_MAX {
            if decoder.is_empty() {
                break;
            }
            run.step(&mut decoder);
        }
        let undisturbed = run.settle();
        assert!(undisturbed, "two gateways find each other again");
    });
}

impl Run {
    fn step(&mut self, decoder: &mut Decoder<'_>) {
        let end = usize::from(decoder.flag());
        match decoder.below(8) {
            0 => self.wake(decoder.scaled(24)),
            1 => self.wake(0),
            2 => self.send(end),
            3 => {
                for _ in 0..decoder.below(30) {
                    self.send(end);
                }
            }
            4 if decoder.below(4) == 0 => self.restart(end),
            5 => self.deliver_changed(decoder),
            // The last datagrams are delivered more often than old ones.
            _ => {
                let back = decoder.below(16) as usize + 1;
                if let Some(position) = self.datagrams.len().checked_sub(back) {
                    let (to, bytes) = self.datagrams[position].clone();
                    self.arrive(to, bytes, address(1 - to));
                }
            }
        }
        for tunnel in &self.ends {
            assert!(tunnel.is_consistent());
        }
    }

    /// Time passes, by some units of 1,024 ns.
    fn wake(&mut self, units: u64) {
        self.now += Duration::from_nanos(units << 10);
        for end in 0..2 {
            let mut out = Vec::new();
            let unix_nanos = self.unix_nanos[end] + self.now.as_nanos();
            self.ends[end].wake(self.now, unix_nanos, &mut out);
            assert!(self.ends[end].next_wake().is_none_or(|at| at > self.now));
            self.datagrams.extend(out.iter().map(|datagram| (1 - end, datagram.bytes().to_vec())));
        }
    }

    /// A payload is the number of its sender's payloads so far.
    fn send(&mut self, end: usize) {
        self.payloads[end] += 1;
        let mut packet = vec![0; OVERHEAD_BYTES + 8];
        packet[PAYLOAD_AT..PAYLOAD_AT + 8].copy_from_slice(&self.payloads[end].to_be_bytes());
        if self.ends[end].output(PeerId(0), &mut packet, self.now).is_ok() {
            self.datagrams.push((1 - end, packet));
        }
    }

    /// A new process with the same key, and a later clock.
    fn restart(&mut self, end: usize) {
        self.starts += 1;
        self.ends[end] = gateway(end, self.starts);
        self.unix_nanos[end] = self.starts << 50;
    }

    fn deliver_changed(&mut self, decoder: &mut Decoder<'_>) {
        let back = decoder.below(64) as usize + 1;
        let Some(position) = self.datagrams.len().checked_sub(back) else { return };
        let (to, original) = self.datagrams[position].clone();
        let mut bytes = original.clone();
        let at = decoder.below(bytes.len() as u64) as usize;
        if decoder.flag() {
            bytes.truncate(at);
        } else {
            bytes[at] ^= decoder.u8();
        }
        if bytes == original {
            return;
        }
        let before = self.delivered[to].len();
        self.arrive(to, bytes, address(1 - to));
        assert_eq!(self.delivered[to].len(), before, "a changed packet was delivered");
    }

    fn arrive(&mut self, to: usize, mut bytes: Vec<u8>, from: SocketAddr) {
        match self.ends[to].input(&mut bytes, from, self.now) {
            Output::Nothing => {}
            Output::Send(datagram) => self.datagrams.push((1 - to, datagram.bytes().to_vec())),
            Output::Payload { payload, .. } => {
                let number = u64::from_be_bytes((&*payload).try_into().expect("8 bytes"));
                assert!((1..=self.payloads[1 - to]).contains(&number), "never sent");
                assert!(self.delivered[to].insert(number), "delivered twice");
            }
        }
    }

    /// The attacker leaves, and both ends send: whether both receive within 5 s.
    fn settle(&mut self) -> bool {
        let before = [0, 1].map(|end| self.delivered[end].len());
        for _ in 0..50 {
            self.wake(100_000_000 >> 10);
            (0..2).for_each(|end| self.send(end));
            let mut position = self.datagrams.len().saturating_sub(8);
            while let Some((to, bytes)) = self.datagrams.get(position).cloned() {
                position += 1;
                self.arrive(to, bytes, address(1 - to));
            }
            self.datagrams.clear();
        }
        (0..2).all(|end| self.delivered[end].len() > before[end])
    }
}
