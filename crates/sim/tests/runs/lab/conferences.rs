//! Conferences: which participants receive which streams.

use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, column, flow, plan, run};

/// A participant that sends 50 datagrams of 160 bytes per second.
fn voice(conference: u32, seconds: u64) -> Value {
    json!({
        "kind": "conference", "conference": conference, "rate_bps": 64_000, "payload_bytes": 160,
        "duration_ns": seconds * 1_000 * MILLI,
    })
}

/// Given N participants that send for the same time, expect each to receive N - 1 streams. A
/// datagram crosses its return direction once and the forward direction N - 1 times; from host to
/// host it crosses the hop twice.
#[test]
fn each_participant_receives_all_other_streams() {
    for participants in [2u64, 3, 7] {
        let flows = (0..participants)
            .map(|n| {
                flow(&format!("voice-{n}"), n as usize, "return", 3 * MILLI * n, &voice(1, 10))
            })
            .collect();
        let path = Path { rtt_ms: 500, ..CLEAR };
        let outcome = run(&plan(path, participants as usize, flows), 1);
        assert!(outcome.completed);
        let flows = outcome.table("flows").expect("there");
        let everyone = |value: u64| vec![value; participants as usize];
        assert_eq!(column(flows, "sent_segments"), everyone(500));
        assert_eq!(column(flows, "received_segments"), everyone(500 * (participants - 1)));
        assert_eq!(column(flows, "delivered_bytes"), everyone(80_000 * (participants - 1)));
        assert_eq!(outcome.packet_hops, 500 * participants * participants);
        for delay in column(flows, "one_way_delay_max_ns") {
            assert!((500 * MILLI..501 * MILLI).contains(&delay), "{delay}");
        }
    }
}

/// Given three participants on a forward direction that carries one of their streams only, expect each
/// datagram that the others sent to be received or lost, and all losses in the forward queue.
#[test]
fn a_participant_expects_what_the_others_send() {
    let flows = (0..3).map(|n| flow(&format!("voice-{n}"), n, "return", 0, &voice(1, 10)));
    // 50 datagrams of 188 bytes per second; six such streams are forwarded.
    let path = Path { rate_bps: 50 * 188 * 8, queue_bytes: Some(2_000), ..CLEAR };
    let outcome = run(&plan(path, 3, flows.collect()), 1);
    assert!(outcome.completed);
    let flows = outcome.table("flows").expect("there");
    let lost = column(flows, "lost_queue_full_packets");
    let received = column(flows, "received_segments");
    let sums: Vec<_> = lost.iter().zip(&received).map(|(lost, received)| lost + received).collect();
    assert_eq!(column(flows, "expected_segments"), [1_000; 3]);
    assert_eq!(sums, [1_000; 3]);
    let directions = outcome.table("directions").expect("there");
    let dropped = column(directions, "dropped_queue_full_packets");
    assert_eq!(dropped, [lost.iter().sum(), 0, 0, 0]);
}

/// Given two conferences at once with streams of different durations, expect each participant to
/// receive the datagrams of its own conference only.
#[test]
fn conferences_are_isolated() {
    let flows = [(1, 10), (2, 10), (1, 4), (2, 6), (1, 10)];
    let flows = flows.iter().enumerate().map(|(n, &(conference, seconds))| {
        flow(&format!("voice-{n}"), n, "return", 0, &voice(conference, seconds))
    });
    let outcome = run(&plan(CLEAR, 5, flows.collect()), 1);
    let received = column(outcome.table("flows").expect("there"), "received_segments");
    assert_eq!(received, [14, 6, 20, 10, 14].map(|seconds| 50 * seconds));
}

/// Given 7,100 participants that send one datagram at the same time, expect 7,100 times 7,099
/// copies at one instant, most of which the queue drops. The graph must not mistake this burst for
/// a loop.
#[test]
fn all_participants_can_send_at_once() {
    let participants = 7_100u64;
    let mut once = voice(1, 0);
    once["duration_ns"] = (20 * MILLI).into();
    let flows = (0..participants)
        .map(|n| flow(&format!("voice-{n}"), n as usize, "return", 0, &once))
        .collect();
    let path = Path { queue_bytes: Some(1_000), ..CLEAR };
    let mut plan = plan(path, participants as usize, flows);
    plan["packet_events"] = false.into();
    plan["sample_interval_ns"] = Value::Null;
    let outcome = run(&plan, 1);
    assert!(outcome.completed);
    let directions = outcome.table("directions").expect("always there");
    let of_forward = |name: &str| column(directions, name)[0];
    let copies = of_forward("sent_packets") + of_forward("dropped_queue_full_packets");
    assert_eq!(copies, participants * (participants - 1));
}
