//! Two processes of wireguard-go, a program of WireGuard in user space.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::hosts::Hosts;

/// The address of the second host in the tunnel.
pub(crate) const SERVER: &str = "10.98.0.2";
const PORT: u16 = 51_820;
/// What fits an MTU of 1,500 over IPv6, too: the default of wg-quick(8).
const MTU: u16 = 1_420;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A device on each host. They last as long as their processes.
pub(crate) struct WireGuard {
    devices: Vec<Device>,
}

struct Device {
    name: String,
    process: Child,
}

impl WireGuard {
    /// Starts the program on both hosts, and sets up a tunnel between them.
    pub(crate) fn start(hosts: &Hosts, program: &str) -> io::Result<Self> {
        // A program in another mount namespace starts in its root.
        let program = std::fs::canonicalize(program)
            .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
        let start = |end| hosts.on(end, || Device::start(end, &program));
        let mut wireguard = Self { devices: (0..2).map(start).collect::<io::Result<_>>()? };
        for device in &mut wireguard.devices {
            device.wait_for_socket()?;
        }
        let keys = [run("wg", "genkey", "")?, run("wg", "genkey", "")?];
        for (end, device) in wireguard.devices.iter().enumerate() {
            let peer = run("wg", "pubkey", &keys[1 - end])?;
            hosts.on(end, || device.set_up(end, &keys[end], &peer))?;
        }
        Ok(wireguard)
    }

    /// The IDs of its processes.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.devices.iter().map(|device| device.process.id()).collect()
    }
}

impl Device {
    fn start(end: usize, program: &Path) -> io::Result<Self> {
        // The names of sockets are those of all namespaces.
        let name = format!("wg{}-{end}", std::process::id());
        let mut command = Command::new(program);
        // With it the program neither forks nor recommends the kernel's WireGuard.
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
                return Err(io::Error::other(format!("wireguard-go ended: {status}")));
            }
            thread::sleep(pause);
        }
        Err(io::Error::other("wireguard-go has no control socket"))
    }

    /// Runs in the namespace of the host.
    fn set_up(&self, end: usize, key: &str, peer: &str) -> io::Result<()> {
        let (name, own, other) = (&self.name, end + 1, 2 - end);
        let peer = peer.trim_end();
        let set = format!(
            "set {name} listen-port {PORT} private-key /dev/stdin peer {peer} endpoint 192.0.2.{other}:{PORT} \
             allowed-ips 10.98.0.{other}/32"
        );
        run("wg", &set, key)?;
        run("ip", &format!("addr add 10.98.0.{own}/24 dev {name}"), "")?;
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
