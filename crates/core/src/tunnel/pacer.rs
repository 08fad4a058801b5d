//! Spreads what an [`super::OrderRestorer`] releases at once.
//!
//! Packets that waited behind a gap leave in one instant when it is filled. Their receiver acknowledges all of
//! them at once, and the sender answers with a burst that overflows the link's queue again. So a flow leaves at most
//! at the pacer's rate. If that is somewhat above the rate of the link, packets that come in order never wait.

use std::collections::BTreeMap;

use crate::engine::Count;
use crate::time::Instant;
use crate::units::{BitRate, Bytes, Carry};

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Pacer<T> {
    rate: BitRate,
    /// By the time at which they leave, and their order within it.
    waiting: BTreeMap<(Instant, u64), (u32, T)>,
    serial: u64,
    held: Count,
}

impl<T> Pacer<T> {
    /// Nothing waits.
    pub(super) fn new(rate: BitRate) -> Self {
        Self { rate, waiting: BTreeMap::new(), serial: 0, held: Count::default() }
    }

    /// Takes a packet of a flow that may leave from `free_at` on, and sets when the next one may. Returns the packet
    /// if that is now.
    pub(super) fn push(
        &mut self,
        now: Instant,
        free_at: &mut Instant,
        bytes: u32,
        item: T,
    ) -> Option<T> {
        let at = now.max(*free_at);
        let (time, _) = self.rate.transmit_time(Bytes(bytes.into()), Carry::default());
        *free_at = at + time;
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
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        let (bytes, item) = first.remove();
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
