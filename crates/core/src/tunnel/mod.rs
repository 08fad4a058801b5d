//! The policies of a coded tunnel between two gateways: what is coded, how much repair is made, when
//! it is sent, what the decoder reports back, and in which order packets leave.
//!
//! The policies decide and hold no contents: time, sizes and identifiers are arguments, and what waits is of
//! any type, with or without bytes. The same ones therefore serve a simulation and a daemon.
//!
//! - [`Tunnel`]: the engine of a simulation.
//! - [`Endpoint`]: all of it, and the code, for one end of a tunnel.
//! - [`message`]: the bytes between the two ends.
//! - [`Classifier`]: which packets are coded.
//! - [`ShadowQueue`]: the occupancy of a queue that the gateway does not own.
//! - [`Titrator`]: when repair is sent.
//! - [`RedundancyController`]: how much repair is made.
//! - [`OrderRestorer`]: the order in which packets leave.
//! - [`Feedback`]: the message of a decoder; [`Arrivals`] counts for it, [`FeedbackTracker`] reads it.

mod arrivals;
mod classifier;
mod endpoint;
mod engine;
mod feedback;
mod flow_table;
pub mod message;
mod order;
mod pacer;
mod peer;
mod redundancy;
mod settings;
mod shadow_queue;
mod signal;
mod titrator;
mod tracker;

pub use arrivals::{Arrivals, Decoded};
pub use classifier::{ClassSet, Classifier, ClassifierConfig, Treatment, YoungFlow};
pub use endpoint::{Endpoint, EndpointConfig, EndpointSettings};
pub use engine::{SESSION_BYTES, Tunnel, TunnelConfig, TunnelPeer};
pub use feedback::{Feedback, FeedbackError, MissingRange, RANGES_MAX, SPAN_MAX};
pub use flow_table::FlowKey;
pub use order::{Delivery, OrderConfig, OrderCounts, OrderRestorer};
pub use peer::{PeerConfig, PeerCounts};
pub use redundancy::{
    AdaptiveConfig, OverflowConfig, RedundancyConfig, RedundancyController, RepairDue,
};
pub use settings::{
    ClassifierSettings, DeliverySettings, OverflowSettings, QueueSettings, RedundancySettings,
    SettingError, SignalSettings, TitrationSettings, TunnelSettings,
};
pub use shadow_queue::{ShadowQueue, ShadowQueueConfig};
pub use signal::{CongestionSignal, LossSignal, Shown};
pub use titrator::{Titration, Titrator, TitratorConfig, TitratorCounts};
pub use tracker::{FeedbackRejected, FeedbackTracker, LossReport};
