//! Limits of a queue, and the units in which it counts its backlog.

use super::{Backlog, Occupancy, PacketSize};
use crate::time::Duration;
use crate::trace::DropCause;

/// A unit of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets.
    Packets,
    /// IP bytes.
    Bytes,
    /// Bytes on the link, framing included.
    LinkBytes,
}

impl Unit {
    /// The backlog in this unit.
    #[must_use]
    pub fn count(self, waiting: &Occupancy) -> u64 {
        match self {
            Self::Packets => waiting.packets,
            Self::Bytes => waiting.bytes,
            Self::LinkBytes => waiting.link_bytes,
        }
    }

    /// A backlog in this unit.
    pub(in crate::link) fn of_backlog(self, waiting: Backlog) -> u64 {
        match self {
            Self::Packets => waiting.packets,
            Self::Bytes => waiting.bytes,
            Self::LinkBytes => waiting.link_bytes,
        }
    }

    /// The size of a packet in this unit.
    pub(in crate::link) fn of(self, size: PacketSize) -> u64 {
        match self {
            Self::Packets => 1,
            Self::Bytes => size.bytes.into(),
            Self::LinkBytes => size.link_bytes.into(),
        }
    }
}

/// The capacity of a queue. Packets being transmitted or in flight do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// This many IP bytes.
    Bytes(u64),
    /// This many bytes on the link, framing included.
    LinkBytes(u64),
    /// This many packets.
    Packets(u64),
    /// A packet that would wait longer than this until its first bit is sent is dropped.
    Time(Duration),
    /// No limit.
    Unlimited,
}

impl Limit {
    /// Whether a packet that would wait for `wait` fits.
    #[must_use]
    pub fn has_room(self, waiting: &Occupancy, size: PacketSize, wait: Duration) -> bool {
        match self {
            Self::Bytes(limit) => waiting.bytes + u64::from(size.bytes) <= limit,
            Self::LinkBytes(limit) => waiting.link_bytes + u64::from(size.link_bytes) <= limit,
            Self::Packets(limit) => waiting.packets < limit,
            Self::Time(limit) => wait <= limit,
            Self::Unlimited => true,
        }
    }

    /// [`Limit::has_room`] for an arriving packet; a packet that starts at once needs no room.
    pub(super) fn admit(
        self,
        waiting: &Occupancy,
        size: PacketSize,
        wait: Duration,
    ) -> Result<(), DropCause> {
        if wait == Duration::ZERO || self.has_room(waiting, size, wait) {
            return Ok(());
        }
        Err(DropCause::QueueFull)
    }

    /// Whether the backlog is within the limit. Always true for a limit in time.
    pub(super) fn holds(self, waiting: &Occupancy) -> bool {
        self.counted().is_none_or(|(unit, limit)| unit.count(waiting) <= limit)
    }

    /// # Panics
    /// If the limit is a time, which needs a queue in which the wait of a packet is known at its arrival.
    pub(super) fn assert_held(self) {
        assert!(!matches!(self, Self::Time(_)), "a limit in packets or bytes, or none");
    }

    /// The unit and the amount of the limit; `None` if it is a time or unlimited.
    #[must_use]
    pub fn counted(self) -> Option<(Unit, u64)> {
        match self {
            Self::Bytes(limit) => Some((Unit::Bytes, limit)),
            Self::LinkBytes(limit) => Some((Unit::LinkBytes, limit)),
            Self::Packets(limit) => Some((Unit::Packets, limit)),
            Self::Time(_) | Self::Unlimited => None,
        }
    }
}

/// A ratio in millionths, so that thresholds are compared without rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    millionths: u64,
}

impl Ratio {
    /// `value` to the nearest millionth; `None` unless it lies in 0..=1,000,000.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked: at limit 10^12"
    )]
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1e6).contains(&value).then(|| Self { millionths: libm::round(value * 1e6) as u64 })
    }

    /// The largest amount that does not exceed this ratio of `whole`, at most 2^64 - 1.
    pub(super) fn floor_of(self, whole: u64) -> u64 {
        let amount = u128::from(self.millionths) * u128::from(whole) / 1_000_000;
        u64::try_from(amount).unwrap_or(u64::MAX)
    }

    /// Whether `part` exceeds this ratio of `whole`. For `part` below 2^108 and any `whole` the products
    /// fit 128 bits.
    pub(super) fn is_exceeded(self, part: u128, whole: u64) -> bool {
        part * 1_000_000 > u128::from(self.millionths) * u128::from(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_not_exceeded_by_equality() {
        let share = Ratio::new(0.8).expect("in range");
        assert!(!share.is_exceeded(1_600, 2_000));
        assert!(share.is_exceeded(1_601, 2_000));
        assert_eq!((share.floor_of(2_000), share.floor_of(2_001)), (1_600, 1_600));
        let limit = Ratio::new(1e6).expect("in range");
        assert!(!limit.is_exceeded(u128::from(u64::MAX) * 1_000_000, u64::MAX));
    }

    #[test]
    fn a_ratio_is_a_number_in_range() {
        for bad in [-0.1, 1e6 + 1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Ratio::new(bad), None, "{bad}");
        }
    }
}
