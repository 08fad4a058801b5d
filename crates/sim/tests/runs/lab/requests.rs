//! Requests and responses: times derived from the number of round trips.

use bentpipe_sim::Outcome;
use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, SECOND, column, flow, plan, run, tcp};

const HALF_SECOND: Path = Path { rtt_ms: 500, ..CLEAR };

/// Requests of 300 bytes with responses of `segments` full segments, 100 ms apart.
fn requests(segments: u64, exchanges: u64, keep_connection: bool) -> Value {
    json!({
        "kind": "request_response", "request_bytes": 300,
        "response_bytes": {"kind": "constant", "value": 1_460 * segments},
        "think_ns": {"kind": "constant", "value": 100 * MILLI}, "exchanges": exchanges,
        "keep_connection": keep_connection, "server": tcp(json!({})), "client": tcp(json!({})),
    })
}

fn run_one(heading: &str, workload: &Value) -> Outcome {
    let outcome = run(&plan(HALF_SECOND, 1, vec![flow("web", 0, heading, SECOND, workload)]), 1);
    assert!(outcome.completed);
    outcome
}

/// A column of the exchanges in milliseconds. At 10 Gbit/s, 70 segments take 84 microseconds.
fn millis(outcome: &Outcome, name: &str) -> Vec<u64> {
    let times = column(outcome.table("exchanges").expect("there"), name);
    times.into_iter().map(|nanos| nanos / MILLI).collect()
}

/// Given fetches of 70 segments in either direction, expect one round trip for the handshake, half
/// of one for the request, and three rounds of 10, 20 and 40 segments, of which the last one
/// arrives two and a half round trips later.
#[test]
fn a_fetch_takes_a_handshake_and_the_rounds_of_slow_start() {
    for heading in ["forward", "return"] {
        let outcome = run_one(heading, &requests(70, 2, false));
        assert_eq!(millis(&outcome, "start_ns"), [1_000, 3_100]);
        assert_eq!(millis(&outcome, "established_ns"), [1_500, 3_600]);
        assert_eq!(millis(&outcome, "first_byte_ns"), [2_000, 4_100]);
        assert_eq!(millis(&outcome, "finished_ns"), [3_000, 5_100]);
        let flows = outcome.table("flows").expect("there");
        assert_eq!(column(flows, "exchanges"), [2]);
        assert_eq!(column(flows, "delivered_bytes"), [2 * 70 * 1_460]);
        assert_eq!(column(flows, "retransmitted_segments"), [0]);
    }
}

/// Given a persistent connection, expect the second exchange to have no handshake and one round
/// instead of three. All rounds of the first response filled the window, so each of its 70 ACKs
/// added a segment to the initial ten, and 80 suffice for 70.
#[test]
fn a_persistent_connection_saves_the_handshake_and_keeps_its_window() {
    let outcome = run_one("forward", &requests(70, 2, true));
    assert_eq!(millis(&outcome, "start_ns"), [1_000, 3_100]);
    assert_eq!(millis(&outcome, "first_byte_ns"), [2_000, 3_600]);
    assert_eq!(millis(&outcome, "finished_ns"), [3_000, 3_600]);
    let exchanges = outcome.table("exchanges").expect("there");
    let established = exchanges.column("established_ns").expect("there");
    assert_eq!(established.integer(1), None, "the second exchange opened no connection");
}

/// Given exchanges of one segment, expect 10 packets per connection: SYN, SYN-ACK, request,
/// response, an ACK of each, and a FIN and an ACK in each direction; on one connection, 4 per
/// exchange and 6 once.
#[test]
fn every_packet_of_an_exchange_is_counted() {
    for exchanges in [1, 3, 40] {
        let hops = |keep| run_one("forward", &requests(1, exchanges, keep)).packet_hops;
        assert_eq!(hops(false), 10 * exchanges);
        assert_eq!(hops(true), 4 * exchanges + 6);
    }
}

/// Given no number of exchanges, expect one every 1.1 s (a fetch takes a second) from 1 s to the
/// end of the run at 60 s.
#[test]
fn unlimited_exchanges_end_with_the_run() {
    let mut workload = requests(1, 1, false);
    workload["exchanges"] = Value::Null;
    let outcome = run(&plan(HALF_SECOND, 1, vec![flow("web", 0, "forward", SECOND, &workload)]), 1);
    // The last one starts at 1 s + 53 * 1.1 s = 59.3 s and does not finish.
    assert_eq!(outcome.table("exchanges").expect("there").len(), 54);
    assert_eq!(column(outcome.table("flows").expect("there"), "exchanges"), [53]);
}

/// Given the same flow over paths with and without loss, expect the same sizes: they have their own
/// random stream.
#[test]
fn response_sizes_do_not_depend_on_the_path() {
    let mut workload = requests(1, 30, false);
    workload["response_bytes"] = json!({
        "kind": "pareto", "min": 2_000, "shape": 1.2, "max": 200_000,
    });
    let sizes = |loss| {
        let path = Path { loss, seconds: 3_600, ..HALF_SECOND };
        let outcome = run(&plan(path, 1, vec![flow("web", 0, "forward", 0, &workload)]), 5);
        assert!(outcome.completed);
        column(outcome.table("exchanges").expect("there"), "response_bytes")
    };
    assert_eq!(sizes(0.0), sizes(0.02));
    assert!(sizes(0.0).windows(2).any(|pair| pair[0] != pair[1]));
}
