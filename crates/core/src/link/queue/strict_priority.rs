//! Strict priority: a FIFO for each class, each with a limit of its own, and the first class that
//! has a packet is served. A class can wait for ever behind those before it, by design.

use std::collections::VecDeque;

use super::{Limit, Occupancy, Queued};
use crate::packet::Packet;
use crate::time::Duration;
use crate::trace::DropCause;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct StrictPriority {
    limit: Limit,
    classes: Vec<Class>,
    waiting: Occupancy,
}

#[derive(Clone, Debug, Default)]
struct Class {
    packets: VecDeque<Queued>,
    waiting: Occupancy,
}

impl StrictPriority {
    /// Empty queues of so many classes, with this limit for each; class 0 is served first.
    ///
    /// # Panics
    /// If the limit is one in time: how long a packet will wait is not known when it arrives.
    #[must_use]
    pub fn new(limit: Limit, classes: usize) -> Self {
        limit.assert_held();
        Self { limit, classes: vec![Class::default(); classes], waiting: Occupancy::default() }
    }

    /// See [`super::Head::push`]. A packet of a class beyond the last one waits in the last one.
    ///
    /// # Panics
    /// If there are no classes.
    pub fn push(&mut self, queued: Queued, lost: &mut impl FnMut(DropCause, &Packet)) {
        let load = queued.load();
        let last = self.classes.len() - 1;
        let class = &mut self.classes[last.min(queued.packet.class.0.into())];
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

    /// The packets that wait, class by class.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.classes.iter().flat_map(|class| &class.packets).map(|queued| &*queued.packet)
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
    use crate::packet::Class as PacketClass;

    /// A packet of 100 bytes, numbered within the test.
    fn of_class(class: u8, serial: u64) -> Queued {
        let mut queued = queued(0, serial, 100, 0);
        queued.packet.class = PacketClass(class);
        queued
    }

    fn serials(queue: &mut StrictPriority) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop()).filter_map(|queued| queued.packet.datagram()).collect()
    }

    #[test]
    fn the_first_class_is_served_first_and_each_in_order() {
        let mut queue = StrictPriority::new(Limit::Unlimited, 3);
        let mut losses = Losses::default();
        for (class, serial) in [(2, 0), (1, 1), (0, 2), (0, 3), (2, 4), (1, 5)] {
            queue.push(of_class(class, serial), &mut losses.note());
        }
        assert_eq!(queue.pop().and_then(|queued| queued.packet.datagram()), Some(2));
        queue.push(of_class(0, 6), &mut losses.note());
        assert_eq!(queue.packets().count(), 6);
        assert_eq!(serials(&mut queue), [3, 6, 1, 5, 0, 4]);
        assert_eq!(losses.0, []);
    }

    #[test]
    fn the_limit_is_one_for_each_class() {
        let mut queue = StrictPriority::new(Limit::Packets(2), 2);
        let mut losses = Losses::default();
        for (class, serial) in [(1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (0, 5)] {
            queue.push(of_class(class, serial), &mut losses.note());
        }
        assert_eq!(losses.0, [(DropCause::QueueFull, 0, 2), (DropCause::QueueFull, 0, 5)]);
        assert_eq!((queue.occupancy().packets, queue.occupancy().bytes_max), (4, 400));
        assert_eq!(serials(&mut queue), [3, 4, 0, 1]);
        assert_eq!(queue.occupancy().packets, 0);
    }

    #[test]
    fn a_class_beyond_the_last_waits_in_the_last() {
        let mut queue = StrictPriority::new(Limit::Unlimited, 2);
        for (class, serial) in [(200, 0), (1, 1), (0, 2)] {
            queue.push(of_class(class, serial), &mut Losses::default().note());
        }
        assert_eq!(serials(&mut queue), [2, 0, 1]);
    }
}
