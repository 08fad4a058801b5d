//! Spreads what an [`super::OrderRestorer`] releases at once.
//!
//! Packets that waited behind a gap leave in one instant when it is filled. Their receiver acknowledges all of
//! them at once, and the sender answers with a burst that overflows the link's queue again. So each flow leaves at
//! most at the pacer's rate, in order. If that is somewhat above the rate of the link, packets that come in order hardly
//! wait.

use std::collections::BTreeMap;

use crate::engine::Count;
use crate::time::{Duration, Instant};
use crate::units::{BitRate, Bytes, Carry};

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Pacer<T> {
    rate: BitRate,
    /// The longest time that a packet waits: a flow that is faster than the rate is not stored without end.
    wait_max: Duration,
    /// By the time at which they leave, and their order within it.
    waiting: BTreeMap<(Instant, u64), (u32, T)>,
    serial: u64,
    held: Count,
}

impl<T> Pacer<T> {
    /// Nothing waits.
    pub(super) fn new(rate: BitRate, wait_max: Duration) -> Self {
        Self { rate, wait_max, waiting: BTreeMap::new(), serial: 0, held: Count::default() }
    }

    /// Takes a packet of a flow that is to leave at `next_departure`, and sets when the one after it is to. Returns the
    /// packet if that is now.
    pub(super) fn push(
        &mut self,
        now: Instant,
        next_departure: &mut Instant,
        bytes: u32,
        item: T,
    ) -> Option<T> {
        let at = (*next_departure).clamp(now, now + self.wait_max);
        let (time, _) = self.rate.transmit_time(Bytes(bytes.into()), Carry::default());
        *next_departure = at + time;
        if at == now {
            return Some(item);
        }
        self.serial += 1;
        self.held.add(bytes);
        self.waiting.insert((at, self.serial), (bytes, item));
        None
    }

    /// The packet that leaves first, if that is before or at `now`.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(u32, T)> {
        if self.next_wake()? > now {
            return None;
        }
        self.pop_first()
    }

    /// The packet that leaves first, whenever that is.
    pub(super) fn pop_first(&mut self) -> Option<(u32, T)> {
        let (_, (bytes, item)) = self.waiting.pop_first()?;
        self.held.remove(bytes);
        Some((bytes, item))
    }

    /// When the first packet leaves.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|(&(at, _), _)| at)
    }

    /// What waits.
    pub(super) fn held(&self) -> Count {
        self.held
    }
}
