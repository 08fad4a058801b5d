//! Early accept: given what a client does in the handshake, expect when the server is asked, if at all.

use bentpipe_core::engine::Engine;
use bentpipe_core::graph::Graph;
use bentpipe_core::packet::segment::{Flags, Segment};
use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::packet::{FlowId, Origin, Packet, PacketId, Payload, Port};
use bentpipe_core::pep::{Pep, PepConfig};
use bentpipe_core::time::Instant;
use bentpipe_core::trace::NodeId;

use super::network::{Call, Network, pep};

const MS: fn(u64) -> Instant = Instant::from_millis;
/// The initial sequence number of the client.
const INITIAL: SeqNumber = SeqNumber(7_000);

fn early() -> PepConfig {
    PepConfig { early_accept: true, ..pep() }
}

/// Given RTTs of 20 and 100 ms, expect the client's handshake after 20 ms. Its ACK, with data, is at the
/// PEP at 30 ms: expect that of the server one and a half RTTs of its leg later, and the data with it.
#[test]
fn the_client_is_answered_at_once_and_the_server_asked_after_its_handshake() {
    let mut network = Network::split([20, 100], early());
    network.script(&[(0, Call::Open), (0, Call::Write(5_000))], &[]);
    network.run(79);
    assert_eq!(network.server().endpoint().ledger().received.packets, 0);
    network.run(80);
    assert_eq!(network.server().endpoint().ledger().received.packets, 1, "the SYN");
    network.run(1_000);
    let [client, server] =
        [network.clients[0], network.servers[0]].map(|node| network.host(node).endpoint().stats());
    assert_eq!((client.established, server.established), (Some(MS(20)), Some(MS(180))));
    assert_eq!((network.server().read_bytes, server.first_delivery), (5_000, Some(MS(180))));
}

/// Given a closed port, expect that the client is accepted, and reset when the server's reset has
/// arrived: 130 ms until that is at the PEP, and 10 ms more.
#[test]
fn a_closed_port_resets_an_accepted_connection() {
    let mut network = Network::split([20, 100], early());
    network.server().refuses = true;
    network.script(&[(0, Call::Open), (0, Call::Write(5_000))], &[]);
    network.run(139);
    assert_eq!(network.client().endpoint().stats().established, Some(MS(20)));
    assert!(!network.client().endpoint().is_reset());
    network.run(140);
    assert!(network.client().endpoint().is_reset());
    assert_eq!((network.pep(0).open_connections(), network.statistic("reset_connections")), (0, 1));
}

/// Given a client that takes no answers and retransmits its SYN until 123 s, expect that the PEP gives up
/// 127 s after that, and that the server hears nothing.
#[test]
fn silence_of_the_client_dials_nothing() {
    let mut network = Network::split([20, 100], early());
    network.client().is_silent = true;
    network.script(&[(0, Call::Open), (126_000, Call::Abort)], &[]);
    network.run(250_009);
    assert_eq!(network.pep(0).open_connections(), 1);
    network.run(250_010);
    assert_eq!(network.server().endpoint().ledger().received.packets, 0);
    assert_eq!(
        (network.pep(0).open_connections(), network.statistic("expired_connections")),
        (0, 1)
    );
}

/// A PEP by itself, and the SYN-ACK with which it answered a SYN.
struct Answered {
    graph: Graph<Pep>,
    node: NodeId,
    at_ms: u64,
    answer: Segment,
}

impl Answered {
    fn new() -> Self {
        let mut graph = Graph::default();
        let node = graph.add(Pep::new(early()));
        let mut answered = Self { graph, node, at_ms: 0, answer: Segment::default() };
        let sent = answered.inject(Pep::LAN, syn());
        let [(port, answer)] = &sent[..] else { panic!("not a SYN-ACK alone: {sent:?}") };
        assert_eq!((*port, answer.flags, answer.ack), (Pep::LAN, Flags::SYN, Some(next(INITIAL))));
        Self { answer: *answer, ..answered }
    }

    /// Passes a segment to the PEP a millisecond later, and returns what it sends at once, and where.
    fn inject(&mut self, from: Port, segment: Segment) -> Vec<(Port, Segment)> {
        self.at_ms += 1;
        let flow = FlowId(0);
        let end = if from == Pep::LAN { Origin::Sender } else { Origin::Receiver };
        let id = PacketId::new(flow, end, self.at_ms);
        let bytes = segment.ip_bytes();
        let packet =
            Packet { id, flow, bytes, payload: Payload::Tcp(segment), ..Packet::default() };
        self.graph.inject(MS(self.at_ms), (self.node, from), packet, None);
        let sent = self.graph.drain_egress();
        sent.map(|(_, _, port, packet)| (port, *packet.segment().expect("TCP"))).collect()
    }

    /// Whether it dials: sends a SYN to the server.
    fn dials(&mut self, from: Port, segment: Segment) -> bool {
        let sent = self.inject(from, segment);
        let to_server: Vec<_> = sent.iter().filter(|(port, _)| *port == Pep::LINK).collect();
        assert!(to_server.len() <= 1, "{sent:?}");
        to_server.first().is_some_and(|(_, syn)| syn.flags.syn() && syn.ack.is_none())
    }

    /// The client's acknowledgement of the SYN-ACK.
    fn ack(&self) -> Segment {
        let ack = Some(next(self.answer.seq));
        Segment { seq: next(INITIAL), ack, window: 1_000, ..Segment::default() }
    }
}

fn syn() -> Segment {
    Segment { seq: INITIAL, flags: Flags::SYN, ..Segment::default() }
}

fn next(seq: SeqNumber) -> SeqNumber {
    SeqNumber(seq.0.wrapping_add(1))
}

/// Given an ACK, data whose ACK was lost, or a FIN behind nothing, expect a SYN to the server.
#[test]
fn any_acknowledgement_of_the_answer_dials() {
    for (payload, flags) in [(0, Flags::default()), (100, Flags::default()), (0, Flags::FIN)] {
        let mut pep = Answered::new();
        let segment = Segment { payload, flags, ..pep.ack() };
        assert!(pep.dials(Pep::LAN, segment), "{payload} bytes, {flags:?}");
        assert!(!pep.dials(Pep::LAN, pep.ack()), "once");
    }
}

/// Given the SYN again, an ACK of what was not sent, or a segment of the server, expect no SYN; and one after the
/// ACK that follows.
#[test]
fn nothing_else_dials() {
    let beyond = |pep: &Answered| Segment { ack: pep.ack().ack.map(next), ..pep.ack() };
    let from_server = Segment { flags: Flags::SYN, ..Segment::default() };
    for case in 0..3 {
        let mut pep = Answered::new();
        let (port, segment) = match case {
            0 => (Pep::LAN, syn()),
            1 => (Pep::LAN, beyond(&pep)),
            _ => (Pep::LINK, from_server),
        };
        assert!(!pep.dials(port, segment), "case {case}");
        assert!(pep.dials(Pep::LAN, pep.ack()), "case {case}");
    }
}

/// Given a reset in place of the ACK, expect that nothing is sent, and that nothing remains.
#[test]
fn a_reset_before_the_acknowledgement_dials_nothing() {
    let mut pep = Answered::new();
    let reset = Segment { seq: next(INITIAL), flags: Flags::RST, ..Segment::default() };
    assert_eq!(pep.inject(Pep::LAN, reset), []);
    assert_eq!(pep.graph.engine(pep.node).open_connections(), 0);
}
