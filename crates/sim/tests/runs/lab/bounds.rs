//! Throughput compared with its bounds.

use bentpipe_sim::Outcome;
use serde_json::{Value, json};

use super::{CLEAR, MSS, Path, SECOND, flow, run, tcp, to_f64};

/// Endless bulk flows, without packet events.
pub(super) fn plan(path: Path, tcp: &Value, flows: u64) -> Value {
    let workload = json!({
        "kind": "bulk", "sender": tcp, "receiver": tcp,
        "amount": {"unit": "duration_ns", "value": path.seconds * SECOND},
    });
    let flows = (0..flows)
        .map(|n| flow(&format!("bulk-{n}"), 0, "forward", n * 37_000_000, &workload))
        .collect();
    let mut plan = super::plan(path, 1, flows);
    plan["packet_events"] = json!(false);
    plan
}

/// Bytes delivered to a flow's application until the last sample at or before `at_ns`.
fn delivered(outcome: &Outcome, flow: u64, at_ns: u64) -> f64 {
    let samples = outcome.table("flow_samples").expect("sampled");
    let column = |name| samples.column(name).expect("a column");
    let value = |name, row| column(name).integer(row).expect("always there");
    let rows = (0..samples.len()).rev();
    let mut own = rows.filter(|&row| value("flow", row) == flow && value("time_ns", row) <= at_ns);
    own.next().map_or(0.0, |row| to_f64(value("delivered_bytes", row)))
}

/// Bytes per second in the last `part` of the run, in steady state.
pub(super) fn steady_rate(outcome: &Outcome, flow: u64, path: Path, part: f64) -> f64 {
    let end = path.seconds * SECOND;
    let start = end - path.rtt_ms * 1_000_000 * ((part * to_f64(end) / 1e6) as u64 / path.rtt_ms);
    let bytes = delivered(outcome, flow, end) - delivered(outcome, flow, start);
    bytes / (to_f64(end - start) / 1e9)
}

fn assert_near(what: &str, measured: f64, expected: f64, tolerance: f64) {
    let off = measured / expected - 1.0;
    assert!(off.abs() <= tolerance, "{what}: {measured:.1}, expected {expected:.1} ({off:+.3})");
}

/// Given a window of W, expect W bytes per round trip, in whole segments (RFC 9293, section
/// 3.8.6.2.1: sender-side silly window avoidance). The transmission takes microseconds here.
#[test]
fn a_small_window_gives_window_over_rtt() {
    for rtt_ms in [20, 100, 300, 600] {
        for window in [16_384u64, 65_535, 262_144] {
            let path = Path { rtt_ms, ..CLEAR };
            let tcp = tcp(json!({
                "receive_buffer_bytes": window, "receive_buffer_initial_bytes": window,
                "initial_window_segments": 200, "window_scaling": window > 65_535,
            }));
            let outcome = run(&plan(path, &tcp, 1), 1);
            let segments = (window / 1_460) * 1_460;
            let expected = to_f64(segments) / (to_f64(rtt_ms) / 1e3);
            let what = format!("{window} bytes over {rtt_ms} ms");
            assert_near(&what, steady_rate(&outcome, 0, path, 0.8), expected, 0.01);
        }
    }
}

/// Given a receive buffer that counts memory, expect the window of Linux (`tcp_win_from_space`): a
/// segment of 1,460 bytes takes 2,304 bytes of memory, a ratio of 162/256, so 409,600 bytes give
/// 259,200.
#[test]
fn a_buffer_of_memory_gives_its_window_over_rtt() {
    let path = Path { rtt_ms: 100, ..CLEAR };
    let mut tcp = tcp(json!({
        "receive_buffer_bytes": 409_600, "receive_buffer_initial_bytes": 409_600,
        "initial_window_segments": 200,
    }));
    tcp["receive_buffer_counts"] = "memory".into();
    tcp["stack"] = "linux".into();
    let outcome = run(&plan(path, &tcp, 1), 1);
    let expected = to_f64(259_200 / 1_460 * 1_460) / 0.1;
    assert_near("259,200 bytes", steady_rate(&outcome, 0, path, 0.8), expected, 0.01);
}

/// Bytes delivered after `rounds` rounds of data, which follow one round trip for the handshake.
fn after_rounds(outcome: &Outcome, path: Path, rounds: u64) -> f64 {
    // Round n is sent n round trips after the handshake and arrives half a round trip later.
    delivered(outcome, 0, path.rtt_ms * 1_000_000 * (1 + rounds) + path.rtt_ms * 250_000)
}

/// Given an ACK for each segment, expect n rounds from a window of w to send w (2^n - 1) segments
/// (RFC 5681, section 3.1).
#[test]
fn slow_start_doubles_each_round() {
    let path = Path { rtt_ms: 400, seconds: 10, ..CLEAR };
    for window in [1, 2, 4, 10] {
        let tcp = tcp(json!({"initial_window_segments": window}));
        let outcome = run(&plan(path, &tcp, 1), 1);
        for rounds in 0..8 {
            let expected = to_f64(window * ((1 << rounds) - 1)) * MSS;
            assert!((after_rounds(&outcome, path, rounds) - expected).abs() < 1.0);
        }
    }
}

/// Given an ACK for every second segment, expect rounds to grow by 3/2 with L = 1 (RFC 3465), and
/// by 2 without that limit. The number of ACKs per round is rounded up.
#[test]
fn slow_start_with_delayed_acks_grows_by_half() {
    let path = Path { rtt_ms: 400, seconds: 10, ..CLEAR };
    for (window, limit) in [(1, 1), (4, 1), (10, 1), (10, 65_535)] {
        let tcp = tcp(json!({
            "initial_window_segments": window, "delayed_ack_segments": 2,
            "slow_start_segments_per_ack": limit,
        }));
        let outcome = run(&plan(path, &tcp, 1), 1);
        let (mut total, mut round) = (0, window);
        for rounds in 0..8 {
            let expected = to_f64(total) * MSS;
            let measured = after_rounds(&outcome, path, rounds);
            assert!((measured - expected).abs() < 1.0, "{rounds} rounds: {measured} {expected}");
            total += round;
            round += if limit == 1 { round.div_ceil(2) } else { round };
        }
        let ratio = if limit == 1 { 1.5 } else { 2.0 };
        // Rounding adds at most half a segment per round, so s + 1 grows at most by the ratio.
        let rounds = (f64::powi(ratio, 8) - 1.0) / (ratio - 1.0);
        assert!(to_f64(total) >= to_f64(window) * rounds);
        assert!(to_f64(total) <= to_f64(window + 1) * rounds);
    }
}

/// Given a full link, expect goodput to be its rate times payload / (payload + 40 bytes of TCP/IP +
/// framing).
#[test]
fn goodput_of_a_full_link_is_its_rate_less_headers() {
    for (framing_bytes, timestamps) in [(0, false), (8, false), (8, true), (38, true)] {
        let path = Path {
            rate_bps: 2_000_000,
            rtt_ms: 500,
            framing_bytes,
            seconds: 100,
            queue_bytes: None,
            ..CLEAR
        };
        let window = 400_000;
        let tcp = tcp(json!({
            "timestamps": timestamps, "receive_buffer_bytes": window,
            "receive_buffer_initial_bytes": window,
        }));
        let outcome = run(&plan(path, &tcp, 1), 1);
        let payload = if timestamps { 1_448.0 } else { 1_460.0 };
        let expected = 250_000.0 * payload / (1_500.0 + to_f64(framing_bytes));
        assert_near("goodput", steady_rate(&outcome, 0, path, 0.5), expected, 0.005);
    }
}

/// Segments per round trip in a run with random loss.
fn segments_per_round(path: Path, tcp: &Value) -> f64 {
    let outcome = run(&plan(path, tcp, 1), 7);
    steady_rate(&outcome, 0, path, 0.95) * to_f64(path.rtt_ms) / 1e3 / MSS
}

/// Given random loss, expect a mean window of 1.25 / sqrt(p) within 15 %. Mathis, Semke, Mahdavi
/// and Ott (1997): a window that grows by a segment per round and is halved every 1/p segments
/// averages sqrt(3/2 / p) = 1.22 / sqrt(p) for regular losses, and 1.31 / sqrt(p) for independent
/// ones. Growth counts bytes, so delayed ACKs do not matter. A round in recovery adds no growth: up
/// to one in W/2 rounds, 12 % at 1 % loss. With at least 60 losses the relative error is about 0.4
/// / sqrt(losses), 5 %.
#[test]
fn random_loss_gives_the_square_root_formula() {
    for (loss, rtt_ms, seconds) in [
        (1e-4, 100, 600),
        (3e-4, 300, 1_500),
        (1e-3, 600, 2_000),
        (3e-3, 100, 600),
        (1e-2, 300, 900),
    ] {
        for change in [
            json!({}),
            json!({"delayed_ack_segments": 2, "delayed_ack_timeout_ns": 40_000_000}),
            json!({"prr": true, "rack_tlp": true}),
            json!({"sack": false}),
        ] {
            let path = Path { rtt_ms, loss, seconds, rate_bps: 1_000_000_000, ..CLEAR };
            let measured = segments_per_round(path, &tcp(change.clone()));
            let what = format!("loss {loss}, {rtt_ms} ms, {change}");
            assert_near(&what, measured, 1.25 / loss.sqrt(), 0.15);
        }
    }
}

/// Given growth that counts ACKs (RFC 5681, equation 3) and an ACK for every second segment, expect
/// growth of half a segment per round, so a window smaller by sqrt(2) (Mathis et al., with b = 2).
#[test]
fn counting_acks_costs_a_factor_of_root_two() {
    let change = json!({
        "delayed_ack_segments": 2, "delayed_ack_timeout_ns": 40_000_000,
        "avoidance_counting": "acks",
    });
    let path = Path { loss: 1e-3, seconds: 900, rate_bps: 1_000_000_000, ..CLEAR };
    let measured = segments_per_round(path, &tcp(change));
    assert_near("loss 1e-3", measured, 1.25 / (2.0 * path.loss).sqrt(), 0.20);
}

/// Padhye, Firoiu, Towsley and Kurose (1998), equation 32 without the window limit, in segments per
/// round trip, with `b` segments per ACK and `timeout` in round trips.
fn pftk(p: f64, b: f64, timeout: f64) -> f64 {
    let offset = (2.0 + b) / (3.0 * b);
    let window = offset + (8.0 * (1.0 - p) / (3.0 * b * p) + offset * offset).sqrt();
    let intact = |segments: f64| (segments * (-p).ln_1p()).exp();
    let by_timeout = ((1.0 - intact(3.0)) * (1.0 + intact(3.0) * (1.0 - intact(window - 3.0)))
        / (1.0 - intact(window)))
    .min(1.0);
    let doubling = 1.0 + p + 2.0 * p.powi(2) + 4.0 * p.powi(3) + 8.0 * p.powi(4);
    let sent = (1.0 - p) / p + window + by_timeout / (1.0 - p);
    let rounds = b / 2.0 * window + 1.0 + by_timeout * doubling * timeout / (1.0 - p);
    sent / rounds
}

/// Given heavy loss, expect a rate between PFTK and the square root formula. PFTK assumes that a
/// loss takes the rest of its round, so it counts too many timeouts for independent losses; the
/// square root formula counts no timeouts and no recovery. The tolerance is 10 % for random losses
/// and 4 % for a threshold that is not a multiple of the segment size (half a segment of 12 is
/// unused). Reno can be lower: it halves its window for each of two losses in a window, which is
/// one in nine at 1 %.
#[test]
fn heavy_loss_is_between_pftk_and_the_square_root_formula() {
    for (loss, rtt_ms) in [(1e-2, 100), (1e-2, 600), (2e-2, 300), (3e-2, 100), (3e-2, 600)] {
        for (control, sack, min) in
            [("newreno", true, 0.86), ("newreno", false, 0.86), ("reno", false, 0.77)]
        {
            let path = Path { rtt_ms, loss, seconds: 9 * rtt_ms, rate_bps: 1_000_000_000, ..CLEAR };
            let host = tcp(json!({"sack": sack, "congestion_control": control}));
            let measured = segments_per_round(path, &host);
            let low = min * pftk(loss, 1.0, 1_000.0 / to_f64(rtt_ms));
            let high = 1.1 * 1.31 / loss.sqrt();
            let what = format!("loss {loss}, {rtt_ms} ms, {control}, SACK {sack}");
            assert!((low..=high).contains(&measured), "{what}: {measured} not {low}..{high}");
        }
    }
}

/// Given random loss, expect CUBIC's response function (RFC 9438, section 5.1): with beta = 0.7 and
/// C =
/// 0.4, 1.054 RTT^0.75 / p^0.75 segments for regular losses, above the 122 segments of its Reno-friendly
/// region. Independent losses change the mean of a concave function by less than its spread; 60 losses
/// leave an error of 10 %.
#[test]
fn cubic_follows_its_response_function() {
    let path = Path { rtt_ms: 500, loss: 1e-4, seconds: 500, rate_bps: 1_000_000_000, ..CLEAR };
    let change = json!({"congestion_control": "cubic", "prr": true, "rack_tlp": true});
    let measured = segments_per_round(path, &tcp(change));
    let three_quarters = |x: f64| x.sqrt() * x.sqrt().sqrt();
    let expected = 1.054 * three_quarters(0.5 / path.loss);
    assert_near("cubic", measured, expected, 0.25);
}

/// Given two equal flows and a queue of one bandwidth-delay product, expect them to fill the link,
/// and Jain's index to be at least 0.9 (1: equal shares; 0.5: one flow has everything).
#[test]
fn equal_flows_share_equally() {
    for control in ["newreno", "cubic"] {
        let path = Path {
            rate_bps: 10_000_000,
            rtt_ms: 100,
            queue_bytes: Some(125_000),
            seconds: 300,
            ..CLEAR
        };
        let tcp = tcp(json!({"congestion_control": control, "prr": true, "rack_tlp": true}));
        let outcome = run(&plan(path, &tcp, 2), 3);
        let rates = [0, 1].map(|flow| steady_rate(&outcome, flow, path, 0.8));
        let sum = rates[0] + rates[1];
        let jain = sum * sum / (2.0 * (rates[0] * rates[0] + rates[1] * rates[1]));
        assert!(jain > 0.9, "{control}: {rates:?}");
        assert_near(control, sum, 1_250_000.0 * MSS / 1_500.0, 0.05);
    }
}

/// Given a transfer without loss, expect every packet to count once: SYN, SYN-ACK, each segment and
/// its ACK (the last segment carries the FIN), the receiver's FIN and its ACK.
#[test]
fn hops_count_every_packet_once() {
    for segments in [1u64, 2, 100] {
        let mut plan = plan(CLEAR, &tcp(json!({})), 1);
        plan["flows"][0]["workload"]["amount"] =
            json!({"unit": "bytes", "value": segments * 1_460});
        let outcome = run(&plan, 1);
        assert!(outcome.completed);
        assert_eq!(outcome.packet_hops, 2 * segments + 4);
    }
}
