//! Parts of rules of nftables: conditions on packets, as expressions of the kernel.

use std::net::IpAddr;

use bentpipe_sys::nftables::{AnonymousSet, Expression, Field, Header, KeyType, Verdict};

use crate::network::Network;

/// Numbers of protocols, and flags of TCP (RFC 9293).
pub(super) const TCP: u8 = 6;
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Kinds of options of TCP: a signature by MD5 (RFC 2385), and TCP-AO (RFC 5925).
const SIGNATURES: [u8; 2] = [19, 29];
/// From linux/netfilter.h and linux/netfilter/nf_conntrack_common.h: bits of `ct state` and `ct status`.
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;
const CT_INVALID: u32 = 1;
const CT_NEW: u32 = 8;
const CT_DST_NAT: u32 = 1 << 5;
/// The length of a name of an interface (`IFNAMSIZ`).
const NAME_BYTES: usize = 16;
/// The register behind an address of IPv6.
const BEHIND_ADDRESS: u8 = 4;

pub(super) type Expressions = Vec<Expression>;

/// The ends of a packet's connection that are addresses.
#[derive(Clone, Copy)]
pub(super) enum End {
    Source,
    Destination,
}

/// A field of the packet is this value.
pub(super) fn equal(field: Field, value: &[u8]) -> Expressions {
    vec![Expression::Load(field, 0), compare(value)]
}

fn compare(value: &[u8]) -> Expression {
    Expression::Compare { value: value.to_vec(), is_inverted: false }
}

pub(super) fn version(is_ipv6: bool) -> Expressions {
    equal(Field::Family, &[if is_ipv6 { NFPROTO_IPV6 } else { NFPROTO_IPV4 }])
}

pub(super) fn tcp() -> Expressions {
    equal(Field::Protocol, &[TCP])
}

/// TCP without IPv6 extension headers, behind which the relay does not read.
pub(super) fn plain_tcp(is_ipv6: bool) -> Expressions {
    let offset = if is_ipv6 { 6 } else { 9 };
    [version(is_ipv6), equal(network_header(offset, 1), &[TCP])].concat()
}

/// What belongs to a connection: its segments, and ICMP errors about them, which quote one.
pub(super) fn tcp_or_icmp() -> Expressions {
    let protocols = [TCP, ICMP, ICMPV6].map(|protocol| vec![protocol]);
    let set = AnonymousSet::of_values(KeyType::Protocol, protocols);
    vec![Expression::Load(Field::Protocol, 0), Expression::Contained { set, is_inverted: false }]
}

/// Of these flags of TCP, a segment has those alone.
pub(super) fn tcp_flags(mask: u8, flags: u8) -> Expressions {
    vec![
        Expression::Load(transport_header(13, 1), 0),
        Expression::Mask(vec![mask]),
        compare(&[flags]),
    ]
}

/// A SYN that opens a connection.
pub(super) fn opens() -> Expressions {
    [tcp(), tcp_flags(FIN | SYN | RST | ACK, SYN)].concat()
}

/// Conditions of which one holds if both ends sign their segments: with a key that the relay does not have.
pub(super) fn signed() -> [Expressions; 2] {
    SIGNATURES.map(|kind| equal(Field::HasTcpOption(kind), &[1]))
}

/// A packet that is not to be forwarded; see `Syn::reopening`.
pub(super) fn no_hops(is_ipv6: bool) -> Expressions {
    let offset = if is_ipv6 { 7 } else { 8 };
    [version(is_ipv6), equal(network_header(offset, 1), &[0])].concat()
}

pub(super) fn mark(mark: u32) -> Expressions {
    equal(Field::Mark, &mark.to_ne_bytes())
}

/// An integer from first to last.
pub(super) fn between(field: Field, first: u32, last: u32) -> Expressions {
    let range = [first, last].map(|bound| bound.to_be_bytes().to_vec());
    let range = Expression::Range { range, is_inverted: false };
    vec![Expression::Load(field, 0), Expression::ToNetworkOrder, range]
}

/// The packet comes by one of these interfaces; `None` if there are none.
pub(super) fn from_any(interfaces: &[String]) -> Option<Expressions> {
    (!interfaces.is_empty()).then(|| on_interfaces(Field::IngressName, interfaces, false))
}

/// The packet's ingress or egress interface is one of these, or none of them.
pub(super) fn on_interfaces(field: Field, interfaces: &[String], is_inverted: bool) -> Expressions {
    let matches = match interfaces {
        [name] => Expression::Compare { value: name_bytes(name), is_inverted },
        names => {
            let names = names.iter().map(|name| name_bytes(name));
            let set = AnonymousSet::of_values(KeyType::InterfaceName, names);
            Expression::Contained { set, is_inverted }
        }
    };
    vec![Expression::Load(field, 0), matches]
}

pub(super) fn name_bytes(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(NAME_BYTES, 0);
    bytes
}

pub(super) fn transparent_socket() -> Expressions {
    equal(Field::SocketIsTransparent, &[1])
}

/// The destination of the connection was not translated.
pub(super) fn without_dnat() -> Expressions {
    let mask = Expression::Mask(CT_DST_NAT.to_ne_bytes().to_vec());
    vec![Expression::Load(Field::ConnectionStatus, 0), mask, compare(&[0; 4])]
}

/// Connection tracking has seen no answer.
pub(super) fn new_or_invalid() -> Expressions {
    let states = [CT_NEW, CT_INVALID].map(|state| state.to_ne_bytes().to_vec());
    let set = AnonymousSet::of_values(KeyType::ConnectionState, states);
    let lookup = Expression::Contained { set, is_inverted: false };
    vec![Expression::Load(Field::ConnectionState, 0), lookup]
}

/// Loads both ends of the connection: the keys of [`ends_keys`].
pub(super) fn load_ends(is_ipv6: bool) -> Expressions {
    let words = if is_ipv6 { 4 } else { 1 };
    let (from, to) = (address(End::Source, is_ipv6), address(End::Destination, is_ipv6));
    let ports = [transport_header(0, 2), transport_header(2, 2)];
    let at = [0, words, words + 1, 2 * words + 1];
    let loads = [from, ports[0], to, ports[1]].into_iter().zip(at);
    loads.map(|(field, register)| Expression::Load(field, register)).collect()
}

/// The types of both ends of a connection: addresses and ports.
pub(super) fn ends_keys(is_ipv6: bool) -> Vec<KeyType> {
    let address = if is_ipv6 { KeyType::Ipv6 } else { KeyType::Ipv4 };
    vec![address, KeyType::Port, address, KeyType::Port]
}

pub(super) fn address(end: End, is_ipv6: bool) -> Field {
    let (first, bytes) = if is_ipv6 { (8, 16) } else { (12, 4) };
    network_header(if matches!(end, End::Source) { first } else { first + bytes }, bytes)
}

/// An end of the connection is in one of these networks of one version, or in none of them.
pub(super) fn in_networks(end: End, networks: &[Network], is_inverted: bool) -> Expressions {
    let Some(is_ipv6) = networks.first().map(|network| network.address.is_ipv6()) else {
        return Vec::new();
    };
    let mut expressions = vec![Expression::Load(address(end, is_ipv6), 0)];
    let ranges: Vec<_> = networks.iter().map(|&network| range(network)).collect();
    if let [[first, last]] = &ranges[..] {
        // The bits in which the ends of a network do not differ.
        let mask: Vec<_> = first.iter().zip(last).map(|(first, last)| !(first ^ last)).collect();
        if mask.iter().any(|&byte| byte != u8::MAX) {
            expressions.push(Expression::Mask(mask));
        }
        expressions.push(Expression::Compare { value: first.clone(), is_inverted });
    } else {
        let key = if is_ipv6 { KeyType::Ipv6 } else { KeyType::Ipv4 };
        let set = AnonymousSet::of_ranges(key, ranges);
        expressions.push(Expression::Contained { set, is_inverted });
    }
    expressions
}

/// The first and the last address of a network.
fn range(network: Network) -> [Vec<u8>; 2] {
    let host_bits = |bits: u32| bits.saturating_sub(network.prefix.into());
    match network.address {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(32 - host_bits(32)).unwrap_or(0);
            let address = address.to_bits();
            [address & !host, address | host].map(|end| end.to_be_bytes().to_vec())
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(128 - host_bits(128)).unwrap_or(0);
            let address = address.to_bits();
            [address & !host, address | host].map(|end| end.to_be_bytes().to_vec())
        }
    }
}

/// The server has one of these ports, from first to last, or none of them.
pub(super) fn to_ports(ports: &[[u16; 2]], is_inverted: bool) -> Expressions {
    let ranges: Vec<_> =
        ports.iter().map(|range| range.map(|port| port.to_be_bytes().to_vec())).collect();
    let matches = match &ranges[..] {
        [[first, last]] if first == last => {
            Expression::Compare { value: first.clone(), is_inverted }
        }
        [range] => Expression::Range { range: range.clone(), is_inverted },
        _ => {
            let set = AnonymousSet::of_ranges(KeyType::Port, ranges);
            Expression::Contained { set, is_inverted }
        }
    };
    [tcp(), vec![Expression::Load(transport_header(2, 2), 0), matches]].concat()
}

/// Assigns a SYN to the listener with this port on the loopback interface.
pub(super) fn to_listener(port: u16, is_ipv6: bool) -> Expressions {
    let loopback = match is_ipv6 {
        false => std::net::Ipv4Addr::LOCALHOST.octets().to_vec(),
        true => std::net::Ipv6Addr::LOCALHOST.octets().to_vec(),
    };
    [
        tcp(),
        vec![
            Expression::Immediate(loopback, 0),
            Expression::Immediate(port.to_be_bytes().to_vec(), BEHIND_ADDRESS),
            Expression::TransparentProxy { is_ipv6, port: BEHIND_ADDRESS },
        ],
    ]
    .concat()
}

/// The set of this name has the loaded value, or has not.
pub(super) fn lookup(set: &str, is_inverted: bool) -> Expression {
    Expression::Lookup { set: set.to_owned(), is_inverted }
}

pub(super) fn jump(chain: &str) -> Expression {
    Expression::Verdict(Verdict::Jump(chain.to_owned()))
}

pub(super) fn goto(chain: &str) -> Expression {
    Expression::Verdict(Verdict::Goto(chain.to_owned()))
}

pub(super) fn accept() -> Expression {
    Expression::Verdict(Verdict::Accept)
}

pub(super) fn network_header(offset: u8, bytes: u8) -> Field {
    Field::Payload { header: Header::Network, offset, bytes }
}

pub(super) fn transport_header(offset: u8, bytes: u8) -> Field {
    Field::Payload { header: Header::Transport, offset, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given networks of any length, expect their first and last address, also if the address is another one of them.
    #[test]
    fn a_network_is_a_range_of_addresses() {
        for (text, first, last) in [
            ("0.0.0.0/0", [0; 4], [255; 4]),
            ("10.1.2.3/8", [10, 0, 0, 0], [10, 255, 255, 255]),
            ("10.1.2.3/31", [10, 1, 2, 2], [10, 1, 2, 3]),
            ("10.1.2.3/32", [10, 1, 2, 3], [10, 1, 2, 3]),
        ] {
            let network = Network::try_from(text.to_owned()).expect("a network");
            assert_eq!(range(network), [first.to_vec(), last.to_vec()], "{text}");
        }
        let network = Network::try_from("fd00::7/64".to_owned()).expect("a network");
        let [first, last] = range(network);
        assert_eq!(
            (&first[..2], &first[2..], &last[8..]),
            (&[0xfd, 0][..], &[0; 14][..], &[255; 8][..])
        );
        for (text, ends) in [("::/0", [[0; 16], [255; 16]]), ("::/128", [[0; 16], [0; 16]])] {
            let network = Network::try_from(text.to_owned()).expect("a network");
            assert_eq!(range(network), ends.map(|end| end.to_vec()), "{text}");
        }
    }
}
