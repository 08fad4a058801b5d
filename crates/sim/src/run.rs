//! A run of a plan in virtual time.

use core::fmt;

use bentpipe_core::engine::{Engine, Ledger};
use bentpipe_core::graph::Graph;
use bentpipe_core::link::{ClassUse, Counters};
use bentpipe_core::packet::Packet;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, Event, NodeId, Trace};

use crate::build::{Layout, build};
use crate::capture::Capture;
use crate::conservation;
use crate::memory::{PACKET_BYTES, SOURCE_BYTES, fixed_bytes};
use crate::node::Node;
use crate::plan::Plan;
use crate::record::packed;
use crate::record::{
    DatagramSamples, DirectionFacts, DirectionSamples, EXCHANGE_BYTES, EventLog, FlowSamples,
    PAGE_BYTES, Table, capacity_table, classes_table, count_use, datagram_sample_bytes,
    direction_sample_bytes, directions_table, exchanges_table, flow_sample_bytes, flows_table,
    legs_table, pages_table, processors_table, statistics_table,
};
use crate::workload::DatagramSink;

/// Virtual time of a slice. Between two slices a run can be stopped.
const SLICE: Duration = Duration::from_millis(250);
/// The same during a capture, which buffers the packets of a slice: at 1 Gbit/s, 850 full packets
/// at three points each.
const CAPTURE_SLICE: Duration = Duration::from_millis(10);
/// A slice ends earlier after this many calls of engines, or more if there are many flows, because
/// the work between slices is proportional to the number of flows. The number of packets and rows
/// per call is bounded, and so is the memory that a slice adds.
const SLICE_CALLS: u64 = 1 << 16;
const SLICE_CALLS_PER_FLOW: u64 = 16;

/// A run that can be advanced, observed and stopped early.
pub struct Simulation {
    graph: Graph<Node>,
    layout: Layout,
    /// The ends of flows that record exchanges, pages or sources of datagrams.
    recorders: Vec<NodeId>,
    stop: Instant,
    sample_interval: Option<Duration>,
    next_sample: Instant,
    sampled_until: Option<Instant>,
    flow_samples: FlowSamples,
    datagram_samples: DatagramSamples,
    direction_samples: DirectionSamples,
    sinks: TraceSinks,
    finished: bool,
    slice_calls: u64,
    memory: Memory,
}

/// The memory count of a run and its limit.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Memory at the start.
    fixed_bytes: u64,
    /// Size of a row of samples.
    flow_row_bytes: u64,
    datagram_row_bytes: u64,
    direction_row_bytes: u64,
    limit_bytes: Option<u64>,
    /// The maximum counted between two slices.
    bytes_max: u64,
    /// Whether the count exceeded the limit.
    exhausted: bool,
}

/// The trace sinks of a run.
#[derive(Default)]
struct TraceSinks {
    events: Option<EventLog>,
    capture: Option<Capture>,
}

impl TraceSinks {
    /// The log and the capture; `None` if there is neither, because an untraced run is faster.
    fn trace(&mut self) -> Option<&mut (dyn Trace + 'static)> {
        let is_traced = self.events.is_some() || self.capture.is_some();
        is_traced.then_some(self as &mut (dyn Trace + 'static))
    }
}

impl Trace for TraceSinks {
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
    /// Whether all traffic ended before the end of the run.
    pub completed: bool,
    /// The time of the last event, or when the run was stopped.
    pub end: Instant,
    /// Whether the run was stopped because it exceeded its memory limit.
    pub memory_exhausted: bool,
    /// The maximum memory that the run counted: see [`Simulation::with_memory_limit`].
    pub memory_bytes_max: u64,
    /// The packets that each direction transmitted, summed over directions.
    pub packet_hops: u64,
    /// Calls of engines.
    pub engine_calls: u64,
    /// The result tables.
    pub tables: Vec<Table>,
    /// The names of the statistics in the table `function_statistics`.
    pub statistics: Vec<&'static str>,
}

impl Outcome {
    /// The tables as bytes: see [`packed`].
    #[must_use]
    pub fn into_record(self) -> Vec<u8> {
        packed::pack(self.completed, self.end, self.packet_hops, self.tables)
    }

    /// A table by name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }
}

/// The run violated an invariant of the simulator. This is a bug in the simulator, not in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunError(pub String);

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conservation does not hold: {}", self.0)
    }
}

impl std::error::Error for RunError {}

impl Simulation {
    /// Builds a run of a valid plan.
    #[must_use]
    pub fn new(plan: &Plan, seed: u64) -> Self {
        let (mut graph, layout) = build(plan, seed);
        graph.count_drops(plan.flows.len());
        let ends = layout.flows.iter().flat_map(|ends| [ends.sender, ends.receiver]);
        let recorders = ends.filter(|&node| graph.engine(node).end().records()).collect();
        let datagram_samples = DatagramSamples::new(&graph, &layout.flows);
        Self {
            graph,
            layout,
            recorders,
            stop: Instant::from_nanos(plan.stop_ns),
            sample_interval: plan.sample_interval_ns.map(Duration::from_nanos),
            next_sample: Instant::START,
            sampled_until: None,
            flow_samples: FlowSamples::new(),
            datagram_samples,
            direction_samples: DirectionSamples::new(),
            sinks: TraceSinks { events: plan.packet_events.then(EventLog::default), capture: None },
            finished: false,
            slice_calls: SLICE_CALLS.max(SLICE_CALLS_PER_FLOW * plan.flows.len() as u64),
            memory: Memory {
                fixed_bytes: fixed_bytes(plan),
                flow_row_bytes: flow_sample_bytes(),
                datagram_row_bytes: datagram_sample_bytes(),
                direction_row_bytes: direction_sample_bytes(),
                limit_bytes: None,
                bytes_max: 0,
                exhausted: false,
            },
        }
    }

    /// Limits the memory of the run. The run counts its engines, packets and recorded rows, with
    /// the later copies of rows, and stops when the count exceeds `bytes`. The same plan, seed and
    /// limit stop at the same event.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: u64) -> Self {
        self.memory.limit_bytes = Some(bytes);
        self
    }

    /// Counts the use of each direction by TCP flows, for the table `capacity`, which is empty
    /// otherwise. It costs some instructions per packet.
    #[must_use]
    pub fn with_capacity(mut self) -> Self {
        count_use(&mut self.graph, &self.layout);
        self
    }

    /// Captures packets: see [`Simulation::take_captured`]. `plan` must be the plan of the run.
    #[must_use]
    pub fn with_capture(mut self, plan: &Plan) -> Self {
        self.sinks.capture = Some(Capture::new(plan));
        self
    }

    /// The capture since the last call: whole blocks of a pcapng file, in order of time. Call it
    /// after each [`Simulation::advance`], including the last one.
    #[must_use]
    pub fn take_captured(&mut self) -> Vec<u8> {
        self.sinks.capture.as_mut().map(Capture::take).unwrap_or_default()
    }

    /// Counts the memory of the run, and returns whether it exceeds the limit.
    fn is_out_of_memory(&mut self) -> bool {
        let recorded: u64 = self.recorders.iter().map(|&node| self.recorded_bytes(node)).sum();
        let TraceSinks { events, capture } = &self.sinks;
        let bytes = self.memory.fixed_bytes
            + PACKET_BYTES * self.graph.packets_allocated()
            + recorded
            + self.memory.flow_row_bytes * self.flow_samples.rows()
            + self.memory.datagram_row_bytes * self.datagram_samples.rows()
            + self.memory.direction_row_bytes * self.direction_samples.rows()
            + events.as_ref().map_or(0, EventLog::memory_bytes)
            + capture.as_ref().map_or(0, Capture::memory_bytes);
        self.memory.bytes_max = self.memory.bytes_max.max(bytes);
        self.memory.exhausted = self.memory.limit_bytes.is_some_and(|limit| bytes > limit);
        self.memory.exhausted
    }

    /// Memory of what an end of a flow has recorded.
    fn recorded_bytes(&self, node: NodeId) -> u64 {
        let end = self.graph.engine(node).end();
        EXCHANGE_BYTES * end.exchanges().len() as u64
            + PAGE_BYTES * end.pages().len() as u64
            + SOURCE_BYTES * end.sink().map_or(0, DatagramSink::sources) as u64
    }

    /// Runs a slice. Returns whether there is more to do.
    pub fn advance(&mut self) -> bool {
        if self.finished || self.memory.exhausted {
            return false;
        }
        let Some(next) = self.graph.next_event().filter(|&next| next <= self.stop) else {
            self.finished = true;
            self.write_captured();
            return false;
        };
        let slice = if self.sinks.capture.is_some() { CAPTURE_SLICE } else { SLICE };
        let mut limit = next.max(self.graph.now() + slice).min(self.stop);
        if let Some(interval) = self.sample_interval {
            // No state changes before the next event, so samples until then can be taken now.
            while self.next_sample < next {
                let now = self.next_sample;
                self.sample(now);
                self.next_sample += interval;
                if self.is_out_of_memory() {
                    self.graph.run_until(now, self.sinks.trace());
                    self.write_captured();
                    return false;
                }
            }
            limit = limit.min(self.next_sample);
        }
        self.graph.run_paused(limit, self.slice_calls, self.sinks.trace());
        self.write_captured();
        !self.is_out_of_memory()
    }

    fn write_captured(&mut self) {
        if self.sinks.capture.is_some() {
            let now = self.reached();
            self.sinks.capture.iter_mut().for_each(|capture| capture.write_until(now));
        }
    }

    /// The current time of the run, or its end if it has finished.
    fn reached(&mut self) -> Instant {
        match (self.finished, self.graph.next_event()) {
            // The clock is at the end of the last slice, after the last event.
            (true, None) => self.graph.last_event(),
            (true, Some(_)) => self.stop,
            (false, _) => self.graph.now(),
        }
    }

    /// Wakes every engine, due or not. Tests check that this changes nothing.
    pub fn wake_all(&mut self) {
        self.graph.wake_all(self.sinks.trace());
    }

    /// The progress of the run, from 0 to 1: that of virtual time or of the slowest flow, whichever
    /// is larger.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a fraction for a progress bar")]
    pub fn fraction(&self) -> f64 {
        let now = self.graph.now();
        let by_time = now.as_nanos() as f64 / self.stop.as_nanos() as f64;
        let flows = self.layout.flows.iter().map(|ends| {
            let [sender, receiver] =
                [ends.sender, ends.receiver].map(|node| self.graph.engine(node).end());
            sender.fraction(now).or_else(|| receiver.fraction(now)).unwrap_or(1.0)
        });
        flows.fold(1.0, f64::min).max(by_time).clamp(0.0, 1.0)
    }

    /// Ends the run, complete or not, checks the invariants and returns the tables.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn finish(mut self) -> Result<Outcome, RunError> {
        let is_idle = self.graph.next_event().is_none();
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
            completed: self.finished && is_idle,
            end: now,
            memory_exhausted: self.memory.exhausted,
            memory_bytes_max: self.memory.bytes_max,
            packet_hops,
            engine_calls,
            tables: self.tables(&directions, of_functions, now),
            statistics,
        })
    }

    fn tables(
        mut self,
        directions: &[DirectionFacts],
        of_functions: Table,
        end: Instant,
    ) -> Vec<Table> {
        let capacity = capacity_table(&mut self.graph, &self.layout, end);
        let functions = (0u32..).zip(&self.layout.functions);
        let functions =
            functions.flat_map(|(gateway, nodes)| nodes.iter().map(move |n| (gateway, n)));
        let processors = functions.filter_map(|(gateway, &node)| match self.graph.engine(node) {
            Node::Processor(processor) => Some((gateway, processor.counters())),
            _ => None,
        });
        let classes = self.layout.directions.iter().map(|&node| self.class_uses(node));
        let classes = classes_table(classes);
        let mut tables = vec![
            flows_table(&self.graph, &self.layout.flows, end),
            exchanges_table(&self.graph, &self.layout.flows),
            pages_table(&self.graph, &self.layout.flows),
            legs_table(&self.graph, &self.layout, end),
            capacity,
            directions_table(directions),
            classes,
            processors_table(processors),
            of_functions,
            self.flow_samples.table(),
            self.datagram_samples.table(),
            self.direction_samples.table(),
        ];
        tables.extend(self.sinks.events.map(EventLog::table));
        tables
    }

    fn class_uses(&self, node: NodeId) -> Vec<ClassUse> {
        match self.graph.engine(node) {
            Node::Direction(direction) => direction.class_uses(),
            _ => Vec::new(),
        }
    }

    fn settle_directions(&mut self, now: Instant) -> Vec<DirectionFacts> {
        (0..self.layout.directions.len())
            .map(|number| {
                let node = self.layout.directions[number];
                let counters = self.settle(number, now);
                let queue = self.graph.engine_mut(node).direction().queue_statistics(now);
                let ledger = self.graph.engine(node).ledger();
                let held = self
                    .branch_ledgers(number)
                    .fold(ledger.held, |held, branch| held.plus(branch.held));
                DirectionFacts { received: ledger.received, held, counters, queue }
            })
            .collect()
    }

    /// The counters of a direction, including its branches: packets on a branch are in flight.
    fn settle(&mut self, number: usize, now: Instant) -> Counters {
        let node = self.layout.directions[number];
        let mut counters = self.graph.engine_mut(node).direction().counters_at(now);
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
        self.datagram_samples.push(now, &self.graph);
    }
}
