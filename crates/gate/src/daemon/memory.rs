//! The most memory that a daemon may use.

use std::fs;

use bentpipe_sys::sysctl;

use super::PepPlan;
use crate::Side;
use crate::relay::Relay;
use crate::transparent::{LegSettings, SynHolder};

/// The memory of a process that relays, without connections: its program, its stacks and its allocator.
const PROCESS_BYTES: u64 = 6 << 20;
/// A TCP socket without data, with its file, inode and entry of epoll. Measured on Linux 6.18, 2026-11-23: with 50,000
/// idle connections, `Slab` of /proc/meminfo grew by 20.2 kB for each, which is four sockets with those of the peers.
const SOCKET_BYTES: u64 = 6 << 10;
const PAGE_BYTES: u64 = 4_096;

/// Bounds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// Of the processes that relay.
    pub(super) processes: u64,
    /// Of the kernel, for sockets, the data in them, and pipes.
    pub(super) kernel: u64,
}

impl Memory {
    pub(super) fn of(plan: &PepPlan) -> Self {
        let (workers, connections) = (plan.workers as u64, plan.connections as u64);
        // Each thread keeps what its largest number of connections took.
        let relayed = (Relay::CONNECTION_BYTES as u64).saturating_mul(plan.threads as u64);
        let held = SynHolder::HELD_BYTES as u64 * plan.of_worker().admission().waiting_max as u64;
        let processes =
            (workers * (PROCESS_BYTES + held)).saturating_add(connections.saturating_mul(relayed));
        let [lan, link] = Side::ALL.map(|side| buffers(&plan.leg(side)));
        let legs = lan.saturating_add(link);
        let buffers = connections.saturating_mul(legs);
        // The kernel bounds the sum over all sockets, too.
        let buffers = buffers.min(all_buffers());
        let pipes = workers * plan.relay().pipe_bytes() as u64;
        let sockets = connections.saturating_mul(2 * SOCKET_BYTES);
        let kernel = sockets.saturating_add(buffers).saturating_add(pipes);
        Self { processes, kernel }
    }
}

/// The largest buffers of a socket. The kernel doubles what is asked for.
fn buffers(settings: &LegSettings) -> u64 {
    let of = |bytes: Option<usize>, name| match bytes {
        Some(bytes) => (bytes as u64).saturating_mul(2),
        None => setting(name, 2).unwrap_or(6 << 20),
    };
    let receive = of(settings.receive_buffer_bytes, "tcp_rmem");
    of(settings.send_buffer_bytes, "tcp_wmem").saturating_add(receive)
}

/// The bound of the kernel for the buffers of all sockets together. A network namespace does not see the setting: there
/// it is the kernel's default (`tcp_init_mem`), 3/32 of the memory.
fn all_buffers() -> u64 {
    let default = || {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        let kilobytes = text.strip_prefix("MemTotal:")?.split_whitespace().next()?;
        Some(kilobytes.parse::<u64>().ok()? * 1_024 / 32 * 3)
    };
    let set = setting("tcp_mem", 2).map(|pages| pages.saturating_mul(PAGE_BYTES));
    set.or_else(default).unwrap_or(u64::MAX / 4)
}

/// A number of a sysctl of tcp(7).
fn setting(name: &str, index: usize) -> Option<u64> {
    let text = sysctl::get(&format!("net.ipv4.{name}")).ok()?;
    text.split_whitespace().nth(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given any size of buffers, expect their bound to be that of the machine, less than its memory.
    #[test]
    fn buffers_are_bounded_by_the_machine() {
        let text = fs::read_to_string("/proc/meminfo").expect("a file");
        let total = text.split_whitespace().nth(1).expect("a number");
        let total = total.parse::<u64>().expect("a number") * 1_024;
        assert!((1 << 20..total).contains(&all_buffers()), "{}", all_buffers());
    }
}
