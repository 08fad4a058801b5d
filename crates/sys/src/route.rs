//! Routes and routing rules of a network namespace (rtnetlink(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use crate::netlink::{NLM_F_CREATE, NLM_F_EXCL, RouteSocket, attribute, attributes, word};

/// From linux/rtnetlink.h and linux/fib_rules.h.
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_UNREACHABLE: u8 = 7;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const SCOPE_HOST: u8 = 254;
const SCOPE_ANY: u8 = 255;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FR_ACT_TO_TBL: u8 = 1;

/// Of what the kernel has learnt of a path, such as its MTU.
const RTM_F_CLONED: u32 = 0x200;

/// `struct rtmsg`.
const ROUTE_HEADER: usize = 12;

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
                RTA_OIF => route.interface = word(value, 0),
                RTA_PRIORITY => route.metric = word(value, 0)?,
                RTA_TABLE => route.table = word(value, 0)?,
                _ => {}
            }
        }
        Some(route)
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
        let family = if is_ipv6 { libc::AF_INET6 } else { libc::AF_INET };
        let mut body = vec![family as u8, 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
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
pub struct Routes(RouteSocket);

impl Routes {
    /// Those of the calling thread's network namespace, whichever thread uses them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        RouteSocket::open().map(Self)
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
        let mut request = vec![0; ROUTE_HEADER];
        request[0] = family(address);
        let mut routes = Vec::new();
        self.0.dump(RTM_GETROUTE, &request, |body| {
            let is_learnt = word(body, 8).is_none_or(|flags| flags & RTM_F_CLONED != 0);
            routes.extend(if is_learnt { None } else { Route::parse(body) });
        })?;
        let is_to_it = |route: &Route| {
            (route.table, route.address, route.prefix) == (MAIN_TABLE, address, prefix)
        };
        routes.retain(is_to_it);
        Ok(routes)
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
    (if address.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET }) as u8
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
            let _ = Route::parse(&body);
        }
    }
}
