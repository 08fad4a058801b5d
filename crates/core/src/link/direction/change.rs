//! What an operator alters while packets are on their way.
//!
//! From a moment on the direction does what it would do if its profiles had said so from the start of
//! the run. With a queue that decides at arrival the ways of waiting packets are known already, and are
//! worked out anew: the transmitter owes a certain work at that moment, of which the frames that wait
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
        self.catch_up(now);
        if let (Queue::Tail(tail), Some(rate)) = (&mut self.queue, &change.rate) {
            tail.set_rate(now, rate);
        }
        let is_sending = self.transmitter.free_at() > now;
        let waiting = self.line.sums().since(self.line.before(self.started));
        let owes = self.transmitter.owes(now, Bits(waiting.frame_bits));
        if let Some(altered) = altered {
            self.transmitter = altered;
        }
        if is_sending {
            self.transmitter.resume(now, owes);
        }
        if let Some(channel) = change.channel {
            self.channel = channel;
            self.damage_anew();
        }
        // Whose last bit is yet to leave.
        let first = (self.started - u64::from(is_sending)).max(self.line.left());
        let ahead = (first > self.line.left()).then(|| self.line.at(first - 1).arrival);
        self.propagation.change(change.delay, ahead.unwrap_or(now));
        self.send_anew(first);
        self.set_due();
        Some(())
    }

    /// What happens in space to each frame that waits.
    fn damage_anew(&mut self) {
        for position in self.started..self.line.came() {
            let frame = Bits(self.line.size_at(position).frame_bits.into());
            self.line.at_mut(position).damaged = self.channel.damages(frame);
        }
    }

    /// The ways of all packets from a position on. The frame being sent, if that is one of them, ends
    /// when the transmitter is free; those that wait follow.
    fn send_anew(&mut self, first: u64) {
        for position in first..self.line.came() {
            if position >= self.started {
                let frame = Bits(self.line.size_at(position).frame_bits.into());
                let start = self.transmitter.free_at();
                self.line.at_mut(position).start = start;
                self.transmitter.take_from(start, frame);
            }
            self.line.at_mut(position).arrival =
                self.propagation.arrival(self.transmitter.free_at());
        }
    }
}
