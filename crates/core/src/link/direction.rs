//! The engine of one direction of a link.
//!
//! With a first-in first-out queue that decides at arrival the whole way of a packet is known then:
//! a strict transmitter starts it at max(now, end of the packet before), and propagation adds a
//! delay. So such a direction schedules no "transmission ended" event; the only event is the delivery.
//! What waits, what is being sent and what is in flight follow from one mark in the line of packets,
//! brought up to date when somebody asks. A queue says how far the line may grow before it has to be
//! asked, whether or not others have left. A discipline that decides at departure pays for one event
//! more: its next packet is chosen when the transmitter becomes free, and joins the line as it starts.

mod change;

pub use change::Change;

use super::line::{Line, OnTheWay, Size, Sums};
use super::{
    Channel, Framing, Head, Load, Occupancy, Propagation, Queued, Slot, Tail, Transmitter, Verdict,
};
use crate::engine::{Count, Cx, Engine, Ledger, Nested};
use crate::packet::{Ecn, Packet, Port};
use crate::profile::Profile;
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
    /// Packets marked by the queue (RFC 3168), with their IP bytes.
    pub marked: Count,
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

/// Of packets that never come.
const EMPTY: Size = Size { bytes: 0, frame_bits: 0, link_bytes: 0 };

/// No position is so high.
const NOBODY: u64 = u64::MAX;

/// One direction of a link. See the module's description.
#[derive(Debug)]
pub struct Direction {
    framing: Framing,
    queue: Queue,
    /// Whether the queue gives room at all, and so is not asked about most packets.
    gives_room: bool,
    /// The position in `line` to which there is room for packets no larger than `room_size` that wait no
    /// longer than `room_wait`: until then the queue need not be asked.
    room_end: u64,
    room_size: Size,
    room_wait: Duration,
    /// Whether a discipline that decides at departure waits for the transmitter to become free.
    serving: bool,
    transmitter: Transmitter,
    channel: Channel,
    propagation: Propagation,
    line: Line,
    /// When there is something to do: the arrival of the first packet of `line` or, if that is sooner
    /// and it is waited for, the moment when the transmitter becomes free.
    due: Option<Instant>,
    /// The position in `line` that follows the last packet whose first bit was sent, as of the last
    /// time that it mattered ([`Direction::catch_up`]). All counters of what was sent follow from what
    /// started: at most one of these packets is still being sent.
    started: u64,
    /// `started`, if the queue has to hear of each packet that starts before it leaves the line.
    heard_from: u64,
    received: Count,
    dropped: [Count; DropCause::ALL.len()],
    nested_lost: Count,
    marked: Count,
}

impl Direction {
    /// Where packets come in.
    pub const IN: Port = Port(0);
    /// Where packets leave.
    pub const OUT: Port = Port(1);

    /// An idle direction. `None` if the rate ends at zero, which would hold packets for ever.
    #[must_use]
    pub fn new(mut config: DirectionConfig) -> Option<Self> {
        if let Queue::Tail(tail) = &mut config.queue {
            tail.set_rate(Instant::START, &config.rate);
        }
        let gives_room = matches!(&config.queue, Queue::Tail(tail) if tail.room().is_some());
        Some(Self {
            framing: config.framing,
            queue: config.queue,
            gives_room,
            room_end: 0,
            room_size: EMPTY,
            room_wait: Duration::ZERO,
            serving: false,
            transmitter: Transmitter::new(config.rate)?,
            channel: config.channel,
            propagation: Propagation::new(config.delay),
            line: Line::new(EMPTY),
            due: None,
            started: 0,
            heard_from: NOBODY,
            received: Count::default(),
            dropped: Default::default(),
            nested_lost: Count::default(),
            marked: Count::default(),
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
        let arrived = self.line.before(self.line.left());
        let started = self.line.before(self.started);
        // Who waits starts as the packet before ends.
        let is_sending = self.started < self.line.came() || self.transmitter.free_at() > now;
        let (sending_packets, sending, idle_from) = if is_sending && self.started > self.line.left()
        {
            let last = self.started - 1;
            (1, started.since(self.line.before(last)), self.line.start(last))
        } else {
            (0, Sums::default(), self.transmitter.free_at())
        };
        Counters {
            sent_packets: self.started - sending_packets,
            sent_bits: started.frame_bits - sending.frame_bits,
            delivered: self.delivered(),
            dropped: self.dropped,
            marked: self.marked,
            busy: self.transmitter.busy_until(idle_from),
            queue_bytes: waiting.bytes,
            queue_packets: waiting.packets,
            queue_bytes_max: waiting.bytes_max,
            sending_bytes: sending.bytes,
            in_flight_bytes: started.bytes - sending.bytes - arrived.bytes,
        }
    }

    fn delivered(&self) -> Count {
        let damaged = self.dropped[DropCause::BitError as usize];
        let (packets, bytes) = (self.line.left(), self.line.before(self.line.left()).bytes);
        Count { packets: packets - damaged.packets, bytes: bytes - damaged.bytes }
    }

    /// Marks as started what is due by `now`. What waits is what is not marked.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self, now: Instant) {
        // A discipline that decides at departure lets a packet go as it starts: none is unmarked.
        let Queue::Tail(tail) = &mut self.queue else { return };
        let Self { line, started, .. } = self;
        let due = line.loads(*started).take_while(|(start, _)| *start <= now);
        tail.hear(due.inspect(|_| *started += 1));
        if !tail.hears_of_next() {
            *started = line.started_by(now, *started);
        }
        tail.recount(line.amounts_behind(*started));
        self.heard_from = if tail.hears_of_next() { *started } else { NOBODY };
    }

    /// Asks the queue what it does not have to be asked for after the packet that comes next, which it
    /// counts already.
    fn ask_for_room(&mut self) {
        let Queue::Tail(tail) = &self.queue else { return };
        let Some(room) = tail.room() else { return };
        let size = self.line.size();
        let more = room.more(tail.occupancy().amounts(), size.bytes, size.link_bytes);
        self.room_end = (self.line.came() + 1).saturating_add(more);
        self.room_size = size;
        self.room_wait = room.wait;
    }

    #[cold]
    #[inline(never)]
    fn drop(&mut self, cx: &mut Cx<'_>, cause: DropCause, packet: Box<Packet>) {
        self.dropped[cause as usize].add(packet.bytes);
        self.nested_lost.add_nested(&packet);
        cx.trace(cx.now(), EventKind::Dropped(cause), &packet);
        cx.discard(packet);
    }

    /// The size of a packet of so many IP bytes.
    #[inline]
    fn size(&mut self, bytes: u32) -> Size {
        if bytes != self.line.size().bytes {
            self.change_size(bytes);
        }
        self.line.size()
    }

    #[cold]
    #[inline(never)]
    fn change_size(&mut self, bytes: u32) {
        let framing = &self.framing;
        self.line.begin_run(bytes, || Size::new(framing, bytes));
        // Where so many fit, so many that are smaller do.
        let Size { bytes, link_bytes, .. } = self.line.size();
        if bytes > self.room_size.bytes || link_bytes > self.room_size.link_bytes {
            self.room_end = 0;
        }
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
        let id = packet.id;
        let arriving = cx.is_traced().then(|| packet.clone());
        let mut refused = false;
        let (dropped, nested_lost) = (&mut self.dropped, &mut self.nested_lost);
        let queued = Queued { packet, frame, entered: now, marked: false };
        head.push(now, queued, &mut |cause, lost| {
            refused |= lost.id == id;
            dropped[cause as usize].add(lost.bytes);
            nested_lost.add_nested(lost);
            cx.trace(now, EventKind::Dropped(cause), lost);
            cx.note_freed();
        });
        if let Some(arriving) = arriving.filter(|_| !refused) {
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
            let (dropped, nested_lost) = (&mut self.dropped, &mut self.nested_lost);
            let next = head.pop(now, &mut |cause, lost: &Packet| {
                dropped[cause as usize].add(lost.bytes);
                nested_lost.add_nested(lost);
                cx.trace(now, EventKind::Dropped(cause), lost);
                cx.note_freed();
            });
            self.serving = next.is_some();
            let Some(Queued { packet, marked, .. }) = next else { return };
            if marked {
                self.note_mark(cx, &packet);
            }
            let frame_bits = self.size(packet.bytes).frame_bits;
            let slot = self.transmitter.take(now, Bits(frame_bits.into()));
            cx.trace(slot.start, EventKind::Transmitted, &packet);
            self.send(now, slot, packet, frame_bits);
            self.started = self.line.came();
        }
    }

    /// Gives a packet its way from the transmitter on: channel, propagation.
    #[inline(always)]
    fn send(&mut self, now: Instant, slot: Slot, packet: Box<Packet>, frame_bits: u32) {
        let Slot { start, departure } = slot;
        let damaged = self.channel.damages(now, slot, Bits(frame_bits.into()));
        let arrival = self.propagation.arrival(departure);
        if self.due.is_none() {
            self.due = Some(arrival);
        }
        let (flow, packet) = (packet.flow, Some(packet));
        self.line.push_back(OnTheWay { arrival, start, flow, damaged, packet });
    }

    /// Lets a packet in, perhaps with a mark, or tells why not, by what waits at this very moment.
    #[cold]
    #[inline(never)]
    fn admit(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &mut Packet,
        link_bytes: u32,
        start: Instant,
    ) -> Result<(), DropCause> {
        let now = cx.now();
        self.catch_up(now);
        let Queue::Tail(tail) = &mut self.queue else { return Ok(()) };
        let load = Load { flow: packet.flow, bytes: packet.bytes, link_bytes };
        let waiting = self.line.behind(self.started);
        let verdict = tail.admit(now, load, packet.ecn, start, &waiting);
        self.heard_from = if tail.hears_of_next() { self.started } else { NOBODY };
        match verdict {
            // Where one is refused there is no room for more.
            Verdict::Drop(cause) => return Err(cause),
            Verdict::Mark => {
                packet.ecn = Ecn::Ce;
                self.note_mark(cx, packet);
            }
            Verdict::Enqueue => {}
        }
        if self.gives_room {
            self.ask_for_room();
        }
        Ok(())
    }

    /// The queue marked a packet.
    #[cold]
    #[inline(never)]
    fn note_mark(&mut self, cx: &mut Cx<'_>, packet: &Packet) {
        self.marked.add(packet.bytes);
        cx.trace(cx.now(), EventKind::Marked, packet);
    }

    /// [`Engine::input`] where the discipline is asked about each packet.
    #[cold]
    #[inline(never)]
    fn ask_and_send(&mut self, cx: &mut Cx<'_>, mut packet: Box<Packet>) {
        if let Queue::Head(_) = self.queue {
            self.push(cx, packet);
            return;
        }
        let now = cx.now();
        let size = self.size(packet.bytes);
        let start = self.transmitter.start(now);
        match self.admit(cx, &mut packet, size.link_bytes, start) {
            Ok(()) => self.take_and_send(cx, packet, size, start),
            Err(cause) => self.drop(cx, cause, packet),
        }
        if start <= now {
            // The queue did not count it.
            self.started = self.line.came();
            self.heard_from = self.started;
        }
    }

    /// Gives a packet its way, from the transmitter on.
    #[inline(always)]
    fn take_and_send(&mut self, cx: &mut Cx<'_>, packet: Box<Packet>, size: Size, start: Instant) {
        let slot = self.transmitter.take_from(start, Bits(size.frame_bits.into()));
        cx.trace(cx.now(), EventKind::Enqueued, &packet);
        cx.trace(slot.start, EventKind::Transmitted, &packet);
        self.send(cx.now(), slot, packet, size.frame_bits);
    }

    #[inline]
    fn first_arrival(&self) -> Option<Instant> {
        self.line.front().map(|first| first.arrival)
    }

    /// The first packet of the line has arrived.
    #[inline(always)]
    fn arrive(&mut self, cx: &mut Cx<'_>) {
        if self.heard_from == self.line.left() {
            self.catch_up(cx.now());
        }
        debug_assert!(self.heard_from > self.line.left(), "the queue hears of it before it leaves");
        debug_assert!(self.line.front_is_of_its_run(), "what is delivered follows from runs");
        let first = self.line.take_front();
        let damaged = first.damaged;
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
        cx.trace(cx.now(), EventKind::Delivered, &packet);
        cx.pass(Self::OUT, packet);
    }
}

impl Engine for Direction {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, mut packet: Box<Packet>) {
        debug_assert_eq!(port, Self::IN, "packets enter a direction at one end");
        self.received.add(packet.bytes);
        if !self.gives_room {
            self.ask_and_send(cx, packet);
            return;
        }
        let now = cx.now();
        let size = self.size(packet.bytes);
        let start = self.transmitter.start(now);
        // Who waits for nobody needs no room.
        let wait = start.saturating_since(now);
        if wait > Duration::ZERO
            && (self.line.came() >= self.room_end || wait > self.room_wait)
            && let Err(cause) = self.admit(cx, &mut packet, size.link_bytes, start)
        {
            self.drop(cx, cause, packet);
            return;
        }
        self.take_and_send(cx, packet, size, start);
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
        let mut held = Count::default();
        let mut nested = Nested { lost: self.nested_lost, ..Nested::default() };
        let mut hold = |packet: &Packet| {
            held.add(packet.bytes);
            nested.held.add_nested(packet);
        };
        // What waits for a decision at departure is not in the line yet.
        if let Queue::Head(head) = &self.queue {
            head.for_each(&mut hold);
        }
        self.line.packets().for_each(hold);
        Ledger {
            received: self.received,
            sent: self.delivered(),
            dropped: self.dropped,
            held,
            nested,
            ..Ledger::default()
        }
    }
}
