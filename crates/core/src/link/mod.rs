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
    DropTail, EarlyPacketDiscard, Limit, Load, Occupancy, PerFlow, Ratio, Red, RedConfig,
    SelectiveDrop, Tail, Unit,
};
pub use transmitter::{Slot, Transmitter};
