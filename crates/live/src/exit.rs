//! What is due on a side: handed to the kernel one by one, or joined where it follows each other.

use std::io::IoSlice;

use bentpipe_core::time::{Duration, Instant};

use crate::driver::Punctuality;
use crate::emulator::{Departure, Emulator};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::offload::{self, Join, Offload, join::PACKETS_MAX};
use bentpipe_sys::tun::Tun;

impl Punctuality {
    /// Hands packets that were due to the kernel by `send`, and notes whether it took them and how late
    /// that was by what `now` says afterwards: the call takes as long as the receiving host lets it.
    #[inline]
    pub(crate) fn hand_over<'a>(
        &mut self,
        packets: impl IntoIterator<Item = (&'a Departure, Duration)>,
        send: impl FnOnce() -> bool,
        now: impl FnOnce() -> Instant,
    ) {
        let not_taken = u64::from(!send());
        let now = now();
        for (departure, unknown) in packets {
            self.not_taken += not_taken;
            if departure.on_link {
                self.lateness.add(now.saturating_since(departure.due) + unknown);
            }
        }
    }
}

/// A packet that is due.
#[derive(Clone, Copy, Debug)]
struct Due {
    departure: Departure,
    unknown: Duration,
}

/// Joins packets that are due, for a device that takes super-packets. What is due waits here only while
/// the rest of what is due by now is looked through.
#[derive(Debug, Default)]
pub(crate) struct Exit {
    join: Option<Join>,
    due: Vec<Due>,
}

/// What an exit needs to hand packets over.
pub(crate) struct Hands<'a> {
    pub(crate) emulator: &'a mut Emulator,
    pub(crate) clock: Clock,
    pub(crate) punctuality: &'a mut Punctuality,
}

impl Exit {
    /// A packet is due, whose checksum is known to be right if it `is_sound`.
    pub(crate) fn put(
        &mut self,
        departure: Departure,
        unknown: Duration,
        is_sound: bool,
        device: &Tun,
        hands: &mut Hands<'_>,
    ) {
        let packet = hands.emulator.bytes(&departure);
        let follows = is_sound && self.join.as_mut().is_some_and(|join| join.add(packet));
        if !follows {
            self.flush(device, hands);
            let packet = hands.emulator.bytes(&departure);
            self.join = Join::begin(packet).filter(|_| is_sound);
        }
        self.due.push(Due { departure, unknown });
        if self.join.is_none() {
            self.flush(device, hands);
        }
    }

    /// Hands over what is here.
    pub(crate) fn flush(&mut self, device: &Tun, hands: &mut Hands<'_>) {
        let join = self.join.take();
        if self.due.is_empty() {
            return;
        }
        let Hands { emulator, clock, punctuality } = hands;
        let bytes = |due: &Due| emulator.bytes(&due.departure);
        let send = || match (join, &self.due[..]) {
            (Some(join), [_, _, ..]) => {
                let start = join.payload_start();
                let finished = join.finish();
                let header = finished.offload.emit();
                let mut parts = [IoSlice::new(&[]); PACKETS_MAX + 2];
                parts[0] = IoSlice::new(&header);
                parts[1] = IoSlice::new(finished.headers());
                for (part, due) in parts[2..].iter_mut().zip(&self.due) {
                    *part = IoSlice::new(&bytes(due)[start..]);
                }
                device.send_parts(&parts[..self.due.len() + 2])
            }
            (_, due) => due.iter().all(|due| {
                let header: [u8; offload::BYTES] = Offload::default().emit();
                device.send_parts(&[IoSlice::new(&header), IoSlice::new(bytes(due))])
            }),
        };
        let packets = self.due.iter().map(|due| (&due.departure, due.unknown));
        punctuality.hand_over(packets, send, || clock.now());
        for due in self.due.drain(..) {
            hands.emulator.free(due.departure.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lateness::Limits;
    use crate::store::Place;
    use bentpipe_core::packet::Address;
    use std::cell::Cell;

    fn due(at: Instant, on_link: bool) -> Departure {
        Departure { due: at, to: Address(0).into(), place: Place(0), bytes: 100, on_link }
    }

    /// Given two packets that are handed over on time by a call that takes 20 ms, expect both to be 20 ms
    /// late, and the run not to count; what did not go over the link counts nowhere.
    #[test]
    fn the_time_of_the_call_is_lateness() {
        let now = Cell::new(Instant::START + Duration::from_secs(1));
        let (first, passed) = (due(now.get(), true), due(now.get(), false));
        let mut punctuality = Punctuality::default();
        let slow = || {
            now.set(now.get() + Duration::from_millis(20));
            true
        };
        let zero = Duration::ZERO;
        punctuality
            .hand_over([(&first, zero), (&passed, zero), (&first, zero)], slow, || now.get());
        assert_eq!(punctuality.lateness.count(), 2);
        assert_eq!(punctuality.lateness.max(), Duration::from_millis(20));
        assert!(punctuality.lateness.verdict(Limits::default()).is_some());
        assert_eq!(punctuality.not_taken, 0);
    }

    #[test]
    fn packets_that_the_kernel_refuses_are_counted() {
        let first = due(Instant::START, true);
        let mut punctuality = Punctuality::default();
        let packets = [(&first, Duration::ZERO), (&first, Duration::ZERO)];
        punctuality.hand_over(packets, || false, || Instant::START);
        assert_eq!(punctuality.not_taken, 2);
    }
}
