//! Statistics of a direction over the whole run: those of its queue, and of its use by flows.

use std::sync::Arc;

use super::usage::Usage;
use super::{Direction, FlowUse, Queue, QueueStatistics};
use crate::link::transit::FrameSize;
use crate::link::{Backlog, Limit, PacketSize, Transmission};
use crate::packet::{FlowId, LimitedBy};
use crate::time::Instant;
use crate::units::Bits;

impl Direction {
    /// The statistics of the queue up to `now`.
    #[must_use]
    pub fn queue_statistics(&self, now: Instant) -> QueueStatistics {
        self.waiting.statistics(now, self.transit.end())
    }

    /// Counts the use of the transmitter from the view of flows with these starts, whose data passes this
    /// direction. `account_of` has, for each flow of the run, the index of its start. Neither the rate nor
    /// the queue may be changed afterwards.
    pub fn count_use(&mut self, starts: &[Instant], account_of: Arc<[u32]>) {
        let usage = Usage::new(starts.iter().copied(), account_of, self.transmitter.rate());
        self.usage = Some(Box::new(usage));
        self.checks_starts = true;
    }

    /// The use of the transmitter from the start of a flow to its last data packet. `None` without one,
    /// or without [`Self::count_use`].
    #[must_use]
    pub fn use_of_finished(&self, flow: FlowId) -> Option<FlowUse> {
        self.usage.as_ref()?.of_finished(flow)
    }

    /// The use of the transmitter from the start of a flow to `now`. The flow's sender is `limited_by`.
    pub fn use_of_unfinished(
        &mut self,
        flow: FlowId,
        now: Instant,
        limited_by: LimitedBy,
    ) -> Option<FlowUse> {
        self.update_started(now);
        let (transit, free_at) = (&self.transit, self.transmitter.free_at());
        let first = self.started.saturating_sub(1).max(transit.begin());
        let future = (first..transit.end()).filter_map(|position| {
            let next = position + 1;
            let departure = if next < transit.end() { transit.start(next) } else { free_at };
            let start = transit.start(position);
            let packet = transit.at(position).packet.as_deref()?;
            let bits = transit.size_at(position).frame_bits;
            (departure > now).then_some((packet, Transmission { start, departure }, bits))
        });
        self.usage.as_ref()?.of_unfinished(flow, (free_at, now), limited_by, future)
    }

    /// The largest packet that has arrived.
    pub(super) fn largest_packet(&self) -> PacketSize {
        let FrameSize { bytes, link_bytes, .. } = self.largest;
        PacketSize { flow: FlowId::default(), bytes, link_bytes }
    }

    /// Observes a discipline that drops at dequeue.
    pub(super) fn observe_queue(&mut self, now: Instant) {
        let size = self.largest_packet();
        if let Queue::DropAtDequeue(discipline) = &self.queue {
            self.waiting.observe(now, !discipline.is_empty(), discipline.is_full(size));
        }
    }

    /// Whether a queue with this backlog may be full after `packets` more. A limit in time is checked for
    /// each packet.
    pub(super) fn may_fill(&self, limit: Limit, waiting: Backlog, packets: u64) -> bool {
        let size = self.largest_packet();
        limit.counted().is_some_and(|(unit, limit)| {
            let after = unit.of(size).saturating_mul(packets.saturating_add(1));
            unit.of_backlog(waiting).saturating_add(after) > limit
        })
    }

    /// Whether the largest packet may find no room. A quick check: usually there is room.
    pub(super) fn may_be_full(&self) -> bool {
        let Queue::DropAtEnqueue(discipline) = &self.queue else { return false };
        let occupancy = discipline.occupancy();
        match discipline.limit() {
            Limit::Bytes(limit) => occupancy.bytes + u64::from(self.largest.bytes) > limit,
            Limit::LinkBytes(limit) => {
                occupancy.link_bytes + u64::from(self.largest.link_bytes) > limit
            }
            Limit::Packets(limit) => occupancy.packets >= limit,
            Limit::Time(_) => true,
            Limit::Unlimited => false,
        }
    }

    /// Whether a FIFO is full as soon as one large packet is being sent.
    pub(super) fn is_filled_by_one(&self) -> bool {
        let Queue::DropAtEnqueue(discipline) = &self.queue else { return false };
        if let Limit::Time(limit) = discipline.limit() {
            let frame = Bits(self.largest.frame_bits.into());
            return self.transmitter.longest_time(frame).is_none_or(|longest| longest > limit);
        }
        let counted = discipline.limit().counted();
        counted.is_some_and(|(unit, limit)| unit.of(self.largest_packet()) > limit)
    }

    /// Until when the largest packet would be dropped by a FIFO if it arrived; `now` if it fits. Packets
    /// that have started by now are counted as such.
    pub(super) fn full_until(&self, now: Instant) -> Instant {
        let Queue::DropAtEnqueue(discipline) = &self.queue else { return now };
        let limit = discipline.limit();
        let free_at = self.transmitter.free_at();
        if let Limit::Time(limit) = limit {
            return now + self.transmitter.wait(now).saturating_sub(limit);
        }
        let Some((unit, limit)) = limit.counted() else { return now };
        let Some(room) = limit.checked_sub(unit.of(self.largest_packet())) else {
            // Only a packet that finds the transmitter idle is accepted.
            return free_at.max(now);
        };
        let waiting = unit.count(discipline.occupancy());
        let (mut full, mut free) = (self.started, self.transit.end());
        if waiting <= room || full == free {
            return now;
        }
        // It fits once the packets before some position have started: usually the next one.
        let FrameSize { bytes, link_bytes, .. } = self.transit.size_at(full);
        let next = PacketSize { flow: FlowId::default(), bytes, link_bytes };
        if waiting - unit.of(next) <= room {
            free = full + 1;
        }
        let fits = |position| unit.of_backlog(self.transit.backlog_from(position)) <= room;
        while full + 1 < free {
            let middle = full.midpoint(free);
            if fits(middle) {
                free = middle;
            } else {
                full = middle;
            }
        }
        self.transit.start(free - 1).max(now)
    }
}
