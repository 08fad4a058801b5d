//! The engine of one direction of a link.
//!
//! The whole way of a packet is known when it arrives: a first-in first-out queue in front of a
//! strict transmitter starts it at max(now, end of the packet before), and propagation adds a
//! delay. So a direction schedules no "transmission ended" event; the only event is the delivery.
//! What waits, what is being sent and what is in flight follow from three marks in one ring of
//! packets, brought up to date when somebody asks.

use std::collections::VecDeque;

use super::{Channel, Framing, Load, Propagation, Tail, Transmitter};
use crate::engine::{Count, Cx, Engine, Ledger};
use crate::packet::{Packet, Port};
use crate::profile::Profile;
use crate::time::{Duration, Instant};
use crate::trace::{DropCause, EventKind};
use crate::units::{BitRate, Bits};

/// What a direction is made of.
#[derive(Clone, Debug)]
pub struct DirectionConfig {
    /// The rate of the transmitter, framing included.
    pub rate: Profile<BitRate>,
    /// The one-way propagation delay.
    pub delay: Profile<Duration>,
    /// How large a packet is on the link.
    pub framing: Framing,
    /// What waits in front of the transmitter.
    pub queue: Tail,
    /// What the channel does to frames.
    pub channel: Channel,
}

/// A packet that was let in and has not arrived yet.
#[derive(Debug)]
struct OnTheWay {
    frame: Bits,
    start: Instant,
    departure: Instant,
    arrival: Instant,
    damaged: bool,
    packet: Packet,
}

/// Counters of a direction, settled to an instant by [`Direction::settle`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets whose last bit was sent.
    pub sent_packets: u64,
    /// Their bits on the link, framing included.
    pub sent_bits: u64,
    /// Packets delivered, with their IP bytes.
    pub delivered: Count,
    /// Packets lost, by [`DropCause`], with their IP bytes.
    pub dropped: [Count; DropCause::ALL.len()],
    /// Time the transmitter spent sending.
    pub busy: Duration,
    /// IP bytes that wait for the transmitter.
    pub queue_bytes: u64,
    /// Packets that wait for the transmitter.
    pub queue_packets: u64,
    /// The most IP bytes that ever waited.
    pub queue_bytes_max: u64,
    /// IP bytes of the packet being sent.
    pub sending_bytes: u64,
    /// IP bytes that left the transmitter and have not arrived.
    pub in_flight_bytes: u64,
}

/// One direction of a link. See the module's description.
#[derive(Debug)]
pub struct Direction {
    framing: Framing,
    queue: Tail,
    transmitter: Transmitter,
    channel: Channel,
    propagation: Propagation,
    line: VecDeque<OnTheWay>,
    /// Packets of `line` whose first bit was sent; they come first in it.
    started: usize,
    /// Packets of `line` whose last bit was sent; they come first among the started.
    departed: usize,
    received: Count,
    counters: Counters,
}

impl Direction {
    /// Where packets come in.
    pub const IN: Port = Port(0);
    /// Where packets leave.
    pub const OUT: Port = Port(1);

    /// An idle direction. `None` if the rate ends at zero, which would hold packets for ever.
    #[must_use]
    pub fn new(config: DirectionConfig) -> Option<Self> {
        Some(Self {
            framing: config.framing,
            queue: config.queue,
            transmitter: Transmitter::new(config.rate)?,
            channel: config.channel,
            propagation: Propagation::new(config.delay),
            line: VecDeque::new(),
            started: 0,
            departed: 0,
            received: Count::default(),
            counters: Counters::default(),
        })
    }

    /// Packets that came in, with their IP bytes.
    #[must_use]
    pub fn received(&self) -> Count {
        self.received
    }

    /// Brings the counters up to `now` and returns them. Asking changes no packet's way.
    pub fn settle(&mut self, now: Instant) -> Counters {
        self.start_due(now);
        self.depart_due(now);
        let waiting = self.queue.occupancy();
        self.counters.queue_bytes = waiting.bytes;
        self.counters.queue_packets = waiting.packets;
        self.counters.queue_bytes_max = waiting.bytes_max;
        self.counters
    }

    fn start_due(&mut self, now: Instant) {
        while let Some(next) = self.line.get(self.started) {
            if next.start > now {
                break;
            }
            self.queue.leave(next.start, load(&next.packet, next.frame));
            self.counters.sending_bytes += u64::from(next.packet.bytes);
            self.started += 1;
        }
    }

    fn depart_due(&mut self, now: Instant) {
        while let Some(next) = self.line.get(self.departed) {
            if next.departure > now {
                break;
            }
            let bytes = u64::from(next.packet.bytes);
            self.counters.sent_packets += 1;
            self.counters.sent_bits += next.frame.0;
            self.counters.busy += next.departure - next.start;
            self.counters.sending_bytes -= bytes;
            self.counters.in_flight_bytes += bytes;
            self.departed += 1;
        }
    }

    fn drop(&mut self, cx: &mut Cx<'_>, cause: DropCause, packet: &Packet) {
        self.counters.dropped[cause as usize].add(packet.bytes);
        cx.trace(cx.now(), EventKind::Dropped(cause), packet);
    }
}

fn load(packet: &Packet, frame: Bits) -> Load {
    let link_bytes = u32::try_from(frame.bytes_rounded_up().0).unwrap_or(u32::MAX);
    Load { flow: packet.flow, bytes: packet.bytes, link_bytes }
}

impl Engine for Direction {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: &Packet) {
        debug_assert_eq!(port, Self::IN, "packets enter a direction at one end");
        let now = cx.now();
        self.received.add(packet.bytes);
        self.start_due(now);
        let frame = self.framing.frame(packet.bytes);
        let load = load(packet, frame);
        if let Err(cause) = self.queue.admit(now, load, self.transmitter.wait(now)) {
            self.drop(cx, cause, packet);
            return;
        }
        let slot = self.transmitter.take(now, frame);
        let damaged = self.channel.damages(frame);
        let arrival = self.propagation.arrival(slot.departure);
        cx.trace(now, EventKind::Enqueued, packet);
        cx.trace(slot.start, EventKind::Transmitted, packet);
        if slot.start > now {
            self.queue.enter(load);
        } else {
            self.counters.sending_bytes += u64::from(packet.bytes);
            self.started += 1;
        }
        let (start, departure) = (slot.start, slot.departure);
        self.line.push_back(OnTheWay {
            frame,
            start,
            departure,
            arrival,
            damaged,
            packet: *packet,
        });
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        while self.line.front().is_some_and(|first| first.arrival <= now) {
            // Marks are moved in long strides: touching each packet at its start, its departure and
            // its arrival would fetch it from memory three times.
            if self.departed == 0 {
                self.start_due(now);
                self.depart_due(now);
            }
            let Some(first) = self.line.pop_front() else { break };
            self.started -= 1;
            self.departed -= 1;
            self.counters.in_flight_bytes -= u64::from(first.packet.bytes);
            if first.damaged {
                self.drop(cx, DropCause::BitError, &first.packet);
                continue;
            }
            self.counters.delivered.add(first.packet.bytes);
            cx.trace(now, EventKind::Delivered, &first.packet);
            cx.send(Self::OUT, first.packet);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.line.front().map(|first| first.arrival)
    }

    fn ledger(&self) -> Ledger {
        let held = Count {
            packets: self.line.len() as u64,
            bytes: self.counters.in_flight_bytes
                + self.counters.sending_bytes
                + self.queue.occupancy().bytes,
        };
        Ledger {
            received: self.received,
            sent: self.counters.delivered,
            dropped: self.counters.dropped,
            held,
            ..Ledger::default()
        }
    }
}
