//! Channels: the times of connections to servers at different distances, derived from the number of
//! round trips.

use bentpipe_sim::Outcome;
use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, SECOND, column, flow, plan, run, tcp, to_f64};

const HALF_SECOND: Path = Path { rtt_ms: 500, ..CLEAR };
const MSS: u64 = 1_460;

/// A channel to servers with these numbers, without jitter.
fn channel(servers: &[usize], sizes: &[(u64, u64)], connections: Option<u64>) -> Value {
    json!({
        "kind": "channel", "servers": servers, "sizes": sizes, "connections": connections,
        "server_jitter_ns": 0, "client_jitter_ns": 0,
        "server": tcp(json!({})), "client": tcp(json!({})),
    })
}

/// A plan with a server for each one-way delay, and flows to them.
fn with_servers(path: Path, delays_ms: &[u64], workloads: &[Value]) -> Value {
    let named = (1..).zip(workloads);
    let flows = named.map(|(number, workload)| {
        let name = format!("{}-{number}", workload["kind"].as_str().expect("a text"));
        flow(&name, 0, "forward", 0, workload)
    });
    let mut plan = plan(path, 1, flows.collect());
    let hosts = (0..).zip(delays_ms).map(|(number, delay_ms)| {
        json!({
            "name": format!("server-{number}"), "gateway": 0, "delay_ns": delay_ms * MILLI,
            "jitter_ns": 0, "rate_bps": null,
        })
    });
    plan["hosts"] = hosts.collect();
    plan
}

fn exchanges(outcome: &Outcome, name: &str) -> Vec<u64> {
    column(outcome.table("exchanges").expect("there"), name)
}

fn flows(outcome: &Outcome, name: &str) -> Vec<u64> {
    column(outcome.table("flows").expect("there"), name)
}

fn millis(outcome: &Outcome, name: &str) -> Vec<u64> {
    exchanges(outcome, name).into_iter().map(|nanos| nanos / MILLI).collect()
}

/// Given a server 100 ms behind the hub, so that the round trip is 700 ms, expect one round trip for
/// the handshake, and one until the data arrive: half of it for the ACK that the server accepts
/// with, half for the data. The next connection starts with the FIN behind the data.
#[test]
fn a_connection_of_one_segment_takes_two_round_trips() {
    let workload = channel(&[0], &[(1_000, 1)], Some(3));
    let outcome = run(&with_servers(HALF_SECOND, &[100], &[workload]), 1);
    assert!(outcome.completed);
    assert_eq!(millis(&outcome, "start_ns"), [0, 1_400, 2_800]);
    assert_eq!(millis(&outcome, "established_ns"), [700, 2_100, 3_500]);
    assert_eq!(millis(&outcome, "first_byte_ns"), [1_400, 2_800, 4_200]);
    assert_eq!(exchanges(&outcome, "first_byte_ns"), exchanges(&outcome, "finished_ns"));
    assert_eq!(exchanges(&outcome, "request_bytes"), [0; 3]);
    assert_eq!(exchanges(&outcome, "host"), [0; 3]);
    assert_eq!(flows(&outcome, "exchanges"), [3]);
    assert_eq!(flows(&outcome, "delivered_bytes"), [3_000]);
    assert_eq!(flows(&outcome, "retransmitted_segments"), [0]);
}

/// Given 70 segments, expect rounds of 10, 20 and 40 segments: two round trips more.
#[test]
fn a_larger_download_adds_the_rounds_of_slow_start() {
    let workload = channel(&[0], &[(70 * MSS, 1)], Some(2));
    let outcome = run(&with_servers(HALF_SECOND, &[100], &[workload]), 1);
    assert_eq!(millis(&outcome, "start_ns"), [0, 2_800]);
    assert_eq!(millis(&outcome, "first_byte_ns"), [1_400, 4_200]);
    assert_eq!(millis(&outcome, "finished_ns"), [2_800, 5_600]);
}

/// Given no servers, expect the server at the hub's gateway, and one connection per two round trips
/// of 500 ms until the end of the run: at 10 Gbit/s the 9 packets of a connection add a microsecond,
/// so 59 are finished in 60 s and one is not.
#[test]
fn the_rate_of_connections_is_one_per_two_round_trips() {
    let workload = channel(&[], &[(1_000, 1)], None);
    let outcome = run(&with_servers(HALF_SECOND, &[], &[workload]), 1);
    assert_eq!(flows(&outcome, "exchanges"), [59]);
    let table = outcome.table("exchanges").expect("there");
    assert_eq!(table.len(), 60);
    assert_eq!(table.column("host").expect("there").integer(0), None);
}

/// Expect 9 packets per connection: SYN, SYN-ACK, ACK, the data and their ACK, and a FIN and an ACK
/// in each direction.
#[test]
fn every_packet_of_a_connection_is_counted() {
    for connections in [1, 2, 40] {
        let workload = channel(&[0], &[(MSS, 1)], Some(connections));
        let outcome = run(&with_servers(HALF_SECOND, &[100], &[workload]), 1);
        assert_eq!(outcome.packet_hops, 9 * connections);
    }
}

/// Given jitter of 6 ms at both ends, expect that the server writes up to 6 ms after the second
/// round trip began, and the next connection starts up to 6 ms after the end: 3 ms in the mean, with
/// a standard error of 6 / sqrt(12 n) ms.
#[test]
fn both_ends_take_a_random_time() {
    let mut workload = channel(&[0], &[(1_000, 1)], Some(300));
    workload["server_jitter_ns"] = json!(6 * MILLI);
    workload["client_jitter_ns"] = json!(6 * MILLI);
    let path = Path { seconds: 600, ..HALF_SECOND };
    let outcome = run(&with_servers(path, &[100], &[workload]), 1);
    assert!(outcome.completed);
    let [starts, established, first, finished] =
        ["start_ns", "established_ns", "first_byte_ns", "finished_ns"]
            .map(|name| exchanges(&outcome, name));
    let server = first.iter().zip(&established).map(|(first, open)| first - open - 700 * MILLI);
    let client = starts[1..].iter().zip(&finished).map(|(start, end)| start - end);
    for (what, times) in [("server", server.collect::<Vec<_>>()), ("client", client.collect())] {
        // The packets of a connection take a microsecond on the link.
        assert!(times.iter().all(|&time| time <= 6 * MILLI + 10_000), "{what}: {times:?}");
        let mean = to_f64(times.iter().sum::<u64>()) / to_f64(times.len() as u64) / 1e6;
        let error = 6.0 / (12.0 * to_f64(times.len() as u64)).sqrt();
        assert!((mean - 3.0).abs() < 5.0 * error, "{what}: {mean} ms");
    }
}

/// Given servers at 0, 50 and 195 ms, expect that each connection has the round trip of its server,
/// and that each server has a third of 600 connections, within five standard deviations of 11.5.
#[test]
fn servers_are_drawn_for_each_connection() {
    let delays = [0, 50, 195];
    let workload = channel(&[0, 1, 2], &[(1_000, 1)], Some(600));
    let path = Path { seconds: 1_000, ..HALF_SECOND };
    let outcome = run(&with_servers(path, &delays, &[workload]), 1);
    assert!(outcome.completed);
    let hosts = exchanges(&outcome, "host");
    let (starts, ends) = (millis(&outcome, "start_ns"), millis(&outcome, "established_ns"));
    let mut counts = [0i64; 3];
    for ((&host, start), end) in hosts.iter().zip(starts).zip(ends) {
        let host = usize::try_from(host).expect("three");
        counts[host] += 1;
        let round_trip = 500 + 2 * delays[host];
        assert!((round_trip..=round_trip + 1).contains(&(end - start)), "{} ms", end - start);
    }
    assert!(counts.iter().all(|count| (count - 200).abs() < 58), "{counts:?}");
}

/// Given sizes with weights 1, 2 and 7, expect their shares of 1,000 connections within five standard
/// deviations, which are at most 14.5.
#[test]
fn sizes_occur_with_their_weights() {
    let sizes = [(235, 1), (591, 2), (2_120, 7)];
    let outcome = run(
        &with_servers(
            Path { seconds: 2_000, ..HALF_SECOND },
            &[],
            &[channel(&[], &sizes, Some(1_000))],
        ),
        3,
    );
    let drawn = exchanges(&outcome, "response_bytes");
    for (size, weight) in sizes {
        let count = drawn.iter().filter(|&&drawn| drawn == size).count() as u64;
        assert!(count.abs_diff(100 * weight) < 73, "{size} bytes: {count}");
    }
    assert_eq!(flows(&outcome, "delivered_bytes"), [drawn.iter().sum::<u64>()]);
}

/// Given a channel, with and without losses and with a transfer and another channel beside it, expect
/// the same sizes and servers in the same order: its streams serve nothing else.
#[test]
fn draws_depend_on_no_other_flow_and_not_on_the_path() {
    let own = channel(&[0, 1, 2], &[(500, 1), (5_000, 1), (50_000, 1)], Some(100));
    let drawn = |path, others: &[Value]| {
        let mut workloads = vec![own.clone()];
        workloads.extend_from_slice(others);
        let outcome = run(&with_servers(path, &[0, 50, 195], &workloads), 5);
        let all = ["flow", "response_bytes", "host"].map(|name| exchanges(&outcome, name));
        let rows = (0..all[0].len()).filter(|&row| all[0][row] == 0);
        let rows: Vec<_> = rows.map(|row| (all[1][row], all[2][row])).collect();
        rows
    };
    let path = Path { seconds: 3_600, ..HALF_SECOND };
    let alone = drawn(path, &[]);
    assert_eq!(alone.len(), 100);
    assert_eq!(drawn(Path { loss: 0.02, ..path }, &[]), alone);
    let bulk = json!({
        "kind": "bulk", "amount": {"unit": "bytes", "value": 1_000_000},
        "sender": tcp(json!({})), "receiver": tcp(json!({})),
    });
    let other = channel(&[2, 1], &[(900, 1)], Some(10));
    assert_eq!(drawn(path, &[bulk, other]), alone);
}

/// Given a loss of 5 % of full frames, expect every byte of every download, in both directions of the
/// losses: the FIN of a server may be lost, or its ACK.
#[test]
fn losses_delay_connections_and_lose_nothing() {
    let path = Path { loss: 0.05, seconds: 3_600, ..HALF_SECOND };
    let mut plan =
        with_servers(path, &[0, 195], &[channel(&[0, 1], &[(591, 1), (20 * MSS, 1)], Some(400))]);
    // Small packets are lost with the same bit error rate; raise it for the return direction.
    plan["directions"][1]["channel"] = json!({"kind": "bit_errors", "bit_error_rate": 1e-4});
    let outcome = run(&plan, 2);
    assert!(outcome.completed);
    assert_eq!(flows(&outcome, "exchanges"), [400]);
    let sizes: u64 = exchanges(&outcome, "response_bytes").iter().sum();
    assert_eq!(flows(&outcome, "delivered_bytes"), [sizes]);
    assert!(flows(&outcome, "retransmitted_segments")[0] > 20);
}

/// Given 120 channels of 60,000 bytes on 16 Mbit/s with 18 bytes of framing, expect their goodput to be
/// below 16 Mbit/s times 1,460 of 1,518 bytes, which only full segments would reach, and above 90 % of
/// it: without queueing, a download takes four round trips of 520 ms, so they offer 27 Mbit/s.
#[test]
fn many_channels_saturate_the_link() {
    let path = Path {
        rate_bps: 16_000_000,
        framing_bytes: 18,
        queue_bytes: Some(1_000_000),
        seconds: 120,
        ..HALF_SECOND
    };
    let workloads = vec![channel(&[0], &[(60_000, 1)], None); 120];
    let mut plan = with_servers(path, &[10], &workloads);
    stagger(&mut plan);
    let delivered: u64 = flows(&run(&plan, 1), "delivered_bytes").iter().sum();
    let goodput = to_f64(delivered) * 8.0 / 120.0;
    let bound = 16e6 * 1_460.0 / 1_518.0;
    assert!(goodput < bound, "{goodput} of {bound} bit/s");
    assert!(goodput > 0.9 * bound, "{goodput} of {bound} bit/s");
}

/// Starts flows within five seconds.
fn stagger(plan: &mut Value) {
    for flow in plan["flows"].as_array_mut().expect("a list") {
        flow["start_jitter_ns"] = json!(5 * SECOND);
    }
}

fn pep() -> Value {
    json!([{
        "kind": "pep", "lan_tcp": tcp(json!({})), "link_tcp": tcp(json!({})),
        "notsent_lowat_bytes": null, "buffer_bytes": 65_536, "connections": 100,
        "early_accept": false,
    }])
}

/// Given PEPs at the hub, at the terminal and at both, expect the same downloads from the same servers,
/// none earlier than the two round trips of a connection, and each flow with its legs.
#[test]
fn channels_pass_peps() {
    let workloads = [
        channel(&[0, 1], &[(591, 1), (40 * MSS, 1)], Some(30)),
        channel(&[1, 2], &[(235, 1)], Some(30)),
    ];
    let plain = with_servers(Path { seconds: 600, ..HALF_SECOND }, &[0, 50, 195], &workloads);
    let rows = |outcome: &Outcome| {
        let columns = ["flow", "exchange", "response_bytes", "host"];
        let columns = columns.map(|name| exchanges(outcome, name));
        let mut rows: Vec<_> =
            (0..columns[0].len()).map(|row| columns.each_ref().map(|each| each[row])).collect();
        rows.sort_unstable();
        rows
    };
    let expected = rows(&run(&plain, 4));
    for (hub, terminal, legs) in [(pep(), json!([]), 2), (json!([]), pep(), 2), (pep(), pep(), 3)] {
        let mut split = plain.clone();
        split["gateways"][0]["functions"] = hub;
        split["gateways"][1]["functions"] = terminal;
        let outcome = run(&split, 4);
        assert!(outcome.completed);
        assert_eq!(rows(&outcome), expected);
        assert_eq!(flows(&outcome, "exchanges"), [30, 30]);
        let of_legs = column(outcome.table("legs").expect("there"), "connections");
        assert_eq!(of_legs, vec![30; 2 * legs]);
        let (starts, ends) = (millis(&outcome, "start_ns"), millis(&outcome, "finished_ns"));
        let shortest = starts.iter().zip(&ends).map(|(start, end)| end - start).min();
        assert_eq!(shortest, Some(1_000));
    }
}

/// Expect the fields of a wrong plan to be named.
#[test]
fn wrong_channels_are_refused() {
    let right = channel(&[0], &[(1_000, 1)], None);
    let cases = [
        ("servers", json!([1]), "flows.0.workload.servers"),
        ("sizes", json!([]), "flows.0.workload.sizes"),
        ("sizes", json!([[0, 1]]), "flows.0.workload.sizes"),
        ("sizes", json!([[9, 0]]), "flows.0.workload.sizes"),
        ("sizes", json!([[9, u64::MAX], [8, 1]]), "flows.0.workload.sizes"),
        ("connections", json!(0), "flows.0.workload.connections"),
        ("client_jitter_ns", json!(u64::MAX), "flows.0.workload.client_jitter_ns"),
    ];
    for (field, value, expected) in cases {
        let mut workload = right.clone();
        workload[field] = value;
        let plan = with_servers(HALF_SECOND, &[0], &[workload]);
        let error = bentpipe_sim::Plan::parse(&plan.to_string()).expect_err("refused");
        assert_eq!(error.field, expected);
    }
    let mut plan = with_servers(HALF_SECOND, &[0], &[right]);
    plan["flows"][0]["direction"] = json!("return");
    let error = bentpipe_sim::Plan::parse(&plan.to_string()).expect_err("refused");
    assert_eq!(error.field, "flows.0.workload.kind");
}

/// Given the starts of 20 channels within five seconds, expect them to be spread.
#[test]
fn starts_are_staggered() {
    let workloads = vec![channel(&[], &[(1_000, 1)], Some(1)); 20];
    let mut plan = with_servers(HALF_SECOND, &[], &workloads);
    stagger(&mut plan);
    let mut starts = flows(&run(&plan, 1), "start_ns");
    starts.sort_unstable();
    starts.dedup();
    assert_eq!(starts.len(), 20);
    assert!(starts[0] < SECOND && starts[19] > 4 * SECOND && starts[19] < 5 * SECOND);
}
