//! What holds of gateways, directions and hosts together.

use super::{Check, HUB, Plan};

pub(super) const TERMINALS_MAX: usize = 10_000;
/// With every flow's two ends and the rest of the network this stays below the 2^24 engines of a graph.
pub(super) const HOSTS_MAX: usize = 100_000;

impl Plan {
    pub(super) fn check_topology(&self, check: &mut Check) {
        check.that(
            (2..=1 + TERMINALS_MAX).contains(&self.gateways.len()),
            || "gateways".to_owned(),
            "there must be one at the hub, and from 1 to 10,000 at terminals",
        );
        for (index, gateway) in self.gateways.iter().enumerate() {
            gateway.check(check, &format!("gateways.{index}"));
            check.that(
                gateway.peers().eq(self.gateways[0].peers()),
                || format!("gateways.{index}"),
                "has other functions that need their peer than the hub, or in another order",
            );
        }
        self.check_directions(check);
        check.that(
            self.hosts.len() <= HOSTS_MAX,
            || "hosts".to_owned(),
            "there must be at most 100,000 hosts",
        );
        check.that(
            self.hosts.is_sorted_by_key(|host| host.gateway),
            || "hosts".to_owned(),
            "are in the order of their gateways",
        );
        for (index, host) in self.hosts.iter().enumerate() {
            host.check(check, self.gateways.len(), &|field| format!("hosts.{index}.{field}"));
        }
    }

    /// The hub's direction comes first and reaches all terminals; each of these has one to the hub.
    fn check_directions(&self, check: &mut Check) {
        check.that(
            self.directions.len() == self.gateways.len(),
            || "directions".to_owned(),
            "there must be one from each gateway",
        );
        for (number, direction) in (0u32..).zip(&self.directions) {
            let at = |field: &str| format!("directions.{number}.{field}");
            check.that(
                direction.from == number,
                || at("from"),
                "directions are in the order of the gateways that they come from",
            );
            let reached = direction.to.iter().map(|branch| branch.gateway);
            let reaches_all = if number == HUB {
                reached.eq(1..self.gateways.len() as u32)
            } else {
                reached.eq([HUB])
            };
            check.that(
                reaches_all,
                || at("to"),
                "the hub reaches every terminal in order, and a terminal the hub",
            );
            direction.check(check, &format!("directions.{number}"));
            for (place, branch) in direction.to.iter().enumerate() {
                branch.check(check, &|field| format!("directions.{number}.to.{place}.{field}"));
            }
        }
    }
}
