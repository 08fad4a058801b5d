//! One engine, one script, one way of waking it; every call is checked.
//!
//! This loop is written apart from the graph's, so that each vouches for the other.

use std::collections::BTreeMap;

use super::{Guarantees, Invariant, Output, Record, Violation};
use crate::engine::{Count, Cx, Engine, Ledger, Outbox};
use crate::packet::{Packet, PacketId, Port};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::trace::{NodeId, VecTrace};

/// The place of the engine under test in its graph of one.
pub(super) const NODE: NodeId = NodeId(0);

/// Wake-ups in a row that change nothing to be seen. A coarse timer may wake for nothing now and
/// then; at one tick a millisecond this many are ten seconds of it.
const NO_OP_WAKES_MAX: u32 = 10_000;

/// Extra wake-ups of one gap between events. WakePolicy on every millisecond of a week would take
/// minutes; what an early wake-up disturbs, it disturbs in the first ones too.
const EXTRA_WAKES_MAX: u64 = 100;

/// How long after it is idle an engine may still be woken: longer than any timer of a protocol.
const LINGER: Duration = Duration::from_secs(3_600);

/// When to wake an engine beside the moments that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakePolicy {
    /// Never.
    OnDeadline,
    /// On each whole millisecond, and once more at the end of each gap.
    EveryMillisecond,
    /// At random moments, near and far, and often twice.
    Random,
}

impl WakePolicy {
    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::OnDeadline => "woken when it asked",
            Self::EveryMillisecond => "woken every millisecond",
            Self::Random => "woken at random",
        }
    }

    /// The extra wake-ups from `from` to `to`, in order.
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
                // Shifting the gap by a random number of bits favours moments near its start.
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
    // An engine that forgot a deadline is idle and would wake up only here.
    driver.run_until(driver.now + LINGER)?;
    driver.drain()?;
    let Driver { engine, outputs, trace, now, .. } = driver;
    Ok(Record { outputs, events: trace.0, end: now, held: engine.ledger().held })
}

struct Driver<'a, E> {
    engine: E,
    guarantees: &'a Guarantees,
    policy: WakePolicy,
    /// When each packet of the script first comes in.
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
                let what = format!("it woke {NO_OP_WAKES_MAX} times in a row to do nothing");
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
        let what = format!("{wakes} wake-ups after the last input it still asks for one at {due}");
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

    /// What must hold after each call, whichever it was.
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
        let Some(came) = self.causes.get(&packet.id) else { return Ok(()) };
        let earliest = *came + self.guarantees.delay_of(port);
        if self.now >= earliest {
            return Ok(());
        }
        let (id, port) = (packet.id, port.0);
        let what = format!("{id:?} left port {port}, not due before {earliest}: it came at {came}");
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
