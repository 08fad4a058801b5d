//! Measures the link in real time, compared with mahimahi where that is installed; prints tables
//! and writes JSON.
//!
//! Usage: `bentpipe-bench-live OUT.json [SECONDS]`, as root. SECONDS is the duration of each
//! measurement. It starts the `bentpipe` on the PATH.

mod peer;
mod rows;
mod table;

use std::io;
use std::process::ExitCode;

use bentpipe_core::time::Duration;
use bentpipe_live::LabError;
use bentpipe_live::measure::{DelayErrors, OfferedLoad, tcp_bits_per_second, unlimited_link};
use bentpipe_sim::Side;
use bentpipe_sys::SystemError;
use serde_json::{Map, Value, json};

use rows::Row;

const DELAY: Duration = Duration::from_millis(20);
const MAHIMAHI: &str = "mahimahi";
/// The peer's shell for a link with a delay only.
const MM_DELAY: &[&str] = &["mm-delay", "20"];
/// A trace of 20 Mbit/s for mm-link: the millisecond of each packet of 1,500 bytes, repeated.
const TRACE_20_MBPS: &str = "1\n1\n2\n2\n3\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(out) = arguments.first() else {
        eprintln!("usage: bentpipe-bench-live OUT.json [SECONDS]");
        return ExitCode::from(2);
    };
    let seconds = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let mut bench = Bench::new(Duration::from_secs(seconds));
    let measured = bench.figures().and_then(|()| bench.delay_errors());
    match measured.map(|()| std::fs::write(out, format!("{:#}\n", Value::Object(bench.json)))) {
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

struct Bench {
    time: Duration,
    has_peer: bool,
    json: Map<String, Value>,
}

impl Bench {
    fn new(time: Duration) -> Self {
        let has_peer = peer::is_installed();
        let json = Map::from_iter([("peer".to_owned(), json!(has_peer.then_some(MAHIMAHI)))]);
        if !has_peer {
            print("mahimahi: not installed (mm-delay and mm-link are not on the PATH)");
        }
        Self { time, has_peer, json }
    }

    /// The shells of the peer, if it is installed.
    fn peer<'a>(&self, shells: &'a [&'a [&'a str]]) -> Option<&'a [&'a [&'a str]]> {
        self.has_peer.then_some(shells)
    }

    fn figures(&mut self) -> Result<(), LabError> {
        print(&table::figures_heading(MAHIMAHI));
        self.cpu()?;
        let set_up = rows::set_up(self.has_peer)?;
        self.json
            .insert("set_up_s".to_owned(), json!({ "bentpipe": set_up[0], "peer": set_up[1] }));
        print(&table::figure("set-up, s", set_up, 3, "<= 0.15"));
        for (delay, super_packets) in [(Duration::ZERO, false), (DELAY, false), (DELAY, true)] {
            let millis = (delay.as_nanos() / 1_000_000).to_string();
            let shells: &[&[&str]] = &[&["mm-delay", &millis]];
            let row = rows::tcp(delay, super_packets, self.time, self.peer(shells))?;
            let how = if super_packets { ", super" } else { "" };
            let name = format!("one TCP flow{how}, {millis} ms, Mbit/s");
            self.figure(&name, &row, 1e6, ">= 1.2 x");
            print(&table::verdict(&row.ours).join("\n"));
        }
        let row = rows::small_packets(self.time, self.peer(&[&["mm-delay", "0"]]))?;
        self.figure("packets of 64 bytes per second", &row, 1.0, "");
        self.compare_with_forwarder()
    }

    /// The share of one processor that moving packets takes, at 20 Mbit/s and 20 ms.
    fn cpu(&mut self) -> Result<(), LabError> {
        let trace = std::env::temp_dir().join(format!("bentpipe-bench-{}", std::process::id()));
        let failed = |error| failure("writing a trace", error);
        std::fs::write(&trace, TRACE_20_MBPS).map_err(failed)?;
        let path = trace.to_string_lossy().into_owned();
        let link: &[&str] = &["mm-link", &path, &path, "--"];
        let load = OfferedLoad::full(20_000_000, DELAY);
        let time = self.time.max(Duration::from_secs(10));
        let rank = |errors: &DelayErrors| errors.cpu_share;
        let shells: [&[_]; 2] = [&[MM_DELAY, link], &[MM_DELAY]];
        let rows = shells.map(|shells| rows::delay_errors(load, time, self.peer(shells), rank));
        std::fs::remove_file(&trace).map_err(failed)?;
        let names = ["CPU at 20 Mbit/s, 20 ms, %", "  peer without its rate limit, %"];
        for (name, row) in names.into_iter().zip(rows) {
            let row = row?.map(|errors| errors.cpu_share * 100.0);
            self.figure(name, &row, 1.0, "<= 3.3");
        }
        Ok(())
    }

    /// The throughput compared with a loop that only copies.
    fn compare_with_forwarder(&mut self) -> Result<(), LabError> {
        print(&format!("\n{}", table::figures_heading("copy loop")));
        for (name, super_packets) in
            [("one TCP flow, Mbit/s", false), ("one TCP flow, super-packets, Mbit/s", true)]
        {
            let row = rows::compare_with_forwarder(&unlimited_link(super_packets), |path| {
                tcp_bits_per_second(path, Side::World, self.time)
            })?;
            self.figure(name, &row, 1e6, "");
        }
        Ok(())
    }

    /// Prints and stores a figure of both emulators.
    fn figure(&mut self, name: &str, row: &Row<f64>, unit: f64, goal: &str) {
        let figures = [Some(row.ours.best), row.peer.as_ref().map(|peer| peer.best)];
        let digits = usize::from(row.ours.best < 1e3 * unit);
        print(&table::figure(name, figures.map(|value| Some(value? / unit)), digits, goal));
        self.json.insert(name.trim().to_owned(), table::figure_json(row));
    }

    fn delay_errors(&mut self) -> Result<(), LabError> {
        print(&format!("\n{}", table::errors_heading()));
        let sparse = |hops| OfferedLoad { hops, ..packet_rate(10_000, 100) };
        let rows = [
            ("10,000 packets/s of 100 bytes", sparse(1), true, "99.9 % <= 300"),
            ("the same, three hops", sparse(3), false, ""),
            ("200,000 packets/s of 64 bytes", packet_rate(200_000, 64), true, ""),
            ("300,000 packets/s of 64 bytes", packet_rate(300_000, 64), true, "valid, 99 % <= 300"),
            ("1 Mbit/s, full", OfferedLoad::full(1_000_000, DELAY), false, ""),
            ("20 Mbit/s, full", OfferedLoad::full(20_000_000, DELAY), false, ""),
            ("100 Mbit/s, full", OfferedLoad::full(100_000_000, DELAY), false, ""),
            ("500 Mbit/s, full", OfferedLoad::full(500_000_000, DELAY), false, ""),
        ];
        let mut all = Vec::new();
        for (name, load, has_peer, goal) in rows {
            let peer = self.peer(&[MM_DELAY]).filter(|_| has_peer);
            let row = rows::delay_errors(load, self.time, peer, |errors| errors.p99_ns as f64)?;
            print(&table::errors(name, MAHIMAHI, &row, goal));
            all.push(table::errors_json(name, "bentpipe", &row.ours));
            all.extend(row.peer.iter().map(|peer| table::errors_json(name, MAHIMAHI, peer)));
        }
        self.json.insert("delay_errors".to_owned(), Value::Array(all));
        Ok(())
    }
}

/// A packet rate over a link that is much faster.
fn packet_rate(packets_per_second: u64, packet_bytes: usize) -> OfferedLoad {
    let interval = Duration::from_nanos(1_000_000_000 / packets_per_second);
    OfferedLoad { rate_bps: 10_000_000_000, delay: DELAY, hops: 1, packet_bytes, interval }
}

/// An error of the machine, with the fix.
fn failure(doing: &str, error: io::Error) -> LabError {
    SystemError::machine(
        doing,
        error,
        "run it as root, and try the programs that it starts by hand",
    )
    .into()
}

#[expect(clippy::print_stdout, reason = "the results are this program's output")]
fn print(text: &str) {
    println!("{text}");
}
