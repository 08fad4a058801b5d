//! Sharing between flows: terminals, processors, priorities.

use bentpipe_sim::Outcome;
use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, SECOND, column, flow, plan, run};

/// Datagrams of 972 bytes of payload, 1,000 with their headers, for ten seconds.
fn datagrams(a_second: u64) -> Value {
    json!({
        "kind": "constant_rate", "rate_bps": 972 * 8 * a_second, "payload_bytes": 972,
        "duration_ns": 10 * SECOND,
    })
}

fn received(outcome: &Outcome) -> Vec<u64> {
    column(outcome.table("flows").expect("there"), "received_segments")
}

const SLOW: Path = Path { rate_bps: 800_000, rtt_ms: 500, queue_bytes: Some(20_000), ..CLEAR };

/// Given two terminals with 100 datagrams per second each, which fill a link of 800 kbit/s, expect
/// each return direction to carry all of its own. The forward direction is shared: of 2,000
/// datagrams it starts one every 10 ms until 9.99 s, when 20 are queued, and drops the rest.
#[test]
fn terminals_share_only_the_forward_direction() {
    let run_both = |heading| {
        let flows = (0..2).map(|terminal| {
            flow(&format!("cbr-{terminal}"), terminal, heading, 0, &datagrams(100))
        });
        run(&plan(SLOW, 2, flows.collect()), 1)
    };
    assert_eq!(received(&run_both("return")), [1_000, 1_000]);
    let forward = run_both("forward");
    assert_eq!(received(&forward).iter().sum::<u64>(), 1_000 + 20);
    let directions = forward.table("directions").expect("there");
    assert_eq!(column(directions, "dropped_queue_full_packets"), [1_000 - 20, 0, 0]);
}

/// Given 100 datagrams per second through a processor of 60 per second, expect it to forward 60 per
/// second, and at the end its buffer of 5 and the one in service, and to drop the rest. The traffic
/// of the other terminal does not pass it.
#[test]
fn a_slow_processor_drops_what_it_cannot_forward() {
    let flows =
        (0..2).map(|n| flow(&format!("cbr-{n}"), n, "forward", 0, &datagrams(100))).collect();
    let mut plan = plan(CLEAR, 2, flows);
    plan["gateways"][2]["functions"] = json!([{
        "kind": "processor", "packets_per_second": 60, "per_byte_ns": 0, "buffer_packets": 5,
    }]);
    let outcome = run(&plan, 1);
    assert_eq!(received(&outcome)[0], 1_000);
    let slow = received(&outcome)[1];
    assert!((600..=606).contains(&slow), "{slow}");
    let processors = outcome.table("processors").expect("there");
    assert_eq!(column(processors, "processor"), [2]);
    assert_eq!(column(processors, "received_link_packets"), [1_000]);
    assert_eq!(column(processors, "forwarded_link_packets"), [slow]);
    assert_eq!(column(processors, "dropped_link_packets"), [1_000 - slow]);
    assert_eq!(column(processors, "received_lan_packets"), [0]);
    let causes = column(outcome.table("directions").expect("there"), "dropped_queue_full_packets");
    assert_eq!(causes, [0, 0, 0]);
}

/// Given 200 datagrams per second on a link for 100 per second, with 4 % of the frames corrupted, and a
/// run that stops halfway, expect each datagram to be received, lost for one of the two causes, or held by
/// the link.
#[test]
fn every_datagram_is_received_lost_or_in_transit() {
    let path = Path { loss: 0.04, seconds: 5, ..SLOW };
    let outcome = run(&plan(path, 1, vec![flow("cbr", 0, "forward", 0, &datagrams(200))]), 1);
    let (flows, directions) = (outcome.table("flows"), outcome.table("directions"));
    let (flows, directions) = (flows.expect("there"), directions.expect("there"));
    let [sent, received, corrupted, full] = [
        "expected_segments",
        "received_segments",
        "lost_bit_error_packets",
        "lost_queue_full_packets",
    ]
    .map(|name| column(flows, name)[0]);
    assert_eq!(sent, 1_000 + 1, "one at 0 s, the last at 5 s");
    assert_eq!(sent, received + corrupted + full + column(directions, "held_packets")[0]);
    assert!(corrupted > 0 && full > 400, "{corrupted} corrupted, {full} dropped");
    assert_eq!(column(directions, "dropped_bit_error_packets")[0], corrupted);
}

/// Given a link for 100 datagrams per second and 60 per second in each of two classes, expect the
/// first class to lose none and to wait for at most one frame of the second class (10 ms, and 10 ms
/// for its own). The second class gets the other 40, and at the end those in the queue.
#[test]
fn the_first_class_is_served_before_the_second() {
    let mut flows = vec![
        flow("second", 0, "forward", 0, &datagrams(100)),
        flow("first", 0, "forward", 0, &datagrams(60)),
    ];
    flows[0]["priority"] = json!(1);
    let mut plan = plan(SLOW, 1, flows);
    plan["directions"][0]["queue"] = json!({
        "discipline": "strict_priority", "limit": {"unit": "packets", "value": 20}, "classes": 2,
    });
    let outcome = run(&plan, 1);
    let [second, first] = received(&outcome)[..] else { panic!("two flows") };
    assert_eq!(first, 600);
    assert!((400..=421).contains(&second), "{second}");
    let delays = column(outcome.table("flows").expect("there"), "one_way_delay_max_ns");
    assert!(delays[1] <= 270 * MILLI, "{delays:?}");
    assert!(delays[0] >= 700 * MILLI, "20 packets are queued, at 40 per second: {delays:?}");
}
