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

mod classifier;
mod flow_table;
mod shadow_queue;
mod titrator;

pub use classifier::{ClassSet, Classifier, ClassifierConfig, Treatment, YoungFlow};
pub use flow_table::FlowKey;
pub use shadow_queue::{ShadowQueue, ShadowQueueConfig};
pub use titrator::{Titration, Titrator, TitratorConfig, TitratorCounts};
