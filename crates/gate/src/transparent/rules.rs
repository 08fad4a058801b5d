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

use std::fmt::Write;
use std::io;

use bentpipe_core::time::Duration;

use super::selection::{Connections, passing, set_of};
use crate::Side;
use crate::programs::run;

/// The time after which new connections pass without a relay that has died. Linux repeats a SYN that is lost after 1 s
/// and 2 s, other systems after 1 s and 3 s (RFC 6298): so the second or the third one passes.
pub const LEASE: Duration = Duration::from_millis(1_800);

/// The longest SYN that is held; a longer one has data (TCP Fast Open) and passes without the relay.
pub const SYN_BYTES_MAX: usize = 1_280;

const IS_SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";
/// TCP without IPv6 extension headers, behind which the relay does not read.
const IS_PLAIN: [&str; 2] = ["ip protocol tcp", "ip6 nexthdr tcp"];
/// The ends of a connection. A client repeats its SYN after 1, 2, 4, 8 and 16 s (RFC 6298).
const ENDS: [&str; 2] = [
    "ip saddr . tcp sport . ip daddr . tcp dport",
    "ip6 saddr . tcp sport . ip6 daddr . tcp dport",
];
const REPEATED: Duration = Duration::from_secs(20);
/// The sets of those of which a SYN is held.
const HELD: [&str; 2] = ["held4", "held6"];
/// The most in each. Beyond them connections pass without the relay.
const HELD_MAX: usize = 1 << 20;
/// More than the headers of a segment.
const SEGMENT_BYTES: usize = 128;
/// Those of packets that are not to be forwarded; see `Syn::reopening`.
const NO_HOPS: [&str; 2] = ["ip ttl 0", "ip6 hoplimit 0"];

/// What belongs to a connection: its segments, and ICMP errors about them, which quote one.
const PROTOCOLS: &str = "{ tcp, icmp, ipv6-icmp }";

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

    /// The last mark of SYNs to the relay.
    fn last_mark(&self) -> u32 {
        self.client_leg_mark() - 1
    }

    /// The table of nftables, as the program `nft` reads it. It replaces a table of the same name.
    ///
    /// A SYN that the relay sends on is first. It reopens a connection of which a socket is left in TIME-WAIT, and
    /// otherwise reaches the socket of the connection, if there is one. SYNs from clients reach sockets by way of the
    /// relay alone. Those of connections that have one are held at once: the kernel does not forward what it has found a
    /// socket for. The rule that leads other packets to sockets comes after NAT, since servers may answer to another
    /// address.
    #[must_use]
    pub fn nft(&self) -> String {
        let Self { table, mark, .. } = self;
        let alive_ms = LEASE.as_nanos() / 1_000_000;
        let mut text = format!(
            "table inet {table}\n\
             delete table inet {table}\n\
             table inet {table} {{\n\
             \tset alive {{ type inet_proto; timeout {alive_ms}ms; }}\n\
             {zones}\
             \tchain prerouting {{\n\
             \t\ttype filter hook prerouting priority mangle; policy accept;\n",
            zones = self.zones() + &self.logs() + &self.reopening(),
        );
        if self.listener().is_some() {
            for no_hops in NO_HOPS {
                let last = self.last_mark();
                let _ = writeln!(
                    text,
                    "\t\tiifname \"lo\" meta mark {mark}-{last} {no_hops} meta l4proto tcp goto reopening"
                );
            }
        }
        for side in Side::ALL {
            for (process, [v4, v6]) in self.sides[side as usize].listeners.iter().enumerate() {
                let mark = self.mark_of(process, side);
                let _ = write!(
                    text,
                    "\t\tiifname \"lo\" meta mark {mark} meta l4proto tcp tproxy ip to 127.0.0.1:{v4} accept\n\
                     \t\tiifname \"lo\" meta mark {mark} meta l4proto tcp tproxy ip6 to [::1]:{v6} accept\n"
                );
            }
        }
        let _ = write!(
            text,
            "\t}}\n\
             \tchain after_nat {{\n\
             \t\ttype filter hook prerouting priority dstnat + 1; policy accept;\n\
             {again}\
             \t\tmeta l4proto {PROTOCOLS} socket transparent 1 meta mark set {mark}\n\
             \t}}\n\
             \tchain passing {{\n\
             {passing}\
             \t}}\n\
             \tchain forward {{\n\
             \t\ttype filter hook forward priority 1000; policy accept;\n\
             {selected}\
             {new}\
             {asymmetric}\
             \t}}\n}}\n",
            again = self.hold("socket transparent 1"),
            passing = self.passing("\t\t"),
            selected = self.selected(),
            new = self.hold("ct status & dnat == 0"),
            asymmetric = self.asymmetric(),
        );
        text
    }

    /// The chains to which packets go that the relay receives: SYNs, which are held, and what shows an asymmetric path.
    fn logs(&self) -> String {
        let mut text = String::new();
        for side in Side::ALL {
            for process in 0..self.processes {
                let group = self.group(process, side);
                let _ = write!(
                    text,
                    "\tchain hold_{side:?}_{process} {{\n\
                     \t\tlog group {group} snaplen {SYN_BYTES_MAX} queue-threshold 1 drop\n\
                     \t}}\n\
                     \tchain asymmetric_{side:?}_{process} {{\n\
                     \t\tlog group {group} snaplen {SEGMENT_BYTES} queue-threshold 1\n\
                     \t}}\n"
                );
            }
        }
        text
    }

    /// The chain to a process of the relay, one of those of this name. All packets of a connection go to the same.
    fn goto(&self, name: &str, side: Side) -> String {
        let processes = self.processes;
        let chains: Vec<_> =
            (0..processes).map(|each| format!("{each} : goto {name}_{side:?}_{each}")).collect();
        match &chains[..] {
            [_] => format!("goto {name}_{side:?}_0"),
            several => format!("symhash mod {processes} vmap {{ {} }}", several.join(", ")),
        }
    }

    /// The rules of the chain `passing`, each after this text.
    fn passing(&self, before: &str) -> String {
        let rules = passing(&self.except, &self.only);
        rules.into_iter().map(|rule| format!("{before}{rule}\n")).collect()
    }

    /// The rules that ask whether a connection is left out, once for each: the SYNs that repeat one that was held are held,
    /// too, though it would pass now.
    fn selected(&self) -> String {
        let rules = ENDS.into_iter().zip(HELD);
        rules.map(|(ends, set)| format!("\t\t{IS_SYN} {ends} != @{set} jump passing\n")).collect()
    }

    /// The rules that hold SYNs on this condition.
    fn hold(&self, condition: &str) -> String {
        let mut text = String::new();
        for (side, rules) in Side::ALL.into_iter().zip(&self.sides) {
            let Some(interfaces) = names(&rules.interfaces) else { continue };
            let goto = self.goto("hold", side);
            for ((plain, ends), set) in IS_PLAIN.into_iter().zip(ENDS).zip(HELD) {
                let _ = writeln!(
                    text,
                    "\t\tiifname {interfaces} {plain} {IS_SYN} meta length 0-{SYN_BYTES_MAX} {condition} meta l4proto @alive update @{set} {{ {ends} }} {goto}"
                );
            }
        }
        text
    }

    /// The rules for what clients send in answer to servers on connections whose SYNs were held, once for each, if connection
    /// tracking has seen no answer of the server. Only what the relay does not have is forwarded.
    fn asymmetric(&self) -> String {
        let mut text = String::new();
        for (side, rules) in Side::ALL.into_iter().zip(&self.sides) {
            let Some(interfaces) = names(&rules.interfaces) else { continue };
            let goto = self.goto("asymmetric", side);
            for ((plain, ends), set) in IS_PLAIN.into_iter().zip(ENDS).zip(HELD) {
                let _ = writeln!(
                    text,
                    "\t\tiifname {interfaces} {plain} tcp flags & syn == 0 ct state {{ new, invalid }} {ends} @{set} delete @{set} {{ {ends} }} {goto}"
                );
            }
        }
        text
    }

    /// The ports of one of the listeners, if there are any.
    fn listener(&self) -> Option<[u16; 2]> {
        self.sides.iter().flat_map(|side| &side.listeners).next().copied()
    }

    /// The chain for SYNs that open nothing. A leg to a client that is open takes one as any host does. A socket in
    /// TIME-WAIT is removed when one is assigned to a listener in its place; then the SYN is dropped.
    fn reopening(&self) -> String {
        let Some([v4, v6]) = self.listener() else { return String::new() };
        format!(
            "\tchain reopening {{\n\
             \t\tsocket mark {leg} accept\n\
             \t\tmeta l4proto tcp tproxy ip to 127.0.0.1:{v4}\n\
             \t\tmeta l4proto tcp tproxy ip6 to [::1]:{v6}\n\
             \t\tdrop\n\
             \t}}\n",
            leg = self.client_leg_mark()
        )
    }

    /// The group of nfnetlink_log by which a process of the relay receives the SYNs of clients on a side.
    #[must_use]
    pub fn group(&self, process: usize, side: Side) -> u16 {
        let first = u64::from(self.route_table) + 2 * process as u64 + side as u64;
        1 + (first % u64::from(u16::MAX)) as u16
    }

    /// The chains that put the legs to clients into a zone of connection tracking, before it sees their packets.
    ///
    /// Sockets of the handshake have no mark, but are transparent, as those of TIME-WAIT, to which peers repeat their FIN
    /// alone. A SYN on its way to the relay keeps its source, whatever others translate.
    fn zones(&self) -> String {
        let Self { mark, .. } = self;
        let (leg, refusal, zone) = (self.client_leg_mark(), self.refusal_mark(), self.zone());
        let last = self.last_mark();
        let mut text = String::new();
        for (ends, set) in ENDS.into_iter().zip(HELD) {
            let _ = write!(
                text,
                "\tset {set} {{\n\
                 \t\ttypeof {ends}\n\
                 \t\tflags dynamic,timeout\n\
                 \t\ttimeout {}s\n\
                 \t\tsize {HELD_MAX}\n\
                 \t}}\n",
                REPEATED.as_nanos() / 1_000_000_000
            );
        }
        let _ = write!(
            text,
            "\tchain client_leg {{\n\
             \t\tct zone set {zone} accept\n\
             \t}}\n\
             \tchain output {{\n\
             \t\ttype filter hook output priority raw; policy accept;\n\
             \t\tmeta mark {refusal} notrack\n\
             \t\tmeta mark {mark}-{last} {v4} notrack accept\n\
             \t\tmeta mark {mark}-{last} {v6} notrack accept\n\
             \t\tmeta mark {mark}-{leg} ct zone set {zone}\n\
             \t}}\n\
             \tchain postrouting {{\n\
             \t\ttype nat hook postrouting priority srcnat - 1; policy accept;\n\
             \t\toifname \"lo\" meta mark {mark}-{last} snat ip to ip saddr\n\
             \t\toifname \"lo\" meta mark {mark}-{last} snat ip6 to ip6 saddr\n\
             \t}}\n",
            v4 = NO_HOPS[0],
            v6 = NO_HOPS[1],
        );
        let both: Vec<_> = self.sides.iter().flat_map(|side| side.interfaces.clone()).collect();
        if let Some(interfaces) = names(&both) {
            text.push_str("\tchain legs {\n");
            for (ends, set) in ENDS.into_iter().zip(HELD) {
                let _ = writeln!(
                    text,
                    "\t\t{IS_SYN} {ends} @{set} meta l4proto @alive goto client_leg"
                );
            }
            let _ = write!(
                text,
                "\
                 \t\tsocket mark vmap {{ 0 : accept, {leg} : goto client_leg }}\n\
                 \t\ttcp flags & (fin | syn) == 0 socket transparent 1 goto client_leg\n\
                 \t}}\n\
                 \tchain before_tracking {{\n\
                 \t\ttype filter hook prerouting priority raw; policy accept;\n\
                 \t\tiifname {interfaces} meta l4proto {PROTOCOLS} goto legs\n\
                 \t}}\n"
            );
        }
        text
    }

    /// The zone of the legs to clients; that of all others is 0.
    fn zone(&self) -> u16 {
        1 + (self.route_table % u32::from(u16::MAX)) as u16
    }

    /// Adds all rules. New connections pass without the relay until [`Rules::renew`].
    ///
    /// # Errors
    /// A program is missing, or what it printed.
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
        run("nft", &["-f", "-"], &self.nft()).map(|_| ())
    }

    /// Lets the relay have the new connections that these rules select, in place of others. Those that it has go on, and
    /// the others do not pass meanwhile. A table that another program has removed is made again, as by [`Rules::replace`].
    ///
    /// # Errors
    /// As [`Rules::add`]; nothing is changed.
    pub fn select(&self) -> io::Result<()> {
        let table = &self.table;
        let rules = self.passing(&format!("add rule inet {table} passing "));
        let text = format!("flush chain inet {table} passing\n{rules}");
        let changed = run("nft", &["-f", "-"], &text).map(|_| ());
        let is_there = || run("nft", &["list", "chain", "inet", table, "passing"], "").is_ok();
        if changed.is_ok() || is_there() { changed } else { self.replace() }
    }

    /// Lets new connections pass without the relay from now on.
    ///
    /// # Errors
    /// As [`Rules::add`]; then they pass after [`LEASE`].
    pub fn release(&self) -> io::Result<()> {
        let text = format!("flush set inet {} alive\n", self.table);
        run("nft", &["-f", "-"], &text).map(|_| ())
    }

    /// Holds new connections for the relay during the next [`LEASE`]. A table that another program has removed, for
    /// instance by `nft flush ruleset`, is made again.
    ///
    /// # Errors
    /// As [`Rules::add`].
    pub fn renew(&self) -> io::Result<()> {
        let table = &self.table;
        // An element that exists keeps its end; one that is new has all of the time.
        let mut text = String::new();
        for verb in ["add", "delete", "add"] {
            let _ = writeln!(text, "{verb} element inet {table} alive {{ tcp }}");
        }
        run("nft", &["-f", "-"], &text)
            .or_else(|_| run("nft", &["-f", "-"], &(self.nft() + &text)))
            .map(|_| ())
    }

    /// Removes all rules. Those that are not there are no error.
    ///
    /// # Errors
    /// A program is missing.
    pub fn remove(&self) -> io::Result<()> {
        self.remove_routes();
        let table = &self.table;
        let text = format!("table inet {table}\ndelete table inet {table}\n");
        run("nft", &["-f", "-"], &text).map(|_| ())
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

/// Interfaces as a set of nftables; `None` if there are none.
fn names(interfaces: &[String]) -> Option<String> {
    set_of(interfaces.iter().map(|name| format!("\"{name}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_replaces_itself_and_names_every_part() {
        let side = |interfaces: &[&str], listeners| {
            let interfaces = interfaces.iter().map(|&name| name.to_owned()).collect();
            SideRules { interfaces, listeners }
        };
        let (table, mark, route_table) = ("bentpipe".to_owned(), 8, 100);
        let sides = [
            side(&["lan0", "lan1"], vec![[4_000, 6_000], [4_002, 6_002]]),
            side(&["sat0"], vec![[4_001, 6_001], [4_003, 6_003]]),
        ];
        let (except, only) = (Connections::default(), Connections::default());
        let rules = Rules { table, mark, processes: 2, route_table, sides, except, only };
        let text = rules.nft();
        assert!(text.starts_with("table inet bentpipe\ndelete table inet bentpipe\n"), "{text}");
        let parts =
            ["127.0.0.1:4000", "[::1]:6000", "mark set 8", "{ \"lan0\", \"lan1\", \"sat0\" }"];
        let zones =
            ["mark 8-12 ct zone set 101", "mark 13 notrack", "log group 101 ", "log group 104 "];
        let shares = ["iifname { \"lan0\", \"lan1\" } ip protocol tcp", "1 : goto hold_Lan_1 }"];
        let reopening = ["mark 8-11 ip ttl 0 notrack accept", "socket mark 12 accept"];
        let asymmetric = ["ip6 daddr . tcp dport } symhash mod 2 vmap { 0 : goto asymmetric_Lan_0"];
        for part in [&parts[..], &zones, &shares, &reopening, &asymmetric].concat() {
            assert!(text.contains(part), "{part} in {text}");
        }
        for (mark, port) in [(8, 4_000), (9, 4_001), (10, 4_002), (11, 4_003)] {
            let part = format!("meta mark {mark} meta l4proto tcp tproxy ip to 127.0.0.1:{port}");
            assert!(text.contains(&part), "{part} in {text}");
        }
    }

    #[test]
    fn marks_have_room_for_every_process_and_side() {
        assert_eq!([1, 2, 3, 4, 5].map(marks), [2, 4, 8, 8, 16]);
    }

    #[test]
    fn a_side_without_interfaces_has_no_rule() {
        let sides = [SideRules::default(), SideRules::default()];
        let table = "t".to_owned();
        let (except, only) = (Connections::default(), Connections::default());
        let (mark, route_table) = (6, 100);
        let rules = Rules { table, mark, processes: 1, route_table, sides, except, only };
        assert!(!rules.nft().contains("tproxy"));
    }
}
