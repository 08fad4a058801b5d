//! What an operator alters while packets are on their way.
//!
//! From a moment on the direction does what it would do if its profiles had said so from the start of
//! the run. With a queue that decides at arrival the ways of waiting packets are known already, and are
//! worked out anew: the transmitter remaining_work a certain work at that moment, of which the frames that wait
//! are a part and the rest belongs to the frame being sent, so no frame loses or gains a bit.

use super::{Direction, Queue};
use crate::link::Channel;
use crate::profile::Profile;
use crate::time::{Duration, Instant};
use crate::units::{BitRate, Bits};

/// What is to be another from a moment on. Profiles count from the start of the run.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The rate, of the frame on the transmitter too: it keeps what was sent of it, and at rate zero
    /// it waits.
    pub rate: Option<Profile<BitRate>>,
    /// The delay of frames whose last bit is yet to leave. None overtakes another.
    pub delay: Option<Profile<Duration>>,
    /// The channel of frames whose first bit is yet to leave.
    pub channel: Option<Channel>,
}

impl Direction {
    /// Alters the direction at `now`, once all that is due by then was done; the answer of
    /// [`next_wake`](crate::engine::Engine::next_wake) may be another. `None`, and nothing is altered,
    /// if the rate would end at zero.
    ///
    /// What was traced of packets that wait stays as it was: the moment at which each was to start.
    #[cold]
    pub fn change(&mut self, now: Instant, change: Change) -> Option<()> {
        let altered = match &change.rate {
            Some(rate) => Some(self.transmitter.with_rate(rate.clone())?),
            None => None,
        };
        self.update_started(now);
        if let (Queue::DropAtEnqueue(tail), Some(rate)) = (&mut self.queue, &change.rate) {
            tail.set_rate(now, rate);
        }
        let is_sending = self.transmitter.free_at() > now;
        let waiting = self.transit.totals().since(self.transit.totals_before(self.started));
        let remaining_work = self.transmitter.remaining_work(now, Bits(waiting.frame_bits));
        let is_new_rate = altered.is_some();
        if let Some(altered) = altered {
            self.transmitter = altered;
        }
        if is_sending {
            self.transmitter.resume(now, remaining_work);
        }
        // A channel that changes with time corrupts other frames when they are sent at other times.
        let redraw_errors = change.channel.is_some() || (is_new_rate && self.channel.varies());
        if let Some(channel) = change.channel {
            self.channel = channel;
        }
        // Whose last bit is yet to leave.
        let first = (self.started - u64::from(is_sending)).max(self.transit.begin());
        let ahead = (first > self.transit.begin()).then(|| self.transit.at(first - 1).arrival);
        self.propagation.change(change.delay, ahead.unwrap_or(now));
        self.reschedule(now, first, redraw_errors);
        self.update_due();
        Some(())
    }

    /// The ways of all packets from a position on. The frame being sent, if that is one of them, ends
    /// when the transmitter is free; those that wait follow, and meet the channel anew if that is asked.
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
