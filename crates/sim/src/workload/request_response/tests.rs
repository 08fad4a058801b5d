//! A client and a server, with a line in each direction that drops given packets.

use std::collections::VecDeque;

use bentpipe_core::graph::Graph;
use bentpipe_core::packet::{Address, Class, FlowId};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::config::{
    AckPolicy, AvoidanceCounting, BufferCounts, CongestionName, RtoConfig, RtoMinBounds,
    StackVariant,
};
use bentpipe_core::tcp::{Config, Endpoint};
use bentpipe_core::trace::NodeId;

use super::*;
use crate::node::Node;
use crate::plan::Draw;

const FLOW: FlowId = FlowId(0);
const DELAY: Duration = Duration::from_millis(50);

/// An end, or a line to the other end.
enum TestNode {
    End(Node),
    Line { lost: Vec<usize>, seen: Vec<Packet>, in_transit: VecDeque<(Instant, Packet)> },
}

impl Engine for TestNode {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        match self {
            Self::End(node) => node.input(cx, port, packet),
            Self::Line { lost, seen, in_transit } => {
                if !lost.contains(&seen.len()) {
                    in_transit.push_back((cx.now() + DELAY, (*packet).clone()));
                }
                seen.push(*packet);
            }
        }
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::End(node) => node.wake(cx),
            Self::Line { in_transit, .. } => {
                while in_transit.front().is_some_and(|next| next.0 <= cx.now()) {
                    let (_, packet) = in_transit.pop_front().expect("just seen");
                    cx.send(Endpoint::NET, packet);
                }
            }
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        match self {
            Self::End(node) => node.next_wake(),
            Self::Line { in_transit, .. } => in_transit.front().map(|next| next.0),
        }
    }

    fn ledger(&self) -> Ledger {
        Ledger::default()
    }
}

pub(in crate::workload) fn host(part: &str) -> Host {
    let config = Config {
        mss: 1_000,
        initial_window_segments: 10,
        congestion: CongestionName::NewReno,
        sack: false,
        timestamps: false,
        window_scaling: false,
        send_buffer: 1 << 20,
        receive_buffer: 65_535,
        receive_buffer_initial: 65_535,
        receive_buffer_counts: BufferCounts::Window,
        acks: AckPolicy {
            delayed_segments: 1,
            delayed_timeout: Duration::from_millis(200),
            quick_segments: 0,
        },
        rto: RtoConfig {
            initial: Duration::from_secs(1),
            min: Duration::from_secs(1),
            max: Duration::from_secs(60),
            granularity: Duration::from_millis(1),
            min_bounds: RtoMinBounds::Timeout,
        },
        slow_start_segments_per_ack: 1,
        avoidance: AvoidanceCounting::Bytes,
        limited_transmit: false,
        rack_tlp: false,
        prr: false,
        hystart: false,
        ecn: false,
        stack: StackVariant::Rfc,
    };
    Host {
        config,
        initials: Rng::stream(3, part),
        cycles: Rng::stream(4, part),
        flow: FLOW,
        peer: Address::default(),
        class: Class::default(),
    }
}

fn constant(value: u64) -> Draws {
    Draws::new(Draw::Constant { value }, Rng::stream(0, "none"))
}

const SERVER: NodeId = NodeId(0);
const CLIENT: NodeId = NodeId(1);
const FROM_SERVER: NodeId = NodeId(2);
const FROM_CLIENT: NodeId = NodeId(3);

/// Runs exchanges of one segment each way, 10 ms apart, until both ends are idle. Each line drops
/// the packets with the given numbers.
fn run(count: u64, keep_connection: bool, lost: [&[usize]; 2]) -> Graph<TestNode> {
    let config = ExchangeConfig {
        request_bytes: 300,
        response_bytes: ResponseSizes::Drawn(constant(1_000)),
        keep_connection,
    };
    let (start, end) = (Instant::START, Instant::from_millis(1_000_000_000));
    let schedule = Schedule { start, end, think_ns: constant(10_000_000), count: Some(count) };
    let server = Server::new(host("server"), config.clone());
    let client = Client::new(host("client"), config, schedule);
    let mut graph = Graph::default();
    graph.add(TestNode::End(Node::Server(Box::new(server))));
    graph.add(TestNode::End(Node::Client(Box::new(client))));
    for lost in lost {
        let (seen, in_transit) = (Vec::new(), VecDeque::new());
        graph.add(TestNode::Line { lost: lost.to_vec(), seen, in_transit });
    }
    let net = Endpoint::NET;
    graph.connect((SERVER, net), (FROM_SERVER, net));
    graph.connect((FROM_SERVER, net), (CLIENT, net));
    graph.connect((CLIENT, net), (FROM_CLIENT, net));
    graph.connect((FROM_CLIENT, net), (SERVER, net));
    graph.run_until(end, None);
    assert_eq!(graph.next_event(), None, "both ends are idle");
    for end in [SERVER, CLIENT] {
        let connections = match graph.engine(end) {
            TestNode::End(Node::Server(server)) => &server.connections,
            TestNode::End(Node::Client(client)) => &client.connections,
            _ => unreachable!("these two are the ends"),
        };
        assert!(connections.newest().is_none() && connections.next_wake().is_none());
        assert_eq!(connections.open_connections(), 0, "closed connections are removed");
        assert_eq!(connections.ledger().check(), Ok(()));
    }
    graph
}

/// The segments that entered a line, in order: number of the connection, and whether it is a FIN.
fn seen(graph: &Graph<TestNode>, line: NodeId) -> Vec<(u16, bool)> {
    let TestNode::Line { seen, .. } = graph.engine(line) else { unreachable!("a line") };
    let mut ids: Vec<_> = seen.iter().map(|packet| packet.id).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "packet ids are unique");
    let segments = seen.iter().filter_map(|packet| packet.segment());
    let facts = segments.map(|segment| (segment.connection, segment.flags.fin()));
    facts.collect()
}

/// Given two fetches without loss, expect for each from the server: SYN-ACK, ACK of the request,
/// response, FIN, and the ACK of the client's FIN; from the client: SYN, request, two ACKs, FIN.
#[test]
fn the_server_closes_first() {
    let graph = run(2, false, [&[], &[]]);
    let server = [(0, false), (0, false), (0, false), (0, true), (0, false)];
    let client = [(0, false), (0, false), (0, false), (0, false), (0, true)];
    let of = |connection: u16, facts: [(u16, bool); 5]| facts.map(|(_, fin)| (connection, fin));
    assert_eq!(seen(&graph, FROM_SERVER), [server, of(1, server)].concat());
    // The second SYN is sent 10 ms after the response arrived: before the end of the first
    // connection, but after the FIN, which arrived with the response.
    assert_eq!(seen(&graph, FROM_CLIENT), [client, of(1, client)].concat());
}

/// Given the loss of the last ACK, expect the client to retransmit its FIN after its timeout of one
/// second, the server to acknowledge it for the closed connection, and both ends to become idle.
#[test]
fn a_retransmitted_fin_is_acknowledged_again() {
    for (lost, fins) in [(vec![4], 2), (vec![4, 5], 3), (vec![4, 5, 6], 4)] {
        let graph = run(1, false, [&lost, &[]]);
        assert_eq!(seen(&graph, FROM_SERVER).len(), 5 + lost.len());
        let client = seen(&graph, FROM_CLIENT);
        assert_eq!(client.iter().filter(|segment| segment.1).count(), fins);
        // The client sends its first FIN at 200 ms (two round trips) and retransmits it after 1, 2
        // and 4 s; the ACK of the last one takes a round trip.
        let seconds = (1u64 << lost.len()) - 1;
        assert_eq!(graph.last_event(), Instant::from_millis(200 + 1_000 * seconds + 100));
    }
}

/// Given a persistent connection, expect the client to close first and to acknowledge the server's
/// retransmitted FIN.
#[test]
fn the_client_closes_a_persistent_connection_first() {
    // SYN, request, ACK, FIN; then the ACK of the server's FIN.
    let graph = run(1, true, [&[], &[4]]);
    assert_eq!(seen(&graph, FROM_CLIENT).len(), 6);
    let fins = seen(&graph, FROM_SERVER).iter().filter(|segment| segment.1).count();
    assert_eq!(fins, 2);
}

/// Given the loss of the server's FIN, expect the first connection to stay open while the second
/// starts, and each segment to reach its own. Given 70,000 connections, expect none to remain.
#[test]
fn connections_overlap_and_are_removed() {
    let graph = run(2, false, [&[3], &[]]);
    let client = seen(&graph, FROM_CLIENT);
    let second_syn = client.iter().position(|segment| segment.0 == 1).expect("two connections");
    assert!(client[second_syn..].contains(&(0, true)), "the first is closed during the second");

    // The numbers of connections wrap after 2^16.
    let graph = run(70_000, false, [&[3, 8, 1_000], &[7, 2_222]]);
    let TestNode::End(Node::Client(client)) = graph.engine(CLIENT) else {
        unreachable!("the client")
    };
    assert_eq!(client.finished_exchanges(), 70_000);
    assert_eq!(client.connections.stream_bytes().delivered, 70_000 * 1_000);
}
