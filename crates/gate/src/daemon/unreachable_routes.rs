//! Routes that keep packets for the networks of a tunnel from leaving in clear text while its device is gone.
//!
//! The kernel removes the device with its routes when its worker ends, also by a kill. An `unreachable` route to each network
//! remains then, whose metric is the next one after that of the tunnel's own route. So hosts are answered with ICMP "host
//! unreachable", and programs of the gateway get EHOSTUNREACH. The routes are removed when the daemon is ended on purpose; the
//! next daemon takes over those of one that was killed.

use std::io;

use super::tunnel_plan::{FailMode, TunnelPlan};
use crate::network::Network;
use crate::programs::run;

/// Tells these routes from those of others. The kernel does not interpret protocols of routes above 4 (rtnetlink(7)), and
/// iproute2 and routing daemons have no such number (`rt_protos`).
const PROTOCOL: &str = "98";

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
    /// What `ip` printed, for instance because another route has the same network and metric; or another route would be used
    /// before that of the tunnel. No route was added.
    pub(super) fn add(plan: &TunnelPlan) -> io::Result<Self> {
        let mut routes = Self::default();
        for network in networks(plan) {
            let found = find(network)?;
            if let Some(route) = found.earlier {
                let why = "another route to it is used before that of the tunnel";
                return Err(refused(network, &format!("{why}; to fix it: ip route del {route}")));
            }
            if found.is_there {
                continue;
            }
            change("add", network).map_err(|error| {
                let other = format!("the other route of metric {} to it", metric(network));
                let fix = format!("to fix it: remove {other}, or fail = \"open\"");
                refused(network, &format!("{error}; {fix}"))
            })?;
            routes.added.push(network);
        }
        Ok(routes)
    }

    /// Leaves the routes to [`remove`]: they outlive this process.
    pub(super) fn keep(mut self) {
        self.added.clear();
    }
}

impl Drop for UnreachableRoutes {
    fn drop(&mut self) {
        for &network in &self.added {
            let _ = change("del", network);
        }
    }
}

/// Removes the routes to these networks, also those of a daemon that was killed. What is not there is no error.
///
/// # Errors
/// What `ip` printed; the other routes are removed.
pub(super) fn remove(networks: impl Iterator<Item = Network>) -> io::Result<()> {
    let mut outcome = Ok(());
    for network in networks {
        if let Err(error) = change("del", network)
            && find(network).is_ok_and(|found| found.is_there)
        {
            outcome = Err(error);
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

fn change(verb: &str, network: Network) -> io::Result<()> {
    let (text, metric) = (network.to_string(), metric(network).to_string());
    let version = network.version_option();
    let route = ["unreachable", &text, "metric", &metric, "proto", PROTOCOL];
    run("ip", &[&[version, "route", verb], &route[..]].concat(), "").map(|_| ())
}

/// The routes to a network.
#[derive(Default)]
struct Found {
    /// Whether the unreachable one is there.
    is_there: bool,
    /// A route that is used before that of the tunnel, as `ip` shows it.
    earlier: Option<String>,
}

fn find(network: Network) -> io::Result<Found> {
    let text = network.to_string();
    let shown = run("ip", &[network.version_option(), "route", "show", "exact", &text], "")?;
    let mut found = Found::default();
    // The next hops of a route are on lines of their own, after a tab.
    for line in shown.lines().filter(|line| !line.starts_with(char::is_whitespace)) {
        let words: Vec<_> = line.split_whitespace().collect();
        let after = |name| words.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
        let shown_metric: u32 = after("metric").and_then(|text| text.parse().ok()).unwrap_or(0);
        if shown_metric < own_metric(network) {
            found.earlier = Some(line.trim().to_owned());
        }
        found.is_there |= shown_metric == metric(network)
            && words.first() == Some(&"unreachable")
            && after("proto") == Some(PROTOCOL);
    }
    Ok(found)
}

fn refused(network: Network, why: &str) -> io::Error {
    io::Error::other(format!("tunnel.networks: {network}: {why}"))
}
