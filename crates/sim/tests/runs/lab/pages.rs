//! Web pages: load times derived from the number of round trips, and from bytes.

use bentpipe_sim::Outcome;
use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, SECOND, column, flow, merge, plan, run, tcp, to_f64};

const HALF_SECOND: Path = Path { rtt_ms: 500, ..CLEAR };

/// A page of a document and objects of 1,000 bytes each.
fn page(objects: u64, change: Value) -> Value {
    let thousand = json!({"kind": "constant", "value": 1_000});
    let mut page = json!({
        "kind": "web_page", "pages": 1, "think_ns": {"kind": "constant", "value": 0},
        "objects": {"kind": "constant", "value": objects}, "document_bytes": thousand,
        "object_bytes": thousand, "request_bytes": 400, "http": "2", "connections": 6,
        "tls": "1.3", "dns": true, "server": tcp(json!({})), "client": tcp(json!({})),
    });
    merge(&mut page, change);
    page
}

fn run_one(path: Path, heading: &str, workload: &Value) -> Outcome {
    let outcome = run(&plan(path, 1, vec![flow("web", 0, heading, SECOND, workload)]), 1);
    assert!(outcome.completed);
    outcome
}

fn of_pages(outcome: &Outcome, name: &str) -> Vec<u64> {
    column(outcome.table("pages").expect("there"), name)
}

/// The time of the first page in milliseconds. At 10 Gbit/s, 100 kB take 80 microseconds.
fn load_ms(workload: &Value) -> u64 {
    let outcome = run_one(HALF_SECOND, "forward", workload);
    (of_pages(&outcome, "finished_ns")[0] - of_pages(&outcome, "start_ns")[0]) / MILLI
}

/// Given small objects and a round-trip time of 0.5 s, expect a round trip each for the DNS, TCP,
/// the document and all objects by HTTP/2, and those of TLS: RFC 8446 has one, RFC 5246 two.
#[test]
fn a_page_takes_the_round_trips_of_its_handshakes() {
    let times = |change| load_ms(&page(5, change));
    assert_eq!(times(json!({})), 500 * (1 + 1 + 1 + 1 + 1));
    assert_eq!(times(json!({"tls": "1.2"})), 500 * (1 + 1 + 2 + 1 + 1));
    assert_eq!(times(json!({"tls": null})), 500 * (1 + 1 + 1 + 1));
    assert_eq!(times(json!({"dns": false, "tls": null})), 500 * (1 + 1 + 1));
    assert_eq!(load_ms(&page(0, json!({}))), 500 * (1 + 1 + 1 + 1));
}

/// Expect each column in its round trip, in either direction.
#[test]
fn the_events_of_a_page_are_recorded() {
    for heading in ["forward", "return"] {
        let outcome = run_one(HALF_SECOND, heading, &page(5, json!({})));
        let millis = |name| of_pages(&outcome, name)[0] / MILLI;
        assert_eq!(millis("start_ns"), 1_000);
        assert_eq!(millis("resolved_ns"), 1_500);
        assert_eq!(millis("established_ns"), 2_500);
        assert_eq!(millis("first_byte_ns"), 3_000);
        assert_eq!(millis("document_ns"), 3_000);
        assert_eq!(millis("finished_ns"), 3_500);
        assert_eq!(of_pages(&outcome, "response_bytes"), [6_000]);
        assert_eq!(of_pages(&outcome, "connections"), [1]);
        let flows = outcome.table("flows").expect("there");
        assert_eq!(column(flows, "exchanges"), [1]);
        // The flights of TLS 1.3 count as application bytes.
        assert_eq!(column(flows, "delivered_bytes"), [6_000 + 3_076]);
        assert_eq!(column(flows, "retransmitted_segments"), [0]);
    }
}

/// Given H connections of HTTP/1.1, expect k rounds of objects: k on the first connection, and on
/// each other one k less the round trips of TCP and TLS.
#[test]
fn http_1_1_takes_a_round_for_each_object_of_a_connection() {
    let rounds = |objects: u64, connections: u64, handshakes: u64| {
        (0..)
            .find(|&k: &u64| k + (connections - 1) * k.saturating_sub(handshakes) >= objects)
            .expect("some k is enough")
    };
    for (objects, connections) in [(1, 6), (3, 6), (9, 6), (40, 6), (7, 1), (12, 2)] {
        for (tls, of_tls) in [(json!(null), 0), (json!("1.3"), 1), (json!("1.2"), 2)] {
            let change = json!({"http": "1.1", "connections": connections, "tls": tls});
            let expected = 3 + of_tls + rounds(objects, connections, 1 + of_tls);
            assert_eq!(
                load_ms(&page(objects, change)),
                500 * expected,
                "{objects} objects, {connections} connections, TLS {tls}"
            );
        }
    }
}

/// Given a document of 70 segments without DNS and TLS, expect a handshake and three rounds of 10,
/// 20 and 40 segments.
#[test]
fn a_large_document_takes_the_rounds_of_slow_start() {
    let change = json!({
        "document_bytes": {"kind": "constant", "value": 70 * 1_460}, "dns": false, "tls": null,
    });
    assert_eq!(load_ms(&page(0, change)), 500 * (1 + 3));
}

/// Given pages of 1 MB at 1 Mbit/s, expect no page faster than its bytes at the rate, and less than
/// 10 % more for headers (40 of 1,500 bytes) and the round trips of 10 ms.
#[test]
fn a_page_takes_at_least_its_bytes_at_the_rate() {
    let path = Path { rate_bps: 1_000_000, rtt_ms: 10, ..CLEAR };
    for http in ["1.1", "2"] {
        let change = json!({"http": http, "object_bytes": {"kind": "constant", "value": 10_000}});
        let outcome = run_one(path, "forward", &page(100, change));
        let time = of_pages(&outcome, "finished_ns")[0] - of_pages(&outcome, "start_ns")[0];
        let bytes = of_pages(&outcome, "response_bytes")[0];
        assert_eq!(bytes, 1_001_000);
        let least = to_f64(bytes * 8 * 1_000);
        let ratio = to_f64(time) / least;
        assert!((1.0..1.1).contains(&ratio), "HTTP/{http}: {ratio}");
    }
}

/// Given pages without a number and 1 s between them, expect a page every 3.5 s until the end of
/// the run at 60 s.
#[test]
fn unlimited_pages_end_with_the_run() {
    let change = json!({"pages": null, "think_ns": {"kind": "constant", "value": SECOND}});
    let workload = page(5, change);
    let outcome = run(&plan(HALF_SECOND, 1, vec![flow("web", 0, "forward", SECOND, &workload)]), 1);
    // The last one starts at 1 s + 16 * 3.5 s = 57 s, and finishes at 59.5 s.
    assert_eq!(outcome.table("pages").expect("there").len(), 17);
    assert_eq!(column(outcome.table("flows").expect("there"), "exchanges"), [17]);
}

/// Given the same pages over paths with and without loss, expect the same content: both ends draw
/// it from streams of its own, which the path does not change.
#[test]
fn the_content_of_pages_does_not_depend_on_the_path() {
    let change = json!({
        "pages": 20, "objects": {"kind": "exponential", "mean": 8},
        "document_bytes": {"kind": "lognormal", "median": 5_000, "sigma": 1.0, "max": 100_000},
        "object_bytes": {"kind": "pareto", "min": 2_000, "shape": 1.2, "max": 200_000},
    });
    let workload = page(0, change);
    let content = |loss| {
        let path = Path { loss, seconds: 3_600, ..HALF_SECOND };
        let outcome = run(&plan(path, 1, vec![flow("web", 0, "forward", 0, &workload)]), 5);
        assert!(outcome.completed);
        (of_pages(&outcome, "objects"), of_pages(&outcome, "response_bytes"))
    };
    assert_eq!(content(0.0), content(0.05));
    assert!(content(0.0).1.windows(2).any(|pair| pair[0] != pair[1]));
}
