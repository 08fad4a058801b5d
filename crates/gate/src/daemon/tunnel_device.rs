//! What the privileged part opens for a tunnel: its device with addresses and routes, and its socket.
//!
//! The device is removed with its last descriptor, which the worker has, and with it its addresses and routes: nothing of
//! it is left after any kill.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;

use bentpipe_sys::interface::Interface;
use bentpipe_sys::route::{Route, RouteKind, Routes};
use bentpipe_sys::sockets::set_receive_buffer;
use bentpipe_sys::tun::create_transient;
use rustix::net::sockopt::{ip_mtu, ipv6_mtu, set_ipv6_v6only};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use super::tunnel_plan::{TunnelPeerPlan, TunnelPlan};
use crate::tunnel::PrivateKey;
use crate::tunnel::path::{MTU_MIN, inner_mtu};

/// The MTU of a path of which nothing is known.
const ETHERNET_MTU: u16 = 1_500;
/// 32 ms at 1 Gbit/s.
const SOCKET_BUFFER_BYTES: i32 = 4 << 20;
/// RFC 8200.
const IPV6_MTU_MIN: u16 = 1_280;

/// What a tunnel runs over: found once, at the start.
#[derive(Clone, Debug)]
pub(super) struct Underlay {
    /// The address and port of the socket.
    listen: SocketAddr,
    /// The addresses of the peers.
    pub(super) endpoints: Vec<Option<SocketAddr>>,
    /// The MTU of the device.
    pub(super) mtu: u16,
}

impl Underlay {
    /// Looks up the addresses of the peers, and the MTU of the path to them.
    ///
    /// # Errors
    /// What is wrong, and the fix.
    pub(super) fn resolve(plan: &TunnelPlan) -> io::Result<Self> {
        // The worker reads it again before it gives up its privileges.
        let key = PrivateKey::read(Path::new(&plan.private_key)).map_err(|error| {
            io::Error::new(error.kind(), named("private_key", &error.to_string()))
        })?;
        let own = key.public().to_string();
        if let Some(peer) = plan.peers.iter().find(|peer| peer.public_key == own) {
            let why = "it is the key of this gateway; to fix it: the key that keygen printed there";
            let error = named(&format!("peers: {}: public_key", peer.name), why);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let endpoints = resolve(plan)?;
        let found = endpoints.iter().flatten().next();
        let any = if found.is_some_and(SocketAddr::is_ipv6) {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        } else {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        };
        let listen = SocketAddr::new(plan.listen_address.unwrap_or(any), plan.listen_port);
        let mtu = inner_mtu_of(plan, listen, &endpoints)?;
        Ok(Self { listen, endpoints, mtu })
    }
}

/// Opens the device, which is down and has no address, and the socket. Returns them in this order.
///
/// # Errors
/// What is wrong, and the fix.
pub(super) fn open(plan: &TunnelPlan, underlay: &Underlay) -> io::Result<[OwnedFd; 2]> {
    let address = underlay.listen;
    let socket = listen(address).map_err(|error| {
        let fix = "to fix it: another port, or an address of this host";
        named("listen", &format!("listening on {address} (UDP): {error}; {fix}"))
    })?;
    let device = create_transient(&plan.device, true)
        .map_err(|error| named("device", &error.to_string()))?;
    Ok([device, socket])
}

/// Brings the device up, with its addresses and the routes to the networks of the peers.
///
/// # Errors
/// The kernel's error, or that an endpoint would be reached through the tunnel itself.
pub(super) fn configure(plan: &TunnelPlan, underlay: &Underlay) -> io::Result<()> {
    let device = Interface::open(&plan.device)?;
    // The kernel would send router solicitations, which have no peer. Without IPv6 there is no such setting.
    let _ = device.disable_link_local_address();
    device
        .bring_up(underlay.mtu.into())
        .map_err(|error| named("device", &format!("bringing it up: {error}")))?;
    for network in &plan.addresses {
        device
            .add_address(network.address, network.prefix)
            .map_err(|error| named("addresses", &format!("{network}: {error}")))?;
    }
    let routes = Routes::open()?;
    for network in plan.networks() {
        let interface = Some(device.index());
        let kind = RouteKind::Unicast;
        let route = Route { interface, ..Route::new(kind, network.address, network.prefix) };
        routes.add(&route).map_err(|error| {
            let fix = "to fix it: remove the other route to it, or name other networks";
            named("networks", &format!("{network}: {error}; {fix}"))
        })?;
    }
    for (peer, endpoint) in plan.peers.iter().zip(&underlay.endpoints) {
        let Some(endpoint) = endpoint else { continue };
        // Without a route there is no loop.
        let route = routes.lookup(endpoint.ip());
        if route.is_ok_and(|route| route.interface == Some(device.index())) {
            let ip = endpoint.ip();
            return Err(named(
                &format!("peers: {}: endpoint", peer.name),
                &format!(
                    "{ip} is in the networks behind the tunnel, so its own packets would go into it; to fix it: a \
                     route to it over the link (ip route add {ip} via GATEWAY)"
                ),
            ));
        }
    }
    Ok(())
}

/// The addresses of the peers: all of one version of IP, that of the address to listen on or that of the first endpoint.
fn resolve(plan: &TunnelPlan) -> io::Result<Vec<Option<SocketAddr>>> {
    let mut is_ipv6 = plan.listen_address.map(|address| address.is_ipv6());
    let mut resolved = |peer: &TunnelPeerPlan| {
        let Some(text) = &peer.endpoint else { return Ok(None) };
        let field = format!("peers: {}: endpoint", peer.name);
        let mut found = text.to_socket_addrs().map_err(|error| {
            let fix = "to fix it: a name that this host can look up, or an address, with a port";
            named(&field, &format!("{text:?}: {error}; {fix}"))
        })?;
        let endpoint = found.find(|each| is_ipv6.is_none_or(|is_ipv6| each.is_ipv6() == is_ipv6));
        let Some(endpoint) = endpoint else {
            let version = if is_ipv6 == Some(true) { "IPv6" } else { "IPv4" };
            let fix = "to fix it: endpoints of one version, that of `listen`";
            return Err(named(&field, &format!("{text:?} has no {version} address; {fix}")));
        };
        is_ipv6 = Some(endpoint.is_ipv6());
        Ok(Some(endpoint))
    };
    plan.peers.iter().map(&mut resolved).collect()
}

/// A socket of one version of IP: addresses of IPv4 in IPv6 would be others than those that peers know.
fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    let socket = UdpSocket::from(socket);
    // Bursts wait here while the worker waits for a processor. In the user namespace of an ordinary user the limit of the
    // machine holds (`net.core.rmem_max`).
    set_receive_buffer(&socket, SOCKET_BUFFER_BYTES)?;
    Ok(socket.into())
}

/// The largest MTU with which no datagram to any peer is fragmented.
fn inner_mtu_of(
    plan: &TunnelPlan,
    address: SocketAddr,
    endpoints: &[Option<SocketAddr>],
) -> io::Result<u16> {
    let routes = endpoints.iter().flatten().filter_map(|&endpoint| route_mtu(address, endpoint));
    let outer = plan.outer_mtu_bytes.or_else(|| routes.min()).unwrap_or(ETHERNET_MTU);
    let (min, version) =
        if plan.has_ipv6() { (IPV6_MTU_MIN, "IPv6") } else { (MTU_MIN, "a tunnel") };
    inner_mtu(outer, address.is_ipv6()).filter(|&mtu| mtu >= min).ok_or_else(|| {
        let why =
            format!("{outer} B leave less than the {min} B for a packet that {version} needs");
        named("outer_mtu", &format!("{why}; to fix it: a path with a larger MTU"))
    })
}

/// The MTU of the route to an endpoint; `None` without one.
fn route_mtu(address: SocketAddr, endpoint: SocketAddr) -> Option<u16> {
    let socket = UdpSocket::bind(SocketAddr::new(address.ip(), 0)).ok()?;
    socket.connect(endpoint).ok()?;
    let mtu = if address.is_ipv6() { ipv6_mtu(&socket) } else { ip_mtu(&socket) };
    // That of the loopback device is 65,536.
    mtu.ok().map(|mtu| u16::try_from(mtu).unwrap_or(u16::MAX))
}

fn named(field: &str, why: &str) -> io::Error {
    io::Error::other(format!("tunnel.{field}: {why}"))
}
