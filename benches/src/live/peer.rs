//! The peer: mahimahi (Netravali et al., USENIX ATC 2015), started as its users start it.
//!
//! Its shells run in a network namespace of their own, so that their addresses and NAT rules do not
//! affect the machine's network. The benchmark's sockets enter its namespaces, so both emulators
//! carry the same load and are measured by the same timestamps.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{self, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bentpipe_core::time::Duration;
use bentpipe_live::LabError;
use bentpipe_live::measure::Path;
use bentpipe_sim::Side;
use bentpipe_sys::netns::Namespace;
use bentpipe_sys::sysctl;

use crate::failure;

/// Its programs are installed setuid root and cannot be started by root, so they run as nobody
/// and nogroup.
const USER: u32 = 65_534;
/// The environment variable by which a shell passes the outer address of the outermost shell to its
/// programs.
const BASE: &str = "MAHIMAHI_BASE";
/// The command in each shell: it prints that address and its PID, and exits at the end of its
/// input.
const INSIDE: &str = "echo $MAHIMAHI_BASE $$; read end || true";

/// Nested shells of mahimahi. The island is inside, the world outside. Packets from the inside pass
/// a NAT, so streams start there.
pub(crate) struct Peer {
    /// The innermost first, which must exit first.
    shells: Vec<Shell>,
    namespaces: [Arc<Namespace>; 2],
    addresses: [Ipv4Addr; 2],
    stopped: (Mutex<bool>, Condvar),
}

/// A running shell. On drop its input is closed, so the command inside exits, and then the shell.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Peer {
    /// Starts shells, such as `mm-delay 20`, the outermost first, and waits until they are up.
    ///
    /// # Errors
    /// If one does not start, or its output is unexpected.
    pub(crate) fn up(commands: &[&[&str]]) -> Result<Self, LabError> {
        let world = Arc::new(new_namespace(|| Ok(()))?.0);
        let mut island = Arc::clone(&world);
        let mut shells = Vec::new();
        let mut base = None;
        for words in commands {
            let (shell, address, inside) = island.run(|| {
                let failed = |error| failure("starting the peer", error);
                sysctl::set("net.ipv4.ip_forward", "1").map_err(failed)?;
                start(words, base).map_err(failed)
            })?;
            shells.insert(0, shell);
            island = Arc::new(inside);
            base = Some(address);
        }
        let failed = |error| failure("starting the peer", error);
        let base = base.ok_or_else(|| failed(io::Error::other("no command")))?;
        let inside = island.run(|| own_address(base).map_err(failed))?;
        Ok(Self {
            shells,
            namespaces: [world, island],
            addresses: [base, inside],
            stopped: Default::default(),
        })
    }
}

/// Starts a shell in the calling thread's namespaces, nested in one whose outer address is `base`.
/// Returns the shell, its outer address, and the namespaces inside.
fn start(words: &[&str], base: Option<Ipv4Addr>) -> io::Result<(Shell, Ipv4Addr, Namespace)> {
    let words: Vec<_> = words.iter().chain(&["sh", "-c", INSIDE]).copied().collect();
    let mut command = command(&words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(base) = base {
        command.env(BASE, base.to_string());
    }
    let mut shell = Shell(command.spawn()?);
    let mut line = String::new();
    if let Some(output) = shell.0.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let (address, process) = line
        .trim()
        .split_once(' ')
        .and_then(|(address, process)| Some((address.parse().ok()?, process)))
        .ok_or_else(|| io::Error::other(format!("{} printed {line:?}", words.join(" "))))?;
    let open = |name| File::open(format!("/proc/{process}/ns/{name}"));
    Ok((shell, address, Namespace::from_fds([open("net")?.into(), open("mnt")?.into()])))
}

/// A network namespace in which its shells can start, and the result of `setup` in it.
pub(crate) fn new_namespace<T: Send>(
    setup: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<(Namespace, T), LabError> {
    Namespace::new("127.0.0.1 localhost\n", || {
        sysctl::set("net.ipv4.ip_forward", "1")
            .map_err(|error| failure("forwarding packets", error))?;
        setup()
    })
}

/// A command for one of its programs, as an unprivileged user.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).uid(USER).gid(USER).process_group(0);
    command
}

/// The address from which the calling thread's network namespace sends to another.
fn own_address(to: Ipv4Addr) -> io::Result<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((to, 9))?;
    match socket.local_addr()?.ip() {
        std::net::IpAddr::V4(address) => Ok(address),
        std::net::IpAddr::V6(_) => Err(io::Error::other("expected an IPv4 address")),
    }
}

impl Path for Peer {
    fn namespace(&self, side: Side) -> &Arc<Namespace> {
        &self.namespaces[side as usize]
    }

    fn run(&self) -> Result<(), LabError> {
        let (stopped, changed) = &self.stopped;
        let stopped = stopped.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_while(stopped, |stopped| !*stopped));
        Ok(())
    }

    fn stop(&self) {
        let (stopped, changed) = &self.stopped;
        *stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    fn delivered(&self, side: Side) -> u64 {
        let received = || Ok::<_, LabError>(received_packets());
        self.namespaces[side as usize].run(received).unwrap_or_default()
    }

    fn address(&self, side: Side) -> Ipv4Addr {
        self.addresses[side as usize]
    }

    /// All processes of the shells count; each shell is a process group.
    fn cpu_time(&self) -> Duration {
        let Ok(processes) = fs::read_dir("/proc") else { return Duration::ZERO };
        let paths = processes.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let is_ours = |group| self.shells.iter().any(|shell| shell.0.id() == group);
        let ours = paths.filter(|path| process_group(path).is_some_and(is_ours));
        Duration::from_nanos(ours.filter_map(|path| on_cpu_ns(&path)).sum())
    }
}

/// The fifth field of proc_pid_stat(5); the second is a name that may hold spaces.
fn process_group(process: &path::Path) -> Option<u32> {
    let text = fs::read_to_string(process.join("stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}

/// The first field of schedstat (`Documentation/scheduler/sched-stats.rst`): the time on a CPU in ns.
fn on_cpu_ns(process: &path::Path) -> Option<u64> {
    let text = fs::read_to_string(process.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// The packets received by the interfaces of the calling thread's network namespace, except
/// loopback.
fn received_packets() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let interfaces = text.lines().filter_map(|line| line.split_once(':'));
    let others = interfaces.filter(|(name, _)| name.trim() != "lo");
    others.filter_map(|(_, counts)| counts.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

/// Whether its programs are on the PATH.
pub(crate) fn is_installed() -> bool {
    ["mm-delay", "mm-link"].iter().all(|program| find(program).is_some())
}

/// The path of a program on the PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|path| path.join(program)).find(|path| path.is_file())
}
