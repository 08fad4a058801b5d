//! Where packets are seen: the interfaces of a capture, of a run in virtual time or in real time.
//!
//! Each place, which is a direction, a gateway function, or the way to a terminal or a host, has four:
//! 1. `queue`: what came in; what was refused has a comment that says why;
//! 2. `transmitter`: its first bit is sent (of a processor, `cpu`: it is taken in hand);
//! 3. `delivered`: it arrived at the far end (of a processor, `forwarded`: it left);
//! 4. `lost`: it was let in and lost later, with a comment that says why.

use bentpipe_core::trace::{DropCause, EventKind, NodeId};
use bentpipe_core::wire::pcapng;

use crate::build::hop_prefix;
use crate::plan::Plan;

const APPLICATION: &str = concat!("bentpipe ", env!("CARGO_PKG_VERSION"));
const OF_DIRECTIONS: [&str; INTERFACES as usize] = ["queue", "transmitter", "delivered", "lost"];
const OF_PROCESSORS: [&str; INTERFACES as usize] = ["queue", "cpu", "forwarded", "lost"];

/// The interfaces of a place, by their number there.
const QUEUE: u32 = 0;
const TRANSMITTER: u32 = 1;
const DELIVERED: u32 = 2;
const LOST: u32 = 3;
const INTERFACES: u32 = 4;

/// What is wrong with a packet, by cause. See [`DropCause::name`].
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

/// Appends the beginning of a file: the section, and the interfaces of all places. `plans` are the
/// hops, the first next to the world; a run in virtual time has one. Of a packet, `snap_length` bytes
/// are kept at most, or all if it is 0.
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

/// The interface where something is seen, by its number in the file: places have the numbers of their
/// engines. `None` of a mark, which is seen in the packet's header from then on. `has_waited` tells whether the packet was let in there and has not left; it matters for
/// causes that refuse packets and, in some queues, also drop what waits in favour of others.
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

/// What is to be said of a packet: why it was lost.
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

    /// A full queue refuses who comes, at `queue`, or drops who waits, at `lost`; bits are wrong at
    /// the far end only.
    #[test]
    fn a_packet_is_lost_where_it_was() {
        let second = |kind, has_waited| interface(NodeId(1), kind, has_waited);
        let full = EventKind::Dropped(DropCause::QueueFull);
        assert_eq!((second(full, false), second(full, true)), (Some(4), Some(7)));
        assert_eq!(second(EventKind::Dropped(DropCause::BitError), false), Some(7));
        let way = [EventKind::Enqueued, EventKind::Transmitted, EventKind::Delivered];
        assert_eq!(way.map(|kind| second(kind, true)), [Some(4), Some(5), Some(6)]);
        assert_eq!(second(EventKind::Marked, true), None);
    }
}
