//! Runs one engine through one script with one wake-up policy, and checks every call.
//!
//! This loop does not share code with the graph's, so that each verifies the other.

use std::collections::BTreeMap;

use super::{Guarantees, Invariant, Output, Record, Violation};
use crate::engine::{Count, Cx, Engine, Ledger, Outbox};
use crate::packet::{Packet, PacketId, Port};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::trace::{NodeId, VecTrace};

/// The number of the engine under test.
pub(super) const NODE: NodeId = NodeId(0);

/// Consecutive wake-ups without an observable effect. A coarse timer may expire without one; at one tick
/// a millisecond this many are ten seconds.
const NO_OP_WAKES_MAX: u32 = 10_000;

/// Additional wake-ups in one gap between events. Waking on every millisecond of a week would take
/// minutes; an early wake-up that has an effect has it among the first ones, too.
const EXTRA_WAKES_MAX: u64 = 100;

/// How long an idle engine is still woken: longer than any timer of a protocol.
const LINGER: Duration = Duration::from_secs(3_600);

/// When to wake an engine in addition to its deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakePolicy {
    /// Never.
    OnDeadline,
    /// At each whole millisecond, and once more at the end of each gap.
    EveryMillisecond,
    /// At random times, near and far, and often twice.
    Random,
}

impl WakePolicy {
    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::OnDeadline => "woken at its deadlines",
            Self::EveryMillisecond => "woken every millisecond",
            Self::Random => "woken at random",
        }
    }

    /// The additional wake-ups from `from` to `to`, in order.
    fn extra_wakes(self, rng: &mut Rng, from: Instant, to: Instant) -> Vec<Instant> {
        let gap = to.saturating_since(from).as_nanos();
        match self {
            Self::OnDeadline => Vec::new(),
            Self::EveryMillisecond => {
                let milli = Duration::from_millis(1).as_nanos();
                let first = from.as_nanos() / milli + 1;
                let ticks = (first..first + EXTRA_WAKES_MAX).map(Instant::from_millis);
                ticks.take_while(|tick| *tick < to).chain([to]).collect()
            }
            Self::Random => {
                let count = rng.below(4);
                // Shifting the gap by a random number of bits favours times near its start.
                let nanos = (0..count).map(|_| {
                    let scale = gap >> rng.below(40);
                    from.as_nanos() + rng.below(scale.saturating_add(1))
                });
                let mut extra_wakes: Vec<_> = nanos.map(Instant::from_nanos).collect();
                extra_wakes.sort_unstable();
                extra_wakes
            }
        }
    }
}

/// Runs one engine through `script` until it is idle.
pub(super) fn run<E: Engine>(
    engine: E,
    guarantees: &Guarantees,
    script: &[(Instant, Port, Packet)],
    policy: WakePolicy,
) -> Result<Record, Violation> {
    let mut causes = BTreeMap::new();
    for (at, _, packet) in script {
        causes.entry(packet.id).or_insert(*at);
    }
    let mut driver = Driver {
        engine,
        guarantees,
        policy,
        causes,
        rng: Rng::stream(script.len() as u64, "conformance.wakes"),
        now: Instant::START,
        received: Count::default(),
        sent: Count::default(),
        outbox: Outbox::new(),
        outputs: Vec::new(),
        trace: VecTrace::default(),
        no_op_wakes: 0,
    };
    for (at, port, packet) in script {
        driver.run_until(*at)?;
        driver.input(*port, packet)?;
    }
    driver.drain()?;
    // An engine that lost a deadline is idle and would wake up only here.
    driver.run_until(driver.now + LINGER)?;
    driver.drain()?;
    let Driver { engine, outputs, trace, now, .. } = driver;
    Ok(Record { outputs, events: trace.0, end: now, held: engine.ledger().held })
}

struct Driver<'a, E> {
    engine: E,
    guarantees: &'a Guarantees,
    policy: WakePolicy,
    /// When the script first feeds each packet.
    causes: BTreeMap<PacketId, Instant>,
    rng: Rng,
    now: Instant,
    received: Count,
    sent: Count,
    outbox: Outbox,
    outputs: Vec<Output>,
    trace: VecTrace,
    no_op_wakes: u32,
}

impl<E: Engine> Driver<'_, E> {
    fn run_until(&mut self, limit: Instant) -> Result<(), Violation> {
        for extra in self.policy.extra_wakes(&mut self.rng, self.now, limit) {
            self.run_due(extra)?;
            self.now = extra;
            self.wake()?;
        }
        self.run_due(limit)?;
        self.now = limit;
        Ok(())
    }

    fn run_due(&mut self, limit: Instant) -> Result<(), Violation> {
        while let Some(due) = self.engine.next_wake().filter(|due| *due <= limit) {
            self.now = due;
            let before = self.observable_state();
            self.wake()?;
            self.no_op_wakes =
                if self.observable_state() == before { self.no_op_wakes + 1 } else { 0 };
            if self.no_op_wakes > NO_OP_WAKES_MAX {
                let what = format!("{NO_OP_WAKES_MAX} consecutive wake-ups had no effect");
                return self.violation(Invariant::Progress, what);
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Violation> {
        for _ in 0..self.guarantees.drain_wakes_max {
            let Some(due) = self.engine.next_wake() else { return Ok(()) };
            self.no_op_wakes = 0;
            self.run_until(due)?;
        }
        let Some(due) = self.engine.next_wake() else { return Ok(()) };
        let wakes = self.guarantees.drain_wakes_max;
        let what = format!("{wakes} wake-ups after the last input it is due again at {due}");
        self.violation(Invariant::Drains, what)
    }

    fn observable_state(&self) -> (usize, usize, Ledger) {
        (self.outputs.len(), self.trace.0.len(), self.engine.ledger())
    }

    fn wake(&mut self) -> Result<(), Violation> {
        let mut cx = Cx::new(self.now, NODE, &mut self.outbox, Some(&mut self.trace));
        self.engine.wake(&mut cx);
        drop(cx);
        if let Some(due) = self.engine.next_wake().filter(|due| *due <= self.now) {
            return self
                .violation(Invariant::Progress, format!("woken now, its deadline is still {due}"));
        }
        self.check_call()
    }

    fn input(&mut self, port: Port, packet: &Packet) -> Result<(), Violation> {
        self.received.add(packet.bytes);
        let mut cx = Cx::new(self.now, NODE, &mut self.outbox, Some(&mut self.trace));
        self.engine.input(&mut cx, port, Box::new(packet.clone()));
        drop(cx);
        self.no_op_wakes = 0;
        if let Some(due) = self.engine.next_wake().filter(|due| *due < self.now) {
            return self
                .violation(Invariant::Progress, format!("after input, its deadline was at {due}"));
        }
        self.check_call()
    }

    /// Checks what must hold after each call.
    fn check_call(&mut self) -> Result<(), Violation> {
        let sent: Vec<_> = self.outbox.drain().collect();
        for (_, port, packet) in sent {
            self.sent.add(packet.bytes);
            self.check_cause(port, &packet)?;
            self.outputs.push((self.now, port, packet));
        }
        let ledger = self.engine.ledger();
        if let Err(imbalance) = ledger.check() {
            return self.violation(Invariant::Conservation, imbalance);
        }
        for (name, counted, true_count) in
            [("received", ledger.received, self.received), ("sent", ledger.sent, self.sent)]
        {
            if counted != true_count {
                let what = format!("it counts {counted:?} as {name}, but {true_count:?} were");
                return self.violation(Invariant::Conservation, what);
            }
        }
        let bound = self.guarantees.held_packets_max;
        if bound.is_some_and(|bound| ledger.held.packets > bound) {
            return self.violation(Invariant::Bounded, format!("it holds {:?}", ledger.held));
        }
        Ok(())
    }

    fn check_cause(&self, port: Port, packet: &Packet) -> Result<(), Violation> {
        let Some(arrival) = self.causes.get(&packet.id) else { return Ok(()) };
        let earliest = *arrival + self.guarantees.delay_of(port);
        if self.now >= earliest {
            return Ok(());
        }
        let (id, port) = (packet.id, port.0);
        let what =
            format!("{id:?} left port {port}, not due before {earliest}: it arrived at {arrival}");
        self.violation(Invariant::Causality, what)
    }

    fn violation<T>(&self, invariant: Invariant, what: String) -> Result<T, Violation> {
        Err(Violation {
            invariant,
            at: self.now,
            what: format!("{}: {what}", self.policy.description()),
        })
    }
}
