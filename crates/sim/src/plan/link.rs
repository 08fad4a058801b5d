//! The directions of the link in a plan.

use bentpipe_core::link;
use bentpipe_core::profile::Profile;
use bentpipe_core::time::Instant;
use serde::{Deserialize, Serialize};

use super::{Check, Queue, RATE_BPS_MAX, TIME_NS_MAX};

/// One direction of the link, from one gateway to one or more others that share its transmitter.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Direction {
    /// Unique; names the direction's random streams, and its rows in results.
    pub name: String,
    /// The gateway that sends: an index into `gateways`.
    pub from: u32,
    /// The gateways that it reaches.
    pub to: Vec<Branch>,
    /// The transmitter's rate, framing included.
    pub rate_bps: Series,
    /// One-way propagation delay.
    pub delay_ns: Series,
    /// The largest random addition to the delay of a packet, uniform from zero.
    pub jitter_ns: u64,
    /// The size of a packet on the link.
    pub framing: Framing,
    /// The queue before the transmitter.
    pub queue: Queue,
    /// The channel errors.
    pub channel: Channel,
}

/// A gateway that a direction reaches, with the delay and the channel of that branch.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// An index into `gateways`.
    pub gateway: u32,
    /// One-way delay in addition to that of the direction, in nanoseconds.
    pub delay_ns: u64,
    /// Errors in addition to those of the direction.
    pub channel: Channel,
}

impl Branch {
    /// Whether the branch adds nothing to its direction.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.delay_ns == 0 && self.channel == Channel::Clear
    }
}

/// A number as a function of time.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Series {
    /// A constant.
    Constant {
        /// The number.
        value: u64,
    },
    /// Steps: each number holds until the next step.
    Steps {
        /// (nanosecond, number), the first at zero.
        steps: Vec<(u64, u64)>,
    },
}

/// The overhead of a link layer; see `bentpipe_core::link::Framing`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Framing {
    /// Header and trailer.
    pub header_bytes: u32,
    /// The minimum frame size, header included.
    pub min_bytes: u32,
    /// Cells, if frames are segmented into cells.
    pub cells: Option<Cells>,
    /// Expansion ratio: numerator and denominator.
    pub expansion: (u64, u64),
    /// Bytes between frames.
    pub inter_frame_bytes: u32,
}

/// Cells of a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Cells {
    /// Payload of a cell.
    pub payload_bytes: u32,
    /// Size of a cell, header included.
    pub cell_bytes: u32,
}

/// A channel.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Channel {
    /// No errors.
    Clear,
    /// A binary symmetric channel.
    BitErrors {
        /// Probability of a bit error.
        bit_error_rate: f64,
    },
    /// Two alternating states, each of an exponential duration.
    GilbertElliott {
        /// The state with few errors.
        good: ChannelState,
        /// The state with many errors.
        bad: ChannelState,
    },
    /// Error rates as a function of time.
    ErrorSeries {
        /// The steps, the first at zero.
        steps: Vec<ErrorStep>,
    },
}

/// A state of the Gilbert-Elliott channel.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelState {
    /// Probability of a bit error.
    pub bit_error_rate: f64,
    /// Loss probability of a frame that starts in this state.
    pub loss_rate: f64,
    /// Mean duration of the state.
    pub mean_duration_ns: u64,
}

/// The error rates from a given time.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorStep {
    /// The time from which they hold.
    pub at_ns: u64,
    /// Probability of a bit error.
    pub bit_error_rate: f64,
    /// Loss probability of a frame that starts in this step.
    pub loss_rate: f64,
}

const STEPS_RULE: &str = "must have steps that start at 0 ns and increase in time";

impl Direction {
    pub(super) fn check(&self, check: &mut Check, path: &str) {
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
            "must end above zero, or queued packets would never leave",
        );
        let (delays, rises) = self.delay_ns.numbers();
        check.that(rises, || at("delay_ns"), STEPS_RULE);
        check.that(
            delays.iter().all(|&delay| delay <= TIME_NS_MAX),
            || at("delay_ns"),
            "must be at most 100 days",
        );
        check.within(self.jitter_ns, 0..=TIME_NS_MAX, || at("jitter_ns"));
        self.framing.check(check, &|field| at(&format!("framing.{field}")));
        self.queue.check(check, &|field| at(&format!("queue.{field}")));
        self.channel.check(check, &|field| at(&format!("channel.{field}")));
    }
}

/// With shorter states, errors are practically independent and the simulation is slow.
const MEAN_DURATION_NS_MIN: u64 = 10_000;

impl Channel {
    fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let mut rate = |value: f64, field: &dyn Fn() -> String| {
            check.that((0.0..=1.0).contains(&value), field, "must be from 0 to 1");
        };
        match self {
            Self::Clear => {}
            Self::BitErrors { bit_error_rate } => rate(*bit_error_rate, &|| at("bit_error_rate")),
            Self::GilbertElliott { good, bad } => {
                for (name, state) in [("good", good), ("bad", bad)] {
                    rate(state.bit_error_rate, &|| at(&format!("{name}.bit_error_rate")));
                    rate(state.loss_rate, &|| at(&format!("{name}.loss_rate")));
                }
                for (name, state) in [("good", good), ("bad", bad)] {
                    let allowed = MEAN_DURATION_NS_MIN..=TIME_NS_MAX;
                    let field = || at(&format!("{name}.mean_duration_ns"));
                    check.within(state.mean_duration_ns, allowed, field);
                }
            }
            Self::ErrorSeries { steps } => {
                for (number, step) in steps.iter().enumerate() {
                    let field = |name| at(&format!("steps.{number}.{name}"));
                    rate(step.bit_error_rate, &|| field("bit_error_rate"));
                    rate(step.loss_rate, &|| field("loss_rate"));
                }
                let rises = steps.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns);
                let from_zero = steps.first().is_some_and(|step| step.at_ns == 0);
                check.that(rises && from_zero, || at("steps"), STEPS_RULE);
            }
        }
    }
}

impl Branch {
    pub(super) fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        check.within(self.delay_ns, 0..=TIME_NS_MAX, || at("delay_ns"));
        self.channel.check(check, &|field| at(&format!("channel.{field}")));
    }
}

impl Series {
    /// The numbers, and whether the steps are in order.
    fn numbers(&self) -> (Vec<u64>, bool) {
        match self {
            Self::Constant { value } => (vec![*value], true),
            Self::Steps { steps } => {
                let numbers = steps.iter().map(|step| step.1).collect();
                (numbers, self.profile(|number| number).is_some())
            }
        }
    }

    /// The profile for engines; `None` if the steps are out of order.
    pub fn profile<T: Copy>(&self, unit: impl Fn(u64) -> T) -> Option<Profile<T>> {
        match self {
            Self::Constant { value } => Some(Profile::Constant(unit(*value))),
            Self::Steps { steps } => {
                let steps = steps.iter().map(|&(at, n)| (Instant::from_nanos(at), unit(n)));
                Profile::steps(steps.collect())
            }
        }
    }
}

/// The largest IP packet; no header, cell or gap is larger.
const FRAMING_BYTES_MAX: u64 = 65_535;
/// Within this limit the product of a frame's bits and a term fits in 128 bits.
const EXPANSION_TERM_MAX: u64 = 1_000_000_000;
const EXPANSION_MAX: u64 = 100;
/// Directions store the size of a frame in 32 bits.
const FRAME_BITS_MAX: u64 = 0xFFFF_FFFF;
const IP_BYTES_MAX: u32 = 65_535;

impl Framing {
    fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let sizes = [
            ("header_bytes", self.header_bytes),
            ("min_bytes", self.min_bytes),
            ("inter_frame_bytes", self.inter_frame_bytes),
        ];
        for (name, size) in sizes {
            check.within(size.into(), 0..=FRAMING_BYTES_MAX, || at(name));
        }
        if let Some(Cells { payload_bytes, cell_bytes }) = self.cells {
            let payload = u64::from(payload_bytes);
            check.within(payload, 1..=FRAMING_BYTES_MAX, || at("cells.payload_bytes"));
            check.that(
                (payload..=FRAMING_BYTES_MAX).contains(&cell_bytes.into())
                    && u64::from(cell_bytes) <= 100 * payload,
                || at("cells.cell_bytes"),
                "must be from cells.payload_bytes to a hundred times that, at most 65,535",
            );
        }
        let (numerator, denominator) = self.expansion;
        check.that(
            (1..=EXPANSION_TERM_MAX).contains(&denominator)
                && (denominator..=EXPANSION_MAX * denominator).contains(&numerator)
                && numerator <= EXPANSION_TERM_MAX,
            || at("expansion"),
            "must be a numerator and a denominator from 1 to 10^9 with a ratio from 1 to 100",
        );
        check.that(
            check.0.is_err() || self.framing().frame(IP_BYTES_MAX).0 <= FRAME_BITS_MAX,
            || at("expansion"),
            "must keep the frame of the largest IP packet below 2^32 bits",
        );
    }

    /// The engine's settings.
    pub(crate) fn framing(&self) -> link::Framing {
        let cells = |Cells { payload_bytes, cell_bytes }| link::Cells { payload_bytes, cell_bytes };
        link::Framing {
            header_bytes: self.header_bytes,
            min_bytes: self.min_bytes,
            cells: self.cells.map(cells),
            expansion: self.expansion,
            inter_frame_bytes: self.inter_frame_bytes,
        }
    }
}
