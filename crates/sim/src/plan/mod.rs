//! The plan: a scenario resolved into complete integers. There are no defaults here, and unknown
//! fields are refused; what a field may hold is checked once, by [`Plan::parse`].

mod flow;
mod link;
mod queue;
mod tcp;

use core::fmt;
use core::ops::RangeInclusive;
use std::collections::BTreeMap;

use bentpipe_core::graph::ENGINES_MAX;
use bentpipe_core::packet::PacketId;
use serde::{Deserialize, Serialize};

pub use flow::{Amount, Draw, Flow, Heading, Workload};
pub use link::{Cells, Channel, Direction, Framing, Gateway, Processor, Series};
pub use queue::{Limit, Queue, RedUnit};
pub use tcp::{Congestion, Counting, MinBounds, Tcp};

/// The format this version reads and writes.
pub const FORMAT_VERSION: u32 = 2;

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
    /// The satellite hop.
    pub link: Link,
    /// The machines at its ends.
    pub gateways: Gateways,
    /// The traffic.
    pub flows: Vec<Flow>,
}

/// One satellite hop.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Hub to all terminals, which share it.
    pub forward: Direction,
    /// Each terminal to the hub.
    pub returns: Vec<Direction>,
}

/// The machines between the hop and the networks of the hosts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Gateways {
    /// At the hub.
    pub hub: Gateway,
    /// At each terminal.
    pub terminals: Vec<Gateway>,
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
            let (least, most) = allowed.into_inner();
            let problem = format!("is {value} but must be from {least} to {most}");
            self.0 = Err(PlanError { field: field(), problem });
        }
    }
}

/// A run of 100 days and a link of 100 Tbit/s are beyond what anyone asks and within 64 bits.
const TIME_NS_MAX: u64 = 100 * 86_400 * 1_000_000_000;
const RATE_BPS_MAX: u64 = 100_000_000_000_000;
const TERMINALS_MAX: usize = 10_000;
const FLOWS_MAX: usize = 100_000;
/// Flows are told apart in packets' identities, and their two hosts, a reflector for each, and the
/// directions and processors of terminals and hub are numbered in the graph.
const _: () = {
    assert!(FLOWS_MAX <= PacketId::FLOWS_MAX as usize);
    assert!(3 * FLOWS_MAX + 2 * (TERMINALS_MAX + 1) <= ENGINES_MAX);
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

    /// The directions by their number in columns: forward, then the return of each terminal.
    #[must_use]
    pub fn direction_names(&self) -> Vec<String> {
        let returns = match self.link.returns.len() {
            1 => vec!["return".to_owned()],
            several => (1..=several).map(|number| format!("return-{number}")).collect(),
        };
        [vec!["forward".to_owned()], returns].concat()
    }

    /// Where something can happen to a packet, by its number in columns: the directions, then the
    /// processors that exist.
    #[must_use]
    pub fn place_names(&self) -> Vec<String> {
        let mut names = self.direction_names();
        let Gateways { hub, terminals } = &self.gateways;
        names.extend(hub.processor.iter().map(|_| "hub-processor".to_owned()));
        for (number, terminal) in (1..).zip(terminals) {
            let name = || format!("terminal-{number}-processor");
            names.extend(terminal.processor.iter().map(|_| name()));
        }
        names
    }

    fn check(&self) -> Result<(), PlanError> {
        let mut check = Check(Ok(()));
        self.check_run(&mut check);
        self.link.check(&mut check);
        self.gateways.check(&mut check, self.link.returns.len());
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
            "this version reads plans of format 2",
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
        let rows = (self.flows.len() + 1 + self.link.returns.len()) as u64;
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
        let mut names: Vec<_> = self.flows.iter().map(|flow| flow.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => Err(PlanError {
                field: "flows".to_owned(),
                problem: format!("two flows are called {:?}", pair[0]),
            }),
        }
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

impl Link {
    fn check(&self, check: &mut Check) {
        check.that(
            (1..=TERMINALS_MAX).contains(&self.returns.len()),
            || "link.returns".to_owned(),
            "there must be from 1 to 10,000 terminals",
        );
        self.forward.check(check, "link.forward");
        for (index, direction) in self.returns.iter().enumerate() {
            direction.check(check, &format!("link.returns.{index}"));
        }
    }
}

impl Gateways {
    fn check(&self, check: &mut Check, terminals: usize) {
        check.that(
            self.terminals.len() == terminals,
            || "gateways.terminals".to_owned(),
            "there must be one for each of link.returns",
        );
        self.hub.check(check, "gateways.hub");
        for (index, gateway) in self.terminals.iter().enumerate() {
            gateway.check(check, &format!("gateways.terminals.{index}"));
        }
    }
}
