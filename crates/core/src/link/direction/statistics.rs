//! Statistics of a direction over the whole run: those of its queue, and of its use by flows.

use std::sync::Arc;

use super::usage::Usage;
use super::{Direction, FlowUse, QueueStatistics, Scheduling};
use crate::link::{ClassUse, Transmission};
use crate::packet::{FlowId, LimitedBy};
use crate::time::Instant;

impl Direction {
    /// The statistics of the queue up to `now`.
    #[must_use]
    pub fn queue_statistics(&self, now: Instant) -> QueueStatistics {
        self.carrier.waiting.statistics(now, self.carrier.transit.end())
    }

    /// What each class of the queue has sent and lost, if it shares the rate; otherwise none.
    #[must_use]
    pub fn class_uses(&self) -> Vec<ClassUse> {
        match &self.scheduling {
            Scheduling::AtDequeue(queue) => queue.discipline.class_uses(),
            Scheduling::AtEnqueue(_) => Vec::new(),
        }
    }

    /// Counts the use of the transmitter from the view of flows with these starts, whose data passes this
    /// direction. `account_of` has, for each flow of the run, the index of its start. Neither the rate nor
    /// the queue may be changed afterwards.
    pub fn count_use(&mut self, starts: &[Instant], account_of: Arc<[u32]>) {
        let Self { carrier, scheduling, .. } = self;
        let rate = carrier.transmitter.rate();
        carrier.usage = Some(Box::new(Usage::new(starts.iter().copied(), account_of, rate)));
        if let Scheduling::AtEnqueue(queue) = scheduling {
            queue.update_start_checks(carrier);
        }
    }

    /// The use of the transmitter from the start of a flow to its last data packet. `None` without one,
    /// or without [`Self::count_use`].
    #[must_use]
    pub fn use_of_finished(&self, flow: FlowId) -> Option<FlowUse> {
        self.carrier.usage.as_ref()?.of_finished(flow)
    }

    /// The use of the transmitter from the start of a flow to `now`. The flow's sender is `limited_by`.
    pub fn use_of_unfinished(
        &mut self,
        flow: FlowId,
        now: Instant,
        limited_by: LimitedBy,
    ) -> Option<FlowUse> {
        let Self { carrier, scheduling, .. } = self;
        let started = scheduling.started(carrier, now);
        let (transit, free_at) = (&carrier.transit, carrier.transmitter.free_at());
        let first = started.saturating_sub(1).max(transit.begin());
        let future = (first..transit.end()).filter_map(|position| {
            let next = position + 1;
            let departure = if next < transit.end() { transit.start(next) } else { free_at };
            let start = transit.start(position);
            let packet = transit.at(position).packet.as_deref()?;
            let bits = transit.size_at(position).frame_bits;
            (departure > now).then_some((packet, Transmission { start, departure }, bits))
        });
        carrier.usage.as_ref()?.of_unfinished(flow, (free_at, now), limited_by, future)
    }
}
