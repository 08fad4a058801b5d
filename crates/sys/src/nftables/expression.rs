//! The expressions of rules.

use super::set::{AnonymousSet, VerdictMap};
use super::text;
use super::verdict::{DATA_VALUE, LIST_ELEMENT, Verdict};
use crate::netlink::{attribute, nested};

/// From linux/netfilter/nf_tables.h.
const NAME: u16 = 1;
const DATA: u16 = 2;
/// The register of verdicts, and the first one of 32 bits for data.
const VERDICT_REGISTER: u32 = 0;
const FIRST_REGISTER: u32 = 8;
const META_PRIORITY: u32 = 2;
const META_MARK: u32 = 3;
const CT_ZONE: u32 = 17;
const NFPROTO_IPV4: u32 = 2;
const NFPROTO_IPV6: u32 = 10;
const HTON: u32 = 1;
const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;
const SYMMETRIC_HASH: u32 = 1;
const NAT_SOURCE: u32 = 0;
const EXTHDR_PRESENT: u32 = 1;
const EXTHDR_TCP_OPTION: u32 = 1;
const CHECKSUM_INTERNET: u32 = 1;
/// The offset of the checksum of an IPv4 header (RFC 791).
const IPV4_CHECKSUM_OFFSET: u32 = 10;

/// What is compared or loaded: in the byte order of its field.
pub type Bytes = Vec<u8>;

/// A property of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Its length from the IP header on, an integer in host byte order.
    Length,
    /// Its priority in queues of this host, in host byte order.
    Priority,
    /// Its mark, in host byte order.
    Mark,
    /// The interface by which it came, 16 bytes.
    IngressName,
    /// The interface by which it leaves, 16 bytes.
    EgressName,
    /// The version of IP, a byte: 2 for IPv4, 10 for IPv6.
    Family,
    /// The protocol of the transport layer, a byte.
    Protocol,
    /// The state of its connection, a bit of an integer in host byte order.
    ConnectionState,
    /// What connection tracking knows of its connection, bits in host byte order.
    ConnectionStatus,
    /// Whether the socket that it belongs to is transparent, a byte. Without a socket no value is equal.
    SocketIsTransparent,
    /// The mark of the socket that it belongs to, in host byte order.
    SocketMark,
    /// Whether a TCP segment has an option of this kind, a byte.
    HasTcpOption(u8),
    /// Bytes of a header.
    Payload {
        /// The header.
        header: Header,
        /// The first byte.
        offset: u8,
        /// The number of bytes.
        bytes: u8,
    },
    /// A hash of its connection, the same in both directions, modulo this.
    SymmetricHash {
        /// The number of values.
        modulus: u32,
    },
}

/// A header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// That of IP.
    Network = 1,
    /// That of TCP, for instance.
    Transport = 2,
}

/// What a rule does to the set of its packet's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetOperation {
    /// Adds an element, or lets the one that exists expire later. If the set is full, the packet goes on to the next rule.
    Update = 1,
    /// Deletes the element.
    Delete = 2,
}

/// A part of a rule. If a comparison fails, the packet goes on to the next rule.
///
/// Comparisons and lookups begin at the first register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads a property into registers of four bytes, from this one on.
    Load(Field, u8),
    /// Loads a value.
    Immediate(Bytes, u8),
    /// Keeps these bits of the first register.
    Mask(Bytes),
    /// Replaces bits of a register.
    ReplaceBits {
        /// The register.
        register: u8,
        /// The bits that it keeps.
        kept: Bytes,
        /// The value of the others.
        replaced: Bytes,
    },
    /// Changes an integer of 32 bits from host to network byte order, in which it can be compared with a range.
    ToNetworkOrder,
    /// Compares with a value: equal, or else.
    Compare {
        /// The value.
        value: Bytes,
        /// Whether other values match.
        is_inverted: bool,
    },
    /// Compares with a range in network byte order.
    Range {
        /// From the first value to the last.
        range: [Bytes; 2],
        /// Whether other values match.
        is_inverted: bool,
    },
    /// Looks up a set by its name.
    Lookup {
        /// The name.
        set: String,
        /// Whether other values match.
        is_inverted: bool,
    },
    /// Looks up a set of this rule.
    Contained {
        /// The set.
        set: AnonymousSet,
        /// Whether other values match.
        is_inverted: bool,
    },
    /// Looks up a verdict.
    Map(VerdictMap),
    /// Changes a set by its name.
    ChangeSet(SetOperation, &'static str),
    /// Changes a map by its name, with the value in this register. An element that exists keeps its value.
    ChangeMap(SetOperation, &'static str, u8),
    /// Replaces the keys from the first register on by their value in the map of this name.
    LoadValue(&'static str),
    /// Decides on the packet.
    Verdict(Verdict),
    /// Sets the packet's mark to the first register.
    SetMark,
    /// Sets the packet's priority in queues of this host to the first register.
    SetPriority,
    /// Writes the first two bytes of the first register over those of the IP header, of IPv4 with its checksum.
    WriteHeader {
        /// The version of IP.
        is_ipv6: bool,
    },
    /// Sets the zone of connection tracking to the first two bytes.
    SetZone,
    /// Keeps connection tracking from the packet.
    NoTrack,
    /// Assigns the packet to the listener with the address in the first register and the port in this one.
    TransparentProxy {
        /// The version of IP.
        is_ipv6: bool,
        /// The register.
        port: u8,
    },
    /// Sends the first bytes of the packet to the reader of a group of nfnetlink_log, at once.
    Log {
        /// The group.
        group: u16,
        /// The most bytes.
        bytes: u32,
    },
    /// Translates the source of a connection to the address in the first register.
    SourceNat {
        /// The version of IP.
        is_ipv6: bool,
    },
}

/// A value of an attribute of an expression, in network byte order.
enum Value<'value> {
    Word(u32),
    Half(u16),
    Byte(u8),
    Text(&'value str),
    Data(&'value [u8]),
    Verdict(&'value Verdict),
}

impl Value<'_> {
    fn encode(&self, bytes: &mut Vec<u8>, kind: u16) {
        match self {
            Self::Word(value) => attribute(bytes, kind, &value.to_be_bytes()),
            Self::Half(value) => attribute(bytes, kind, &value.to_be_bytes()),
            Self::Byte(value) => attribute(bytes, kind, &[*value]),
            Self::Text(value) => text(bytes, kind, value),
            Self::Data(value) => nested(bytes, kind, |bytes| attribute(bytes, DATA_VALUE, value)),
            Self::Verdict(verdict) => nested(bytes, kind, |bytes| verdict.encode(bytes)),
        }
    }
}

use Value::{Byte, Data, Half, Text, Word};

/// The number of a register of four bytes.
fn register(number: u8) -> Value<'static> {
    Word(FIRST_REGISTER + u32::from(number))
}

fn family(is_ipv6: bool) -> Value<'static> {
    Word(if is_ipv6 { NFPROTO_IPV6 } else { NFPROTO_IPV4 })
}

/// An expression by its name in the kernel, with its attributes.
fn named(bytes: &mut Vec<u8>, name: &str, values: &[(u16, Value<'_>)]) {
    nested(bytes, LIST_ELEMENT, |bytes| {
        text(bytes, NAME, name);
        if !values.is_empty() {
            nested(bytes, DATA, |bytes| {
                for (kind, value) in values {
                    value.encode(bytes, *kind);
                }
            });
        }
    });
}

impl Field {
    fn encode(self, bytes: &mut Vec<u8>, to: u8) {
        let meta = |key| ("meta", vec![(1, register(to)), (2, Word(key))]);
        let ct = |key| ("ct", vec![(1, register(to)), (2, Word(key))]);
        let socket = |key| ("socket", vec![(1, Word(key)), (2, register(to))]);
        let (name, values) = match self {
            Self::Length => meta(0),
            Self::Priority => meta(META_PRIORITY),
            Self::Mark => meta(META_MARK),
            Self::IngressName => meta(6),
            Self::EgressName => meta(7),
            Self::Family => meta(15),
            Self::Protocol => meta(16),
            Self::ConnectionState => ct(0),
            Self::ConnectionStatus => ct(2),
            Self::SocketIsTransparent => socket(0),
            Self::SocketMark => socket(1),
            Self::HasTcpOption(kind) => {
                let place = [(2, Byte(kind)), (3, Word(0)), (4, Word(1))];
                let how = [(5, Word(EXTHDR_PRESENT)), (6, Word(EXTHDR_TCP_OPTION))];
                ("exthdr", [(1, register(to))].into_iter().chain(place).chain(how).collect())
            }
            Self::Payload { header, offset, bytes } => {
                let header = (2, Word(header as u32));
                let place = [(3, Word(offset.into())), (4, Word(bytes.into()))];
                ("payload", [(1, register(to)), header].into_iter().chain(place).collect())
            }
            Self::SymmetricHash { modulus } => {
                ("hash", vec![(2, register(to)), (4, Word(modulus)), (7, Word(SYMMETRIC_HASH))])
            }
        };
        named(bytes, name, &values);
    }
}

impl Expression {
    /// Appends the expression. A lookup in a set of the rule has the name and the number of that set in its batch.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>, set: Option<(&'static str, u32)>) {
        let mut add = |name: &str, values: &[(u16, Value<'_>)]| named(bytes, name, values);
        match self {
            Self::Load(field, to) => field.encode(bytes, *to),
            Self::Immediate(value, to) => {
                add("immediate", &[(1, register(*to)), (2, Data(value))]);
            }
            Self::Verdict(verdict) => {
                add("immediate", &[(1, Word(VERDICT_REGISTER)), (2, Value::Verdict(verdict))]);
            }
            Self::Mask(mask) => bitwise(bytes, 0, mask, &vec![0; mask.len()]),
            Self::ReplaceBits { register, kept, replaced } => {
                bitwise(bytes, *register, kept, replaced);
            }
            Self::ToNetworkOrder => {
                let registers = [(1, register(0)), (2, register(0))];
                let values =
                    registers.into_iter().chain([(3, Word(HTON)), (4, Word(4)), (5, Word(4))]);
                add("byteorder", &values.collect::<Vec<_>>());
            }
            Self::Compare { value, is_inverted } => {
                let operation = if *is_inverted { CMP_NEQ } else { CMP_EQ };
                add("cmp", &[(1, register(0)), (2, Word(operation)), (3, Data(value))]);
            }
            Self::Range { range: [first, last], is_inverted } => {
                let operation = (2, Word(u32::from(*is_inverted)));
                add("range", &[(1, register(0)), operation, (3, Data(first)), (4, Data(last))]);
            }
            Self::Lookup { set, is_inverted } => {
                lookup(bytes, (set, None), u32::from(*is_inverted), false);
            }
            Self::Contained { is_inverted, .. } => {
                let (name, id) = set.unwrap_or_default();
                lookup(bytes, (name, Some(id)), u32::from(*is_inverted), false);
            }
            Self::Map(_) => {
                let (name, id) = set.unwrap_or_default();
                lookup(bytes, (name, Some(id)), 0, true);
            }
            Self::ChangeSet(operation, set) => {
                add("dynset", &[(1, Text(set)), (3, Word(*operation as u32)), (4, register(0))]);
            }
            Self::ChangeMap(operation, set, value) => {
                let keys = [(1, Text(set)), (3, Word(*operation as u32)), (4, register(0))];
                let values = keys.into_iter().chain([(5, register(*value))]);
                add("dynset", &values.collect::<Vec<_>>());
            }
            Self::LoadValue(map) => {
                add("lookup", &[(1, Text(map)), (2, register(0)), (3, register(0))]);
            }
            Self::SetPriority => add("meta", &[(2, Word(META_PRIORITY)), (3, register(0))]),
            Self::WriteHeader { is_ipv6 } => {
                let place = [(2, Word(Header::Network as u32)), (3, Word(0)), (4, Word(2))];
                let checksum = [(6, Word(CHECKSUM_INTERNET)), (7, Word(IPV4_CHECKSUM_OFFSET))];
                let values = place.into_iter().chain([(5, register(0))]);
                let values = values.chain(checksum.into_iter().filter(|_| !is_ipv6));
                add("payload", &values.collect::<Vec<_>>());
            }
            Self::SetMark => add("meta", &[(2, Word(META_MARK)), (3, register(0))]),
            Self::SetZone => add("ct", &[(2, Word(CT_ZONE)), (4, register(0))]),
            Self::NoTrack => add("notrack", &[]),
            Self::TransparentProxy { is_ipv6, port } => {
                add("tproxy", &[(1, family(*is_ipv6)), (2, register(0)), (3, register(*port))]);
            }
            Self::Log { group, bytes } => {
                add("log", &[(1, Half(*group)), (3, Word(*bytes)), (4, Half(1))]);
            }
            Self::SourceNat { is_ipv6 } => {
                add("nat", &[(1, Word(NAT_SOURCE)), (2, family(*is_ipv6)), (3, register(0))]);
            }
        }
    }
}

/// Keeps some bits of a register, and sets others.
fn bitwise(bytes: &mut Vec<u8>, of: u8, kept: &[u8], set: &[u8]) {
    let registers = [(1, register(of)), (2, register(of)), (3, Word(kept.len() as u32))];
    let values = registers.into_iter().chain([(4, Data(kept)), (5, Data(set))]);
    named(bytes, "bitwise", &values.collect::<Vec<_>>());
}

/// A lookup in a set by its name, and by its number in the batch if other sets have the same name.
fn lookup(bytes: &mut Vec<u8>, set: (&str, Option<u32>), flags: u32, is_map: bool) {
    let (name, id) = set;
    let mut values = vec![(1, Text(name)), (2, register(0)), (5, Word(flags))];
    values.extend(id.map(|id| (4, Word(id))));
    if is_map {
        values.push((3, Word(VERDICT_REGISTER)));
    }
    named(bytes, "lookup", &values);
}
