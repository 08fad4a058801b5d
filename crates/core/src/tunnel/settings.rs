//! The settings of a coded tunnel, complete and in integers: part of the plan of a simulation, and of what a
//! daemon is told.

use serde::{Deserialize, Serialize};

use super::{
    AdaptiveConfig, ClassSet, ClassifierConfig, CongestionSignal, Delivery, EndpointConfig,
    EndpointSettings, OrderConfig, OverflowConfig, PeerConfig, RedundancyConfig, ShadowQueueConfig,
    Titration, TitratorConfig, YoungFlow,
};
use crate::coding::framing::SYMBOL_BYTES_MAX;
use crate::coding::{Code, Density, WINDOW_MAX};
use crate::link::Framing;
use crate::time::Duration;
use crate::units::BitRate;

/// The most flows that an end knows, for their ages and their order.
const FLOWS_MAX: usize = 65_536;
/// The NAT timeout of RFC 5382 for established connections is longer; a flow that is forgotten is only young again.
const FLOW_IDLE: Duration = Duration::from_secs(300);
/// 100 days.
const TIME_NS_MAX: u64 = 100 * 86_400 * 1_000_000_000;
const MILLION: u64 = 1_000_000;

/// All settings of one end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelSettings {
    /// Which packets are coded.
    pub classifier: ClassifierSettings,
    /// How much repair is made.
    pub redundancy: RedundancySettings,
    /// How much more for symbols that the link's queue drops; `null` for none.
    #[serde(deserialize_with = "Option::deserialize")]
    pub overflow: Option<OverflowSettings>,
    /// When repair is sent.
    pub titration: TitrationSettings,
    /// The most repair that waits, in bytes.
    pub hold_bytes: u64,
    /// The link's input queue, of which the tunnel keeps an estimate.
    pub queue: QueueSettings,
    /// The symbols that the sender keeps for repair.
    pub memory_symbols: u16,
    /// The largest symbol.
    pub symbol_size_bytes: u32,
    /// The density threshold of the coefficients (RFC 8681), 0 to 15; 15 for no zeros.
    pub density: u8,
    /// The shortest time between two messages of the decoder; `null` for none.
    #[serde(deserialize_with = "Option::deserialize")]
    pub feedback_interval_ns: Option<u64>,
    /// The order in which packets leave.
    pub delivery: DeliverySettings,
    /// How flows learn of losses that were decoded.
    pub congestion_signal: SignalSettings,
}

/// Which packets are coded.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifierSettings {
    /// The size of the smallest packet that is coded, in IP bytes.
    pub packet_size_bytes: u32,
    /// The classes, or DSCP values, that are coded; `null` for all.
    #[serde(deserialize_with = "Option::deserialize")]
    pub classes: Option<Vec<u8>>,
    /// The bytes at the beginning of each flow that are not coded.
    pub young_bytes: u64,
}

/// How much repair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RedundancySettings {
    /// Always the same.
    Fixed {
        /// Repair symbols for each source symbol, in millionths.
        redundancy_ppm: u32,
        /// The symbols that each repair symbol covers.
        window_symbols: u16,
    },
    /// It follows the loss that the decoder reports.
    Adaptive {
        /// The most repair symbols for each source symbol, in millionths.
        cap_ppm: u32,
        /// The loss before the first report, in millionths.
        initial_loss_ppm: u32,
        /// The margin in standard deviations.
        margin: u32,
        /// The symbols over which loss is averaged.
        averaging_symbols: u32,
        /// The time constant with which redundancy falls.
        decay_time_ns: u64,
        /// The window while losses are single.
        window_min_symbols: u16,
        /// The longest window.
        window_max_symbols: u16,
        /// The longest time from making repair to the report that counts it.
        report_delay_ns: u64,
    },
}

/// Repair for symbols that the link's queue drops. All traffic of the queue must pass this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OverflowSettings {
    /// Repair symbols for each of them, in millionths.
    pub repair_ppm: u32,
    /// The symbols that each repair symbol covers.
    pub window_symbols: u16,
}

/// When repair is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TitrationSettings {
    /// Never.
    None,
    /// At once.
    Immediate,
    /// After a fixed time.
    Delayed {
        /// The time.
        delay_ns: u64,
    },
    /// While the queue has room.
    Titrated {
        /// Repair is sent while the queue holds fewer bytes.
        threshold_bytes: u64,
        /// The longest wait.
        hold_time_ns: u64,
    },
}

/// The link's input queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// The rate of the link.
    pub rate_bps: u64,
    /// Its capacity.
    pub capacity_bytes: u64,
    /// What the link adds to each packet.
    pub packet_overhead_bytes: u32,
}

/// The order in which packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DeliverySettings {
    /// As they come or are decoded.
    Unordered,
    /// That of each flow.
    Ordered {
        /// The longest time that a packet waits for those before it.
        hold_time_ns: u64,
        /// The highest rate at which each flow leaves; `null` for any.
        #[serde(deserialize_with = "Option::deserialize")]
        pace_bps: Option<u64>,
    },
}

/// How flows learn of losses that were decoded (RFC 9265).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum SignalSettings {
    /// Not at all.
    Hidden,
    /// Decoded packets that are capable of ECN are marked.
    Ecn,
    /// A share of decoded packets is not delivered.
    Visible {
        /// The share in millionths.
        share_ppm: u32,
    },
}

/// A setting that is out of range: its field, by its path within the settings, and what is wrong.
pub type SettingError = (&'static str, String);

impl TunnelSettings {
    /// Checks what the types leave open.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn check(&self) -> Result<(), SettingError> {
        let memory = u64::from(self.memory_symbols);
        within("memory_symbols", memory, 1, WINDOW_MAX.into())?;
        let symbol_max = SYMBOL_BYTES_MAX as u64;
        within("symbol_size_bytes", self.symbol_size_bytes.into(), 64, symbol_max)?;
        within("density", self.density.into(), 0, Density::FULL.threshold().into())?;
        within("hold_bytes", self.hold_bytes, 0, 1 << 30)?;
        within("queue.rate_bps", self.queue.rate_bps, 1, 100_000_000_000_000)?;
        within("queue.capacity_bytes", self.queue.capacity_bytes, 1, 1 << 40)?;
        within("queue.packet_overhead_bytes", self.queue.packet_overhead_bytes.into(), 0, 65_535)?;
        if let Some(interval) = self.feedback_interval_ns {
            within("feedback_interval_ns", interval, 1_000_000, TIME_NS_MAX)?;
        }
        if let DeliverySettings::Ordered { hold_time_ns, pace_bps } = self.delivery {
            within("delivery.hold_time_ns", hold_time_ns, 0, TIME_NS_MAX)?;
            within("delivery.pace_bps", pace_bps.unwrap_or(1), 1, 100_000_000_000_000)?;
        }
        if let SignalSettings::Visible { share_ppm } = self.congestion_signal {
            within("congestion_signal.share_ppm", share_ppm.into(), 0, MILLION)?;
        }
        if let Some(OverflowSettings { repair_ppm, window_symbols }) = self.overflow {
            within("overflow.repair_ppm", repair_ppm.into(), 0, 10 * MILLION)?;
            within("overflow.window_symbols", window_symbols.into(), 1, memory)?;
        }
        self.check_redundancy(memory)?;
        match self.titration {
            TitrationSettings::Delayed { delay_ns } => {
                within("titration.delay_ns", delay_ns, 0, TIME_NS_MAX)
            }
            TitrationSettings::Titrated { threshold_bytes, hold_time_ns } => {
                within("titration.threshold_bytes", threshold_bytes, 1, 1 << 40)?;
                within("titration.hold_time_ns", hold_time_ns, 0, TIME_NS_MAX)
            }
            TitrationSettings::None | TitrationSettings::Immediate => Ok(()),
        }
    }

    fn check_redundancy(&self, memory: u64) -> Result<(), SettingError> {
        match self.redundancy {
            RedundancySettings::Fixed { redundancy_ppm, window_symbols } => {
                within("redundancy.redundancy_ppm", redundancy_ppm.into(), 0, 10 * MILLION)?;
                within("redundancy.window_symbols", window_symbols.into(), 1, memory)
            }
            RedundancySettings::Adaptive {
                cap_ppm,
                initial_loss_ppm,
                margin,
                averaging_symbols,
                decay_time_ns,
                window_min_symbols,
                window_max_symbols,
                report_delay_ns,
            } => {
                within("redundancy.cap_ppm", cap_ppm.into(), 0, 10 * MILLION)?;
                within("redundancy.initial_loss_ppm", initial_loss_ppm.into(), 0, MILLION - 1)?;
                within("redundancy.margin", margin.into(), 0, 100)?;
                within("redundancy.averaging_symbols", averaging_symbols.into(), 1, 1 << 20)?;
                within("redundancy.decay_time_ns", decay_time_ns, 1_000_000, TIME_NS_MAX)?;
                within("redundancy.report_delay_ns", report_delay_ns, 0, TIME_NS_MAX)?;
                within("redundancy.window_max_symbols", window_max_symbols.into(), 1, memory)?;
                let longest = window_max_symbols.into();
                within("redundancy.window_min_symbols", window_min_symbols.into(), 1, longest)
            }
        }
    }

    /// The settings of the endpoint.
    #[must_use]
    pub fn endpoint(&self) -> EndpointConfig {
        let EndpointSettings { classifier, redundancy, overflow, titrator } =
            self.endpoint_settings();
        let QueueSettings { rate_bps, capacity_bytes, packet_overhead_bytes } = self.queue;
        EndpointConfig {
            classifier,
            redundancy,
            overflow,
            titrator,
            queue: ShadowQueueConfig {
                rate: BitRate(rate_bps),
                framing: Framing::overhead(packet_overhead_bytes),
                capacity_bytes,
            },
            peer: PeerConfig {
                code: Code::Random,
                density: Density::new(self.density).unwrap_or(Density::FULL),
                memory_symbols: self.memory_symbols,
                symbol_bytes: self.symbol_size_bytes as usize,
                feedback_interval: self.feedback_interval_ns.map(Duration::from_nanos),
            },
        }
    }

    /// The settings that may change while an endpoint runs.
    #[must_use]
    pub fn endpoint_settings(&self) -> EndpointSettings {
        let classes = self.classifier.classes.as_deref();
        EndpointSettings {
            classifier: ClassifierConfig {
                packet_bytes_min: self.classifier.packet_size_bytes,
                classes: classes.map_or(ClassSet::ALL, ClassSet::of),
                young_flow: YoungFlow::Bytes(self.classifier.young_bytes),
                flows_max: FLOWS_MAX,
                idle_timeout: FLOW_IDLE,
            },
            redundancy: self.redundancy(),
            overflow: self.overflow.map(|overflow| OverflowConfig {
                repair_ppm: overflow.repair_ppm,
                window: overflow.window_symbols.into(),
            }),
            titrator: TitratorConfig {
                titration: self.titration(),
                hold_bytes_max: self.hold_bytes,
                hold_packets_max: usize::from(WINDOW_MAX),
            },
        }
    }

    fn redundancy(&self) -> RedundancyConfig {
        match self.redundancy {
            RedundancySettings::Fixed { redundancy_ppm, window_symbols } => {
                RedundancyConfig::Fixed { redundancy_ppm, window: window_symbols.into() }
            }
            RedundancySettings::Adaptive {
                cap_ppm,
                initial_loss_ppm,
                margin,
                averaging_symbols,
                decay_time_ns,
                window_min_symbols,
                window_max_symbols,
                report_delay_ns,
            } => RedundancyConfig::Adaptive(AdaptiveConfig {
                cap_ppm,
                initial_loss_ppm,
                margin,
                averaging_symbols,
                decay_time: Duration::from_nanos(decay_time_ns),
                window_min: window_min_symbols.into(),
                window_max: window_max_symbols.into(),
                report_delay: Duration::from_nanos(report_delay_ns),
            }),
        }
    }

    fn titration(&self) -> Titration {
        match self.titration {
            TitrationSettings::None => Titration::None,
            TitrationSettings::Immediate => Titration::Immediate,
            TitrationSettings::Delayed { delay_ns } => {
                Titration::Delayed(Duration::from_nanos(delay_ns))
            }
            TitrationSettings::Titrated { threshold_bytes, hold_time_ns } => {
                let hold_time = Duration::from_nanos(hold_time_ns);
                Titration::Titrated { threshold_bytes, hold_time }
            }
        }
    }

    /// The settings of the order of packets.
    #[must_use]
    pub fn order(&self) -> OrderConfig {
        OrderConfig {
            delivery: match self.delivery {
                DeliverySettings::Unordered => Delivery::Unordered,
                DeliverySettings::Ordered { hold_time_ns, .. } => {
                    Delivery::Ordered(Duration::from_nanos(hold_time_ns))
                }
            },
            pace: match self.delivery {
                DeliverySettings::Ordered { pace_bps, .. } => pace_bps.map(BitRate),
                DeliverySettings::Unordered => None,
            },
            // What a decoder keeps, at most.
            held_packets_max: 2 * usize::from(self.memory_symbols),
            held_bytes_max: 2 * u64::from(self.memory_symbols) * u64::from(self.symbol_size_bytes),
            flows_max: FLOWS_MAX,
            idle_timeout: FLOW_IDLE,
        }
    }

    /// How flows learn of decoded losses.
    #[must_use]
    pub fn signal(&self) -> CongestionSignal {
        match self.congestion_signal {
            SignalSettings::Hidden => CongestionSignal::Hidden,
            SignalSettings::Ecn => CongestionSignal::Ecn,
            SignalSettings::Visible { share_ppm } => CongestionSignal::Visible { share_ppm },
        }
    }
}

fn within(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), SettingError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err((field, format!("is {value} but must be from {min} to {max}")))
}
