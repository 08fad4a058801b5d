//! The checks that every engine must pass.
//!
//! [`check`] runs one engine through one [`Script`] several times: woken only at its deadlines, woken
//! far more often, alone in a graph, and in a graph with another engine. It reports the first violated
//! [`Invariant`]. A script is generated from an [`ArrivalPattern`] and a seed. For an engine that needs a
//! peer, a [`Recorder`] records a script.
//!
//! The kit checks only the contract. Whether an engine does its task (the right delay, the right order)
//! is checked by the engine's own tests. The [admission] of connections is not an engine of packets and has a check of its own.

pub mod admission;
mod driver;
mod recorder;
mod script;

use core::fmt;

use crate::engine::{Count, Engine};
use crate::graph::Graph;
use crate::packet::{Packet, Port};
use crate::time::{Duration, Instant};
use crate::trace::{Event, NodeId, Trace};

use driver::{WakePolicy, run};
pub use recorder::Recorder;
pub use script::{ArrivalPattern, Script};

/// A property that every engine must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// Additional wake-ups have no effect.
    WakeIsIdempotent,
    /// After `wake` the deadline is later than now, after `input` it is not before now, and wake-ups that
    /// do nothing do not go on endlessly.
    Progress,
    /// Engines with the same configuration, seed and input behave the same, whatever else is in the
    /// graph.
    Determinism,
    /// The ledger balances after every call and agrees with the packets received and sent.
    Conservation,
    /// A packet leaves no earlier than its arrival plus the minimum delay.
    Causality,
    /// It never holds more packets than guaranteed.
    Bounded,
    /// After the last input it becomes idle and then holds no packet.
    Drains,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WakeIsIdempotent => "wake is idempotent",
            Self::Progress => "progress",
            Self::Determinism => "determinism",
            Self::Conservation => "conservation",
            Self::Causality => "causality",
            Self::Bounded => "bounded",
            Self::Drains => "drains",
        })
    }
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// The time in the run.
    pub at: Instant,
    /// What was observed.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, at {}: {}", self.invariant, self.at, self.what)
    }
}

impl core::error::Error for Violation {}

/// What an engine guarantees beyond the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// The minimum time from the input of a packet to its output, by output port; zero for ports that
    /// are not listed.
    pub minimum_delay: Vec<(Port, Duration)>,
    /// The most packets that the engine ever holds, if that is bounded.
    pub held_packets_max: Option<u64>,
    /// The most wake-ups from the last input until the engine is idle.
    pub drain_wakes_max: u64,
}

impl Default for Guarantees {
    /// No minimum delay, no bound on held packets, and 100,000 wake-ups to become idle: far more than
    /// the generated scripts need, and reached within milliseconds by an engine that loops.
    fn default() -> Self {
        Self { minimum_delay: Vec::new(), held_packets_max: None, drain_wakes_max: 100_000 }
    }
}

impl Guarantees {
    fn delay_of(&self, port: Port) -> Duration {
        let delay = self.minimum_delay.iter().find(|delay| delay.0 == port);
        delay.map_or(Duration::ZERO, |delay| delay.1)
    }
}

/// A packet that left: when, by which port, and the packet.
type Output = (Instant, Port, Packet);

/// What was observed in one run.
struct Record {
    outputs: Vec<Output>,
    events: Vec<Event>,
    end: Instant,
    held: Count,
}

/// Checks all invariants on engines that `build` creates and `script` feeds.
///
/// `build` must create equal engines: same configuration, same seed.
///
/// # Errors
/// The first violated invariant.
///
/// # Panics
/// If `script` is not in order of time.
pub fn check<E: Engine>(
    build: impl Fn() -> E,
    guarantees: &Guarantees,
    script: &[(Instant, Port, Packet)],
) -> Result<(), Violation> {
    assert!(script.windows(2).all(|pair| pair[0].0 <= pair[1].0), "a script is in order of time");
    let exact = run(build(), guarantees, script, WakePolicy::OnDeadline)?;
    let again = run(build(), guarantees, script, WakePolicy::OnDeadline)?;
    compare(Invariant::Determinism, &exact, &again, "on a second run")?;

    let sorted = sorted_by_time(exact.events.clone());
    let exact_in_order = Record { events: sorted, ..exact };
    for policy in [WakePolicy::EveryMillisecond, WakePolicy::Random] {
        let mut eager = run(build(), guarantees, script, policy)?;
        eager.events = sorted_by_time(eager.events);
        compare(Invariant::WakeIsIdempotent, &exact_in_order, &eager, policy.description())?;
    }

    if again.held != Count::default() {
        let what = format!("idle, but still holds {:?}", again.held);
        return Err(Violation { invariant: Invariant::Drains, at: again.end, what });
    }

    let alone = run_in_graph(&build, guarantees, script, Neighbour::None)?;
    compare(Invariant::Determinism, &again, &alone, "alone in a graph")?;
    let with_twin = run_in_graph(&build, guarantees, script, Neighbour::Twin)?;
    compare(Invariant::Determinism, &again, &with_twin, "in a graph with another engine")
}

/// An engine may report events a little after they happened. Two runs that call it at different times
/// may therefore report the same events in another order.
fn sorted_by_time(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_key(|event| {
        (event.at, event.kind.number(), event.flow, event.packet, event.bytes)
    });
    events
}

fn compare(
    invariant: Invariant,
    expected: &Record,
    found: &Record,
    how: &str,
) -> Result<(), Violation> {
    let outputs = first_difference(&expected.outputs, &found.outputs).map(|(expected, found)| {
        let at = expected.iter().chain(&found).map(|output| output.0).min();
        (at, format!("{how} it sent {}, not {}", output(found), output(expected)))
    });
    let events = first_difference(&expected.events, &found.events).map(|(expected, found)| {
        let at = expected.iter().chain(&found).map(|event| event.at).min();
        (at, format!("{how} it reported {found:?}, not {expected:?}"))
    });
    let Some((at, what)) = outputs.or(events) else { return Ok(()) };
    Err(Violation { invariant, at: at.unwrap_or(found.end), what })
}

fn first_difference<'a, T: PartialEq>(
    expected: &'a [T],
    found: &'a [T],
) -> Option<(Option<&'a T>, Option<&'a T>)> {
    let longest = expected.len().max(found.len());
    (0..longest)
        .map(|n| (expected.get(n), found.get(n)))
        .find(|(expected, found)| expected != found)
}

fn output(output: Option<&Output>) -> String {
    let Some((at, port, packet)) = output else { return "nothing".into() };
    format!("{packet:?} from port {} at {at}", port.0)
}

#[derive(Clone, Copy)]
enum Neighbour {
    None,
    /// A second engine of the same kind, added first and fed the same packets at the same times just
    /// before: the worst case of state that is shared by mistake.
    Twin,
}

/// Records the events of one engine, as if it were the first of its graph.
struct NodeFilter {
    node: NodeId,
    events: Vec<Event>,
}

impl Trace for NodeFilter {
    fn record(&mut self, event: &Event) {
        if event.node == self.node {
            self.events.push(Event { node: driver::NODE, ..*event });
        }
    }
}

fn run_in_graph<E: Engine>(
    build: &impl Fn() -> E,
    guarantees: &Guarantees,
    script: &[(Instant, Port, Packet)],
    neighbour: Neighbour,
) -> Result<Record, Violation> {
    let mut graph = Graph::default();
    let twin = match neighbour {
        Neighbour::None => None,
        Neighbour::Twin => Some(graph.add(build())),
    };
    let node = graph.add(build());
    let mut trace = NodeFilter { node, events: Vec::new() };
    for (at, port, packet) in script {
        for node in twin.into_iter().chain([node]) {
            graph.inject(*at, (node, *port), packet.clone(), Some(&mut trace));
        }
    }
    let mut wakes = 0;
    while let Some(at) = graph.next_event() {
        graph.run_until(at, Some(&mut trace));
        wakes += 1;
        if wakes > 2 * guarantees.drain_wakes_max {
            let what = format!("in a graph, {wakes} wake-ups after the last input, it is not idle");
            return Err(Violation { invariant: Invariant::Drains, at, what });
        }
    }
    let egress = graph.drain_egress();
    let outputs = egress
        .filter(|output| output.1 == node)
        .map(|(at, _, port, packet)| (at, port, packet))
        .collect();
    let held = graph.engine(node).ledger().held;
    Ok(Record { outputs, events: trace.events, end: graph.now(), held })
}
