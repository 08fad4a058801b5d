//! The table of nftables as data. `crates/gate/tests/daemon/tables/` has it in the language of nft(8).

use bentpipe_core::time::Duration;
use bentpipe_sys::nftables::{
    BaseChain, Batch, Expression, Field, Hook, KeyType, Set, SetOperation, Verdict, VerdictMap,
};

use super::matches::{
    End, Expressions, FIN, SYN, TCP, accept, address, between, ends_keys, equal, from_any, goto,
    load_ends, lookup, mark, name_bytes, new_or_invalid, no_hops, plain_tcp, signed, syn_flags,
    tcp, tcp_flags, tcp_or_icmp, to_listener, transparent_socket, version, without_dnat,
};
use super::rules::{LEASE, Rules, SYN_BYTES_MAX};
use super::selection::passing;
use crate::Side;

/// The set that has [`TCP`] while SYNs are held.
const ALIVE: &str = "alive";
/// The chain that lets connections pass that are left out, or signed.
const PASSING: &str = "passing";
/// Whether it is for IPv6.
const VERSIONS: [bool; 2] = [false, true];
/// A client repeats its SYN after 1, 2, 4, 8 and 16 s (RFC 6298).
const REPEATED: Duration = Duration::from_secs(20);
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

const CLIENT_LEG: &str = "client_leg";
const LEGS: &str = "legs";
const REOPENING: &str = "reopening";

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
        add_sets(batch);
        self.add_zones(batch);
        self.add_logs(batch);
        self.add_prerouting(batch);
        batch.add_chain("after_nat", filter(Hook::Prerouting, DST_NAT + 1));
        self.add_holds(batch, "after_nat", &transparent_socket());
        let mark = Expression::Immediate(self.mark.to_ne_bytes().to_vec(), 0);
        let to_relay = vec![mark, Expression::SetMark];
        add(batch, "after_nat", [tcp_or_icmp(), transparent_socket(), to_relay]);
        batch.add_chain(PASSING, None);
        self.add_passing(batch);
        batch.add_chain("forward", filter(Hook::Forward, LAST));
        add_selected(batch);
        self.add_holds(batch, "forward", &without_dnat());
        self.add_asymmetric(batch);
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
        batch.add_chain("output", filter(Hook::Output, RAW));
        add(batch, "output", [mark(self.refusal_mark()), vec![Expression::NoTrack]]);
        for is_ipv6 in VERSIONS {
            let untracked = vec![Expression::NoTrack, accept()];
            add(batch, "output", [syns(), no_hops(is_ipv6), untracked]);
        }
        add(batch, "output", [between(Field::Mark, self.mark, leg), set_zone]);
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
        batch.add_chain(LEGS, None);
        for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
            let held = [load_ends(is_ipv6), vec![lookup(set)], is_alive()].concat();
            let to_zone = vec![goto(CLIENT_LEG)];
            add(batch, LEGS, [tcp(), syn_flags(), version(is_ipv6), held, to_zone]);
        }
        let marks = [(0, Verdict::Accept), (leg, Verdict::Goto(CLIENT_LEG.to_owned()))];
        let map = verdicts(KeyType::Mark, marks);
        add(batch, LEGS, [vec![Expression::Load(Field::SocketMark, 0), map]]);
        let others = tcp_flags(FIN | SYN, 0);
        add(batch, LEGS, [tcp(), others, transparent_socket(), vec![goto(CLIENT_LEG)]]);
        batch.add_chain("before_tracking", filter(Hook::Prerouting, RAW));
        add(batch, "before_tracking", [from, tcp_or_icmp(), vec![goto(LEGS)]]);
    }

    /// The chains to which packets go that the relay receives: SYNs, which are held, and what shows an asymmetric path.
    fn add_logs(&self, batch: &mut Batch) {
        for side in Side::ALL {
            for process in 0..self.processes {
                let group = self.group(process, side);
                let log = |bytes| Expression::Log { group, bytes };
                let hold = chain_of("hold", side, process);
                batch.add_chain(&hold, None);
                let drop = Expression::Verdict(Verdict::Drop);
                batch.add_rule(&hold, &[log(SYN_BYTES_MAX as u32), drop]);
                let asymmetric = chain_of("asymmetric", side, process);
                batch.add_chain(&asymmetric, None);
                batch.add_rule(&asymmetric, &[log(SEGMENT_BYTES)]);
            }
        }
    }

    /// The chain that leads SYNs to the listeners, and the one for SYNs that open nothing. A leg to a client that is open
    /// takes one as any host does. A socket in TIME-WAIT is removed when one is assigned to a listener in its place; then
    /// the SYN is dropped.
    fn add_prerouting(&self, batch: &mut Batch) {
        let listener = self.sides.iter().flat_map(|side| &side.listeners).next();
        if let Some(ports) = listener {
            batch.add_chain(REOPENING, None);
            let leg = self.client_leg_mark().to_ne_bytes();
            add(batch, REOPENING, [equal(Field::SocketMark, &leg), vec![accept()]]);
            for (&port, is_ipv6) in ports.iter().zip(VERSIONS) {
                add(batch, REOPENING, [to_listener(port, is_ipv6)]);
            }
            batch.add_rule(REOPENING, &[Expression::Verdict(Verdict::Drop)]);
        }
        batch.add_chain("prerouting", filter(Hook::Prerouting, MANGLE));
        let from_relay = || equal(Field::IngressName, &name_bytes("lo"));
        if listener.is_some() {
            for is_ipv6 in VERSIONS {
                let reopens = [no_hops(is_ipv6), tcp(), vec![goto(REOPENING)]].concat();
                add(batch, "prerouting", [from_relay(), self.is_syn_to_relay(), reopens]);
            }
        }
        for side in Side::ALL {
            for (process, ports) in self.sides[side as usize].listeners.iter().enumerate() {
                for (&port, is_ipv6) in ports.iter().zip(VERSIONS) {
                    let of_process = mark(self.mark_of(process, side));
                    let assign = [to_listener(port, is_ipv6), vec![accept()]].concat();
                    add(batch, "prerouting", [from_relay(), of_process, assign]);
                }
            }
        }
    }

    /// The rules that hold SYNs on this condition.
    fn add_holds(&self, batch: &mut Batch, chain: &str, condition: &[Expression]) {
        for (side, rules) in Side::ALL.into_iter().zip(&self.sides) {
            let Some(from) = from_any(&rules.interfaces) else { continue };
            for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
                let syn = [plain_tcp(is_ipv6), syn_flags()].concat();
                let is_short = between(Field::Length, 0, SYN_BYTES_MAX as u32);
                let note = change_ends(SetOperation::Update, set, is_ipv6);
                let rule = [from.clone(), syn, is_short, condition.to_vec(), is_alive(), note];
                batch.add_rule(chain, &[rule.concat(), self.goto("hold", side)].concat());
            }
        }
    }

    /// The rules for what clients send in answer to servers on connections whose SYNs were held, once for each, if connection
    /// tracking has seen no answer of the server. Only what the relay does not have is forwarded.
    fn add_asymmetric(&self, batch: &mut Batch) {
        for (side, rules) in Side::ALL.into_iter().zip(&self.sides) {
            let Some(from) = from_any(&rules.interfaces) else { continue };
            for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
                let no_syn = [plain_tcp(is_ipv6), tcp_flags(SYN, 0)].concat();
                let is_held = [load_ends(is_ipv6), vec![lookup(set)]].concat();
                let forget = change_ends(SetOperation::Delete, set, is_ipv6);
                let to_relay = self.goto("asymmetric", side);
                let rule = [from.clone(), no_syn, new_or_invalid(), is_held, forget, to_relay];
                add(batch, "forward", rule);
            }
        }
    }

    /// The chain to a process of the relay, one of those of this name. All packets of a connection go to the same.
    fn goto(&self, name: &str, side: Side) -> Expressions {
        let chain = |process| chain_of(name, side, process);
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

/// Holds SYNs during the next [`LEASE`].
pub(super) fn renew(batch: &mut Batch) {
    // An element that exists keeps its end; one that is new has all of the time.
    batch.add_element(ALIVE, &[TCP]);
    batch.delete_element(ALIVE, &[TCP]);
    batch.add_element(ALIVE, &[TCP]);
}

/// Holds no SYN any more.
pub(super) fn release(batch: &mut Batch) {
    batch.flush_set(ALIVE);
}

/// Whether the table of this name has the chain for what is left out.
pub(super) fn has_passing(table: &str) -> std::io::Result<bool> {
    bentpipe_sys::nftables::has_chain(table, PASSING)
}

fn add_sets(batch: &mut Batch) {
    let keys = vec![KeyType::Protocol];
    batch.add_set(ALIVE, &Set { keys, timeout: LEASE, dynamic_size: None });
    for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
        let (keys, dynamic_size) = (ends_keys(is_ipv6), Some(HELD_MAX));
        batch.add_set(set, &Set { keys, timeout: REPEATED, dynamic_size });
    }
}

/// The rules that ask whether a connection is left out, once for each: the SYNs that repeat one that was held are held,
/// too, though it would pass now.
fn add_selected(batch: &mut Batch) {
    for (is_ipv6, set) in VERSIONS.into_iter().zip(HELD) {
        let is_new = Expression::Lookup { set, is_inverted: true };
        let ask = vec![is_new, Expression::Verdict(Verdict::Jump(PASSING.to_owned()))];
        let syn = [tcp(), syn_flags(), version(is_ipv6)].concat();
        add(batch, "forward", [syn, load_ends(is_ipv6), ask]);
    }
}

/// Whether the relay is there.
fn is_alive() -> Expressions {
    vec![Expression::Load(Field::Protocol, 0), lookup(ALIVE)]
}

fn change_ends(operation: SetOperation, set: &'static str, is_ipv6: bool) -> Expressions {
    [load_ends(is_ipv6), vec![Expression::ChangeSet(operation, set)]].concat()
}

fn chain_of(name: &str, side: Side, process: usize) -> String {
    format!("{name}_{side:?}_{process}")
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
