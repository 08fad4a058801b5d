//! Measures TCP through the coded tunnel between two hosts in network namespaces, beside the same hosts without a tunnel
//! and with WireGuard in user space; and the processor time of a packet and of a handshake. Prints tables and writes JSON.
//!
//! Usage: `bentpipe-bench-tunnel OUT.json [SECONDS [WIREGUARD...]]`, as root. SECONDS is the duration of each transfer of
//! iperf3; WIREGUARD is the program `wireguard-go` or `boringtun-cli`, which need `wg`. Hosts are connected by a veth pair
//! of MTU 1,500; both ends of a tunnel are on this machine, and all packets are coded, with 10 % of repair over 64 symbols.
//! A ratio is the rate of the tunnel over that of the WireGuard before it. Cores are those of the processes that carry
//! the packets: this one for the tunnel, the two of each WireGuard. Time of the kernel
//! on behalf of iperf3 is not in them. Cores divided by Gbit/s are the CPU nanoseconds of a bit.

#![expect(clippy::disallowed_methods, reason = "it measures real time")]

mod cpu;
#[path = "../../../crates/gate/tests/forwarder/hosts.rs"]
mod hosts;
mod packet;
#[path = "../../../crates/gate/tests/requirements/mod.rs"]
mod requirements;
mod transfer;
mod wireguard;

use std::io::{self, Write};
use std::process::ExitCode;

use bentpipe_gate::tunnel::Limits;
use serde_json::{Value, json};

use hosts::{Hosts, PROGRAMS, settings};
use transfer::{DIRECTIONS, Path, Server, Transfer};
use wireguard::WireGuard;

const SECONDS: u32 = 5;
/// In a turn each transfer is made over all paths, one after the other, so that a change of the machine's speed affects
/// all.
const TURNS: usize = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = arguments.get(1).map_or(Some(SECONDS), |text| text.parse().ok());
    let (Some(out), Some(seconds @ 1..)) = (arguments.first(), seconds) else {
        eprintln!("usage: bentpipe-bench-tunnel OUT.json [SECONDS [WIREGUARD...]]");
        return ExitCode::from(2);
    };
    let wireguards = arguments.get(2..).unwrap_or_default();
    let mut programs = PROGRAMS.to_vec();
    programs.push("iperf3");
    programs.extend((!wireguards.is_empty()).then_some("wg"));
    if let Some(reason) = requirements::missing(&programs) {
        eprintln!("bentpipe-bench-tunnel: {reason}");
        return ExitCode::from(3);
    }
    let measured = measure(seconds, wireguards);
    match measured.and_then(|found| std::fs::write(out, format!("{found:#}\n"))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bentpipe-bench-tunnel: {error}");
            ExitCode::from(1)
        }
    }
}

fn measure(seconds: u32, wireguards: &[String]) -> io::Result<Value> {
    let mut report = json!({ "seconds": seconds, "payload_bytes": packet::PAYLOAD_BYTES });
    processor_time(&mut report)?;
    let mut settings = settings();
    settings.classifier.packet_size_bytes = 0;
    let hosts = Hosts::new("bench", &settings, Limits::DEFAULT, None);
    let wireguards = wireguards
        .iter()
        .zip(0..)
        .map(|(program, number)| WireGuard::start(&hosts, program, number))
        .collect::<io::Result<Vec<_>>>()?;
    let _server = Server::start(&hosts)?;
    let mut paths = vec![
        Path::new("no tunnel", "192.0.2.2", Vec::new()),
        Path::new("tunnel", "10.99.0.2", vec![std::process::id()]),
    ];
    paths.extend(
        wireguards.iter().map(|wireguard| {
            Path::new(wireguard.name(), &wireguard.server(), wireguard.processes())
        }),
    );
    report["transfers"] = transfers(&hosts, &paths, seconds)?;
    report["counters"] = (0..2).map(|end| json!(hosts.counters(end))).collect();
    Ok(report)
}

/// Prints the times of a packet and of a handshake, and adds them to the report.
fn processor_time(report: &mut Value) -> io::Result<()> {
    let mut terminal = io::stdout();
    let (packets, handshake) = (packet::seal_and_open(), packet::handshake());
    writeln!(terminal, "{:>16} {:>9} {:>9}", "ns for a packet:", "seal", "open")?;
    for (name, [seal, open]) in ["session", "cipher alone"].into_iter().zip(packets) {
        writeln!(terminal, "{name:>16} {seal:>9} {open:>9}")?;
        report["packet_nanos"][name] = json!({ "seal": seal, "open": open });
    }
    writeln!(terminal, "{handshake} ns for a handshake, both ends together\n")?;
    report["handshake_nanos"] = json!(handshake);
    Ok(())
}

/// Makes and prints all transfers.
fn transfers(hosts: &Hosts, paths: &[Path], seconds: u32) -> io::Result<Value> {
    let mut terminal = io::stdout();
    write!(terminal, "{:>4} {:>8}", "turn", "Gbit/s")?;
    for (place, path) in paths.iter().enumerate() {
        let ratio = if place < 2 { "" } else { " ratio" };
        write!(terminal, " {:>12} cores{ratio}", path.name)?;
    }
    writeln!(terminal)?;
    let mut rows = Vec::new();
    let mut by_direction = [const { Vec::new() }; DIRECTIONS.len()];
    for turn in 1..=TURNS {
        for (direction, turns) in DIRECTIONS.into_iter().zip(&mut by_direction) {
            let measure = |path| Transfer::measure(hosts, path, direction, seconds);
            let found = paths.iter().map(measure).collect::<io::Result<Vec<_>>>()?;
            print(&mut terminal, &turn.to_string(), direction.name, &found)?;
            rows.extend(paths.iter().zip(&found).map(|(path, transfer)| {
                json!({
                    "turn": turn, "direction": direction.name, "path": path.name,
                    "bits_per_second": transfer.bits_per_second, "cores": transfer.cores,
                })
            }));
            turns.push(found);
        }
    }
    for (direction, turns) in DIRECTIONS.into_iter().zip(&by_direction) {
        let of = |path: usize| turns.iter().map(|found| found[path]).collect::<Vec<_>>();
        let means: Vec<Transfer> = (0..paths.len()).map(|path| Transfer::mean(&of(path))).collect();
        print(&mut terminal, "mean", direction.name, &means)?;
    }
    Ok(rows.into())
}

/// Prints a transfer over all paths, and the rate of the tunnel over that of each WireGuard.
fn print(
    terminal: &mut impl Write,
    turn: &str,
    direction: &str,
    found: &[Transfer],
) -> io::Result<()> {
    write!(terminal, "{turn:>4} {direction:>8}")?;
    for (place, transfer) in found.iter().enumerate() {
        let cores = transfer.cores.map_or_else(|| "-".to_owned(), |cores| format!("{cores:.2}"));
        write!(terminal, " {:>12.2} {cores:>5}", transfer.bits_per_second / 1e9)?;
        if place >= 2 {
            let ratio = found[1].bits_per_second / transfer.bits_per_second;
            write!(terminal, " {ratio:>5.2}")?;
        }
    }
    writeln!(terminal)
}
