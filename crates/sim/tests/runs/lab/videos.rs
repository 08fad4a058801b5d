//! Video players: start-up time and stalls derived on paper.

use bentpipe_sim::Outcome;
use serde_json::{Value, json};

use super::{CLEAR, MILLI, Path, SECOND, column, flow, plan, run, tcp, to_f64};

/// Media in segments of 4 s and of `bytes`, with a buffer of 12 s.
fn video(bytes: u64, media_seconds: u64, start_up_seconds: u64) -> Value {
    json!({
        "kind": "video", "request_bytes": 400, "server": tcp(json!({})), "client": tcp(json!({})),
        "media": {
            "rate_bps": 2 * bytes, "duration_ns": media_seconds * SECOND, "segment_ns": 4 * SECOND,
            "buffer_ns": 12 * SECOND, "start_up_ns": start_up_seconds * SECOND,
        },
    })
}

/// 70 full segments of TCP: in slow start 10, 20 and 40.
const THREE_ROUNDS: u64 = 70 * 1_460;

fn run_one(path: Path, heading: &str, workload: &Value) -> Outcome {
    let outcome = run(&plan(path, 1, vec![flow("lecture", 0, heading, SECOND, workload)]), 1);
    assert!(outcome.completed);
    outcome
}

fn figure(outcome: &Outcome, name: &str) -> u64 {
    column(outcome.table("flows").expect("there"), name)[0]
}

/// Start-up time, number and time of stalls and media, in milliseconds.
fn millis(outcome: &Outcome) -> [u64; 4] {
    let [start_up, stalls, stalled, played] =
        ["start_up_time_ns", "stalls", "stalled_ns", "played_ns"].map(|name| figure(outcome, name));
    [start_up / MILLI, stalls, stalled / MILLI, played / MILLI]
}

/// Given a round trip of 500 ms, expect the first frame after one for the handshake and three for a
/// segment of 10 + 20 + 40 packets, in both directions. Given two segments before the first frame, expect
/// one round trip more: the window has grown from 10 to 80. The flow ends with the last frame.
#[test]
fn start_up_takes_a_handshake_and_the_rounds_of_slow_start() {
    let path = Path { rtt_ms: 500, ..CLEAR };
    for heading in ["forward", "return"] {
        let outcome = run_one(path, heading, &video(THREE_ROUNDS, 22, 4));
        assert_eq!(millis(&outcome), [2_000, 0, 0, 22_000]);
        let end_ms = outcome.end.as_nanos() / MILLI;
        assert_eq!(end_ms, 1_000 + 2_000 + 22_000, "start, start-up and media");
        let sizes = column(outcome.table("exchanges").expect("there"), "response_bytes");
        assert_eq!(sizes[..5], [THREE_ROUNDS; 5]);
        assert_eq!(sizes[5..], [THREE_ROUNDS / 2], "22 s are 5 segments of 4 s and one of 2 s");
        assert_eq!(figure(&outcome, "delivered_bytes"), 11 * THREE_ROUNDS / 2);
    }
    let outcome = run_one(path, "forward", &video(THREE_ROUNDS, 22, 8));
    assert_eq!(millis(&outcome), [2_500, 0, 0, 22_000]);
}

/// Given a buffer of 12 s, expect the requests of the first three segments one after the other, and then
/// one whenever 8 s are left: at 4, 8 and 12 s of media.
#[test]
fn requests_follow_the_play_out() {
    let path = Path { rtt_ms: 100, ..CLEAR };
    let outcome = run_one(path, "forward", &video(THREE_ROUNDS, 24, 4));
    let starts = column(outcome.table("exchanges").expect("there"), "start_ns");
    let starts: Vec<_> = starts.into_iter().map(|nanos| nanos / MILLI).collect();
    // The first frame is played at 1.4 s; the second segment takes one round.
    assert_eq!(starts, [1_000, 1_400, 1_500, 5_400, 9_400, 13_400]);
}

/// Given a link with a third more than the rate of the media, expect no stall.
#[test]
fn a_faster_link_gives_no_stall() {
    let path = Path { rate_bps: 4_000_000, rtt_ms: 500, seconds: 90, ..CLEAR };
    let [_, stalls, stalled, played] = millis(&run_one(path, "forward", &video(1_500_000, 60, 4)));
    assert_eq!([stalls, stalled, played], [0, 0, 60_000]);
}

/// Given a link of 2 Mbit/s and media of 3 Mbit/s, expect a segment of 4 s to take a round trip and the
/// time of its packets, T = 6.26 s: each of the others stalls the player for T - 4 s. For long media
/// the stall ratio is 1 - 4 s / T, which is 1 - R / r for a goodput of R.
#[test]
fn a_slower_link_gives_the_stall_ratio_of_its_goodput() {
    let path = Path { rate_bps: 2_000_000, rtt_ms: 100, seconds: 1_000, ..CLEAR };
    let segments = 100;
    let outcome = run_one(path, "forward", &video(1_500_000, 4 * segments, 4));
    let [start_up, stalls, stalled, played] = millis(&outcome);
    let each_ms = 100.0 + 1.5e6 * 1_500.0 / 1_460.0 * 8.0 / 2e6 * 1e3;
    let expected_ms = to_f64(segments - 1) * (each_ms - 4_000.0);
    assert_eq!([stalls, played], [segments - 1, 4_000 * segments]);
    assert!((to_f64(stalled) / expected_ms - 1.0).abs() < 0.01, "{stalled} ms, not {expected_ms}");
    let ratio = to_f64(stalled) / to_f64(stalled + played);
    let arrived_ns = figure(&outcome, "last_delivery_ns") - SECOND;
    let goodput_bps = 8.0 * to_f64(figure(&outcome, "delivered_bytes")) / to_f64(arrived_ns) * 1e9;
    assert!((ratio - (1.0 - goodput_bps / 3e6)).abs() < 0.01, "{ratio}, {goodput_bps} bit/s");
    assert!((ratio - (1.0 - 4_000.0 / each_ms)).abs() < 0.005, "{ratio}");
    assert!((6_200..7_000).contains(&start_up), "{start_up} ms: a segment, after slow start");
}

/// An outage from 9 s on, for these seconds, of a link with a round trip of 100 ms.
fn outage(seconds: u64) -> Outcome {
    let path = Path { rtt_ms: 100, ..CLEAR };
    let mut plan =
        plan(path, 1, vec![flow("lecture", 0, "forward", SECOND, &video(THREE_ROUNDS, 40, 4))]);
    for direction in 0..2 {
        plan["directions"][direction]["channel"] = json!({"kind": "error_series", "steps": [
            {"at_ns": 0, "bit_error_rate": 0.0, "loss_rate": 0.0},
            {"at_ns": 9 * SECOND, "bit_error_rate": 0.0, "loss_rate": 1.0},
            {"at_ns": (9 + seconds) * SECOND, "bit_error_rate": 0.0, "loss_rate": 0.0},
        ]});
    }
    let outcome = run(&plan, 1);
    assert!(outcome.completed);
    outcome
}

/// Given 8 s of media in the buffer when a request is lost at 9.4 s, and timeouts of 1, 2, 4 and 8 s,
/// expect no stall if the third retransmission arrives, at 16.4 s: the outage ended before. If only the
/// fourth one does, at 24.4 s, expect a stall from 17.4 s to 24.7 s: after an idle time a sender starts with
/// its initial window (RFC 5681, section 4.1), so that the segment takes three round trips.
#[test]
fn an_outage_stalls_a_player_when_its_buffer_is_empty() {
    assert_eq!(millis(&outage(2)), [400, 0, 0, 40_000]);
    assert_eq!(millis(&outage(7)), [400, 0, 0, 40_000]);
    assert_eq!(millis(&outage(10)), [400, 1, 7_300, 40_000]);
}

/// Given a run that ends during a stall, expect the time of the stall until then; given one that ends
/// before the first frame, expect no start-up time.
#[test]
fn figures_end_with_the_run() {
    let path = Path { rate_bps: 2_000_000, rtt_ms: 100, seconds: 13, ..CLEAR };
    let ended = |seconds| {
        let path = Path { seconds, ..path };
        let flow = flow("lecture", 0, "forward", SECOND, &video(1_500_000, 400, 4));
        run(&plan(path, 1, vec![flow]), 1)
    };
    let outcome = ended(13);
    let [start_up, stalls, stalled, played] = millis(&outcome);
    assert_eq!([stalls, played], [1, 4_000]);
    assert!((12_000 - start_up - played - 1..=12_000 - start_up - played).contains(&stalled));
    let flows = ended(5).table("flows").expect("there").clone();
    assert_eq!(flows.column("start_up_time_ns").expect("there").integer(0), None);
    assert_eq!(column(&flows, "played_ns"), [0]);
}
