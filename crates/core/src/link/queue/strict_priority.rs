//! Strict priority: a FIFO with its own limit for each class; the first class that is not empty is
//! served. A class can starve behind those before it, by design.

use std::collections::VecDeque;

use super::{Limit, Occupancy, PacketSize, QueuedPacket};
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
    packets: VecDeque<QueuedPacket>,
    waiting: Occupancy,
}

impl StrictPriority {
    /// Empty queues for `classes` classes, each with this limit; class 0 is served first.
    ///
    /// # Panics
    /// If the limit is a time: the sojourn time of a packet is not known when it arrives.
    #[must_use]
    pub fn new(limit: Limit, classes: usize) -> Self {
        limit.assert_held();
        Self { limit, classes: vec![Class::default(); classes], waiting: Occupancy::default() }
    }

    /// See [`super::DropAtDequeue::enqueue`]. Higher classes than the last share its queue.
    ///
    /// # Panics
    /// If there are no classes.
    pub fn enqueue(&mut self, queued: QueuedPacket, on_drop: &mut impl FnMut(DropCause, &Packet)) {
        let size = queued.size();
        let last = self.classes.len() - 1;
        let class = &mut self.classes[last.min(queued.packet.class.0.into())];
        if !self.limit.has_room(&class.waiting, size, Duration::ZERO) {
            on_drop(DropCause::QueueFull, &queued.packet);
            return;
        }
        class.waiting.on_enqueue(size);
        class.packets.push_back(queued);
        self.waiting.on_enqueue(size);
    }

    /// See [`super::DropAtDequeue::dequeue`]. It drops nothing.
    pub fn dequeue(&mut self) -> Option<QueuedPacket> {
        let class = self.classes.iter_mut().find(|class| !class.packets.is_empty())?;
        let first = class.packets.pop_front()?;
        class.waiting.on_dequeue(first.size());
        self.waiting.on_dequeue(first.size());
        Some(first)
    }

    /// The packets that wait, class by class.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.classes.iter().flat_map(|class| &class.packets).map(|queued| &*queued.packet)
    }

    pub(super) fn take_packets(&mut self) -> Vec<QueuedPacket> {
        self.classes.iter_mut().flat_map(|class| std::mem::take(&mut class.packets)).collect()
    }

    /// Whether a packet of this size would not fit in the queue of some class.
    pub(super) fn is_full(&self, size: PacketSize) -> bool {
        let is_full = |class: &Class| !self.limit.has_room(&class.waiting, size, Duration::ZERO);
        self.classes.iter().any(is_full)
    }

    /// The packets that wait, in all classes together.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Drops, queued};
    use super::*;
    use crate::packet::Class as PacketClass;

    /// A packet of 100 bytes with this serial number.
    fn of_class(class: u8, serial: u64) -> QueuedPacket {
        let mut queued = queued(0, serial, 100, 0);
        queued.packet.class = PacketClass(class);
        queued
    }

    fn serials(queue: &mut StrictPriority) -> Vec<u64> {
        std::iter::from_fn(|| queue.dequeue())
            .filter_map(|queued| queued.packet.datagram())
            .collect()
    }

    #[test]
    fn classes_are_served_by_priority_and_each_in_order() {
        let mut queue = StrictPriority::new(Limit::Unlimited, 3);
        let mut drops = Drops::default();
        for (class, serial) in [(2, 0), (1, 1), (0, 2), (0, 3), (2, 4), (1, 5)] {
            queue.enqueue(of_class(class, serial), &mut drops.record());
        }
        assert_eq!(queue.dequeue().and_then(|queued| queued.packet.datagram()), Some(2));
        queue.enqueue(of_class(0, 6), &mut drops.record());
        assert_eq!(queue.packets().count(), 6);
        assert_eq!(serials(&mut queue), [3, 6, 1, 5, 0, 4]);
        assert_eq!(drops.0, []);
    }

    #[test]
    fn the_limit_applies_to_each_class() {
        let mut queue = StrictPriority::new(Limit::Packets(2), 2);
        let mut drops = Drops::default();
        for (class, serial) in [(1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (0, 5)] {
            queue.enqueue(of_class(class, serial), &mut drops.record());
        }
        assert_eq!(drops.0, [(DropCause::QueueFull, 0, 2), (DropCause::QueueFull, 0, 5)]);
        assert_eq!((queue.occupancy().packets, queue.occupancy().bytes_max), (4, 400));
        assert_eq!(serials(&mut queue), [3, 4, 0, 1]);
        assert_eq!(queue.occupancy().packets, 0);
    }

    #[test]
    fn a_class_above_the_last_uses_the_last_queue() {
        let mut queue = StrictPriority::new(Limit::Unlimited, 2);
        for (class, serial) in [(200, 0), (1, 1), (0, 2)] {
            queue.enqueue(of_class(class, serial), &mut Drops::default().record());
        }
        assert_eq!(serials(&mut queue), [2, 0, 1]);
    }
}
