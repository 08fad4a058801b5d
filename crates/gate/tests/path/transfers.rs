//! Random transfers with all that may happen at a time.

use bentpipe_core::rng::Rng;
use bentpipe_core::time::Duration;
use bentpipe_core::tunnel::{TitrationSettings, TunnelSettings};
use bentpipe_gate::tunnel::Limits;

use crate::world::{Channel, PACKET_BYTES_MIN, World, number, seed, settings};

/// Every event with every titration.
const TRANSFERS: u64 = 12;
/// Sessions are renewed after 300 packets.
const SHORT: Limits = Limits { renew_packets: 300, end_packets: 2_000, ..Limits::DEFAULT };

/// What happens in the middle of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    Roaming,
    Restart(usize),
}

/// A transfer of some thousand packets in six flows.
fn transfer(seed: u64, event: Event, titration: TitrationSettings) -> World {
    let mut settings = TunnelSettings { titration, ..settings() };
    settings.queue.rate_bps = 20_000_000;
    let mut world = World::connected(seed, settings, SHORT);
    let mut rng = Rng::stream(seed, "hosts");
    world.channel = Channel {
        jitter: Duration::from_millis(rng.below(8)),
        loss_ppm: 50_000,
        duplicate_ppm: 10_000,
        flip_ppm: 5_000,
        ..Channel::CLEAN
    };
    let bytes_max = (1_426 - PACKET_BYTES_MIN) as u64;
    for step in 0..800 {
        let end = rng.below(2) as usize;
        let flow = rng.below(3) as u16 * 2 + end as u16;
        let count = 1 + rng.below(6);
        let size = |rng: &mut Rng| PACKET_BYTES_MIN + rng.below(bytes_max + 1) as usize;
        let sizes: Vec<_> = (0..count).map(|_| size(&mut rng)).collect();
        world.send(end, flow, &sizes);
        world.run_for(Duration::from_micros(rng.below(10_000)));
        match event {
            Event::Roaming if step == 300 => world.roam(),
            Event::Restart(end) if step == 300 => world.restart(end),
            _ => {}
        }
    }
    world.run_for(Duration::from_secs(5));
    world
}

/// Whether a second of packets passes in both directions again, but for a tenth, after at most 20 s.
fn has_recovered(world: &mut World) -> bool {
    (0..20).any(|_| {
        let before = world.ends.each_ref().map(|end| end.delivered);
        for _ in 0..50 {
            (0..2).for_each(|end| world.send(end, end as u16, &[500]));
            world.run_for(Duration::from_millis(20));
        }
        world.run_for(Duration::from_secs(2));
        (0..2).all(|end| world.ends[end].delivered >= before[end] + 45)
    })
}

/// Given 5 % loss, reordering, duplicates, bit errors and renewals of the session, when the terminal roams or an end
/// restarts in three of four transfers, then every packet that is delivered is intact, and traffic flows again, whenever
/// repair is sent. Without such an event, and with repair at once, fewer than 3 % of the packets are lost.
#[test]
fn what_is_delivered_is_intact() {
    let (count, seed) = (TRANSFERS * number("BENTPIPE_STRESS").unwrap_or(1), seed());
    let events = [Event::Nothing, Event::Roaming, Event::Restart(0), Event::Restart(1)];
    let titrations = [
        TitrationSettings::Immediate,
        TitrationSettings::Delayed { delay_ns: 50_000_000 },
        TitrationSettings::Titrated { threshold_bytes: 20_000, hold_time_ns: 300_000_000 },
    ];
    let (mut sent, mut delivered, mut late, mut renewals) = (0, 0, 0, 0);
    for transfer_seed in seed..seed + count {
        let event = events[transfer_seed as usize % events.len()];
        let titration = titrations[transfer_seed as usize / events.len() % titrations.len()];
        let mut world = transfer(transfer_seed, event, titration);
        for end in &world.ends {
            let counters = end.counters(world.now);
            renewals += counters.sessions.as_initiator + counters.sessions.answered_handshakes;
            assert_eq!(counters.traffic.refused_packets, 0);
            assert_eq!(counters.traffic.refused_sources, 0);
            assert_eq!(counters.order.held.packets, 0, "seed {transfer_seed}");
        }
        if event == Event::Nothing && titration == TitrationSettings::Immediate {
            sent += world.ends.iter().map(|end| end.sent).sum::<u64>();
            delivered += world.ends.iter().map(|end| end.delivered).sum::<u64>();
            late += world.ends.iter().map(|end| end.late).sum::<u64>();
        }
        assert!(has_recovered(&mut world), "{transfer_seed} {event:?}");
    }
    eprintln!("{delivered} of {sent} packets, {late} of them late, {renewals} handshakes");
    // Of 70 datagrams 3.9 are lost or damaged on average. Were they a block with 6 repair symbols, and their number that of
    // Poisson, 0.26 % of the packets would be lost for good; 300 transfers had 0.23 %, and none of them more than 1.9 %.
    assert!((sent - delivered) * 100 < 3 * sent, "{delivered} of {sent} packets");
    // A packet is late if it is decoded after those behind it have waited for the hold time: 54 of 837,917 in these 300
    // transfers, in six of 231 others 7 to 20 of 2,700.
    assert!(late * 100 <= delivered, "{late} of {delivered} packets are late");
    assert!(renewals > 4 * count, "sessions are renewed");
}

/// Given traffic in both directions over a path of 10 ms, when an end restarts, then each packet that arrives of the streams
/// that follow each other in the next round trips is delivered, and the last streams are coded.
#[test]
fn a_restart_over_a_short_path_refuses_nothing() {
    for restarted in [0, 1] {
        let mut world = World::connected(1, settings(), Limits::DEFAULT);
        world.channel = Channel { delay: Duration::from_millis(5), ..Channel::CLEAN };
        world.run_for(Duration::from_secs(1));
        for step in 0..4_000 {
            if step == 500 {
                world.restart(restarted);
            }
            world.send(0, 0, &[100]);
            world.send(1, 1, &[100]);
            world.run_for(Duration::from_millis(1));
        }
        for end in [0, 1] {
            let counters = world.ends[end].counters(world.now);
            assert_eq!(counters.traffic.refused_messages, 0, "{restarted} {end}");
            assert_eq!(counters.traffic.outdated_symbols, 0, "{restarted} {end}");
            assert!(counters.code.sources_received > 1_000, "{restarted} {end}");
        }
    }
}

/// Given traffic in both directions over a GEO link, when an end restarts at any instant, then packets arrive at both ends
/// within 3 s, and those of a new stream are coded.
#[test]
fn traffic_flows_again_after_a_restart() {
    for restarted in [0, 1] {
        for step in 0..8 {
            let mut world = World::connected(step, settings(), Limits::DEFAULT);
            let traffic = |world: &mut World, millis: u64| {
                for _ in 0..millis / 10 {
                    world.send(0, 0, &[500]);
                    world.send(1, 1, &[500]);
                    world.run_for(Duration::from_millis(10));
                }
            };
            traffic(&mut world, 1_000 + 130 * step);
            world.restart(restarted);
            let at = world.now;
            // What is in transit for the restarted end is of a session that it does not know; what it sent before still
            // arrives at the other.
            traffic(&mut world, 310);
            world.ends.iter_mut().for_each(|end| end.first_delivered_at = None);
            traffic(&mut world, 4_000);
            for end in &world.ends {
                let first = end.first_delivered_at.expect("packets arrive again");
                let after = first.saturating_since(at);
                assert!(after <= Duration::from_secs(3), "{restarted} {step}: {after}");
                assert_eq!(end.late, 0);
            }
            world.channel.loss_ppm = 20_000;
            let before = world.ends.each_ref().map(|end| end.counters(world.now).code.recovered);
            traffic(&mut world, 4_000);
            for (end, before) in world.ends.iter().zip(before) {
                assert!(end.counters(world.now).code.recovered > before, "losses are decoded");
            }
        }
    }
}
