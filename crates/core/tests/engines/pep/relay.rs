//! Handshakes, half-closes, resets, slow readers and limits: given calls of the hosts, expect what the
//! other host sees, and when.

use std::sync::Arc;

use bentpipe_core::engine::Engine;
use bentpipe_core::graph::Graph;
use bentpipe_core::packet::segment::{Flags, Segment};
use bentpipe_core::packet::{FlowId, Origin, Packet, PacketId, Payload, Port};
use bentpipe_core::pep::{Pep, PepConfig};
use bentpipe_core::tcp::Config;
use bentpipe_core::time::Instant;
use bentpipe_core::trace::NodeId;

use super::network::{Call, Network, PipeConfig, leg, numbered, pep, tcp};

const MS: fn(u64) -> Instant = Instant::from_millis;

fn established(host: &super::network::Host) -> Option<Instant> {
    host.endpoint().stats().established
}

/// Given RTTs of 20 and 100 ms, expect the SYN-ACK at the client after both, and the handshake of the
/// server after its own leg: its SYN arrives at 10 + 50 ms.
#[test]
fn the_near_handshake_waits_for_the_far_one() {
    let mut network = Network::split([20, 100], pep());
    network.script(&[(0, Call::Open)], &[]);
    network.run(1_000);
    assert_eq!(established(network.client()), Some(MS(120)));
    assert_eq!(established(network.server()), Some(MS(160)));
    assert_eq!(network.pep(0).open_connections(), 1);
}

/// Given PEPs at both ends of a link, expect the handshakes of three legs, one inside the other.
#[test]
fn two_peps_make_three_legs() {
    let pipes = [20, 500, 60].map(PipeConfig::of_rtt);
    let mut network = Network::new(&[[tcp(); 2]], &pipes, [pep(), pep()]);
    network.script(&[(0, Call::Open), (0, Call::Write(100_000)), (0, Call::Close)], &[]);
    network.run(5_000);
    assert_eq!(established(network.client()), Some(MS(580)));
    assert_eq!(network.server().read_bytes, 100_000);
    for number in 0..2 {
        let legs = network.pep(number).legs(FlowId(0), MS(5_000));
        let legs = legs.expect("split");
        assert_eq!((legs.lan.delivered_bytes, legs.link.sent_bytes), (100_000, 100_000));
    }
}

/// Given a closed port, expect that the client is refused after both RTTs, and that nothing remains.
#[test]
fn a_closed_port_is_refused_end_to_end() {
    let mut network = Network::split([20, 100], pep());
    network.server().refuses = true;
    network.script(&[(0, Call::Open)], &[]);
    network.run(119);
    assert!(!network.client().endpoint().is_reset());
    network.run(120);
    assert!(network.client().endpoint().is_reset());
    assert_eq!(established(network.client()), None);
    assert_eq!(
        (network.pep(0).open_connections(), network.statistic("refused_connections")),
        (0, 1)
    );
}

/// Given a dead server, expect that the client hears nothing, and that the PEP gives up 127 s after the
/// client's last SYN: it retransmits the first one after 1, 2, 4, ... 32 and 60 s, the last one at 123 s.
#[test]
fn silence_passes_through() {
    let mut network = Network::split([20, 100], pep());
    network.server().is_silent = true;
    network.script(&[(0, Call::Open), (126_000, Call::Abort)], &[]);
    network.run(250_009);
    assert_eq!(network.client().endpoint().ledger().received.packets, 0);
    assert_eq!(network.pep(0).open_connections(), 1);
    network.run(250_010);
    assert_eq!(network.client().endpoint().ledger().received.packets, 0);
    assert_eq!(
        (network.pep(0).open_connections(), network.statistic("expired_connections")),
        (0, 1)
    );
}

/// Given a client that closes behind its data, expect the FIN at the server behind them, data in the
/// other direction after that, and that the PEP keeps nothing once both directions are closed.
#[test]
fn a_half_close_passes_through() {
    let mut network = Network::split([20, 100], pep());
    let client = [(0, Call::Open), (0, Call::Write(50_000)), (0, Call::Close)];
    network.script(&client, &[(1_000, Call::Write(70_000)), (2_000, Call::Close)]);
    network.run(900);
    assert_eq!(network.server().read_bytes, 50_000);
    assert!(network.server().endpoint().readiness().fin);
    assert!(!network.client().endpoint().readiness().fin);
    network.run(1_900);
    assert_eq!(network.client().read_bytes, 70_000);
    assert_eq!(network.pep(0).open_connections(), 1);
    network.run(3_000);
    assert!(network.client().endpoint().is_closed() && network.server().endpoint().is_closed());
    assert_eq!(network.pep(0).open_connections(), 0);
    assert_eq!(network.statistic("reset_connections"), 0);
}

/// Expect a reset of either host at the other one, while data are on the way.
#[test]
fn a_reset_passes_through() {
    for aborts in 0..2 {
        let mut network = Network::split([20, 100], pep());
        let client = [(0, Call::Open), (0, Call::Write(1_000_000)), (300, Call::Abort)];
        let server = [(0, Call::Write(1_000_000)), (300, Call::Abort)];
        network.script(&client[..3 - aborts], &server[..1 + aborts]);
        network.run(2_000);
        let peer = if aborts == 0 { network.server() } else { network.client() };
        assert!(peer.endpoint().is_reset(), "host {aborts} aborts");
        assert!(peer.read_bytes < 1_000_000);
        assert_eq!(network.pep(0).open_connections(), 0);
        assert_eq!(network.statistic("reset_connections"), 1);
        assert!(network.graph.next_event().is_none(), "nothing is sent any more");
    }
}

/// Given a server that does not read for 10 s, expect that the client can send only what the buffers
/// hold: the receive buffers of the server and the PEP, its relay and its send buffer. Then everything
/// arrives.
#[test]
fn a_closed_window_passes_through() {
    let small = Config {
        receive_buffer: 30_000,
        receive_buffer_initial: 30_000,
        send_buffer: 40_000,
        ..tcp()
    };
    let config = PepConfig { lan: leg(small), link: leg(small), buffer_bytes: 20_000, ..pep() };
    let pipes = [20, 100].map(PipeConfig::of_rtt);
    let mut network = Network::new(&[[tcp(), small]], &pipes, [config]);
    let client = [(0, Call::Open), (0, Call::Write(500_000)), (0, Call::Close)];
    network.script(&client, &[(0, Call::Read(0)), (10_000, Call::Read(1_000_000))]);
    network.run(9_999);
    assert_eq!(network.server().read_bytes, 0);
    let acked = network.client().endpoint().sender().acked_bytes();
    // A window update announces at least two segments.
    let size = 30_000 + 40_000 + 20_000 + 30_000;
    assert!((size - 2_000..=size).contains(&acked), "{acked} bytes");
    assert_eq!(network.statistic("max_buffered_bytes"), 20_000);
    network.run(60_000);
    assert_eq!(network.server().read_bytes, 500_000);
    assert!(network.server().endpoint().readiness().fin);
}

/// Given a limit of one connection, expect the second of two to pass unchanged and to be counted; given a
/// flow that cannot be split, the first one, uncounted. Its client measures the sum of the RTTs of both
/// hosts, that of the other the RTT of the near host. The data of both arrive.
#[test]
fn a_connection_that_is_not_split_passes() {
    let limited = PepConfig { connections_max: 1, ..pep() };
    let unsplittable = PepConfig { unsplittable: Arc::new([FlowId(0)].into()), ..pep() };
    for (config, unsplit, counted, rtts_ms) in
        [(limited, 1, 1, [20, 120]), (unsplittable, 0, 0, [120, 20])]
    {
        let pipes = [20, 100].map(PipeConfig::of_rtt);
        let mut network = Network::new(&[[tcp(); 2], [tcp(); 2]], &pipes, [config]);
        let calls = [(0, Call::Open), (0, Call::Write(30_000)), (0, Call::Close)];
        for (client, server) in network.clients.clone().into_iter().zip(network.servers.clone()) {
            network.calls(client, &calls);
            network.calls(server, &[(500, Call::Close)]);
        }
        network.run(3_000);
        assert_eq!(network.statistic("split_connections"), 1);
        assert_eq!(network.statistic("unsplit_connections"), counted);
        for (number, rtt_ms) in rtts_ms.into_iter().enumerate() {
            let server = network.host(network.servers[number]);
            assert_eq!(server.read_bytes, 30_000);
            assert!(server.endpoint().is_closed());
            let client = network.host(network.clients[number]).endpoint();
            let rtt = client.sender().rtt().min().map(|rtt| rtt.as_nanos());
            assert_eq!(rtt, Some(rtt_ms * 1_000_000));
        }
        assert!(network.pep(0).legs(FlowId(unsplit), MS(3_000)).is_none());
        assert!(network.pep(0).legs(FlowId(1 - unsplit), MS(3_000)).is_some());
    }
}

/// Expect datagrams, frames and segments of connections that it did not see begin to pass unchanged.
#[test]
fn other_packets_pass_unchanged() {
    let mut graph = Graph::default();
    let node = graph.add(Pep::new(pep()));
    let datagram = Packet { bytes: 100, ..Packet::default() };
    let frame = Packet {
        bytes: 130,
        payload: Payload::Nested(vec![datagram.clone()]),
        ..Packet::default()
    };
    let segment =
        Packet { bytes: 40, payload: Payload::Tcp(Default::default()), ..Packet::default() };
    for packet in [datagram, frame, segment] {
        for (from, to) in [(Pep::LAN, Pep::LINK), (Pep::LINK, Pep::LAN)] {
            graph.inject(MS(1), (node, from), packet.clone(), None);
            let sent: Vec<(Port, Packet)> =
                graph.drain_egress().map(|(_, _, port, packet)| (port, packet)).collect();
            assert_eq!(sent, [(to, packet.clone())]);
        }
    }
}

/// A segment of connection 0 of a flow, without data.
fn segment(flow: u32, flags: Flags) -> Packet {
    let segment = Segment { flags, ..Segment::default() };
    let (flow, payload) = (FlowId(flow), Payload::Tcp(segment));
    let id = PacketId::new(flow, Origin::Sender, 0);
    Packet { id, flow, bytes: 40, payload, ..Packet::default() }
}

/// Passes a packet from the LAN to a PEP, and returns what that sends at once.
fn inject(graph: &mut Graph<Pep>, node: NodeId, at_ms: u64, packet: Packet) -> Vec<Packet> {
    graph.inject(MS(at_ms), (node, Pep::LAN), packet, None);
    graph.drain_egress().map(|(_, _, _, packet)| packet).collect()
}

/// Given a SYN, a reset, the same SYN again, another reset and a late FIN, expect SYNs to the server and
/// a reset to the client whose serials are those of the PEP and differ: the last serials of hosts number
/// their ACKs of late FINs.
#[test]
fn packets_of_a_pep_have_serials_of_their_own() {
    assert_eq!(
        PacketId::HOST_SERIALS + 2 * Pep::SERIALS,
        1 << 40,
        "two PEPs on a path use the rest"
    );
    for number in 0..2 {
        let config = numbered(pep(), number);
        let serials = config.first_serial..config.first_serial + Pep::SERIALS;
        let mut graph = Graph::default();
        let node = graph.add(Pep::new(config));
        let mut ids = Vec::new();
        for (at_ms, flags) in
            (0..).zip([Flags::SYN, Flags::RST, Flags::SYN, Flags::RST, Flags::FIN])
        {
            let sent = inject(&mut graph, node, at_ms, segment(1, flags));
            assert_eq!(sent.len(), usize::from(flags != Flags::RST), "{flags:?}");
            ids.extend(sent.iter().map(|packet| packet.id.0));
        }
        let ends = ids.iter().map(|id| id >> 40).collect::<Vec<_>>();
        assert_eq!(ends, [2, 2, 3], "flow 1: the PEP is the client, then the server");
        assert!(ids.iter().all(|id| serials.contains(&(id & ((1 << 40) - 1)))), "{ids:?}");
        ids.dedup();
        assert_eq!(ids.len(), 3);
    }
}

/// Given a connection that passes unsplit and whose SYN is lost beyond the PEP, expect that the
/// retransmitted SYN passes, too, although there is room by then.
#[test]
fn an_unsplit_connection_stays_unsplit() {
    let mut graph = Graph::default();
    let node = graph.add(Pep::new(PepConfig { connections_max: 1, ..pep() }));
    let mut inject = |at_ms, packet| inject(&mut graph, node, at_ms, packet);
    inject(0, segment(1, Flags::SYN));
    assert_eq!(inject(1, segment(2, Flags::SYN)), [segment(2, Flags::SYN)]);
    inject(2, segment(1, Flags::RST));
    assert_eq!(inject(1_001, segment(2, Flags::SYN)), [segment(2, Flags::SYN)]);
    assert_ne!(inject(1_002, segment(3, Flags::SYN)), [segment(3, Flags::SYN)]);
}
