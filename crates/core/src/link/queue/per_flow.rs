//! Drop-tail with a shared limit and a limit for each flow: one FIFO in which no flow may exceed its own
//! limit, so that one flow cannot fill a shared buffer.

use super::flow_table::FlowTable;
use super::{Limit, Occupancy, PacketSize};
use crate::time::Duration;
use crate::trace::DropCause;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct PerFlow {
    limit: Limit,
    per_flow_limit: Limit,
    waiting: Occupancy,
    flows: FlowTable<Occupancy>,
}

impl PerFlow {
    /// An empty queue with these limits. A time as limit of a flow applies to the shared wait.
    #[must_use]
    pub fn new(limit: Limit, per_flow_limit: Limit) -> Self {
        Self { limit, per_flow_limit, waiting: Occupancy::default(), flows: FlowTable::default() }
    }

    /// See `DropAtEnqueue::admit`.
    pub fn admit(&mut self, size: PacketSize, wait: Duration) -> Result<(), DropCause> {
        self.limit.admit(&self.waiting, size, wait)?;
        self.per_flow_limit.admit(&self.flows.of(size.flow), size, wait)
    }

    /// Counts a packet that begins to wait.
    pub fn on_enqueue(&mut self, size: PacketSize) {
        self.waiting.on_enqueue(size);
        self.flows.of_mut(size.flow).on_enqueue(size);
    }

    /// Counts a packet whose transmission starts.
    pub fn on_dequeue(&mut self, size: PacketSize) {
        self.waiting.on_dequeue(size);
        self.flows.of_mut(size.flow).on_dequeue(size);
    }

    /// The limit of the whole queue.
    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    /// The packets that wait.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::FlowId;

    const SOME: Duration = Duration::from_millis(1);
    const FULL: Result<(), DropCause> = Err(DropCause::QueueFull);

    fn size(flow: u32) -> PacketSize {
        PacketSize { flow: FlowId(flow), bytes: 1_000, link_bytes: 1_008 }
    }

    #[test]
    fn a_flow_at_its_limit_leaves_room_for_the_others() {
        let mut queue = PerFlow::new(Limit::Packets(3), Limit::Bytes(2_000));
        queue.on_enqueue(size(7));
        assert_eq!(queue.admit(size(7), SOME), Ok(()));
        queue.on_enqueue(size(7));
        assert_eq!(queue.admit(size(7), SOME), FULL, "2,000 of its 2,000 bytes wait");
        assert_eq!(queue.admit(size(0), SOME), Ok(()));
        queue.on_enqueue(size(0));
        assert_eq!(queue.admit(size(1), SOME), FULL, "three of three packets wait");
        queue.on_dequeue(size(7));
        assert_eq!(queue.admit(size(7), SOME), Ok(()));
        assert_eq!((queue.occupancy().packets, queue.occupancy().bytes), (2, 2_000));
    }

    #[test]
    fn a_packet_that_starts_at_once_needs_no_room() {
        let mut queue = PerFlow::new(Limit::Packets(0), Limit::Packets(0));
        assert_eq!(queue.admit(size(0), Duration::ZERO), Ok(()));
        assert_eq!(queue.admit(size(0), SOME), FULL);
    }
}
