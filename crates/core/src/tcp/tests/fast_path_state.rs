//! The fast path leaves the same state as the slow path, in every field.

use crate::packet::segment::Segment;
use crate::rng::Rng;
use crate::tcp::endpoint::Endpoint;
use crate::tcp::exchange::{Ack, Outgoing};
use crate::tcp::receiver::Receiver;
use crate::tcp::sender::Sender;
use crate::time::{Duration, Instant};

/// Given an endpoint in any state, the next ACK and the next data, expect the same state and the
/// same segments from both paths.
pub(super) fn check(end: &Endpoint, now: Instant, rng: &mut Rng) {
    let now = now + Duration::from_micros(rng.below(100_000));
    if end.sender().is_established() {
        ack_in_order(end.sender(), now, rng);
    }
    if end.receiver().next() > 0 {
        data_in_order(end.receiver(), now, rng);
    }
}

fn ack_in_order(sender: &Sender, now: Instant, rng: &mut Rng) {
    let (mut fast, mut slow) = (sender.clone(), sender.clone());
    let position = sender.una() + rng.below(sender.max() - sender.una() + 1);
    let bits = rng.below(24);
    let window = rng.below(1 << bits);
    let timestamp_rtt = (rng.below(2) == 0).then(|| Duration::from_millis(rng.below(1_000)));
    let ack = Ack { position, window, sack: &[], dsack: None, timestamp_rtt, pure: true };
    let is_next = position > sender.una();
    if !is_next || !fast.on_ack_fast_path(now, position - sender.una(), window, timestamp_rtt) {
        fast.on_ack(now, &ack);
    }
    slow.on_ack(now, &ack);
    assert_eq!(format!("{fast:?}"), format!("{slow:?}"), "{ack:?} at {now} for {sender:?}");
    let segments = [in_runs(&mut fast, now), one_by_one(&mut slow, now)];
    assert_eq!(segments[0], segments[1], "{ack:?} at {now} for {sender:?}");
    assert_eq!(format!("{fast:?}"), format!("{slow:?}"), "sent at {now} by {sender:?}");
}

fn one_by_one(sender: &mut Sender, now: Instant) -> Vec<Outgoing> {
    std::iter::from_fn(|| sender.next_segment(now)).collect()
}

fn in_runs(sender: &mut Sender, now: Instant) -> Vec<Outgoing> {
    let run = sender.take_full_segments(now);
    let mut segments = Vec::new();
    let mut position = run.start;
    for _ in 0..run.count {
        segments.push(Outgoing {
            position,
            payload: run.payload,
            syn: false,
            fin: false,
            limited_by: run.limited_by,
        });
        position += u64::from(run.payload);
    }
    if !run.complete {
        segments.extend(one_by_one(sender, now));
    }
    segments
}

fn data_in_order(receiver: &Receiver, now: Instant, rng: &mut Rng) {
    let payload = 1 + u16::try_from(rng.below(1_500)).expect("small");
    if !receiver.accepts_in_order(payload.into()) {
        return;
    }
    let rtt = (rng.below(2) == 0).then(|| Duration::from_millis(rng.below(1_000)));
    let (mut fast, mut slow) = (receiver.clone(), receiver.clone());
    fast.on_in_order_data(now, payload.into());
    if fast.window_may_grow() {
        fast.tune(now, rtt);
    }
    let segment = Segment { payload, ..Segment::default() };
    slow.on_segment(now, receiver.next(), &segment, rtt);
    assert_eq!(format!("{fast:?}"), format!("{slow:?}"), "{payload} at {now} for {receiver:?}");
}
