//! A discipline that drops at dequeue: it costs one more event per packet, because its next packet is chosen
//! when the transmitter becomes free, and is in transit from then on.

use super::carrier::Carrier;
use crate::engine::Cx;
use crate::link::{DropAtDequeue, QueuedPacket};
use crate::packet::Packet;
use crate::time::{Duration, Instant};
use crate::trace::EventKind;
use crate::units::Bits;

/// See the module's description.
#[derive(Debug)]
pub(super) struct AtDequeue {
    pub(super) discipline: Box<DropAtDequeue>,
    /// Whether it waits for the transmitter to become free.
    is_serving: bool,
    /// Otherwise, when a packet that waits may be sent.
    ready_at: Option<Instant>,
}

impl AtDequeue {
    /// An empty queue, which waits for the end of the frame being sent.
    pub(super) fn new(discipline: Box<DropAtDequeue>, carrier: &Carrier, now: Instant) -> Self {
        let is_serving = carrier.transmitter.wait(now) > Duration::ZERO;
        Self { discipline, is_serving, ready_at: None }
    }

    /// Enqueues a packet. Its arrival is traced unless it waited in another queue.
    #[cold]
    #[inline(never)]
    pub(super) fn enqueue(
        &mut self,
        carrier: &mut Carrier,
        cx: &mut Cx<'_>,
        packet: Box<Packet>,
        has_arrived_now: bool,
    ) {
        let now = cx.now();
        // A packet that arrives as the transmitter becomes free finds the next one dequeued, whichever
        // of the two calls comes first.
        self.dequeue_due(carrier, cx);
        let frame = Bits(frame_bits(carrier, packet.bytes).into());
        // The queue may drop the packet itself or others.
        let id = packet.id;
        let arriving = (has_arrived_now && cx.is_traced()).then(|| packet.clone());
        let mut is_dropped = false;
        let queued = QueuedPacket { packet, frame, enqueued_at: now, marked: false };
        self.discipline.enqueue(now, queued, &mut |cause, lost| {
            is_dropped |= lost.id == id;
            carrier.on_drop(cx, cause, lost);
        });
        if let Some(arriving) = arriving.filter(|_| !is_dropped) {
            cx.trace(now, EventKind::Enqueued, &arriving);
        }
        if !self.is_serving {
            self.serve(carrier, cx);
        }
        self.observe(carrier, now);
        self.update_due(carrier);
    }

    /// Dequeues and delivers what is due.
    #[inline(never)]
    pub(super) fn wake(&mut self, carrier: &mut Carrier, cx: &mut Cx<'_>) {
        // Before arrivals, since a frame shorter than a nanosecond arrives as it starts if there is no delay.
        if self.is_due(cx.now()) {
            self.serve(carrier, cx);
            self.observe(carrier, cx.now());
        }
        while carrier.first_arrival().is_some_and(|arrival| arrival <= cx.now()) {
            carrier.arrive(cx);
        }
        self.update_due(carrier);
    }

    pub(super) fn update_due(&self, carrier: &mut Carrier) {
        let next = self.is_serving.then(|| carrier.transmitter.free_at()).or(self.ready_at);
        carrier.due = carrier.first_arrival().into_iter().chain(next).min();
    }

    /// Dequeues what is due before something else happens at the same instant.
    pub(super) fn dequeue_due(&mut self, carrier: &mut Carrier, cx: &mut Cx<'_>) {
        if self.is_due(cx.now()) {
            self.serve(carrier, cx);
        }
    }

    /// Whether it waits for the transmitter, or no longer for the discipline.
    fn is_due(&self, now: Instant) -> bool {
        self.is_serving || self.ready_at.is_some_and(|ready_at| ready_at <= now)
    }

    /// Dequeues and sends packets while the transmitter is free.
    #[inline(never)]
    fn serve(&mut self, carrier: &mut Carrier, cx: &mut Cx<'_>) {
        let now = cx.now();
        while carrier.transmitter.wait(now) == Duration::ZERO {
            let next = self
                .discipline
                .dequeue(now, &mut |cause, lost: &Packet| carrier.on_drop(cx, cause, lost));
            self.is_serving = next.is_some();
            self.ready_at = if self.is_serving { None } else { self.discipline.ready_at() };
            let Some(QueuedPacket { packet, marked, enqueued_at, .. }) = next else { return };
            carrier.waiting.on_dequeue(enqueued_at, now);
            if marked {
                carrier.count_mark(cx, &packet);
            }
            let frame_bits = frame_bits(carrier, packet.bytes);
            carrier.end_idle_time(carrier.transmitter.free_at(), now);
            let start = carrier.transmitter.start(now);
            carrier.transmit(cx, packet, frame_bits, start);
        }
    }

    /// Observes the queue after packets have entered or left.
    pub(super) fn observe(&self, carrier: &mut Carrier, now: Instant) {
        let is_full = self.discipline.is_full(carrier.largest_packet());
        carrier.waiting.observe(now, !self.discipline.is_empty(), is_full);
    }

    /// Removes the packets that wait, in the order of their arrival.
    #[expect(clippy::vec_box, reason = "packets are passed by address")]
    pub(super) fn take_waiting(&mut self, carrier: &mut Carrier, now: Instant) -> Vec<Box<Packet>> {
        let mut queued = self.discipline.take_packets();
        queued.sort_by_key(|queued| queued.enqueued_at);
        queued.iter().for_each(|queued| carrier.waiting.on_dequeue(queued.enqueued_at, now));
        queued.into_iter().map(|queued| queued.packet).collect()
    }
}

fn frame_bits(carrier: &mut Carrier, bytes: u32) -> u32 {
    if bytes != carrier.transit.size().bytes {
        carrier.begin_run(bytes);
    }
    carrier.transit.size().frame_bits
}
