//! Measures the link in real time and writes JSON: how much one TCP flow and small packets get through,
//! beside a loop that only copies, and how exact delay and rate are.
//!
//! Usage: `bentpipe-bench-live OUT.json [SECONDS]`, as root: for how long each delay is measured. Of
//! what gets through, up to five seconds at a time: the two paths take turns, and the best of each
//! counts, because other programs on the machine only ever slow them down.

use std::process::ExitCode;

use bentpipe_core::time::Duration;
use bentpipe_live::LabError;
use bentpipe_live::lab::{Config, Lab};
use bentpipe_live::measure::{
    Bare, Load, Path, delay_errors, small_packets_per_second, tcp_bits_per_second, wide,
};
use bentpipe_sim::Side;
use serde_json::{Value, json};

const ROUNDS: usize = 3;
const THROUGHPUT_MAX: Duration = Duration::from_secs(5);
const DELAY: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(out) = arguments.first() else {
        eprintln!("usage: bentpipe-bench-live OUT.json [SECONDS]");
        return ExitCode::from(2);
    };
    let seconds = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let measured = measure(Duration::from_secs(seconds));
    match measured.map(|result| std::fs::write(out, format!("{result:#}\n"))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("bentpipe-bench-live: {out}: {error}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("bentpipe-bench-live: {error}");
            ExitCode::from(3)
        }
    }
}

fn measure(time: Duration) -> Result<Value, LabError> {
    let turn = time.min(THROUGHPUT_MAX);
    let tcp = compare(&wide(false), |path| tcp_bits_per_second(path, Side::World, turn))?;
    let joined = compare(&wide(true), |path| tcp_bits_per_second(path, Side::World, turn))?;
    let small = compare(&wide(false), |path| small_packets_per_second(path, Side::World, turn))?;
    let often = Duration::from_micros(100);
    let sparse = |hops| Load {
        rate_bps: 100_000_000,
        delay: DELAY,
        hops,
        packet_bytes: 100,
        interval: often,
    };
    let full = [1, 20, 100, 500].map(|mbps| Load::full(mbps * 1_000_000, DELAY));
    let loads = [sparse(1), sparse(3)].into_iter().chain(full);
    let delays = loads.map(|load| delay(load, time)).collect::<Result<Vec<_>, _>>()?;
    Ok(json!({ "tcp_bits_per_second": tcp, "tcp_super_packets_bits_per_second": joined,
               "small_packets_per_second": small,
               "delay_errors": delays }))
}

/// A figure of a lab and of a bare loop, in turns.
fn compare(
    config: &Config,
    figure: impl Fn(&dyn Path) -> Result<f64, LabError>,
) -> Result<Value, LabError> {
    let (mut lab_best, mut bare_best) = (0.0_f64, 0.0_f64);
    for _ in 0..ROUNDS {
        bare_best = bare_best.max(figure(&Bare::up(config)?)?);
        lab_best = lab_best.max(figure(&Lab::up(config.clone())?)?);
    }
    Ok(json!({ "lab": lab_best, "bare": bare_best, "ratio": lab_best / bare_best }))
}

fn delay(load: Load, time: Duration) -> Result<Value, LabError> {
    let errors = delay_errors(load, time)?;
    let micros = |nanos: i64| nanos as f64 / 1e3;
    Ok(json!({
        "rate_bps": load.rate_bps, "hops": load.hops, "packet_bytes": load.packet_bytes,
        "packets": errors.packets, "lost": errors.lost,
        "error_us": { "min": micros(errors.min_ns), "p50": micros(errors.p50_ns),
                      "p99": micros(errors.p99_ns), "max": micros(errors.max_ns) },
        "rate_error_percent": errors.rate_error * 100.0,
        "lateness_p99_us": errors.lateness_p99.as_nanos() as f64 / 1e3,
        "invalid": errors.invalid,
    }))
}
