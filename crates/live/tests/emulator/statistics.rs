//! Reading the counters of a link never changes its behaviour.

use bentpipe_core::time::{Duration, Instant};
use bentpipe_live::emulator::{Emulator, Options, replay};
use bentpipe_live::plain_link;
use bentpipe_sim::plan::{Limit, Queue, RedUnit};
use bentpipe_sim::{Plan, Side};
use proptest::prelude::*;

/// A step of a run.
#[derive(Clone, Debug)]
enum Step {
    /// A packet arrives from a side.
    Packet(Side, usize),
    /// The link runs up to the current time.
    Run,
    /// The counters are read, without a time.
    Read,
}

fn steps() -> impl Strategy<Value = (u64, Step)> {
    let side = prop_oneof![Just(Side::World), Just(Side::Island)];
    let step = prop_oneof![
        4 => (side, 20_usize..1_500).prop_map(|(side, bytes)| Step::Packet(side, bytes)),
        1 => Just(Step::Run),
        3 => Just(Step::Read),
    ];
    // A packet of 1,500 bytes takes 30,000 ns at 400 Mbit/s.
    (prop_oneof![Just(0), 0..40_000_u64], step)
}

fn queues() -> impl Strategy<Value = Queue> {
    let (limit, ecn) = (Limit::Packets(3), false);
    let (target_ns, interval_ns) = (10_000, 100_000);
    let red = Queue::Red {
        limit,
        unit: RedUnit::Packets,
        min_threshold: 1,
        max_threshold: 2,
        max_probability: 0.5,
        weight: 0.5,
        gentle: true,
        mean_packet_bytes: 1_000,
        ecn,
    };
    let fair =
        Queue::FqCodel { limit, target_ns, interval_ns, quantum_bytes: 300, queues: 16, ecn };
    prop_oneof![
        2 => Just(Queue::DropTail { limit }),
        1 => Just(Queue::DropTail { limit: Limit::TimeNs(50_000) }),
        1 => Just(Queue::PerFlowDropTail { limit, per_flow_limit: Limit::Packets(2) }),
        1 => Just(Queue::SelectiveDrop { limit, threshold: 0.5, load_ratio: 1.0 }),
        1 => Just(red),
        1 => Just(Queue::Codel { limit, target_ns, interval_ns, ecn }),
        1 => Just(fair),
    ]
}

fn link(queue: &Queue) -> Plan {
    let mut plan = plain_link(400_000_000, Duration::from_micros(20), 1e-6);
    plan.directions.iter_mut().for_each(|direction| direction.queue = queue.clone());
    plan
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    /// Given packets to a link of 400 Mbit/s with queues of three packets, and reads of its
    /// counters in between, some long after the time that the link has reached, expect a replay of
    /// the record to give the same events.
    #[test]
    fn a_run_with_counter_reads_can_be_replayed(
        queue in queues(), steps in proptest::collection::vec(steps(), 1..100), seed in any::<u64>(),
    ) {
        let plans = [link(&queue)];
        let options = Options { tap: true, ..Options::default() };
        let mut emulator = Emulator::new(&plans, seed, options).expect("a plain link");
        let mut now = Instant::START;
        for (gap, step) in steps {
            now += Duration::from_nanos(gap);
            match step {
                Step::Packet(side, bytes) => {
                    let slot = emulator.alloc().expect("a free slot");
                    emulator.arrive(now, side, slot, bytes);
                }
                Step::Run => emulator.run_until(now),
                Step::Read => drop(emulator.counters()),
            }
        }
        let end = now + Duration::from_secs(1);
        emulator.run_until(end);
        let (record, hash) = emulator.into_record().expect("a record");
        prop_assert_eq!(replay(&plans, seed, &record, end).expect("a replay"), hash);
    }
}
