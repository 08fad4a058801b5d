//! Replacement of the queue of a direction while packets wait.

use super::{Direction, NO_POSITION, NO_SIZE, Queue};
use crate::engine::Cx;
use crate::packet::Packet;
use crate::time::Duration;
use crate::trace::EventKind;
use crate::units::Bits;

impl Direction {
    /// Replaces the queue now, after everything due by then. The packets that wait enter the new queue in
    /// the order in which they arrived, as if they arrived now: one that does not fit is dropped. The
    /// frame being sent and those in flight are not affected.
    ///
    /// A packet that waited in a FIFO has two transmission events: the start that was scheduled when it
    /// arrived, and that from the new queue.
    #[cold]
    pub fn replace_queue(&mut self, cx: &mut Cx<'_>, mut queue: Queue) {
        debug_assert!(self.usage.is_none(), "use is counted only if the queue stays");
        let now = cx.now();
        if self.serving {
            self.serve(cx);
        }
        self.update_started(now);
        self.earlier_bytes_max = self.earlier_bytes_max.max(self.queue.occupancy().bytes_max);
        let was_scheduled = matches!(self.queue, Queue::DropAtEnqueue(_));
        let waiting = self.take_waiting(cx);
        // A discipline that drops at dequeue waits for the end of the frame being sent.
        self.serving = self.transmitter.wait(now) > Duration::ZERO;
        self.has_headroom = false;
        if let Queue::DropAtEnqueue(discipline) = &mut queue {
            self.serving = false;
            discipline.set_rate(now, self.transmitter.rate());
            self.has_headroom = discipline.headroom().is_some();
        }
        self.queue = queue;
        self.waiting.on_replace(now);
        self.update_start_checks();
        self.started = self.transit.end();
        self.next_dequeue_event = NO_POSITION;
        self.headroom_end = 0;
        self.headroom_size = NO_SIZE;
        self.headroom_wait = Duration::ZERO;
        for packet in waiting {
            self.readmit(cx, packet, was_scheduled);
        }
        if self.may_be_full() {
            self.waiting.on_full(now, self.full_until(now));
        }
        self.observe_queue(now);
        self.update_due();
    }

    /// Removes the packets that wait, in the order of their arrival. The transmitter is then free when the
    /// frame being sent ends.
    #[expect(clippy::vec_box, reason = "packets are passed by address")]
    fn take_waiting(&mut self, cx: &Cx<'_>) -> Vec<Box<Packet>> {
        let discipline = match &mut self.queue {
            Queue::DropAtDequeue(discipline) => discipline,
            Queue::DropAtEnqueue(_) => {
                let started = self.transit.totals_before(self.started);
                let waiting = self.transit.totals().since(started);
                self.transmitter.unschedule(cx.now(), Bits(waiting.frame_bits));
                let last = self.started.checked_sub(1).filter(|last| *last >= self.transit.begin());
                let last_arrival = last.map_or(cx.now(), |last| self.transit.at(last).arrival);
                self.propagation.change(None, last_arrival);
                return self.transit.truncate(self.started);
            }
        };
        let mut queued = discipline.take_packets();
        queued.sort_by_key(|queued| queued.enqueued_at);
        queued.iter().for_each(|queued| self.waiting.on_dequeue(queued.enqueued_at, cx.now()));
        queued.into_iter().map(|queued| queued.packet).collect()
    }

    /// Passes a packet to the new queue. It was received and traced before, and its delay was counted.
    fn readmit(&mut self, cx: &mut Cx<'_>, mut packet: Box<Packet>, was_scheduled: bool) {
        if let Queue::DropAtDequeue(_) = self.queue {
            self.enqueue(cx, packet, false);
            return;
        }
        let now = cx.now();
        let size = self.size(packet.bytes);
        let start = self.transmitter.start(now);
        match self.admit(cx, &mut packet, size.link_bytes, start) {
            Ok(()) => {
                if start > now {
                    self.waiting.on_scheduled(now, start);
                }
                let frame = Bits(size.frame_bits.into());
                let transmission = self.transmitter.take_from(start, frame);
                if !was_scheduled {
                    cx.trace(transmission.start, EventKind::Transmitted, &packet);
                }
                self.send(now, transmission, packet, size.frame_bits);
            }
            Err(cause) => self.drop(cx, cause, packet),
        }
        if start <= now {
            self.started = self.transit.end();
            self.next_dequeue_event = self.started;
        }
    }
}
