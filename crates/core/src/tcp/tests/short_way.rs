//! The short ways that most segments take do what the long ones do, to the last field.

use crate::packet::segment::Segment;
use crate::rng::Rng;
use crate::tcp::endpoint::Endpoint;
use crate::tcp::exchange::{Ack, Outgoing};
use crate::tcp::receiver::Receiver;
use crate::tcp::sender::Sender;
use crate::time::{Duration, Instant};

/// Given an end in any state, the next ACK and the next data that may come, expect the same state
/// and the same segments either way.
pub(super) fn check(end: &Endpoint, now: Instant, rng: &mut Rng) {
    let now = now + Duration::from_micros(rng.below(100_000));
    if end.sender().opened() {
        ack_in_order(end.sender(), now, rng);
    }
    if end.receiver().next() > 0 {
        data_in_order(end.receiver(), now, rng);
    }
}

fn ack_in_order(sender: &Sender, now: Instant, rng: &mut Rng) {
    let (mut short, mut long) = (sender.clone(), sender.clone());
    let position = sender.una() + rng.below(sender.max() - sender.una() + 1);
    let bits = rng.below(24);
    let window = rng.below(1 << bits);
    let timestamp_rtt = (rng.below(2) == 0).then(|| Duration::from_millis(rng.below(1_000)));
    let ack = Ack { position, window, sack: &[], duplicate: None, timestamp_rtt, pure: true };
    let is_next = position > sender.una();
    if !is_next || !short.on_next_ack(now, position - sender.una(), window, timestamp_rtt) {
        short.on_ack(now, &ack);
    }
    long.on_ack(now, &ack);
    assert_eq!(format!("{short:?}"), format!("{long:?}"), "{ack:?} at {now} for {sender:?}");
    let segments = [in_runs(&mut short, now), one_by_one(&mut long, now)];
    assert_eq!(segments[0], segments[1], "{ack:?} at {now} for {sender:?}");
    assert_eq!(format!("{short:?}"), format!("{long:?}"), "sent at {now} by {sender:?}");
}

fn one_by_one(sender: &mut Sender, now: Instant) -> Vec<Outgoing> {
    std::iter::from_fn(|| sender.next_segment(now)).collect()
}

fn in_runs(sender: &mut Sender, now: Instant) -> Vec<Outgoing> {
    let run = sender.full_segments(now);
    let mut segments = Vec::new();
    let mut position = run.start;
    for _ in 0..run.count {
        segments.push(Outgoing { position, payload: run.payload, syn: false, fin: false });
        position += u64::from(run.payload);
    }
    if !run.is_all {
        segments.extend(one_by_one(sender, now));
    }
    segments
}

fn data_in_order(receiver: &Receiver, now: Instant, rng: &mut Rng) {
    let payload = 1 + u16::try_from(rng.below(1_500)).expect("small");
    if !receiver.expects(payload.into()) {
        return;
    }
    let rtt = (rng.below(2) == 0).then(|| Duration::from_millis(rng.below(1_000)));
    let (mut short, mut long) = (receiver.clone(), receiver.clone());
    short.on_next(now, payload.into());
    if short.window_may_grow() {
        short.tune(now, rtt);
    }
    let segment = Segment { payload, ..Segment::default() };
    long.on_segment(now, receiver.next(), &segment, rtt);
    assert_eq!(format!("{short:?}"), format!("{long:?}"), "{payload} at {now} for {receiver:?}");
}
