//! What the service manager that started the daemon is told: that it is ready, that it still runs, and that it ends
//! (`sd_notify(3)`, `sd_watchdog_enabled(3)`).

use std::env::var_os;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use bentpipe_core::time::{Duration, Instant};

/// The service manager; without a socket there is none.
#[derive(Debug, Default)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// How often it is told that the daemon runs: twice in the time after which it ends the daemon.
    watchdog: Option<Duration>,
    is_ready: bool,
    told: Instant,
}

impl ServiceManager {
    /// As the environment has it: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub(super) fn from_environment() -> Self {
        let number = |name| var_os(name)?.to_str()?.parse::<u64>().ok();
        let is_watched =
            number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let interval = number("WATCHDOG_USEC").filter(|&micros| is_watched && micros > 1);
        Self {
            socket: var_os("NOTIFY_SOCKET").and_then(|address| connected(address.as_bytes()).ok()),
            watchdog: interval.map(|micros| Duration::from_micros(micros / 2)),
            ..Self::default()
        }
    }

    /// The daemon carries traffic. It is told once.
    pub(super) fn ready(&mut self) {
        self.is_ready = self.is_ready || self.tell("READY=1");
    }

    /// The daemon runs at `now`.
    pub(super) fn running(&mut self, now: Instant) {
        if self.watchdog.is_some_and(|interval| now.saturating_since(self.told) >= interval) {
            self.tell("WATCHDOG=1");
            self.told = now;
        }
    }

    /// The daemon ends.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// Returns whether it was told. A manager that does not listen must not end connections.
    fn tell(&self, text: &str) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.send(text.as_bytes()).is_ok())
    }
}

/// A socket to an address: a path, or after `@` an abstract name (unix(7)).
fn connected(address: &[u8]) -> io::Result<UnixDatagram> {
    let address = match address.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(address))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    // A manager that does not read must not stop the supervisor.
    socket.set_nonblocking(true)?;
    Ok(socket)
}
