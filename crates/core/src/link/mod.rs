//! The engines of a link. [`Direction`] is one direction of a satellite hop: framing, queue,
//! transmitter, channel, propagation, in that order; its parts are plain functions of their
//! arguments. [`TerminalPath`] is what lies between the transmitter that terminals share and one of them.
//! [`Processor`] is the box at an end of the hop that handles the packets of both directions, and
//! [`Access`] the path between a gateway and a host at some distance.

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
pub use direction::{Change, Counters, Direction, DirectionConfig, Queue};
pub use framing::{Cells, Framing};
pub use processor::{Processor, ProcessorConfig, ProcessorCounters};
pub use propagation::Propagation;
use queue::{Backlog, WaitingPackets};
pub use queue::{
    CoDel, CoDelConfig, DropAtDequeue, DropAtEnqueue, DropTail, EarlyPacketDiscard, FqCoDel,
    FqCoDelConfig, Limit, Occupancy, PacketSize, PerFlow, QueuedPacket, Ratio, Red, RedConfig,
    SelectiveDrop, StrictPriority, Unit, Verdict,
};
pub use terminal_path::{TerminalPath, TerminalPathConfig};
pub use time_varying_errors::{ChannelState, ErrorRates, TimeVaryingErrors};
pub use transmitter::{Transmission, Transmitter};
