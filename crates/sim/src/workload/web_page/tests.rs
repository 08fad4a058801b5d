//! A client and a server, with a line in each direction that drops or delays given packets.

use std::collections::BTreeMap;

use bentpipe_core::graph::Graph;
use bentpipe_core::packet::Address;
use bentpipe_core::rng::Rng;
use bentpipe_core::trace::NodeId;
use proptest::prelude::*;

use super::super::Draws;
use super::super::request_response::tests::host;
use super::*;
use crate::node::Node;
use crate::plan::Draw;

const DELAY: Duration = Duration::from_millis(50);
const SERVER: NodeId = NodeId(0);
const CLIENT: NodeId = NodeId(1);
const FROM_SERVER: NodeId = NodeId(2);
const FROM_CLIENT: NodeId = NodeId(3);

/// The additional delay of a packet on a line, by number; `None` drops it.
type Fate = Box<dyn Fn(usize) -> Option<Duration>>;

/// An end, or a line to the other end.
enum TestNode {
    End(Node),
    Line { fate: Fate, seen: Vec<Packet>, in_transit: BTreeMap<(Instant, usize), Packet> },
}

impl Engine for TestNode {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        match self {
            Self::End(node) => node.input(cx, port, packet),
            Self::Line { fate, seen, in_transit } => {
                if let Some(late) = fate(seen.len()) {
                    in_transit.insert((cx.now() + DELAY + late, seen.len()), (*packet).clone());
                }
                seen.push(*packet);
            }
        }
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::End(node) => node.wake(cx),
            Self::Line { in_transit, .. } => {
                while in_transit.first_key_value().is_some_and(|(key, _)| key.0 <= cx.now()) {
                    let (_, packet) = in_transit.pop_first().expect("just seen");
                    cx.send(Endpoint::NET, packet);
                }
            }
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        match self {
            Self::End(node) => node.next_wake(),
            Self::Line { in_transit, .. } => in_transit.first_key_value().map(|(key, _)| key.0),
        }
    }

    fn ledger(&self) -> Ledger {
        Ledger::default()
    }
}

fn constant(value: u64) -> Draws {
    Draws::new(Draw::Constant { value }, Rng::stream(0, "none"))
}

/// Pages of a document and objects of 1,000 bytes each, 10 ms apart.
fn config(http: Http, objects: u64, dns: bool) -> PageConfig {
    PageConfig {
        request_bytes: 300,
        http,
        connections: 6,
        tls: Some(Tls::V1_3),
        dns,
        draws: PageDraws {
            objects: constant(objects),
            document_bytes: constant(1_000),
            object_bytes: Draw::Constant { value: 1_000 },
            seeds: Rng::stream(1, "pages"),
        },
    }
}

/// Loads pages until both ends are idle, and checks that nothing remains of them.
fn run(config: PageConfig, pages: u64, fates: [Fate; 2]) -> Graph<TestNode> {
    let (start, end) = (Instant::START, Instant::from_millis(1_000_000_000));
    let schedule = Schedule { start, end, think_ns: constant(10_000_000), count: Some(pages) };
    let server = WebServer::new(host("server"), config.clone());
    let host = Host { peer: Address(1), ..host("client") };
    let client = WebClient::new(host, config, schedule);
    let mut graph = Graph::default();
    graph.add(TestNode::End(server.into()));
    graph.add(TestNode::End(client.into()));
    for fate in fates {
        graph.add(TestNode::Line { fate, seen: Vec::new(), in_transit: BTreeMap::new() });
    }
    let net = Endpoint::NET;
    graph.connect((SERVER, net), (FROM_SERVER, net));
    graph.connect((FROM_SERVER, net), (CLIENT, net));
    graph.connect((CLIENT, net), (FROM_CLIENT, net));
    graph.connect((FROM_CLIENT, net), (SERVER, net));
    graph.run_until(end, None);
    assert_eq!(graph.next_event(), None, "both ends are idle");
    let (server, client) = ends(&graph);
    assert_eq!(server.connections.open_connections(), 0, "closed connections are removed");
    assert_eq!(client.connections.open_connections(), 0, "closed connections are removed");
    assert!(server.expected.is_empty(), "each connection was accepted");
    assert_eq!(server.ledger().check(), Ok(()));
    assert_eq!(client.ledger().check(), Ok(()));
    assert_eq!(client.finished_exchanges(), pages);
    graph
}

fn ends(graph: &Graph<TestNode>) -> (&WebServer, &WebClient) {
    match (graph.engine(SERVER), graph.engine(CLIENT)) {
        (TestNode::End(Node::WebServer(server)), TestNode::End(Node::WebClient(client))) => {
            (server, client)
        }
        _ => unreachable!("these two are the ends"),
    }
}

fn none() -> Fate {
    Box::new(|_| Some(Duration::ZERO))
}

fn losing(lost: Vec<usize>) -> Fate {
    Box::new(move |number| (!lost.contains(&number)).then_some(Duration::ZERO))
}

/// The packets that entered a line. Their IDs are unique.
fn seen(graph: &Graph<TestNode>, line: NodeId) -> &[Packet] {
    let TestNode::Line { seen, .. } = graph.engine(line) else { unreachable!("a line") };
    let mut ids: Vec<_> = seen.iter().map(|packet| packet.id).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "packet ids are unique");
    seen
}

/// The numbers of the SYNs that entered the line from the client, from the start of a page.
fn syns(graph: &Graph<TestNode>) -> Vec<usize> {
    let is_syn = |packet: &Packet| packet.segment().is_some_and(|segment| segment.flags.syn());
    let packets = seen(graph, FROM_CLIENT).iter().enumerate();
    packets.filter(|(_, packet)| is_syn(packet)).map(|(number, _)| number).collect()
}

fn load_ms(graph: &Graph<TestNode>) -> Vec<u64> {
    let load = |page: &Page| page.finished.map(|at| at.saturating_since(page.start).as_nanos());
    let pages = ends(graph).1.pages().iter();
    pages.map(|page| load(page).expect("finished") / 1_000_000).collect()
}

/// Given a round-trip time of 100 ms and a query that is lost once and then twice, expect it to be
/// repeated after 5 s. Given a lost answer, expect the same.
#[test]
fn a_lost_query_is_repeated() {
    let load = |fates| load_ms(&run(config(Http::Two, 5, true), 1, fates));
    assert_eq!(load([none(), none()]), [500]);
    assert_eq!(load([none(), losing(vec![0])]), [5_500]);
    assert_eq!(load([none(), losing(vec![0, 1])]), [10_500]);
    assert_eq!(load([losing(vec![0]), none()]), [5_500]);
}

/// Given an answer that is late by 7 s, expect the page to start with that of the second query, and
/// the late one to be ignored, also when it arrives during the next page.
#[test]
fn a_late_answer_is_ignored() {
    let late = |number| Some(Duration::from_millis(if number == 0 { 7_000 } else { 0 }));
    let graph = run(config(Http::Two, 5, true), 2, [Box::new(late), none()]);
    assert_eq!(load_ms(&graph), [5_500, 500]);
    let late = |number| Some(Duration::from_millis(if number == 0 { 5_600 } else { 0 }));
    let graph = run(config(Http::Two, 5, true), 3, [Box::new(late), none()]);
    assert_eq!(load_ms(&graph), [5_500, 500, 500]);
}

/// Given the loss of the SYN of each further connection of HTTP/1.1 in turn, expect the page to
/// take a longer round trip or none, because other connections take its objects, and the
/// connection to be accepted a second later, when the page has long been finished.
#[test]
fn a_lost_syn_delays_no_page() {
    let page = config(Http::One, 10, false);
    let clean = run(page.clone(), 2, [none(), none()]);
    let all = syns(&clean);
    assert_eq!(all.len(), 12, "six connections a page");
    // TCP, TLS, the document; 4 rounds of objects: 4 + 5 * 2 >= 10.
    assert_eq!(load_ms(&clean), [700, 700]);
    for &lost in &all[1..6] {
        let graph = run(page.clone(), 2, [none(), losing(vec![lost])]);
        // Without one connection 4 + 4 * 2 >= 10.
        assert_eq!(load_ms(&graph), [700, 700]);
        assert_eq!(syns(&graph).len(), 13);
    }
    let graph = run(page.clone(), 2, [none(), losing(all[1..6].to_vec())]);
    // The retransmitted SYNs arrive a second later, when the first connection has taken all objects.
    assert_eq!(load_ms(&graph), [300 + 10 * 100, 700]);
    // The first SYN of a page has no substitute.
    let graph = run(page, 2, [none(), losing(vec![all[0]])]);
    assert_eq!(load_ms(&graph), [1_700, 700]);
}

/// Given SYNs of one page in any order, or after the end of their page, and copies of them, expect
/// each connection to be accepted once.
#[test]
fn syns_may_be_reordered() {
    let page = config(Http::One, 10, false);
    let all = syns(&run(page.clone(), 3, [none(), none()]));
    for order in [[50, 40, 30, 20, 10], [10, 20, 900, 5, 0], [900, 3_000, 800, 700, 600]] {
        let first = all[1..6].to_vec();
        let late = move |number: usize| {
            let place = first.iter().position(|&syn| syn == number);
            Some(Duration::from_millis(place.map_or(0, |place| order[place])))
        };
        // A SYN that is late by more than a second is sent twice: the server ignores the second.
        let graph = run(page.clone(), 3, [none(), Box::new(late)]);
        assert_eq!(ends(&graph).1.pages().len(), 3);
        let opened: u64 = ends(&graph).1.pages().iter().map(|page| page.connections).sum();
        let accepted = seen(&graph, FROM_SERVER).iter().filter_map(|packet| packet.segment());
        let mut accepted: Vec<_> =
            accepted.filter(|segment| segment.flags.syn()).map(|it| it.connection).collect();
        accepted.sort_unstable();
        accepted.dedup();
        assert_eq!(accepted.len() as u64, opened);
    }
}

/// Given a copy of a SYN that arrives when its connection is closed, expect no new connection.
#[test]
fn a_late_duplicate_of_a_syn_opens_no_connection() {
    let mut server = WebServer::new(host("server"), config(Http::One, 10, false));
    let before = server.next_page;
    server.on_syn(0);
    assert_eq!((server.connections.open_connections(), server.expected.len()), (1, 5));
    server.on_syn(0);
    assert_eq!(server.connections.open_connections(), 1, "a duplicate of an open connection");
    server.on_syn(6);
    assert_eq!((server.connections.open_connections(), server.expected.len()), (2, 10));
    for number in [0, 12_345, u16::MAX, 13] {
        server.on_syn(number);
    }
    assert_eq!((server.connections.open_connections(), server.expected.len()), (2, 10));
    server.on_syn(3);
    assert_eq!((server.connections.open_connections(), server.expected.len()), (3, 9));
    assert_eq!((before, server.next_page), (0, 12));
}

/// Given 12,000 pages with six connections each, whose numbers wrap after 2^16, and some losses,
/// expect all pages and no connection left.
#[test]
fn numbers_of_connections_wrap() {
    let lossy = |number: usize| (number % 9_973 != 77).then_some(Duration::ZERO);
    let graph = run(config(Http::One, 6, false), 12_000, [Box::new(lossy), Box::new(lossy)]);
    let (_, client) = ends(&graph);
    let opened: u64 = client.pages().iter().map(|page| page.connections).sum();
    assert_eq!(opened, 72_000);
    let bytes: u64 = client.pages().iter().map(|page| page.response_bytes).sum();
    assert_eq!(bytes, 12_000 * 7_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Given any page over lines that lose and delay packets, expect all of it, no more connections
    /// than allowed, and no page faster than its round trips.
    #[test]
    fn pages_arrive_over_any_line(
        (is_two, dns, connections, objects) in (any::<bool>(), any::<bool>(), 1..8u32, 0..30u64),
        tls in prop::sample::select(vec![None, Some(Tls::V1_2), Some(Tls::V1_3)]),
        (seed, loss) in (any::<u64>(), 0..40u64),
    ) {
        let http = if is_two { Http::Two } else { Http::One };
        let page = PageConfig { connections, tls, ..config(http, objects, dns) };
        let fate = |seed: u64| -> Fate {
            Box::new(move |number| {
                let mut rng = Rng::stream(seed, &number.to_string());
                let late = Duration::from_nanos(rng.below(150_000_000));
                (rng.below(100) >= loss).then_some(late)
            })
        };
        let graph = run(page, 3, [fate(seed), fate(!seed)]);
        let round_trips = 2 + u64::from(dns) + u64::from(objects > 0)
            + match tls { None => 0, Some(Tls::V1_3) => 1, Some(Tls::V1_2) => 2 };
        for (page, load) in ends(&graph).1.pages().iter().zip(load_ms(&graph)) {
            prop_assert!(load >= 100 * round_trips, "{load} ms, {round_trips} round trips");
            prop_assert_eq!(page.response_bytes, 1_000 * (1 + objects));
            prop_assert!(page.connections <= u64::from(connections));
            let steps = [page.resolved, page.established, page.first_byte, page.document];
            let steps = steps.into_iter().flatten().chain(page.finished);
            let steps: Vec<_> = std::iter::once(page.start).chain(steps).collect();
            prop_assert!(steps.is_sorted(), "{steps:?}");
        }
    }
}
