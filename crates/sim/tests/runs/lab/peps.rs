//! Split-TCP PEPs at gateways.

use bentpipe_core::packet::FlowId;
use bentpipe_sim::build::Chain;
use bentpipe_sim::{Outcome, Plan};
use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, column, flow, plan, run, tcp, to_f64};

/// The round-trip times of the link and between the hub and its distant host.
const LINK_MS: u64 = 500;
const HOST_MS: u64 = 80;
const MSS: u64 = 1_460;

fn pep(change: &Value) -> Value {
    let mut pep = json!({
        "kind": "pep", "lan_tcp": tcp(json!({})), "link_tcp": tcp(json!({})),
        "notsent_lowat_bytes": null, "buffer_bytes": 65_536, "connections": 100,
        "early_accept": false,
    });
    super::merge(&mut pep, change.clone());
    pep
}

/// A transfer from a distant host behind the hub, with the functions of both gateways.
fn transfer(bytes: u64, hub: Value, terminal: Value, path: Path) -> Value {
    let bulk = json!({
        "kind": "bulk", "amount": {"unit": "bytes", "value": bytes},
        "sender": tcp(json!({})), "receiver": tcp(json!({})),
    });
    let mut flow = flow("download", 0, "forward", 0, &bulk);
    flow["world_host"] = json!({"kind": "named", "host": 0});
    let mut plan = plan(path, 1, vec![flow]);
    plan["hosts"] = json!([{
        "name": "server", "gateway": 0, "delay_ns": HOST_MS * MILLI / 2, "jitter_ns": 0,
        "rate_bps": null,
    }]);
    plan["gateways"][0]["functions"] = hub;
    plan["gateways"][1]["functions"] = terminal;
    plan
}

fn geo() -> Path {
    Path { rtt_ms: LINK_MS, ..CLEAR }
}

fn value(outcome: &Outcome, table: &str, name: &str) -> Vec<u64> {
    column(outcome.table(table).expect("there"), name)
}

/// When the last byte is delivered, in ms: transmission on a link of 10 Gbit/s takes some microseconds.
fn delivered_ms(outcome: &Outcome) -> u64 {
    value(outcome, "flows", "last_delivery_ns")[0] / MILLI
}

/// 1,000 segments take seven rounds of slow start, from 10 segments on. The handshake takes one round
/// trip, the last data half of one. Given a PEP at the hub, expect that six rounds are shorter by the RTT
/// to the host, which is below that of the link; PEPs at both ends save no more.
#[test]
fn a_pep_saves_the_rtt_of_the_host_in_each_round_but_the_first() {
    let time = |hub, terminal| {
        let outcome = run(&transfer(1_000 * MSS, hub, terminal, geo()), 1);
        assert_eq!(value(&outcome, "flows", "delivered_bytes"), [1_000 * MSS]);
        delivered_ms(&outcome)
    };
    let whole = LINK_MS + HOST_MS;
    let plain = whole + 6 * whole + whole / 2;
    let split = plain - 6 * HOST_MS;
    let (none, one) = (json!([]), json!([pep(&json!({}))]));
    for (hub, terminal, expected) in [
        (none.clone(), none.clone(), plain),
        (one.clone(), none.clone(), split),
        (none, one.clone(), plain),
        (one.clone(), one, split),
    ] {
        let took = time(hub, terminal);
        assert!((expected..=expected + 10).contains(&took), "{took} ms, not {expected} ms");
    }
}

/// Given a flow that stands for QUIC, expect the time without a PEP, and no leg.
#[test]
fn a_flow_that_cannot_be_split_has_the_rounds_of_the_whole_path() {
    let both = json!([pep(&json!({}))]);
    let mut plan = transfer(1_000 * MSS, both.clone(), both, geo());
    plan["flows"][0]["splittable"] = json!(false);
    let outcome = run(&plan, 1);
    let plain = run(&transfer(1_000 * MSS, json!([]), json!([]), geo()), 1);
    assert_eq!(delivered_ms(&outcome), delivered_ms(&plain));
    assert!(outcome.table("legs").expect("there").is_empty());
}

/// Given a window of 1,000 segments from the start on the link, expect that slow start takes only one RTT
/// of the link instead of six: the window of a SYN-ACK is not scaled (RFC 7323, section 2.2), so that
/// 65,535 bytes can be sent before the first ACK. Meanwhile, six rounds of the other leg have ended.
#[test]
fn each_leg_has_its_own_tcp() {
    let hub = pep(&json!({"link_tcp": tcp(json!({"initial_window_segments": 1_000}))}));
    let outcome = run(&transfer(1_000 * MSS, json!([hub]), json!([]), geo()), 1);
    let expected = (LINK_MS + HOST_MS) * 3 / 2 + LINK_MS;
    let took = delivered_ms(&outcome);
    assert!((expected..=expected + 10).contains(&took), "{took} ms, not {expected} ms");
}

/// Given PEPs at both ends, expect three legs, each with all bytes, its own RTT, and the gateways at its
/// ends. The transfer is finished when the last byte is delivered, although it was acknowledged before.
#[test]
fn a_flow_has_a_row_for_each_leg() {
    let both = json!([pep(&json!({}))]);
    let outcome = run(&transfer(300 * MSS, both.clone(), both, geo()), 1);
    assert_eq!(value(&outcome, "legs", "leg"), [0, 1, 2]);
    assert_eq!(value(&outcome, "legs", "sent_bytes"), [300 * MSS; 3]);
    assert_eq!(value(&outcome, "legs", "delivered_bytes"), [300 * MSS; 3]);
    assert_eq!(value(&outcome, "legs", "connections"), [1; 3]);
    let rtts: Vec<_> =
        value(&outcome, "legs", "rtt_min_ns").iter().map(|rtt| rtt / MILLI).collect();
    assert_eq!(rtts, [HOST_MS, LINK_MS, 0]);
    let legs = outcome.table("legs").expect("there");
    let gateways = |name| -> Vec<_> {
        let column = legs.column(name).expect("there");
        (0..3).map(|row| column.integer(row)).collect()
    };
    assert_eq!(gateways("from_gateway"), [None, Some(0), Some(1)]);
    assert_eq!(gateways("to_gateway"), [Some(0), Some(1), None]);
    let [finished, delivered] =
        ["finished_ns", "last_delivery_ns"].map(|name| value(&outcome, "flows", name)[0]);
    assert_eq!(finished, delivered);
    assert!(value(&outcome, "flows", "last_ack_ns")[0] < delivered);
}

/// Given losses on the link, expect retransmissions on the leg that crosses it only, and no row without
/// a PEP.
#[test]
fn losses_are_those_of_the_leg_over_the_link() {
    let path = Path { loss: 0.01, ..geo() };
    let outcome = run(&transfer(2_000 * MSS, json!([pep(&json!({}))]), json!([]), path), 1);
    let lost = value(&outcome, "legs", "retransmitted_segments");
    assert_eq!(lost[0], 0);
    assert!(lost[1] > 5, "{lost:?}");
    assert_eq!(value(&outcome, "legs", "timeouts")[0], 0);
    let plain = run(&transfer(100 * MSS, json!([]), json!([]), geo()), 1);
    assert!(plain.table("legs").expect("there").is_empty());
}

/// Given a loss-free link of 10 Mbit/s with a queue for a whole window, expect the same time for the
/// second half of a transfer of 20 MB with and without a PEP: it is that of the link.
#[test]
fn the_steady_state_is_unchanged() {
    let path = Path { rate_bps: 10_000_000, seconds: 100, ..geo() };
    let times = [json!([]), json!([pep(&json!({}))])].map(|hub| {
        let outcome = run(&transfer(20_000_000, hub, json!([]), path), 1);
        let samples = outcome.table("flow_samples").expect("there");
        let (at, bytes) = (column(samples, "time_ns"), column(samples, "delivered_bytes"));
        let half = bytes.iter().position(|&bytes| bytes >= 10_000_000).expect("half of it");
        let rest = to_f64(20_000_000 - bytes[half]);
        rest * 8e9 / to_f64(value(&outcome, "flows", "last_delivery_ns")[0] - at[half])
    });
    // 1,460 of 1,500 bytes are payload.
    let expected = 10e6 * 1_460.0 / 1_500.0;
    for rate in times {
        assert!((rate / expected - 1.0).abs() < 0.002, "{rate} bit/s, not {expected}");
    }
}

/// Given a PEP with early accept, and a link over which no answer comes in time, expect it to take as
/// much as its buffers hold: 50,000 bytes in the send buffer of the leg over the link, 65,536 in the
/// relay, and 100,000 in the receive buffer of the other leg, whose window is in units of 2 bytes.
/// The last of these take more than 68 segments of 1,459 bytes, each with an ACK. Each could round the
/// window up by a byte.
#[test]
fn a_pep_buffers_as_much_as_its_buffers_hold() {
    let hub = pep(&json!({
        "early_accept": true,
        "lan_tcp": tcp(json!({
            "receive_buffer_bytes": 100_000, "receive_buffer_initial_bytes": 100_000,
        })),
        "link_tcp": tcp(json!({"send_buffer_bytes": 50_000})),
    }));
    let path = Path { rtt_ms: 1_000_000, ..CLEAR };
    let mut plan = transfer(1_000 * MSS, json!([hub]), json!([]), path);
    plan["flows"][0]["workload"]["sender"]["mss_bytes"] = json!(MSS - 1);
    let outcome = run(&plan, 1);
    let legs = ["from_gateway", "delivered_bytes"].map(|name| {
        let column = outcome.table("legs").expect("there").column(name).expect("there");
        column.integer(0)
    });
    assert_eq!(legs, [None, Some(50_000 + 65_536 + 100_000)]);
}

/// Given a PEP at one end, expect the gateway to be a host of a lab, where a program splits
/// connections, and no engine; expect one between two links to be refused, with its field.
#[test]
fn a_gateway_with_a_pep_is_a_host_of_a_lab() {
    for (end, name, functions) in [
        ("hub", "hub", [json!([pep(&json!({}))]), json!([])]),
        ("terminal", "terminal-1", [json!([]), json!([pep(&json!({}))])]),
    ] {
        let [hub, terminal] = functions;
        let mut plan = transfer(1_000, hub, terminal, geo());
        let chain = |plans: &[Plan]| Chain::new(plans, 1, FlowId(0), false);
        let parsed = |plan: &Value| Plan::parse(&plan.to_string()).expect("a valid plan");
        let lab = chain(&[parsed(&plan)]).expect("it runs in real time");
        let hosts = lab.network.hosts.iter().map(|host| (&*host.name, host.is_gateway));
        let expected = [("world", false), ("island", false), ("server", false), (name, true)];
        assert_eq!(hosts.collect::<Vec<_>>(), expected);
        assert!(!lab.names.iter().any(|name| name.contains("pep")), "{:?}", lab.names);
        plan["hosts"] = json!([]);
        plan["flows"][0]["world_host"] = Value::Null;
        let plan = parsed(&plan);
        let error = chain(&[plan.clone(), plan]).err().expect("refused");
        assert_eq!(error.field, format!("gateways.{end}.pep"));
    }
}

/// Given both ends of a tunnel, expect both gateways to be hosts of a lab, and an aggregator behind
/// the tunnel to remain the only engine; expect a tunnel over one of two links to be refused.
#[test]
fn the_ends_of_a_tunnel_are_hosts_of_a_lab() {
    let functions = json!([
        {
            "kind": "tunnel",
            "classifier": {"packet_size_bytes": 100, "classes": null, "young_bytes": 0},
            "redundancy": {"kind": "fixed", "redundancy_ppm": 100_000, "window_symbols": 64},
            "overflow": null,
            "titration": {"kind": "immediate"},
            "hold_bytes": 64_000,
            "queue": {"rate_bps": 10_000_000, "capacity_bytes": 60_000, "packet_overhead_bytes": 0},
            "memory_symbols": 1_024,
            "symbol_size_bytes": 1_432,
            "density": 15,
            "feedback_interval_ns": 100_000_000,
            "delivery": {"kind": "unordered"},
            "congestion_signal": {"kind": "hidden"},
        },
        {
            "kind": "aggregator", "frame_size_bytes": 1_500, "packet_size_bytes": 700,
            "hold_time_ns": 5_000_000, "classes": null,
        },
    ]);
    let mut plan = transfer(1_000, functions.clone(), functions, geo());
    plan["hosts"] = json!([]);
    plan["flows"][0]["world_host"] = Value::Null;
    let plan = Plan::parse(&plan.to_string()).expect("a valid plan");
    let chain = |plans: &[Plan]| Chain::new(plans, 1, FlowId(0), false);
    let lab = chain(std::slice::from_ref(&plan)).expect("it runs in real time");
    let hosts: Vec<_> =
        lab.network.hosts.iter().map(|host| (&*host.name, host.has_programs)).collect();
    assert_eq!(hosts, [("world", false), ("island", false), ("hub", true), ("terminal-1", true)]);
    assert!(!lab.names.iter().any(|name| name.contains("tunnel")), "{:?}", lab.names);
    assert!(lab.names.iter().any(|name| name.contains("aggregator")), "{:?}", lab.names);
    let error = chain(&[plan.clone(), plan]).err().expect("refused");
    assert_eq!(error.field, "gateways.terminal.tunnel");
}

/// Expect a PEP behind an aggregator to be refused: it would see frames.
#[test]
fn a_pep_must_be_before_the_aggregator() {
    let aggregator = json!({
        "kind": "aggregator", "frame_size_bytes": 1_500, "packet_size_bytes": 700,
        "hold_time_ns": 5_000_000, "classes": null,
    });
    let functions = json!([aggregator, pep(&json!({}))]);
    let plan = transfer(1_000, functions.clone(), functions.clone(), geo());
    let error = Plan::parse(&plan.to_string()).expect_err("the order is wrong");
    assert_eq!(error.field, "gateways.0.functions.1.kind");
    let functions = json!([functions[1], functions[0]]);
    let outcome = run(&transfer(100 * MSS, functions.clone(), functions, geo()), 1);
    assert_eq!(value(&outcome, "flows", "delivered_bytes"), [100 * MSS]);
}
