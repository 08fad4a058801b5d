//! Orders to chains of links with packets on their way, at random, without a clock.

use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::units::{BitRate, Probability};
use bentpipe_live::emulator::{Emulator, Options, replay};
use bentpipe_live::measure::plain_link;
use bentpipe_live::orders::{OUTAGE_MAX, Order};
use bentpipe_sim::plan::{Channel, ChannelState};
use bentpipe_sim::{InterfaceId, Plan, Side};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Given packets from both sides over one to three links and orders in between, expect each packet
    /// to come out on the other side in order or to be counted as lost, its place to be free again, and
    /// the record to replay as the run.
    #[test]
    fn what_goes_in_comes_out_or_is_counted_and_a_replay_is_the_run(
        hops in 1usize..=3, steps in proptest::collection::vec(steps(), 1..150), seed in any::<u64>(),
    ) {
        let mut link = plain_link(1_000_000, Duration::from_millis(5), 1e-6);
        // One of the directions has fades, of which a few are in the time of the steps.
        let state = |loss_rate, mean_duration_ns| {
            ChannelState { bit_error_rate: 1e-6, loss_rate, mean_duration_ns }
        };
        let (good, bad) = (state(0.0, 100_000_000), state(0.5, 20_000_000));
        link.directions[0].channel = Channel::GilbertElliott { good, bad };
        let plans = vec![link; hops];
        let mut emulator = emulator(&plans, seed);
        let (mut now, mut came, mut out) = (Instant::START, [0_u32; 2], Vec::new());
        for Step { gap, what } in steps {
            now += gap;
            match what {
                What::Packet(side, bytes) => {
                    let place = emulator.room().expect("there is room");
                    emulator.bytes_mut(place)[..4].copy_from_slice(&came[side as usize].to_le_bytes());
                    emulator.arrive(now, side, place, bytes);
                    came[side as usize] += 1;
                }
                What::Order(order) => {
                    let order = Order { hop: order.hop % hops, ..order };
                    prop_assert!(emulator.order(now, &[order]).expect("it can be followed") == now);
                }
            }
            take(&mut emulator, &mut out);
        }
        for (hop, from) in (0..hops).flat_map(|hop| Side::ALL.map(|side| (hop, side))) {
            let outage = Some(Duration::ZERO);
            let rate = Some(BitRate(1_000_000));
            emulator.order(now, &[Order { outage, rate, ..Order::to(hop, from) }]).expect("followed");
        }
        let end = now + Duration::from_secs(1_000);
        emulator.run_until(end);
        take(&mut emulator, &mut out);
        prop_assert_eq!(emulator.stored(), 0, "all places are free");
        for side in Side::ALL {
            let there = out.iter().filter(|(to, _)| *to == InterfaceId::from(side.other()));
            let numbers: Vec<u32> = there.map(|(_, number)| *number).collect();
            prop_assert!(numbers.is_sorted_by(|one, other| one < other), "in order, and once");
            let lost: u64 = emulator
                .counters()
                .iter()
                .skip(side as usize)
                .step_by(2)
                .map(|(_, counters)| counters.dropped.iter().map(|count| count.packets).sum::<u64>())
                .sum();
            prop_assert_eq!(numbers.len() as u64 + lost, u64::from(came[side as usize]));
        }
        let (record, hash) = emulator.tapped().expect("it was asked for");
        prop_assert_eq!(replay(&plans, seed, &record, end).expect("a replay"), hash);
    }
}

/// An order to a hop that is not there is refused, and with it those beside it.
#[test]
fn orders_are_followed_together_or_not_at_all() {
    let plans = [plain_link(1_000_000, Duration::from_millis(5), 0.0)];
    let good = Order { rate: Some(BitRate(9)), ..Order::to(0, Side::World) };
    for bad in [
        Order::to(1, Side::World),
        Order { rate: Some(BitRate(0)), ..Order::to(0, Side::Island) },
        Order { delay: Some(Duration::from_secs(1 << 30)), ..Order::to(0, Side::Island) },
    ] {
        let mut emulator = emulator(&plans, 1);
        assert!(emulator.order(Instant::START, &[good, bad]).is_err());
        let (record, _) = emulator.tapped().expect("it was asked for");
        assert_eq!(record.orders, []);
    }
}

fn emulator(plans: &[Plan], seed: u64) -> Emulator {
    let options = Options { tap: true, ..Options::default() };
    Emulator::new(plans, seed, options).expect("plain links are for real time")
}

fn take(emulator: &mut Emulator, out: &mut Vec<(InterfaceId, u32)>) {
    let mut departures = Vec::new();
    emulator.take_departures(&mut departures);
    for departure in departures {
        let bytes = emulator.bytes(&departure);
        let number = bytes[..4].try_into().map(u32::from_le_bytes).expect("four bytes");
        out.push((departure.to, number));
        emulator.free(departure.place);
    }
}

#[derive(Clone, Debug)]
struct Step {
    gap: Duration,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Packet(Side, usize),
    Order(Order),
}

fn sides() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::World), Just(Side::Island)]
}

fn orders() -> impl Strategy<Value = Order> {
    let nanos = |most: u64| (0..most).prop_map(Duration::from_nanos);
    let rates = (1u64..100_000_000).prop_map(BitRate);
    let errors = prop_oneof![Just(0.0), Just(1e-5), Just(1.0)]
        .prop_map(|rate| Probability::new(rate).expect("a probability"));
    let outages = prop_oneof![4 => nanos(50_000_000), 1 => Just(OUTAGE_MAX)];
    let some = |share| prop::option::weighted(share, Just(()));
    let parts = (0usize..3, sides(), rates, nanos(50_000_000), errors, outages);
    (parts, some(0.4), some(0.4), some(0.3), some(0.3)).prop_map(
        |((hop, from, rate, delay, errors, outage), with_rate, with_delay, with_errors, holds)| {
            Order {
                hop,
                from,
                rate: with_rate.map(|()| rate),
                delay: with_delay.map(|()| delay),
                bit_error_rate: with_errors.map(|()| errors),
                outage: holds.map(|()| outage),
            }
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        4 => (sides(), 20usize..1_500).prop_map(|(side, bytes)| What::Packet(side, bytes)),
        1 => orders().prop_map(What::Order),
    ];
    (0u64..10_000_000, what).prop_map(|(gap, what)| Step { gap: Duration::from_nanos(gap), what })
}
