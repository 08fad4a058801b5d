//! A change of a running link, as Python writes it.

use serde::{Deserialize, Serialize};

use super::{Check, Heading, PlanError, Queue, RATE_BPS_MAX, TIME_NS_MAX};

/// New values of the directions with one heading, of one of several links in series. `null` leaves a
/// value as it is.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The index of the link.
    pub hop: usize,
    /// The heading.
    pub direction: Heading,
    /// The rate.
    pub rate_bps: Option<u64>,
    /// The propagation delay.
    pub delay_ns: Option<u64>,
    /// The largest random addition to the delay.
    pub jitter_ns: Option<u64>,
    /// The bit error rate. It and `loss_rate` replace all errors together.
    pub bit_error_rate: Option<f64>,
    /// The share of packets that are lost.
    pub loss_rate: Option<f64>,
    /// How long nothing is sent.
    pub outage_ns: Option<u64>,
    /// The queue.
    pub queue: Option<Queue>,
}

impl Change {
    /// Parses a list of changes from JSON and validates them.
    ///
    /// # Errors
    /// The first field that is missing, unknown, of the wrong type or out of range.
    pub fn parse_list(json: &str) -> Result<Vec<Self>, PlanError> {
        let changes: Vec<Self> = serde_json::from_str(json)
            .map_err(|error| PlanError { field: String::new(), problem: error.to_string() })?;
        for change in &changes {
            change.check()?;
        }
        Ok(changes)
    }

    fn check(&self) -> Result<(), PlanError> {
        let mut check = Check(Ok(()));
        let at = |name: &str| name.to_owned();
        let numbers = [
            ("rate_bps", self.rate_bps, RATE_BPS_MAX),
            ("delay_ns", self.delay_ns, TIME_NS_MAX),
            ("jitter_ns", self.jitter_ns, TIME_NS_MAX),
        ];
        for (name, value, max) in numbers {
            check.within(value.unwrap_or(0), 0..=max, || at(name));
        }
        for (name, value) in
            [("bit_error_rate", self.bit_error_rate), ("loss_rate", self.loss_rate)]
        {
            let share = value.unwrap_or(0.0);
            check.that((0.0..=1.0).contains(&share), || at(name), "must be from 0 to 1");
        }
        if let Some(queue) = &self.queue {
            queue.check(&mut check, &|field| format!("queue.{field}"));
        }
        check.0
    }
}
