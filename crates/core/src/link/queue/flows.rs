//! What each flow has waiting in a shared queue.

use super::{Load, Occupancy};
use crate::packet::FlowId;

/// Occupancies by flow number. Flow numbers are indices into the run's flows, so a vector that
/// grows to the highest number seen is as fast as it gets and has no order to depend on.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    waiting: Vec<Occupancy>,
}

impl Flows {
    pub(super) fn enter(&mut self, load: Load) {
        let index = index(load.flow);
        if index >= self.waiting.len() {
            self.waiting.resize(index + 1, Occupancy::default());
        }
        self.waiting[index].enter(load);
    }

    pub(super) fn leave(&mut self, load: Load) {
        self.waiting[index(load.flow)].leave(load);
    }

    pub(super) fn of(&self, flow: FlowId) -> Occupancy {
        self.waiting.get(index(flow)).copied().unwrap_or_default()
    }
}

fn index(flow: FlowId) -> usize {
    flow.0 as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_is_counted_by_itself() {
        let load = |flow| Load { flow: FlowId(flow), bytes: 40, link_bytes: 53 };
        let mut flows = Flows::default();
        assert_eq!(flows.of(FlowId(9)), Occupancy::default());
        for flow in [2, 2, 0] {
            flows.enter(load(flow));
        }
        assert_eq!((flows.of(FlowId(2)).packets, flows.of(FlowId(0)).packets), (2, 1));
        assert_eq!(flows.of(FlowId(1)), Occupancy::default());
        flows.leave(load(2));
        assert_eq!((flows.of(FlowId(2)).packets, flows.of(FlowId(2)).link_bytes), (1, 53));
    }
}
