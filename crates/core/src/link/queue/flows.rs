//! What each flow has waiting in a shared queue.

use super::{Load, Occupancy};
use crate::packet::FlowId;

/// Occupancies by flow number. Flow numbers are indices into the run's flows, so a vector that
/// grows to the highest number seen is as fast as it gets and has no order to depend on.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    waiting: Vec<Occupancy>,
    /// Flows with at least one packet that waits.
    active: u64,
}

impl Flows {
    pub(super) fn enter(&mut self, load: Load) {
        let index = index(load.flow);
        if index >= self.waiting.len() {
            self.waiting.resize(index + 1, Occupancy::default());
        }
        let own = &mut self.waiting[index];
        self.active += u64::from(own.packets == 0);
        own.enter(load);
    }

    pub(super) fn leave(&mut self, load: Load) {
        let own = &mut self.waiting[index(load.flow)];
        own.leave(load);
        self.active -= u64::from(own.packets == 0);
    }

    pub(super) fn of(&self, flow: FlowId) -> Occupancy {
        self.waiting.get(index(flow)).copied().unwrap_or_default()
    }

    pub(super) fn active(&self) -> u64 {
        self.active
    }
}

fn index(flow: FlowId) -> usize {
    flow.0 as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_active_while_it_has_a_packet() {
        let load = |flow| Load { flow: FlowId(flow), bytes: 40, link_bytes: 53 };
        let mut flows = Flows::default();
        assert_eq!((flows.active(), flows.of(FlowId(9))), (0, Occupancy::default()));
        for flow in [2, 2, 0] {
            flows.enter(load(flow));
        }
        assert_eq!((flows.active(), flows.of(FlowId(2)).packets), (2, 2));
        assert_eq!(flows.of(FlowId(1)), Occupancy::default());
        flows.leave(load(2));
        assert_eq!((flows.active(), flows.of(FlowId(2)).link_bytes), (2, 53));
        flows.leave(load(2));
        assert_eq!((flows.active(), flows.of(FlowId(2)).bytes), (1, 0));
    }
}
