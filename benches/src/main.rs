//! Measures packet-hops per CPU second of plans and writes `bench.json`.
//!
//! Usage: `bentpipe-bench OUT.json NAME=PLAN.json...`. With `--once PLAN.json...` it only runs
//! plans once, for profile-guided optimization. Each plan runs in several batches. The best one counts, because other programs can only slow a batch down.
//! CPU time and peak memory are from the kernel's accounting of this process. Each plan is measured
//! in a process of its own, so that the memory of one plan does not count for the next.

#![expect(clippy::print_stdout, reason = "the results are this program's output")]

use std::fs;
use std::process::{Command, ExitCode};

use bentpipe_sim::{Plan, Simulation};
use serde_json::{Map, Value, json};

/// The number of batches.
const BATCHES: u32 = 7;
/// The kernel accounts CPU time in ticks (1-4 ms), so a batch must be much longer.
const BATCH_SECONDS: f64 = 0.3;
/// How many starts are timed together, and for how long at least: one start is shorter than a tick.
const STARTS: u32 = 50;
const START_SECONDS: f64 = 0.1;
const SEED: u64 = 1;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((first, [plan])) if first == "--one" => one(plan),
        Some((first, plans)) if first == "--once" => plans.iter().try_for_each(|plan| once(plan)),
        Some((out, plans)) if !plans.is_empty() => all(out, plans),
        _ => Err("usage: bentpipe-bench OUT.json NAME=PLAN.json...".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bentpipe-bench: {message}");
            ExitCode::from(2)
        }
    }
}

/// Measures each plan in a process of its own and writes all results.
fn all(out: &str, plans: &[String]) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut results = Map::new();
    for argument in plans {
        let (name, plan) = argument.split_once('=').ok_or("expected NAME=PLAN.json")?;
        let output = Command::new(&program).args(["--one", plan]).output();
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let result: Value =
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        println!("{name}: {result}");
        results.insert(name.to_owned(), result);
    }
    let text = serde_json::to_string_pretty(&results).map_err(|error| error.to_string())?;
    fs::write(out, text + "\n").map_err(|error| format!("{out}: {error}"))
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

fn parse(path: &str, text: &str) -> Result<Plan, String> {
    Plan::parse(text).map_err(|error| format!("{path}: {error}"))
}

/// Runs one plan once.
fn once(path: &str) -> Result<(), String> {
    run(Simulation::new(&parse(path, &read(path)?)?, SEED)).map(drop)
}

/// The mean CPU time from the text of a plan to a simulation that is ready to run.
fn start_seconds(path: &str, text: &str) -> Result<f64, String> {
    let before = cpu_seconds()?;
    let mut starts = 0;
    while cpu_seconds()? - before < START_SECONDS {
        for _ in 0..STARTS {
            drop(Simulation::new(&parse(path, text)?, SEED));
        }
        starts += STARTS;
    }
    Ok((cpu_seconds()? - before) / f64::from(starts))
}

/// Measures one plan and prints the result.
fn one(path: &str) -> Result<(), String> {
    let text = read(path)?;
    let plan = parse(path, &text)?;
    let (mut best, mut hops, mut runs) = (f64::INFINITY, 0, 0);
    for _ in 0..BATCHES {
        let before = cpu_seconds()?;
        let mut in_batch = 0;
        while cpu_seconds()? - before < BATCH_SECONDS {
            hops = run(Simulation::new(&plan, SEED))?;
            in_batch += 1;
        }
        best = best.min((cpu_seconds()? - before) / f64::from(in_batch));
        runs += in_batch;
    }
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for display, rounded to whole hops"
    )]
    let rate = (hops as f64 / best).round() as u64;
    println!(
        "{}",
        json!({
            "packet_hops_per_cpu_second": rate,
            "peak_memory_bytes": peak_memory_bytes()?,
            "packet_hops": hops,
            "cpu_seconds": best,
            "runs": runs,
            "start_seconds": start_seconds(path, &text)?,
        })
    );
    Ok(())
}

/// Runs a simulation and returns its packet-hops.
fn run(mut simulation: Simulation) -> Result<u64, String> {
    while simulation.advance() {}
    Ok(simulation.finish().map_err(|error| error.to_string())?.packet_hops)
}

/// The CPU time of this process in seconds, from `/proc/self/schedstat` in nanoseconds.
fn cpu_seconds() -> Result<f64, String> {
    let text = fs::read_to_string("/proc/self/schedstat").map_err(|error| error.to_string())?;
    let nanos = text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    nanos.map(|nanos| nanos / 1e9).ok_or_else(|| "cannot read /proc/self/schedstat".to_owned())
}

/// The peak resident memory of this process.
fn peak_memory_bytes() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.map(|kib| kib * 1024).ok_or_else(|| "cannot read VmHWM".to_owned())
}
