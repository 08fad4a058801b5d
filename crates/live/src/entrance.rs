//! What comes from a side, and when it came.

use std::collections::VecDeque;
use std::io;

use bentpipe_core::time::{Duration, Instant};

use crate::backlog::Backlog;
use crate::emulator::Emulator;
use crate::store::Place;
use bentpipe_sys::clock::{Clock, RealTime};
use bentpipe_sys::offload::{self, Offload, Split};
use bentpipe_sys::stamps::Stamps;
use bentpipe_sys::tun::Tun;

/// So many packets are read from a side before the other has its turn.
pub(crate) const BATCH: usize = 16;

/// After so many full batches in a row the driver does not sleep, and knows when packets come.
const BUSY_BATCHES: u32 = 64;

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
    queue_packets: u32,
    stamps: Option<Stamps>,
    full_batches: u32,
    /// Room for what the kernel hands over if it hands over super-packets.
    whole: Option<Box<[u8]>>,
    /// Room for a packet for which the store has none.
    scratch: Box<[u8]>,
    pub(crate) read: VecDeque<Read>,
    pub(crate) faults: EntranceFaults,
    last_at: Instant,
    /// A moment before the device was last seen empty.
    empty_at: Instant,
    backlog: Backlog,
    /// No stamp that waits is older than the last step of the real-time clock.
    stamps_are_of_one_clock: bool,
    /// The device is to be looked at, whatever its listener was shown.
    is_ready: bool,
}

/// Packets of a side that make a run invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntranceFaults {
    /// What was handed over and contradicts itself.
    pub(crate) not_split: u64,
    /// Longer than the link's longest.
    pub(crate) too_long: u64,
    /// Stamped after they were read.
    pub(crate) future_stamps: u64,
}

impl EntranceFaults {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            not_split: self.not_split + other.not_split,
            too_long: self.too_long + other.too_long,
            future_stamps: self.future_stamps + other.future_stamps,
        }
    }
}

/// Two ways to tell the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) clock: Clock,
    pub(crate) real: RealTime,
}

/// Two comparisons of clocks that nobody set differ by no more, beside what they say themselves.
const CLOCKS_AGREE: Duration = Duration::from_micros(10);

impl Clocks {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, real: clock.compare() }
    }

    /// Takes a new comparison. Whether somebody set the real-time clock since the last one.
    pub(crate) fn compare(&mut self, real: RealTime) -> bool {
        let off_ns = real.at_start_ns.abs_diff(self.real.at_start_ns);
        let allowed = CLOCKS_AGREE + real.uncertainty + self.real.uncertainty;
        self.real = real;
        off_ns > allowed.as_nanos()
    }

    /// When a packet came that was stamped with a real time and read at `now`. `None` if it was read
    /// before that, by more than comparing the clocks explains.
    fn at(&self, stamp_ns: u64, now: Instant) -> Option<Instant> {
        let at = Instant::from_nanos(stamp_ns.saturating_sub(self.real.at_start_ns));
        let ahead = at.saturating_since(now);
        (ahead <= CLOCKS_AGREE + self.real.uncertainty).then(|| at.min(now))
    }
}

/// What came of one look.
enum Received {
    /// At what time.
    Something(Instant),
    Nothing,
}

/// A packet is shown a little before the device has it.
const SHOWN_EARLIER_NS: u64 = 100_000;

impl Entrance {
    /// Without `stamps`, a packet counts from when it was read. Packets of up to `packet_bytes_max` are
    /// for the link.
    pub(crate) fn new(device: Tun, stamps: Option<Stamps>, packet_bytes_max: usize) -> Self {
        let queue_packets = device.queue_packets();
        let backlog = Backlog::new(queue_packets);
        Self {
            device,
            queue_packets,
            stamps,
            full_batches: 0,
            whole: None,
            scratch: vec![0; packet_bytes_max + 1].into(),
            read: VecDeque::new(),
            faults: EntranceFaults::default(),
            last_at: Instant::START,
            empty_at: Instant::START,
            backlog,
            stamps_are_of_one_clock: true,
            is_ready: true,
        }
    }

    /// Whether it is known when packets came.
    pub(crate) fn is_stamped(&self) -> bool {
        self.stamps.is_some()
    }

    /// How many packets wait in the device before the kernel drops some.
    pub(crate) fn queue_packets(&self) -> u32 {
        self.queue_packets
    }

    /// The driver will sleep, unless nobody listened until now: then it is to look once more.
    pub(crate) fn before_sleep(&mut self) -> bool {
        let was_paused = self.stamps.as_mut().is_some_and(|stamps| stamps.pause(false));
        self.is_ready |= was_paused;
        was_paused
    }

    /// The device is to be looked at, whatever its listener was shown.
    pub(crate) fn is_ready(&mut self) {
        self.is_ready = true;
    }

    /// Whether the device may have packets: nearly each is shown before the device has it, and the driver
    /// looks for others now and then.
    fn may_have_packets(&mut self) -> bool {
        std::mem::take(&mut self.is_ready) || self.stamps.as_ref().is_none_or(Stamps::has_news)
    }

    /// The driver slept, and as far as the kernel says could not have read anything before `ready`.
    pub(crate) fn slept(&mut self, ready: Instant) {
        self.backlog.none_before(ready);
    }

    /// Somebody set the real-time clock: the stamps of packets that wait may be of before.
    pub(crate) fn real_time_stepped(&mut self) {
        self.stamps_are_of_one_clock = false;
    }

    /// Its device hands over super-packets.
    pub(crate) fn take_super_packets(&mut self) {
        self.whole = Some(vec![0; offload::BYTES + offload::PACKET_BYTES_MAX].into());
    }

    /// Reads what is there, up to a batch; whether there may be more.
    pub(crate) fn read(&mut self, emulator: &mut Emulator, clocks: Clocks) -> io::Result<bool> {
        let mut before = clocks.clock.now();
        if !self.may_have_packets() {
            // Not every packet is shown (packet(7), PACKET_QDISC_BYPASS): the device is not known to be
            // empty.
            return Ok(false);
        }
        self.backlog.reads_after(before);
        let waiting = self.read.len();
        // What is dropped for want of room does not fill the batch.
        for _ in 0..BATCH {
            if self.read.len() >= BATCH {
                break;
            }
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
                Received::Nothing => {
                    self.seen_empty(before);
                    return Ok(false);
                }
            }
        }
        self.full_batches += u32::from(self.read.len() > waiting);
        if self.full_batches == BUSY_BATCHES
            && let Some(stamps) = &mut self.stamps
        {
            stamps.pause(true);
        }
        // What is left may not have been shown: the listener's ring may have been full.
        self.is_ready = true;
        Ok(true)
    }

    /// A look at the device that began at `before` found nothing.
    fn seen_empty(&mut self, before: Instant) {
        self.full_batches = 0;
        self.empty_at = before;
        self.backlog.none_before(before);
        if !self.stamps_are_of_one_clock {
            self.stamps.iter_mut().for_each(Stamps::forget);
            self.stamps_are_of_one_clock = true;
        }
    }

    fn read_one(&mut self, emulator: &mut Emulator, clocks: Clocks) -> io::Result<Received> {
        let Some(place) = emulator.room() else { return self.refuse_one(emulator, clocks) };
        let received = self.device.receive(emulator.bytes_mut(place))?;
        let now = clocks.clock.now();
        let Some(bytes) = received else {
            emulator.free(place);
            return Ok(Received::Nothing);
        };
        let (at, unknown) = self.came(&emulator.bytes_mut(place)[..bytes], now, clocks);
        if bytes > emulator.packet_bytes_max() {
            emulator.free(place);
            self.faults.too_long += 1;
        } else {
            self.read.push_back(Read { at, place, bytes, unknown, is_sound: false });
        }
        Ok(Received::Something(now))
    }

    /// Drops one packet: else it would stay in the device, which then wakes the driver again at once.
    fn refuse_one(&mut self, emulator: &mut Emulator, clocks: Clocks) -> io::Result<Received> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let received = self.device.receive(&mut scratch);
        let now = clocks.clock.now();
        if let Ok(Some(bytes)) = received {
            self.came(&scratch[..bytes], now, clocks);
            emulator.refuse();
        }
        self.scratch = scratch;
        Ok(received?.map_or(Received::Nothing, |_| Received::Something(now)))
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
        let (header, packet) = whole[..bytes].split_first_chunk().unwrap_or((&[0; _], &[]));
        let (at, unknown) = self.came(packet, now, clocks);
        let split = Split::new(Offload::parse(header), packet);
        let Some(mut split) = split.filter(|_| !packet.is_empty()) else {
            self.faults.not_split += 1;
            return Ok(Received::Something(now));
        };
        let is_sound = split.is_sound();
        let packet_bytes_max = emulator.packet_bytes_max();
        loop {
            let place = emulator.room();
            let room = place.map_or(&mut self.scratch[..], |place| emulator.bytes_mut(place));
            let next = split.write_next(&mut room[..packet_bytes_max]);
            match (next, place) {
                (Some(bytes), Some(place)) if bytes <= packet_bytes_max => {
                    self.read.push_back(Read { at, place, bytes, unknown, is_sound });
                    continue;
                }
                (Some(bytes), _) if bytes > packet_bytes_max => self.faults.too_long += 1,
                (Some(_), _) => emulator.refuse(),
                (None, _) => {}
            }
            if let Some(place) = place {
                emulator.free(place);
            }
            if next.is_none() {
                return Ok(Received::Something(now));
            }
        }
    }

    /// All that came until then has been read, if there may be more.
    pub(crate) fn complete_until(&self) -> Instant {
        self.last_at
    }

    /// When a packet came that was read at `now`, and how much earlier that may have been.
    fn came(&mut self, packet: &[u8], now: Instant, clocks: Clocks) -> (Instant, Duration) {
        let none_before = self.backlog.read();
        let (at, unknown) = match self.stamp(packet, now, clocks) {
            Some(at) => (at, Duration::ZERO),
            None => (now, now.saturating_since(none_before)),
        };
        self.last_at = at.max(self.last_at);
        (self.last_at, unknown)
    }

    /// When a packet was shown that was read at `now`: neither after that nor before it could have been.
    fn stamp(&mut self, packet: &[u8], now: Instant, clocks: Clocks) -> Option<Instant> {
        if !self.stamps_are_of_one_clock {
            return None;
        }
        let empty_at = clocks.real.at_start_ns + self.empty_at.as_nanos();
        let stamp_ns =
            self.stamps.as_mut()?.of(packet, empty_at.saturating_sub(SHOWN_EARLIER_NS))?;
        let at = clocks.at(stamp_ns, now);
        self.faults.future_stamps += u64::from(at.is_none());
        at.map(|at| at.max(self.empty_at))
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use bentpipe_core::packet::Address;

    use super::*;
    use crate::LabError;
    use crate::addresses::ipv4;
    use crate::emulator::Options;
    use crate::lab::{self, HostUp, INTERFACE};
    use bentpipe_sys::netns::Namespace;

    const US: Duration = Duration::from_micros(1);

    fn real(at_start_ns: u64) -> RealTime {
        RealTime { at_start_ns, uncertainty: US }
    }

    fn clocks() -> Clocks {
        Clocks { clock: Clock::start(), real: real(1_000_000_000) }
    }

    /// The device of the world with `count` datagrams for the island in it, and a link that has room for
    /// 256 packets. None, with a message, where the machine allows no labs.
    fn full_store(count: usize) -> Option<(HostUp, Emulator)> {
        let config = lab::Config::plain(1_000_000, Duration::from_secs(1));
        let options = Options { store_bytes_max: 256 * 1_536, ..Options::default() };
        let emulator = Emulator::new(&config.plans, 1, options).expect("a plain link");
        let mut hosts = match lab::hosts_up(&emulator.network().hosts, &config) {
            Ok(hosts) => hosts,
            Err(error) => {
                let required = std::env::var_os("BENTPIPE_REQUIRE_LABS").is_some();
                assert!(!required, "labs are required, but {error}");
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let world = hosts.swap_remove(0);
        send(&world.namespace, count);
        Some((world, emulator))
    }

    fn send(world: &Namespace, count: usize) {
        let sent = world.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
            for _ in 0..count {
                let to = (ipv4(Address(1)), 9);
                socket.send_to(&[0; 100], to).expect("room in the device");
            }
            Ok::<_, LabError>(())
        });
        sent.expect("a thread in the namespace");
    }

    /// Given 300 packets in a device and a store for 256, expect 44 dropped and counted and the device
    /// empty: what stays in a device wakes the driver again at once.
    #[test]
    fn packets_without_room_are_read_and_counted() {
        let Some((world, mut emulator)) = full_store(300) else { return };
        let mut entrance = Entrance::new(world.device, None, 1_500);
        let mut read = 0;
        while entrance.read(&mut emulator, clocks()).expect("a device") {
            read += entrance.read.drain(..).count();
        }
        read += entrance.read.len();
        assert_eq!((read, emulator.refused()), (256, 44));
        assert!(!entrance.read(&mut emulator, clocks()).expect("a device"));
        assert_eq!(emulator.refused(), 44, "nothing came, and nothing is counted");
    }

    /// Given a real-time clock that was set, and 20 packets that were stamped by then, expect no stamp to
    /// be used until the device was seen empty: how long they waited is unknown.
    #[test]
    fn stamps_of_before_a_step_are_not_used() {
        let Some((world, mut emulator)) = full_store(20) else { return };
        let mut entrance = Entrance::new(world.device, None, 1_500);
        let clocks = Clocks::new(Clock::start());
        entrance.real_time_stepped();
        assert!(entrance.read(&mut emulator, clocks).expect("a device"), "a batch of 16");
        assert!(!entrance.stamps_are_of_one_clock);
        assert!(entrance.read.drain(..).all(|packet| packet.unknown > Duration::ZERO));
        assert!(!entrance.read(&mut emulator, clocks).expect("a device"));
        assert!(entrance.stamps_are_of_one_clock);
    }

    /// Given a listener that is paused, 5 packets that come meanwhile, and looks at its ring alone after
    /// that, expect the packets to be found once the driver would sleep, and all that time to be
    /// unknown: a ring that shows nothing says nothing of the device.
    #[test]
    fn a_silent_listener_does_not_say_that_a_device_is_empty() {
        let Some((world, mut emulator)) = full_store(0) else { return };
        let listen = || Ok::<_, LabError>(Stamps::listen(INTERFACE, 500).ok());
        let mut stamps = world.namespace.run(listen).expect("a thread").expect("packet sockets");
        stamps.pause(true);
        let mut entrance = Entrance::new(world.device, Some(stamps), 1_500);
        let clocks = Clocks::new(Clock::start());
        assert!(!entrance.read(&mut emulator, clocks).expect("a device"), "it is empty");
        let empty_at = clocks.clock.now();
        send(&world.namespace, 5);
        assert!(entrance.before_sleep(), "the driver is not to sleep now");
        let waited = clocks.clock.now().saturating_since(empty_at);
        assert!(!entrance.read(&mut emulator, clocks).expect("a device"));
        assert_eq!(entrance.read.len(), 5);
        assert!(entrance.read.iter().all(|packet| packet.unknown >= waited));
        assert!(!entrance.before_sleep(), "now it may sleep");
        let none_before = entrance.empty_at;
        assert!(!entrance.read(&mut emulator, clocks).expect("a device"));
        assert_eq!(entrance.empty_at, none_before, "nothing was asked of the device");
    }

    /// Given comparisons that are wrong by 1 us each and agree within 10 us, expect no step up to 12 us,
    /// and one beyond, whichever way, said once.
    #[test]
    fn a_clock_that_was_set_is_noticed() {
        for (at_start_ns, stepped) in [
            (1_000_000_000, false),
            (1_000_012_000, false),
            (1_000_012_001, true),
            (999_988_000, false),
            (999_987_999, true),
            (0, true),
            (5_000_000_000, true),
        ] {
            let mut clocks = clocks();
            assert_eq!(clocks.compare(real(at_start_ns)), stepped, "{at_start_ns}");
            assert!(!clocks.compare(real(at_start_ns)), "it was said");
        }
    }

    /// Given a packet that was read 2 s after the start, expect a stamp of before to be its time, one of up
    /// to 11 us later to be as good as the time of the read, and a later one to be none.
    #[test]
    fn a_stamp_from_the_future_is_none() {
        let now = Instant::START + Duration::from_secs(2);
        let at = |stamp_ns| clocks().at(stamp_ns, now);
        assert_eq!(at(2_999_999_000), Some(Instant::from_nanos(1_999_999_000)));
        assert_eq!(at(3_000_011_000), Some(now));
        assert_eq!(at(3_000_011_001), None);
    }
}
