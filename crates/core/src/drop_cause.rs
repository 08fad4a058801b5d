//! Why packets are dropped.

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DropCause {
    /// The packet did not fit in the queue.
    QueueFull,
    /// The channel corrupted at least one bit of the frame.
    BitError,
    /// The input buffer of an interface processor was full.
    ProcessorOverload,
    /// Dropped by random early detection.
    Red,
    /// Dropped by `CoDel` at the head of its queue.
    Codel,
    /// Early packet discard: the queue was above its threshold when the first cell arrived.
    EarlyPacketDiscard,
    /// Selective drop: the queue was above its threshold and the flow above its fair share.
    SelectiveDrop,
    /// The destination has no route.
    NoRoute,
}

impl DropCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::QueueFull,
        Self::BitError,
        Self::ProcessorOverload,
        Self::Red,
        Self::Codel,
        Self::EarlyPacketDiscard,
        Self::SelectiveDrop,
        Self::NoRoute,
    ];

    /// The name in columns, plots and docs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::BitError => "bit_error",
            Self::ProcessorOverload => "processor_overload",
            Self::Red => "red",
            Self::Codel => "codel",
            Self::EarlyPacketDiscard => "early_packet_discard",
            Self::SelectiveDrop => "selective_drop",
            Self::NoRoute => "no_route",
        }
    }
}
