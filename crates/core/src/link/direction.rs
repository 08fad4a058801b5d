//! The engine of one direction of a link.
//!
//! With a first-in first-out queue that decides at arrival the whole way of a packet is known then:
//! a strict transmitter starts it at max(now, end of the packet before), and propagation adds a
//! delay. So such a direction schedules no "transmission ended" event; the only event is the delivery.
//! What waits, what is being sent and what is in flight follow from one mark in a ring of packets,
//! brought up to date when somebody asks; a queue that lets a packet in whether or not others have
//! left does not. A discipline that decides at departure pays for one event more: its next packet is
//! chosen when the transmitter becomes free, and joins the ring as it starts.

use super::{
    Channel, Framing, Head, Load, Occupancy, Propagation, Queued, Slot, Tail, Transmitter, Waiting,
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
    /// When its first bit is sent.
    start: Instant,
    /// As in the packet, which lies elsewhere in memory.
    flow: FlowId,
    bytes: u32,
    frame_bits: u32,
    damaged: bool,
    packet: Option<Box<Packet>>,
}

impl OnTheWay {
    fn load(&self) -> Load {
        let Self { flow, bytes, frame_bits, .. } = *self;
        Load { flow, bytes, link_bytes: link_bytes(frame_bits) }
    }
}

/// What of the line is not marked as started, from its front.
struct NotStarted<'a> {
    line: &'a Ring<OnTheWay>,
    started: u64,
}

impl Waiting for NotStarted<'_> {
    #[inline]
    fn after(&self, first: u64) -> impl Iterator<Item = Load> {
        (self.started + first..self.line.came()).map(|position| self.line.at(position).load())
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

/// How large a packet of so many IP bytes is on the link.
#[derive(Clone, Copy, Debug)]
struct Size {
    bytes: u32,
    /// A frame of the largest IP packet, 65,535 bytes, may grow a thousandfold within 32 bits.
    frame_bits: u32,
    link_bytes: u32,
}

impl Size {
    #[cold]
    #[inline(never)]
    fn new(framing: &Framing, bytes: u32) -> Self {
        let frame_bits = u32::try_from(framing.frame(bytes).0).unwrap_or(u32::MAX);
        Self { bytes, frame_bits, link_bytes: link_bytes(frame_bits) }
    }
}

fn link_bytes(frame_bits: u32) -> u32 {
    // In 64 bits nothing overflows, which makes this an addition and a shift.
    ((u64::from(frame_bits) + 7) >> 3) as u32
}

/// One direction of a link. See the module's description.
#[derive(Debug)]
pub struct Direction {
    framing: Framing,
    /// That of the last packet: packets come in few sizes.
    size: Size,
    queue: Queue,
    /// Whether a discipline that decides at departure waits for the transmitter to become free.
    serving: bool,
    transmitter: Transmitter,
    channel: Channel,
    propagation: Propagation,
    line: Ring<OnTheWay>,
    /// When there is something to do: the arrival of the first packet of `line` or, if that is sooner
    /// and it is waited for, the moment when the transmitter becomes free.
    due: Option<Instant>,
    /// The position in `line` that follows the last packet whose first bit was sent, as of the last
    /// time that it mattered ([`Direction::catch_up`]). All counters of what was sent follow from what
    /// started: at most one of these packets is still being sent.
    started: u64,
    /// Bits on the link of the packets that started.
    started_bits: u64,
    received: Count,
    /// IP bytes that arrived whole. Their packets are all that left the line and were not damaged.
    delivered_bytes: u64,
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
            size: Size::new(&config.framing, 0),
            queue: config.queue,
            serving: false,
            transmitter: Transmitter::new(config.rate)?,
            channel: config.channel,
            propagation: Propagation::new(config.delay),
            line: Ring::default(),
            due: None,
            started: 0,
            started_bits: 0,
            received: Count::default(),
            delivered_bytes: 0,
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
        self.catch_up(now);
        let waiting = *self.queue.occupancy();
        let damaged = self.dropped[DropCause::BitError as usize];
        let lost_in_queue =
            self.dropped.into_iter().map(|count| count.bytes).sum::<u64>() - damaged.bytes;
        let started_bytes = self.received.bytes - lost_in_queue - waiting.bytes;
        let delivered = self.delivered();
        let arrived = delivered.plus(damaged);
        // Who waits starts as the packet before ends.
        let is_sending = self.started < self.line.came() || self.transmitter.free_at() > now;
        let being_sent =
            (is_sending && self.started > self.line.left()).then(|| self.line.at(self.started - 1));
        let (sending_packets, sending_bytes, sending_bits, idle_from) = match being_sent {
            Some(OnTheWay { bytes, frame_bits, start, .. }) => {
                (1, u64::from(*bytes), u64::from(*frame_bits), *start)
            }
            None => (0, 0, 0, self.transmitter.free_at()),
        };
        Counters {
            sent_packets: self.started - sending_packets,
            sent_bits: self.started_bits - sending_bits,
            delivered,
            dropped: self.dropped,
            busy: self.transmitter.busy_until(idle_from),
            queue_bytes: waiting.bytes,
            queue_packets: waiting.packets,
            queue_bytes_max: waiting.bytes_max,
            sending_bytes,
            in_flight_bytes: started_bytes - sending_bytes - arrived.bytes,
        }
    }

    fn delivered(&self) -> Count {
        let damaged = self.dropped[DropCause::BitError as usize].packets;
        Count { packets: self.line.left() - damaged, bytes: self.delivered_bytes }
    }

    /// Marks as started what is due by `now`. What waits is what is not marked.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self, now: Instant) {
        // A discipline that decides at departure lets a packet go as it starts: none is unmarked.
        let Queue::Tail(tail) = &mut self.queue else { return };
        let Self { line, started, started_bits, .. } = self;
        let mut bits = 0;
        let due = (*started..line.came()).map(|position| line.at(position));
        let due = due.take_while(|next| next.start <= now).inspect(|next| {
            *started += 1;
            bits += u64::from(next.frame_bits);
        });
        tail.leave(due.map(|next| (next.start, next.load())));
        *started_bits += bits;
    }

    #[cold]
    #[inline(never)]
    fn drop(&mut self, cx: &mut Cx<'_>, cause: DropCause, packet: Box<Packet>) {
        self.dropped[cause as usize].add(packet.bytes);
        cx.trace(cx.now(), EventKind::Dropped(cause), &packet);
        cx.discard(packet);
    }

    /// The size of a packet of so many IP bytes.
    #[inline]
    fn size(&mut self, bytes: u32) -> Size {
        if bytes != self.size.bytes {
            self.size = Size::new(&self.framing, bytes);
        }
        self.size
    }

    /// A packet of a discipline that decides at departure has arrived.
    #[cold]
    #[inline(never)]
    fn push(&mut self, cx: &mut Cx<'_>, packet: Box<Packet>) {
        let now = cx.now();
        // Who comes as the transmitter becomes free finds the place of the next one free, whichever of
        // the two the loop calls first.
        if self.serving {
            self.serve(cx);
        }
        let frame = Bits(self.size(packet.bytes).frame_bits.into());
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
        self.set_due();
    }

    /// [`Direction::wake`] while the transmitter is waited for.
    #[cold]
    #[inline(never)]
    fn wake_and_serve(&mut self, cx: &mut Cx<'_>) {
        // First, since a frame that takes no whole nanosecond on a path without delay arrives as it
        // starts.
        self.serve(cx);
        while self.first_arrival().is_some_and(|arrival| arrival <= cx.now()) {
            self.arrive(cx);
        }
        self.set_due();
    }

    fn set_due(&mut self) {
        self.due = self.first_arrival();
        if self.serving {
            let free_at = self.transmitter.free_at();
            self.due = Some(self.due.map_or(free_at, |arrival| arrival.min(free_at)));
        }
    }

    /// The transmitter is free: takes the next packet of a discipline that decides at departure.
    #[inline(never)]
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
            let frame_bits = self.size(packet.bytes).frame_bits;
            let slot = self.transmitter.take(now, Bits(frame_bits.into()));
            cx.trace(slot.start, EventKind::Transmitted, &packet);
            self.send(slot, packet, frame_bits);
            self.mark_last(frame_bits);
        }
    }

    /// Gives a packet its way from the transmitter on: channel, propagation.
    #[inline(always)]
    fn send(&mut self, slot: Slot, packet: Box<Packet>, frame_bits: u32) {
        let Slot { start, departure } = slot;
        let damaged = self.channel.damages(Bits(frame_bits.into()));
        let arrival = self.propagation.arrival(departure);
        if self.due.is_none() {
            self.due = Some(arrival);
        }
        let Packet { flow, bytes, .. } = *packet;
        let packet = Some(packet);
        self.line.push_back(OnTheWay { arrival, start, flow, bytes, frame_bits, damaged, packet });
    }

    /// Lets a packet in, or tells why not, by what waits at this very moment. The load comes in pieces,
    /// which fit registers.
    #[cold]
    #[inline(never)]
    fn admit(
        &mut self,
        now: Instant,
        flow: FlowId,
        bytes: u32,
        link_bytes: u32,
        start: Instant,
    ) -> Result<(), DropCause> {
        self.catch_up(now);
        let Queue::Tail(tail) = &mut self.queue else { return Ok(()) };
        let waiting = NotStarted { line: &self.line, started: self.started };
        tail.admit(now, Load { flow, bytes, link_bytes }, start, &waiting)
    }

    /// The packet that came last starts at once, and the queue did not count it.
    #[inline]
    fn mark_last(&mut self, frame_bits: u32) {
        self.started = self.line.came();
        self.started_bits += u64::from(frame_bits);
    }

    #[inline]
    fn first_arrival(&self) -> Option<Instant> {
        self.line.front().map(|first| first.arrival)
    }

    /// The first packet of the line has arrived.
    #[inline(always)]
    fn arrive(&mut self, cx: &mut Cx<'_>) {
        // The mark is moved no sooner than it matters.
        if self.started == self.line.left() {
            self.catch_up(cx.now());
        }
        let first = self.line.take_front();
        let (damaged, bytes) = (first.damaged, first.bytes);
        let Some(packet) = first.packet.take() else { return };
        self.due = self.first_arrival();
        if let Some(next) = self.line.front().and_then(|next| next.packet.as_ref()) {
            // It was written a whole delay ago: a glance brings it near before it is needed.
            std::hint::black_box(next.flow);
        }
        if damaged {
            self.drop(cx, DropCause::BitError, packet);
            return;
        }
        self.delivered_bytes += u64::from(bytes);
        cx.trace(cx.now(), EventKind::Delivered, &packet);
        cx.pass(Self::OUT, packet);
    }
}

impl Engine for Direction {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        debug_assert_eq!(port, Self::IN, "packets enter a direction at one end");
        let now = cx.now();
        self.received.add(packet.bytes);
        if let Queue::Head(_) = self.queue {
            self.push(cx, packet);
            return;
        }
        let Size { bytes, frame_bits, link_bytes } = self.size(packet.bytes);
        let start = self.transmitter.start(now);
        let Queue::Tail(tail) = &mut self.queue else { return };
        let load = Load { flow: packet.flow, bytes, link_bytes };
        let sure = tail.admit_if_sure(now, load, start);
        if !sure && let Err(cause) = self.admit(now, load.flow, bytes, link_bytes, start) {
            self.drop(cx, cause, packet);
            return;
        }
        let slot = self.transmitter.take_from(start, Bits(frame_bits.into()));
        cx.trace(now, EventKind::Enqueued, &packet);
        cx.trace(slot.start, EventKind::Transmitted, &packet);
        self.send(slot, packet, frame_bits);
        if !sure && start <= now {
            self.mark_last(frame_bits);
        }
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        if self.serving {
            self.wake_and_serve(cx);
            return;
        }
        while self.due.is_some_and(|arrival| arrival <= cx.now()) {
            self.arrive(cx);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.due
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
        self.line.iter().for_each(|packet| held.add(packet.bytes));
        Ledger {
            received: self.received,
            sent: self.delivered(),
            dropped: self.dropped,
            held,
            ..Ledger::default()
        }
    }
}
