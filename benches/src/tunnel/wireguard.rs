//! Two processes of WireGuard in user space: wireguard-go or boringtun.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::hosts::Hosts;

/// What fits an MTU of 1,500 over IPv6, too: the default of wg-quick(8).
const MTU: u16 = 1_420;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A device on each host. They last as long as their processes.
pub(crate) struct WireGuard {
    program: String,
    network: Network,
    devices: Vec<Device>,
}

/// The addresses of a tunnel: several exist at once.
#[derive(Clone, Copy)]
struct Network {
    number: u8,
}

impl Network {
    fn address(self, end: usize) -> String {
        format!("10.98.{}.{}", self.number, end + 1)
    }

    fn port(self) -> u16 {
        51_820 + u16::from(self.number)
    }
}

struct Device {
    name: String,
    process: Child,
}

impl WireGuard {
    /// Starts the program on both hosts, and sets up a tunnel between them, which no other has the `number` of.
    pub(crate) fn start(hosts: &Hosts, program: &str, number: u8) -> io::Result<Self> {
        let network = Network { number };
        // A program in another mount namespace starts in its root.
        let program = std::fs::canonicalize(program)
            .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
        let start = |end| hosts.on(end, || Device::start(network, end, &program));
        let devices = (0..2).map(start).collect::<io::Result<_>>()?;
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut wireguard = Self { program: name, network, devices };
        for device in &mut wireguard.devices {
            device.wait_for_socket()?;
        }
        let keys = [run("wg", "genkey", "")?, run("wg", "genkey", "")?];
        for (end, device) in wireguard.devices.iter().enumerate() {
            let peer = run("wg", "pubkey", &keys[1 - end])?;
            hosts.on(end, || device.set_up(network, end, &keys[end], &peer))?;
        }
        Ok(wireguard)
    }

    /// The name of the program.
    pub(crate) fn name(&self) -> &str {
        &self.program
    }

    /// The address of the second host in the tunnel.
    pub(crate) fn server(&self) -> String {
        self.network.address(1)
    }

    /// The IDs of its processes.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.devices.iter().map(|device| device.process.id()).collect()
    }
}

impl Device {
    fn start(network: Network, end: usize, program: &Path) -> io::Result<Self> {
        // The names of sockets are those of all namespaces.
        let name = format!("wg{}-{}-{end}", std::process::id(), network.number);
        let mut command = Command::new(program);
        if program.ends_with("boringtun-cli") {
            command.args(["--foreground", "--disable-drop-privileges"]);
        }
        // With it wireguard-go neither forks nor recommends the kernel's WireGuard.
        command.arg(&name).env("WG_PROCESS_FOREGROUND", "1").stdout(Stdio::null());
        Ok(Self { name, process: command.spawn()? })
    }

    /// The socket by which `wg` sets it up.
    fn socket(&self) -> PathBuf {
        Path::new("/var/run/wireguard").join(format!("{}.sock", self.name))
    }

    fn wait_for_socket(&mut self) -> io::Result<()> {
        let pause = Duration::from_millis(20);
        for _ in 0..TIMEOUT.as_millis() / pause.as_millis() {
            if self.socket().exists() {
                return Ok(());
            }
            if let Some(status) = self.process.try_wait()? {
                return Err(io::Error::other(format!("WireGuard ended: {status}")));
            }
            thread::sleep(pause);
        }
        Err(io::Error::other("WireGuard has no control socket"))
    }

    /// Runs in the namespace of the host.
    fn set_up(&self, network: Network, end: usize, key: &str, peer: &str) -> io::Result<()> {
        let (name, port, peer) = (&self.name, network.port(), peer.trim_end());
        let (own, other) = (network.address(end), network.address(1 - end));
        let host = 2 - end;
        let set = format!(
            "set {name} listen-port {port} private-key /dev/stdin peer {peer} endpoint 192.0.2.{host}:{port} \
             allowed-ips {other}/32"
        );
        run("wg", &set, key)?;
        run("ip", &format!("addr add {own}/24 dev {name}"), "")?;
        run("ip", &format!("link set {name} mtu {MTU} up"), "")?;
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(self.socket());
    }
}

/// What a program prints that reads `input`.
fn run(program: &str, arguments: &str, input: &str) -> io::Result<String> {
    let mut child = Command::new(program)
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(io::Error::other(format!("{program} {arguments}: {}", output.status)))
    }
}
