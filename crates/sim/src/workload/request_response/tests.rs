//! A client and a server with a line in each direction that loses chosen packets.

use std::collections::VecDeque;

use bentpipe_core::graph::Graph;
use bentpipe_core::tcp::config::{
    AckPolicy, AvoidanceCounting, BufferCounts, CongestionName, RtoConfig, RtoMinBounds,
    StackVariant,
};
use bentpipe_core::trace::NodeId;

use super::*;
use crate::node::Node;
use crate::plan::Draw;

const FLOW: FlowId = FlowId(0);
const DELAY: Duration = Duration::from_millis(50);

/// An end, or a line to the other one.
enum Party {
    End(Node),
    Line { lost: Vec<usize>, seen: Vec<Packet>, on_the_way: VecDeque<(Instant, Packet)> },
}

impl Engine for Party {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        match self {
            Self::End(node) => node.input(cx, port, packet),
            Self::Line { lost, seen, on_the_way } => {
                if !lost.contains(&seen.len()) {
                    on_the_way.push_back((cx.now() + DELAY, (*packet).clone()));
                }
                seen.push(*packet);
            }
        }
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::End(node) => node.wake(cx),
            Self::Line { on_the_way, .. } => {
                while on_the_way.front().is_some_and(|next| next.0 <= cx.now()) {
                    let (_, packet) = on_the_way.pop_front().expect("just seen");
                    cx.send(Endpoint::NET, packet);
                }
            }
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        match self {
            Self::End(node) => node.next_wake(),
            Self::Line { on_the_way, .. } => on_the_way.front().map(|next| next.0),
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

/// Runs exchanges of one segment each way, 10 ms apart, to their end. Each line loses the packets
/// with these numbers.
fn run(count: u64, keep_connection: bool, lost: [&[usize]; 2]) -> Graph<Party> {
    let what = Exchanges { request_bytes: 300, response_bytes: constant(1_000), keep_connection };
    let (start, end) = (Instant::START, Instant::from_millis(1_000_000_000));
    let schedule = Schedule { start, end, think_ns: constant(10_000_000), count: Some(count) };
    let server = Server::new(host("server"), what.clone());
    let client = Client::new(host("client"), what, schedule);
    let mut graph = Graph::default();
    graph.add(Party::End(Node::Server(Box::new(server))));
    graph.add(Party::End(Node::Client(Box::new(client))));
    for lost in lost {
        let (seen, on_the_way) = (Vec::new(), VecDeque::new());
        graph.add(Party::Line { lost: lost.to_vec(), seen, on_the_way });
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
            Party::End(Node::Server(server)) => &server.connections,
            Party::End(Node::Client(client)) => &client.connections,
            _ => unreachable!("these two are the ends"),
        };
        assert!(connections.newest().is_none() && connections.next_wake().is_none());
        assert_eq!(connections.live_connections(), 0, "nothing is kept of what is over");
        assert_eq!(connections.ledger().check(), Ok(()));
    }
    graph
}

/// What went into a line: connection and FIN of each segment, in order.
fn seen(graph: &Graph<Party>, line: NodeId) -> Vec<(u16, bool)> {
    let Party::Line { seen, .. } = graph.engine(line) else { unreachable!("a line") };
    let mut ids: Vec<_> = seen.iter().map(|packet| packet.id).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "each packet has a number of its own");
    let segments = seen.iter().filter_map(|packet| packet.segment());
    let facts = segments.map(|segment| (segment.connection, segment.flags.fin()));
    facts.collect()
}

/// SYN-ACK, ACK of the request, response, FIN, and the ACK of the client's FIN; SYN, request, two
/// ACKs, FIN.
#[test]
fn the_server_closes_and_the_client_follows() {
    let graph = run(2, false, [&[], &[]]);
    let server = [(0, false), (0, false), (0, false), (0, true), (0, false)];
    let client = [(0, false), (0, false), (0, false), (0, false), (0, true)];
    let of = |connection: u16, facts: [(u16, bool); 5]| facts.map(|(_, fin)| (connection, fin));
    assert_eq!(seen(&graph, FROM_SERVER), [server, of(1, server)].concat());
    // The second SYN leaves 10 ms after the response came: before the end of the first connection,
    // but after the FIN, which came with the response.
    assert_eq!(seen(&graph, FROM_CLIENT), [client, of(1, client)].concat());
}

/// The last ACK is lost: the client's FIN comes again after its time-out of a second, the server
/// answers for a connection that is over for it, and both are done.
#[test]
fn a_lost_last_ack_is_repeated() {
    for (lost, fins) in [(vec![4], 2), (vec![4, 5], 3), (vec![4, 5, 6], 4)] {
        let graph = run(1, false, [&lost, &[]]);
        assert_eq!(seen(&graph, FROM_SERVER).len(), 5 + lost.len());
        let client = seen(&graph, FROM_CLIENT);
        assert_eq!(client.iter().filter(|segment| segment.1).count(), fins);
        // The client's first FIN leaves at 200 ms (two round trips), repeats follow 1, 2 and 4 s
        // after each other, and the answer to the last takes a round trip.
        let seconds = (1u64 << lost.len()) - 1;
        assert_eq!(graph.last_event(), Instant::from_millis(200 + 1_000 * seconds + 100));
    }
}

/// On a connection that stays open the client closes first, and it is the client that answers.
#[test]
fn the_client_answers_for_a_connection_that_it_closed() {
    // SYN, request, ACK, FIN; then the ACK of the server's FIN.
    let graph = run(1, true, [&[], &[4]]);
    assert_eq!(seen(&graph, FROM_CLIENT).len(), 6);
    let fins = seen(&graph, FROM_SERVER).iter().filter(|segment| segment.1).count();
    assert_eq!(fins, 2);
}

/// A lost FIN of the server keeps the first connection open while the second begins; segments find
/// their own. Over many, nothing is left behind.
#[test]
fn connections_overlap_and_nothing_is_kept() {
    let graph = run(2, false, [&[3], &[]]);
    let client = seen(&graph, FROM_CLIENT);
    let second_syn = client.iter().position(|segment| segment.0 == 1).expect("two connections");
    assert!(client[second_syn..].contains(&(0, true)), "the first is closed during the second");

    // Beyond 2^16 connections, their numbers start again.
    let graph = run(70_000, false, [&[3, 8, 1_000], &[7, 2_222]]);
    let Party::End(Node::Client(client)) = graph.engine(CLIENT) else { unreachable!("the client") };
    assert_eq!(client.finished_exchanges(), 70_000);
    assert_eq!(client.totals().delivered_bytes, 70_000 * 1_000);
}
