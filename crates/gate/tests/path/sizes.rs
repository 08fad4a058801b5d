//! What goes into a datagram.

use bentpipe_core::time::Duration;
use bentpipe_gate::tunnel::path::{Path, PathPlan, full_symbol_bytes, inner_mtu};
use bentpipe_gate::tunnel::{Limits, OsRandom};

use crate::world::{Channel, World, plan, settings};

/// Given the inner MTU for an outer MTU of 1,500, expect the largest packet, coded or not, its repair and a repair of many
/// small packets to fit into 1,500 bytes with IPv4 and UDP, and the coded ones to fill them.
#[test]
fn the_largest_packet_fills_the_outer_mtu() {
    let mtu = inner_mtu(1_500, false).expect("1,500 is enough");
    let mut settings = settings();
    settings.symbol_size_bytes = full_symbol_bytes(mtu);
    for packet_size_bytes in [0, 65_535] {
        settings.classifier.packet_size_bytes = packet_size_bytes;
        let mut world = World::connected(1, settings.clone(), Limits::DEFAULT);
        for _ in 0..100 {
            world.send(0, 0, &[mtu.into(), mtu.into()]);
            world.send(0, 0, &[60; 40]);
        }
        world.run_for(Duration::from_secs(1));
        let sent = world.ends[0].counters(world.now).traffic.datagrams_sent;
        assert!(sent.packets > 100 && sent.bytes <= 1_500 * sent.packets);
        assert_eq!(world.ends[1].delivered, 100 * 42);
        let largest = world.largest_datagram();
        assert_eq!(largest + 28, if packet_size_bytes == 0 { 1_500 } else { 1_484 });
    }
}

/// Given 24 packets of 60 bytes in a batch, expect them to share symbols: 22 fit into 1,432 bytes with 6 bytes each.
#[test]
fn small_packets_share_a_symbol() {
    let mut world = World::connected(1, settings(), Limits::DEFAULT);
    world.send(0, 0, &[60; 24]);
    assert_eq!(world.ends[0].counters(world.now).code.sources_sent, 2);
    world.send(0, 0, &[60]);
    assert_eq!(world.ends[0].counters(world.now).code.sources_sent, 3, "a batch of its own");
    world.run_for(Duration::from_secs(1));
    assert_eq!((world.ends[1].delivered, world.ends[1].late), (25, 0));
}

/// Given a classifier that codes packets from 100 bytes on, when a small packet follows a large one of its flow in a
/// batch, then it does not overtake it.
#[test]
fn uncoded_packets_stay_behind_coded_ones_of_their_flow() {
    let mut settings = settings();
    settings.classifier.packet_size_bytes = 100;
    let mut world = World::connected(1, settings, Limits::DEFAULT);
    for _ in 0..50 {
        world.send(0, 0, &[100, 60, 200, 60, 60, 300]);
        world.run_for(Duration::from_millis(5));
    }
    world.run_for(Duration::from_secs(1));
    assert_eq!((world.ends[1].delivered, world.ends[1].late), (300, 0));
    let traffic = world.ends[0].counters(world.now).traffic;
    assert_eq!((traffic.coded.packets, traffic.uncoded.packets), (150, 150));
}

/// Given a path that carries 1,492 bytes from the terminal and 1,500 from the hub, expect symbols with several packets and their
/// repair to fit into 1,492, and the largest packets of the hub to arrive, recovered ones included.
#[test]
fn paths_of_unequal_mtu_carry_the_largest_packets_of_each() {
    let mtu = inner_mtu(1_492, false).expect("1,492 is enough");
    let mut world = World::new(1, settings(), Limits::DEFAULT);
    let plan = PathPlan { mtu, ..plan(0, &settings(), Limits::DEFAULT) };
    world.ends[0].path = Path::new(plan, Box::new(OsRandom::new())).expect("a plan");
    world.run_for(Duration::from_secs(2));
    for _ in 0..100 {
        // Together 1,427 bytes with 6 bytes each, where a symbol of the path has 1,424.
        world.send(0, 0, &[1_364, 51]);
        world.send(0, 0, &[mtu.into()]);
        world.run_for(Duration::from_millis(1));
    }
    assert_eq!(world.largest_datagram() + 28, 1_492);
    world.channel = Channel { loss_ppm: 20_000, ..Channel::CLEAN };
    for _ in 0..500 {
        world.send(1, 1, &[1_426]);
        world.run_for(Duration::from_millis(1));
    }
    world.run_for(Duration::from_secs(3));
    assert_eq!((world.ends[0].delivered, world.ends[1].delivered), (500, 300));
    let counters = world.ends[0].counters(world.now);
    assert_eq!(counters.traffic.refused_messages, 0);
    assert!(counters.code.recovered > 0);
}
