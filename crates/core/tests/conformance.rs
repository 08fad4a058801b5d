//! The conformance kit against an engine that keeps every invariant, and against the same engine with
//! one fault each: the fault must be found, under the right name.

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
fn a_correct_engine_passes_every_shape() {
    for seed in 0..20 {
        assert_eq!(
            verdict(Fault::None, &ArrivalPattern::mixed(vec![IN]), seed),
            Ok(()),
            "seed {seed}"
        );
    }
    assert_eq!(verdict(Fault::None, &ArrivalPattern::week(vec![IN], 2_000), 1), Ok(()));
    assert_eq!(check(|| Line::new(Fault::None), &guarantees(), &[]), Ok(()));
}

#[test]
fn a_forgotten_deadline_is_found() {
    finds(Fault::ForgetsTheFirstDeadline, Invariant::WakeIsIdempotent);
    finds(Fault::ForgetsTheLastDeadline, Invariant::WakeIsIdempotent);
}

#[test]
fn a_draw_at_each_wake_up_is_found() {
    finds(Fault::DrawsWhenWoken, Invariant::WakeIsIdempotent);
}

#[test]
fn a_fact_reported_at_each_wake_up_is_found() {
    finds(Fault::ReportsWhenWoken, Invariant::WakeIsIdempotent);
}

#[test]
fn waking_too_early_is_found() {
    finds(Fault::WakesTooEarlyForEver, Invariant::Progress);
    finds(Fault::CreepsTowardsItsDeadline, Invariant::Progress);
}

#[test]
fn a_deadline_in_the_past_is_found() {
    finds(Fault::AsksForThePast, Invariant::Progress);
}

#[test]
fn silent_loss_is_found() {
    finds(Fault::LosesSilently, Invariant::Conservation);
}

#[test]
fn books_that_balance_but_lie_are_found() {
    finds(Fault::DeniesInput, Invariant::Conservation);
    finds(Fault::ClaimsOutput, Invariant::Conservation);
}

#[test]
fn an_output_before_its_cause_is_found() {
    finds(Fault::SendsTooSoon, Invariant::Causality);
}

#[test]
fn a_queue_that_grows_is_found() {
    let guarantees = Guarantees { held_packets_max: Some(5), ..guarantees() };
    let script = ArrivalPattern::mixed(vec![IN]).script(1);
    let found = check(|| Line::new(Fault::None), &guarantees, &script).expect_err("bursts of 25");
    assert_eq!(found.invariant, Invariant::Bounded, "{found}");
}

#[test]
fn an_engine_that_never_drains_is_found() {
    finds(Fault::WakesForEver, Invariant::Drains);
    finds(Fault::KeepsOnePacket, Invariant::Drains);
    let fed_nothing = check(|| Line::new(Fault::WakesForEver), &guarantees(), &[]);
    assert_eq!(fed_nothing.expect_err("it never rests").invariant, Invariant::Drains);
}

#[test]
fn entropy_from_outside_is_found() {
    let builds = Rc::new(Cell::new(0));
    let build = || {
        builds.set(builds.get() + 1);
        Line { extra: Duration::from_nanos(builds.get()), ..Line::new(Fault::None) }
    };
    let found = check(build, &guarantees(), &ArrivalPattern::mixed(vec![IN]).script(1));
    assert_eq!(found.expect_err("no two are alike").invariant, Invariant::Determinism);
}

/// Each build starts the shared count afresh, so one engine at a time repeats; two do not.
#[test]
fn state_shared_between_engines_is_found() {
    let shared = Rc::new(Cell::new(0));
    let build = || {
        shared.set(0);
        Line { shared: Some(shared.clone()), ..Line::new(Fault::None) }
    };
    let found = check(build, &guarantees(), &ArrivalPattern::mixed(vec![IN]).script(1));
    let found = found.expect_err("they share a count");
    assert_eq!(found.invariant, Invariant::Determinism);
    assert!(found.what.contains("beside another"), "{found}");
}

/// A second engine keeps a shared count from ever standing still: alone each rests, together not.
#[test]
fn engines_that_keep_each_other_awake_are_found() {
    let engines = Rc::new(());
    let build = || Line { alive: Some(engines.clone()), ..Line::new(Fault::None) };
    let found = check(build, &guarantees(), &ArrivalPattern::mixed(vec![IN]).script(1));
    let found = found.expect_err("two never rest");
    assert_eq!(found.invariant, Invariant::Drains, "{found}");
    assert!(found.what.contains("in a graph"), "{found}");
}

#[test]
fn a_violation_says_which_law_and_when() {
    let at = Instant::from_millis(1_500);
    for (invariant, words) in [
        (Invariant::WakeIsIdempotent, "wake is idempotent"),
        (Invariant::Progress, "progress"),
        (Invariant::Determinism, "determinism"),
        (Invariant::Conservation, "conservation"),
        (Invariant::Causality, "causality"),
        (Invariant::Bounded, "bounded"),
        (Invariant::Drains, "drains"),
    ] {
        let violation = Violation { invariant, at, what: "as seen".into() };
        assert_eq!(violation.to_string(), format!("{words}, at 1.500000000 s: as seen"));
    }
}

#[test]
fn scripts_repeat_by_seed_and_hold_their_shape() {
    let shape = ArrivalPattern { ports: vec![IN, OUT], ..ArrivalPattern::mixed(vec![]) };
    let script = shape.script(7);
    assert_eq!(script, shape.script(7));
    assert_ne!(script, shape.script(8));
    assert_eq!(script.len(), 100);
    assert!(script.is_sorted_by_key(|arrival| arrival.0));
    assert!(script.iter().all(|(_, _, packet)| shape.bytes.contains(&packet.bytes)));
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
fn a_script_out_of_order_is_refused() {
    let mut script = ArrivalPattern::mixed(vec![IN]).script(1);
    script.reverse();
    let _ = check(|| Line::new(Fault::None), &guarantees(), &script);
}

/// Two lines in a row: what the second was given is what the first sent.
#[test]
fn a_recorder_turns_a_conversation_into_a_script() {
    let mut graph = Graph::default();
    let lines = [0; 2].map(|_| graph.add(Recorder::new(Line::new(Fault::None))));
    graph.connect((lines[0], OUT), (lines[1], IN));
    let script = ArrivalPattern::mixed(vec![IN]).script(3);
    for (at, port, packet) in &script {
        graph.inject(*at, (lines[0], *port), packet.clone(), None);
    }
    graph.run_until(Instant::from_millis(10_000), None);
    assert_eq!(graph.engine(lines[0]).script(), &script);
    let heard = graph.engine(lines[1]).script();
    assert_eq!(heard.len(), script.len());
    assert!(heard.iter().zip(&script).all(|(heard, said)| heard.0 == said.0 + DELAY));
    assert_eq!(graph.engine(lines[1]).ledger().sent.packets, 100);
    assert_eq!(check(|| Line::new(Fault::None), &guarantees(), heard), Ok(()));
}

/// What is wrong with a [`Line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    ForgetsTheFirstDeadline,
    ForgetsTheLastDeadline,
    DrawsWhenWoken,
    ReportsWhenWoken,
    WakesTooEarlyForEver,
    CreepsTowardsItsDeadline,
    AsksForThePast,
    LosesSilently,
    DeniesInput,
    ClaimsOutput,
    SendsTooSoon,
    WakesForEver,
    KeepsOnePacket,
}

/// A line that delays each packet by [`DELAY`], and breaks one invariant if told to.
struct Line {
    fault: Fault,
    line: VecDeque<(Instant, Packet)>,
    last_call: Instant,
    ledger: Ledger,
    rng: Rng,
    extra: Duration,
    /// A count that this line believes to be its own.
    shared: Option<Rc<Cell<u64>>>,
    /// Held by the test and by each line alive: with two of them, a line never rests.
    alive: Option<Rc<()>>,
}

impl Line {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            line: VecDeque::new(),
            last_call: Instant::START,
            ledger: Ledger::default(),
            rng: Rng::stream(1, "line"),
            extra: Duration::ZERO,
            shared: None,
            alive: None,
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
        self.line.front().map(|first| Instant::from_nanos(first.0.as_nanos() - early))
    }

    fn never_rests(&self) -> bool {
        let others = self.alive.as_ref().map_or(0, Rc::strong_count);
        self.fault == Fault::WakesForEver || others > 2
    }
}

impl Engine for Line {
    fn input(&mut self, cx: &mut Cx<'_>, _: Port, packet: Box<Packet>) {
        // A busy line hides that it forgot a deadline.
        self.wake(cx);
        self.ledger.received.add(packet.bytes);
        let special = self.ledger.received.packets == 50;
        if special && self.fault == Fault::LosesSilently {
            return;
        }
        if special && self.fault == Fault::KeepsOnePacket {
            self.ledger.held.add(packet.bytes);
            return;
        }
        let due = cx.now() + self.delay();
        let due = self.line.back().map_or(due, |last| due.max(last.0));
        self.ledger.held.add(packet.bytes);
        self.line.push_back((due, *packet));
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.last_call = cx.now();
        if self.fault == Fault::DrawsWhenWoken {
            self.rng.next_u64();
        }
        if self.fault == Fault::ReportsWhenWoken
            && let Some((_, packet)) = self.line.front()
        {
            cx.trace(cx.now(), EventKind::Enqueued, packet);
        }
        while self.first().is_some_and(|due| due <= cx.now()) {
            let Some((_, packet)) = self.line.pop_front() else { break };
            self.ledger.held.remove(packet.bytes);
            self.ledger.sent.add(packet.bytes);
            cx.trace(cx.now(), EventKind::Delivered, &packet);
            cx.send(OUT, packet);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let due = self.first();
        let soon = self.last_call + Duration::from_nanos(1);
        if self.never_rests() {
            return Some(self.last_call + DELAY);
        }
        match self.fault {
            Fault::ForgetsTheFirstDeadline => due.filter(|_| self.ledger.sent.packets > 0),
            Fault::ForgetsTheLastDeadline => due.filter(|_| self.line.len() > 1),
            Fault::WakesTooEarlyForEver => {
                due.map(|due| Instant::from_nanos(due.as_nanos() - 1).max(self.last_call))
            }
            Fault::CreepsTowardsItsDeadline => due.map(|due| due.min(soon)),
            Fault::AsksForThePast => due.map(|_| Instant::START),
            Fault::None
            | Fault::DrawsWhenWoken
            | Fault::ReportsWhenWoken
            | Fault::LosesSilently
            | Fault::DeniesInput
            | Fault::ClaimsOutput
            | Fault::SendsTooSoon
            | Fault::WakesForEver
            | Fault::KeepsOnePacket => due,
        }
    }

    fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        if self.fault == Fault::DeniesInput && ledger.held == Count::default() {
            ledger.received = Count::default();
            ledger.sent = Count::default();
        }
        if self.fault == Fault::ClaimsOutput {
            ledger.created.add(40);
            ledger.sent.add(40);
        }
        ledger
    }
}

fn guarantees() -> Guarantees {
    Guarantees { minimum_delay: vec![(OUT, DELAY)], ..Guarantees::default() }
}

fn verdict(fault: Fault, shape: &ArrivalPattern, seed: u64) -> Result<(), Violation> {
    check(|| Line::new(fault), &guarantees(), &shape.script(seed))
}

fn finds(fault: Fault, invariant: Invariant) {
    for seed in 0..20 {
        let found = verdict(fault, &ArrivalPattern::mixed(vec![IN]), seed);
        let found = found.expect_err("the line has a fault");
        assert_eq!(found.invariant, invariant, "{fault:?}, seed {seed}: {found}");
    }
}
