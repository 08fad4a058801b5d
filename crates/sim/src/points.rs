//! Capture points: the interfaces of a capture file, in virtual time or in real time.
//!
//! Each place (a direction, a gateway function, a terminal path or an access line) has four:
//! 1. `queue`: the packet arrived; if it was dropped at enqueue, a comment gives the cause;
//! 2. `transmitter`: its first bit is sent (in a processor, `cpu`: its processing starts);
//! 3. `delivered`: it arrived at the far end (in a processor, `forwarded`: it left);
//! 4. `lost`: it was dropped after enqueue; a comment gives the cause.

use bentpipe_core::trace::{DropCause, EventKind, NodeId};
use bentpipe_core::wire::pcapng;

use crate::build::hop_prefix;
use crate::plan::Plan;

const APPLICATION: &str = concat!("bentpipe ", env!("CARGO_PKG_VERSION"));
const OF_DIRECTIONS: [&str; INTERFACES as usize] = ["queue", "transmitter", "delivered", "lost"];
const OF_PROCESSORS: [&str; INTERFACES as usize] = ["queue", "cpu", "forwarded", "lost"];

/// The interfaces of a place, by number.
const QUEUE: u32 = 0;
const TRANSMITTER: u32 = 1;
const DELIVERED: u32 = 2;
const LOST: u32 = 3;
const INTERFACES: u32 = 4;

/// The comments of dropped packets, with [`DropCause::name`].
const COMMENTS: [(DropCause, &str); DropCause::ALL.len()] = [
    (DropCause::QueueFull, "dropped: queue_full"),
    (DropCause::BitError, "dropped: bit_error"),
    (DropCause::ProcessorOverload, "dropped: processor_overload"),
    (DropCause::Red, "dropped: red"),
    (DropCause::Codel, "dropped: codel"),
    (DropCause::EarlyPacketDiscard, "dropped: early_packet_discard"),
    (DropCause::SelectiveDrop, "dropped: selective_drop"),
    (DropCause::NoRoute, "dropped: no_route"),
];

/// Appends the section header and the interfaces of all places. `plans` are the hops, the first one
/// at the world; a simulation has one. `snap_length` is the maximum number of captured bytes of a
/// packet, or 0 for no limit.
pub fn begin(out: &mut Vec<u8>, plans: &[Plan], snap_length: u32) {
    pcapng::section(out, APPLICATION);
    for (plan, number) in plans.iter().zip(1..) {
        let prefix = hop_prefix(number);
        let first = plan.directions.len();
        let count: usize = plan.gateways.iter().map(|gateway| gateway.functions.len()).sum();
        let functions = first..first + count;
        for (place, name) in plan.place_names().iter().enumerate() {
            let points = if functions.contains(&place) { OF_PROCESSORS } else { OF_DIRECTIONS };
            for point in points {
                let name = &format!("{prefix}{name}.{point}");
                pcapng::interface(out, &pcapng::Interface { name, snap_length });
            }
        }
    }
}

/// The number of the interface of an event; places have the numbers of their engines. `None` for a
/// mark, which is visible in the packet's header afterwards. `has_waited` is whether the packet was
/// enqueued there and has not left. It distinguishes drops at enqueue from later ones, for causes
/// that can be either.
#[must_use]
pub fn interface(NodeId(place): NodeId, kind: EventKind, has_waited: bool) -> Option<u32> {
    let point = match kind {
        EventKind::Marked => return None,
        EventKind::Enqueued => QUEUE,
        EventKind::Transmitted => TRANSMITTER,
        EventKind::Delivered => DELIVERED,
        EventKind::Dropped(DropCause::BitError | DropCause::Codel | DropCause::NoRoute) => LOST,
        EventKind::Dropped(
            DropCause::QueueFull
            | DropCause::ProcessorOverload
            | DropCause::Red
            | DropCause::EarlyPacketDiscard
            | DropCause::SelectiveDrop,
        ) => {
            if has_waited {
                LOST
            } else {
                QUEUE
            }
        }
    };
    Some(INTERFACES * place + point)
}

/// The comment of a packet: the cause of its drop.
#[must_use]
pub fn comment(kind: EventKind) -> Option<&'static str> {
    match kind {
        EventKind::Dropped(cause) => Some(COMMENTS[cause as usize].1),
        EventKind::Enqueued | EventKind::Transmitted | EventKind::Delivered | EventKind::Marked => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_name_their_causes() {
        for (number, (cause, comment)) in COMMENTS.into_iter().enumerate() {
            assert_eq!(cause as usize, number);
            assert_eq!(comment, format!("dropped: {}", cause.name()));
        }
    }

    /// Given a full queue, expect a drop at enqueue at `queue` and a later one at `lost`; given a
    /// bit error, expect `lost`.
    #[test]
    fn drops_are_shown_where_they_happen() {
        let second = |kind, has_waited| interface(NodeId(1), kind, has_waited);
        let full = EventKind::Dropped(DropCause::QueueFull);
        assert_eq!((second(full, false), second(full, true)), (Some(4), Some(7)));
        assert_eq!(second(EventKind::Dropped(DropCause::BitError), false), Some(7));
        let path = [EventKind::Enqueued, EventKind::Transmitted, EventKind::Delivered];
        assert_eq!(path.map(|kind| second(kind, true)), [Some(4), Some(5), Some(6)]);
        assert_eq!(second(EventKind::Marked, true), None);
    }
}
