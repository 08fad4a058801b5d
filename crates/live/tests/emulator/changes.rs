//! Random changes to chains of links with packets in transit, without a clock.

use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::units::{BitRate, Probability};
use bentpipe_live::changes::{LinkChange, OUTAGE_MAX};
use bentpipe_live::emulator::{Emulator, Options, replay};
use bentpipe_live::plain_link;
use bentpipe_sim::plan::{Channel, ChannelState, Limit, Queue};
use bentpipe_sim::{InterfaceId, Plan, Side};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Given packets from both sides over one to three links with changes in between, expect each
    /// packet to be delivered in order or counted as dropped, all slots to be free at the end, and
    /// a replay of the record to give the same events.
    #[test]
    fn packets_are_delivered_or_counted_and_a_run_can_be_replayed(
        hops in 1usize..=3, steps in proptest::collection::vec(steps(), 1..150), seed in any::<u64>(),
    ) {
        let mut link = plain_link(1_000_000, Duration::from_millis(5), 1e-6);
        // One direction has fades, a few of them during the steps.
        let state = |loss_rate, mean_duration_ns| {
            ChannelState { bit_error_rate: 1e-6, loss_rate, mean_duration_ns }
        };
        let (good, bad) = (state(0.0, 100_000_000), state(0.5, 20_000_000));
        link.directions[0].channel = Channel::GilbertElliott { good, bad };
        let plans = vec![link; hops];
        let mut emulator = emulator(&plans, seed);
        let (mut now, mut sent, mut out) = (Instant::START, [0_u32; 2], Vec::new());
        for Step { gap, action } in steps {
            now += gap;
            match action {
                Action::Packet(side, bytes) => {
                    let slot = emulator.alloc().expect("a free slot");
                    emulator.bytes_mut(slot)[..4].copy_from_slice(&sent[side as usize].to_le_bytes());
                    emulator.arrive(now, side, slot, bytes);
                    sent[side as usize] += 1;
                }
                Action::Change(change) => {
                    let change = LinkChange { hop: change.hop % hops, ..change };
                    prop_assert!(emulator.apply(now, &[change]).expect("a possible change") == now);
                }
            }
            take(&mut emulator, &mut out);
        }
        for (hop, from) in (0..hops).flat_map(|hop| Side::ALL.map(|side| (hop, side))) {
            let outage = Some(Duration::ZERO);
            let rate = Some(BitRate(1_000_000));
            emulator.apply(now, &[LinkChange { outage, rate, ..LinkChange::none(hop, from) }]).expect("a possible change");
        }
        let end = now + Duration::from_secs(1_000);
        emulator.run_until(end);
        take(&mut emulator, &mut out);
        prop_assert_eq!(emulator.stored(), 0, "all slots are free");
        for side in Side::ALL {
            let there = out.iter().filter(|(to, _)| *to == InterfaceId::from(side.other()));
            let numbers: Vec<u32> = there.map(|(_, number)| *number).collect();
            prop_assert!(numbers.is_sorted_by(|one, other| one < other), "in order, without duplicates");
            let lost: u64 = emulator
                .counters()
                .iter()
                .skip(side as usize)
                .step_by(2)
                .map(|(_, counters)| counters.dropped.iter().map(|count| count.packets).sum::<u64>())
                .sum();
            prop_assert_eq!(numbers.len() as u64 + lost, u64::from(sent[side as usize]));
        }
        let (record, hash) = emulator.into_record().expect("a record");
        prop_assert_eq!(replay(&plans, seed, &record, end).expect("a replay"), hash);
    }
}

/// Given an impossible change and a possible one, expect neither to be applied.
#[test]
fn changes_are_applied_together_or_not_at_all() {
    let plans = [plain_link(1_000_000, Duration::from_millis(5), 0.0)];
    let possible = LinkChange { rate: Some(BitRate(9)), ..LinkChange::none(0, Side::World) };
    for impossible in [
        LinkChange::none(1, Side::World),
        LinkChange { rate: Some(BitRate(0)), ..LinkChange::none(0, Side::Island) },
        LinkChange {
            delay: Some(Duration::from_secs(1 << 30)),
            ..LinkChange::none(0, Side::Island)
        },
        // The packets of a link that began without classes have none.
        LinkChange {
            queue: Some(Queue::StrictPriority { limit: Limit::Packets(9), classes: 2 }),
            ..LinkChange::none(0, Side::Island)
        },
    ] {
        let mut emulator = emulator(&plans, 1);
        assert!(emulator.apply(Instant::START, &[possible.clone(), impossible]).is_err());
        let (record, _) = emulator.into_record().expect("a record");
        assert_eq!(record.changes, []);
    }
}

fn emulator(plans: &[Plan], seed: u64) -> Emulator {
    let options = Options { tap: true, ..Options::default() };
    Emulator::new(plans, seed, options).expect("plain links run in real time")
}

fn take(emulator: &mut Emulator, out: &mut Vec<(InterfaceId, u32)>) {
    let mut departures = Vec::new();
    emulator.take_departures(&mut departures);
    for departure in departures {
        let bytes = emulator.bytes(&departure);
        let number = bytes[..4].try_into().map(u32::from_le_bytes).expect("four bytes");
        out.push((departure.to, number));
        emulator.free(departure.slot);
    }
}

#[derive(Clone, Debug)]
struct Step {
    gap: Duration,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Packet(Side, usize),
    Change(LinkChange),
}

fn sides() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::World), Just(Side::Island)]
}

fn changes() -> impl Strategy<Value = LinkChange> {
    let nanos = |max: u64| (0..max).prop_map(Duration::from_nanos);
    let rates = (1u64..100_000_000).prop_map(BitRate);
    let errors = prop_oneof![Just(0.0), Just(1e-5), Just(1.0)]
        .prop_map(|rate| Probability::new(rate).expect("a probability"));
    let outages = prop_oneof![4 => nanos(50_000_000), 1 => Just(OUTAGE_MAX)];
    let some = |share| prop::option::weighted(share, Just(()));
    let parts = (0usize..3, sides(), rates, nanos(50_000_000), errors.clone(), outages);
    let jitter = prop::option::weighted(0.2, nanos(20_000_000));
    let loss = prop::option::weighted(0.2, errors);
    let limits = prop_oneof![(1u64..30).prop_map(Limit::Packets), Just(Limit::Unlimited)];
    let queues = limits.prop_flat_map(|limit| {
        let (target_ns, interval_ns) = (5_000_000, 100_000_000);
        let codel = Queue::Codel { limit, target_ns, interval_ns, ecn: false };
        prop_oneof![Just(Queue::DropTail { limit }), Just(codel)]
    });
    let queue = prop::option::weighted(0.2, queues);
    (parts, (jitter, loss, queue), some(0.4), some(0.4), some(0.3), some(0.3)).prop_map(
        |(
            (hop, from, rate, delay, errors, outage),
            (jitter, loss_rate, queue),
            with_rate,
            with_delay,
            with_errors,
            with_outage,
        )| {
            LinkChange {
                hop,
                from,
                rate: with_rate.map(|()| rate),
                delay: with_delay.map(|()| delay),
                jitter,
                bit_error_rate: with_errors.map(|()| errors),
                loss_rate,
                queue,
                outage: with_outage.map(|()| outage),
            }
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        4 => (sides(), 20usize..1_500).prop_map(|(side, bytes)| Action::Packet(side, bytes)),
        1 => changes().prop_map(Action::Change),
    ];
    (0u64..10_000_000, action)
        .prop_map(|(gap, action)| Step { gap: Duration::from_nanos(gap), action })
}
