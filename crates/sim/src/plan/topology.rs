//! Validation of gateways, directions and hosts against each other.

use super::{Check, HUB, Plan};

pub(super) const TERMINALS_MAX: usize = 10_000;
/// With both ends of all flows and the other engines, a graph stays below its limit of 2^24
/// engines.
pub(super) const HOSTS_MAX: usize = 100_000;

impl Plan {
    pub(super) fn check_topology(&self, check: &mut Check) {
        check.that(
            (2..=1 + TERMINALS_MAX).contains(&self.gateways.len()),
            || "gateways".to_owned(),
            "must have one for the hub, and from 1 to 10,000 for terminals",
        );
        for (index, gateway) in self.gateways.iter().enumerate() {
            gateway.check(check, &format!("gateways.{index}"));
            check.that(
                gateway.peers().eq(self.gateways[0].peers()),
                || format!("gateways.{index}"),
                "must have the same functions that need a peer as the hub, in the same order",
            );
        }
        self.check_directions(check);
        check.that(
            self.hosts.len() <= HOSTS_MAX,
            || "hosts".to_owned(),
            "must have at most 100,000 hosts",
        );
        check.that(
            self.hosts.is_sorted_by_key(|host| host.gateway),
            || "hosts".to_owned(),
            "must be in the order of their gateways",
        );
        for (index, host) in self.hosts.iter().enumerate() {
            host.check(check, self.gateways.len(), &|field| format!("hosts.{index}.{field}"));
        }
    }

    /// The first direction leads from the hub to all terminals; each other one leads from a
    /// terminal to the hub.
    fn check_directions(&self, check: &mut Check) {
        check.that(
            self.directions.len() == self.gateways.len(),
            || "directions".to_owned(),
            "must have one from each gateway",
        );
        for (index, direction) in (0u32..).zip(&self.directions) {
            let at = |field: &str| format!("directions.{index}.{field}");
            check.that(
                direction.from == index,
                || at("from"),
                "must be the direction's own index: directions are in the order of their gateways",
            );
            let reached = direction.to.iter().map(|branch| branch.gateway);
            let reaches_all = if index == HUB {
                reached.eq(1..self.gateways.len() as u32)
            } else {
                reached.eq([HUB])
            };
            check.that(
                reaches_all,
                || at("to"),
                "must list every terminal in order for the hub, and the hub for a terminal",
            );
            direction.check(check, &format!("directions.{index}"));
            for (position, branch) in direction.to.iter().enumerate() {
                branch.check(check, &|field| format!("directions.{index}.to.{position}.{field}"));
            }
        }
    }
}
