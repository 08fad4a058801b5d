//! Runs the conformance kit on a correct engine, and on the same engine with one fault each: the kit must
//! report the fault as a violation of the right invariant.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use bentpipe_core::conformance::{
    ArrivalPattern, Guarantees, Invariant, Recorder, Violation, check,
};
use bentpipe_core::engine::{Count, Cx, Engine, Ledger};
use bentpipe_core::graph::Graph;
use bentpipe_core::packet::{Packet, Port};
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::EventKind;

const IN: Port = Port(0);
const OUT: Port = Port(1);
const DELAY: Duration = Duration::from_millis(30);

#[test]
fn a_correct_engine_passes_every_pattern() {
    for seed in 0..20 {
        assert_eq!(
            verdict(Fault::None, &ArrivalPattern::mixed(vec![IN]), seed),
            Ok(()),
            "seed {seed}"
        );
    }
    assert_eq!(verdict(Fault::None, &ArrivalPattern::week(vec![IN], 2_000), 1), Ok(()));
    assert_eq!(check(|| DelayLine::new(Fault::None), &guarantees(), &[]), Ok(()));
}

#[test]
fn a_lost_deadline_is_found() {
    finds(Fault::LosesTheFirstDeadline, Invariant::WakeIsIdempotent);
    finds(Fault::LosesTheLastDeadline, Invariant::WakeIsIdempotent);
}

#[test]
fn a_draw_at_each_wake_up_is_found() {
    finds(Fault::DrawsWhenWoken, Invariant::WakeIsIdempotent);
}

#[test]
fn an_event_reported_at_each_wake_up_is_found() {
    finds(Fault::ReportsWhenWoken, Invariant::WakeIsIdempotent);
}

#[test]
fn waking_too_early_is_found() {
    finds(Fault::WakesTooEarlyEndlessly, Invariant::Progress);
    finds(Fault::WakesEachNanosecond, Invariant::Progress);
}

#[test]
fn a_deadline_in_the_past_is_found() {
    finds(Fault::DeadlineInThePast, Invariant::Progress);
}

#[test]
fn a_drop_that_is_not_counted_is_found() {
    finds(Fault::DropsSilently, Invariant::Conservation);
}

#[test]
fn a_ledger_that_balances_but_is_wrong_is_found() {
    finds(Fault::OmitsInput, Invariant::Conservation);
    finds(Fault::InventsOutput, Invariant::Conservation);
}

#[test]
fn an_output_before_the_minimum_delay_is_found() {
    finds(Fault::SendsTooSoon, Invariant::Causality);
}

#[test]
fn a_queue_that_grows_is_found() {
    let guarantees = Guarantees { held_packets_max: Some(5), ..guarantees() };
    let script = ArrivalPattern::mixed(vec![IN]).script(1);
    let found =
        check(|| DelayLine::new(Fault::None), &guarantees, &script).expect_err("bursts of 25");
    assert_eq!(found.invariant, Invariant::Bounded, "{found}");
}

#[test]
fn an_engine_that_never_drains_is_found() {
    finds(Fault::WakesEndlessly, Invariant::Drains);
    finds(Fault::KeepsOnePacket, Invariant::Drains);
    let fed_nothing = check(|| DelayLine::new(Fault::WakesEndlessly), &guarantees(), &[]);
    assert_eq!(fed_nothing.expect_err("it wakes endlessly").invariant, Invariant::Drains);
}

#[test]
fn a_seed_from_outside_is_found() {
    let builds = Rc::new(Cell::new(0));
    let build = || {
        builds.set(builds.get() + 1);
        DelayLine { extra: Duration::from_nanos(builds.get()), ..DelayLine::new(Fault::None) }
    };
    let found = check(build, &guarantees(), &ArrivalPattern::mixed(vec![IN]).script(1));
    assert_eq!(found.expect_err("no two are equal").invariant, Invariant::Determinism);
}

/// Given a shared count that each build resets, expect that two engines in a graph differ from one alone.
#[test]
fn state_shared_between_engines_is_found() {
    let shared = Rc::new(Cell::new(0));
    let build = || {
        shared.set(0);
        DelayLine { shared: Some(shared.clone()), ..DelayLine::new(Fault::None) }
    };
    let found = check(build, &guarantees(), &ArrivalPattern::mixed(vec![IN]).script(1));
    let found = found.expect_err("the count is shared");
    assert_eq!(found.invariant, Invariant::Determinism);
    assert!(found.what.contains("with another"), "{found}");
}

/// Given engines that become idle alone but not while another one exists, expect a violation in a graph.
#[test]
fn engines_that_keep_each_other_awake_are_found() {
    let engines = Rc::new(());
    let build = || DelayLine { handle: Some(engines.clone()), ..DelayLine::new(Fault::None) };
    let found = check(build, &guarantees(), &ArrivalPattern::mixed(vec![IN]).script(1));
    let found = found.expect_err("two engines are never idle");
    assert_eq!(found.invariant, Invariant::Drains, "{found}");
    assert!(found.what.contains("in a graph"), "{found}");
}

#[test]
fn a_violation_names_the_invariant_and_the_time() {
    let at = Instant::from_millis(1_500);
    for (invariant, name) in [
        (Invariant::WakeIsIdempotent, "wake is idempotent"),
        (Invariant::Progress, "progress"),
        (Invariant::Determinism, "determinism"),
        (Invariant::Conservation, "conservation"),
        (Invariant::Causality, "causality"),
        (Invariant::Bounded, "bounded"),
        (Invariant::Drains, "drains"),
    ] {
        let violation = Violation { invariant, at, what: "observed".into() };
        assert_eq!(violation.to_string(), format!("{name}, at 1.500000000 s: observed"));
    }
}

#[test]
fn scripts_are_reproducible_and_follow_their_pattern() {
    let pattern = ArrivalPattern { ports: vec![IN, OUT], ..ArrivalPattern::mixed(vec![]) };
    let script = pattern.script(7);
    assert_eq!(script, pattern.script(7));
    assert_ne!(script, pattern.script(8));
    assert_eq!(script.len(), 100);
    assert!(script.is_sorted_by_key(|arrival| arrival.0));
    assert!(script.iter().all(|(_, _, packet)| pattern.bytes.contains(&packet.bytes)));
    for port in [IN, OUT] {
        assert!(script.iter().any(|arrival| arrival.1 == port));
    }
    let together = script.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
    let gaps = script.windows(2).filter(|pair| pair[1].0 - pair[0].0 > DELAY).count();
    assert!(together > 20 && gaps > 3, "{together} ties, {gaps} gaps");
    let week = ArrivalPattern::week(vec![IN], 500).script(1);
    let last = week.last().expect("500 packets").0;
    assert!(last > Instant::from_millis(6 * 24 * 3_600_000), "{last}");
}

#[test]
#[should_panic(expected = "in order of time")]
fn a_script_out_of_order_panics() {
    let mut script = ArrivalPattern::mixed(vec![IN]).script(1);
    script.reverse();
    let _ = check(|| DelayLine::new(Fault::None), &guarantees(), &script);
}

/// Given two delay engines in series, expect the script of the second to be the output of the first.
#[test]
fn a_recorder_records_a_script() {
    let mut graph = Graph::default();
    let engines = [0; 2].map(|_| graph.add(Recorder::new(DelayLine::new(Fault::None))));
    graph.connect((engines[0], OUT), (engines[1], IN));
    let script = ArrivalPattern::mixed(vec![IN]).script(3);
    for (at, port, packet) in &script {
        graph.inject(*at, (engines[0], *port), packet.clone(), None);
    }
    graph.run_until(Instant::from_millis(10_000), None);
    assert_eq!(graph.engine(engines[0]).script(), &script);
    let recorded = graph.engine(engines[1]).script();
    assert_eq!(recorded.len(), script.len());
    assert!(recorded.iter().zip(&script).all(|(recorded, sent)| recorded.0 == sent.0 + DELAY));
    assert_eq!(graph.engine(engines[1]).ledger().sent.packets, 100);
    assert_eq!(check(|| DelayLine::new(Fault::None), &guarantees(), recorded), Ok(()));
}

/// A fault of a [`DelayLine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    LosesTheFirstDeadline,
    LosesTheLastDeadline,
    DrawsWhenWoken,
    ReportsWhenWoken,
    WakesTooEarlyEndlessly,
    WakesEachNanosecond,
    DeadlineInThePast,
    DropsSilently,
    OmitsInput,
    InventsOutput,
    SendsTooSoon,
    WakesEndlessly,
    KeepsOnePacket,
}

/// Delays each packet by [`DELAY`], with a fault.
struct DelayLine {
    fault: Fault,
    packets: VecDeque<(Instant, Packet)>,
    last_call: Instant,
    ledger: Ledger,
    rng: Rng,
    extra: Duration,
    /// A count that should not be shared.
    shared: Option<Rc<Cell<u64>>>,
    /// Held by the test and by each engine: with two engines, neither becomes idle.
    handle: Option<Rc<()>>,
}

impl DelayLine {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            packets: VecDeque::new(),
            last_call: Instant::START,
            ledger: Ledger::default(),
            rng: Rng::stream(1, "line"),
            extra: Duration::ZERO,
            shared: None,
            handle: None,
        }
    }

    fn delay(&mut self) -> Duration {
        let shared = self.shared.as_ref().map_or(0, |shared| {
            shared.set(shared.get() + 1);
            shared.get()
        });
        let draw = if self.fault == Fault::DrawsWhenWoken { self.rng.below(1_000) } else { 0 };
        DELAY + self.extra + Duration::from_nanos(shared + draw)
    }

    fn first(&self) -> Option<Instant> {
        let early = u64::from(self.fault == Fault::SendsTooSoon);
        self.packets.front().map(|first| Instant::from_nanos(first.0.as_nanos() - early))
    }

    fn is_never_idle(&self) -> bool {
        let others = self.handle.as_ref().map_or(0, Rc::strong_count);
        self.fault == Fault::WakesEndlessly || others > 2
    }
}

impl Engine for DelayLine {
    fn input(&mut self, cx: &mut Cx<'_>, _: Port, packet: Box<Packet>) {
        // Waking at input hides a lost deadline while the line is busy.
        self.wake(cx);
        self.ledger.received.add(packet.bytes);
        let special = self.ledger.received.packets == 50;
        if special && self.fault == Fault::DropsSilently {
            return;
        }
        if special && self.fault == Fault::KeepsOnePacket {
            self.ledger.held.add(packet.bytes);
            return;
        }
        let due = cx.now() + self.delay();
        let due = self.packets.back().map_or(due, |last| due.max(last.0));
        self.ledger.held.add(packet.bytes);
        self.packets.push_back((due, *packet));
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.last_call = cx.now();
        if self.fault == Fault::DrawsWhenWoken {
            self.rng.next_u64();
        }
        if self.fault == Fault::ReportsWhenWoken
            && let Some((_, packet)) = self.packets.front()
        {
            cx.trace(cx.now(), EventKind::Enqueued, packet);
        }
        while self.first().is_some_and(|due| due <= cx.now()) {
            let Some((_, packet)) = self.packets.pop_front() else { break };
            self.ledger.held.remove(packet.bytes);
            self.ledger.sent.add(packet.bytes);
            cx.trace(cx.now(), EventKind::Delivered, &packet);
            cx.send(OUT, packet);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let due = self.first();
        let soon = self.last_call + Duration::from_nanos(1);
        if self.is_never_idle() {
            return Some(self.last_call + DELAY);
        }
        match self.fault {
            Fault::LosesTheFirstDeadline => due.filter(|_| self.ledger.sent.packets > 0),
            Fault::LosesTheLastDeadline => due.filter(|_| self.packets.len() > 1),
            Fault::WakesTooEarlyEndlessly => {
                due.map(|due| Instant::from_nanos(due.as_nanos() - 1).max(self.last_call))
            }
            Fault::WakesEachNanosecond => due.map(|due| due.min(soon)),
            Fault::DeadlineInThePast => due.map(|_| Instant::START),
            Fault::None
            | Fault::DrawsWhenWoken
            | Fault::ReportsWhenWoken
            | Fault::DropsSilently
            | Fault::OmitsInput
            | Fault::InventsOutput
            | Fault::SendsTooSoon
            | Fault::WakesEndlessly
            | Fault::KeepsOnePacket => due,
        }
    }

    fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        if self.fault == Fault::OmitsInput && ledger.held == Count::default() {
            ledger.received = Count::default();
            ledger.sent = Count::default();
        }
        if self.fault == Fault::InventsOutput {
            ledger.created.add(40);
            ledger.sent.add(40);
        }
        ledger
    }
}

fn guarantees() -> Guarantees {
    Guarantees { minimum_delay: vec![(OUT, DELAY)], ..Guarantees::default() }
}

fn verdict(fault: Fault, pattern: &ArrivalPattern, seed: u64) -> Result<(), Violation> {
    check(|| DelayLine::new(fault), &guarantees(), &pattern.script(seed))
}

fn finds(fault: Fault, invariant: Invariant) {
    for seed in 0..20 {
        let found = verdict(fault, &ArrivalPattern::mixed(vec![IN]), seed);
        let found = found.expect_err("the engine has a fault");
        assert_eq!(found.invariant, invariant, "{fault:?}, seed {seed}: {found}");
    }
}
