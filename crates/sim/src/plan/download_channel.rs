//! A channel in a plan: one TCP connection after another to servers drawn at random.

use serde::{Deserialize, Serialize};

use super::{BYTES_MAX, Check, HUB, Plan, TIME_NS_MAX, Tcp};

/// A channel: a client that downloads over one connection after another, without think time. The
/// server sends as soon as it has accepted a connection, and then closes it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DownloadChannel {
    /// The hosts that each connection's server is drawn from, as indices into `hosts`, all behind
    /// the hub. Empty for a server at the hub's gateway.
    pub servers: Vec<u32>,
    /// The sizes of downloads in bytes, each with its weight.
    pub sizes: Vec<(u64, u64)>,
    /// The number of connections; `null` for no limit.
    pub connections: Option<u64>,
    /// The longest time from the acceptance of a connection to the first byte that the server
    /// writes, drawn uniformly from zero.
    pub server_jitter_ns: u64,
    /// The longest time from the end of a connection to the start of the next, drawn uniformly from
    /// zero.
    pub client_jitter_ns: u64,
    /// The TCP of the servers.
    pub server: Box<Tcp>,
    /// The TCP of the client.
    pub client: Box<Tcp>,
}

const SIZES_MAX: usize = 10_000;
const SERVERS_MAX: usize = 1_000;
/// Both ends of a channel have an address for each server; routing tables have an entry for each.
const ADDRESSES_MAX: usize = 2_000_000;

impl DownloadChannel {
    /// The addresses that it uses in addition to those of its two ends.
    #[must_use]
    pub fn addresses(&self) -> usize {
        2 * self.servers.len()
    }

    /// The mean size of a download.
    #[must_use]
    pub fn mean_bytes(&self) -> u64 {
        let weights: u128 = self.sizes.iter().map(|size| u128::from(size.1)).sum();
        let sum: u128 =
            self.sizes.iter().map(|&(bytes, weight)| u128::from(bytes) * u128::from(weight)).sum();
        u64::try_from(sum / weights.max(1)).unwrap_or(u64::MAX)
    }

    pub(super) fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        check.that(
            (1..=SIZES_MAX).contains(&self.sizes.len()),
            || at("sizes"),
            "must have from 1 to 10,000 sizes",
        );
        check.that(
            self.sizes.iter().all(|&(bytes, _)| (1..=BYTES_MAX).contains(&bytes)),
            || at("sizes"),
            "must be from 1 to 2^50 bytes",
        );
        let weights = self.sizes.iter().map(|size| size.1);
        let sum = weights.clone().try_fold(0, u64::checked_add);
        check.that(
            weights.min() != Some(0) && sum.is_some(),
            || at("sizes"),
            "must have weights of at least 1 with a sum below 2^64",
        );
        check.that(
            self.connections != Some(0),
            || at("connections"),
            "must be at least 1, or null for no limit",
        );
        check.within(self.server_jitter_ns, 0..=TIME_NS_MAX, || at("server_jitter_ns"));
        check.within(self.client_jitter_ns, 0..=TIME_NS_MAX, || at("client_jitter_ns"));
        self.server.check(check, &|field| at(&format!("server.{field}")));
        self.client.check(check, &|field| at(&format!("client.{field}")));
    }

    pub(super) fn check_servers(
        &self,
        check: &mut Check,
        plan: &Plan,
        at: &dyn Fn(&str) -> String,
    ) {
        check.that(
            self.servers.len() <= SERVERS_MAX,
            || at("workload.servers"),
            "must have at most 1,000 servers",
        );
        let is_in_world =
            |&host: &u32| plan.hosts.get(host as usize).is_some_and(|host| host.gateway == HUB);
        check.that(
            self.servers.iter().all(is_in_world),
            || at("workload.servers"),
            "must be indices of hosts behind the hub",
        );
    }
}

impl Plan {
    pub(super) fn check_channel_addresses(&self, check: &mut Check) {
        let addresses: usize = self.channels().map(DownloadChannel::addresses).sum();
        check.that(
            addresses <= ADDRESSES_MAX,
            || "flows".to_owned(),
            "must have at most 1,000,000 pairs of a channel and one of its servers",
        );
    }

    /// The terminal gateway of each address that channels use in addition to those of flows' ends.
    pub(crate) fn channel_terminals(&self) -> impl Iterator<Item = u32> {
        self.flows.iter().flat_map(|flow| {
            let addresses = flow.workload.channel().map_or(0, DownloadChannel::addresses);
            core::iter::repeat_n(1 + flow.terminal, addresses)
        })
    }

    /// The channels of the plan.
    pub fn channels(&self) -> impl Iterator<Item = &DownloadChannel> {
        self.flows.iter().filter_map(|flow| flow.workload.channel())
    }
}
