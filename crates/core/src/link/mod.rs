//! The engines of a link. [`Direction`] is one direction of a satellite hop: framing, queue, transmitter,
//! channel, propagation, in that order; its parts are functions of their arguments. [`TerminalPath`] is
//! the part of a shared direction that belongs to one terminal. [`Processor`] is the interface processor
//! at an end of the hop, and [`Access`] the path between a gateway and a distant host.

mod access;
mod channel;
mod direction;
mod framing;
mod processor;
mod propagation;
mod queue;
mod terminal_path;
mod time_varying_errors;
mod transit;
mod transmitter;

pub use access::{Access, AccessConfig};
pub use channel::Channel;
pub use direction::{
    Change, Counters, Direction, DirectionConfig, FlowUse, QUEUE_DELAY_PERCENTILES, Queue,
    QueueStatistics,
};
pub use framing::{Cells, Framing};
pub use processor::{Processor, ProcessorConfig, ProcessorCounters};
pub use propagation::Propagation;
use queue::{Backlog, WaitingPackets};
pub use queue::{
    ClassUse, CoDel, CoDelConfig, DropAtDequeue, DropAtEnqueue, DropTail, EarlyPacketDiscard,
    FqCoDel, FqCoDelConfig, Limit, Occupancy, PacketSize, PerFlow, QueuedPacket, Ratio, Red,
    RedConfig, SelectiveDrop, SharedRate, SharingClass, StrictPriority, Unit, Verdict,
};
pub use terminal_path::{TerminalPath, TerminalPathConfig};
pub use time_varying_errors::{ChannelState, ErrorRates, TimeVaryingErrors};
pub use transmitter::{Transmission, Transmitter};
