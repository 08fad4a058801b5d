//! The plan: a scenario resolved into complete integers. There are no defaults here, and unknown
//! fields are refused; what a field may hold is checked once, by [`Plan::parse`].

use core::fmt;

use bentpipe_core::profile::Profile;
use bentpipe_core::tcp::config::{
    AckPolicy, AvoidanceCounting, CongestionName, RtoConfig, RtoMinBounds,
};
use bentpipe_core::tcp::{self};
use bentpipe_core::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// The format this version reads and writes.
pub const FORMAT_VERSION: u32 = 1;

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
    /// The traffic.
    pub flows: Vec<Flow>,
}

/// One satellite hop.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Hub to user.
    pub forward: Direction,
    /// User to hub.
    #[serde(rename = "return")]
    pub return_: Direction,
}

/// One direction of the hop.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Direction {
    /// The transmitter's rate, framing included.
    pub rate_bps: Series,
    /// One-way propagation delay.
    pub delay_ns: Series,
    /// Bytes that framing adds to an IP packet.
    pub framing_overhead_bytes: u64,
    /// What waits in front of the transmitter.
    pub queue: Queue,
    /// What happens in space.
    pub channel: Channel,
}

/// A number as a function of time.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Series {
    /// Always the same.
    Constant {
        /// The number.
        value: u64,
    },
    /// Each number holds from its nanosecond until the next.
    Steps {
        /// (nanosecond, number), the first at zero.
        steps: Vec<(u64, u64)>,
    },
}

/// A queue and its discipline.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "discipline", rename_all = "snake_case", deny_unknown_fields)]
pub enum Queue {
    /// First in, first out; what does not fit is dropped.
    DropTail {
        /// How much may wait.
        limit: Limit,
    },
}

/// How much may wait in a queue.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "unit", content = "value", rename_all = "snake_case", deny_unknown_fields)]
pub enum Limit {
    /// IP bytes.
    Bytes(u64),
    /// Packets.
    Packets(u64),
    /// Nanoseconds of waiting.
    TimeNs(u64),
    /// No limit.
    Unlimited,
}

/// A channel.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Channel {
    /// No damage.
    Clear,
    /// A binary symmetric channel.
    BitErrors {
        /// Probability that a bit is wrong.
        bit_error_rate: f64,
    },
}

/// One conversation.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Unique; names the flow's random stream.
    pub name: String,
    /// Which way its data goes.
    pub direction: Heading,
    /// When it starts.
    pub start_ns: u64,
    /// What it does.
    pub workload: Workload,
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

impl Heading {
    /// Both, in the order of their number in columns.
    pub const NAMES: [&'static str; 2] = ["forward", "return"];
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
}

/// The size of a transfer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "unit", content = "value", rename_all = "snake_case", deny_unknown_fields)]
pub enum Amount {
    /// Application bytes.
    Bytes(u64),
    /// Nanoseconds from the start.
    DurationNs(u64),
}

/// A host's TCP; see [`tcp::Config`] for what each field means.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each field is described at the engine's own settings")]
#[expect(clippy::struct_excessive_bools, reason = "each is one option of a host, by name")]
pub struct Tcp {
    pub mss_bytes: u16,
    pub initial_window_segments: u32,
    pub congestion_control: Congestion,
    pub sack: bool,
    pub timestamps: bool,
    pub window_scaling: bool,
    pub send_buffer_bytes: u64,
    pub receive_buffer_bytes: u64,
    pub receive_buffer_initial_bytes: u64,
    pub delayed_ack_segments: u32,
    pub delayed_ack_timeout_ns: u64,
    pub quick_ack_segments: u32,
    pub rto_initial_ns: u64,
    pub rto_min_ns: u64,
    pub rto_min_bounds: MinBounds,
    pub rto_max_ns: u64,
    pub clock_granularity_ns: u64,
    pub slow_start_segments_per_ack: u32,
    pub avoidance_counting: Counting,
    pub limited_transmit: bool,
    pub rack_tlp: bool,
    pub prr: bool,
    pub hystart: bool,
}

/// The congestion controls by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "described at `CongestionName`")]
pub enum Congestion {
    Reno,
    NewReno,
    Cubic,
}

/// What congestion avoidance counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "described at `AvoidanceCounting`")]
pub enum Counting {
    Bytes,
    Acks,
}

/// What the least time-out bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "described at `RtoMinBounds`")]
pub enum MinBounds {
    Timeout,
    Variance,
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
}

/// A run of 100 days and a link of 100 Tbit/s are beyond what anyone asks and within 64 bits.
const TIME_NS_MAX: u64 = 100 * 86_400 * 1_000_000_000;
const RATE_BPS_MAX: u64 = 100_000_000_000_000;
const BUFFER_BYTES_MAX: u64 = 1 << 30;
const FLOWS_MAX: usize = 100_000;
/// Some 3 GB of columns.
const SAMPLE_ROWS_MAX: u64 = 50_000_000;
const DATAGRAM_PAYLOAD_BYTES_MAX: u32 = 65_507;
/// RFC 9293, 3.7.1: 65,535 less the headers; RFC 879's least is 536, but small ones are in use.
const MSS_BYTES: core::ops::RangeInclusive<u16> = 88..=65_495;

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

    fn check(&self) -> Result<(), PlanError> {
        let mut check = Check(Ok(()));
        let at = |name: &str| name.to_owned();
        check.that(
            self.format_version == FORMAT_VERSION,
            || at("format_version"),
            "this version reads plans of format 1",
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
        check.that(
            samples.saturating_mul(self.flows.len() as u64 + 2) <= SAMPLE_ROWS_MAX,
            || at("sample_interval_ns"),
            "is so short that the run could give more than 50 million samples",
        );
        check.that(
            (1..=FLOWS_MAX).contains(&self.flows.len()),
            || at("flows"),
            "there must be from 1 to 100,000 flows",
        );
        self.link.forward.check(&mut check, "link.forward");
        self.link.return_.check(&mut check, "link.return");
        for (index, flow) in self.flows.iter().enumerate() {
            flow.check(&mut check, self.stop_ns, &|field| format!("flows.{index}.{field}"));
        }
        check.0?;
        self.check_names()
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
}

impl Direction {
    fn check(&self, check: &mut Check, path: &str) {
        let at = |field: &str| format!("{path}.{field}");
        let (rates, rises) = self.rate_bps.numbers();
        check.that(rises, || at("rate_bps"), STEPS_RULE);
        check.that(
            rates.iter().all(|&rate| rate <= RATE_BPS_MAX),
            || at("rate_bps"),
            "must be at most 100 Tbit/s",
        );
        check.that(
            rates.last().is_some_and(|&rate| rate > 0),
            || at("rate_bps"),
            "must end above zero, or what is queued would never leave",
        );
        let (delays, rises) = self.delay_ns.numbers();
        check.that(rises, || at("delay_ns"), STEPS_RULE);
        check.that(
            delays.iter().all(|&delay| delay <= TIME_NS_MAX),
            || at("delay_ns"),
            "must be at most 100 days",
        );
        check.that(
            self.framing_overhead_bytes <= 65_535,
            || at("framing_overhead_bytes"),
            "must be at most 65,535",
        );
        let Channel::BitErrors { bit_error_rate } = self.channel else { return };
        check.that(
            (0.0..=1.0).contains(&bit_error_rate),
            || at("channel.bit_error_rate"),
            "must lie from 0 to 1",
        );
    }
}

const STEPS_RULE: &str = "steps must begin at 0 ns and rise in time";

impl Series {
    /// The numbers in order, and whether the steps are in order.
    fn numbers(&self) -> (Vec<u64>, bool) {
        match self {
            Self::Constant { value } => (vec![*value], true),
            Self::Steps { steps } => {
                let numbers = steps.iter().map(|step| step.1).collect();
                (numbers, self.profile(|number| number).is_some())
            }
        }
    }

    /// The profile that engines read; `None` if the steps are out of order.
    pub(crate) fn profile<T: Copy>(&self, unit: impl Fn(u64) -> T) -> Option<Profile<T>> {
        match self {
            Self::Constant { value } => Some(Profile::Constant(unit(*value))),
            Self::Steps { steps } => {
                let steps = steps.iter().map(|&(at, n)| (Instant::from_nanos(at), unit(n)));
                Profile::steps(steps.collect())
            }
        }
    }
}

impl Flow {
    fn check(&self, check: &mut Check, stop_ns: u64, at: &dyn Fn(&str) -> String) {
        check.that(
            self.start_ns < stop_ns,
            || at("start_ns"),
            "must lie before the end of the run",
        );
        match &self.workload {
            Workload::Bulk { amount, sender, receiver } => {
                let (Amount::Bytes(size) | Amount::DurationNs(size)) = amount;
                check.that(
                    (1..=1 << 50).contains(size),
                    || at("workload.amount"),
                    "must be from 1 byte or ns to 2^50",
                );
                sender.check(check, &|field| at(&format!("workload.sender.{field}")));
                receiver.check(check, &|field| at(&format!("workload.receiver.{field}")));
            }
            Workload::ConstantRate { rate_bps, payload_bytes, duration_ns } => {
                check.that(
                    (1..=RATE_BPS_MAX).contains(rate_bps),
                    || at("workload.rate_bps"),
                    "must be from 1 bit/s to 100 Tbit/s",
                );
                check.that(
                    (1..=DATAGRAM_PAYLOAD_BYTES_MAX).contains(payload_bytes),
                    || at("workload.payload_bytes"),
                    "must be from 1 to 65,507 bytes",
                );
                check.that(
                    u64::from(*payload_bytes).saturating_mul(8_000_000_000) >= *rate_bps,
                    || at("workload.rate_bps"),
                    "would send more than one datagram a nanosecond",
                );
                check.that(
                    (1..=TIME_NS_MAX).contains(duration_ns),
                    || at("workload.duration_ns"),
                    "must be from 1 ns to 100 days",
                );
            }
        }
    }
}

impl Tcp {
    fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let mut bounds = |name: &str, value: u64, least: u64, most: u64| {
            check.that(
                (least..=most).contains(&value),
                || at(name),
                &format!("is {value} but must be from {least} to {most}"),
            );
        };
        let mss = u64::from(self.mss_bytes);
        bounds("mss_bytes", mss, (*MSS_BYTES.start()).into(), (*MSS_BYTES.end()).into());
        bounds("initial_window_segments", self.initial_window_segments.into(), 1, 1_000);
        bounds("send_buffer_bytes", self.send_buffer_bytes, mss, BUFFER_BYTES_MAX);
        bounds("receive_buffer_bytes", self.receive_buffer_bytes, mss, BUFFER_BYTES_MAX);
        bounds(
            "receive_buffer_initial_bytes",
            self.receive_buffer_initial_bytes,
            mss,
            self.receive_buffer_bytes,
        );
        bounds("delayed_ack_segments", self.delayed_ack_segments.into(), 1, 1_000);
        bounds("delayed_ack_timeout_ns", self.delayed_ack_timeout_ns, 0, 10_000_000_000);
        bounds("clock_granularity_ns", self.clock_granularity_ns, 1, 10_000_000_000);
        bounds("rto_min_ns", self.rto_min_ns, 1_000_000, self.rto_max_ns);
        bounds("rto_initial_ns", self.rto_initial_ns, self.rto_min_ns, self.rto_max_ns);
        bounds("rto_max_ns", self.rto_max_ns, 1_000_000, TIME_NS_MAX);
        bounds("slow_start_segments_per_ack", self.slow_start_segments_per_ack.into(), 1, 65_535);
    }

    /// The engine's settings.
    #[must_use]
    pub fn config(&self) -> tcp::Config {
        tcp::Config {
            mss: self.mss_bytes,
            initial_window_segments: self.initial_window_segments,
            congestion: match self.congestion_control {
                Congestion::Reno => CongestionName::Reno,
                Congestion::NewReno => CongestionName::NewReno,
                Congestion::Cubic => CongestionName::Cubic,
            },
            sack: self.sack,
            timestamps: self.timestamps,
            window_scaling: self.window_scaling,
            send_buffer: self.send_buffer_bytes,
            receive_buffer: self.receive_buffer_bytes,
            receive_buffer_initial: self.receive_buffer_initial_bytes,
            acks: AckPolicy {
                delayed_segments: self.delayed_ack_segments,
                delayed_timeout: Duration::from_nanos(self.delayed_ack_timeout_ns),
                quick_segments: self.quick_ack_segments,
            },
            rto: RtoConfig {
                initial: Duration::from_nanos(self.rto_initial_ns),
                min: Duration::from_nanos(self.rto_min_ns),
                max: Duration::from_nanos(self.rto_max_ns),
                granularity: Duration::from_nanos(self.clock_granularity_ns),
                min_bounds: match self.rto_min_bounds {
                    MinBounds::Timeout => RtoMinBounds::Timeout,
                    MinBounds::Variance => RtoMinBounds::Variance,
                },
            },
            slow_start_segments_per_ack: self.slow_start_segments_per_ack,
            avoidance: match self.avoidance_counting {
                Counting::Bytes => AvoidanceCounting::Bytes,
                Counting::Acks => AvoidanceCounting::Acks,
            },
            limited_transmit: self.limited_transmit,
            rack_tlp: self.rack_tlp,
            prr: self.prr,
            hystart: self.hystart,
        }
    }
}
