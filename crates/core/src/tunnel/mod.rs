//! The policies of a coded tunnel between two gateways: what is coded, how much repair is made, when
//! it is sent, what the decoder reports back, and in which order packets leave.
//!
//! They decide and hold no contents: time, sizes and identifiers are arguments, and what waits is of
//! any type, with or without bytes. The same policies therefore serve a simulation and a daemon. None
//! knows the erasure code.
//!
//! - [`Classifier`]: which packets are coded.
//! - [`ShadowQueue`]: the occupancy of a queue that the gateway does not own.
//! - [`Titrator`]: when repair is sent.
//! - [`RedundancyController`]: how much repair is made.
//! - [`OrderRestorer`]: the order in which packets leave.
//! - [`Feedback`]: the message of a decoder; [`Arrivals`] counts for it, [`FeedbackTracker`] reads it.

mod arrivals;
mod classifier;
mod feedback;
mod flow_table;
mod order;
mod redundancy;
mod shadow_queue;
mod symbol_id;
mod titrator;
mod tracker;

pub use arrivals::{Arrivals, Decoded};
pub use classifier::{ClassSet, Classifier, ClassifierConfig, Treatment, YoungFlow};
pub use feedback::{Feedback, FeedbackError, MissingRange, RANGES_MAX, SPAN_MAX};
pub use flow_table::FlowKey;
pub use order::{Delivery, OrderConfig, OrderCounts, OrderRestorer};
pub use redundancy::{AdaptiveConfig, RedundancyConfig, RedundancyController, RepairDue};
pub use shadow_queue::{ShadowQueue, ShadowQueueConfig};
pub use symbol_id::SymbolId;
pub use titrator::{Titration, Titrator, TitratorConfig, TitratorCounts};
pub use tracker::{FeedbackRejected, FeedbackTracker, LossReport};
