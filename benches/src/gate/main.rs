//! Measures the daemon of a gateway on a router in namespaces, beside the same router without it; prints a
//! table and writes JSON.
//!
//! Usage: `bentpipe-bench-gate PROGRAM OUT.json [SECONDS [PEPSAL]]`, as root. PROGRAM is a `bentpipe-gate`; PEPSAL is the
//! program `pepsal`, which is measured in turn with it.

#![expect(clippy::disallowed_methods, reason = "it measures real time")]

#[path = "../tunnel/cpu.rs"]
mod cpu;
#[path = "../../../crates/gate/tests/requirements/mod.rs"]
mod requirements;
#[path = "../../../crates/gate/tests/router/mod.rs"]
mod router;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use rustix::net::sockopt::set_socket_linger;
use serde_json::{Value, json};

use router::{Host, PROGRAMS, Router, SERVERS, worker};

const PORT: u16 = 80;
/// Clients that open connections at the same time.
const CONCURRENT: usize = 32;
const PIECE: usize = 256 * 1024;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, out, rest @ ..] = &arguments[..] else {
        eprintln!("usage: bentpipe-bench-gate PROGRAM OUT.json [SECONDS [PEPSAL]]");
        return ExitCode::from(2);
    };
    if let Some(reason) = requirements::missing(&PROGRAMS) {
        eprintln!("bentpipe-bench-gate: {reason}");
        return ExitCode::from(3);
    }
    let seconds = rest.first().and_then(|text| text.parse().ok()).unwrap_or(5);
    let pepsal = rest.get(1).map(String::as_str);
    let measured = measure(program, pepsal, Duration::from_secs(seconds));
    match measured.and_then(|found| std::fs::write(out, format!("{found:#}\n"))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bentpipe-bench-gate: {error}");
            ExitCode::from(1)
        }
    }
}

/// The router without and with the daemon, in turn, so that a change of the machine's speed affects both.
fn measure(program: &str, pepsal: Option<&str>, time: Duration) -> io::Result<Value> {
    let router = Router::new("bench");
    let folder = std::env::temp_dir().join(format!("bp-bench-gate-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut rows = Vec::new();
    let mut terminal = io::stdout();
    writeln!(terminal, "{:>10} {:>10} {:>14} {:>14}", "", "Gbit/s", "CPU, cores", "connections/s")?;
    let names = ["routed", "pepsal", "gateway"].repeat(2);
    for name in names.into_iter().filter(|&name| name != "pepsal" || pepsal.is_some()) {
        let proxy = match (name, pepsal) {
            ("gateway", _) => {
                let mut plan = router.plan(&folder, 2_000);
                plan.pep.as_mut().expect("it has one").threads = 2;
                let daemon = router.start(program, &plan);
                Some(Proxy { relay: worker(&daemon), process: daemon })
            }
            ("pepsal", Some(program)) => Some(start_pepsal(&router, program)?),
            _ => None,
        };
        let row = row(&router, proxy.as_ref().map(|proxy| proxy.relay), time)?;
        writeln!(
            terminal,
            "{name:>10} {:>10.2} {:>14.2} {:>14.0}",
            row.bits_per_second / 1e9,
            row.cores,
            row.connections_per_second
        )?;
        rows.push(json!({
            "path": name,
            "bits_per_second": row.bits_per_second,
            "cores": row.cores,
            "connections_per_second": row.connections_per_second,
            "bytes_per_idle_connection": row.idle_bytes,
        }));
        if let Some(bytes) = row.idle_bytes {
            writeln!(terminal, "{:>10} {bytes:.0} bytes of memory for an idle connection", "")?;
        }
        if let Some(mut proxy) = proxy {
            proxy.process.kill()?;
            proxy.process.wait()?;
            // Rules that remain would expire; the next daemon replaces them.
            router.gateway("nft flush ruleset");
        }
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(json!({ "rows": rows }))
}

/// A proxy on the gateway, and its process that relays.
struct Proxy {
    process: Child,
    relay: u32,
}

/// Starts `pepsal` with the rules of its manual, as nftables.
fn start_pepsal(router: &Router, program: &str) -> io::Result<Proxy> {
    const PEPSAL_PORT: &str = "5000";
    let rules = "table ip pepsal { chain prerouting { type filter hook prerouting priority mangle; iifname lan0 meta \
                 l4proto tcp tproxy to :5000 meta mark set 1 accept; }; }";
    router.gateway(&format!("nft {rules}"));
    for command in ["rule add fwmark 1 lookup 100", "route replace local default dev lo table 100"]
    {
        router.gateway(&format!("ip {command}"));
    }
    let arguments = ["-p", PEPSAL_PORT, "-c", "4096"];
    let start = || Command::new(program).args(arguments).stderr(Stdio::null()).spawn();
    let process = router.on(Host::Gateway, start)?;
    // It has no message for it.
    std::thread::sleep(std::time::Duration::from_millis(500));
    Ok(Proxy { relay: process.id(), process })
}

struct Row {
    bits_per_second: f64,
    /// Of the worker, while one flow is relayed.
    cores: f64,
    connections_per_second: f64,
    idle_bytes: Option<f64>,
}

fn row(router: &Router, worker: Option<u32>, time: Duration) -> io::Result<Row> {
    let server: SocketAddr = format!("{}:{PORT}", SERVERS[0]).parse().map_err(io::Error::other)?;
    let used = || worker.map_or(0.0, cpu::seconds);
    let before = used();
    let bits_per_second = one_flow(router, server, time)?;
    let cores = (used() - before) / time.as_secs_f64();
    let connections_per_second = short_connections(router, server, time)?;
    let idle_bytes = match worker {
        Some(pid) => Some(idle_connections(router, server, pid)?),
        None => None,
    };
    Ok(Row { bits_per_second, cores, connections_per_second, idle_bytes })
}

/// The rate at which a server reads what one client writes.
fn one_flow(router: &Router, server: SocketAddr, time: Duration) -> io::Result<f64> {
    let listener = router.on(Host::Server, || TcpListener::bind(server))?;
    let mut client = router.on(Host::Client, || TcpStream::connect(server))?;
    let (mut accepted, _) = listener.accept()?;
    let sender = spawn(move || {
        let piece = vec![1; PIECE];
        while client.write_all(&piece).is_ok() {}
    })?;
    let clock = Clock::start();
    let mut piece = vec![0; PIECE];
    let (mut bytes, end) = (0_u64, Instant::START + time);
    while clock.now() < end {
        bytes += accepted.read(&mut piece)? as u64;
    }
    let taken = clock.now().saturating_since(Instant::START).as_secs_f64();
    set_socket_linger(&accepted, Some(std::time::Duration::ZERO))?;
    drop(accepted);
    let _ = sender.join();
    Ok(bytes as f64 * 8.0 / taken)
}

/// Connections a second, each with a byte each way, which the server ends first.
fn short_connections(router: &Router, server: SocketAddr, time: Duration) -> io::Result<f64> {
    let listener = Arc::new(router.on(Host::Server, || TcpListener::bind(server))?);
    let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut threads = Vec::new();
    for _ in 0..CONCURRENT {
        let listener = Arc::clone(&listener);
        threads.push(spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut byte = [0];
                let _ = stream.read(&mut byte).and_then(|_| stream.write(&byte));
            }
        })?);
    }
    for _ in 0..CONCURRENT {
        let (over, done) = (Arc::clone(&is_over), Arc::clone(&done));
        let client = move || {
            while !over.load(Ordering::Relaxed) {
                if exchange(server).is_ok() {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        threads.push(router.on(Host::Client, || spawn(client))?);
    }
    std::thread::sleep(std::time::Duration::from_nanos(time.as_nanos()));
    let found = done.load(Ordering::Relaxed) as f64 / time.as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    // Ends the calls of `accept` (shutdown(2) of a listening socket).
    rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both)?;
    for thread in threads {
        let _ = thread.join();
    }
    Ok(found)
}

/// One connection: the client ends it with a reset, so that no port stays in TIME-WAIT.
fn exchange(server: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(server)?;
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])?;
    set_socket_linger(&stream, Some(std::time::Duration::ZERO))?;
    Ok(())
}

/// How much the memory of the worker grows with each idle connection.
fn idle_connections(router: &Router, server: SocketAddr, worker: u32) -> io::Result<f64> {
    const FIRST: usize = 100;
    const ALL: usize = 1_900;
    let listener = router.on(Host::Server, || TcpListener::bind(server))?;
    let mut open = Vec::new();
    let mut before = 0.0;
    for number in 0..ALL {
        open.push(router.on(Host::Client, || TcpStream::connect(server))?);
        open.push(listener.accept()?.0);
        if number == FIRST {
            before = resident_bytes(worker)?;
        }
    }
    // The worker has accepted the last one when it passes data.
    if let [.., client, accepted] = &mut open[..] {
        client.write_all(&[1])?;
        accepted.read_exact(&mut [0])?;
    }
    let grown = resident_bytes(worker)? - before;
    for stream in &open {
        set_socket_linger(stream, Some(std::time::Duration::ZERO))?;
    }
    Ok(grown / (ALL - FIRST) as f64)
}

fn spawn(act: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().spawn(act)
}

/// VmRSS of a process.
fn resident_bytes(pid: u32) -> io::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024.0).ok_or_else(|| io::Error::other("no VmRSS"))
}
