//! The plan: a scenario resolved into complete integers. There are no defaults here, and unknown
//! fields are refused; what a field may hold is checked once, by [`Plan::parse`].

mod flow;
mod gateway;
mod link;
mod queue;
mod tcp;
mod topology;

use core::fmt;
use core::ops::RangeInclusive;
use std::collections::BTreeMap;

use bentpipe_core::graph::ENGINES_MAX;
use bentpipe_core::packet::PacketId;
use serde::{Deserialize, Serialize};

pub use flow::{Amount, Draw, Flow, Heading, HostChoice, Workload};
pub use gateway::*;
pub use link::{Branch, Cells, Channel, ChannelState, Direction, ErrorStep, Framing, Series};
pub use queue::{Limit, Queue, RedUnit};
use topology::{HOSTS_MAX, TERMINALS_MAX};

pub use tcp::{Congestion, Counting, MinBounds, Tcp};

/// The format this version reads and writes.
pub const FORMAT_VERSION: u32 = 3;

/// The gateway at the hub; terminal `t` has gateway `1 + t`.
pub const HUB: u32 = 0;

/// Everything a run needs besides its seed.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Always [`FORMAT_VERSION`].
    pub format_version: u32,
    /// When the run ends, if traffic has not ended before.
    pub stop_ns: u64,
    /// How often time series are sampled; `null` for never.
    pub sample_interval_ns: Option<u64>,
    /// Whether every packet's way is recorded.
    pub packet_events: bool,
    /// The boxes at the ends of the link: the hub's first, then that of each terminal.
    pub gateways: Vec<Gateway>,
    /// The wires between gateways: from the hub to all terminals first, then back from each.
    pub directions: Vec<Direction>,
    /// Hosts at some distance from their gateway.
    pub hosts: Vec<Host>,
    /// The traffic.
    pub flows: Vec<Flow>,
}

/// What is wrong with a plan: the field and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// Dotted path of the field, empty when the text itself could not be read.
    pub field: String,
    /// What was found and what is allowed.
    pub problem: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            return write!(f, "{}", self.problem);
        }
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for PlanError {}

/// Collects the first problem found under a dotted path.
struct Check(Result<(), PlanError>);

impl Check {
    fn that(&mut self, holds: bool, field: impl FnOnce() -> String, problem: &str) {
        if self.0.is_ok() && !holds {
            self.0 = Err(PlanError { field: field(), problem: problem.to_owned() });
        }
    }

    fn within(&mut self, value: u64, allowed: RangeInclusive<u64>, field: impl FnOnce() -> String) {
        if self.0.is_ok() && !allowed.contains(&value) {
            let (min, max) = allowed.into_inner();
            let problem = format!("is {value} but must be from {min} to {max}");
            self.0 = Err(PlanError { field: field(), problem });
        }
    }
}

/// A run of 100 days and a link of 100 Tbit/s are beyond what anyone asks and within 64 bits.
const TIME_NS_MAX: u64 = 100 * 86_400 * 1_000_000_000;
const RATE_BPS_MAX: u64 = 100_000_000_000_000;
const FLOWS_MAX: usize = 100_000;
/// A gateway has each kind of function once.
const FUNCTIONS_MAX: usize = 16;
/// Flows and gateways are told apart in packets' identities. Both ends of flows, a reflector for each,
/// the ways to hosts, and the direction, branch and functions of each gateway are numbered in the graph.
const _: () = {
    let gateways = 1 + TERMINALS_MAX;
    assert!(FLOWS_MAX + gateways <= PacketId::FLOWS_MAX as usize);
    assert!(3 * FLOWS_MAX + HOSTS_MAX + (2 + FUNCTIONS_MAX) * gateways <= ENGINES_MAX);
};
/// Some 3 GB of columns.
const SAMPLE_ROWS_MAX: u64 = 50_000_000;

impl Plan {
    /// Reads a plan from JSON and checks it.
    ///
    /// # Errors
    /// The first field that is missing, unknown, of the wrong type or out of bounds.
    pub fn parse(json: &str) -> Result<Self, PlanError> {
        let plan: Self = serde_json::from_str(json)
            .map_err(|error| PlanError { field: String::new(), problem: error.to_string() })?;
        plan.check()?;
        Ok(plan)
    }

    /// How many terminals there are.
    #[must_use]
    pub fn terminals(&self) -> usize {
        self.gateways.len().saturating_sub(1)
    }

    /// The directions by their number in columns.
    #[must_use]
    pub fn direction_names(&self) -> Vec<String> {
        self.directions.iter().map(|direction| direction.name.clone()).collect()
    }

    /// Where something can happen to a packet, by its number in columns: the directions, the functions
    /// of gateways, the branches of directions, and the ways to hosts.
    #[must_use]
    pub fn place_names(&self) -> Vec<String> {
        let mut names = self.direction_names();
        for gateway in &self.gateways {
            let named = |function: &Function| format!("{}-{}", gateway.name, function.name());
            names.extend(gateway.functions.iter().map(named));
        }
        for (direction, branch) in self.branches() {
            let gateway = &self.gateways[branch.gateway as usize];
            names.push(format!("{}-{}", direction.name, gateway.name));
        }
        names.extend(self.hosts.iter().map(|host| host.name.clone()));
        names
    }

    /// The branches that differ from their directions.
    pub fn branches(&self) -> impl Iterator<Item = (&Direction, &Branch)> {
        let all = self
            .directions
            .iter()
            .flat_map(|direction| direction.to.iter().map(move |branch| (direction, branch)));
        all.filter(|(_, branch)| !branch.is_plain())
    }

    fn check(&self) -> Result<(), PlanError> {
        let mut check = Check(Ok(()));
        self.check_run(&mut check);
        self.check_topology(&mut check);
        for (index, flow) in self.flows.iter().enumerate() {
            flow.check(&mut check, self, &|field| format!("flows.{index}.{field}"));
        }
        check.0?;
        self.check_names()?;
        self.check_conferences()
    }

    fn check_run(&self, check: &mut Check) {
        let at = |name: &str| name.to_owned();
        check.that(
            self.format_version == FORMAT_VERSION,
            || at("format_version"),
            "this version reads plans of format 3",
        );
        check.that(
            (1..=TIME_NS_MAX).contains(&self.stop_ns),
            || at("stop_ns"),
            "must be from 1 ns to 100 days",
        );
        check.that(
            self.sample_interval_ns.is_none_or(|interval| interval >= 1_000),
            || at("sample_interval_ns"),
            "must be at least 1 microsecond",
        );
        let samples = self.sample_interval_ns.map_or(0, |interval| self.stop_ns / interval.max(1));
        let rows = (self.flows.len() + self.directions.len()) as u64;
        check.that(
            samples.saturating_mul(rows) <= SAMPLE_ROWS_MAX,
            || at("sample_interval_ns"),
            "is so short that the run could give more than 50 million samples",
        );
        check.that(
            (1..=FLOWS_MAX).contains(&self.flows.len()),
            || at("flows"),
            "there must be from 1 to 100,000 flows",
        );
    }

    fn check_names(&self) -> Result<(), PlanError> {
        let flows = self.flows.iter().map(|flow| flow.name.clone()).collect();
        unique("flows", flows)?;
        // Directions, functions and hosts are told apart in results by these.
        unique("places", self.place_names())
    }

    fn check_conferences(&self) -> Result<(), PlanError> {
        let mut terminals: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for flow in &self.flows {
            if let Workload::Conference { conference, .. } = flow.workload {
                terminals.entry(conference).or_default().push(flow.terminal);
            }
        }
        for (conference, mut terminals) in terminals {
            terminals.sort_unstable();
            let problem = if terminals.len() < 2 {
                "has one participant, and needs two"
            } else if terminals.windows(2).any(|pair| pair[0] == pair[1]) {
                "has two participants on one terminal"
            } else {
                continue;
            };
            let problem = format!("conference {conference} {problem}");
            return Err(PlanError { field: "flows".to_owned(), problem });
        }
        Ok(())
    }
}

fn unique(what: &str, mut names: Vec<String>) -> Result<(), PlanError> {
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let problem = format!("two {what} are called {:?}", pair[0]);
            Err(PlanError { field: what.to_owned(), problem })
        }
    }
}
