//! Measures TCP through the coded tunnel between two hosts in network namespaces, beside the same hosts without a tunnel
//! and with wireguard-go; and the processor time of a packet and of a handshake. Prints tables and writes JSON.
//!
//! Usage: `bentpipe-bench-tunnel OUT.json [SECONDS [WIREGUARD-GO]]`, as root. SECONDS is the duration of each transfer of
//! iperf3; WIREGUARD-GO is the program `wireguard-go`, which needs `wg`. Hosts are connected by a veth pair of MTU 1,500;
//! both ends of a tunnel are on this machine, and all packets are coded, with 10 % of repair over 64 symbols. Cores are
//! those of the processes that carry the packets: this one for the tunnel, the two of wireguard-go. Time of the kernel
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
    let (Some(out), Some(seconds @ 1..), ..=3) = (arguments.first(), seconds, arguments.len())
    else {
        eprintln!("usage: bentpipe-bench-tunnel OUT.json [SECONDS [WIREGUARD-GO]]");
        return ExitCode::from(2);
    };
    let wireguard_go = arguments.get(2).map(String::as_str);
    let mut programs = PROGRAMS.to_vec();
    programs.push("iperf3");
    programs.extend(wireguard_go.map(|_| "wg"));
    if let Some(reason) = requirements::missing(&programs) {
        eprintln!("bentpipe-bench-tunnel: {reason}");
        return ExitCode::from(3);
    }
    let measured = measure(seconds, wireguard_go);
    match measured.and_then(|found| std::fs::write(out, format!("{found:#}\n"))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bentpipe-bench-tunnel: {error}");
            ExitCode::from(1)
        }
    }
}

fn measure(seconds: u32, wireguard_go: Option<&str>) -> io::Result<Value> {
    let mut report = json!({ "seconds": seconds, "payload_bytes": packet::PAYLOAD_BYTES });
    processor_time(&mut report)?;
    let mut settings = settings();
    settings.classifier.packet_size_bytes = 0;
    let hosts = Hosts::new("bench", &settings, Limits::DEFAULT, None);
    let wireguard = wireguard_go.map(|program| WireGuard::start(&hosts, program)).transpose()?;
    let _server = Server::start(&hosts)?;
    let mut paths = vec![
        Path { name: "no tunnel", server: "192.0.2.2", processes: Vec::new() },
        Path { name: "tunnel", server: "10.99.0.2", processes: vec![std::process::id()] },
    ];
    paths.extend(wireguard.as_ref().map(|wireguard| Path {
        name: "wireguard-go",
        server: wireguard::SERVER,
        processes: wireguard.processes(),
    }));
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
    let names: String =
        paths.iter().map(|path| format!(" {:>12} {:>6}", path.name, "cores")).collect();
    let ratio = if paths.len() > 2 { "ratio" } else { "" };
    writeln!(terminal, "{:>4} {:>8}{names} {ratio:>6}", "turn", "Gbit/s")?;
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

/// Prints a transfer over all paths, and the rate of the tunnel over that of wireguard-go.
fn print(
    terminal: &mut impl Write,
    turn: &str,
    direction: &str,
    found: &[Transfer],
) -> io::Result<()> {
    write!(terminal, "{turn:>4} {direction:>8}")?;
    for transfer in found {
        let cores = transfer.cores.map_or_else(|| "-".to_owned(), |cores| format!("{cores:.2}"));
        write!(terminal, " {:>12.2} {cores:>6}", transfer.bits_per_second / 1e9)?;
    }
    if let [_, tunnel, wireguard] = found {
        let ratio = tunnel.bits_per_second / wireguard.bits_per_second;
        write!(terminal, " {ratio:>6.2}")?;
    }
    writeln!(terminal)
}
