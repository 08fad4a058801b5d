//! Replacement of the queue of a direction while packets wait.

use super::{Direction, Queue, Scheduling};
use crate::engine::Cx;

impl Direction {
    /// Replaces the queue now, after everything due by then. The packets that wait enter the new queue in
    /// the order in which they arrived, as if they arrived now: one that does not fit is dropped. The
    /// frame being sent and those in flight are not affected.
    ///
    /// A packet that waited in a FIFO has two transmission events: the start that was scheduled when it
    /// arrived, and that from the new queue.
    #[cold]
    pub fn replace_queue(&mut self, cx: &mut Cx<'_>, queue: Queue) {
        let Self { carrier, scheduling, .. } = self;
        debug_assert!(carrier.usage.is_none(), "use is counted only if the queue stays");
        let now = cx.now();
        let (bytes_max, waiting, was_scheduled) = match scheduling {
            Scheduling::AtEnqueue(old) => {
                old.update_started(carrier, now);
                let bytes_max = old.discipline.occupancy().bytes_max;
                (bytes_max, old.take_waiting(carrier, now), true)
            }
            Scheduling::AtDequeue(old) => {
                old.dequeue_due(carrier, cx);
                let bytes_max = old.discipline.occupancy().bytes_max;
                (bytes_max, old.take_waiting(carrier, now), false)
            }
        };
        self.earlier_bytes_max = self.earlier_bytes_max.max(bytes_max);
        carrier.waiting.on_replace(now);
        *scheduling = Scheduling::new(queue, carrier, now);
        match scheduling {
            Scheduling::AtEnqueue(new) => {
                for packet in waiting {
                    new.readmit(carrier, cx, packet, was_scheduled);
                }
                new.note_full(carrier, now);
                carrier.due = carrier.first_arrival();
            }
            Scheduling::AtDequeue(new) => {
                for packet in waiting {
                    new.enqueue(carrier, cx, packet, false);
                }
                new.observe(carrier, now);
                new.update_due(carrier);
            }
        }
    }
}
