//! The table of nftables as data. `crates/gate/tests/daemon/tables/` has it in the language of nft(8).

use bentpipe_core::time::Duration;
use bentpipe_sys::nftables::{
    BaseChain, Batch, Expression, Field, Hook, KeyType, Set, SetOperation, Verdict, VerdictMap,
};

use super::dscp;
use super::matches::{
    End, Expressions, FIN, SYN, TCP, accept, address, between, ends_keys, equal, from_any, goto,
    jump, load_ends, lookup, mark, name_bytes, new_or_invalid, no_hops, opens, plain_tcp, signed,
    tcp, tcp_flags, tcp_or_icmp, to_listener, transparent_socket, version, without_dnat,
};
use super::rules::{LEASE, Rules, SYN_BYTES_MAX, SideRules};
use super::selection::passing;
use crate::Side;

/// The chain that lets connections pass that are left out, or signed.
const PASSING: &str = "passing";
/// Whether it is for IPv6.
const VERSIONS: [bool; 2] = [false, true];
/// A client repeats its SYN after 1, 2, 4, 8 and 16 s (RFC 6298).
const HELD_FOR: Duration = Duration::from_secs(20);
/// The sets of those of which a SYN is held.
const HELD: [&str; 2] = ["held4", "held6"];
/// The most in each. Beyond them connections pass without the relay.
const HELD_MAX: u32 = 1 << 20;
/// More than the headers of a segment.
const SEGMENT_BYTES: u32 = 128;

/// Priorities of hooks (linux/netfilter_ipv4.h); other rules of the FORWARD hook come before the last one.
const RAW: i32 = -300;
const MANGLE: i32 = -150;
const DST_NAT: i32 = -100;
const SRC_NAT: i32 = 100;
const LAST: i32 = 1_000;

// Chains. Those of hooks test first what most packets are not, so most packets pass few rules.
const ANSWERS: &str = "answers";
const CLIENT_LEG: &str = "client_leg";
const FROM_RELAY: &str = "from_relay";
const HOLDS: &str = "holds";
const LEGS: &str = "legs";
const MARKED: &str = "marked";
const OPENING: &str = "opening";
const REOPENING: &str = "reopening";
const REPEATED: &str = "repeated";

/// Changes to the table.
impl Rules {
    /// Makes the table, in place of one of the same name.
    ///
    /// A SYN that the relay sends on is first. It reopens a connection of which a socket is left in TIME-WAIT, and
    /// otherwise reaches the socket of the connection, if there is one. SYNs from clients reach sockets by way of the
    /// relay alone. Those of connections that have one are held at once: the kernel does not forward what it has found a
    /// socket for. The rule that leads other packets to sockets comes after NAT, since servers may answer to another
    /// address.
    pub(super) fn make(&self, batch: &mut Batch) {
        remove(batch);
        batch.add_table();
        dscp::add(batch);
        self.add_sets(batch);
        self.add_zones(batch);
        self.add_logs(batch);
        self.add_holds(batch);
        batch.add_chain(REOPENING, None);
        batch.add_chain(FROM_RELAY, None);
        self.add_listeners(batch);
        batch.add_chain("prerouting", filter(Hook::Prerouting, MANGLE));
        let from_relay = equal(Field::IngressName, &name_bytes("lo"));
        add(batch, "prerouting", [from_relay, vec![goto(FROM_RELAY)]]);
        batch.add_chain("after_nat", filter(Hook::Prerouting, DST_NAT + 1));
        let held = [opens(), is_short(), transparent_socket(), vec![jump(HOLDS)]];
        add(batch, "after_nat", held);
        let mark = Expression::Immediate(self.mark.to_ne_bytes().to_vec(), 0);
        let to_relay = vec![mark, Expression::SetMark, dscp::record()];
        add(batch, "after_nat", [tcp_or_icmp(), transparent_socket(), to_relay]);
        batch.add_chain(PASSING, None);
        self.add_passing(batch);
        add_opening(batch);
        self.add_asymmetric(batch);
        batch.add_chain("forward", filter(Hook::Forward, LAST));
        add(batch, "forward", [opens(), vec![goto(OPENING)]]);
        let answers = [tcp(), tcp_flags(SYN, 0), new_or_invalid(), vec![goto(ANSWERS)]];
        add(batch, "forward", answers);
    }

    /// Leads SYNs to the listeners, in place of others.
    pub(super) fn listen_in(&self, batch: &mut Batch) {
        batch.flush_chain(FROM_RELAY);
        batch.flush_chain(REOPENING);
        self.add_listeners(batch);
    }

    /// Lets the connections that are left out pass, in place of others.
    pub(super) fn select_in(&self, batch: &mut Batch) {
        batch.flush_chain(PASSING);
        self.add_passing(batch);
    }

    fn add_passing(&self, batch: &mut Batch) {
        for signed in signed() {
            add(batch, PASSING, [signed, vec![accept()]]);
        }
        for rule in passing(&self.except, &self.only) {
            batch.add_rule(PASSING, &rule);
        }
    }

    /// The chains that put the legs to clients into a zone of connection tracking, before it sees their packets.
    ///
    /// Sockets of the handshake have no mark, but are transparent, as those of TIME-WAIT, to which peers repeat their FIN
    /// alone. A SYN on its way to the relay keeps its source, whatever others translate.
    fn add_zones(&self, batch: &mut Batch) {
        let leg = self.client_leg_mark();
        let syns = || self.is_syn_to_relay();
        let zone = Expression::Immediate(self.zone().to_ne_bytes().to_vec(), 0);
        let set_zone = vec![zone, Expression::SetZone];
        batch.add_chain(CLIENT_LEG, None);
        add(batch, CLIENT_LEG, [set_zone.clone(), vec![accept()]]);
        batch.add_chain(MARKED, None);
        add(batch, MARKED, [mark(self.refusal_mark()), vec![Expression::NoTrack, accept()]]);
        for is_ipv6 in VERSIONS {
            let untracked = vec![Expression::NoTrack, accept()];
            add(batch, MARKED, [syns(), no_hops(is_ipv6), untracked]);
        }
        batch.add_rule(MARKED, &set_zone);
        batch.add_chain("output", filter(Hook::Output, RAW));
        batch.add_rule("output", &[dscp::write()]);
        let any_mark = between(Field::Mark, self.mark, self.refusal_mark());
        add(batch, "output", [any_mark, vec![goto(MARKED)]]);
        let priority = SRC_NAT - 1;
        let nat = BaseChain { hook: Hook::Postrouting, priority, is_nat: true };
        batch.add_chain("postrouting", Some(nat));
        for is_ipv6 in VERSIONS {
            let to_relay = equal(Field::EgressName, &name_bytes("lo"));
            let source = Expression::Load(address(End::Source, is_ipv6), 0);
            let keep = vec![source, Expression::SourceNat { is_ipv6 }];
            add(batch, "postrouting", [to_relay, syns(), version(is_ipv6), keep]);
        }
        let both: Vec<_> = self.sides.iter().flat_map(|side| side.interfaces.clone()).collect();
        let Some(from) = from_any(&both) else { return };
        self.add_repeated(batch);
        batch.add_chain(LEGS, None);
        add(batch, LEGS, [opens(), vec![jump(REPEATED)]]);
        let marks = [(0, Verdict::Accept), (leg, Verdict::Goto(CLIENT_LEG.to_owned()))];
        let map = verdicts(KeyType::Mark, marks);
        add(batch, LEGS, [vec![Expression::Load(Field::SocketMark, 0), map]]);
        let others = tcp_flags(FIN | SYN, 0);
        add(batch, LEGS, [tcp(), others, transparent_socket(), vec![goto(CLIENT_LEG)]]);
        batch.add_chain("before_tracking", filter(Hook::Prerouting, RAW));
        add(batch, "before_tracking", [from, tcp_or_icmp(), vec![goto(LEGS)]]);
    }

    /// The chains for the SYNs that repeat one that was held, if it was for a process that is there.
    fn add_repeated(&self, batch: &mut Batch) {
        for process in 0..self.processes {
            let chain = chain_of(REPEATED, process);
            batch.add_chain(&chain, None);
            add(batch, &chain, [is_alive(process), vec![goto(CLIENT_LEG)]]);
        }
        batch.add_chain(REPEATED, None);
        for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
            let is_held = [load_ends(is_ipv6), vec![lookup(set, false)]].concat();
            add(batch, REPEATED, [version(is_ipv6), is_held, self.goto(REPEATED)]);
        }
    }

    /// The chains to which packets go that the relay receives: SYNs, which are held if the process is there, and what shows an
    /// asymmetric path.
    fn add_logs(&self, batch: &mut Batch) {
        for side in Side::ALL {
            for process in 0..self.processes {
                let group = self.group(process, side);
                let log = |bytes| Expression::Log { group, bytes };
                let [held, hold] =
                    ["held", "hold"].map(|name| chain_of(&name_of(name, side), process));
                batch.add_chain(&held, None);
                batch.add_rule(&held, &[dscp::record()]);
                let drop = Expression::Verdict(Verdict::Drop);
                batch.add_rule(&held, &[log(SYN_BYTES_MAX as u32), drop]);
                batch.add_chain(&hold, None);
                for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
                    let condition = [version(is_ipv6), is_alive(process)].concat();
                    let note = change_ends(SetOperation::Update, set, is_ipv6);
                    add(batch, &hold, [condition, note, vec![goto(&held)]]);
                }
                let asymmetric = chain_of(&name_of("asymmetric", side), process);
                batch.add_chain(&asymmetric, None);
                batch.add_rule(&asymmetric, &[log(SEGMENT_BYTES)]);
            }
        }
    }

    /// The chain that leads SYNs to their process.
    fn add_holds(&self, batch: &mut Batch) {
        batch.add_chain(HOLDS, None);
        for (side, rules) in Side::ALL.into_iter().zip(&self.sides) {
            let Some(from) = from_any(&rules.interfaces) else { continue };
            for is_ipv6 in VERSIONS {
                let to_process = self.goto(&name_of("hold", side));
                add(batch, HOLDS, [from.clone(), plain_tcp(is_ipv6), to_process]);
            }
        }
    }

    /// The rules that lead SYNs to the listeners, and those for SYNs that open nothing. A leg to a client that is open
    /// takes one as any host does. A socket in TIME-WAIT is removed when one is assigned to a listener in its place; then
    /// the SYN is dropped.
    fn add_listeners(&self, batch: &mut Batch) {
        let with_listeners = self.sides.iter().find(|side| !side.listeners.is_empty());
        let Some(SideRules { listeners, .. }) = with_listeners else { return };
        let leg = self.client_leg_mark().to_ne_bytes();
        add(batch, REOPENING, [equal(Field::SocketMark, &leg), vec![accept()]]);
        // Any listener does; those of a process that has ended are closed.
        for ports in listeners {
            for (&port, is_ipv6) in ports.iter().zip(VERSIONS) {
                add(batch, REOPENING, [to_listener(port, is_ipv6)]);
            }
        }
        batch.add_rule(REOPENING, &[Expression::Verdict(Verdict::Drop)]);
        for is_ipv6 in VERSIONS {
            let reopens = [no_hops(is_ipv6), tcp(), vec![goto(REOPENING)]].concat();
            add(batch, FROM_RELAY, [self.is_syn_to_relay(), reopens]);
        }
        for side in Side::ALL {
            for (process, ports) in self.sides[side as usize].listeners.iter().enumerate() {
                for (&port, is_ipv6) in ports.iter().zip(VERSIONS) {
                    let of_process = mark(self.mark_of(process, side));
                    add(
                        batch,
                        FROM_RELAY,
                        [of_process, to_listener(port, is_ipv6), vec![accept()]],
                    );
                }
            }
        }
    }

    /// The chain for what clients send in answer to servers on connections whose SYNs were held: the first packet of each. Only
    /// what the relay does not have is forwarded.
    fn add_asymmetric(&self, batch: &mut Batch) {
        batch.add_chain(ANSWERS, None);
        for (side, rules) in Side::ALL.into_iter().zip(&self.sides) {
            let Some(from) = from_any(&rules.interfaces) else { continue };
            for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
                let is_held = [load_ends(is_ipv6), vec![lookup(set, false)]].concat();
                let forget = change_ends(SetOperation::Delete, set, is_ipv6);
                let to_relay = self.goto(&name_of("asymmetric", side));
                add(batch, ANSWERS, [from.clone(), plain_tcp(is_ipv6), is_held, forget, to_relay]);
            }
        }
    }

    /// Leads a packet to the chain of this name of one process. All packets of a connection go to the same.
    fn goto(&self, name: &str) -> Expressions {
        let chain = |process| chain_of(name, process);
        if self.processes == 1 {
            return vec![goto(&chain(0))];
        }
        let modulus = self.processes as u32;
        let map = verdicts(
            KeyType::Integer,
            (0..modulus).map(|process| (process, Verdict::Goto(chain(process as usize)))),
        );
        vec![Expression::Load(Field::SymmetricHash { modulus }, 0), map]
    }

    /// The mark of a SYN on its way to the relay.
    fn is_syn_to_relay(&self) -> Expressions {
        between(Field::Mark, self.mark, self.client_leg_mark() - 1)
    }

    fn add_sets(&self, batch: &mut Batch) {
        for process in 0..self.processes {
            let (keys, timeout) = (vec![KeyType::Protocol], LEASE);
            let set = Set { keys, value: None, timeout, dynamic_size: None };
            batch.add_set(&alive(process), &set);
        }
        for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
            let (keys, dynamic_size) = (ends_keys(is_ipv6), Some(HELD_MAX));
            batch.add_set(set, &Set { keys, value: None, timeout: HELD_FOR, dynamic_size });
        }
    }

    /// The zone of the legs to clients; that of all others is 0.
    fn zone(&self) -> u16 {
        1 + (self.route_table % u32::from(u16::MAX)) as u16
    }
}

/// Removes the table, whether there is one or not.
pub(super) fn remove(batch: &mut Batch) {
    batch.add_table();
    batch.delete_table();
}

/// Holds SYNs for a process during the next [`LEASE`].
pub(super) fn renew(batch: &mut Batch, process: usize) {
    let alive = alive(process);
    // An element that exists keeps its end; one that is new has all of the time.
    batch.add_element(&alive, &[TCP]);
    batch.delete_element(&alive, &[TCP]);
    batch.add_element(&alive, &[TCP]);
}

/// Holds no SYN for a process any more.
pub(super) fn release(batch: &mut Batch, process: usize) {
    batch.flush_set(&alive(process));
}

/// Whether the table of this name has the chain for what is left out.
pub(super) fn has_passing(table: &str) -> std::io::Result<bool> {
    bentpipe_sys::nftables::has_chain(table, PASSING)
}

/// The chain for SYNs that are forwarded. The first SYN of a connection decides whether it is left out: those that repeat one
/// that was held are held, too, though it would pass now.
fn add_opening(batch: &mut Batch) {
    batch.add_chain(OPENING, None);
    for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
        let is_new = [load_ends(is_ipv6), vec![lookup(set, true)]].concat();
        add(batch, OPENING, [version(is_ipv6), is_new, vec![jump(PASSING)]]);
    }
    add(batch, OPENING, [is_short(), without_dnat(), vec![goto(HOLDS)]]);
}

/// The relay can read the SYN.
fn is_short() -> Expressions {
    between(Field::Length, 0, SYN_BYTES_MAX as u32)
}

/// Whether a process of the relay is there.
fn is_alive(process: usize) -> Expressions {
    vec![Expression::Load(Field::Protocol, 0), lookup(&alive(process), false)]
}

/// The set that has [`TCP`] while SYNs are held for a process.
fn alive(process: usize) -> String {
    format!("alive_{process}")
}

fn change_ends(operation: SetOperation, set: &'static str, is_ipv6: bool) -> Expressions {
    [load_ends(is_ipv6), vec![Expression::ChangeSet(operation, set)]].concat()
}

fn name_of(name: &str, side: Side) -> String {
    format!("{name}_{side:?}")
}

fn chain_of(name: &str, process: usize) -> String {
    format!("{name}_{process}")
}

fn verdicts(key: KeyType, verdicts: impl IntoIterator<Item = (u32, Verdict)>) -> Expression {
    let bytes = |(value, verdict): (u32, Verdict)| (value.to_ne_bytes().to_vec(), verdict);
    Expression::Map(VerdictMap { key, verdicts: verdicts.into_iter().map(bytes).collect() })
}

fn filter(hook: Hook, priority: i32) -> Option<BaseChain> {
    Some(BaseChain { hook, priority, is_nat: false })
}

/// Appends a rule with these parts.
fn add<const PARTS: usize>(batch: &mut Batch, chain: &str, parts: [Expressions; PARTS]) {
    batch.add_rule(chain, &parts.concat());
}
