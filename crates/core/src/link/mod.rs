//! One direction of a satellite hop: framing, queue, transmitter, channel, propagation, in that
//! order. [`Direction`] is the engine; the parts are plain functions of their arguments.

mod channel;
mod direction;
mod framing;
mod propagation;
mod queue;
mod transmitter;

pub use channel::Channel;
pub use direction::{Counters, Direction, DirectionConfig};
pub use framing::{Cells, Framing};
pub use propagation::Propagation;
pub use queue::{
    CoDel, CoDelConfig, DropTail, EarlyPacketDiscard, FqCoDel, FqCoDelConfig, Head, Limit, Load,
    Occupancy, PerFlow, Queued, Ratio, Red, RedConfig, SelectiveDrop, StrictPriority, Tail, Unit,
};
pub use transmitter::{Slot, Transmitter};
