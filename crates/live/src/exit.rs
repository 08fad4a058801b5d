//! What is due on a side: handed to the kernel one by one, or joined where it follows each other.

use std::io::IoSlice;

use bentpipe_core::time::Duration;

use crate::driver::Punctuality;
use crate::emulator::{Departure, Emulator};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::offload::{self, Join, Offload, join::PACKETS_MAX};
use bentpipe_sys::tun::Tun;

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
        let now = hands.clock.now();
        for due in self.due.iter().filter(|due| due.departure.on_link) {
            let late = now.saturating_since(due.departure.due);
            hands.punctuality.lateness.add(late + due.unknown);
        }
        let bytes = |due: &Due| hands.emulator.bytes(&due.departure);
        let taken = match (join, &self.due[..]) {
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
        if !taken {
            hands.punctuality.not_taken += self.due.len() as u64;
        }
        for due in self.due.drain(..) {
            hands.emulator.free(due.departure.place);
        }
    }
}
