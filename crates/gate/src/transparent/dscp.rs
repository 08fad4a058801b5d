//! The rules that keep the DSCP (RFC 2474) of connections that are split.
//!
//! A map has the DSCP of what each end of a connection sends, by its addresses and ports. These are the same on both legs,
//! so each packet that a leg sends is looked up and gets the DSCP of what the other leg has received. The first DSCP other
//! than 0 counts until no packet with one was received for [`KEPT_FOR`]: rules can replace no element at a small cost.
//!
//! nft(8) must be able to read what it lists, since people save their rules so. It knows no DSCP but constants, so the value
//! goes through the priority of the packet, which selects one of 63 chains. And it knows no rule that adds to a map whose
//! keys are longer than 16 bytes. So for IPv6 a hash of the connection is in place of its addresses, which goes through the
//! priority, too; a set has the connections as a whole, since others may have the same hash.

use bentpipe_core::time::Duration;
use bentpipe_sys::nftables::{
    Batch, Expression, Field, KeyType, Set, SetOperation, Verdict, VerdictMap,
};

use super::matches::{
    Expressions, ends_keys, goto, jump, load_ends, lookup, network_header, plain_tcp, tcp,
    transport_header, version,
};

const KEPT_FOR: Duration = Duration::from_secs(60);
/// The most elements of a map: both directions of 65,536 connections. What is beyond them has DSCP 0.
const KEPT_MAX: u32 = 1 << 17;
/// The map for IPv4, by both ends of a connection.
const DSCP4: &str = "dscp4";
/// The map for IPv6, by a hash of the connection and both ports.
const DSCP6: &str = "dscp6";
/// The connections of IPv6 that are in the map.
const DSCP6_ENDS: &str = "dscp6_ends";

/// Where the first two bytes of an IP header have the DSCP (RFC 791, RFC 8200).
#[derive(Clone, Copy)]
enum Layout {
    Ipv4,
    Ipv6,
}

use Layout::{Ipv4, Ipv6};

// Chains.
const RECORD: &str = "record_dscp";
const RECORD6: &str = "record_dscp6";
const WRITE: &str = "write_dscp";
const WRITE6: &str = "write_dscp6";

/// Adds the maps and the chains.
pub(super) fn add(batch: &mut Batch) {
    for dscp in 1..64 {
        let chain = chain_of(dscp);
        batch.add_chain(&chain, None);
        batch.add_rule(&chain, &Ipv4.replace(dscp));
        batch.add_rule(&chain, &Ipv6.replace(dscp));
    }
    let short = vec![KeyType::Priority, KeyType::Port, KeyType::Port];
    let value = Some(KeyType::Priority);
    let sets = [
        (DSCP4, ends_keys(false), value),
        (DSCP6, short, value),
        (DSCP6_ENDS, ends_keys(true), None),
    ];
    for (name, keys, value) in sets {
        let set = Set { keys, value, timeout: KEPT_FOR, dynamic_size: Some(KEPT_MAX) };
        batch.add_set(name, &set);
    }
    add_ipv6(batch);
    batch.add_chain(RECORD, None);
    batch.add_rule(RECORD, &[Ipv4.has_dscp(), Ipv4.record(load_ends(false), DSCP4)].concat());
    batch.add_rule(RECORD, &[Ipv6.has_dscp(), vec![goto(RECORD6)]].concat());
    batch.add_chain(WRITE, None);
    let [ends4, ends6] =
        [false, true].map(|is_ipv6| [version(is_ipv6), tcp(), load_ends(is_ipv6)].concat());
    batch.add_rule(WRITE, &[ends4, Ipv4.select(DSCP4)].concat());
    batch.add_rule(WRITE, &[ends6, vec![lookup(DSCP6_ENDS, false), goto(WRITE6)]].concat());
}

/// The chains for packets of IPv6 with a DSCP, and for those to which one is given. Their rules after the first may not apply,
/// if the map is full or has nothing, so the last one removes the hash.
fn add_ipv6(batch: &mut Batch) {
    let ends = vec![Expression::ChangeSet(SetOperation::Update, DSCP6_ENDS)];
    // Only with both conditions nft(8) takes the bytes for addresses and ports.
    let is_tcp = [version(true), tcp()].concat();
    let record = [is_tcp.clone(), Ipv6.record(load_short(), DSCP6), load_ends(true), ends].concat();
    let select = [is_tcp, load_short(), Ipv6.select(DSCP6)].concat();
    for (chain, rule) in [(RECORD6, record), (WRITE6, select)] {
        batch.add_chain(chain, None);
        let hash = Field::SymmetricHash { modulus: u32::MAX };
        batch.add_rule(chain, &[Expression::Load(hash, 0), Expression::SetPriority]);
        batch.add_rule(chain, &rule);
        batch.add_rule(chain, &priority(0));
    }
}

/// Records the DSCP of a packet that one end of a connection has sent.
pub(super) fn record() -> Expression {
    jump(RECORD)
}

/// Gives a packet to one end of a connection the DSCP of the other end.
pub(super) fn write() -> Expression {
    jump(WRITE)
}

impl Layout {
    fn is_ipv6(self) -> bool {
        matches!(self, Ipv6)
    }

    /// A segment has a DSCP.
    fn has_dscp(self) -> Expressions {
        let [mask, zero] = [self.bits(63), 0].map(|bits| bits.to_be_bytes().to_vec());
        let differs = Expression::Compare { value: zero, is_inverted: true };
        let has_dscp = vec![header(), Expression::Mask(mask), differs];
        [version(self.is_ipv6()), has_dscp, plain_tcp(self.is_ipv6())].concat()
    }

    /// Records the DSCP of a packet in a map with these keys.
    fn record(self, keys: Expressions, map: &'static str) -> Expressions {
        // Behind the keys.
        let register = if self.is_ipv6() { 3 } else { 4 };
        let kept = [self.bits(63).to_be_bytes(), [0; 2]].concat();
        let value = vec![
            Expression::Load(network_header(0, 4), register),
            Expression::ReplaceBits { register, kept, replaced: vec![0; 4] },
            Expression::ChangeMap(SetOperation::Update, map, register),
        ];
        [keys, value].concat()
    }

    /// Goes on to the chain of the DSCP that a map has for the loaded keys.
    fn select(self, map: &'static str) -> Expressions {
        let verdict = |dscp| {
            let [high, low] = self.bits(dscp).to_be_bytes();
            (vec![high, low, 0, 0], Verdict::Goto(chain_of(dscp)))
        };
        let verdicts = (1..64).map(verdict).collect();
        vec![
            Expression::LoadValue(map),
            Expression::SetPriority,
            Expression::Load(Field::Priority, 0),
            Expression::Map(VerdictMap { key: KeyType::Priority, verdicts }),
        ]
    }

    /// Sets a DSCP, and the priority in queues of this host as it is for packets that the kernel forwards.
    fn replace(self, dscp: u16) -> Expressions {
        let is_ipv6 = self.is_ipv6();
        let bits = [!self.bits(63), self.bits(dscp)];
        let [kept, replaced] = bits.map(|bits| bits.to_be_bytes().to_vec());
        let bits = Expression::ReplaceBits { register: 0, kept, replaced };
        let write = vec![header(), bits, Expression::WriteHeader { is_ipv6 }];
        [version(is_ipv6), write, priority(self.priority(dscp)).to_vec()].concat()
    }

    /// From `ip_tos2prio` and linux/pkt_sched.h. The kernel has none for IPv6.
    fn priority(self, dscp: u16) -> u32 {
        match (self, dscp & 0b110) {
            (Ipv4, 0b010) => 2,
            (Ipv4, 0b100) => 6,
            (Ipv4, 0b110) => 4,
            _ => 0,
        }
    }

    fn bits(self, dscp: u16) -> u16 {
        dscp << if self.is_ipv6() { 6 } else { 2 }
    }
}

/// Loads the priority and both ports, the keys of the map for IPv6.
fn load_short() -> Expressions {
    let fields = [Field::Priority, transport_header(0, 2), transport_header(2, 2)];
    fields.into_iter().zip(0..).map(|(field, register)| Expression::Load(field, register)).collect()
}

/// Loads the first two bytes of the IP header.
fn header() -> Expression {
    Expression::Load(network_header(0, 2), 0)
}

/// Sets the priority of a packet.
fn priority(value: u32) -> [Expression; 2] {
    [Expression::Immediate(value.to_ne_bytes().to_vec(), 0), Expression::SetPriority]
}

/// The chain for packets of this DSCP.
fn chain_of(dscp: u16) -> String {
    format!("dscp_{dscp}")
}
