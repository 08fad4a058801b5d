//! Changes of the kernel's rules: those of the table, in one transaction each, and those of routing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bentpipe_sys::interface::Interface;
use bentpipe_sys::nftables::Batch;
use bentpipe_sys::route::{MarkRule, Route, RouteKind, Routes};
use bentpipe_sys::time_wait;

use super::rules::{Rules, marks};
use super::table;

impl Rules {
    /// Adds all rules. New connections pass without a process of the relay until [`Rules::renew`] for it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn add(&self) -> io::Result<()> {
        self.remove_routes();
        self.routes(Routes::add, Routes::add_rule)?;
        self.replace()
    }

    /// Replaces the table. As after [`Rules::add`], new connections pass until [`Rules::renew`].
    ///
    /// # Errors
    /// As [`Rules::add`].
    pub fn replace(&self) -> io::Result<()> {
        self.commit(|batch| self.make(batch))
    }

    /// Leads the connections of these rules to their listeners, in place of others. Those that processes have go on. A table
    /// that another program has removed is made again, as by [`Rules::replace`].
    ///
    /// # Errors
    /// As [`Rules::add`]; nothing is changed.
    pub fn listen(&self) -> io::Result<()> {
        self.change(|batch| self.listen_in(batch))
    }

    /// Lets the relay have the new connections that these rules select, in place of others. Those that it has go on, and
    /// the others do not pass meanwhile. A table that another program has removed is made again, as by [`Rules::replace`].
    ///
    /// # Errors
    /// As [`Rules::add`]; nothing is changed.
    pub fn select(&self) -> io::Result<()> {
        self.change(|batch| self.select_in(batch))
    }

    /// Lets the new connections of a process pass without the relay from now on.
    ///
    /// # Errors
    /// As [`Rules::add`]; then they pass after [`LEASE`](super::LEASE).
    pub fn release(&self, process: usize) -> io::Result<()> {
        self.commit(|batch| table::release(batch, process))
    }

    /// Holds the new connections of these processes during the next [`LEASE`](super::LEASE). A table that another program has
    /// removed, for instance by `nft flush ruleset`, is made again, with the leases of others that were `held`.
    ///
    /// # Errors
    /// As [`Rules::add`].
    pub fn renew(&self, processes: &[usize], held: &[usize]) -> io::Result<()> {
        let renew = |batch: &mut Batch, processes: &[usize]| {
            processes.iter().for_each(|&each| table::renew(batch, each));
        };
        self.commit(|batch| renew(batch, processes)).or_else(|_| {
            self.commit(|batch| {
                self.make(batch);
                renew(batch, held);
                renew(batch, processes);
            })
        })
    }

    /// Removes all rules, and what TIME-WAIT has left of the legs to clients: without the rules the kernel neither answers nor
    /// forwards a SYN from the same port, for a minute. Those that are not there are no error.
    ///
    /// # Errors
    /// As [`Rules::add`].
    pub fn remove(&self) -> io::Result<()> {
        self.remove_routes();
        let removed = self.commit(table::remove);
        // Where the kernel cannot do it, nothing else can.
        let _ = time_wait::destroy_all(self.client_leg_mark());
        removed
    }

    /// Changes the table, or makes it again if it is gone.
    fn change(&self, change: impl FnOnce(&mut Batch)) -> io::Result<()> {
        let changed = self.commit(change);
        let is_removed = || table::has_passing(&self.table).is_ok_and(|is_there| !is_there);
        if changed.is_err() && is_removed() { self.replace() } else { changed }
    }

    /// Applies changes to the table, all or none.
    fn commit(&self, change: impl FnOnce(&mut Batch)) -> io::Result<()> {
        let mut batch = Batch::new(&self.table);
        change(&mut batch);
        batch.commit()
    }

    fn remove_routes(&self) {
        // It fails if there is none.
        let _ = self.routes(Routes::delete, Routes::delete_rule);
    }

    /// Changes the routing rule of the marks and the route of its table, for each version of IP. Returns the first error.
    fn routes(
        &self,
        change: impl Fn(&Routes, &Route) -> io::Result<()>,
        change_rule: impl Fn(&Routes, MarkRule, bool) -> io::Result<()>,
    ) -> io::Result<()> {
        let routes = Routes::open()?;
        let loopback = Interface::open("lo")?.index();
        let table = self.route_table;
        let rule = MarkRule { mark: self.mark, mask: !(marks(self.processes) - 1), table };
        let mut done = Ok(());
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let interface = Some(loopback);
            let route = Route { interface, table, ..Route::new(RouteKind::Local, any, 0) };
            let changes = [change_rule(&routes, rule, any.is_ipv6()), change(&routes, &route)];
            for (changed, object) in changes.into_iter().zip(["rule", "route"]) {
                let named = |error: io::Error| {
                    let version = if any.is_ipv6() { "IPv6" } else { "IPv4" };
                    let text = format!("the routing {object} of table {table}, {version}: {error}");
                    io::Error::new(error.kind(), text)
                };
                done = done.and(changed.map_err(named));
            }
        }
        done
    }
}
