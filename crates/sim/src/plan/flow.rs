//! Traffic in a plan.

use core::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{Check, HUB, Host, Plan, RATE_BPS_MAX, TIME_NS_MAX, Tcp};

/// One conversation.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Unique; names the flow's random streams.
    pub name: String,
    /// The terminal that it goes by: terminal `t` is gateway `1 + t`.
    pub terminal: u32,
    /// Which way its data goes.
    pub direction: Heading,
    /// Its host behind the hub; `null` for one right at the gateway.
    pub world_host: Option<HostChoice>,
    /// Its host behind the terminal, likewise.
    pub island_host: Option<HostChoice>,
    /// When it starts.
    pub start_ns: u64,
    /// Its class where a queue serves by priority; 0 is served first.
    pub priority: u8,
    /// What it does.
    pub workload: Workload,
}

/// The host that an end of a flow runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum HostChoice {
    /// That one.
    Named {
        /// An index into `hosts`.
        host: u32,
    },
    /// One of those behind its gateway, drawn once a run.
    Random,
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Heading {
    /// Hub to user.
    Forward,
    /// User to hub.
    Return,
}

/// What a flow does.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Workload {
    /// One TCP transfer as fast as it goes.
    Bulk {
        /// How much, or for how long.
        amount: Amount,
        /// The TCP that sends.
        sender: Box<Tcp>,
        /// The TCP that receives.
        receiver: Box<Tcp>,
    },
    /// UDP datagrams at a constant rate.
    ConstantRate {
        /// Payload bits per second.
        rate_bps: u64,
        /// Payload of a datagram.
        payload_bytes: u32,
        /// How long.
        duration_ns: u64,
    },
    /// Requests that are answered, one after the other. The flow's direction is that of the
    /// responses.
    RequestResponse {
        /// Bytes of a request.
        request_bytes: u64,
        /// Bytes of a response.
        response_bytes: Draw,
        /// Nanoseconds from the end of a response to the next request.
        think_ns: Draw,
        /// How many; `null` for as many as the run has time for.
        exchanges: Option<u64>,
        /// Whether one connection serves all exchanges, instead of one each.
        keep_connection: bool,
        /// The TCP that answers.
        server: Box<Tcp>,
        /// The TCP that asks.
        client: Box<Tcp>,
    },
    /// One participant of a conference: datagrams at a constant rate to a reflector at the hub,
    /// which sends each to every other participant. The flow's direction is "return".
    Conference {
        /// Which conference.
        conference: u32,
        /// Payload bits per second.
        rate_bps: u64,
        /// Payload of a datagram.
        payload_bytes: u32,
        /// How long.
        duration_ns: u64,
    },
}

/// The size of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "unit", content = "value", rename_all = "snake_case", deny_unknown_fields)]
pub enum Amount {
    /// Application bytes.
    Bytes(u64),
    /// Nanoseconds from the start.
    DurationNs(u64),
}

/// A distribution that numbers are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Draw {
    /// Always the same.
    Constant {
        /// The number.
        value: u64,
    },
    /// Exponential.
    Exponential {
        /// The mean.
        mean: u64,
    },
    /// The bounded Pareto distribution, from `min` to `max`.
    Pareto {
        /// The smallest number.
        min: u64,
        /// The exponent.
        shape: f64,
        /// The largest number.
        max: u64,
    },
    /// A normal logarithm; what lies above `max` becomes `max`.
    Lognormal {
        /// Half of the numbers are below.
        median: u64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// The largest number.
        max: u64,
    },
}

const BYTES_MAX: u64 = 1 << 50;
const DATAGRAM_PAYLOAD_BYTES_MAX: u32 = 65_507;
/// Beyond this a distribution has no spread, or no tail, that a double could tell.
const SHAPE_MAX: f64 = 100.0;
const SHAPE_MIN: f64 = 0.01;
const SIGMA_MAX: f64 = 10.0;

impl Flow {
    pub(super) fn check(&self, check: &mut Check, plan: &Plan, at: &dyn Fn(&str) -> String) {
        check.that(
            self.start_ns < plan.stop_ns,
            || at("start_ns"),
            "must lie before the end of the run",
        );
        let terminals = plan.terminals();
        check.that(
            (self.terminal as usize) < terminals,
            || at("terminal"),
            "is no terminal, which count from 0",
        );
        self.check_host(check, plan, self.world_host, HUB, &|| at("world_host"));
        let terminal = self.terminal.saturating_add(1);
        self.check_host(check, plan, self.island_host, terminal, &|| at("island_host"));
        let gateways = [HUB, terminal];
        let passed = plan.directions.iter().filter(|direction| gateways.contains(&direction.from));
        for classes in passed.filter_map(|direction| direction.queue.classes()) {
            check.that(
                self.priority < classes,
                || at("priority"),
                "must be below the classes of every queue on the way, which count from 0",
            );
        }
        self.workload.check(check, self.direction, &|field| at(&format!("workload.{field}")));
        let meets = matches!(self.workload, Workload::Conference { .. });
        check.that(
            !meets || self.world_host.is_none(),
            || at("world_host"),
            "the reflector of a conference is right at the hub",
        );
    }

    fn check_host(
        &self,
        check: &mut Check,
        plan: &Plan,
        host: Option<HostChoice>,
        gateway: u32,
        at: &dyn Fn() -> String,
    ) {
        let behind = |host: &Host| host.gateway == gateway;
        match host {
            None => {}
            Some(HostChoice::Named { host }) => check.that(
                plan.hosts.get(host as usize).is_some_and(behind),
                at,
                "is no index of a host behind that gateway",
            ),
            Some(HostChoice::Random) => check.that(
                plan.hosts.iter().any(behind),
                at,
                "has no host behind that gateway to draw from",
            ),
        }
    }
}

impl Workload {
    fn check(&self, check: &mut Check, heading: Heading, at: &dyn Fn(&str) -> String) {
        match self {
            Self::Bulk { amount, sender, receiver } => {
                let (Amount::Bytes(size) | Amount::DurationNs(size)) = amount;
                check.that(
                    (1..=BYTES_MAX).contains(size),
                    || at("amount"),
                    "must be from 1 byte or ns to 2^50",
                );
                sender.check(check, &|field| at(&format!("sender.{field}")));
                receiver.check(check, &|field| at(&format!("receiver.{field}")));
            }
            Self::ConstantRate { rate_bps, payload_bytes, duration_ns } => {
                check_datagrams(check, *rate_bps, *payload_bytes, *duration_ns, at);
            }
            Self::RequestResponse { request_bytes, exchanges, server, client, .. } => {
                check.within(*request_bytes, 1..=BYTES_MAX, || at("request_bytes"));
                self.check_draws(check, at);
                check.that(
                    *exchanges != Some(0),
                    || at("exchanges"),
                    "must be at least 1, or null for as many as the run has time for",
                );
                server.check(check, &|field| at(&format!("server.{field}")));
                client.check(check, &|field| at(&format!("client.{field}")));
            }
            Self::Conference { rate_bps, payload_bytes, duration_ns, .. } => {
                check_datagrams(check, *rate_bps, *payload_bytes, *duration_ns, at);
                check.that(
                    heading == Heading::Return,
                    || at("kind"),
                    "a participant of a conference sends in direction \"return\"",
                );
            }
        }
    }

    fn check_draws(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let Self::RequestResponse { response_bytes, think_ns, .. } = self else { return };
        response_bytes.check(check, 1..=BYTES_MAX, &|field| at(&format!("response_bytes.{field}")));
        think_ns.check(check, 0..=TIME_NS_MAX, &|field| at(&format!("think_ns.{field}")));
    }
}

fn check_datagrams(
    check: &mut Check,
    rate_bps: u64,
    payload_bytes: u32,
    duration_ns: u64,
    at: &dyn Fn(&str) -> String,
) {
    check.that(
        (1..=RATE_BPS_MAX).contains(&rate_bps),
        || at("rate_bps"),
        "must be from 1 bit/s to 100 Tbit/s",
    );
    check.that(
        (1..=DATAGRAM_PAYLOAD_BYTES_MAX).contains(&payload_bytes),
        || at("payload_bytes"),
        "must be from 1 to 65,507 bytes",
    );
    check.that(
        u64::from(payload_bytes).saturating_mul(8_000_000_000) >= rate_bps,
        || at("rate_bps"),
        "would send more than one datagram a nanosecond",
    );
    check.that(
        (1..=TIME_NS_MAX).contains(&duration_ns),
        || at("duration_ns"),
        "must be from 1 ns to 100 days",
    );
}

impl Draw {
    /// A constant may be anything in `allowed`; what a distribution is scaled by is at least 1.
    fn check(&self, check: &mut Check, allowed: RangeInclusive<u64>, at: &dyn Fn(&str) -> String) {
        let bound = *allowed.end();
        match *self {
            Self::Constant { value } => check.within(value, allowed, || at("value")),
            Self::Exponential { mean } => check.within(mean, 1..=bound, || at("mean")),
            Self::Pareto { min, shape, max } => {
                check.within(max, 1..=bound, || at("max"));
                check.within(min, 1..=max, || at("min"));
                check.that(
                    (SHAPE_MIN..=SHAPE_MAX).contains(&shape),
                    || at("shape"),
                    "must be from 0.01 to 100",
                );
            }
            Self::Lognormal { median, sigma, max } => {
                check.within(max, 1..=bound, || at("max"));
                check.within(median, 1..=max, || at("median"));
                check.that(
                    (0.0..=SIGMA_MAX).contains(&sigma),
                    || at("sigma"),
                    "must be from 0 to 10",
                );
            }
        }
    }
}
