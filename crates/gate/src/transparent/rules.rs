//! The rules of the firewall and of routing that lead connections to the relay.
//!
//! They are one table of nftables, which is made, replaced and deleted as a whole, one routing rule and one
//! routing table for each version of IP. A SYN is held only while an element of a set exists, which the kernel removes
//! after [`ALIVE_S`] unless it is renewed: if the relay dies or hangs, new connections pass without it.

use std::fmt::Write;
use std::io;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::sockets::Side;

/// Seconds after which new connections pass without a relay that has died.
pub(super) const ALIVE_S: u32 = 3;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The name of the table of nftables.
    pub table: String,
    /// The mark of packets for the relay, an even number. SYNs from the link have the next one.
    pub mark: u32,
    /// The number of the routing table.
    pub route_table: u32,
    /// Those of the two sides.
    pub sides: [SideRules; 2],
}

/// What leads the connections of clients on one side to the relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideRules {
    /// The interfaces; without any, connections from this side pass without the relay.
    pub interfaces: Vec<String>,
    /// The ports of the relay's listeners, for IPv4 and IPv6.
    pub listeners: [u16; 2],
}

impl Rules {
    /// The mark of SYNs that go on to the relay, from clients on this side.
    #[must_use]
    pub fn mark_of(&self, side: Side) -> u32 {
        self.mark + side as u32
    }

    /// The table of nftables, as the program `nft` reads it. It replaces a table of the same name.
    #[must_use]
    pub fn nft(&self) -> String {
        let Self { table, mark, .. } = self;
        let mut text = format!(
            "table inet {table}\n\
             delete table inet {table}\n\
             table inet {table} {{\n\
             \tset alive {{ type inet_proto; timeout {ALIVE_S}s; }}\n\
             \tchain prerouting {{\n\
             \t\ttype filter hook prerouting priority mangle; policy accept;\n\
             \t\tmeta l4proto tcp socket transparent 1 meta mark set {mark} accept\n"
        );
        for side in Side::ALL {
            let SideRules { interfaces, listeners: [v4, v6] } = &self.sides[side as usize];
            if interfaces.is_empty() {
                continue;
            }
            let names: Vec<_> = interfaces.iter().map(|name| format!("\"{name}\"")).collect();
            let (names, mark) = (names.join(", "), self.mark_of(side));
            let _ = write!(
                text,
                "\t\tiifname \"lo\" meta mark {mark} meta l4proto tcp tproxy ip to 127.0.0.1:{v4} accept\n\
                 \t\tiifname \"lo\" meta mark {mark} meta l4proto tcp tproxy ip6 to [::1]:{v6} accept\n\
                 \t\tiifname {{ {names} }} tcp flags & (fin | syn | rst | ack) == syn fib daddr type != local meta l4proto @alive drop\n"
            );
        }
        text.push_str("\t}\n}\n");
        text
    }

    /// Adds all rules. New connections pass without the relay until [`Rules::renew`].
    ///
    /// # Errors
    /// A program is missing, or what it printed.
    pub fn add(&self) -> io::Result<()> {
        self.remove_routes();
        self.routes("add")?;
        run("nft", &["-f", "-"], &self.nft())
    }

    /// Holds new connections for the relay during the next [`ALIVE_S`].
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
    }

    /// Removes all rules. Those that are not there are no error.
    ///
    /// # Errors
    /// A program is missing.
    pub fn remove(&self) -> io::Result<()> {
        self.remove_routes();
        let table = &self.table;
        run("nft", &["-f", "-"], &format!("table inet {table}\ndelete table inet {table}\n"))
    }

    fn remove_routes(&self) {
        // It fails if there is none.
        let _ = self.routes("del");
    }

    fn routes(&self, verb: &str) -> io::Result<()> {
        let (mark, table) = (format!("{}/{}", self.mark, !1_u32), self.route_table.to_string());
        let rule = ["rule", verb, "fwmark", &mark, "lookup", &table];
        let route = ["route", verb, "local", "default", "dev", "lo", "table", &table];
        let mut done = Ok(());
        for version in ["-4", "-6"] {
            for command in [&rule[..], &route[..]] {
                let ran = run("ip", &[&[version], command].concat(), "");
                done = done.and(ran);
            }
        }
        done
    }
}

/// Runs a program with this standard input.
fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{program}: {error}"));
    let mut child = command.spawn().map_err(named)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(named)?;
    }
    let output = child.wait_with_output().map_err(named)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} {}: {}", arguments.join(" "), message.trim())))
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
        let (table, mark, route_table) = ("bentpipe".to_owned(), 6, 100);
        let sides = [side(&["lan0", "lan1"], [4_000, 6_000]), side(&["sat0"], [4_001, 6_001])];
        let rules = Rules { table, mark, route_table, sides };
        let text = rules.nft();
        assert!(text.starts_with("table inet bentpipe\ndelete table inet bentpipe\n"), "{text}");
        for part in ["{ \"lan0\", \"lan1\" }", "127.0.0.1:4000", "[::1]:6000", "mark set 6"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(
            text.contains("meta mark 7 meta l4proto tcp tproxy ip to 127.0.0.1:4001"),
            "{text}"
        );
    }

    #[test]
    fn a_side_without_interfaces_has_no_rule() {
        let sides = [SideRules::default(), SideRules::default()];
        let rules = Rules { table: "t".to_owned(), mark: 6, route_table: 100, sides };
        assert!(!rules.nft().contains("tproxy"));
    }
}
