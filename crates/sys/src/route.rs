//! Routes and routing rules of a network namespace (rtnetlink(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use crate::netlink::{NLM_F_CREATE, NLM_F_EXCL, RequestSocket, attribute, attributes, half, word};

/// From linux/rtnetlink.h and linux/fib_rules.h.
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_UNREACHABLE: u8 = 7;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const SCOPE_HOST: u8 = 254;
const SCOPE_ANY: u8 = 255;
const FRA_IIFNAME: u16 = 3;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FR_ACT_TO_TBL: u8 = 1;

/// Of what the kernel has learnt of a path, such as its MTU.
const RTM_F_CLONED: u32 = 0x200;

/// `struct rtmsg`, `struct rtnexthop` and `struct fib_rule_hdr`.
const ROUTE_HEADER: usize = 12;
const HOP_HEADER: usize = 8;
const RULE_HEADER: usize = 12;

/// The table that is used without a rule.
pub const MAIN_TABLE: u32 = 254;
/// The protocol of routes that were added by hand (`RTPROT_BOOT`).
pub const BY_HAND: u8 = 3;

/// What a route does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// They go on by its interface.
    Unicast,
    /// They are for this host.
    Local,
    /// They are answered with ICMP "host unreachable".
    Unreachable,
    /// Another one, by its number (`RTN_*`).
    Other(u8),
}

impl RouteKind {
    fn number(self) -> u8 {
        match self {
            Self::Unicast => RTN_UNICAST,
            Self::Local => RTN_LOCAL,
            Self::Unreachable => RTN_UNREACHABLE,
            Self::Other(number) => number,
        }
    }

    fn of(number: u8) -> Self {
        match number {
            RTN_UNICAST => Self::Unicast,
            RTN_LOCAL => Self::Local,
            RTN_UNREACHABLE => Self::Unreachable,
            other => Self::Other(other),
        }
    }
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// What it does with packets.
    pub kind: RouteKind,
    /// An address of the network that it is for.
    pub address: IpAddr,
    /// The length of the network's prefix.
    pub prefix: u8,
    /// The next router, if there is one.
    pub gateway: Option<IpAddr>,
    /// The index of the interface.
    pub interface: Option<u32>,
    /// The number of its table.
    pub table: u32,
    /// What has added it (`RTPROT_*`).
    pub protocol: u8,
    /// Of two routes to a network, that of the lower metric is used. Zero is the kernel's default: 0 for IPv4, 1,024 for IPv6.
    pub metric: u32,
}

impl Route {
    /// A route of the main table that was added by hand, without an interface.
    #[must_use]
    pub fn new(kind: RouteKind, address: IpAddr, prefix: u8) -> Self {
        let (table, protocol) = (MAIN_TABLE, BY_HAND);
        Self { kind, address, prefix, gateway: None, interface: None, table, protocol, metric: 0 }
    }

    /// The body of a request.
    fn encode(&self, scope: u8) -> Vec<u8> {
        let mut body = vec![family(self.address), self.prefix, 0, 0];
        body.extend([0, self.protocol, scope, self.kind.number(), 0, 0, 0, 0]);
        attribute(&mut body, RTA_DST, &address_bytes(self.address));
        attribute(&mut body, RTA_TABLE, &self.table.to_ne_bytes());
        if let Some(gateway) = self.gateway {
            attribute(&mut body, RTA_GATEWAY, &address_bytes(gateway));
        }
        if let Some(interface) = self.interface {
            attribute(&mut body, RTA_OIF, &interface.to_ne_bytes());
        }
        if self.metric != 0 {
            attribute(&mut body, RTA_PRIORITY, &self.metric.to_ne_bytes());
        }
        body
    }

    /// Where its destination is.
    fn scope(&self) -> u8 {
        match self.kind {
            RouteKind::Local => SCOPE_HOST,
            RouteKind::Unicast if self.gateway.is_none() => SCOPE_LINK,
            _ => SCOPE_UNIVERSE,
        }
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let &[family, prefix, _, _, table, protocol, _, kind, ..] = body else { return None };
        let address: IpAddr = match family.into() {
            libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
            libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let kind = RouteKind::of(kind);
        let mut route = Self { table: table.into(), protocol, ..Self::new(kind, address, prefix) };
        for (kind, value) in attributes(body.get(ROUTE_HEADER..)?) {
            match kind {
                RTA_DST => route.address = address_of(value)?,
                RTA_GATEWAY => route.gateway = address_of(value),
                // `struct rtvia`: a family, and the address of a router of the other version.
                RTA_VIA => route.gateway = address_of(value.get(2..)?),
                RTA_OIF => route.interface = word(value, 0),
                RTA_PRIORITY => route.metric = word(value, 0)?,
                RTA_TABLE => route.table = word(value, 0)?,
                _ => {}
            }
        }
        Some(route)
    }
}

/// The interfaces that a route uses: several if it has several next hops.
fn interfaces(body: &[u8]) -> Vec<u32> {
    let mut found = Vec::new();
    for (kind, value) in attributes(body.get(ROUTE_HEADER..).unwrap_or_default()) {
        match kind {
            RTA_OIF => found.extend(word(value, 0)),
            RTA_MULTIPATH => found.extend(hops(value)),
            _ => {}
        }
    }
    found
}

/// The interfaces of next hops, up to the first one that is cut.
fn hops(value: &[u8]) -> impl Iterator<Item = u32> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let (length, interface) = (usize::from(half(rest, 0)?), word(rest, 4)?);
        rest = rest.get(length.max(HOP_HEADER).next_multiple_of(4)..).unwrap_or_default();
        Some(interface)
    })
}

/// A rule that chooses a routing table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingRule {
    /// The number of the table; zero for a rule that does something else.
    pub table: u32,
    /// The mark of the packets that it is for, and the bits of it that matter.
    pub mark: Option<(u32, u32)>,
    /// The interface on which they arrive.
    pub input: Option<String>,
    /// Whether it is for packets from one network.
    pub has_source: bool,
}

impl RoutingRule {
    fn parse(body: &[u8]) -> Option<Self> {
        let &[_, _, source_bits, _, table, ..] = body else { return None };
        let (mut mark, mut mask) = (None, u32::MAX);
        let mut rule = Self { table: table.into(), has_source: source_bits > 0, ..Self::default() };
        for (kind, value) in attributes(body.get(RULE_HEADER..)?) {
            match kind {
                FRA_IIFNAME => {
                    let name = String::from_utf8_lossy(value);
                    rule.input = Some(name.trim_end_matches('\0').to_owned());
                }
                FRA_FWMARK => mark = word(value, 0),
                FRA_TABLE => rule.table = word(value, 0)?,
                FRA_FWMASK => mask = word(value, 0)?,
                _ => {}
            }
        }
        rule.mark = mark.map(|mark| (mark, mask));
        Some(rule)
    }
}

/// A rule by which packets with a mark have a routing table of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRule {
    /// The mark.
    pub mark: u32,
    /// The bits of it that matter.
    pub mask: u32,
    /// The number of the table.
    pub table: u32,
}

impl MarkRule {
    /// `struct fib_rule_hdr` and its attributes.
    fn encode(self, is_ipv6: bool) -> Vec<u8> {
        let mut body = vec![family_of(is_ipv6), 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
        for (kind, value) in
            [(FRA_FWMARK, self.mark), (FRA_FWMASK, self.mask), (FRA_TABLE, self.table)]
        {
            attribute(&mut body, kind, &value.to_ne_bytes());
        }
        body
    }
}

/// The routes of a network namespace.
#[derive(Debug)]
pub struct Routes(RequestSocket);

impl Routes {
    /// Those of the calling thread's network namespace, whichever thread uses them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        RequestSocket::route().map(Self)
    }

    /// Adds a route.
    ///
    /// # Errors
    /// The kernel's error, for example if there is one to the same network with the same metric; it requires
    /// `CAP_NET_ADMIN`.
    pub fn add(&self, route: &Route) -> io::Result<()> {
        self.insert(route, NLM_F_EXCL)
    }

    fn insert(&self, route: &Route, flags: u16) -> io::Result<()> {
        self.0.change(RTM_NEWROUTE, NLM_F_CREATE | flags, &route.encode(route.scope()))
    }

    /// Deletes a route.
    ///
    /// # Errors
    /// The kernel's error, for example if there is none; it requires `CAP_NET_ADMIN`.
    pub fn delete(&self, route: &Route) -> io::Result<()> {
        self.0.change(RTM_DELROUTE, 0, &route.encode(SCOPE_ANY))
    }

    /// The routes of the main table to a network, without those to parts of it, and without what the kernel has learnt of paths.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn to_network(&self, address: IpAddr, prefix: u8) -> io::Result<Vec<Route>> {
        let routes = self.of_table(MAIN_TABLE, address.is_ipv6())?.into_iter();
        let routes = routes.map(|(route, _)| route);
        Ok(routes.filter(|route| (route.address, route.prefix) == (address, prefix)).collect())
    }

    /// The routes of a table for a version of IP, with the interfaces that each uses, without what the kernel has learnt of paths.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of_table(&self, table: u32, is_ipv6: bool) -> io::Result<Vec<(Route, Vec<u32>)>> {
        let mut request = vec![0; ROUTE_HEADER];
        request[0] = family_of(is_ipv6);
        let mut routes = Vec::new();
        self.0.dump(RTM_GETROUTE, &request, |body| {
            let is_learnt = word(body, 8).is_none_or(|flags| flags & RTM_F_CLONED != 0);
            let route = Route::parse(body).filter(|route| !is_learnt && route.table == table);
            routes.extend(route.map(|route| (route, interfaces(body))));
        })?;
        Ok(routes)
    }

    /// The rules that choose a routing table for packets of a version of IP.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn rules(&self, is_ipv6: bool) -> io::Result<Vec<RoutingRule>> {
        let mut request = vec![0; RULE_HEADER];
        request[0] = family_of(is_ipv6);
        let mut rules = Vec::new();
        self.0.dump(RTM_GETRULE, &request, |body| rules.extend(RoutingRule::parse(body)))?;
        Ok(rules)
    }

    /// The route that packets to an address take.
    ///
    /// # Errors
    /// The kernel's error, for example if there is none.
    pub fn lookup(&self, address: IpAddr) -> io::Result<Route> {
        let bits = if address.is_ipv6() { 128 } else { 32 };
        let mut request = vec![0; ROUTE_HEADER];
        (request[0], request[1]) = (family(address), bits);
        attribute(&mut request, RTA_DST, &address_bytes(address));
        self.0.query(RTM_GETROUTE, &request, RTM_NEWROUTE, Route::parse)
    }

    /// Adds a rule for packets of a version of IP.
    ///
    /// # Errors
    /// As [`Routes::add`].
    pub fn add_rule(&self, rule: MarkRule, is_ipv6: bool) -> io::Result<()> {
        self.0.change(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, &rule.encode(is_ipv6))
    }

    /// Deletes a rule.
    ///
    /// # Errors
    /// As [`Routes::delete`].
    pub fn delete_rule(&self, rule: MarkRule, is_ipv6: bool) -> io::Result<()> {
        self.0.change(RTM_DELRULE, 0, &rule.encode(is_ipv6))
    }
}

impl AsFd for Routes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Adds a route for a network and prefix length through an interface, also beside others to it.
///
/// # Errors
/// The kernel's error, or that there is no such interface.
pub fn add(network: Ipv4Addr, prefix: u32, interface: &str) -> io::Result<()> {
    let routes = Routes::open()?;
    let interface = Some(rustix::net::netdevice::name_to_index(&routes.0, interface)?);
    let prefix = u8::try_from(prefix).unwrap_or(u8::MAX);
    routes.insert(&Route { interface, ..Route::new(RouteKind::Unicast, network.into(), prefix) }, 0)
}

pub(crate) fn family(address: IpAddr) -> u8 {
    family_of(address.is_ipv6())
}

fn family_of(is_ipv6: bool) -> u8 {
    (if is_ipv6 { libc::AF_INET6 } else { libc::AF_INET }) as u8
}

/// An address in network byte order.
pub(crate) fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Given a route of either version, expect the kernel's form of it to be read as the same route.
    #[test]
    fn a_route_is_read_as_it_was_written() {
        for (address, gateway) in [("10.9.0.0", "10.2.0.1"), ("fd09::", "fd02::1")] {
            let (kind, prefix) = (RouteKind::Unreachable, 24);
            let address = address.parse().expect("an address");
            let route = Route {
                gateway: gateway.parse().ok(),
                interface: Some(7),
                table: 25_113,
                protocol: 98,
                metric: 1_025,
                ..Route::new(kind, address, prefix)
            };
            assert_eq!(Route::parse(&route.encode(route.scope())), Some(route));
        }
    }

    /// Given a route with two next hops, expect the interfaces of both; given one of the other version, expect its router.
    #[test]
    fn a_route_has_the_interfaces_of_its_next_hops() {
        let network = "10.9.0.0".parse().expect("an address");
        let mut body = Route::new(RouteKind::Unicast, network, 24).encode(SCOPE_UNIVERSE);
        let mut hops = Vec::new();
        for interface in [3_u32, 7] {
            let mut hop = vec![0; HOP_HEADER];
            hop[4..].copy_from_slice(&interface.to_ne_bytes());
            attribute(&mut hop, RTA_GATEWAY, &[10, 2, 0, 1]);
            hop[0] = hop.len() as u8;
            hops.extend(hop);
        }
        attribute(&mut body, RTA_MULTIPATH, &hops);
        attribute(&mut body, RTA_VIA, &[&[10, 0], &Ipv6Addr::LOCALHOST.octets()[..]].concat());
        assert_eq!(interfaces(&body), [3, 7]);
        let route = Route::parse(&body).expect("a route");
        assert_eq!(route.gateway, Some(Ipv6Addr::LOCALHOST.into()));
    }

    /// Given a rule for a mark that came from an interface and a network, expect all of it; expect that of the kernel's own
    /// rules, too.
    #[test]
    fn a_rule_is_read_as_it_was_written() {
        let mut body = MarkRule { mark: 0x6200, mask: 0xff00, table: 25_113 }.encode(false);
        body[2] = 24;
        attribute(&mut body, FRA_IIFNAME, b"lan0\0");
        let (input, mark) = (Some("lan0".to_owned()), Some((0x6200, 0xff00)));
        let expected = RoutingRule { table: 25_113, mark, input, has_source: true };
        assert_eq!(RoutingRule::parse(&body), Some(expected));
        let rules = Routes::open().and_then(|routes| routes.rules(false)).expect("a dump");
        assert!(rules.iter().any(|rule| rule.table == MAIN_TABLE && rule.mark.is_none()));
    }

    /// The address of the loopback interface is always local.
    #[test]
    fn the_kernel_finds_the_route_to_this_host() {
        let routes = Routes::open().expect("a socket");
        let Ok(route) = routes.lookup(Ipv4Addr::LOCALHOST.into()) else { return };
        assert_eq!((route.kind, route.address), (RouteKind::Local, Ipv4Addr::LOCALHOST.into()));
        let network = (Ipv4Addr::new(192, 0, 2, 128), 31);
        assert_eq!(routes.to_network(network.0.into(), network.1).expect("a dump"), []);
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(body: Vec<u8>) {
            let _ = (Route::parse(&body), RoutingRule::parse(&body));
            prop_assert!(interfaces(&body).len() <= body.len());
        }
    }
}
