//! The engines of a link. [`Direction`] is one direction of a satellite hop: framing, queue,
//! transmitter, channel, propagation, in that order; its parts are plain functions of their
//! arguments. [`Branch`] is what lies between the transmitter that terminals share and one of them.
//! [`Processor`] is the box at an end of the hop that handles the packets of both directions, and
//! [`Access`] the path between a gateway and a host at some distance.

mod access;
mod branch;
mod channel;
mod direction;
mod framing;
mod line;
mod processor;
mod propagation;
mod queue;
mod transmitter;
mod varying;

pub use access::{Access, AccessConfig};
pub use branch::{Branch, BranchConfig};
pub use channel::Channel;
pub use direction::{Change, Counters, Direction, DirectionConfig, Queue};
pub use framing::{Cells, Framing};
pub use processor::{Processor, ProcessorConfig, ProcessorCounters};
pub use propagation::Propagation;
use queue::{Amounts, Waiting};
pub use queue::{
    CoDel, CoDelConfig, DropTail, EarlyPacketDiscard, FqCoDel, FqCoDelConfig, Head, Limit, Load,
    Occupancy, PerFlow, Queued, Ratio, Red, RedConfig, SelectiveDrop, StrictPriority, Tail, Unit,
    Verdict,
};
pub use transmitter::{Slot, Transmitter};
pub use varying::{ChannelState, ErrorRates, VaryingErrors};
