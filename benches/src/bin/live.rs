//! Measures the link in real time and prints JSON: how much one TCP flow and small packets get through,
//! beside a loop that only copies, and how exact the delay is.
//!
//! Usage: `live [SECONDS]`, as root: how long each figure is measured. The two paths take turns, and
//! the best of each counts, because other programs on the machine only ever slow them down.

#![expect(clippy::print_stdout, reason = "the figures are this program's output")]

use bentpipe_core::time::Duration;
use bentpipe_live::LabError;
use bentpipe_live::clock::Clock;
use bentpipe_live::lab::{Config, Lab};
use bentpipe_live::lateness::Limits;
use bentpipe_live::measure::{
    Bare, Path, Stream, errors_ns, measure, plain_link, small_packets_per_second,
    tcp_bits_per_second, while_running,
};
use bentpipe_sim::Side;
use serde_json::{Value, json};

const ROUNDS: usize = 3;
/// Faster than anything here: the link itself does not limit.
const WIDE_BPS: u64 = 50_000_000_000;
const DELAY: Duration = Duration::from_millis(20);
/// The link's share that the streams of the delay table take: a link that is full has no time to
/// make up for a moment in which its queue was not seen.
const LOAD: f64 = 0.99;

fn main() -> Result<(), LabError> {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let time = Duration::from_secs(seconds);
    let tcp = compare(|path| tcp_bits_per_second(path, Side::World, time))?;
    let small = compare(|path| small_packets_per_second(path, Side::World, time))?;
    let mut delays = Vec::new();
    // Packets of 100 bytes, 10,000 a second, over one hop and over three in one process.
    for hops in [1, 3] {
        delays.push(delay(100_000_000, hops, 100, Duration::from_micros(100), time)?);
    }
    for rate_bps in [1_000_000, 20_000_000, 100_000_000, 500_000_000] {
        let interval = 1_500.0 * 8e9 / (rate_bps as f64 * LOAD);
        delays.push(delay(rate_bps, 1, 1_500, Duration::from_nanos(interval as u64), time)?);
    }
    let result = json!({ "tcp_bits_per_second": tcp, "small_packets_per_second": small,
                         "delay_errors": delays });
    println!("{result:#}");
    Ok(())
}

fn config(rate_bps: u64, delay: Duration, hops: usize) -> Config {
    Config {
        plans: vec![plain_link(rate_bps, delay, 0.0); hops],
        seed: 1,
        mtu: 1_500,
        tap: false,
        settings: Default::default(),
        limits: Limits::default(),
    }
}

/// A figure of a lab and of a bare loop, in turns.
fn compare(figure: impl Fn(&dyn Path) -> Result<f64, LabError>) -> Result<Value, LabError> {
    let (mut lab_best, mut bare_best) = (0.0_f64, 0.0_f64);
    for _ in 0..ROUNDS {
        let config = config(WIDE_BPS, Duration::ZERO, 1);
        bare_best = bare_best.max(figure(&Bare::up(&config)?)?);
        lab_best = lab_best.max(figure(&Lab::up(config)?)?);
    }
    Ok(json!({ "lab": lab_best, "bare": bare_best, "ratio": lab_best / bare_best }))
}

fn delay(
    rate_bps: u64,
    hops: usize,
    packet_bytes: usize,
    interval: Duration,
    time: Duration,
) -> Result<Value, LabError> {
    let lab = Lab::up(config(rate_bps, DELAY, hops))?;
    let packets = (time.as_nanos() / interval.as_nanos()).max(100);
    let stream = Stream { from: Side::World, packet_bytes, interval, packets };
    let seen = while_running(&lab, || measure(&lab, stream, Clock::start()))?;
    let links = vec![(rate_bps, DELAY); hops];
    let mut errors = errors_ns(&seen, packet_bytes as u64 * 8, &links);
    errors.sort_unstable();
    let quantile = |share: f64| errors[((errors.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    let report = lab.report();
    Ok(json!({
        "rate_bps": rate_bps, "hops": hops, "packet_bytes": packet_bytes,
        "packets": packets, "lost": packets - seen.len() as u64,
        "error_us": { "min": quantile(0.0), "p50": quantile(0.5), "p99": quantile(0.99),
                      "p999": quantile(0.999), "max": quantile(1.0) },
        "lateness_us": { "p50": report.punctuality.lateness.quantile(0.5).as_nanos() as f64 / 1e3,
                         "p99": report.punctuality.lateness.quantile(0.99).as_nanos() as f64 / 1e3 },
        "invalid": report.invalid,
    }))
}
