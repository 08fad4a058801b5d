//! The plan: a scenario resolved into integers. It has no defaults, and unknown fields are
//! rejected. [`Plan::parse`] validates all values.

mod change;
mod download_channel;
mod draw;
mod flow;
mod gateway;
mod link;
mod queue;
mod tcp;
mod topology;
mod video;
mod web_page;

use core::fmt;
use core::ops::RangeInclusive;
use std::collections::BTreeMap;

use bentpipe_core::graph::ENGINES_MAX;
use bentpipe_core::packet::PacketId;
use serde::{Deserialize, Serialize};

pub use change::Change;
pub use download_channel::DownloadChannel;
pub use draw::Draw;
pub use flow::{Amount, Flow, Heading, HostChoice, TalkSpurts, Workload};
pub use gateway::*;
pub use link::{Branch, Cells, Channel, ChannelState, Direction, ErrorStep, Framing, Series};
pub use queue::{Limit, Queue, RedUnit, SharingClass};
use topology::{HOSTS_MAX, TERMINALS_MAX};

pub use tcp::{Congestion, Counting, MinBounds, Tcp};
pub use video::Media;
pub use web_page::{Http, Tls, WebPage};

/// The version of the plan format.
pub const FORMAT_VERSION: u32 = 4;

/// The gateway at the hub; terminal `t` has gateway `1 + t`.
pub const HUB: u32 = 0;

/// The input of a run, except its seed.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Always [`FORMAT_VERSION`].
    pub format_version: u32,
    /// When the run ends, unless traffic ends earlier.
    pub stop_ns: u64,
    /// Interval of the time series; `null` for none.
    pub sample_interval_ns: Option<u64>,
    /// Whether the events of every packet are recorded.
    pub packet_events: bool,
    /// The gateways at the ends of the link: the hub first, then the terminals.
    pub gateways: Vec<Gateway>,
    /// The directions between gateways: first from the hub to all terminals, then from each
    /// terminal.
    pub directions: Vec<Direction>,
    /// Hosts at a distance from their gateway.
    pub hosts: Vec<Host>,
    /// The traffic.
    pub flows: Vec<Flow>,
}

/// An invalid plan: the field and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// Dotted path of the field; empty if the text could not be parsed.
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

/// The result of validation: the first problem found.
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

/// With runs of up to 100 days and links of up to 100 Tbit/s, times and sizes fit in 64 bits.
const BYTES_MAX: u64 = 1 << 50;
const TIME_NS_MAX: u64 = 100 * 86_400 * 1_000_000_000;
const RATE_BPS_MAX: u64 = 100_000_000_000_000;
const FLOWS_MAX: usize = 100_000;
/// A gateway has at most one function of each kind.
const FUNCTIONS_MAX: usize = 16;
/// Packet identities hold the number of a flow or gateway. The engines of a graph are both ends and
/// a reflector of each flow, the access lines, and the direction, branch and functions of each
/// gateway.
const _: () = {
    let gateways = 1 + TERMINALS_MAX;
    assert!(FLOWS_MAX + gateways <= PacketId::FLOWS_MAX as usize);
    assert!(3 * FLOWS_MAX + HOSTS_MAX + (2 + FUNCTIONS_MAX) * gateways <= ENGINES_MAX);
};
/// About 3 GB of columns.
const SAMPLE_ROWS_MAX: u64 = 50_000_000;

impl Plan {
    /// Parses a plan from JSON and validates it.
    ///
    /// # Errors
    /// The first field that is missing, unknown, of the wrong type or out of range.
    pub fn parse(json: &str) -> Result<Self, PlanError> {
        let plan: Self = serde_json::from_str(json)
            .map_err(|error| PlanError { field: String::new(), problem: error.to_string() })?;
        plan.check()?;
        Ok(plan)
    }

    /// The number of terminals.
    #[must_use]
    pub fn terminals(&self) -> usize {
        self.gateways.len().saturating_sub(1)
    }

    /// The names of the directions, by their number in columns.
    #[must_use]
    pub fn direction_names(&self) -> Vec<String> {
        self.directions.iter().map(|direction| direction.name.clone()).collect()
    }

    /// The names of the places where packets are observed, by their number in columns: directions,
    /// gateway functions, branches of directions, and access lines of hosts.
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

    /// The branches that add a delay or a channel to their direction.
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
        self.check_channel_addresses(&mut check);
        check.0?;
        self.check_names()?;
        self.check_conferences()
    }

    fn check_run(&self, check: &mut Check) {
        let at = |name: &str| name.to_owned();
        check.that(
            self.format_version == FORMAT_VERSION,
            || at("format_version"),
            &format!("must be {FORMAT_VERSION}, the format of this version"),
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
            "must be longer: the run could record more than 50 million samples",
        );
        check.that(
            (1..=FLOWS_MAX).contains(&self.flows.len()),
            || at("flows"),
            "must have from 1 to 100,000 flows",
        );
    }

    fn check_names(&self) -> Result<(), PlanError> {
        let flows = self.flows.iter().map(|flow| flow.name.clone()).collect();
        unique("flows", flows)?;
        // Results identify directions, functions and hosts by these names.
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
                "needs at least two participants"
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
