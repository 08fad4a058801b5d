//! Selective drop (Goyal, Jain, Kalyanaraman, Fahmy and Kim, "UBR+: Improving Performance of TCP
//! over ATM-UBR Service", ICC 1997; ATM Forum 96-1269): if the backlog is above a threshold, a packet is
//! dropped whole if its flow has more than its fair share of the backlog.
//!
//! With a backlog of `x`, of which `y` belongs to the packet's flow, and `n` active flows (flows with a
//! backlog), a packet is dropped if `x > R limit` and `y n / x > Z`. `y n / x` is one for a flow with
//! exactly the mean share. The packet itself counts for none of them, so that only the hard limit drops it if its flow has
//! no backlog. Like early packet discard, this is modelled by packets and not by cells.

use super::flow_table::FlowTable;
use super::{Backlog, Headroom, Limit, Occupancy, PacketSize, Ratio, Unit, WaitingPackets};
use crate::packet::FlowId;
use crate::trace::DropCause;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct SelectiveDrop {
    unit: Unit,
    /// The capacity.
    limit: u64,
    /// The largest backlog at which shares are not considered: R times the limit.
    threshold: u64,
    /// Z: the multiple of the mean share that a flow may have.
    load_ratio: Ratio,
    waiting: Occupancy,
    /// The shares of the first `shared` packets that wait; the rest is added when shares are needed, above the threshold.
    /// While none are, the link need not tell when a packet leaves.
    shares: Shares,
    shared: u64,
}

/// The backlog of each flow, in the unit of the limit.
#[derive(Clone, Debug, Default)]
struct Shares {
    queued: FlowTable<u64>,
    /// The number of active flows.
    active: u64,
}

impl Shares {
    fn on_enqueue(&mut self, flow: FlowId, amount: u64) {
        let own = self.queued.of_mut(flow);
        if *own == 0 && amount > 0 {
            self.active += 1;
        }
        *own += amount;
    }

    fn on_dequeue(&mut self, flow: FlowId, amount: u64) {
        let own = self.queued.of_mut(flow);
        *own -= amount;
        if *own == 0 && amount > 0 {
            self.active -= 1;
        }
    }
}

impl SelectiveDrop {
    /// An empty queue with this limit, threshold R (a fraction of the limit) and load ratio Z. The threshold and shares are
    /// counted in the unit of the limit.
    ///
    /// # Panics
    /// If the limit counts neither packets nor bytes: it has no fractions.
    #[must_use]
    pub fn new(limit: Limit, threshold: Ratio, load_ratio: Ratio) -> Self {
        let (unit, limit) = limit.counted().expect("a limit in packets or in bytes");
        let threshold = threshold.floor_of(limit);
        let (waiting, shares) = (Occupancy::default(), Shares::default());
        Self { unit, limit, threshold, load_ratio, waiting, shares, shared: 0 }
    }

    /// See `DropAtEnqueue::admit`; only for a packet that has to wait.
    pub(super) fn admit(
        &mut self,
        size: PacketSize,
        waiting: &impl WaitingPackets,
    ) -> Result<(), DropCause> {
        let all = self.unit.count(&self.waiting);
        if all > self.threshold && self.exceeds_fair_share(size.flow, all, waiting) {
            return Err(DropCause::SelectiveDrop);
        }
        if all + self.unit.of(size) > self.limit {
            return Err(DropCause::QueueFull);
        }
        Ok(())
    }

    /// Counts a packet that begins to wait.
    pub(super) fn on_enqueue(&mut self, size: PacketSize) {
        self.waiting.on_enqueue(size);
    }

    /// See `DropAtEnqueue::headroom`. With a packet that fits below the threshold, no rule applies.
    pub(super) fn headroom(&self) -> Headroom {
        let limit = self.threshold.min(self.limit);
        Headroom::of_bytes(self.waiting.bytes_max).within(self.unit, limit)
    }

    /// See `DropAtEnqueue::needs_dequeue_events`.
    pub(super) fn needs_dequeue_events(&self) -> bool {
        self.shared > 0
    }

    fn exceeds_fair_share(
        &mut self,
        flow: FlowId,
        all: u64,
        waiting: &impl WaitingPackets,
    ) -> bool {
        for size in waiting.after(self.shared) {
            self.shares.on_enqueue(size.flow, self.unit.of(size));
            self.shared += 1;
        }
        // A flow is one of 2^32: the product is at most 2^96.
        let scaled = u128::from(self.shares.queued.of(flow)) * u128::from(self.shares.active);
        self.load_ratio.is_exceeded(scaled, all)
    }

    /// See `DropAtEnqueue::on_dequeue`. The packets that leave are the first ones, those in `shares` before the others.
    pub(super) fn on_dequeue(&mut self, started: impl Iterator<Item = PacketSize>) {
        for size in started.take(self.shared as usize) {
            self.shared -= 1;
            self.shares.on_dequeue(size.flow, self.unit.of(size));
        }
    }

    /// Sets the current backlog.
    pub(super) fn set_backlog(&mut self, waiting: Backlog) {
        self.waiting.set_backlog(waiting);
    }

    /// The hard limit.
    pub(super) fn limit(&self) -> Limit {
        match self.unit {
            Unit::Packets => Limit::Packets(self.limit),
            Unit::Bytes => Limit::Bytes(self.limit),
            Unit::LinkBytes => Limit::LinkBytes(self.limit),
        }
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
    use std::collections::VecDeque;

    const DROP: Result<(), DropCause> = Err(DropCause::SelectiveDrop);

    fn cells(flow: u32, cells: u32) -> PacketSize {
        PacketSize { flow: FlowId(flow), bytes: 48 * cells - 8, link_bytes: 53 * cells }
    }

    impl WaitingPackets for VecDeque<PacketSize> {
        fn after(&self, first: u64) -> impl Iterator<Item = PacketSize> {
            self.range(first as usize..).copied()
        }
    }

    /// A queue together with the packets that wait in it.
    struct Fixture {
        queue: SelectiveDrop,
        waiting: VecDeque<PacketSize>,
    }

    impl Fixture {
        fn on_enqueue(&mut self, size: PacketSize) {
            self.queue.on_enqueue(size);
            self.waiting.push_back(size);
        }

        fn on_dequeue(&mut self) {
            let first = self.waiting.pop_front();
            let waiting = super::super::testing::backlog(self.waiting.iter().copied());
            self.queue.on_dequeue(first.into_iter());
            self.queue.set_backlog(waiting);
        }

        fn admit(&mut self, size: PacketSize) -> Result<(), DropCause> {
            self.queue.admit(size, &self.waiting)
        }
    }

    /// A queue of 1,000 cells with R = 0.9 and this backlog of each flow in cells.
    fn holding(load_ratio: f64, waiting: &[(u32, u32)]) -> Fixture {
        let ratio = |value| Ratio::new(value).expect("in range");
        let queue = SelectiveDrop::new(Limit::LinkBytes(53 * 1_000), ratio(0.9), ratio(load_ratio));
        let mut fixture = Fixture { queue, waiting: VecDeque::new() };
        waiting.iter().for_each(|&(flow, count)| fixture.on_enqueue(cells(flow, count)));
        fixture
    }

    /// 900 cells are not more than 0.9 of 1,000. At 901 the flow with 601 has 601 * 2 / 901 = 1.33 > 0.8,
    /// and the other one 300 * 2 / 901 = 0.67.
    #[test]
    fn above_the_threshold_only_the_flow_with_most_cells_is_dropped() {
        let mut fixture = holding(0.8, &[(0, 600), (1, 300)]);
        assert_eq!(fixture.admit(cells(0, 1)), Ok(()));
        fixture.on_enqueue(cells(0, 1));
        assert_eq!(fixture.admit(cells(0, 1)), DROP);
        assert_eq!(fixture.admit(cells(1, 1)), Ok(()));
        assert_eq!(fixture.admit(cells(2, 1)), Ok(()), "it holds nothing");
    }

    /// Given 950 cells of three flows, Z = 0.6 is reached at y = 0.6 * 950 / 3 = 190 exactly.
    #[test]
    fn a_flow_at_its_load_ratio_is_accepted() {
        let mut at = holding(0.6, &[(0, 190), (1, 380), (2, 380)]);
        assert_eq!(at.admit(cells(0, 1)), Ok(()));
        let mut over = holding(0.6, &[(0, 191), (1, 380), (2, 379)]);
        assert_eq!(over.admit(cells(0, 1)), DROP);
    }

    /// Given 950 cells, 400 of them of flow 0: with two active flows 400 * 2 / 950 = 0.84 < 1, with three
    /// 400 * 3 / 950 = 1.26 > 1. A flow whose last packet left is not active.
    #[test]
    fn only_active_flows_share() {
        let mut fixture = holding(1.0, &[(2, 250), (0, 400), (1, 300)]);
        assert_eq!(fixture.admit(cells(0, 1)), DROP);
        fixture.on_dequeue();
        fixture.on_enqueue(cells(1, 250));
        assert_eq!(fixture.admit(cells(0, 1)), Ok(()));
    }

    /// Given three flows with 250, 400 and 300 cells, of which the last has 300 * 3 / 950 = 0.95 < 1, expect that a flow
    /// that left before shares were needed does not count: with it, it would have 1.26. Then, given 850 of 950 cells of
    /// that flow, expect it to have too much.
    #[test]
    fn shares_are_those_of_the_current_backlog() {
        let mut fixture = holding(1.0, &[(3, 640), (2, 250)]);
        fixture.on_dequeue();
        assert_eq!(fixture.admit(cells(0, 1)), Ok(()));
        fixture.on_enqueue(cells(0, 400));
        fixture.on_enqueue(cells(1, 300));
        assert_eq!((fixture.admit(cells(0, 1)), fixture.admit(cells(1, 1))), (DROP, Ok(())));
        fixture.on_dequeue();
        fixture.on_dequeue();
        fixture.on_enqueue(cells(1, 550));
        fixture.on_enqueue(cells(0, 100));
        assert_eq!((fixture.admit(cells(1, 1)), fixture.admit(cells(0, 1))), (DROP, Ok(())));
    }

    #[test]
    fn the_hard_limit_holds_for_every_flow() {
        let mut fixture = holding(0.8, &[(0, 990)]);
        assert_eq!(fixture.admit(cells(1, 11)), Err(DropCause::QueueFull));
        assert_eq!(fixture.admit(cells(1, 10)), Ok(()));
    }
}
