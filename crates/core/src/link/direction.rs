//! The engine of one direction of a link.
//!
//! With a first-in first-out queue that decides at arrival the whole way of a packet is known then:
//! a strict transmitter starts it at max(now, end of the packet before), and propagation adds a
//! delay. So such a direction schedules no "transmission ended" event; the only event is the delivery.
//! What waits, what is being sent and what is in flight follow from three marks in one ring of
//! packets, brought up to date when somebody asks. A discipline that decides at departure pays for
//! one event more: its next packet is chosen when the transmitter becomes free, and joins the ring
//! as it starts.

use super::{
    Channel, Framing, Head, Load, Occupancy, Propagation, Queued, Slot, Tail, Transmitter,
};
use crate::engine::{Count, Cx, Engine, Ledger};
use crate::packet::{FlowId, Packet, Port};
use crate::profile::Profile;
use crate::ring::Ring;
use crate::time::{Duration, Instant};
use crate::trace::{DropCause, EventKind};
use crate::units::{BitRate, Bits};

/// A queue, by when its discipline decides.
#[derive(Clone, Debug)]
pub enum Queue {
    /// At arrival.
    Tail(Tail),
    /// When the transmitter becomes free.
    Head(Box<Head>),
}

impl Queue {
    /// What waits.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        match self {
            Self::Tail(tail) => tail.occupancy(),
            Self::Head(head) => head.occupancy(),
        }
    }
}

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
    pub queue: Queue,
    /// What the channel does to frames.
    pub channel: Channel,
}

/// A packet that was let in and has not arrived yet.
#[derive(Debug, Default)]
struct OnTheWay {
    arrival: Instant,
    start: Instant,
    departure: Instant,
    frame_bits: u32,
    /// As in the packet, which lies elsewhere in memory.
    bytes: u32,
    flow: FlowId,
    damaged: bool,
    packet: Option<Box<Packet>>,
}

impl OnTheWay {
    fn load(&self) -> Load {
        let Self { flow, bytes, .. } = *self;
        Load { flow, bytes, link_bytes: self.frame_bits.div_ceil(8) }
    }
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

/// A packet's size on the link. A frame of the largest IP packet, 65,535 bytes, may grow a
/// thousandfold within 32 bits.
fn frame_bits(framing: &Framing, ip_bytes: u32) -> u32 {
    u32::try_from(framing.frame(ip_bytes).0).unwrap_or(u32::MAX)
}

/// One direction of a link. See the module's description.
#[derive(Debug)]
pub struct Direction {
    framing: Framing,
    /// The last packet's bytes and its bits on the link: packets come in few sizes.
    last_size: (u32, u32),
    queue: Queue,
    /// Whether a discipline that decides at departure waits for the transmitter to become free.
    serving: bool,
    transmitter: Transmitter,
    channel: Channel,
    propagation: Propagation,
    line: Ring<OnTheWay>,
    /// The arrival of the first packet of `line`.
    first_arrival: Option<Instant>,
    /// Packets of `line` whose first bit was sent; they come first in it.
    started: usize,
    /// Packets of `line` whose last bit was sent; they come first among the started.
    departed: usize,
    received: Count,
    /// IP bytes whose last bit was sent. What is being sent and what is in flight are the differences
    /// from what started and what arrived, which follow from the counts of packets.
    departed_bytes: u64,
    sent_bits: u64,
    busy: Duration,
    delivered: Count,
    dropped: [Count; DropCause::ALL.len()],
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
            last_size: (0, frame_bits(&config.framing, 0)),
            queue: config.queue,
            serving: false,
            transmitter: Transmitter::new(config.rate)?,
            channel: config.channel,
            propagation: Propagation::new(config.delay),
            line: Ring::default(),
            first_arrival: None,
            started: 0,
            departed: 0,
            received: Count::default(),
            departed_bytes: 0,
            sent_bits: 0,
            busy: Duration::ZERO,
            delivered: Count::default(),
            dropped: Default::default(),
        })
    }

    /// Packets that came in, with their IP bytes.
    #[must_use]
    pub fn received(&self) -> Count {
        self.received
    }

    /// The counters as of `now`. Asking changes no packet's way.
    pub fn settle(&mut self, now: Instant) -> Counters {
        self.start_due(now);
        while self.departed < self.started && self.line.at(self.departed).departure <= now {
            self.depart_next();
        }
        let waiting = self.queue.occupancy();
        let damaged = self.dropped[DropCause::BitError as usize];
        let lost_in_queue =
            self.dropped.into_iter().map(|count| count.bytes).sum::<u64>() - damaged.bytes;
        let started_bytes = self.received.bytes - lost_in_queue - waiting.bytes;
        let arrived = self.delivered.plus(damaged);
        Counters {
            sent_packets: arrived.packets + self.departed as u64,
            sent_bits: self.sent_bits,
            delivered: self.delivered,
            dropped: self.dropped,
            busy: self.busy,
            queue_bytes: waiting.bytes,
            queue_packets: waiting.packets,
            queue_bytes_max: waiting.bytes_max,
            sending_bytes: started_bytes - self.departed_bytes,
            in_flight_bytes: self.departed_bytes - arrived.bytes,
        }
    }

    /// Marks as started what is due by `now`. What waits is what is not marked.
    fn start_due(&mut self, now: Instant) {
        while self.started < self.line.len() {
            let next = self.line.at(self.started);
            if next.start > now {
                return;
            }
            // A discipline that decides at departure lets a packet go as it starts: none is unmarked.
            if let Queue::Tail(tail) = &mut self.queue {
                tail.leave(next.start, next.load());
            }
            self.started += 1;
        }
    }

    /// Marks the next packet as sent.
    fn depart_next(&mut self) {
        let next = self.line.at(self.departed);
        self.sent_bits += u64::from(next.frame_bits);
        self.busy += next.departure - next.start;
        self.departed_bytes += u64::from(next.bytes);
        self.departed += 1;
    }

    fn drop(&mut self, cx: &mut Cx<'_>, cause: DropCause, packet: Box<Packet>) {
        self.dropped[cause as usize].add(packet.bytes);
        cx.trace(cx.now(), EventKind::Dropped(cause), &packet);
        cx.discard(packet);
    }

    /// The bits of a packet of `ip_bytes` on the link.
    fn frame_bits(&mut self, ip_bytes: u32) -> u32 {
        if ip_bytes != self.last_size.0 {
            self.last_size = (ip_bytes, frame_bits(&self.framing, ip_bytes));
        }
        self.last_size.1
    }

    /// A packet of a discipline that decides at departure has arrived.
    fn push(&mut self, cx: &mut Cx<'_>, packet: Box<Packet>) {
        let now = cx.now();
        // Who comes as the transmitter becomes free finds the place of the next one free, whichever of
        // the two the loop calls first.
        if self.serving {
            self.serve(cx);
        }
        let frame = Bits(self.frame_bits(packet.bytes).into());
        let Queue::Head(head) = &mut self.queue else { return };
        // The queue may drop the packet itself, or others in its favour.
        let arriving = *packet;
        let mut refused = false;
        let dropped = &mut self.dropped;
        head.push(now, Queued { packet, frame, entered: now }, &mut |cause, lost| {
            refused |= lost.id == arriving.id;
            dropped[cause as usize].add(lost.bytes);
            cx.trace(now, EventKind::Dropped(cause), lost);
        });
        if !refused {
            cx.trace(now, EventKind::Enqueued, &arriving);
        }
        if !self.serving {
            self.serve(cx);
        }
    }

    /// The transmitter is free: takes the next packet of a discipline that decides at departure.
    fn serve(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        while self.transmitter.wait(now) == Duration::ZERO {
            let Queue::Head(head) = &mut self.queue else { return };
            let dropped = &mut self.dropped;
            let next = head.pop(now, &mut |cause, lost: &Packet| {
                dropped[cause as usize].add(lost.bytes);
                cx.trace(now, EventKind::Dropped(cause), lost);
            });
            self.serving = next.is_some();
            let Some(Queued { packet, .. }) = next else { return };
            let frame_bits = self.frame_bits(packet.bytes);
            self.transmit(cx, packet, frame_bits);
        }
    }

    /// Gives a packet its way: transmitter, channel, propagation.
    fn transmit(&mut self, cx: &mut Cx<'_>, packet: Box<Packet>, frame_bits: u32) {
        let frame = Bits(frame_bits.into());
        let Slot { start, departure } = self.transmitter.take(cx.now(), frame);
        let damaged = self.channel.damages(frame);
        let arrival = self.propagation.arrival(departure);
        cx.trace(start, EventKind::Transmitted, &packet);
        if start <= cx.now() {
            self.started += 1;
        }
        if self.first_arrival.is_none() {
            self.first_arrival = Some(arrival);
        }
        let Packet { bytes, flow, .. } = *packet;
        self.line.push_back(OnTheWay {
            arrival,
            start,
            departure,
            frame_bits,
            bytes,
            flow,
            damaged,
            packet: Some(packet),
        });
    }

    /// The first packet of the line has arrived.
    fn arrive(&mut self, cx: &mut Cx<'_>) {
        // Marks are moved no sooner than they matter: here nobody may have asked since the packet
        // was let in.
        if self.started == 0 {
            self.start_due(cx.now());
        }
        if self.departed == 0 {
            self.depart_next();
        }
        let first = self.line.take_front();
        let (damaged, bytes) = (first.damaged, first.bytes);
        let Some(packet) = first.packet.take() else { return };
        self.started -= 1;
        self.departed -= 1;
        self.first_arrival = self.line.front().map(|first| first.arrival);
        if damaged {
            self.drop(cx, DropCause::BitError, packet);
            return;
        }
        self.delivered.add(bytes);
        cx.trace(cx.now(), EventKind::Delivered, &packet);
        cx.pass(Self::OUT, packet);
    }
}

impl Engine for Direction {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        debug_assert_eq!(port, Self::IN, "packets enter a direction at one end");
        let now = cx.now();
        self.received.add(packet.bytes);
        self.start_due(now);
        let Queue::Tail(_) = self.queue else {
            self.push(cx, packet);
            return;
        };
        let frame_bits = self.frame_bits(packet.bytes);
        let link_bytes = frame_bits.div_ceil(8);
        let load = Load { flow: packet.flow, bytes: packet.bytes, link_bytes };
        let wait = self.transmitter.wait(now);
        let Queue::Tail(tail) = &mut self.queue else { return };
        if let Err(cause) = tail.admit(now, load, wait) {
            self.drop(cx, cause, packet);
            return;
        }
        if wait > Duration::ZERO {
            tail.enter(load);
        }
        cx.trace(now, EventKind::Enqueued, &packet);
        self.transmit(cx, packet, frame_bits);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        // First, since a frame that takes no whole nanosecond on a path without delay arrives as it
        // starts.
        if self.serving {
            self.serve(cx);
        }
        while self.first_arrival.is_some_and(|arrival| arrival <= cx.now()) {
            self.arrive(cx);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        if self.serving {
            let free_at = self.transmitter.free_at();
            return Some(self.first_arrival.map_or(free_at, |arrival| arrival.min(free_at)));
        }
        self.first_arrival
    }

    fn ledger(&self) -> Ledger {
        // What waits for a decision at departure is not in the line yet.
        let mut held = match &self.queue {
            Queue::Tail(_) => Count::default(),
            Queue::Head(head) => {
                let Occupancy { packets, bytes, .. } = *head.occupancy();
                Count { packets, bytes }
            }
        };
        (0..self.line.len()).for_each(|place| held.add(self.line.at(place).bytes));
        Ledger {
            received: self.received,
            sent: self.delivered,
            dropped: self.dropped,
            held,
            ..Ledger::default()
        }
    }
}
