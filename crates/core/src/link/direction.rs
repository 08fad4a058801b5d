//! The engine of one direction of a link.
//!
//! If the queue is a FIFO that drops only at enqueue, all times of a packet are known when it arrives: a
//! strict transmitter starts it at max(now, end of the previous packet), and propagation adds a delay.
//! Such a direction schedules no "transmission ended" event; the only event is the delivery. One
//! position in the sequence of packets, updated on demand, separates those that wait from those that have
//! started. The headroom of the queue is the number of packets that it accepts without a call of `admit`,
//! whether or not others have left. A discipline that drops at dequeue costs one more event per packet: its
//! next packet is chosen when the transmitter becomes free, and is in transit from then on.

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

use super::transit::{FrameSize, InTransit, Transit};
use super::{
    Channel, DropAtDequeue, DropAtEnqueue, Framing, Limit, Occupancy, PacketSize, Propagation,
    QueuedPacket, Transmission, Transmitter, Verdict,
};
use crate::engine::{Count, Cx, Engine, Ledger, Nested};
use crate::packet::{Ecn, Packet, Port};
use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::trace::{DropCause, EventKind};
use crate::units::{BitRate, Bits};
use usage::Usage;
use waiting::Waiting;

/// A queue, by the time at which its discipline drops packets.
#[derive(Clone, Debug)]
pub enum Queue {
    /// At enqueue.
    DropAtEnqueue(DropAtEnqueue),
    /// At dequeue, when the transmitter becomes free.
    DropAtDequeue(Box<DropAtDequeue>),
}

impl Queue {
    /// The packets that wait.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        match self {
            Self::DropAtEnqueue(discipline) => discipline.occupancy(),
            Self::DropAtDequeue(discipline) => discipline.occupancy(),
        }
    }
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

/// The initial frame size.
const NO_SIZE: FrameSize = FrameSize { bytes: 0, frame_bits: 0, link_bytes: 0 };

/// Larger than every position.
const NO_POSITION: u64 = u64::MAX;

/// One direction of a link. See the module's description.
#[derive(Debug)]
pub struct Direction {
    framing: Framing,
    queue: Queue,
    /// Whether the queue has headroom at all, so that most packets need no call of `admit`.
    has_headroom: bool,
    /// The position in `transit` up to which the queue accepts packets without `admit` if they are no larger than
    /// `headroom_size` and wait no longer than `headroom_wait`.
    headroom_end: u64,
    headroom_size: FrameSize,
    headroom_wait: Duration,
    /// Whether a discipline that drops at dequeue waits for the transmitter to become free.
    serving: bool,
    transmitter: Transmitter,
    channel: Channel,
    propagation: Propagation,
    transit: Transit,
    /// The next deadline: the arrival of the first packet of `transit` or, if `serving`, the time when
    /// the transmitter becomes free, if that is earlier.
    due: Option<Instant>,
    /// The position in `transit` after the last packet whose transmission has started, as of the last
    /// [`Direction::update_started`]. All counters of sent packets follow from it: at most one of these
    /// packets is still being sent.
    started: u64,
    /// `started`, if the queue needs the dequeue event of each packet before the packet leaves `transit`.
    next_dequeue_event: u64,
    received: Count,
    dropped: [Count; DropCause::ALL.len()],
    nested_lost: Count,
    marked: Count,
    /// The most IP bytes in queues that were replaced.
    earlier_bytes_max: u64,
    waiting: Waiting,
    /// The size of the largest packet that has arrived.
    largest: FrameSize,
    /// See [`Direction::is_filled_by_one`].
    filled_by_one: bool,
    /// Whether packets that start at once have to be noted.
    checks_starts: bool,
    usage: Option<Box<Usage>>,
}

impl Direction {
    /// The input port.
    pub const IN: Port = Port(0);
    /// The output port.
    pub const OUT: Port = Port(1);

    /// An idle direction. `None` if the rate ends at zero: packets would never leave.
    #[must_use]
    pub fn new(mut config: DirectionConfig) -> Option<Self> {
        if let Queue::DropAtEnqueue(discipline) = &mut config.queue {
            discipline.set_rate(Instant::START, &config.rate);
        }
        let has_headroom =
            matches!(&config.queue, Queue::DropAtEnqueue(queue) if queue.headroom().is_some());
        Some(Self {
            framing: config.framing,
            queue: config.queue,
            has_headroom,
            headroom_end: 0,
            headroom_size: NO_SIZE,
            headroom_wait: Duration::ZERO,
            serving: false,
            transmitter: Transmitter::new(config.rate)?,
            channel: config.channel,
            propagation: Propagation::new(config.delay),
            transit: Transit::new(NO_SIZE),
            due: None,
            started: 0,
            next_dequeue_event: NO_POSITION,
            received: Count::default(),
            dropped: Default::default(),
            nested_lost: Count::default(),
            marked: Count::default(),
            earlier_bytes_max: 0,
            waiting: Waiting::default(),
            largest: NO_SIZE,
            filled_by_one: false,
            checks_starts: false,
            usage: None,
        })
    }

    /// Adds a random delay to each frame, uniform from zero to `max`; see [`Propagation`].
    #[must_use]
    pub fn with_jitter(mut self, max: Duration, rng: Rng) -> Self {
        self.propagation = self.propagation.with_jitter(max, rng);
        self
    }

    /// Packets received, with their IP bytes.
    #[must_use]
    pub fn received(&self) -> Count {
        self.received
    }

    fn delivered(&self) -> Count {
        let corrupted = self.dropped[DropCause::BitError as usize];
        let (packets, bytes) =
            (self.transit.begin(), self.transit.totals_before(self.transit.begin()).bytes);
        Count { packets: packets - corrupted.packets, bytes: bytes - corrupted.bytes }
    }

    /// Moves `started` past the packets that have started by `now`. Those after it wait.
    #[cold]
    #[inline(never)]
    fn update_started(&mut self, now: Instant) {
        // A discipline that drops at dequeue releases a packet as it starts: all have started.
        let Queue::DropAtEnqueue(discipline) = &mut self.queue else { return };
        let Self { transit, started, .. } = self;
        let due = transit.packet_sizes(*started).take_while(|(start, _)| *start <= now);
        discipline.on_dequeue(due.inspect(|_| *started += 1));
        if !discipline.needs_dequeue_events() {
            *started = transit.started_by(now, *started);
        }
        discipline.set_backlog(transit.backlog_from(*started));
        self.next_dequeue_event =
            if discipline.needs_dequeue_events() { *started } else { NO_POSITION };
    }

    /// Updates the headroom after the next packet, which the queue has counted already.
    fn update_headroom(&mut self) {
        let Queue::DropAtEnqueue(discipline) = &self.queue else { return };
        let Some(headroom) = discipline.headroom() else { return };
        let size = self.largest;
        let more = headroom.packets_that_fit(
            discipline.occupancy().backlog(),
            size.bytes,
            size.link_bytes,
        );
        // A packet that may fill the queue goes through `admit`, too, which finds it full.
        let backlog = discipline.occupancy().backlog();
        let fills = self.may_fill(discipline.limit(), backlog, more);
        let first = self.transit.end() + u64::from(!fills);
        self.headroom_end = first.saturating_add(more);
        self.headroom_size = size;
        self.headroom_wait = headroom.wait_max;
        if let Limit::Time(limit) = discipline.limit() {
            let longest = self.transmitter.longest_time(Bits(size.frame_bits.into()));
            self.headroom_wait = limit.saturating_sub(longest.unwrap_or(limit));
        }
    }

    #[cold]
    #[inline(never)]
    fn drop(&mut self, cx: &mut Cx<'_>, cause: DropCause, packet: Box<Packet>) {
        self.dropped[cause as usize].add(packet.bytes);
        self.nested_lost.add_nested(&packet);
        cx.record_drop(cause, &packet);
        cx.discard(packet);
    }

    /// The size on the link of a packet of `bytes`.
    #[inline]
    fn size(&mut self, bytes: u32) -> FrameSize {
        if bytes != self.transit.size().bytes {
            self.change_size(bytes);
        }
        self.transit.size()
    }

    #[cold]
    #[inline(never)]
    fn change_size(&mut self, bytes: u32) {
        let framing = &self.framing;
        self.transit.begin_run(bytes, || FrameSize::new(framing, bytes));
        // The headroom for larger packets also holds for smaller ones.
        let FrameSize { bytes, link_bytes, .. } = self.transit.size();
        if bytes > self.largest.bytes {
            self.largest = self.transit.size();
            self.update_start_checks();
        }
        if bytes > self.headroom_size.bytes || link_bytes > self.headroom_size.link_bytes {
            self.headroom_end = 0;
        }
    }

    /// Updates what depends on the queue's limit, the largest packet and the rate.
    fn update_start_checks(&mut self) {
        self.filled_by_one = self.is_filled_by_one();
        self.checks_starts = self.filled_by_one || self.usage.is_some();
    }

    /// Enqueues a packet in a discipline that drops at dequeue. Its arrival is traced unless it waited in
    /// another queue.
    #[cold]
    #[inline(never)]
    fn enqueue(&mut self, cx: &mut Cx<'_>, packet: Box<Packet>, has_arrived_now: bool) {
        let now = cx.now();
        // A packet that arrives as the transmitter becomes free finds the next one dequeued, whichever
        // of the two calls comes first.
        if self.serving {
            self.serve(cx);
        }
        let frame = Bits(self.size(packet.bytes).frame_bits.into());
        let Queue::DropAtDequeue(discipline) = &mut self.queue else { return };
        // The queue may drop the packet itself or others.
        let id = packet.id;
        let arriving = (has_arrived_now && cx.is_traced()).then(|| packet.clone());
        let mut is_dropped = false;
        let (dropped, nested_lost) = (&mut self.dropped, &mut self.nested_lost);
        let queued = QueuedPacket { packet, frame, enqueued_at: now, marked: false };
        discipline.enqueue(now, queued, &mut |cause, lost| {
            is_dropped |= lost.id == id;
            dropped[cause as usize].add(lost.bytes);
            nested_lost.add_nested(lost);
            cx.record_drop(cause, lost);
            cx.note_freed();
        });
        if let Some(arriving) = arriving.filter(|_| !is_dropped) {
            cx.trace(now, EventKind::Enqueued, &arriving);
        }
        if !self.serving {
            self.serve(cx);
        }
        self.observe_queue(now);
        self.update_due();
    }

    /// [`Engine::wake`] while a discipline waits for the transmitter.
    #[cold]
    #[inline(never)]
    fn wake_and_dequeue(&mut self, cx: &mut Cx<'_>) {
        // Before arrivals, since a frame shorter than a nanosecond arrives as it starts if there is no delay.
        self.serve(cx);
        self.observe_queue(cx.now());
        while self.first_arrival().is_some_and(|arrival| arrival <= cx.now()) {
            self.arrive(cx);
        }
        self.update_due();
    }

    fn update_due(&mut self) {
        self.due = self.first_arrival();
        if self.serving {
            let free_at = self.transmitter.free_at();
            self.due = Some(self.due.map_or(free_at, |arrival| arrival.min(free_at)));
        }
    }

    /// Dequeues and sends packets while the transmitter is free.
    #[inline(never)]
    fn serve(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        while self.transmitter.wait(now) == Duration::ZERO {
            let Queue::DropAtDequeue(discipline) = &mut self.queue else { return };
            let (dropped, nested_lost) = (&mut self.dropped, &mut self.nested_lost);
            let next = discipline.dequeue(now, &mut |cause, lost: &Packet| {
                dropped[cause as usize].add(lost.bytes);
                nested_lost.add_nested(lost);
                cx.record_drop(cause, lost);
                cx.note_freed();
            });
            self.serving = next.is_some();
            let Some(QueuedPacket { packet, marked, enqueued_at, .. }) = next else { return };
            self.waiting.on_dequeue(enqueued_at, now);
            if marked {
                self.count_mark(cx, &packet);
            }
            let frame_bits = self.size(packet.bytes).frame_bits;
            self.end_idle_time(self.transmitter.free_at(), now);
            let transmission = self.transmitter.take(now, Bits(frame_bits.into()));
            if let Some(usage) = &mut self.usage {
                usage.on_sent(&packet, transmission, frame_bits);
            }
            cx.trace(transmission.start, EventKind::Transmitted, &packet);
            self.send(now, transmission, packet, frame_bits);
            self.started = self.transit.end();
        }
    }

    /// Applies channel and propagation to a packet that the transmitter has scheduled.
    #[inline(always)]
    fn send(
        &mut self,
        now: Instant,
        transmission: Transmission,
        mut packet: Box<Packet>,
        frame_bits: u32,
    ) {
        packet.transmitted = true;
        let Transmission { start, departure } = transmission;
        let corrupted = self.channel.corrupts(now, transmission, Bits(frame_bits.into()));
        let arrival = self.propagation.arrival(departure);
        if self.due.is_none() {
            self.due = Some(arrival);
        }
        let (flow, packet) = (packet.flow, Some(packet));
        self.transit.push_back(InTransit { arrival, start, flow, corrupted, packet });
    }

    /// Accepts, marks or drops a packet by the current backlog.
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
        self.update_started(now);
        let Queue::DropAtEnqueue(discipline) = &mut self.queue else { return Ok(()) };
        let size = PacketSize { flow: packet.flow, bytes: packet.bytes, link_bytes };
        let waiting = self.transit.waiting_from(self.started);
        let verdict = discipline.admit(now, size, packet.ecn, start, &waiting);
        self.next_dequeue_event =
            if discipline.needs_dequeue_events() { self.started } else { NO_POSITION };
        match verdict {
            // A drop does not change the headroom.
            Verdict::Drop(cause) => return Err(cause),
            Verdict::Mark => {
                packet.ecn = Ecn::Ce;
                self.count_mark(cx, packet);
            }
            Verdict::Enqueue => {}
        }
        if self.has_headroom {
            self.update_headroom();
        }
        Ok(())
    }

    /// Counts a packet that the queue marked.
    #[cold]
    #[inline(never)]
    fn count_mark(&mut self, cx: &mut Cx<'_>, packet: &Packet) {
        self.marked.add(packet.bytes);
        cx.trace(cx.now(), EventKind::Marked, packet);
    }

    /// [`Engine::input`] for a queue without headroom.
    #[cold]
    #[inline(never)]
    fn admit_and_send(&mut self, cx: &mut Cx<'_>, packet: Box<Packet>) {
        if let Queue::DropAtDequeue(_) = self.queue {
            self.enqueue(cx, packet, true);
            return;
        }
        let now = cx.now();
        let size = self.size(packet.bytes);
        let free_at = self.transmitter.free_at();
        let start = self.transmitter.start(now);
        self.end_idle_time(free_at, now);
        self.admit_and_transmit(cx, packet, size, start);
        if start <= now {
            // The queue did not count it.
            self.started = self.transit.end();
            self.next_dequeue_event = self.started;
        }
    }

    /// Sends a packet that starts at once, if that has to be noted. The transmitter was free at `free_at`.
    #[inline(never)]
    fn start_now(
        &mut self,
        cx: &mut Cx<'_>,
        packet: Box<Packet>,
        size: FrameSize,
        free_at: Instant,
    ) {
        let now = cx.now();
        self.end_idle_time(free_at, now);
        if self.filled_by_one {
            self.admit_and_transmit(cx, packet, size, now);
        } else {
            self.transmit(cx, packet, size, now);
        }
    }

    /// Notes an idle time of the transmitter since `free_at`, if there was one.
    #[inline(always)]
    fn end_idle_time(&mut self, free_at: Instant, now: Instant) {
        if now > free_at
            && let Some(usage) = &mut self.usage
        {
            usage.on_idle(free_at, now);
        }
    }

    /// Accepts a packet that may not fit, and sends it, or drops it.
    #[cold]
    #[inline(never)]
    fn admit_and_transmit(
        &mut self,
        cx: &mut Cx<'_>,
        mut packet: Box<Packet>,
        size: FrameSize,
        start: Instant,
    ) {
        let now = cx.now();
        match self.admit(cx, &mut packet, size.link_bytes, start) {
            Ok(()) => {
                if start > now {
                    self.waiting.on_wait(now, start);
                }
                self.transmit(cx, packet, size, start);
            }
            Err(cause) => self.drop(cx, cause, packet),
        }
        if self.may_be_full() {
            self.waiting.on_full(now, self.full_until(now));
        }
    }

    /// Schedules a packet on the transmitter and sends it.
    #[inline(always)]
    fn transmit(&mut self, cx: &mut Cx<'_>, packet: Box<Packet>, size: FrameSize, start: Instant) {
        let transmission = self.transmitter.take_from(start, Bits(size.frame_bits.into()));
        if let Some(usage) = &mut self.usage {
            usage.on_sent(&packet, transmission, size.frame_bits);
        }
        cx.trace(cx.now(), EventKind::Enqueued, &packet);
        cx.trace(transmission.start, EventKind::Transmitted, &packet);
        self.send(cx.now(), transmission, packet, size.frame_bits);
    }

    #[inline]
    fn first_arrival(&self) -> Option<Instant> {
        self.transit.front().map(|first| first.arrival)
    }

    /// Delivers the first packet in transit, or drops it if it is corrupted.
    #[inline(always)]
    fn arrive(&mut self, cx: &mut Cx<'_>) {
        if self.next_dequeue_event == self.transit.begin() {
            self.update_started(cx.now());
        }
        debug_assert!(
            self.next_dequeue_event > self.transit.begin(),
            "the queue gets the dequeue event of a packet before it leaves"
        );
        debug_assert!(self.transit.front_matches_its_run(), "delivered counts follow from runs");
        let first = self.transit.pop_front();
        let corrupted = first.corrupted;
        let Some(packet) = first.packet.take() else { return };
        self.due = self.first_arrival();
        if let Some(next) = self.transit.front().and_then(|next| next.packet.as_ref()) {
            // Prefetches the packet, which was written a propagation delay ago.
            std::hint::black_box(next.flow);
        }
        if corrupted {
            self.drop(cx, DropCause::BitError, packet);
            return;
        }
        cx.trace(cx.now(), EventKind::Delivered, &packet);
        cx.forward(Self::OUT, packet);
    }
}

impl Engine for Direction {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        debug_assert_eq!(port, Self::IN, "packets enter a direction at one end");
        self.received.add(packet.bytes);
        if !self.has_headroom {
            self.admit_and_send(cx, packet);
            return;
        }
        let now = cx.now();
        let size = self.size(packet.bytes);
        let free_at = self.transmitter.free_at();
        let start = self.transmitter.start(now);
        // A packet that starts at once needs no room.
        let wait = start.saturating_since(now);
        if wait > Duration::ZERO {
            if self.transit.end() >= self.headroom_end || wait > self.headroom_wait {
                self.admit_and_transmit(cx, packet, size, start);
                return;
            }
            self.waiting.on_wait(now, start);
        } else if self.checks_starts {
            self.start_now(cx, packet, size, free_at);
            return;
        }
        self.transmit(cx, packet, size, start);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        if self.serving {
            self.wake_and_dequeue(cx);
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
        // Packets that a discipline may still drop are not in transit yet.
        if let Queue::DropAtDequeue(discipline) = &self.queue {
            discipline.for_each(&mut hold);
        }
        self.transit.packets().for_each(hold);
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
