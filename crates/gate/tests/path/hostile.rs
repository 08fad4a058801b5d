//! Datagrams that nobody who has the keys sent, and packets that a peer may not send.

use std::net::SocketAddr;

use bentpipe_core::rng::Rng;
use bentpipe_core::time::Duration;
use bentpipe_gate::tunnel::path::{HEADROOM, NetworkError, Path, PlanError};
use bentpipe_gate::tunnel::{Limits, OsRandom};

use crate::world::{Channel, World, number, packet, plan, seed, settings};

const DATAGRAMS: u64 = 5_000;

/// Given a tunnel with traffic, when random bytes, and recorded datagrams again, cut or changed arrive, then nothing is
/// delivered and nothing is sent.
#[test]
fn hostile_datagrams_are_ignored() {
    let seed = seed();
    let mut world = World::connected(seed, settings(), Limits::DEFAULT);
    // The last 200 rounds are without losses and repair all before them: what the ends deliver later came later.
    for (rounds, loss_ppm) in [(2_000, 10_000), (200, 0)] {
        world.channel = Channel { loss_ppm, ..Channel::CLEAN };
        for _ in 0..rounds {
            world.send(0, 0, &[100, 1_000]);
            world.send(1, 1, &[700]);
            world.run_for(Duration::from_millis(1));
        }
    }
    let recorded = std::mem::take(&mut world.recorded);
    // What is recorded has arrived once: the first copy of a datagram would move the endpoint to the attacker.
    world.run_for(Duration::from_secs(2));
    assert!(recorded.len() > 20);
    let mut rng = Rng::stream(seed, "attacker");
    let attacker = SocketAddr::from(([198, 51, 100, 1], 7));
    let delivered = world.ends.each_ref().map(|end| end.delivered);
    for _ in 0..DATAGRAMS * number("BENTPIPE_STRESS").unwrap_or(1) {
        let (end, mut bytes) = recorded[rng.below(recorded.len() as u64) as usize].clone();
        match rng.below(4) {
            0 => {
                let length = rng.below(1_600) as usize;
                bytes = (0..length).map(|_| rng.next_u64() as u8).collect();
                if let Some(kind) = bytes.first_mut() {
                    *kind = rng.below(6) as u8;
                }
            }
            1 => bytes.truncate(rng.below(bytes.len() as u64) as usize),
            2 => {
                let bit = rng.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            _ => {}
        }
        world.arrive(end, attacker, bytes);
        assert_eq!(world.ends[end].path.datagrams().len(), 0, "nothing is sent");
        assert_eq!(world.ends[end].path.packets().count(), 0, "nothing is delivered");
    }
    assert_eq!(world.ends.each_ref().map(|end| end.delivered), delivered);
    for counters in world.ends.each_ref().map(|end| end.counters(world.now)) {
        assert!(counters.sessions.refused_datagrams > 1_000);
        assert_ne!(counters.peers[0].endpoint, Some(attacker), "the endpoint stays");
    }
    world.send(0, 0, &[1_000]);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.ends[1].delivered, delivered[1] + 1, "traffic flows as before");
}

/// Given a peer that sends packets from addresses of others, coded and uncoded, expect none to be delivered.
#[test]
fn a_peer_sends_from_its_own_networks_alone() {
    for packet_size_bytes in [0, 2_000] {
        let mut settings = settings();
        settings.classifier.packet_size_bytes = packet_size_bytes;
        let mut world = World::connected(1, settings, Limits::DEFAULT);
        let mut buffer = vec![0; HEADROOM];
        buffer.extend(packet(0, 0, 0, 100));
        // The source is 10.7.0.1.
        buffer[HEADROOM + 13] = 7;
        let now = world.now;
        world.ends[0].path.on_packet(now, &mut buffer);
        world.ends[0].path.flush(now);
        world.drain(0);
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.ends[1].delivered, 0);
        assert_eq!(world.ends[1].counters(world.now).traffic.refused_sources, 1);
    }
}

/// Given packets of hosts that no peer can get, expect each to be counted by its reason.
#[test]
fn packets_that_cannot_be_sent_are_counted() {
    let mut world = World::connected(1, settings(), Limits::DEFAULT);
    let path = &mut world.ends[0].path;
    let mut send = |packet: &[u8]| {
        let mut buffer = vec![0; HEADROOM];
        buffer.extend_from_slice(packet);
        path.on_packet(world.now, &mut buffer);
    };
    send(&[]);
    send(&[0x45; 30]);
    let mut elsewhere = packet(0, 0, 0, 100);
    elsewhere[17] = 9;
    send(&elsewhere);
    send(&packet(0, 0, 0, 1_427));
    path.on_packet(world.now, &mut [0; 2]);
    path.flush(world.now);
    assert_eq!(path.datagrams().len(), 0);
    let answers: Vec<_> = path.packets().map(<[u8]>::to_vec).collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][20..22], [3, 4], "fragmentation needed");
    assert_eq!(answers[0][26..28], 1_426_u16.to_be_bytes());
    let hosts = path.counters(world.now).hosts;
    assert_eq!((hosts.dropped_malformed, hosts.dropped_no_route), (3, 1));
    assert_eq!((hosts.dropped_too_big, hosts.too_big_answers), (1, 1));
}

/// Given no session and 200 packets, expect the last 128 to be sent when there is one, and 72 to be counted.
#[test]
fn packets_wait_for_a_session() {
    let mut world = World::new(1, settings(), Limits::DEFAULT);
    for _ in 0..200 {
        world.send(0, 0, &[100]);
    }
    assert_eq!(world.ends[0].counters(world.now).peers[0].waiting_packets, 128);
    world.run_for(Duration::from_secs(3));
    let counters = world.ends[0].counters(world.now);
    assert_eq!((counters.traffic.dropped_no_session, world.ends[1].delivered), (72, 128));
    assert_eq!(counters.peers[0].waiting_packets, 0);
}

/// Given an outage of 6 s, and packets at its start and after 4 s, expect those of the start to be dropped and counted: TCP
/// has retransmitted them.
#[test]
fn packets_wait_for_four_seconds() {
    let mut world = World::new(1, settings(), Limits::DEFAULT);
    world.channel = Channel { loss_ppm: 1_000_000, ..Channel::CLEAN };
    for duration in [4, 2].map(Duration::from_secs) {
        world.send(0, 0, &[100; 5]);
        world.run_for(duration);
    }
    world.channel = Channel::CLEAN;
    world.run_for(Duration::from_secs(3));
    let counters = world.ends[0].counters(world.now);
    assert_eq!((counters.traffic.dropped_no_session, world.ends[1].delivered), (5, 5));
}

#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    let refused = |change: &dyn Fn(&mut bentpipe_gate::tunnel::path::PathPlan)| {
        let mut plan = plan(0, &settings(), Limits::DEFAULT);
        change(&mut plan);
        Path::new(plan, Box::new(OsRandom::new())).err()
    };
    assert_eq!(refused(&|_| {}), None);
    assert_eq!(refused(&|plan| plan.mtu = 575), Some(PlanError::Mtu(575)));
    let network = ([10, 0, 0, 0].into(), 33);
    let expected = Some(PlanError::Network(NetworkError::Prefix(network.0, 33)));
    assert_eq!(refused(&|plan| plan.peers[0].networks.push(network)), expected);
    let error = refused(&|plan| plan.settings.density = 16).expect("an error").to_string();
    assert_eq!(error, "density is 16 but must be from 0 to 15");
}
