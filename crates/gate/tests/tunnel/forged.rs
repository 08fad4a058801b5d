//! Datagrams of an attacker who sees, repeats and changes all others.
//!
//! `BENTPIPE_STRESS` times as many datagrams; by hand, 100 times. A failure prints the seed, which
//! `BENTPIPE_STRESS_SEED` replays.

use bentpipe_core::rng::Rng;
use bentpipe_core::time::Duration;
use bentpipe_gate::tunnel::{Kind, Limits, OVERHEAD_BYTES, Random};

use crate::network::{
    Network, ONE_WAY, PEER, Seeded, Sent, address, hub_address, ms, pair_with, terminal_address,
};

const DATAGRAMS: u64 = 100_000;
/// The kinds of datagrams that the parser knows, and their lengths.
const SHAPES: [(u8, usize); 5] = [(1, 173), (2, 89), (3, 69), (4, 1_429), (5, 30)];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Two gateways with renewed sessions, all that they have sent, and packets that have not arrived yet.
fn recorded() -> (Network, Vec<Sent>, [Sent; 2]) {
    let limits = Limits { renew_packets: 60, end_packets: 1 << 20, ..Limits::DEFAULT };
    let mut network = pair_with(limits);
    network.run_until(ms(2_000));
    for number in 0..300_u32 {
        for end in [0, 1] {
            assert!(network.send(end, PEER, &[number as u8; 60]));
        }
        network.run_until(network.now + Duration::from_millis(20));
    }
    network.run_until(network.now + Duration::from_secs(3));
    let past = network.sent.clone();
    network.set_fate(|_| vec![]);
    let undelivered = [0, 1].map(|end| {
        assert!(network.send(end, PEER, &[7; 100]));
        network.sent.last().expect("it was sent").clone()
    });
    (network, past, undelivered)
}

/// One datagram of the attacker.
fn forge(random: &mut Seeded, past: &[Sent], undelivered: &[Sent; 2], to: usize) -> Vec<u8> {
    let pick = random.0.below(past.len() as u64) as usize;
    let mut bytes = past[pick].bytes.clone();
    match random.0.below(7) {
        // Random bytes, of any length or of one that the parser accepts, with a session index in use or without.
        0 => {
            bytes = vec![0; random.0.below(200) as usize];
            random.fill(&mut bytes);
        }
        1 | 2 => {
            let (kind, length) = SHAPES[random.0.below(5) as usize];
            let start: Vec<u8> = bytes[..13].to_vec();
            bytes = vec![0; length];
            random.fill(&mut bytes);
            bytes[0] = kind;
            let known = [0, 5, 13][random.0.below(3) as usize].max(1);
            bytes[1..known].copy_from_slice(&start[1..known]);
        }
        // What was sent before, unchanged, truncated, extended, or with changed bits.
        3 => {}
        4 => bytes.truncate(random.0.below(bytes.len() as u64) as usize),
        5 => bytes.resize(bytes.len() + 1 + random.0.below(40) as usize, 0),
        // A packet that its receiver would accept, with a changed bit.
        _ => {
            bytes = undelivered[1 - to].bytes.clone();
            flip(random, &mut bytes);
        }
    }
    if random.0.below(3) == 0 && !bytes.is_empty() && bytes != undelivered[1 - to].bytes {
        flip(random, &mut bytes);
        if bytes == undelivered[1 - to].bytes {
            bytes.clear();
        }
    }
    bytes
}

fn flip(random: &mut Seeded, bytes: &mut [u8]) {
    let bit = random.0.below(bytes.len() as u64 * 8) as usize;
    bytes[bit / 8] ^= 1 << (bit % 8);
}

/// Given two gateways under a session, when 100,000 datagrams are forged, truncated, changed or repeated, then none is
/// answered, none is accepted and no endpoint moves; the true packets are accepted after them.
#[test]
fn no_forged_datagram_is_answered_or_accepted() {
    let count = DATAGRAMS * number("BENTPIPE_STRESS").unwrap_or(1);
    let seed = number("BENTPIPE_STRESS_SEED").unwrap_or(1);
    eprintln!("{count} datagrams, BENTPIPE_STRESS_SEED={seed}");
    let (mut network, past, undelivered) = recorded();
    let mut random = Seeded(Rng::stream(seed, "forged"));
    let before = [0, 1].map(|end| network.ends[end].tunnel.statistics());
    let delivered = network.ends.iter().map(|end| end.delivered.len()).collect::<Vec<_>>();
    let endpoints = [0, 1].map(|end| network.ends[end].tunnel.endpoint(PEER));
    assert_eq!(endpoints, [Some(hub_address()), Some(terminal_address())]);
    let sources = [address("203.0.113.1:1"), terminal_address(), hub_address()];
    for case in 0..count {
        let to = random.0.below(2) as usize;
        let datagram = forge(&mut random, &past, &undelivered, to);
        let from = sources[random.0.below(3) as usize];
        let answer = network.arrive(to, from, &datagram);
        assert_eq!(answer, None, "case {case}: {datagram:02x?}");
    }
    for end in [0, 1] {
        let after = network.ends[end].tunnel.statistics();
        assert_eq!(network.ends[end].delivered.len(), delivered[end]);
        assert_eq!(network.ends[end].tunnel.endpoint(PEER), endpoints[end]);
        // All were refused.
        let refused = after.refused_datagrams - before[end].refused_datagrams;
        assert_eq!(
            (after.payloads, after.answered_handshakes),
            (before[end].payloads, before[end].answered_handshakes)
        );
        assert!(refused > count * 2 / 5, "{refused}");
    }
    for (from, packet) in undelivered.iter().enumerate() {
        network.arrive(1 - from, packet.from, &packet.bytes);
        let last = network.ends[1 - from].delivered.last().expect("it was accepted");
        assert_eq!(last.2, [7; 100]);
    }
}

/// Each bit of a packet is authenticated, its header included.
#[test]
fn every_changed_bit_is_detected() {
    let (mut network, _, undelivered) = recorded();
    let packet = &undelivered[0];
    let delivered = network.ends[1].delivered.len();
    for bit in 0..packet.bytes.len() * 8 {
        let mut changed = packet.bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(network.arrive(1, packet.from, &changed).is_none());
        assert_eq!(network.ends[1].delivered.len(), delivered, "bit {bit}");
    }
    for length in 0..packet.bytes.len() {
        assert!(network.arrive(1, packet.from, &packet.bytes[..length]).is_none());
    }
    assert_eq!(network.ends[1].delivered.len(), delivered);
    network.arrive(1, packet.from, &packet.bytes);
    assert_eq!(network.ends[1].delivered.len(), delivered + 1);
}

/// Given everything that was ever sent, when it is replayed to both ends, in any sequence and many times, then nothing is
/// answered or delivered. The same after a restart of the receiver, but for first messages: to them an end without a memory
/// sends an answer that is of no use without the keys, and no payload.
#[test]
fn what_is_repeated_is_ignored() {
    let (mut network, past, _) = recorded();
    let before: Vec<_> = network.ends.iter().map(|end| end.delivered.len()).collect();
    for _ in 0..3 {
        for sent in past.iter().rev() {
            for end in [0, 1] {
                assert_eq!(network.arrive(end, sent.from, &sent.bytes), None);
            }
        }
    }
    network.restart(1, crate::network::hub());
    for sent in &past {
        let answer = network.arrive(1, address("203.0.113.1:1"), &sent.bytes);
        assert!(answer.is_none() || sent.bytes[0] == Kind::HandshakeInitiation as u8);
    }
    let after: Vec<_> = network.ends.iter().map(|end| end.delivered.len()).collect();
    assert_eq!(before, after);
    assert_eq!(network.ends[1].tunnel.endpoint(PEER), None);
}

/// Given packets in any sequence within the replay window of 8,128, then all are delivered; a packet that is older than the
/// window is not.
#[test]
fn packets_are_accepted_within_the_window() {
    let mut network = crate::network::connected_pair();
    network.set_fate(|_| vec![]);
    let before = network.sent.len();
    for number in 0..8_129_u32 {
        assert!(network.send(0, PEER, &number.to_be_bytes()));
    }
    let mut packets = network.sent.split_off(before);
    assert!(packets.iter().all(|packet| packet.bytes.len() == OVERHEAD_BYTES + 4));
    // The last one first: the first one is then one too old.
    packets.reverse();
    for packet in &packets {
        network.arrive(1, packet.from, &packet.bytes);
    }
    let numbers: Vec<_> = network.ends[1].payloads().iter().map(|it| it.to_vec()).collect();
    let expected: Vec<_> =
        (1..8_129_u32).rev().map(|number| number.to_be_bytes().to_vec()).collect();
    assert!(numbers == expected, "{}", numbers.len());
    network.run_until(network.now + ONE_WAY);
}
