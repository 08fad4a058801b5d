//! Transfers of iperf3 between the hosts.

use std::io;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::cpu;
use crate::hosts::Hosts;

/// The server of all transfers, on the second host.
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn start(hosts: &Hosts) -> io::Result<Self> {
        let start = || Command::new("iperf3").arg("-s").stdout(Stdio::null()).spawn();
        hosts.on(1, start).map(Self)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A way from one host to the other.
pub(crate) struct Path {
    pub(crate) name: String,
    /// The address of the server.
    server: String,
    /// Those that carry the packets; none if the kernel alone does.
    processes: Vec<u32>,
}

impl Path {
    pub(crate) fn new(name: &str, server: &str, processes: Vec<u32>) -> Self {
        Self { name: name.to_owned(), server: server.to_owned(), processes }
    }

    fn cpu_seconds(&self) -> Option<f64> {
        let seconds = self.processes.iter().map(|&process| cpu::seconds(process));
        (!self.processes.is_empty()).then(|| seconds.sum())
    }
}

/// Who sends, by the option of iperf3.
#[derive(Clone, Copy)]
pub(crate) struct Direction {
    pub(crate) name: &'static str,
    option: Option<&'static str>,
    /// The parts of the report of iperf3 that tell what arrived.
    received: &'static [&'static str],
}

pub(crate) const DIRECTIONS: [Direction; 3] = [
    Direction { name: "forward", option: None, received: &["sum_received"] },
    Direction { name: "backward", option: Some("-R"), received: &["sum_received"] },
    Direction {
        name: "both",
        option: Some("--bidir"),
        received: &["sum_received", "sum_received_bidir_reverse"],
    },
];

/// What came of a transfer.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    /// Received, in both directions together.
    pub(crate) bits_per_second: f64,
    /// Of the processes of the path, both ends together, if there are any.
    pub(crate) cores: Option<f64>,
}

impl Transfer {
    pub(crate) fn measure(
        hosts: &Hosts,
        path: &Path,
        direction: Direction,
        seconds: u32,
    ) -> io::Result<Self> {
        // The server ends a test after its client.
        thread::sleep(Duration::from_millis(500));
        let mut iperf3 = Command::new("iperf3");
        iperf3.args(["-J", "-c", &path.server, "-t", &seconds.to_string()]).args(direction.option);
        let cpu_before = path.cpu_seconds();
        let output = hosts.on(0, || iperf3.output())?;
        let cpu = path.cpu_seconds().zip(cpu_before).map(|(after, before)| after - before);
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let rate = |part: &&str| report["end"][part]["bits_per_second"].as_f64();
        let rates = direction.received.iter().map(rate).sum::<Option<f64>>();
        let error = report["error"].as_str();
        let (Some(bits_per_second), None) = (rates, error) else {
            let (path, direction) = (&path.name, direction.name);
            let error = error.unwrap_or("no result");
            return Err(io::Error::other(format!("{path}, {direction}: iperf3: {error}")));
        };
        Ok(Self { bits_per_second, cores: cpu.map(|cpu| cpu / f64::from(seconds)) })
    }

    /// The mean of several.
    pub(crate) fn mean(transfers: &[Self]) -> Self {
        let count = transfers.len() as f64;
        let rates = transfers.iter().map(|transfer| transfer.bits_per_second);
        let cores = transfers.iter().map(|transfer| transfer.cores).sum::<Option<f64>>();
        Self {
            bits_per_second: rates.sum::<f64>() / count,
            cores: cores.map(|cores| cores / count),
        }
    }
}
