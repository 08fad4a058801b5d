//! Strict priority: a FIFO for each class, each with a limit of its own, and the first class that
//! has a packet is served. A class can wait for ever behind those before it, by design.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Limit, Occupancy, Queued};
use crate::packet::Packet;
use crate::time::Duration;
use crate::trace::DropCause;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct StrictPriority {
    limit: Limit,
    class_of_flow: Arc<[u8]>,
    classes: Vec<Class>,
    waiting: Occupancy,
}

#[derive(Clone, Debug, Default)]
struct Class {
    packets: VecDeque<Queued>,
    waiting: Occupancy,
}

impl StrictPriority {
    /// Empty queues of so many classes, with this limit for each. `class_of_flow` is indexed by
    /// flow number; class 0 is served first. Queues may share it, each with classes for the flows
    /// that pass it.
    ///
    /// # Panics
    /// If the limit is one in time: how long a packet will wait is not known when it arrives.
    #[must_use]
    pub fn new(limit: Limit, classes: usize, class_of_flow: impl Into<Arc<[u8]>>) -> Self {
        limit.assert_held();
        let class_of_flow = class_of_flow.into();
        let classes = vec![Class::default(); classes];
        Self { limit, class_of_flow, classes, waiting: Occupancy::default() }
    }

    /// See [`super::Head::push`].
    ///
    /// # Panics
    /// If the flow of the packet has no class, or one that does not exist.
    pub fn push(&mut self, queued: Queued, lost: &mut impl FnMut(DropCause, &Packet)) {
        let load = queued.load();
        let class = self.class_of_flow.get(load.flow.0 as usize).expect("every flow has a class");
        let class = self.classes.get_mut(usize::from(*class)).expect("the class exists");
        if !self.limit.has_room(&class.waiting, load, Duration::ZERO) {
            lost(DropCause::QueueFull, &queued.packet);
            return;
        }
        class.waiting.enter(load);
        class.packets.push_back(queued);
        self.waiting.enter(load);
    }

    /// See [`super::Head::pop`]. Nothing is lost here.
    pub fn pop(&mut self) -> Option<Queued> {
        let class = self.classes.iter_mut().find(|class| !class.packets.is_empty())?;
        let first = class.packets.pop_front()?;
        class.waiting.leave(first.load());
        self.waiting.leave(first.load());
        Some(first)
    }

    /// What waits, in all classes together.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Losses, queued};
    use super::*;

    fn flows(queue: &mut StrictPriority) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).map(|queued| queued.packet.flow.0).collect()
    }

    #[test]
    fn the_first_class_is_served_first_and_each_in_order() {
        let mut queue = StrictPriority::new(Limit::Unlimited, 3, vec![2, 0, 1, 0]);
        let mut losses = Losses::default();
        for (flow, serial) in [(0, 0), (2, 1), (3, 2), (1, 3), (0, 4), (2, 5)] {
            queue.push(queued(flow, serial, 100, 0), &mut losses.note());
        }
        assert_eq!(queue.pop().map(|queued| queued.packet.flow.0), Some(3));
        queue.push(queued(1, 6, 100, 0), &mut losses.note());
        assert_eq!(flows(&mut queue), [1, 1, 2, 2, 0, 0]);
        assert_eq!(losses.0, []);
    }

    #[test]
    fn the_limit_is_one_for_each_class() {
        let mut queue = StrictPriority::new(Limit::Packets(2), 2, vec![0, 1]);
        let mut losses = Losses::default();
        for (flow, serial) in [(1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (0, 5)] {
            queue.push(queued(flow, serial, 100, 0), &mut losses.note());
        }
        assert_eq!(losses.0, [(DropCause::QueueFull, 1, 2), (DropCause::QueueFull, 0, 5)]);
        assert_eq!((queue.occupancy().packets, queue.occupancy().bytes_max), (4, 400));
        assert_eq!(flows(&mut queue), [0, 0, 1, 1]);
        assert_eq!(queue.occupancy().packets, 0);
    }

    /// Flow 0 goes by another queue, which has more classes.
    #[test]
    fn queues_may_share_the_classes_of_flows() {
        let classes: Arc<[u8]> = vec![4, 1].into();
        let mut queues =
            [5, 2].map(|count| StrictPriority::new(Limit::Unlimited, count, Arc::clone(&classes)));
        queues[0].push(queued(0, 0, 100, 0), &mut Losses::default().note());
        queues[1].push(queued(1, 0, 100, 0), &mut Losses::default().note());
        assert_eq!(queues.each_mut().map(flows), [[0], [1]]);
    }

    #[test]
    #[should_panic(expected = "the class exists")]
    fn a_class_that_does_not_exist_is_a_mistake() {
        let mut queue = StrictPriority::new(Limit::Unlimited, 2, vec![0, 2]);
        queue.push(queued(1, 0, 100, 0), &mut Losses::default().note());
    }
}
