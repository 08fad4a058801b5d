//! Changes of a direction while packets are in transit.
//!
//! After a change the direction behaves as if its profiles had contained it from the start of the run. The
//! times of packets that wait in a FIFO are already scheduled and are recomputed. The work that the
//! transmitter has left at that instant consists of the frames that wait and of the rest of the frame being
//! sent, so no frame loses or gains a bit.

use super::carrier::Carrier;
use super::{Direction, Scheduling};
use crate::link::Channel;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::units::{BitRate, Bits};

/// What changes. Profiles count from the start of the run.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The rate. It also applies to the rest of the frame on the transmitter, which waits at rate zero.
    pub rate: Option<Profile<BitRate>>,
    /// The delay of frames whose last bit has not been sent. Frames are not reordered.
    pub delay: Option<Profile<Duration>>,
    /// The jitter of frames whose last bit has not been sent, and its random stream.
    pub jitter: Option<(Duration, Rng)>,
    /// The channel of frames whose first bit has not been sent.
    pub channel: Option<Channel>,
}

impl Direction {
    /// Changes the direction at `now`, after everything due by then. The result of
    /// [`next_wake`](crate::engine::Engine::next_wake) may change. `None`, and no change, if the rate
    /// would end at zero.
    ///
    /// Events already traced of packets that wait keep the start that was scheduled then.
    #[cold]
    pub fn change(&mut self, now: Instant, change: Change) -> Option<()> {
        let Self { carrier, scheduling, .. } = self;
        let altered = match &change.rate {
            Some(rate) => Some(carrier.transmitter.with_rate(rate.clone())?),
            None => None,
        };
        let started = scheduling.started(carrier, now);
        let is_sending = carrier.transmitter.free_at() > now;
        let waiting = carrier.transit.totals().since(carrier.transit.totals_before(started));
        let remaining_work = carrier.transmitter.remaining_work(now, Bits(waiting.frame_bits));
        let is_new_rate = altered.is_some();
        if let Some(altered) = altered {
            carrier.transmitter = altered;
            if let Scheduling::AtEnqueue(queue) = scheduling {
                queue.on_new_rate(carrier, now);
            }
        }
        if is_sending {
            carrier.transmitter.resume(now, remaining_work);
        }
        // If the channel varies with time, frames sent at other times have other errors.
        let redraw_errors = change.channel.is_some() || (is_new_rate && carrier.channel.varies());
        if let Some(channel) = change.channel {
            carrier.channel = channel;
        }
        // The first frame whose last bit has not been sent.
        let first = (started - u64::from(is_sending)).max(carrier.transit.begin());
        let last_arrival =
            (first > carrier.transit.begin()).then(|| carrier.transit.at(first - 1).arrival);
        carrier.propagation.change(change.delay, last_arrival.unwrap_or(now));
        if let Some((max, rng)) = change.jitter {
            carrier.propagation.set_jitter(max, rng);
        }
        reschedule(carrier, now, (first, started), redraw_errors);
        match scheduling {
            Scheduling::AtEnqueue(queue) => {
                if is_sending {
                    let last = carrier.transit.start(carrier.transit.end() - 1);
                    carrier.waiting.reschedule(now, last, queue.full_until(carrier, now));
                }
                carrier.due = carrier.first_arrival();
            }
            Scheduling::AtDequeue(queue) => queue.update_due(carrier),
        }
        Some(())
    }
}

/// Recomputes the times of all packets from position `first` on. The frame being sent, if it is one of them, ends when
/// the transmitter is free; those that wait, from `started` on, follow, with new errors if requested.
fn reschedule(
    carrier: &mut Carrier,
    now: Instant,
    (first, started): (u64, u64),
    redraw_errors: bool,
) {
    let Carrier { transmitter, channel, propagation, transit, .. } = carrier;
    for position in first..transit.end() {
        if position >= started {
            let frame = Bits(transit.size_at(position).frame_bits.into());
            let transmission = transmitter.take_from(transmitter.free_at(), frame);
            let waiting = transit.at_mut(position);
            waiting.start = transmission.start;
            if redraw_errors {
                waiting.corrupted = channel.corrupts(now, transmission, frame);
            }
        }
        transit.at_mut(position).arrival = propagation.arrival(transmitter.free_at());
    }
}
