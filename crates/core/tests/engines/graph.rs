//! Tests of the event loop's rules that define results.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bentpipe_core::engine::{Count, Cx, Engine, Ledger};
use bentpipe_core::graph::Graph;
use bentpipe_core::packet::{Address, FlowId, Origin, Packet, PacketId, Payload, Port};
use bentpipe_core::rng::Rng;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::{DropCause, Event, EventKind, NodeId, Trace, VecTrace};

const IN: Port = Port(0);
const OUT: Port = Port(1);
const SIDE: Port = Port(2);

#[test]
fn ties_are_served_in_request_order() {
    let (mut graph, log) = probes(4);
    for node in [2, 0, 3, 1] {
        graph.inject(ms(0), (NodeId(node), IN), packet(node, 10), None);
    }
    graph.run_until(ms(20), None);
    assert_eq!(*log.borrow(), calls("2:in 0:in 3:in 1:in 2:wake 0:wake 3:wake 1:wake"));
}

/// Given engine 0, which requests 5 ms and then 20 ms, and then engine 1, which requests 20 ms, expect engine
/// 0 first.
#[test]
fn a_deadline_that_moves_is_ordered_by_when_it_moved() {
    for queries in [false, true] {
        let (mut graph, log) = probes(2);
        graph.inject(ms(0), (NodeId(0), IN), packet(0, 5), None);
        graph.inject(ms(1), (NodeId(0), IN), packet(0, 19), None);
        graph.inject(ms(2), (NodeId(1), IN), packet(0, 18), None);
        if queries {
            assert_eq!(graph.next_event(), Some(ms(20)));
        }
        graph.run_until(ms(30), None);
        assert_eq!(*log.borrow(), calls("0:in 0:in 1:in 0:wake 1:wake"), "queries: {queries}");
    }
}

/// Given engine 0, which sends to 1 and 2 when it is woken, and 1, which forwards to 3, expect 3 last.
#[test]
fn packets_are_delivered_breadth_first() {
    let (mut graph, log) = probes(4);
    graph.connect((NodeId(0), OUT), (NodeId(1), SIDE));
    graph.connect((NodeId(0), SIDE), (NodeId(2), IN));
    graph.connect((NodeId(1), OUT), (NodeId(3), IN));
    graph.inject(ms(0), (NodeId(0), SIDE), packet(0, 10), None);
    assert_eq!(*log.borrow(), calls("0:side 1:side 2:in 3:in"));
}

#[test]
fn a_wake_up_delivers_before_the_next_engine_wakes() {
    let (mut graph, log) = probes(3);
    graph.connect((NodeId(0), OUT), (NodeId(2), IN));
    graph.inject(ms(0), (NodeId(0), IN), packet(0, 10), None);
    graph.inject(ms(0), (NodeId(1), IN), packet(0, 10), None);
    graph.run_until(ms(10), None);
    assert_eq!(*log.borrow(), calls("0:in 1:in 0:wake 2:in 1:wake"));
}

#[test]
fn an_engine_may_wake_at_the_same_instant() {
    let (mut graph, log) = probes(1);
    graph.inject(ms(3), (NodeId(0), IN), packet(0, 0), None);
    assert_eq!(graph.next_event(), Some(ms(3)));
    graph.run_until(ms(3), None);
    assert_eq!(*log.borrow(), calls("0:in 0:wake"));
    assert_eq!(graph.next_event(), None);
}

#[test]
fn a_port_may_lead_to_one_engine_for_each_destination() {
    let (mut graph, log) = probes(3);
    let routes = vec![Some((NodeId(2), IN)), Some((NodeId(1), SIDE))];
    graph.connect_by_destination((NodeId(0), OUT), routes);
    graph.inject(ms(0), (NodeId(0), SIDE), bound_for(0), None);
    graph.inject(ms(0), (NodeId(0), SIDE), bound_for(1), None);
    assert_eq!(*log.borrow(), calls("0:side 2:in 0:side 1:side"));
}

/// Given a table with one destination and a packet for another one, expect it to be counted and dropped as
/// `no_route` at the engine that sent it, and not to leave the graph.
#[test]
fn a_packet_without_a_route_is_counted_and_dropped() {
    let (mut graph, log) = probes(2);
    graph.connect_by_destination((NodeId(0), OUT), vec![Some((NodeId(1), IN))]);
    let mut trace = VecTrace::default();
    graph.inject(ms(4), (NodeId(0), SIDE), bound_for(7), Some(&mut trace));
    assert_eq!(*log.borrow(), calls("0:side"));
    assert_eq!(graph.unrouted(), Count { packets: 1, bytes: 1 });
    // The probe sends a copy out of its other port, which is not connected.
    assert_eq!(graph.drain_egress().map(|left| left.2).collect::<Vec<_>>(), [SIDE]);
    let dropped = trace.0.iter().filter(|event| event.kind != EventKind::Enqueued);
    let dropped = dropped.map(|event| (event.at, event.node, event.kind));
    let expected = (ms(4), NodeId(0), EventKind::Dropped(DropCause::NoRoute));
    assert_eq!(dropped.collect::<Vec<_>>(), [expected]);
}

#[test]
fn an_unconnected_port_leads_to_egress() {
    let (mut graph, _) = probes(2);
    graph.connect((NodeId(1), SIDE), (NodeId(0), IN));
    graph.inject(ms(0), (NodeId(0), IN), packet(7, 10), None);
    graph.inject(ms(2), (NodeId(1), IN), packet(8, 4), None);
    graph.run_until(ms(10), None);
    let (first, second) = (packet(8, 4), packet(7, 10));
    let expected = vec![(ms(6), NodeId(1), OUT, first), (ms(10), NodeId(0), OUT, second)];
    assert_eq!(graph.drain_egress().as_slice(), expected);
    assert_eq!(graph.drain_egress().len(), 0);
}

#[test]
fn an_injected_packet_is_delivered_after_due_wake_ups() {
    let (mut graph, log) = probes(2);
    graph.inject(ms(0), (NodeId(0), IN), packet(0, 10), None);
    graph.inject(ms(10), (NodeId(1), IN), packet(0, 1), None);
    assert_eq!(*log.borrow(), calls("0:in 0:wake 1:in"));
}

#[test]
#[should_panic(expected = "is injected at 0.010")]
fn injecting_into_the_past_panics() {
    let (mut graph, _) = probes(1);
    graph.run_until(ms(10), None);
    graph.inject(ms(9), (NodeId(0), IN), packet(0, 1), None);
}

#[test]
fn the_clock_moves_to_the_limit_and_never_back() {
    let (mut graph, log) = probes(1);
    graph.inject(ms(0), (NodeId(0), IN), packet(0, 10), None);
    graph.run_until(ms(9), None);
    assert_eq!((graph.now(), graph.next_event()), (ms(9), Some(ms(10))));
    graph.run_until(ms(4), None);
    assert_eq!(graph.now(), ms(9));
    graph.run_until(ms(10), None);
    assert_eq!(*log.borrow(), calls("0:in 0:wake"));
    graph.run_until(ms(50), None);
    assert_eq!((graph.now(), graph.next_event()), (ms(50), None));
}

#[test]
#[should_panic(expected = "a deadline in the past")]
fn a_deadline_in_the_past_panics() {
    let mut graph = Graph::default();
    let node = graph.add(FixedDeadline { deadline: None });
    graph.inject(ms(1), (node, IN), packet(0, 0), None);
}

#[test]
#[should_panic(expected = "left work undone")]
fn a_wake_up_that_leaves_work_panics() {
    let mut graph = Graph::default();
    graph.add(FixedDeadline { deadline: Some(ms(1)) });
    graph.run_until(ms(2), None);
}

/// A wake-up and an input are one call each; pauses and queries are not counted.
#[test]
fn the_number_of_calls_does_not_depend_on_pauses() {
    let count = |cuts: u64| {
        let (mut graph, _) = probes(1);
        graph.inject(ms(0), (NodeId(0), IN), packet(0, 10), None);
        (0..=cuts).for_each(|cut| graph.run_until(ms(20 * cut / cuts), None));
        graph.calls()
    };
    assert_eq!([count(1), count(20)], [2, 2]);
}

#[test]
fn the_last_event_may_be_before_the_current_time() {
    let (mut graph, _) = probes(1);
    graph.inject(ms(1), (NodeId(0), IN), packet(0, 10), None);
    assert_eq!(graph.last_event(), ms(1));
    graph.run_until(ms(50), None);
    assert_eq!((graph.last_event(), graph.now()), (ms(11), ms(50)));
}

#[test]
fn waking_all_does_only_what_is_due() {
    let (mut graph, log) = probes(3);
    graph.connect((NodeId(0), OUT), (NodeId(2), IN));
    graph.inject(ms(0), (NodeId(0), IN), packet(0, 10), None);
    graph.run_until(ms(9), None);
    graph.wake_all(None);
    assert_eq!((graph.next_event(), graph.calls()), (Some(ms(10)), 1));
    graph.inject(ms(9), (NodeId(1), IN), packet(0, 0), None);
    graph.wake_all(None);
    assert_eq!(graph.next_event(), Some(ms(10)));
    graph.run_until(ms(10), None);
    assert_eq!(*log.borrow(), calls("0:in 1:in 1:wake 0:wake 2:in"));
}

#[test]
fn engines_are_accessible() {
    let (mut graph, _) = probes(2);
    graph.inject(ms(0), (NodeId(1), IN), packet(0, 10), None);
    assert_eq!(graph.engine(NodeId(1)).ledger().held.packets, 1);
    assert_eq!(graph.engine_mut(NodeId(0)).ledger().held.packets, 0);
    assert_eq!(graph.engines().map(|probe| probe.name).collect::<Vec<_>>(), [0, 1]);
}

/// Given a ring of engines with random delays and random packets, expect the same events however often the
/// run pauses or the next event is queried, and whatever other engines exist.
#[test]
fn a_run_does_not_depend_on_pauses_or_other_engines() {
    for seed in 0..50 {
        let whole = ring(seed, false, 0);
        assert!(whole.len() > 500);
        assert_eq!(whole, ring(seed, true, 0), "seed {seed}: cut");
        assert_eq!(whole, ring(seed, false, 3), "seed {seed}: with others");
        assert_eq!(whole, ring(seed, true, 3), "seed {seed}: cut, with others");
    }
}

const START: Instant = Instant::START;

/// Four probes in a ring whose packets circulate until the run ends, together with `others` busy engines that tie
/// with them: every delay is a whole millisecond. Returns the events of the ring.
fn ring(seed: u64, cut: bool, others: u32) -> Vec<Event> {
    let (mut graph, _) = probes(4 + others);
    for node in 0..4 {
        graph.connect((NodeId(others + node), OUT), (NodeId(others + (node + 1) % 4), IN));
    }
    let mut rng = Rng::stream(seed, "ring");
    let mut cuts = Rng::stream(seed, "cuts");
    let mut trace = NodesFrom(NodeId(others), VecTrace::default());
    for at in 0..40 {
        let to = u32::try_from(rng.below(4)).expect("small");
        let delay = u32::try_from(rng.below(20)).expect("small");
        for other in 0..others {
            graph.inject(ms(at), (NodeId(other), IN), packet(9, delay), Some(&mut trace));
        }
        graph.inject(ms(at), (NodeId(others + to), IN), packet(to, 1 + delay), Some(&mut trace));
        if cut && cuts.below(2) == 0 {
            let _ = graph.next_event();
        }
    }
    while cut && graph.now() < ms(190) {
        let _ = graph.next_event();
        graph.run_until(graph.now() + Duration::from_micros(cuts.below(3_000)), Some(&mut trace));
    }
    graph.run_until(ms(200), Some(&mut trace));
    trace.1.0
}

/// Records the events of this engine and those after it, numbered from zero.
struct NodesFrom(NodeId, VecTrace);

impl Trace for NodesFrom {
    fn record(&mut self, event: &Event) {
        if event.node >= self.0 {
            self.1.record(&Event { node: NodeId(event.node.0 - self.0.0), ..*event });
        }
    }
}

type Log = Rc<RefCell<Vec<String>>>;

/// Logs its calls. A packet for [`IN`] sets its deadline to as many milliseconds later as the packet has
/// bytes; at the deadline it sends all packets out of [`OUT`]. A packet for [`SIDE`] leaves at once by both
/// ports.
struct Probe {
    name: u32,
    log: Log,
    due: Option<Instant>,
    held: VecDeque<Packet>,
}

impl Probe {
    fn log(&self, what: &str) {
        self.log.borrow_mut().push(format!("{}:{what}", self.name));
    }
}

impl Engine for Probe {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        cx.trace(cx.now(), EventKind::Enqueued, &packet);
        if port == SIDE {
            self.log("side");
            cx.send(OUT, (*packet).clone());
            cx.send(SIDE, *packet);
            return;
        }
        self.log("in");
        self.due = Some(cx.now() + Duration::from_millis(packet.bytes.into()));
        self.held.push_back(*packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        if self.due.is_none_or(|due| due > cx.now()) {
            return;
        }
        self.log("wake");
        self.due = None;
        for packet in self.held.drain(..) {
            cx.trace(cx.now(), EventKind::Delivered, &packet);
            cx.send(OUT, packet);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.due
    }

    fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        self.held.iter().for_each(|packet| ledger.held.add(packet.bytes));
        ledger
    }
}

/// Never changes its deadline at a wake-up; input sets it to the start of the run.
struct FixedDeadline {
    deadline: Option<Instant>,
}

impl Engine for FixedDeadline {
    fn input(&mut self, _: &mut Cx<'_>, _: Port, _: Box<Packet>) {
        self.deadline = Some(START);
    }

    fn wake(&mut self, _: &mut Cx<'_>) {}

    fn next_wake(&self) -> Option<Instant> {
        self.deadline
    }

    fn ledger(&self) -> Ledger {
        Ledger::default()
    }
}

fn probes(count: u32) -> (Graph<Probe>, Log) {
    let log = Log::default();
    let mut graph = Graph::default();
    for name in 0..count {
        graph.add(Probe { name, log: log.clone(), due: None, held: VecDeque::new() });
    }
    (graph, log)
}

fn bound_for(destination: u32) -> Packet {
    Packet { destination: Address(destination), ..packet(0, 1) }
}

fn packet(flow: u32, bytes: u32) -> Packet {
    let (flow, payload) = (FlowId(flow), Payload::Datagram { source: FlowId(0), sequence: 0 });
    Packet {
        id: PacketId::new(flow, Origin::Sender, 0),
        created_at: START,
        flow,
        bytes,
        payload,
        ..Packet::default()
    }
}

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn calls(words: &str) -> Vec<String> {
    words.split_whitespace().map(String::from).collect()
}
