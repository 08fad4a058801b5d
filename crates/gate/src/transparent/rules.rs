//! The rules of the firewall and of routing that lead connections to the relay.
//!
//! They are one table of nftables, which is made, replaced and deleted as a whole, one routing rule and one
//! routing table for each version of IP. A SYN is held only while an element of a set exists, which the kernel removes
//! after [`LEASE`] unless it is renewed: if the relay dies or hangs, new connections pass without it.
//!
//! A SYN is held where it would leave the FORWARD hook, by the rule that logs it to the relay. So what other rules
//! forbid or reject there stays so, and the relay has exactly the SYNs that are held. Connections whose destination
//! other rules translate pass without the relay.
//!
//! What a client sends in answer to a server that the relay has not heard is logged, too: its answer came past this gateway.
//!
//! Both legs of a connection have the same addresses and ports, so connection tracking would take them for one. The
//! legs to clients are therefore in a zone of their own, from the first SYN that is repeated on, and those to servers
//! are what other rules, such as NAT, see.

use std::io;

use bentpipe_core::time::Duration;
use bentpipe_sys::nftables::Batch;

use super::selection::Connections;
use super::table;
use crate::programs::run;
use crate::side::Side;

/// The time after which new connections pass without a relay that has died. Linux repeats a SYN that is lost after 1 s
/// and 2 s, other systems after 1 s and 3 s (RFC 6298): so the second or the third one passes.
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

    /// Adds all rules. New connections pass without the relay until [`Rules::renew`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn add(&self) -> io::Result<()> {
        self.remove_routes();
        self.routes("add")?;
        self.replace()
    }

    /// Replaces the table, for instance by one with other listeners. As after [`Rules::add`], new connections pass until
    /// [`Rules::renew`].
    ///
    /// # Errors
    /// As [`Rules::add`].
    pub fn replace(&self) -> io::Result<()> {
        self.commit(|batch| self.make(batch))
    }

    /// Lets the relay have the new connections that these rules select, in place of others. Those that it has go on, and
    /// the others do not pass meanwhile. A table that another program has removed is made again, as by [`Rules::replace`].
    ///
    /// # Errors
    /// As [`Rules::add`]; nothing is changed.
    pub fn select(&self) -> io::Result<()> {
        let changed = self.commit(|batch| self.select_in(batch));
        let is_removed = || table::has_passing(&self.table).is_ok_and(|is_there| !is_there);
        if changed.is_err() && is_removed() { self.replace() } else { changed }
    }

    /// Lets new connections pass without the relay from now on.
    ///
    /// # Errors
    /// As [`Rules::add`]; then they pass after [`LEASE`].
    pub fn release(&self) -> io::Result<()> {
        self.commit(table::release)
    }

    /// Holds new connections for the relay during the next [`LEASE`]. A table that another program has removed, for
    /// instance by `nft flush ruleset`, is made again.
    ///
    /// # Errors
    /// As [`Rules::add`].
    pub fn renew(&self) -> io::Result<()> {
        self.commit(table::renew).or_else(|_| {
            self.commit(|batch| {
                self.make(batch);
                table::renew(batch);
            })
        })
    }

    /// Removes all rules. Those that are not there are no error.
    ///
    /// # Errors
    /// As [`Rules::add`].
    pub fn remove(&self) -> io::Result<()> {
        self.remove_routes();
        self.commit(table::remove)
    }

    /// Applies changes to the table, all or none.
    fn commit(&self, change: impl FnOnce(&mut Batch)) -> io::Result<()> {
        let mut batch = Batch::new(&self.table);
        change(&mut batch);
        batch.commit()
    }

    fn remove_routes(&self) {
        // It fails if there is none.
        let _ = self.routes("del");
    }

    fn routes(&self, verb: &str) -> io::Result<()> {
        let mask = !(marks(self.processes) - 1);
        let (mark, table) = (format!("{}/{mask}", self.mark), self.route_table.to_string());
        let rule = ["rule", verb, "fwmark", &mark, "lookup", &table];
        let route = ["route", verb, "local", "default", "dev", "lo", "table", &table];
        let mut done = Ok(());
        for version in ["-4", "-6"] {
            for command in [&rule[..], &route[..]] {
                let ran = run("ip", &[&[version], command].concat(), "");
                done = done.and(ran.map(|_| ()));
            }
        }
        done
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
