//! The engine of one direction of a link.
//!
//! The queue decides when the times of a packet are known: when it arrives ([`at_enqueue`]), or when it is
//! dequeued ([`at_dequeue`]). From then on it is in transit, and passes what both have in common ([`carrier`]).

mod at_dequeue;
mod at_enqueue;
mod carrier;
mod change;
mod counters;
mod replace;
mod statistics;
mod usage;
mod waiting;

pub use change::Change;
pub use counters::Counters;
pub use usage::FlowUse;
pub use waiting::{QUEUE_DELAY_PERCENTILES, QueueStatistics};

use super::{Channel, DropAtDequeue, DropAtEnqueue, Framing, Occupancy};
use crate::engine::{Count, Cx, Engine, Ledger, Nested};
use crate::packet::{Packet, Port};
use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::units::BitRate;
use at_dequeue::AtDequeue;
use at_enqueue::AtEnqueue;
use carrier::Carrier;

/// A queue, by the time at which its discipline drops packets.
#[derive(Clone, Debug)]
pub enum Queue {
    /// At enqueue.
    DropAtEnqueue(DropAtEnqueue),
    /// At dequeue, when the transmitter becomes free.
    DropAtDequeue(Box<DropAtDequeue>),
}

/// The configuration of a direction.
#[derive(Clone, Debug)]
pub struct DirectionConfig {
    /// The rate of the transmitter, framing included.
    pub rate: Profile<BitRate>,
    /// The one-way propagation delay.
    pub delay: Profile<Duration>,
    /// The framing of the link.
    pub framing: Framing,
    /// The queue in front of the transmitter.
    pub queue: Queue,
    /// The channel.
    pub channel: Channel,
}

/// When the times of packets are decided.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most directions have the large one, read per packet"
)]
enum Scheduling {
    AtEnqueue(AtEnqueue),
    AtDequeue(AtDequeue),
}

impl Scheduling {
    /// An empty queue in front of a carrier that may be sending.
    fn new(queue: Queue, carrier: &Carrier, now: Instant) -> Self {
        match queue {
            Queue::DropAtEnqueue(discipline) => {
                Self::AtEnqueue(AtEnqueue::new(discipline, carrier, now))
            }
            Queue::DropAtDequeue(discipline) => {
                Self::AtDequeue(AtDequeue::new(discipline, carrier, now))
            }
        }
    }

    /// The packets that wait.
    fn occupancy(&self) -> &Occupancy {
        match self {
            Self::AtEnqueue(queue) => queue.discipline.occupancy(),
            Self::AtDequeue(queue) => queue.discipline.occupancy(),
        }
    }

    /// The position in transit after the last packet whose transmission has started.
    fn started(&mut self, carrier: &Carrier, now: Instant) -> u64 {
        match self {
            Self::AtEnqueue(queue) => queue.update_started(carrier, now),
            // A packet is dequeued as it starts: all have started.
            Self::AtDequeue(_) => carrier.transit.end(),
        }
    }
}

/// One direction of a link. See the module's description.
#[derive(Debug)]
pub struct Direction {
    carrier: Carrier,
    scheduling: Scheduling,
    received: Count,
    /// The most IP bytes in queues that were replaced.
    earlier_bytes_max: u64,
}

impl Direction {
    /// The input port.
    pub const IN: Port = Port(0);
    /// The output port.
    pub const OUT: Port = Port(1);

    /// An idle direction. `None` if the rate ends at zero: packets would never leave.
    #[must_use]
    pub fn new(config: DirectionConfig) -> Option<Self> {
        let DirectionConfig { rate, delay, framing, queue, channel } = config;
        let carrier = Carrier::new(framing, rate, channel, delay)?;
        Some(Self {
            scheduling: Scheduling::new(queue, &carrier, Instant::START),
            carrier,
            received: Count::default(),
            earlier_bytes_max: 0,
        })
    }

    /// Adds a random delay to each frame, uniform from zero to `max`; see [`Propagation`](super::Propagation).
    #[must_use]
    pub fn with_jitter(mut self, max: Duration, rng: Rng) -> Self {
        self.carrier.propagation = self.carrier.propagation.with_jitter(max, rng);
        self
    }

    /// Packets received, with their IP bytes.
    #[must_use]
    pub fn received(&self) -> Count {
        self.received
    }
}

impl Engine for Direction {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        debug_assert_eq!(port, Self::IN, "packets enter a direction at one end");
        self.received.add(packet.bytes);
        match &mut self.scheduling {
            Scheduling::AtEnqueue(queue) => queue.input(&mut self.carrier, cx, packet),
            Scheduling::AtDequeue(queue) => queue.enqueue(&mut self.carrier, cx, packet, true),
        }
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        match &mut self.scheduling {
            Scheduling::AtEnqueue(queue) => queue.wake(&mut self.carrier, cx),
            Scheduling::AtDequeue(queue) => queue.wake(&mut self.carrier, cx),
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.carrier.due
    }

    fn ledger(&self) -> Ledger {
        let mut held = Count::default();
        let mut nested = Nested { lost: self.carrier.nested_lost, ..Nested::default() };
        let mut hold = |packet: &Packet| {
            held.add(packet.bytes);
            nested.held.add_nested(packet);
        };
        // Packets that a discipline may still drop are not in transit yet.
        if let Scheduling::AtDequeue(queue) = &self.scheduling {
            queue.discipline.for_each(&mut hold);
        }
        self.carrier.transit.packets().for_each(hold);
        Ledger {
            received: self.received,
            sent: self.carrier.delivered(),
            dropped: self.carrier.dropped,
            held,
            nested,
            ..Ledger::default()
        }
    }
}
