//! One run: build, advance, finish.

use core::fmt;

use bentpipe_core::engine::{Count, Engine};
use bentpipe_core::graph::Graph;
use bentpipe_core::link::Counters;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, NodeId, Trace};

use crate::build::{Ends, Layout, build};
use crate::plan::Plan;
use crate::record::{
    EventLog, Table, direction_samples_table, directions_table, flow_samples_table, flows_table,
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
    flow_samples: Table,
    direction_samples: Table,
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
            flow_samples: flow_samples_table(),
            direction_samples: direction_samples_table(),
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
            Node::Direction(_) | Node::BulkReceiver(_) | Node::DatagramSink(_) => 1.0,
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
        let [forward, back] = self.layout.directions;
        let counters = [self.settle(forward, now), self.settle(back, now)];
        self.check_conservation()?;
        let mut tables =
            vec![flows_table(&self.graph, &self.layout.flows), self.directions_table(counters)];
        tables.push(self.flow_samples);
        tables.push(self.direction_samples);
        if let Some(log) = self.events {
            tables.push(log.table());
        }
        Ok(Outcome {
            completed: self.finished && quiet,
            end: now,
            packet_hops: counters.iter().map(|counters| counters.sent_packets).sum(),
            engine_calls: self.graph.calls(),
            tables,
        })
    }

    fn settle(&mut self, node: NodeId, now: Instant) -> Counters {
        match self.graph.engine_mut(node) {
            Node::Direction(direction) => direction.settle(now),
            _ => unreachable!("the layout names directions"),
        }
    }

    /// What hosts sent went into the link, what the link delivered reached hosts, and every
    /// engine's own books balance.
    fn check_conservation(&self) -> Result<(), RunError> {
        let mut hosts_sent = Count::default();
        let mut hosts_received = Count::default();
        let mut link_received = Count::default();
        let mut link_sent = Count::default();
        for (number, node) in self.graph.engines().enumerate() {
            let ledger = node.ledger();
            ledger.check().map_err(|error| RunError(format!("engine {number}: {error}")))?;
            let (received, sent) = match node {
                Node::Direction(_) => (&mut link_received, &mut link_sent),
                _ => (&mut hosts_received, &mut hosts_sent),
            };
            *received = received.plus(ledger.received);
            *sent = sent.plus(ledger.sent);
        }
        if hosts_sent != link_received || link_sent != hosts_received {
            return Err(RunError(format!(
                "hosts sent {hosts_sent:?}, the link took {link_received:?} and delivered \
                 {link_sent:?}, hosts received {hosts_received:?}"
            )));
        }
        self.check_streams()
    }

    /// No byte is acknowledged that was not delivered, or delivered that was not sent.
    fn check_streams(&self) -> Result<(), RunError> {
        for (flow, &Ends { sender, receiver, .. }) in self.layout.flows.iter().enumerate() {
            let (Node::BulkSender(sender), Node::BulkReceiver(receiver)) =
                (self.graph.engine(sender), self.graph.engine(receiver))
            else {
                continue;
            };
            let (sent, acked) = {
                let half = sender.endpoint().sender();
                (half.sent_bytes(), half.acked_bytes())
            };
            let delivered = receiver.endpoint().receiver().delivered();
            if acked > delivered || delivered > sent {
                return Err(RunError(format!(
                    "flow {flow}: {sent} bytes sent, {delivered} delivered, {acked} acknowledged"
                )));
            }
        }
        Ok(())
    }

    fn sample(&mut self, now: Instant) {
        self.sampled_until = Some(now);
        for direction in 0..2 {
            let counters = self.settle(self.layout.directions[direction], now);
            self.direction_samples.push([
                now.as_nanos().into(),
                (direction as u64).into(),
                counters.queue_bytes.into(),
                counters.queue_packets.into(),
                counters.in_flight_bytes.into(),
                (counters.sent_bits / 8).into(),
                counters.sent_packets.into(),
                counters.delivered.bytes.into(),
                counters.dropped[DropCause::QueueFull as usize].packets.into(),
                counters.dropped[DropCause::BitError as usize].packets.into(),
            ]);
        }
        for (flow, &Ends { sender, receiver, .. }) in self.layout.flows.iter().enumerate() {
            let (Node::BulkSender(sender), Node::BulkReceiver(receiver)) =
                (self.graph.engine(sender), self.graph.engine(receiver))
            else {
                continue;
            };
            let half = sender.endpoint().sender();
            self.flow_samples.push([
                now.as_nanos().into(),
                (flow as u64).into(),
                half.control().cwnd().into(),
                half.control().ssthresh().into(),
                half.rtt().srtt().map(Duration::as_nanos).into(),
                half.in_flight().into(),
                half.acked_bytes().into(),
                receiver.endpoint().receiver().delivered().into(),
            ]);
        }
    }

    fn directions_table(&self, counters: [Counters; 2]) -> Table {
        let mut table = directions_table();
        for (number, counters) in counters.into_iter().enumerate() {
            let ledger = self.graph.engine(self.layout.directions[number]).ledger();
            let dropped = |cause: DropCause| counters.dropped[cause as usize];
            table.push([
                (number as u64).into(),
                ledger.received.packets.into(),
                ledger.received.bytes.into(),
                counters.sent_packets.into(),
                (counters.sent_bits / 8).into(),
                counters.delivered.packets.into(),
                counters.delivered.bytes.into(),
                dropped(DropCause::QueueFull).packets.into(),
                dropped(DropCause::QueueFull).bytes.into(),
                dropped(DropCause::BitError).packets.into(),
                dropped(DropCause::BitError).bytes.into(),
                ledger.held.packets.into(),
                ledger.held.bytes.into(),
                counters.busy.as_nanos().into(),
                counters.queue_bytes_max.into(),
            ]);
        }
        table
    }
}
