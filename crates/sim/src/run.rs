//! One run: build, advance, finish.

use core::fmt;

use bentpipe_core::engine::{Engine, Ledger};
use bentpipe_core::graph::Graph;
use bentpipe_core::link::Counters;
use bentpipe_core::packet::Packet;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, Event, NodeId, Trace};

use crate::build::{Layout, build};
use crate::capture::Capture;
use crate::conservation;
use crate::memory::{PACKET_BYTES, fixed_bytes};
use crate::node::Node;
use crate::plan::Plan;
use crate::record::{
    DirectionFacts, DirectionSamples, EXCHANGE_BYTES, EventLog, FlowSamples, Table,
    direction_sample_bytes, directions_table, exchanges_table, flow_sample_bytes, flows_table,
    processors_table, statistics_table,
};

/// How much virtual time passes between two chances to stop a run from outside.
const STRETCH: Duration = Duration::from_millis(250);
/// The same while packets are captured, which are kept for so long: 1 Gbit/s makes 850 full packets,
/// each seen at three points.
const CAPTURE_STRETCH: Duration = Duration::from_millis(10);
/// A stretch ends earlier after so many calls of engines, or after more of them when there are many
/// flows, of which each is looked at between two stretches. A call makes at most a few packets and
/// rows for each that it, or a later one, takes in: so what a stretch adds to memory is bounded.
const STRETCH_CALLS: u64 = 1 << 16;
const STRETCH_CALLS_PER_FLOW: u64 = 16;

/// A run that can be advanced, watched and stopped early.
pub struct Simulation {
    graph: Graph<Node>,
    layout: Layout,
    /// The engines that keep exchanges.
    clients: Vec<NodeId>,
    stop: Instant,
    sample_interval: Option<Duration>,
    next_sample: Instant,
    sampled_until: Option<Instant>,
    flow_samples: FlowSamples,
    direction_samples: DirectionSamples,
    listeners: Listeners,
    finished: bool,
    stretch_calls: u64,
    memory: Memory,
}

/// What a run takes, and may take.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Before anything happens.
    fixed_bytes: u64,
    /// A row of samples.
    flow_row_bytes: u64,
    direction_row_bytes: u64,
    limit_bytes: Option<u64>,
    /// The most that was counted between two stretches.
    bytes_max: u64,
    /// Whether that was over the limit.
    exhausted: bool,
}

/// The trace sinks of a run.
#[derive(Default)]
struct Listeners {
    events: Option<EventLog>,
    capture: Option<Capture>,
}

impl Listeners {
    /// The log and the capture, if there is either: an untraced run is faster.
    fn trace(&mut self) -> Option<&mut (dyn Trace + 'static)> {
        let anybody = self.events.is_some() || self.capture.is_some();
        anybody.then_some(self as &mut (dyn Trace + 'static))
    }
}

impl Trace for Listeners {
    fn record(&mut self, event: &Event) {
        self.events.iter_mut().for_each(|events| events.record(event));
    }

    fn record_packet(&mut self, event: &Event, packet: &Packet) {
        self.record(event);
        self.capture.iter_mut().for_each(|capture| capture.record_packet(event, packet));
    }
}

/// What a run returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether traffic ended by itself before the run's end.
    pub completed: bool,
    /// The moment of the last event, or where the run was stopped.
    pub end: Instant,
    /// Whether the run was stopped because it took more memory than its limit.
    pub memory_exhausted: bool,
    /// The most memory that the run counted: see [`Simulation::with_memory_limit`].
    pub memory_bytes_max: u64,
    /// Packets served by a direction's queue and transmitter, added up.
    pub packet_hops: u64,
    /// Calls of engines.
    pub engine_calls: u64,
    /// The facts.
    pub tables: Vec<Table>,
    /// The names of the statistics in the table `function_statistics`.
    pub statistics: Vec<&'static str>,
}

impl Outcome {
    /// A table by name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }
}

/// The run violated an invariant of the simulator: a bug here, not in the plan.
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
        let ends = layout.flows.iter().map(|ends| ends.receiver);
        let clients = ends.filter(|&node| matches!(graph.engine(node), Node::Client(_))).collect();
        Self {
            graph,
            layout,
            clients,
            stop: Instant::from_nanos(plan.stop_ns),
            sample_interval: plan.sample_interval_ns.map(Duration::from_nanos),
            next_sample: Instant::START,
            sampled_until: None,
            flow_samples: FlowSamples::new(),
            direction_samples: DirectionSamples::new(),
            listeners: Listeners {
                events: plan.packet_events.then(EventLog::default),
                capture: None,
            },
            finished: false,
            stretch_calls: STRETCH_CALLS.max(STRETCH_CALLS_PER_FLOW * plan.flows.len() as u64),
            memory: Memory {
                fixed_bytes: fixed_bytes(plan),
                flow_row_bytes: flow_sample_bytes(),
                direction_row_bytes: direction_sample_bytes(),
                limit_bytes: None,
                bytes_max: 0,
                exhausted: false,
            },
        }
    }

    /// The same run, stopped once it takes more than so many bytes. The run counts them itself: its
    /// engines, packets and recorded rows, with the copies of these that are made later. So the same
    /// plan, seed and limit stop at the same event.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: u64) -> Self {
        self.memory.limit_bytes = Some(bytes);
        self
    }

    /// The same run, with its packets captured: see [`Simulation::take_captured`]. The plan is the one
    /// that the run was built from.
    #[must_use]
    pub fn capturing(mut self, plan: &Plan) -> Self {
        self.listeners.capture = Some(Capture::new(plan));
        self
    }

    /// The capture since the last time, as far as the run is: whole blocks of a pcapng file, in the
    /// order of time. To be asked for after each [`Simulation::advance`], the last one too.
    #[must_use]
    pub fn take_captured(&mut self) -> Vec<u8> {
        self.listeners.capture.as_mut().map(Capture::take).unwrap_or_default()
    }

    /// Counts the memory that the run takes. Whether that is more than it may take.
    fn is_out_of_memory(&mut self) -> bool {
        let exchanges: usize = self.clients.iter().map(|&client| self.exchanges_of(client)).sum();
        let Listeners { events, capture } = &self.listeners;
        let bytes = self.memory.fixed_bytes
            + PACKET_BYTES * self.graph.packets_allocated()
            + EXCHANGE_BYTES * exchanges as u64
            + self.memory.flow_row_bytes * self.flow_samples.rows()
            + self.memory.direction_row_bytes * self.direction_samples.rows()
            + events.as_ref().map_or(0, EventLog::memory_bytes)
            + capture.as_ref().map_or(0, Capture::memory_bytes);
        self.memory.bytes_max = self.memory.bytes_max.max(bytes);
        self.memory.exhausted = self.memory.limit_bytes.is_some_and(|limit| bytes > limit);
        self.memory.exhausted
    }

    fn exchanges_of(&self, client: NodeId) -> usize {
        match self.graph.engine(client) {
            Node::Client(client) => client.exchanges().len(),
            _ => unreachable!("the list has clients"),
        }
    }

    /// Runs a stretch. Whether there is more to do.
    pub fn advance(&mut self) -> bool {
        if self.finished || self.memory.exhausted {
            return false;
        }
        let Some(next) = self.graph.next_event().filter(|&next| next <= self.stop) else {
            self.finished = true;
            self.write_captured();
            return false;
        };
        let stretch = if self.listeners.capture.is_some() { CAPTURE_STRETCH } else { STRETCH };
        let mut limit = next.max(self.graph.now() + stretch).min(self.stop);
        if let Some(interval) = self.sample_interval {
            // Nothing changes before the next event, so the samples in between are due.
            while self.next_sample < next {
                let now = self.next_sample;
                self.sample(now);
                self.next_sample += interval;
                if self.is_out_of_memory() {
                    self.graph.run_until(now, self.listeners.trace());
                    self.write_captured();
                    return false;
                }
            }
            limit = limit.min(self.next_sample);
        }
        self.graph.run_paused(limit, self.stretch_calls, self.listeners.trace());
        self.write_captured();
        !self.is_out_of_memory()
    }

    fn write_captured(&mut self) {
        if self.listeners.capture.is_some() {
            let now = self.reached();
            self.listeners.capture.iter_mut().for_each(|capture| capture.write_until(now));
        }
    }

    /// How far the run has come; once it is finished, where it ended.
    fn reached(&mut self) -> Instant {
        match (self.finished, self.graph.next_event()) {
            // The clock went on to the end of the last stretch, but nothing happened there.
            (true, None) => self.graph.last_event(),
            (true, Some(_)) => self.stop,
            (false, _) => self.graph.now(),
        }
    }

    /// Wakes every engine, due or not, which changes nothing: for checks of that invariant.
    pub fn wake_all(&mut self) {
        self.graph.wake_all(self.listeners.trace());
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
            _ => 1.0,
        });
        flows.fold(1.0, f64::min).max(by_time).clamp(0.0, 1.0)
    }

    /// Ends the run, complete or not, checks conservation and returns the facts.
    ///
    /// # Errors
    /// The balance that does not hold.
    pub fn finish(mut self) -> Result<Outcome, RunError> {
        let quiet = self.graph.next_event().is_none();
        let now = self.reached();
        if self.sample_interval.is_some() && self.sampled_until.is_none_or(|last| last < now) {
            self.sample(now);
        }
        let directions = self.settle_directions(now);
        conservation::check(&self.graph, &self.layout).map_err(RunError)?;
        let packet_hops = directions.iter().map(|facts| facts.counters.sent_packets).sum();
        let engine_calls = self.graph.calls();
        let functions = self.layout.functions.iter().flatten();
        let (of_functions, statistics) = statistics_table(
            functions.map(|&node| (node.0.into(), self.graph.engine(node).statistics())),
        );
        Ok(Outcome {
            completed: self.finished && quiet,
            end: now,
            memory_exhausted: self.memory.exhausted,
            memory_bytes_max: self.memory.bytes_max,
            packet_hops,
            engine_calls,
            tables: self.tables(&directions, of_functions),
            statistics,
        })
    }

    fn tables(self, directions: &[DirectionFacts], of_functions: Table) -> Vec<Table> {
        let functions = (0u32..).zip(&self.layout.functions);
        let functions =
            functions.flat_map(|(gateway, nodes)| nodes.iter().map(move |n| (gateway, n)));
        let processors = functions.filter_map(|(gateway, &node)| match self.graph.engine(node) {
            Node::Processor(processor) => Some((gateway, processor.counters())),
            _ => None,
        });
        let mut tables = vec![
            flows_table(&self.graph, &self.layout.flows),
            exchanges_table(&self.graph, &self.layout.flows),
            directions_table(directions),
            processors_table(processors),
            of_functions,
            self.flow_samples.table(),
            self.direction_samples.table(),
        ];
        tables.extend(self.listeners.events.map(EventLog::table));
        tables
    }

    fn settle_directions(&mut self, now: Instant) -> Vec<DirectionFacts> {
        (0..self.layout.directions.len())
            .map(|number| {
                let node = self.layout.directions[number];
                let counters = self.settle(number, now);
                let ledger = self.graph.engine(node).ledger();
                let held = self
                    .branch_ledgers(number)
                    .fold(ledger.held, |held, branch| held.plus(branch.held));
                DirectionFacts { received: ledger.received, held, counters }
            })
            .collect()
    }

    /// The counters of a direction, its branches included: what is on a branch is in flight.
    fn settle(&mut self, number: usize, now: Instant) -> Counters {
        let mut counters = match self.graph.engine_mut(self.layout.directions[number]) {
            Node::Direction(direction) => direction.counters_at(now),
            _ => unreachable!("the layout names directions"),
        };
        for Ledger { dropped, held, .. } in self.branch_ledgers(number) {
            let lost = dropped[DropCause::BitError as usize];
            let all_lost = &mut counters.dropped[DropCause::BitError as usize];
            *all_lost = all_lost.plus(lost);
            counters.in_flight_bytes += held.bytes;
            let delivered = &mut counters.delivered;
            delivered.packets -= lost.packets + held.packets;
            delivered.bytes -= lost.bytes + held.bytes;
        }
        counters
    }

    fn branch_ledgers(&self, direction: usize) -> impl Iterator<Item = Ledger> + '_ {
        let branches = self.layout.branches.iter();
        let own = branches.filter(move |branch| branch.0 as usize == direction);
        own.map(|&(_, _, node)| self.graph.engine(node).ledger())
    }

    fn sample(&mut self, now: Instant) {
        self.sampled_until = Some(now);
        for number in 0..self.layout.directions.len() {
            let counters = self.settle(number, now);
            self.direction_samples.push(now, number as u64, &counters);
        }
        self.flow_samples.push(now, &self.graph, &self.layout.flows);
    }
}
