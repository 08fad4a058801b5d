//! Routes that keep packets for the networks of a tunnel from leaving in clear text while its device is gone.
//!
//! The kernel removes the device with its routes when its worker ends, also by a kill. An `unreachable` route to each network
//! remains then, whose metric is the next one after that of the tunnel's own route. So hosts are answered with ICMP "host
//! unreachable", and programs of the gateway get EHOSTUNREACH. The routes are removed when the daemon is ended on purpose; the
//! next daemon takes over those of one that was killed.

use std::io;

use bentpipe_sys::route::{Route, RouteKind, Routes};
use rustix::net::netdevice::index_to_name;

use super::tunnel_plan::{FailMode, TunnelPlan};
use crate::network::Network;

/// Tells these routes from those of others. The kernel does not interpret protocols of routes above 4 (rtnetlink(7)), and
/// iproute2 and routing daemons have no such number (`rt_protos`).
const PROTOCOL: u8 = 98;

/// The metrics of routes without one, which the tunnel's own have, by version of IP: `IP6_RT_PRIO_USER` of the kernel.
const DEFAULT_METRICS: [u32; 2] = [0, 1_024];

/// The routes that this process has added. They are removed when this is dropped.
#[derive(Default)]
pub(super) struct UnreachableRoutes {
    added: Vec<Network>,
}

impl UnreachableRoutes {
    /// Adds the routes of a tunnel that fails closed, but for those that a killed daemon has left.
    ///
    /// # Errors
    /// The kernel's error, for instance because another route has the same network and metric; or another route would be used
    /// before that of the tunnel. No route was added.
    pub(super) fn add(plan: &TunnelPlan) -> io::Result<Self> {
        let mut routes = Self::default();
        routes.add_missing(plan)?;
        Ok(routes)
    }

    fn add_missing(&mut self, plan: &TunnelPlan) -> io::Result<()> {
        let kernel = Routes::open()?;
        for network in networks(plan) {
            let found = find(&kernel, network)?;
            if let Some(route) = found.earlier {
                let why = "another route to it is used before that of the tunnel";
                return Err(refused(network, &format!("{why}; to fix it: ip route del {route}")));
            }
            if found.is_there {
                continue;
            }
            kernel.add(&unreachable(network)).map_err(|error| {
                let other = format!("the other route of metric {} to it", metric(network));
                let fix = format!("to fix it: remove {other}, or fail = \"open\"");
                refused(network, &format!("{error}; {fix}"))
            })?;
            self.added.push(network);
        }
        Ok(())
    }

    /// Leaves the routes to [`remove`]: they outlive this process.
    pub(super) fn keep(mut self) {
        self.added.clear();
    }
}

/// Adds the routes again that another program has removed. If one cannot be added, the others remain.
///
/// # Errors
/// As [`UnreachableRoutes::add`].
pub(super) fn restore(plan: &TunnelPlan) -> io::Result<()> {
    let mut routes = UnreachableRoutes::default();
    let outcome = routes.add_missing(plan);
    routes.keep();
    outcome
}

impl Drop for UnreachableRoutes {
    fn drop(&mut self) {
        let _ = remove(self.added.iter().copied());
    }
}

/// Removes the routes to these networks, also those of a daemon that was killed. What is not there is no error.
///
/// # Errors
/// The kernel's error; the other routes are removed.
pub(super) fn remove(networks: impl Iterator<Item = Network>) -> io::Result<()> {
    let mut outcome = Ok(());
    let routes = Routes::open()?;
    for network in networks {
        if let Err(error) = routes.delete(&unreachable(network))
            && find(&routes, network).is_ok_and(|found| found.is_there)
        {
            outcome = Err(refused(network, &error.to_string()));
        }
    }
    outcome
}

/// The networks of a tunnel that fails closed.
pub(super) fn networks(plan: &TunnelPlan) -> impl Iterator<Item = Network> {
    plan.networks().filter(move |_| plan.fail == FailMode::Closed)
}

/// The metric of the tunnel's own route to a network.
fn own_metric(network: Network) -> u32 {
    DEFAULT_METRICS[usize::from(network.address.is_ipv6())]
}

fn metric(network: Network) -> u32 {
    own_metric(network) + 1
}

/// The route that remains when that of the tunnel is gone.
fn unreachable(network: Network) -> Route {
    let (protocol, metric) = (PROTOCOL, metric(network));
    let route = Route::new(RouteKind::Unreachable, network.address, network.prefix);
    Route { protocol, metric, ..route }
}

/// The routes to a network.
struct Found {
    /// Whether the unreachable one is there.
    is_there: bool,
    /// A route that is used before that of the tunnel, as `ip` takes it.
    earlier: Option<String>,
}

fn find(routes: &Routes, network: Network) -> io::Result<Found> {
    let found = routes.to_network(network.address, network.prefix)?;
    let own = unreachable(network);
    let is_own = |route: &Route| {
        (route.kind, route.protocol, route.metric) == (own.kind, own.protocol, own.metric)
    };
    let earlier = found.iter().find(|route| route.metric < own_metric(network));
    Ok(Found {
        is_there: found.iter().any(is_own),
        earlier: earlier.map(|route| shown(routes, route, network)),
    })
}

/// A route in the language of `ip`.
fn shown(routes: &Routes, route: &Route, network: Network) -> String {
    let gateway = route.gateway.map(|gateway| format!(" via {gateway}"));
    let name = route.interface.and_then(|index| index_to_name(routes, index).ok());
    let device = name.map(|name| format!(" dev {name}"));
    let [gateway, device] = [gateway, device].map(Option::unwrap_or_default);
    format!("{network}{gateway}{device} metric {}", route.metric)
}

fn refused(network: Network, why: &str) -> io::Error {
    io::Error::other(format!("tunnel.networks: {network}: {why}"))
}
