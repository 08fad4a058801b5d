//! Requests and responses: every time from the number of round trips.

use bentpipe_sim::Outcome;
use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, SECOND, column, flow, plan, run, tcp};

const HALF_SECOND: Path = Path { rtt_ms: 500, ..CLEAR };

/// Requests of 300 bytes, answered by so many full segments, 100 ms apart.
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

/// The column of the exchanges in milliseconds. At 10 Gbit/s, 70 segments take 84 microseconds.
fn millis(outcome: &Outcome, name: &str) -> Vec<u64> {
    let times = column(outcome.table("exchanges").expect("there"), name);
    times.into_iter().map(|nanos| nanos / MILLI).collect()
}

/// A round trip for the handshake, and the request goes with its last ACK; then the response comes in
/// rounds of 10, 20 and 40 segments: three and a half round trips after that half of one. The next
/// fetch does all that again. Whichever end is at the hub.
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

/// On a connection that stays open, the second request needs no handshake. The last round of the first
/// response was of 40 segments; a window grows only while it is below twice what is in flight, so by
/// 14: what it lets out at once is more than 40 and less than 70. So two rounds instead of three.
#[test]
fn a_kept_connection_saves_the_handshake_and_keeps_its_window() {
    let outcome = run_one("forward", &requests(70, 2, true));
    assert_eq!(millis(&outcome, "start_ns"), [1_000, 3_100]);
    assert_eq!(millis(&outcome, "first_byte_ns"), [2_000, 3_600]);
    assert_eq!(millis(&outcome, "finished_ns"), [3_000, 4_100]);
    let exchanges = outcome.table("exchanges").expect("there");
    let established = exchanges.column("established_ns").expect("there");
    assert_eq!(established.integer(1), None, "nothing was opened for the second");
}

/// A fetch: SYN, SYN-ACK, request, its ACK, response, its ACK, and a FIN and an ACK each way. On one
/// connection, the four of handshake and close but two count once.
#[test]
fn every_packet_of_an_exchange_is_counted() {
    for exchanges in [1, 3, 40] {
        let hops = |keep| run_one("forward", &requests(1, exchanges, keep)).packet_hops;
        assert_eq!(hops(false), 10 * exchanges);
        assert_eq!(hops(true), 4 * exchanges + 6);
    }
}

/// Without a number of exchanges, they go on to the end of the run: one in 1.1 s (a fetch takes a
/// second) from 1 s to 60 s.
#[test]
fn exchanges_without_a_number_end_with_the_run() {
    let mut workload = requests(1, 1, false);
    workload["exchanges"] = Value::Null;
    let outcome = run(&plan(HALF_SECOND, 1, vec![flow("web", 0, "forward", SECOND, &workload)]), 1);
    // 1 s + 53 * 1.1 s = 59.3 s is the start of the last, which does not finish.
    assert_eq!(outcome.table("exchanges").expect("there").len(), 54);
    assert_eq!(column(outcome.table("flows").expect("there"), "exchanges"), [53]);
}

/// Think times and sizes are the same whatever the path, because each has a stream of its own: a
/// lossy path changes when things happen, not what is asked for.
#[test]
fn what_is_asked_for_does_not_depend_on_the_path() {
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
