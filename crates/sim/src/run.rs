//! One run: build, advance, finish.

use core::fmt;

use bentpipe_core::engine::Engine;
use bentpipe_core::graph::Graph;
use bentpipe_core::link::Counters;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{NodeId, Trace};

use crate::build::{Layout, build};
use crate::conservation;
use crate::plan::Plan;
use crate::record::{
    DirectionFacts, DirectionSamples, EventLog, FlowSamples, Table, directions_table,
    exchanges_table, flows_table, processors_table,
};
use crate::workload::Node;

/// How much virtual time passes between two chances to stop a run from outside.
const STRETCH: Duration = Duration::from_millis(250);

/// A run that can be advanced, watched and stopped early.
pub struct Simulation {
    graph: Graph<Node>,
    layout: Layout,
    stop: Instant,
    sample_interval: Option<Duration>,
    next_sample: Instant,
    sampled_until: Option<Instant>,
    flow_samples: FlowSamples,
    direction_samples: DirectionSamples,
    events: Option<EventLog>,
    finished: bool,
}

/// What a run returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether traffic ended by itself before the run's end.
    pub completed: bool,
    /// The moment of the last event, or where the run was stopped.
    pub end: Instant,
    /// Packets served by a direction's queue and transmitter, added up.
    pub packet_hops: u64,
    /// Calls of engines.
    pub engine_calls: u64,
    /// The facts.
    pub tables: Vec<Table>,
}

impl Outcome {
    /// A table by name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }
}

/// The run broke a law of the simulator: a bug here, not in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunError(pub String);

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conservation does not hold: {}", self.0)
    }
}

impl std::error::Error for RunError {}

impl Simulation {
    /// Builds a run of a checked plan.
    #[must_use]
    pub fn new(plan: &Plan, seed: u64) -> Self {
        let (graph, layout) = build(plan, seed);
        Self {
            graph,
            layout,
            stop: Instant::from_nanos(plan.stop_ns),
            sample_interval: plan.sample_interval_ns.map(Duration::from_nanos),
            next_sample: Instant::START,
            sampled_until: None,
            flow_samples: FlowSamples::new(),
            direction_samples: DirectionSamples::new(),
            events: plan.packet_events.then(EventLog::default),
            finished: false,
        }
    }

    /// Runs a stretch. Whether there is more to do.
    pub fn advance(&mut self) -> bool {
        if self.finished {
            return false;
        }
        let Some(next) = self.graph.next_event().filter(|&next| next <= self.stop) else {
            self.finished = true;
            return false;
        };
        let mut limit = next.max(self.graph.now() + STRETCH).min(self.stop);
        if let Some(interval) = self.sample_interval {
            // Nothing changes before the next event, so the samples in between are due.
            while self.next_sample < next {
                self.sample(self.next_sample);
                self.next_sample += interval;
            }
            limit = limit.min(self.next_sample);
        }
        self.graph
            .run_until(limit, self.events.as_mut().map(|log| log as &mut (dyn Trace + 'static)));
        true
    }

    /// Wakes every engine, due or not, which changes nothing: for checks of that law.
    pub fn wake_all(&mut self) {
        let log = self.events.as_mut().map(|log| log as &mut (dyn Trace + 'static));
        self.graph.wake_all(log);
    }

    /// How far the run is, from 0 to 1: the farther of virtual time and the slowest flow.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share for a progress bar")]
    pub fn fraction(&self) -> f64 {
        let now = self.graph.now();
        let by_time = now.as_nanos() as f64 / self.stop.as_nanos() as f64;
        let flows = self.layout.flows.iter().map(|ends| match self.graph.engine(ends.sender) {
            Node::BulkSender(bulk) => bulk.fraction(now),
            Node::ConstantRate(source) => source.fraction(now),
            Node::Participant(participant) => participant.source().fraction(now),
            Node::Server(_) => match self.graph.engine(ends.receiver) {
                Node::Client(client) => client.fraction(now),
                _ => unreachable!("a flow's two ends are of one workload"),
            },
            Node::Direction(_)
            | Node::Processor(_)
            | Node::BulkReceiver(_)
            | Node::DatagramSink(_)
            | Node::Client(_)
            | Node::Reflector(_) => 1.0,
        });
        flows.fold(1.0, f64::min).max(by_time).clamp(0.0, 1.0)
    }

    /// Ends the run, complete or not, checks conservation and returns the facts.
    ///
    /// # Errors
    /// The balance that does not hold.
    pub fn finish(mut self) -> Result<Outcome, RunError> {
        let quiet = self.graph.next_event().is_none();
        let now = match (self.finished, quiet) {
            // The clock went on to the end of the last stretch, but nothing happened there.
            (true, true) => self.graph.last_event(),
            (true, false) => self.stop,
            (false, _) => self.graph.now(),
        };
        if self.sample_interval.is_some() && self.sampled_until.is_none_or(|last| last < now) {
            self.sample(now);
        }
        let directions = self.settle_directions(now);
        conservation::check(&self.graph, &self.layout).map_err(RunError)?;
        let packet_hops = directions.iter().map(|facts| facts.counters.sent_packets).sum();
        let engine_calls = self.graph.calls();
        Ok(Outcome {
            completed: self.finished && quiet,
            end: now,
            packet_hops,
            engine_calls,
            tables: self.tables(&directions),
        })
    }

    fn tables(self, directions: &[DirectionFacts]) -> Vec<Table> {
        let processors = self.layout.processors.iter();
        let processors = processors.map(|&(number, node)| match self.graph.engine(node) {
            Node::Processor(processor) => (number, processor.counters()),
            _ => unreachable!("the layout names processors"),
        });
        let mut tables = vec![
            flows_table(&self.graph, &self.layout.flows),
            exchanges_table(&self.graph, &self.layout.flows),
            directions_table(directions),
            processors_table(processors),
            self.flow_samples.table(),
            self.direction_samples.table(),
        ];
        tables.extend(self.events.map(EventLog::table));
        tables
    }

    fn settle_directions(&mut self, now: Instant) -> Vec<DirectionFacts> {
        (0..self.layout.directions.len())
            .map(|number| {
                let node = self.layout.directions[number];
                let counters = self.settle(node, now);
                let ledger = self.graph.engine(node).ledger();
                DirectionFacts { received: ledger.received, held: ledger.held, counters }
            })
            .collect()
    }

    fn settle(&mut self, node: NodeId, now: Instant) -> Counters {
        match self.graph.engine_mut(node) {
            Node::Direction(direction) => direction.settle(now),
            _ => unreachable!("the layout names directions"),
        }
    }

    fn sample(&mut self, now: Instant) {
        self.sampled_until = Some(now);
        for number in 0..self.layout.directions.len() {
            let counters = self.settle(self.layout.directions[number], now);
            self.direction_samples.push(now, number as u64, &counters);
        }
        self.flow_samples.push(now, &self.graph, &self.layout.flows);
    }
}
