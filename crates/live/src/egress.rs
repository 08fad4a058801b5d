//! Delivery of packets to a host's device, coalesced into super-packets where the device takes
//! them.

use bentpipe_core::time::{Duration, Instant};

use crate::emulator::{Departure, Emulator};
use crate::punctuality::Punctuality;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::offload::{self, Coalescer};
use bentpipe_sys::tun::Tun;

impl Punctuality {
    /// Delivers packets by `send`. Records whether the kernel accepted them, and their lateness at
    /// the time that `now` returns afterwards: the receiving host determines how long the call takes.
    #[inline]
    pub(crate) fn deliver<'a>(
        &mut self,
        packets: impl IntoIterator<Item = (&'a Departure, Duration)>,
        send: impl FnOnce() -> bool,
        now: impl FnOnce() -> Instant,
    ) {
        let rejected = u64::from(!send());
        let now = now();
        for (departure, uncertainty) in packets {
            self.rejected += rejected;
            if departure.on_link {
                self.lateness.add(now.saturating_since(departure.due) + uncertainty);
            }
        }
    }
}

/// A packet that is due.
#[derive(Clone, Copy, Debug)]
struct Due {
    departure: Departure,
    uncertainty: Duration,
}

/// Coalesces due packets for a device that takes super-packets. A packet waits here only while the
/// other packets that are due now are processed.
#[derive(Debug, Default)]
pub(crate) struct Egress {
    coalescer: Option<Coalescer>,
    due: Vec<Due>,
}

/// The environment in which an egress delivers packets.
pub(crate) struct EgressContext<'a> {
    pub(crate) emulator: &'a mut Emulator,
    pub(crate) clock: Clock,
    pub(crate) punctuality: &'a mut Punctuality,
}

impl Egress {
    /// Delivers a packet that is due, or queues it to be coalesced with the next one.
    pub(crate) fn push(
        &mut self,
        departure: Departure,
        uncertainty: Duration,
        checksum_valid: bool,
        device: &Tun,
        context: &mut EgressContext<'_>,
    ) {
        let packet = context.emulator.bytes(&departure);
        let continues = checksum_valid
            && self.coalescer.as_mut().is_some_and(|coalescer| coalescer.push(packet));
        if !continues {
            self.flush(device, context);
            let packet = context.emulator.bytes(&departure);
            self.coalescer = Coalescer::start(packet).filter(|_| checksum_valid);
        }
        self.due.push(Due { departure, uncertainty });
        if self.coalescer.is_none() {
            self.flush(device, context);
        }
    }

    /// Delivers all queued packets.
    pub(crate) fn flush(&mut self, device: &Tun, context: &mut EgressContext<'_>) {
        let coalescer = self.coalescer.take();
        if self.due.is_empty() {
            return;
        }
        let EgressContext { emulator, clock, punctuality } = context;
        let packets = self.due.iter().map(|due| emulator.bytes(&due.departure));
        let send = || offload::write_parts(coalescer, packets, |parts| device.send_parts(parts));
        let packets = self.due.iter().map(|due| (&due.departure, due.uncertainty));
        punctuality.deliver(packets, send, || clock.now());
        for due in self.due.drain(..) {
            context.emulator.free(due.departure.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Slot;
    use bentpipe_core::packet::Address;
    use std::cell::Cell;

    fn due(at: Instant, on_link: bool) -> Departure {
        Departure { due: at, to: Address(0).into(), slot: Slot(0), bytes: 100, on_link }
    }

    /// Given two packets delivered on time by a call that takes 20 ms, expect a lateness of 20 ms
    /// for both and an invalid run; expect a packet that bypassed the link not to count.
    #[test]
    fn the_duration_of_the_call_is_lateness() {
        let now = Cell::new(Instant::START + Duration::from_secs(1));
        let (first, bypassed) = (due(now.get(), true), due(now.get(), false));
        let mut punctuality = Punctuality::default();
        let slow = || {
            now.set(now.get() + Duration::from_millis(20));
            true
        };
        let zero = Duration::ZERO;
        punctuality
            .deliver([(&first, zero), (&bypassed, zero), (&first, zero)], slow, || now.get());
        assert_eq!(punctuality.lateness.count(), 2);
        assert_eq!(punctuality.lateness.max(), Duration::from_millis(20));
        assert!(punctuality.lateness.reason(true).is_some());
        assert_eq!(punctuality.rejected, 0);
    }

    #[test]
    fn packets_that_the_kernel_rejects_are_counted() {
        let first = due(Instant::START, true);
        let mut punctuality = Punctuality::default();
        let packets = [(&first, Duration::ZERO), (&first, Duration::ZERO)];
        punctuality.deliver(packets, || false, || Instant::START);
        assert_eq!(punctuality.rejected, 2);
    }
}
