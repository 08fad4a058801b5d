//! The rules of the firewall and of routing that lead connections to the relay.
//!
//! They are one table of nftables, which is made, replaced and deleted as a whole, one routing rule and one
//! routing table for each version of IP. A SYN is held only while an element of a set exists, which the kernel removes
//! after [`LEASE`] unless it is renewed. Each process of the relay has its own: if one dies or hangs, its share of new
//! connections passes without the relay.
//!
//! A SYN is held where it would leave the FORWARD hook, by the rule that logs it to the relay. So what other rules
//! forbid or reject there stays so, and the relay has exactly the SYNs that are held. Connections whose destination
//! other rules translate pass without the relay, and so do those whose segments are signed.
//!
//! What a client sends in answer to a server that the relay has not heard is logged, too: its answer came past this gateway.
//!
//! Both legs of a connection have the same addresses and ports, so connection tracking would take them for one. The
//! legs to clients are therefore in a zone of their own, from the first SYN that is repeated on, and those to servers
//! are what other rules, such as NAT, see.

use bentpipe_core::time::Duration;

use super::selection::Connections;
use crate::Side;

/// The time after which new connections pass without a process of the relay that has died. Linux repeats a SYN that is lost
/// after 1 s and 2 s, other systems after 1 s and 3 s (RFC 6298): so the second or the third one passes.
pub const LEASE: Duration = Duration::from_millis(1_800);

/// The longest SYN that is held; a longer one has data (TCP Fast Open) and passes without the relay.
pub const SYN_BYTES_MAX: usize = 1_280;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The name of the table of nftables.
    pub table: String,
    /// The mark of packets for the relay. SYNs for each of its processes have one for either side, from this one
    /// on, so it is a multiple of [`marks`]. The two after them are those of legs to clients and of refusals.
    pub mark: u32,
    /// The number of processes of the relay.
    pub processes: usize,
    /// The number of the routing table.
    pub route_table: u32,
    /// Those of the two sides.
    pub sides: [SideRules; 2],
    /// New connections that pass without the relay.
    pub except: Connections,
    /// Without any, all others are for the relay; otherwise these alone.
    pub only: Connections,
}

/// What leads the connections of clients on one side to the relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideRules {
    /// The interfaces; without any, connections from this side pass without the relay.
    pub interfaces: Vec<String>,
    /// The ports of the listeners of each process of the relay, for IPv4 and IPv6.
    pub listeners: Vec<[u16; 2]>,
}

/// The number of marks of SYNs that a relay of so many processes has: a power of 2. Two more follow them.
#[must_use]
pub fn marks(processes: usize) -> u32 {
    2 * u32::try_from(processes).unwrap_or(u32::MAX / 4).next_power_of_two()
}

impl Rules {
    /// The mark of SYNs that go on to a process of the relay, from clients on this side.
    #[must_use]
    pub fn mark_of(&self, process: usize, side: Side) -> u32 {
        self.mark + 2 * process as u32 + side as u32
    }

    /// The mark of the legs to clients.
    #[must_use]
    pub fn client_leg_mark(&self) -> u32 {
        self.mark + marks(self.processes)
    }

    /// The mark of the resets with which a server's refusal is passed on. They belong to no connection.
    #[must_use]
    pub fn refusal_mark(&self) -> u32 {
        self.client_leg_mark() + 1
    }

    /// The group of nfnetlink_log by which a process of the relay receives the SYNs of clients on a side.
    #[must_use]
    pub fn group(&self, process: usize, side: Side) -> u16 {
        let first = u64::from(self.route_table) + 2 * process as u64 + side as u64;
        1 + (first % u64::from(u16::MAX)) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_have_room_for_every_process_and_side() {
        assert_eq!([1, 2, 3, 4, 5].map(marks), [2, 4, 8, 8, 16]);
    }
}
