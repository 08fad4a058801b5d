//! Two forwarders in network namespaces with a veth pair between them, and real hosts. Needs root and `ip`;
//! `throughput` needs iperf3, too.
//!
//! `throughput` is run by hand: `cargo test --release -p bentpipe-gate --test forwarder -- --ignored --nocapture`. The
//! time is `BENTPIPE_SECONDS`, 5 s by default; `BENTPIPE_REDUNDANCY_PPM` is the repair, 10 % by default, and
//! `BENTPIPE_CODED=0` codes no packet.

mod hosts;
#[path = "../requirements/mod.rs"]
mod requirements;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use bentpipe_core::tunnel::RedundancySettings;
use bentpipe_sys::clock::Clock;

use crate::hosts::{Hosts, PROGRAMS, TIMEOUT, settings};
use crate::requirements::is_possible;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Given a TCP connection through the tunnel over a link that loses 1 % in each direction, expect 20 MB to arrive intact in
/// both directions, with IPv4 and with IPv6, losses to be decoded, and super-packets to be written.
#[test]
fn a_connection_passes_intact_over_a_lossy_link() {
    if !is_possible(&PROGRAMS) {
        return;
    }
    let hosts = Hosts::new("lossy", &settings(), Some(10));
    const BYTES: usize = 20_000_000;
    let pattern = |seed: u64| {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
    };
    let transfer = |mut stream: TcpStream, own: u64| {
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let mut writer = stream.try_clone().expect("a descriptor");
        thread::scope(|scope| {
            scope.spawn(move || {
                let bytes: Vec<u8> = pattern(own).take(BYTES).collect();
                writer.write_all(&bytes).expect("the peer reads");
            });
            let mut received = vec![0; BYTES];
            stream.read_exact(&mut received).expect("all bytes");
            assert!(received.iter().copied().eq(pattern(1 - own).take(BYTES)), "intact");
        });
    };
    for address in ["10.99.0.2:5000", "[fd99::2]:5000"] {
        let listener = hosts.on(1, || TcpListener::bind(address).expect("an address"));
        thread::scope(|scope| {
            scope.spawn(|| transfer(listener.accept().expect("a connection").0, 1));
            let stream = hosts.on(0, || TcpStream::connect(address).expect("the tunnel"));
            transfer(stream, 0);
        });
    }
    for end in 0..2 {
        let counters = hosts.forwarders[end].counters();
        assert!(counters.path.code.recovered > 50, "{counters:?}");
        assert!(counters.io.coalesced_packets > 1_000, "{counters:?}");
        assert_eq!(counters.io.rejected_writes, 0);
        assert!(hosts.forwarders[end].failure().is_none());
        serde_json::to_string(&counters).expect("counters are serializable");
    }
}

/// Given datagrams of all sizes up to the MTU of the device, expect each to arrive as it was sent.
#[test]
fn datagrams_of_all_sizes_pass() {
    if !is_possible(&PROGRAMS) {
        return;
    }
    let hosts = Hosts::new("sizes", &settings(), None);
    let [a, b] = [0, 1].map(|end| {
        hosts.on(end, || UdpSocket::bind(format!("10.99.0.{}:7000", end + 1)).expect("an address"))
    });
    b.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    for bytes in (0..1_426 - 28).step_by(7).chain([1_426 - 28]) {
        let sent: Vec<u8> = (0..bytes).map(|at| (at * bytes) as u8).collect();
        a.send_to(&sent, "10.99.0.2:7000").expect("a route");
        let mut received = [0; 2_000];
        let length = b.recv(&mut received).expect("a datagram");
        assert_eq!(received[..length], sent);
    }
}

/// Given a forwarder, when it is dropped, then its thread ends at once.
#[test]
fn a_forwarder_ends() {
    if !is_possible(&PROGRAMS) {
        return;
    }
    let hosts = Hosts::new("ends", &settings(), None);
    let clock = Clock::start();
    drop(hosts);
    assert!(clock.now().as_nanos() < TIMEOUT.as_nanos() as u64);
}

/// Prints the throughput of TCP through the tunnel and, for comparison, without it.
#[test]
#[ignore = "measures for some seconds, and prints"]
fn throughput() {
    if !is_possible(&["ip", "iperf3"]) {
        return;
    }
    let seconds = number("BENTPIPE_SECONDS", 5);
    let mut settings = settings();
    let redundancy_ppm = number("BENTPIPE_REDUNDANCY_PPM", 100_000) as u32;
    settings.redundancy = RedundancySettings::Fixed { redundancy_ppm, window_symbols: 64 };
    if number("BENTPIPE_CODED", 1) == 0 {
        settings.classifier.packet_size_bytes = 65_535;
    }
    let hosts = Hosts::new("speed", &settings, None);
    hosts.spawn(1, Command::new("iperf3").arg("-s"));
    for (name, address, direction) in [
        ("without a tunnel", "192.0.2.2", None),
        ("tunnel", "10.99.0.2", None),
        ("tunnel, back", "10.99.0.2", Some("-R")),
        ("tunnel, two directions", "10.99.0.2", Some("--bidir")),
    ] {
        let mut iperf = Command::new("iperf3");
        iperf.args(["-J", "-c", address, "-t", &seconds.to_string()]).args(direction);
        // The server ends a test after its client.
        thread::sleep(Duration::from_millis(500));
        let cpu_before = hosts.cpu_seconds();
        let output = hosts.run(0, &mut iperf);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        if let Some(error) = report["error"].as_str() {
            eprintln!("{name}: {error}");
            continue;
        }
        let bps = |field: &str| report["end"][field]["bits_per_second"].as_f64().unwrap_or(0.0);
        let sum = bps("sum_received") + bps("sum_received_bidir_reverse");
        let cpu = hosts.cpu_seconds() - cpu_before;
        let retransmits = &report["end"]["sum_sent"]["retransmits"];
        eprintln!(
            "{name}: {:.2} Gbit/s, {retransmits} retransmits, {cpu:.1} CPU seconds of both ends",
            sum / 1e9
        );
    }
    for forwarder in &hosts.forwarders {
        let counters = serde_json::to_value(forwarder.counters()).expect("counters");
        for part in ["traffic", "code", "order", "repair", "io"] {
            eprintln!("{part}: {}", counters[part]);
        }
    }
}
