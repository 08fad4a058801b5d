//! Links with several hosts, terminals and gateway functions, with real packets and without a
//! clock.

use bentpipe_core::packet::Address;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_live::addresses::ipv4;
use bentpipe_live::changes::LinkChange;
use bentpipe_live::emulator::{Emulator, Options, replay};
use bentpipe_live::plain_link;
use bentpipe_sim::plan::{Aggregator, Branch, Channel, Function, Host, Limit, Plan, Queue};
use bentpipe_sim::{Chain, InterfaceId, Side};
use proptest::prelude::*;

const BYTES: usize = 1_000;

fn millis(count: u64) -> Instant {
    Instant::from_millis(count)
}

/// A link of 8 Mbit/s, so that a packet of 1,000 bytes takes a millisecond, and 100 ms each way.
fn link() -> Plan {
    plain_link(8_000_000, Duration::from_millis(100), 0.0)
}

/// The same link with so many terminals.
fn shared(terminals: u32) -> Plan {
    let mut plan = link();
    let (gateway, back) = (plan.gateways[1].clone(), plan.directions[1].clone());
    plan.gateways.truncate(1);
    plan.directions.truncate(1);
    let branch = plan.directions[0].to[0].clone();
    plan.directions[0].to =
        (1..=terminals).map(|gateway| Branch { gateway, ..branch.clone() }).collect();
    for number in 1..=terminals {
        let name = format!("terminal-{number}");
        plan.gateways.push(bentpipe_sim::plan::Gateway { name, ..gateway.clone() });
        let (name, from) = (format!("return-{number}"), number);
        plan.directions.push(bentpipe_sim::plan::Direction { name, from, ..back.clone() });
    }
    plan
}

fn distant(name: &str, gateway: u32, delay_ms: u64) -> Host {
    let delay_ns = delay_ms * 1_000_000;
    Host { name: name.to_owned(), gateway, delay_ns, jitter_ns: 0, rate_bps: None }
}

fn aggregating(mut plan: Plan) -> Plan {
    let aggregator = Aggregator {
        frame_size_bytes: 1_500,
        packet_size_bytes: 500,
        hold_time_ns: 5_000_000,
        classes: None,
    };
    for gateway in &mut plan.gateways {
        gateway.functions = vec![Function::Aggregator(aggregator.clone())];
    }
    plan
}

/// The same plan with a PEP at a gateway, before its other functions.
fn splitting(mut plan: Plan, gateway: usize) -> Plan {
    let tcp = serde_json::json!({
        "mss_bytes": 1_460, "initial_window_segments": 10, "congestion_control": "cubic",
        "sack": true, "timestamps": true, "window_scaling": true, "send_buffer_bytes": 1 << 20,
        "receive_buffer_bytes": 1 << 20, "receive_buffer_initial_bytes": 1 << 16,
        "receive_buffer_counts": "window", "delayed_ack_segments": 2,
        "delayed_ack_timeout_ns": 40_000_000, "quick_ack_segments": 16,
        "rto_initial_ns": 1_000_000_000, "rto_min_ns": 200_000_000, "rto_min_bounds": "variance",
        "rto_max_ns": 120_000_000_000_u64, "clock_granularity_ns": 4_000_000,
        "slow_start_segments_per_ack": 65_535, "avoidance_counting": "acks",
        "limited_transmit": true, "rack_tlp": true, "prr": true, "hystart": true, "ecn": false,
        "stack": "linux",
    });
    let pep = serde_json::json!({
        "kind": "pep", "lan_tcp": tcp, "link_tcp": tcp, "notsent_lowat_bytes": null,
        "buffer_bytes": 65_536, "connections": 100, "early_accept": false,
    });
    let pep = serde_json::from_value(pep).expect("a PEP");
    plan.gateways[gateway].functions.insert(0, pep);
    plan
}

/// An IPv4 packet with a traffic class, and a number after its header.
fn packet(to: Address, number: u32, traffic_class: u8, bytes: usize) -> Vec<u8> {
    let mut packet = vec![0; bytes];
    (packet[0], packet[1]) = (0x45, traffic_class);
    packet[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
    packet[12..16].copy_from_slice(&[10, 84, 0, 1]);
    packet[16..20].copy_from_slice(&ipv4(to).octets());
    packet[20..24].copy_from_slice(&number.to_be_bytes());
    packet
}

struct Link(Emulator);

impl Link {
    fn new(plan: &Plan) -> Self {
        Self::with_gateways(plan, false)
    }

    fn with_gateways(plan: &Plan, gateways: bool) -> Self {
        let options = Options { tap: true, gateways, ..Options::default() };
        Self(Emulator::new(std::slice::from_ref(plan), 1, options).expect("a link"))
    }

    fn host(&self, name: &str) -> Address {
        let number = self.0.network().hosts.iter().position(|host| host.name == name);
        Address(number.unwrap_or_else(|| panic!("{name} is a host")) as u32)
    }

    fn send(&mut self, at: Instant, from: &str, to: &str, number: u32) {
        let (from, to) = (self.host(from), self.host(to));
        self.send_packet(at, from, &packet(to, number, 0, BYTES));
    }

    /// Sends a packet from a gateway to its hosts.
    fn send_inside(&mut self, at: Instant, from: &str, to: &str, number: u32) {
        let (gateway, to) = (self.host(from), self.host(to));
        let network = self.0.network();
        let index = network.inner.iter().position(|&inner| inner == gateway);
        let interface = network.hosts.len() + index.expect("a gateway");
        let packet = packet(to, number, 0, BYTES);
        self.send_packet(at, InterfaceId(interface as u32), &packet);
    }

    fn send_packet(&mut self, at: Instant, from: impl Into<InterfaceId>, packet: &[u8]) {
        let slot = self.0.alloc().expect("a free slot");
        self.0.bytes_mut(slot)[..packet.len()].copy_from_slice(packet);
        self.0.arrive(at, from, slot, packet.len());
    }

    /// The time, the host and the number of each packet delivered until a time.
    fn received(&mut self, until: Instant) -> Vec<(Instant, String, u32)> {
        self.0.run_until(until);
        let mut departures = Vec::new();
        self.0.take_departures(&mut departures);
        let seen = |departure| {
            let bytes = self.0.bytes(departure);
            let number = bytes[20..24].try_into().map(u32::from_be_bytes).expect("four bytes");
            let (host, is_inner) = self.0.network().owner(departure.to);
            let name = &self.0.network().hosts[host.0 as usize].name;
            (departure.due, format!("{name}{}", if is_inner { " inside" } else { "" }), number)
        };
        let seen = departures.iter().map(seen).collect();
        departures.iter().for_each(|departure| self.0.free(departure.slot));
        seen
    }
}

fn delivered(at_ms: u64, host: &str, number: u32) -> (Instant, String, u32) {
    (millis(at_ms), host.to_owned(), number)
}

/// Given servers with access delays of 0 and 195 ms, expect a packet in each direction to take 101
/// ms over the link, and 195 ms more for the distant server.
#[test]
fn a_host_has_its_own_access_delay() {
    let mut plan = link();
    plan.hosts = vec![distant("far", 0, 195)];
    let mut link = Link::new(&plan);
    link.send(millis(0), "world", "island", 1);
    link.send(millis(0), "far", "island", 2);
    assert_eq!(
        link.received(millis(400)),
        [delivered(101, "island", 1), delivered(296, "island", 2)]
    );
    link.send(millis(400), "island", "far", 3);
    link.send(millis(401), "island", "world", 4);
    assert_eq!(link.received(millis(999)), [delivered(502, "world", 4), delivered(696, "far", 3)]);
}

/// Packets between hosts of one gateway do not cross the link.
#[test]
fn local_packets_do_not_cross_the_link() {
    let mut plan = link();
    plan.hosts = vec![distant("far", 0, 30), distant("near", 1, 2), distant("cabin", 1, 5)];
    let mut link = Link::new(&plan);
    link.send(millis(0), "near", "cabin", 1);
    link.send(millis(0), "near", "island", 2);
    link.send(millis(0), "world", "far", 3);
    let expected = [delivered(2, "island", 2), delivered(7, "cabin", 1), delivered(30, "far", 3)];
    assert_eq!(link.received(millis(99)), expected);
}

/// Given four terminals and a packet to each at the same time, expect deliveries a millisecond
/// apart; the replies do not wait for each other. From terminal to terminal there are two hops.
#[test]
fn four_terminals_share_the_forward_link() {
    let mut link = Link::new(&shared(4));
    let islands = [1, 2, 3, 4].map(|number| format!("island-{number}"));
    for (island, number) in islands.iter().zip(1..) {
        link.send(millis(0), "world", island, number);
    }
    let expected: Vec<_> = islands
        .iter()
        .zip(1..)
        .map(|(island, at)| delivered(100 + u64::from(at), island, at))
        .collect();
    assert_eq!(link.received(millis(200)), expected);
    for (island, number) in islands.iter().zip(1..) {
        link.send(millis(200), island, "world", number);
    }
    assert_eq!(
        link.received(millis(400)),
        [1, 2, 3, 4].map(|number| delivered(301, "world", number))
    );
    link.send(millis(400), "island-2", "island-3", 9);
    assert_eq!(link.received(millis(999)), [delivered(602, "island-3", 9)]);
}

/// Given three terminals and a change of the return delay, expect it to apply to the return
/// direction of each.
#[test]
fn a_change_of_the_return_link_applies_to_every_terminal() {
    let mut link = Link::new(&shared(3));
    let change =
        LinkChange { delay: Some(Duration::from_millis(7)), ..LinkChange::none(0, Side::Island) };
    link.0.apply(millis(0), &[change]).expect("a possible change");
    for number in 1..=3 {
        link.send(millis(0), &format!("island-{number}"), "world", number);
    }
    assert_eq!(link.received(millis(99)), [1, 2, 3].map(|number| delivered(8, "world", number)));
}

/// Given a queue of two classes and three packets that arrive during a transmission, expect the one
/// with DSCP 46 (EF) before the two earlier ones.
#[test]
fn precedence_is_served_first() {
    let mut plan = link();
    let limit = Limit::Packets(10);
    plan.directions[0].queue = Queue::StrictPriority { limit, classes: 2 };
    let mut link = Link::new(&plan);
    let (world, island) = (link.host("world"), link.host("island"));
    for (number, traffic_class) in [(1, 0), (2, 0), (3, 8 << 2), (4, 46 << 2)] {
        link.send_packet(millis(0), world, &packet(island, number, traffic_class, BYTES));
    }
    let order: Vec<_> = link.received(millis(500)).into_iter().map(|seen| seen.2).collect();
    assert_eq!(order, [1, 4, 2, 3]);
}

/// Given packets of 100 bytes that arrive within the hold time, expect them in one frame of 20 +
/// 102 + 102 + 102 bytes that leaves after 5 ms, with their own bytes.
#[test]
fn small_packets_share_a_frame() {
    let mut link = Link::new(&aggregating(link()));
    let (world, island) = (link.host("world"), link.host("island"));
    for number in 1..=3 {
        let at = millis(u64::from(number) - 1);
        link.send_packet(at, world, &packet(island, number, 0, 100));
    }
    let seen = link.received(millis(500));
    let frame_bytes: u64 = 20 + (2 + 100) + 2 * (2 + 100);
    let earliest = millis(105) + Duration::from_micros(frame_bytes - 2);
    for (number, (at, host, found)) in (1..).zip(seen) {
        assert_eq!((host.as_str(), found), ("island", number));
        assert!(at >= earliest && at <= millis(106), "{at}");
    }
    assert_eq!(link.0.stored(), 0);
}

/// Given a lost frame, expect all its packets to be lost and their slots to be freed.
#[test]
fn a_lost_frame_frees_the_slots_of_its_packets() {
    let mut plan = aggregating(link());
    plan.directions[0].channel = Channel::BitErrors { bit_error_rate: 1.0 };
    let mut link = Link::new(&plan);
    let (world, island) = (link.host("world"), link.host("island"));
    for number in 0..20 {
        link.send_packet(millis(0), world, &packet(island, number, 0, 100));
    }
    assert_eq!(link.0.stored(), 20);
    assert_eq!(link.received(millis(900)), []);
    assert_eq!(link.0.stored(), 0);
}

/// Given gateways that are hosts, expect packets to leave the graph there and to continue from
/// there: from a host to the inner interface of its gateway, after its access delay, and from the
/// link to the outer interface.
#[test]
fn packets_leave_the_graph_at_gateways_that_are_hosts() {
    let mut plan = shared(2);
    plan.hosts = vec![distant("far", 0, 30), distant("cabin", 2, 5)];
    let mut link = Link::with_gateways(&plan, true);
    link.send(millis(0), "far", "cabin", 1);
    link.send(millis(0), "world", "cabin", 2);
    assert_eq!(
        link.received(millis(99)),
        [delivered(0, "hub inside", 2), delivered(30, "hub inside", 1)]
    );
    link.send(millis(100), "hub", "cabin", 1);
    assert_eq!(link.received(millis(299)), [delivered(201, "terminal-2", 1)]);
    link.send_inside(millis(300), "terminal-2", "cabin", 1);
    link.send_inside(millis(300), "terminal-2", "island-2", 2);
    assert_eq!(
        link.received(millis(399)),
        [delivered(300, "island-2", 2), delivered(305, "cabin", 1)]
    );
    link.send(millis(400), "terminal-1", "island-2", 3);
    assert_eq!(link.received(millis(599)), [delivered(501, "hub", 3)], "the hub forwards it");
    link.send(millis(600), "terminal-1", "hub", 4);
    link.send(millis(600), "hub", "terminal-2", 5);
    assert_eq!(
        link.received(millis(999)),
        [delivered(701, "hub", 4), delivered(701, "terminal-2", 5)]
    );
    link.send_inside(millis(1_000), "hub", "cabin", 6);
    assert_eq!(link.received(millis(1_999)), [], "no host of the hub has that address");
    assert_eq!(link.0.stored(), 0);
}

/// Given a PEP at one of two terminals, expect packets to leave the graph there, on both sides, and
/// nowhere else.
#[test]
fn packets_leave_the_graph_at_a_gateway_with_a_pep_alone() {
    let mut plan = shared(2);
    plan.hosts = vec![distant("far", 0, 30), distant("cabin", 2, 5)];
    let mut link = Link::new(&splitting(plan, 2));
    link.send(millis(0), "far", "island-1", 1);
    link.send(millis(0), "world", "cabin", 2);
    link.send(millis(0), "world", "far", 3);
    assert_eq!(
        link.received(millis(199)),
        [delivered(30, "far", 3), delivered(101, "terminal-2", 2), delivered(131, "island-1", 1)]
    );
    link.send(millis(200), "cabin", "world", 4);
    link.send(millis(200), "island-2", "world", 5);
    assert_eq!(
        link.received(millis(299)),
        [delivered(200, "terminal-2 inside", 5), delivered(205, "terminal-2 inside", 4)]
    );
    link.send(millis(300), "terminal-2", "far", 6);
    link.send_inside(millis(300), "terminal-2", "cabin", 7);
    link.send_inside(millis(300), "terminal-2", "island-2", 8);
    assert_eq!(
        link.received(millis(999)),
        [delivered(300, "island-2", 8), delivered(305, "cabin", 7), delivered(431, "far", 6)]
    );
    assert_eq!(link.0.stored(), 0);
}

/// Given server ports and a PEP at the hub, expect the control connection to pass it, and the next
/// connection to count once: as offered where its host sends, as delivered where the other receives.
#[test]
fn traffic_through_a_pep_is_counted_at_the_hosts() {
    let control_ports = Some((5_201, 5_201));
    let options = Options { control_ports, ..Options::default() };
    let plan = splitting(link(), 0);
    let mut link = Link(Emulator::new(&[plan], 1, options).expect("a link"));
    let tcp = |from: u8, to: u8, ports: [u16; 2]| {
        let mut packet = packet(Address(u32::from(to) - 1), 0, 0, BYTES);
        (packet[9], packet[15], packet[32]) = (6, from, 5 << 4);
        packet[20..22].copy_from_slice(&ports[0].to_be_bytes());
        packet[22..24].copy_from_slice(&ports[1].to_be_bytes());
        packet
    };
    // A PEP has its own sequence numbers.
    let of_pep = |from, to, ports| {
        let mut packet = tcp(from, to, ports);
        packet[24] = 1;
        packet
    };
    let (world, island, hub) = (link.host("world"), link.host("island"), link.host("hub"));
    let inside = InterfaceId(link.0.network().hosts.len() as u32);
    let places = |link: &mut Link, until| -> Vec<_> {
        link.received(until).into_iter().map(|seen| seen.1).collect()
    };
    link.send_packet(millis(0), world, &tcp(1, 2, [40_000, 5_201]));
    assert_eq!(places(&mut link, millis(1)), ["island"], "at once");
    for number in 1..=2 {
        let client = 40_000 + number;
        link.send_packet(millis(10), world, &tcp(1, 2, [client, 5_201]));
        link.send_packet(millis(10), hub, &of_pep(1, 2, [client, 5_201]));
        link.send_packet(millis(10), island, &tcp(2, 1, [5_201, client]));
        link.send_packet(millis(150), inside, &of_pep(2, 1, [5_201, client]));
    }
    assert_eq!(places(&mut link, millis(900)).len(), 8);
    let (_, flows) = link.0.ports().iter().next().expect("a port");
    let counts =
        flows.traffic.each_ref().map(|side| (side.offered.packets, side.delivered.packets));
    assert_eq!(counts, [(2, 2); 2]);
    let delays = flows.traffic.each_ref().map(|side| side.delay_max);
    assert_eq!(delays[0], Duration::from_millis(102), "of the leg over the link");
    assert_eq!(delays[1], Duration::ZERO, "of the leg to the world");
}

#[test]
fn plans_that_cannot_run_in_real_time_are_rejected() {
    let problem = |plans: &[Plan]| {
        let chain = Chain::new(plans, 1, bentpipe_core::packet::FlowId(0), false);
        chain.err().expect("an error").to_string()
    };
    let mut far = link();
    far.hosts = vec![distant("far", 1, 3)];
    assert_eq!(problem(&[far.clone(), link()]), "hosts: must not be between two links");
    assert_eq!(problem(&[shared(2), link()]), "terminals: must be 1 where another link follows");
    far.hosts[0].name = "world".to_owned();
    assert!(problem(&[far]).contains("\"world\": in real time another host has that name"));
    let mut many = link();
    many.hosts = (0..300).map(|number| distant(&number.to_string(), 1, 1)).collect();
    assert!(problem(&[many]).contains("must be at most 250 in real time"));
    let mut classes = link();
    let limit = Limit::Packets(10);
    classes.directions[0].queue = Queue::StrictPriority { limit, classes: 9 };
    assert!(problem(&[classes]).contains("at most 8 classes"));
}

proptest! {
    /// Given any packets between any interfaces of a link with distant hosts, terminals,
    /// aggregators, classes and losses, expect a replay of the record to give the same events, and
    /// all slots to be free.
    #[test]
    fn any_traffic_can_be_replayed(
        steps in prop::collection::vec((0_u64..3_000_000, 0_u32..15, 0_u32..13, any::<u8>(), 24_usize..1_500), 1..200),
        gateways: bool,
        pep in prop::option::of(0_usize..4),
    ) {
        let mut plan = aggregating(shared(3));
        if let Some(gateway) = pep {
            plan = splitting(plan, gateway);
        }
        plan.hosts = vec![distant("far", 0, 9), distant("near", 1, 1), distant("cabin", 3, 4)];
        let limit = Limit::Packets(6);
        plan.directions[0].queue = Queue::StrictPriority { limit, classes: 3 };
        plan.directions[2].channel = Channel::BitErrors { bit_error_rate: 1e-4 };
        let mut link = Link::with_gateways(&plan, gateways);
        let interfaces = (link.0.network().hosts.len() + link.0.network().inner.len()) as u32;
        let mut at = millis(0);
        for (number, (gap, from, to, class, bytes)) in (0..).zip(steps) {
            at += Duration::from_nanos(gap);
            let from = InterfaceId(from % interfaces);
            link.send_packet(at, from, &packet(Address(to), number, class, bytes));
        }
        let end = at + Duration::from_secs(10);
        link.received(end);
        prop_assert_eq!(link.0.stored(), 0);
        let (record, hash) = link.0.into_record().expect("a record");
        prop_assert_eq!(replay(&[plan], 1, &record, end).expect("a replay"), hash);
    }
}
