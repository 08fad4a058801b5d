//! Changes of a direction while packets are in transit.
//!
//! After a change the direction behaves as if its profiles had contained it from the start of the run. The
//! times of packets that wait in a FIFO are already scheduled and are recomputed. The work that the
//! transmitter has left at that instant consists of the frames that wait and of the rest of the frame being
//! sent, so no frame loses or gains a bit.

use super::{Direction, Queue};
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
        let altered = match &change.rate {
            Some(rate) => Some(self.transmitter.with_rate(rate.clone())?),
            None => None,
        };
        self.update_started(now);
        if let (Queue::DropAtEnqueue(discipline), Some(rate)) = (&mut self.queue, &change.rate) {
            discipline.set_rate(now, rate);
        }
        let is_sending = self.transmitter.free_at() > now;
        let waiting = self.transit.totals().since(self.transit.totals_before(self.started));
        let remaining_work = self.transmitter.remaining_work(now, Bits(waiting.frame_bits));
        let is_new_rate = altered.is_some();
        if let Some(altered) = altered {
            self.transmitter = altered;
            self.update_start_checks();
            self.headroom_end = 0;
        }
        if is_sending {
            self.transmitter.resume(now, remaining_work);
        }
        // If the channel varies with time, frames sent at other times have other errors.
        let redraw_errors = change.channel.is_some() || (is_new_rate && self.channel.varies());
        if let Some(channel) = change.channel {
            self.channel = channel;
        }
        // The first frame whose last bit has not been sent.
        let first = (self.started - u64::from(is_sending)).max(self.transit.begin());
        let last_arrival =
            (first > self.transit.begin()).then(|| self.transit.at(first - 1).arrival);
        self.propagation.change(change.delay, last_arrival.unwrap_or(now));
        if let Some((max, rng)) = change.jitter {
            self.propagation.set_jitter(max, rng);
        }
        self.reschedule(now, first, redraw_errors);
        if is_sending {
            let last = self.transit.start(self.transit.end() - 1);
            self.waiting.reschedule(now, last, self.full_until(now));
        }
        self.update_due();
        Some(())
    }

    /// Recomputes the times of all packets from a position on. The frame being sent, if it is one of
    /// them, ends when the transmitter is free; those that wait follow, with new errors if requested.
    fn reschedule(&mut self, now: Instant, first: u64, redraw_errors: bool) {
        for position in first..self.transit.end() {
            if position >= self.started {
                let frame = Bits(self.transit.size_at(position).frame_bits.into());
                let transmission = self.transmitter.take_from(self.transmitter.free_at(), frame);
                let waiting = self.transit.at_mut(position);
                waiting.start = transmission.start;
                if redraw_errors {
                    waiting.corrupted = self.channel.corrupts(now, transmission, frame);
                }
            }
            self.transit.at_mut(position).arrival =
                self.propagation.arrival(self.transmitter.free_at());
        }
    }
}
