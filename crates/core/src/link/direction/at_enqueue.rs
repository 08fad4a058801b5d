//! A FIFO that drops only at enqueue: all times of a packet are known when it arrives, because a strict
//! transmitter starts it at max(now, end of the previous packet), and propagation adds a delay.
//!
//! It schedules no "transmission ended" event. One position in the sequence of packets, updated on demand,
//! separates those that wait from those that have started. The headroom of the queue is the number of packets
//! that it accepts without a call of `admit`, whether or not others have left.

use super::carrier::{Carrier, NO_SIZE};
use crate::engine::Cx;
use crate::link::transit::FrameSize;
use crate::link::{Backlog, DropAtEnqueue, Limit, PacketSize, Verdict};
use crate::packet::{Ecn, FlowId, Packet};
use crate::time::{Duration, Instant};
use crate::trace::{DropCause, EventKind};
use crate::units::Bits;

/// Larger than every position.
const NO_POSITION: u64 = u64::MAX;

/// See the module's description. Positions are those of the carrier's transit.
#[derive(Debug)]
pub(super) struct AtEnqueue {
    pub(super) discipline: DropAtEnqueue,
    /// Whether the queue has headroom at all, so that most packets need no call of `admit`.
    has_headroom: bool,
    /// The position up to which the queue accepts packets without `admit` if they are no larger than
    /// `headroom_size` and wait no longer than `headroom_wait`.
    headroom_end: u64,
    headroom_size: FrameSize,
    headroom_wait: Duration,
    /// The position after the last packet whose transmission has started, as of the last
    /// [`AtEnqueue::update_started`]. All counters of sent packets follow from it: at most one of these
    /// packets is still being sent.
    started: u64,
    /// `started`, if the queue needs the dequeue event of each packet before the packet leaves the transit.
    next_dequeue_event: u64,
    /// See [`AtEnqueue::is_filled_by_one`].
    filled_by_one: bool,
    /// Whether packets that start at once have to be noted.
    checks_starts: bool,
}

impl AtEnqueue {
    /// An empty queue; all packets of the carrier have started.
    pub(super) fn new(mut discipline: DropAtEnqueue, carrier: &Carrier, now: Instant) -> Self {
        discipline.set_rate(now, carrier.transmitter.rate());
        let mut queue = Self {
            has_headroom: discipline.headroom().is_some(),
            discipline,
            headroom_end: 0,
            headroom_size: NO_SIZE,
            headroom_wait: Duration::ZERO,
            started: carrier.transit.end(),
            next_dequeue_event: NO_POSITION,
            filled_by_one: false,
            checks_starts: false,
        };
        queue.update_start_checks(carrier);
        queue
    }

    /// Updates what depends on the queue's limit, the largest packet, the rate and whether use is counted.
    pub(super) fn update_start_checks(&mut self, carrier: &Carrier) {
        self.filled_by_one = self.is_filled_by_one(carrier);
        self.checks_starts = self.filled_by_one || carrier.usage.is_some();
    }

    /// The transmitter has another rate from now on.
    pub(super) fn on_new_rate(&mut self, carrier: &Carrier, now: Instant) {
        self.discipline.set_rate(now, carrier.transmitter.rate());
        self.update_start_checks(carrier);
        self.headroom_end = 0;
    }

    /// Moves `started` past the packets that have started by `now`, and returns it. Those after it wait.
    #[cold]
    #[inline(never)]
    pub(super) fn update_started(&mut self, carrier: &Carrier, now: Instant) -> u64 {
        let Self { discipline, started, .. } = self;
        let transit = &carrier.transit;
        let due = transit.packet_sizes(*started).take_while(|(start, _)| *start <= now);
        discipline.on_dequeue(due.inspect(|_| *started += 1));
        if !discipline.needs_dequeue_events() {
            *started = transit.started_by(now, *started);
        }
        discipline.set_backlog(transit.backlog_from(*started));
        self.update_next_dequeue_event();
        self.started
    }

    fn update_next_dequeue_event(&mut self) {
        let needs_event = self.discipline.needs_dequeue_events();
        self.next_dequeue_event = if needs_event { self.started } else { NO_POSITION };
    }

    /// A packet that started at once was scheduled; the queue did not count it.
    fn on_started(&mut self, carrier: &Carrier) {
        self.started = carrier.transit.end();
        self.next_dequeue_event = self.started;
    }

    /// Updates the headroom after the next packet, which the queue has counted already.
    fn update_headroom(&mut self, carrier: &Carrier) {
        let Some(headroom) = self.discipline.headroom() else { return };
        let size = carrier.largest;
        let backlog = self.discipline.occupancy().backlog();
        let more = headroom.packets_that_fit(backlog, size.bytes, size.link_bytes);
        // A packet that may fill the queue goes through `admit`, too, which finds it full.
        let fills = may_fill(self.discipline.limit(), backlog, more, carrier.largest_packet());
        let first = carrier.transit.end() + u64::from(!fills);
        self.headroom_end = first.saturating_add(more);
        self.headroom_size = size;
        self.headroom_wait = headroom.wait_max;
        if let Limit::Time(limit) = self.discipline.limit() {
            let longest = carrier.transmitter.longest_time(Bits(size.frame_bits.into()));
            self.headroom_wait = limit.saturating_sub(longest.unwrap_or(limit));
        }
    }

    /// The size on the link of a packet of `bytes`.
    #[inline]
    fn size(&mut self, carrier: &mut Carrier, bytes: u32) -> FrameSize {
        if bytes != carrier.transit.size().bytes {
            self.change_size(carrier, bytes);
        }
        carrier.transit.size()
    }

    #[cold]
    #[inline(never)]
    fn change_size(&mut self, carrier: &mut Carrier, bytes: u32) {
        if carrier.begin_run(bytes) {
            self.update_start_checks(carrier);
        }
        // The headroom for larger packets also holds for smaller ones.
        let FrameSize { bytes, link_bytes, .. } = carrier.transit.size();
        if bytes > self.headroom_size.bytes || link_bytes > self.headroom_size.link_bytes {
            self.headroom_end = 0;
        }
    }

    /// Schedules a packet, or drops it.
    #[inline(always)]
    pub(super) fn input(&mut self, carrier: &mut Carrier, cx: &mut Cx<'_>, packet: Box<Packet>) {
        if !self.has_headroom {
            self.admit_and_send(carrier, cx, packet);
            return;
        }
        let now = cx.now();
        let size = self.size(carrier, packet.bytes);
        let free_at = carrier.transmitter.free_at();
        let start = carrier.transmitter.start(now);
        // A packet that starts at once needs no room.
        let wait = start.saturating_since(now);
        if wait > Duration::ZERO {
            if carrier.transit.end() >= self.headroom_end || wait > self.headroom_wait {
                self.admit_and_transmit(carrier, cx, packet, size, start);
                return;
            }
            carrier.waiting.on_wait(now, start);
        } else if self.checks_starts {
            self.start_now(carrier, cx, packet, size, free_at);
            return;
        }
        transmit(carrier, cx, packet, size, start);
    }

    /// [`AtEnqueue::input`] of a queue without headroom.
    #[cold]
    #[inline(never)]
    fn admit_and_send(&mut self, carrier: &mut Carrier, cx: &mut Cx<'_>, packet: Box<Packet>) {
        let now = cx.now();
        let size = self.size(carrier, packet.bytes);
        let free_at = carrier.transmitter.free_at();
        let start = carrier.transmitter.start(now);
        carrier.end_idle_time(free_at, now);
        self.admit_and_transmit(carrier, cx, packet, size, start);
        if start <= now {
            self.on_started(carrier);
        }
    }

    /// Sends a packet that starts at once, if that has to be noted. The transmitter was free at `free_at`.
    #[inline(never)]
    fn start_now(
        &mut self,
        carrier: &mut Carrier,
        cx: &mut Cx<'_>,
        packet: Box<Packet>,
        size: FrameSize,
        free_at: Instant,
    ) {
        let now = cx.now();
        carrier.end_idle_time(free_at, now);
        if self.filled_by_one {
            self.admit_and_transmit(carrier, cx, packet, size, now);
        } else {
            transmit(carrier, cx, packet, size, now);
        }
    }

    /// Accepts a packet that may not fit, and sends it, or drops it.
    #[cold]
    #[inline(never)]
    fn admit_and_transmit(
        &mut self,
        carrier: &mut Carrier,
        cx: &mut Cx<'_>,
        mut packet: Box<Packet>,
        size: FrameSize,
        start: Instant,
    ) {
        let now = cx.now();
        match self.admit(carrier, cx, &mut packet, size.link_bytes, start) {
            Ok(()) => {
                if start > now {
                    carrier.waiting.on_wait(now, start);
                }
                transmit(carrier, cx, packet, size, start);
            }
            Err(cause) => carrier.drop(cx, cause, packet),
        }
        self.note_full(carrier, now);
    }

    /// Passes on a packet that waited in another queue. It was received and traced before, and its delay was
    /// counted.
    pub(super) fn readmit(
        &mut self,
        carrier: &mut Carrier,
        cx: &mut Cx<'_>,
        mut packet: Box<Packet>,
        was_scheduled: bool,
    ) {
        let now = cx.now();
        let size = self.size(carrier, packet.bytes);
        let start = carrier.transmitter.start(now);
        match self.admit(carrier, cx, &mut packet, size.link_bytes, start) {
            Ok(()) => {
                if start > now {
                    carrier.waiting.on_scheduled(now, start);
                }
                let frame = Bits(size.frame_bits.into());
                let transmission = carrier.transmitter.take_from(start, frame);
                if !was_scheduled {
                    cx.trace(transmission.start, EventKind::Transmitted, &packet);
                }
                carrier.send(now, transmission, packet, size.frame_bits);
            }
            Err(cause) => carrier.drop(cx, cause, packet),
        }
        if start <= now {
            self.on_started(carrier);
        }
    }

    /// Accepts, marks or drops a packet by the current backlog.
    #[cold]
    #[inline(never)]
    fn admit(
        &mut self,
        carrier: &mut Carrier,
        cx: &mut Cx<'_>,
        packet: &mut Packet,
        link_bytes: u32,
        start: Instant,
    ) -> Result<(), DropCause> {
        let now = cx.now();
        self.update_started(carrier, now);
        let size = PacketSize { flow: packet.flow, bytes: packet.bytes, link_bytes };
        let waiting = carrier.transit.waiting_from(self.started);
        let verdict = self.discipline.admit(now, size, packet.ecn, start, &waiting);
        self.update_next_dequeue_event();
        match verdict {
            // A drop does not change the headroom.
            Verdict::Drop(cause) => return Err(cause),
            Verdict::Mark => {
                packet.ecn = Ecn::Ce;
                carrier.count_mark(cx, packet);
            }
            Verdict::Enqueue => {}
        }
        if self.has_headroom {
            self.update_headroom(carrier);
        }
        Ok(())
    }

    /// Delivers the packets that have arrived.
    #[inline(always)]
    pub(super) fn wake(&mut self, carrier: &mut Carrier, cx: &mut Cx<'_>) {
        while carrier.due.is_some_and(|arrival| arrival <= cx.now()) {
            if self.next_dequeue_event == carrier.transit.begin() {
                self.update_started(carrier, cx.now());
            }
            debug_assert!(
                self.next_dequeue_event > carrier.transit.begin(),
                "the queue gets the dequeue event of a packet before it leaves"
            );
            carrier.arrive(cx);
        }
    }

    /// Removes the packets that wait, in the order of their arrival. The transmitter is then free when the
    /// frame being sent ends.
    #[expect(clippy::vec_box, reason = "packets are passed by address")]
    pub(super) fn take_waiting(&mut self, carrier: &mut Carrier, now: Instant) -> Vec<Box<Packet>> {
        let waiting = carrier.transit.totals().since(carrier.transit.totals_before(self.started));
        carrier.transmitter.unschedule(now, Bits(waiting.frame_bits));
        let last = self.started.checked_sub(1).filter(|last| *last >= carrier.transit.begin());
        let last_arrival = last.map_or(now, |last| carrier.transit.at(last).arrival);
        carrier.propagation.change(None, last_arrival);
        carrier.transit.truncate(self.started)
    }

    /// Notes until when the queue is full. A quick check comes first: usually there is room.
    pub(super) fn note_full(&self, carrier: &mut Carrier, now: Instant) {
        let (occupancy, largest) = (self.discipline.occupancy(), carrier.largest);
        let may_be_full = match self.discipline.limit() {
            Limit::Bytes(limit) => occupancy.bytes + u64::from(largest.bytes) > limit,
            Limit::LinkBytes(limit) => occupancy.link_bytes + u64::from(largest.link_bytes) > limit,
            Limit::Packets(limit) => occupancy.packets >= limit,
            Limit::Time(_) => true,
            Limit::Unlimited => false,
        };
        if may_be_full {
            carrier.waiting.on_full(now, self.full_until(carrier, now));
        }
    }

    /// Whether it is full as soon as one large packet is being sent.
    fn is_filled_by_one(&self, carrier: &Carrier) -> bool {
        if let Limit::Time(limit) = self.discipline.limit() {
            let frame = Bits(carrier.largest.frame_bits.into());
            return carrier.transmitter.longest_time(frame).is_none_or(|longest| longest > limit);
        }
        let counted = self.discipline.limit().counted();
        counted.is_some_and(|(unit, limit)| unit.of(carrier.largest_packet()) > limit)
    }

    /// Until when the largest packet would be dropped if it arrived; `now` if it fits. Packets that have
    /// started by now are counted as such.
    pub(super) fn full_until(&self, carrier: &Carrier, now: Instant) -> Instant {
        let limit = self.discipline.limit();
        let free_at = carrier.transmitter.free_at();
        if let Limit::Time(limit) = limit {
            return now + carrier.transmitter.wait(now).saturating_sub(limit);
        }
        let Some((unit, limit)) = limit.counted() else { return now };
        let Some(room) = limit.checked_sub(unit.of(carrier.largest_packet())) else {
            // Only a packet that finds the transmitter idle is accepted.
            return free_at.max(now);
        };
        let transit = &carrier.transit;
        let waiting = unit.count(self.discipline.occupancy());
        let (mut full, mut free) = (self.started, transit.end());
        if waiting <= room || full == free {
            return now;
        }
        // It fits once the packets before some position have started: usually the next one.
        let FrameSize { bytes, link_bytes, .. } = transit.size_at(full);
        let next = PacketSize { flow: FlowId::default(), bytes, link_bytes };
        if waiting - unit.of(next) <= room {
            free = full + 1;
        }
        let fits = |position| unit.of_backlog(transit.backlog_from(position)) <= room;
        while full + 1 < free {
            let middle = full.midpoint(free);
            if fits(middle) {
                free = middle;
            } else {
                full = middle;
            }
        }
        transit.start(free - 1).max(now)
    }
}

/// Sends a packet that the queue has accepted.
#[inline(always)]
fn transmit(
    carrier: &mut Carrier,
    cx: &mut Cx<'_>,
    packet: Box<Packet>,
    size: FrameSize,
    start: Instant,
) {
    cx.trace(cx.now(), EventKind::Enqueued, &packet);
    carrier.transmit(cx, packet, size.frame_bits, start);
}

/// Whether a queue with this backlog may be full after `packets` more of the largest size. A limit in time is
/// checked for each packet.
fn may_fill(limit: Limit, waiting: Backlog, packets: u64, largest: PacketSize) -> bool {
    limit.counted().is_some_and(|(unit, limit)| {
        let after = unit.of(largest).saturating_mul(packets.saturating_add(1));
        unit.of_backlog(waiting).saturating_add(after) > limit
    })
}
