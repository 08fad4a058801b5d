//! What comes from a side, and when it came.

use std::collections::VecDeque;
use std::io;

use bentpipe_core::time::{Duration, Instant};

use crate::emulator::Emulator;
use crate::store::Place;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::offload::{self, Offload, Split};
use bentpipe_sys::stamps::Stamps;
use bentpipe_sys::tun::Tun;

/// So many packets are read from a side before the other has its turn.
pub(crate) const BATCH: usize = 16;

/// After so many full batches in a row the driver does not sleep, and knows when packets come.
const BUSY_BATCHES: u32 = 8;

/// A packet that was read, and is still to be handed to the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// When it came, or was read if that is not known; not before the one read before it.
    pub(crate) at: Instant,
    pub(crate) place: Place,
    pub(crate) bytes: usize,
    /// It came so much before `at`, at most.
    pub(crate) unknown: Duration,
    /// Its checksum is known to be right.
    pub(crate) is_sound: bool,
}

/// The device of a side, and what was read from it.
pub(crate) struct Entrance {
    pub(crate) device: Tun,
    stamps: Option<Stamps>,
    full_batches: u32,
    /// Room for what the kernel hands over if it hands over super-packets.
    whole: Option<Box<[u8]>>,
    pub(crate) read: VecDeque<Read>,
    /// What was handed over and contradicts itself, or has packets longer than the link's.
    pub(crate) not_split: u64,
    last_at: Instant,
    /// A moment before the device was last seen empty.
    empty_at: Instant,
    /// No packet came before this that was not seen then. Not sure if the driver slept.
    none_before: Instant,
}

/// Two ways to tell the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) clock: Clock,
    /// What the machine's real-time clock showed when the other was at zero.
    pub(crate) real_at_start_ns: u64,
}

/// What came of one look.
enum Received {
    /// At what time.
    Something(Instant),
    Nothing,
    NoRoom,
}

/// A packet is shown a little before the device has it.
const SHOWN_EARLIER_NS: u64 = 100_000;

impl Entrance {
    /// Without `stamps`, a packet counts from when it was read.
    pub(crate) fn new(device: Tun, stamps: Option<Stamps>) -> Self {
        Self {
            device,
            stamps,
            full_batches: 0,
            whole: None,
            read: VecDeque::new(),
            not_split: 0,
            last_at: Instant::START,
            empty_at: Instant::START,
            none_before: Instant::START,
        }
    }

    /// The driver will sleep.
    pub(crate) fn before_sleep(&mut self) {
        self.stamps.iter_mut().for_each(|stamps| stamps.pause(false));
    }

    /// The driver slept, and as far as the kernel says could not have read anything before `ready`.
    pub(crate) fn slept(&mut self, ready: Instant) {
        self.none_before = self.none_before.max(ready);
    }

    /// Its device hands over super-packets.
    pub(crate) fn take_super_packets(&mut self) {
        self.whole = Some(vec![0; offload::BYTES + offload::PACKET_BYTES_MAX].into());
    }

    /// Reads what is there, up to a batch; whether there may be more.
    pub(crate) fn read(&mut self, emulator: &mut Emulator, clocks: Clocks) -> io::Result<bool> {
        let mut before = clocks.clock.now();
        while self.read.len() < BATCH {
            let received = match self.whole.take() {
                None => self.read_one(emulator, clocks)?,
                Some(mut whole) => {
                    let received = self.read_whole(&mut whole, emulator, clocks);
                    self.whole = Some(whole);
                    received?
                }
            };
            match received {
                Received::Something(now) => before = now,
                Received::NoRoom => return Ok(false),
                Received::Nothing => {
                    self.full_batches = 0;
                    self.empty_at = before;
                    self.none_before = self.none_before.max(before);
                    return Ok(false);
                }
            }
        }
        self.full_batches += 1;
        if self.full_batches == BUSY_BATCHES {
            self.stamps.iter_mut().for_each(|stamps| stamps.pause(true));
        }
        Ok(true)
    }

    fn read_one(&mut self, emulator: &mut Emulator, clocks: Clocks) -> io::Result<Received> {
        let Some(place) = emulator.room() else { return Ok(Received::NoRoom) };
        let received = self.device.receive(emulator.bytes_mut(place))?;
        let now = clocks.clock.now();
        let Some(bytes) = received else {
            emulator.free(place);
            return Ok(Received::Nothing);
        };
        let (at, unknown) = self.came(&emulator.bytes_mut(place)[..bytes], now, clocks);
        self.read.push_back(Read { at, place, bytes, unknown, is_sound: false });
        Ok(Received::Something(now))
    }

    /// Reads one super-packet and splits it: its packets came at one time.
    fn read_whole(
        &mut self,
        whole: &mut [u8],
        emulator: &mut Emulator,
        clocks: Clocks,
    ) -> io::Result<Received> {
        let Some(bytes) = self.device.receive(whole)? else { return Ok(Received::Nothing) };
        let now = clocks.clock.now();
        let Some((header, packet)) = whole[..bytes].split_first_chunk() else {
            self.not_split += 1;
            return Ok(Received::Something(now));
        };
        let (at, unknown) = self.came(packet, now, clocks);
        let Some(mut split) = Split::new(Offload::parse(header), packet) else {
            self.not_split += 1;
            return Ok(Received::Something(now));
        };
        let is_sound = split.is_sound();
        loop {
            let Some(place) = emulator.room() else { return Ok(Received::NoRoom) };
            let room = emulator.bytes_mut(place);
            let room_bytes = room.len();
            match split.write_next(room) {
                Some(bytes) if bytes <= room_bytes => {
                    self.read.push_back(Read { at, place, bytes, unknown, is_sound });
                }
                next => {
                    emulator.free(place);
                    self.not_split += u64::from(next.is_some());
                    if next.is_none() {
                        return Ok(Received::Something(now));
                    }
                }
            }
        }
    }

    /// All that came until then has been read, if there may be more.
    pub(crate) fn complete_until(&self) -> Instant {
        self.last_at
    }

    /// When a packet came that was read at `now`, and how much earlier that may have been.
    fn came(&mut self, packet: &[u8], now: Instant, clocks: Clocks) -> (Instant, Duration) {
        let (at, unknown) = match self.stamp(packet, clocks) {
            // Neither after it was read nor before it could have been.
            Some(at) => (at.min(now), Duration::ZERO),
            None => (now, now.saturating_since(self.none_before)),
        };
        self.last_at = at.max(self.last_at);
        (self.last_at, unknown)
    }

    fn stamp(&mut self, packet: &[u8], clocks: Clocks) -> Option<Instant> {
        let empty_at = clocks.real_at_start_ns + self.empty_at.as_nanos();
        let at = self.stamps.as_mut()?.of(packet, empty_at.saturating_sub(SHOWN_EARLIER_NS))?;
        Some(Instant::from_nanos(at.saturating_sub(clocks.real_at_start_ns)).max(self.empty_at))
    }
}
