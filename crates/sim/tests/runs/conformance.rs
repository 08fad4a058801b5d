//! The conformance kit on every engine of random small plans. A plan runs with a recorder
//! around each engine; then each engine is built again and gets its recorded input.

use crate::plans;
use bentpipe_core::conformance::{Guarantees, Recorder, check};
use bentpipe_core::engine::{Cx, Engine, Ledger};
use bentpipe_core::packet::{Packet, Port};
use bentpipe_core::time::Instant;
use bentpipe_core::trace::NodeId;
use bentpipe_sim::Plan;
use bentpipe_sim::build::build_with;
use bentpipe_sim::node::Node;
use proptest::prelude::*;
use proptest::test_runner::Config;

/// A datagram source has no input, so everything it sends counts as draining.
const DATAGRAMS_MAX: u64 = 1_000_000;
/// The largest transfers have some 1,200 segments. With a window of one, a third of packets lost each way and an RTO
/// of up to 60 s, each takes a minute or two: about a day in all.
const WEEK: Instant = Instant::from_millis(7 * 86_400_000);

/// Replaces an engine that was taken from the graph.
struct Placeholder;

impl Engine for Placeholder {
    fn input(&mut self, _: &mut Cx<'_>, _: Port, _: Box<Packet>) {}

    fn wake(&mut self, _: &mut Cx<'_>) {}

    fn next_wake(&self) -> Option<Instant> {
        None
    }

    fn ledger(&self) -> Ledger {
        Ledger::default()
    }
}

/// The engine with this number, as the plan builds it.
fn engine(plan: &Plan, seed: u64, number: usize) -> Node {
    let mut engines = Vec::new();
    build_with(plan, seed, |node| {
        engines.push(node);
        Placeholder
    });
    engines.swap_remove(number)
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    /// Proptest prints the plan and the seed that failed.
    #[test]
    fn every_engine_of_every_plan_keeps_the_contract(plan in plans::plan(), seed in any::<u64>()) {
        let plan = Plan::parse(&plan.to_string()).expect("the strategy makes valid plans");
        let (mut graph, _) = build_with(&plan, seed, Recorder::new);
        // The recording must include the end of every connection: without it, an endpoint
        // retransmits forever, because hosts do not abort connections.
        graph.run_until(WEEK, None);
        prop_assert_eq!(graph.next_event(), None, "all traffic ends within a week");
        let guarantees = Guarantees { drain_wakes_max: DATAGRAMS_MAX, ..Guarantees::default() };
        for number in 0..graph.engines().count() {
            let node = NodeId(u32::try_from(number).expect("few"));
            let script = graph.engine(node).script();
            let verdict = check(|| engine(&plan, seed, number), &guarantees, script);
            prop_assert_eq!(verdict, Ok(()), "engine {}", number);
        }
    }
}
