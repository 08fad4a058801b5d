//! Invariants of the shared rate, for any classes whose reserved rates the link can carry.

use bentpipe_core::link::{
    DropAtDequeue, Limit, QueuedPacket, SharedRate, SharingClass, StrictPriority,
};
use bentpipe_core::packet::{Class, FlowId, Packet};
use bentpipe_core::rng::Rng;
use bentpipe_core::time::Instant;
use bentpipe_core::units::{BitRate, Bits, Carry};
use proptest::prelude::*;

const LARGEST: u64 = 8 * 1_500;
const END: Instant = Instant::from_millis(1_000);

/// A class of a link.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Of the sum over all classes: its part of what is reserved.
    reserved: u64,
    weight: u16,
    /// In percent of the link, if it has a ceiling.
    ceiling: Option<u64>,
    /// Whether it always has packets.
    is_busy: bool,
}

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let ceiling = proptest::option::weighted(0.3, 1u64..100);
    let shape = (0u64..100, 1u16..10, ceiling, any::<bool>()).prop_map(
        |(reserved, weight, ceiling, is_busy)| Shape { reserved, weight, ceiling, is_busy },
    );
    proptest::collection::vec(shape, 1..9)
}

/// The reserved rate and the ceiling of each class. All reserved rates are at most `used` percent of the link.
fn rates(shapes: &[Shape], link: u64, used: u64) -> Vec<(Option<BitRate>, Option<BitRate>)> {
    let total: u64 = shapes.iter().map(|shape| shape.reserved).sum();
    let rate = |bps: u64| (bps > 0).then_some(BitRate(bps));
    let rates = shapes.iter().map(|shape| {
        let reserved = link * used / 100 * shape.reserved / total.max(1);
        let ceiling = shape.ceiling.map(|percent| (link * percent / 100).max(reserved));
        (rate(reserved), ceiling.and_then(rate))
    });
    rates.collect()
}

fn packet(class: usize, rng: &mut Rng, at: Instant) -> QueuedPacket {
    let bytes = 40 + rng.below(1_461) as u32;
    let class = Class(class as u8);
    let packet = Box::new(Packet { flow: FlowId(0), bytes, class, ..Packet::default() });
    QueuedPacket { packet, frame: Bits(8 * u64::from(bytes)), enqueued_at: at, marked: false }
}

proptest! {
    /// Given classes that have packets all the time, and others now and then, expect each of the first to have sent its
    /// reserved rate at any time, less three frames and none more than its ceiling
    /// and three frames.
    #[test]
    fn reserved_rates_and_ceilings_hold(
        shapes in shapes(), kbps in 500u64..20_000, used in 0u64..=100, seed in any::<u64>(),
    ) {
        let link = BitRate(kbps * 1_000);
        let rates = rates(&shapes, link.0, used);
        let classes = shapes.iter().zip(&rates).map(|(shape, &(reserved, ceiling))| {
            let queue = DropAtDequeue::StrictPriority(StrictPriority::new(Limit::Packets(9), 1));
            SharingClass { queue, reserved, weight: shape.weight, ceiling }
        });
        let mut queue = SharedRate::new(classes);
        let (mut rng, mut now, mut carry) = (Rng::stream(seed, "packets"), Instant::START, Carry::default());
        let mut sent = vec![0; shapes.len()];
        while now < END {
            for (number, shape) in shapes.iter().enumerate() {
                if shape.is_busy || rng.below(10) == 0 {
                    queue.enqueue(now, packet(number, &mut rng, now), &mut |_, _| {});
                }
            }
            let Some(next) = queue.dequeue(now, &mut |_, _| {}) else {
                now = Instant::from_nanos(now.as_nanos() + 100_000);
                continue;
            };
            let (time, rest) = link.transmit_time(next.frame, carry);
            (now, carry) = (now + time, rest);
            sent[usize::from(next.packet.class.0)] += next.frame.0;
            for ((shape, &(reserved, ceiling)), &sent) in shapes.iter().zip(&rates).zip(&sent) {
                let by_now = |rate: BitRate| (u128::from(rate.0) * u128::from(now.as_nanos()) / 1_000_000_000) as u64;
                if let Some(reserved) = reserved.filter(|_| shape.is_busy) {
                    prop_assert!(sent + 3 * LARGEST >= by_now(reserved), "{sent} of {reserved:?} at {now}");
                }
                if let Some(ceiling) = ceiling {
                    prop_assert!(sent <= by_now(ceiling) + 3 * LARGEST, "{sent} of {ceiling:?} at {now}");
                }
            }
        }
    }
}
