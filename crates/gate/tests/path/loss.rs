//! What of a loss remains behind the decoder, and what that costs.

use bentpipe_core::time::Duration;
use bentpipe_core::tunnel::{RedundancySettings, SignalSettings, TunnelSettings};
use bentpipe_gate::tunnel::Limits;

use crate::world::{Channel, World, number, seed, settings};

const THOUSANDS: u64 = 60;

fn adaptive(cap_ppm: u32) -> TunnelSettings {
    let redundancy = RedundancySettings::Adaptive {
        cap_ppm,
        initial_loss_ppm: 10_000,
        margin: 5,
        averaging_symbols: 512,
        decay_time_ns: 2_000_000_000,
        window_min_symbols: 128,
        window_max_symbols: 512,
        report_delay_ns: 700_000_000,
    };
    TunnelSettings { redundancy, ..settings() }
}

/// The terminal sends so many thousands of packets, each in a symbol of its own, 5,000 a second.
fn send_thousands(world: &mut World, thousands: u64) {
    for _ in 0..thousands * 200 {
        for flow in 0..5 {
            world.send(0, flow * 2, &[120]);
        }
        world.run_for(Duration::from_millis(1));
    }
    world.run_for(Duration::from_secs(3));
}

/// Given 1 % random loss and repair of 10 % over 64 symbols, expect fewer than one packet of 10,000 to be lost, and all
/// others in the order of their flows.
#[test]
fn fixed_repair_leaves_few_random_losses() {
    let thousands = THOUSANDS * number("BENTPIPE_STRESS").unwrap_or(1);
    let mut world = World::connected(seed(), settings(), Limits::DEFAULT);
    world.channel = Channel { loss_ppm: 10_000, ..Channel::CLEAN };
    send_thousands(&mut world, thousands);
    let (sent, delivered) = (world.ends[0].sent, world.ends[1].delivered);
    let counters = world.ends[1].counters(world.now);
    eprintln!("{} of {sent} packets lost; {:?}", sent - delivered, counters.code);
    assert!((sent - delivered) * 10_000 <= sent, "{delivered} of {sent}");
    assert_eq!(world.ends[1].late, 0);
    assert!(counters.code.recovered * 1_000 > 8 * sent, "losses were decoded");
}

/// Given no loss, expect less than one repair symbol for each 100 source symbols.
#[test]
fn adaptive_repair_costs_little_on_a_clean_link() {
    let mut world = World::connected(seed(), adaptive(200_000), Limits::DEFAULT);
    // The estimate begins at 1 % loss: first it falls.
    send_thousands(&mut world, 60);
    let before = world.ends[0].counters(world.now).code;
    send_thousands(&mut world, 60);
    let after = world.ends[0].counters(world.now).code;
    let sources = after.sources_sent - before.sources_sent;
    let repairs = after.repairs_sent - before.repairs_sent;
    eprintln!("{repairs} repairs for {sources} sources; from the start {after:?}");
    assert!(repairs * 100 < sources, "{repairs} of {sources}");
    assert_eq!(world.ends[1].delivered, world.ends[0].sent);
}

/// Given 5 % loss in bursts of 10, expect repair within the cap, and a tenth of the loss to remain at most.
#[test]
fn adaptive_repair_stays_under_its_cap() {
    let mut world = World::connected(seed(), adaptive(200_000), Limits::DEFAULT);
    world.channel = Channel { loss_ppm: 5_263, burst: 10, ..Channel::CLEAN };
    send_thousands(&mut world, 60);
    let code = world.ends[0].counters(world.now).code;
    let (sent, delivered) = (world.ends[0].sent, world.ends[1].delivered);
    let [datagrams, lost] = world.datagrams;
    eprintln!("{lost} of {datagrams} datagrams lost, {} of {sent} packets", sent - delivered);
    eprintln!("{} repairs for {} sources", code.repairs_sent, code.sources_sent);
    assert!(code.repairs_sent * 5 <= code.sources_sent);
    assert!((sent - delivered) * 200 < sent, "{delivered} of {sent}");
}

/// Given loss and settings that mark or withhold decoded packets, expect each decoded packet to be marked, or a tenth
/// to be missing.
#[test]
fn flows_are_told_of_decoded_losses() {
    for signal in [SignalSettings::Ecn, SignalSettings::Visible { share_ppm: 100_000 }] {
        let settings = TunnelSettings { congestion_signal: signal, ..settings() };
        let mut world = World::connected(seed(), settings, Limits::DEFAULT);
        world.channel = Channel { loss_ppm: 10_000, ..Channel::CLEAN };
        send_thousands(&mut world, 10);
        let traffic = world.ends[1].counters(world.now).traffic;
        assert!(traffic.decoded_packets > 50);
        let (marked, withheld) = match signal {
            SignalSettings::Ecn => (traffic.decoded_packets, 0),
            _ => (0, traffic.decoded_packets / 10),
        };
        assert_eq!((traffic.marked_packets, traffic.withheld_packets), (marked, withheld));
        assert_eq!(world.ends[1].late, 0);
    }
}
