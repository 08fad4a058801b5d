//! Packets read from a host's device, with their arrival times.

use std::collections::VecDeque;
use std::io;

use bentpipe_core::time::{Duration, Instant};

use crate::backlog::Backlog;
use crate::emulator::Emulator;
use crate::store::Slot;
use bentpipe_sys::clock::{Clock, RealTimeOffset};
use bentpipe_sys::offload::{self, Offload, Segmenter};
use bentpipe_sys::timestamps::Timestamps;
use bentpipe_sys::tun::Tun;

/// How many packets are read from one device before the others are read.
pub(crate) const BATCH: usize = 16;

/// After so many consecutive full batches the driver no longer sleeps, and the time of a read is a
/// good arrival time.
const BUSY_BATCHES: u32 = 64;

/// A packet that was read, and not fed to the link yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedPacket {
    /// Its arrival time, or the time of the read if that is unknown; not before that of the
    /// previous packet.
    pub(crate) at: Instant,
    pub(crate) slot: Slot,
    pub(crate) bytes: usize,
    /// How much before `at` it may have arrived.
    pub(crate) uncertainty: Duration,
    /// Whether its checksum is known to be valid.
    pub(crate) checksum_valid: bool,
}

/// The device of a host, and the packets read from it.
pub(crate) struct Ingress {
    pub(crate) device: Tun,
    queue_packets: u32,
    timestamps: Option<Timestamps>,
    full_batches: u32,
    /// The buffer for super-packets, if the device sends them.
    super_packet: Option<Box<[u8]>>,
    /// The buffer for a packet that the store has no slot for.
    scratch: Box<[u8]>,
    pub(crate) read: VecDeque<ReceivedPacket>,
    pub(crate) faults: IngressFaults,
    last_at: Instant,
    /// A time just before the device was last found empty.
    empty_at: Instant,
    backlog: Backlog,
    /// Whether all pending timestamps are newer than the last step of the real-time clock.
    timestamps_valid: bool,
    /// Whether to read the device even if the ring has no frame.
    is_ready: bool,
}

/// Counters of packets that make a run invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IngressFaults {
    /// Super-packets whose header contradicts the packet.
    pub(crate) unsegmented: u64,
    /// Packets longer than the MTU.
    pub(crate) too_long: u64,
    /// Packets with a timestamp later than the read.
    pub(crate) future_stamps: u64,
}

impl IngressFaults {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            unsegmented: self.unsegmented + other.unsegmented,
            too_long: self.too_long + other.too_long,
            future_stamps: self.future_stamps + other.future_stamps,
        }
    }
}

/// The clock of the run, and the offset of `CLOCK_REALTIME`, which timestamps use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) clock: Clock,
    pub(crate) real: RealTimeOffset,
}

/// Two measurements of the offset agree within this, in addition to their own uncertainties, unless
/// the clock was set.
const CLOCK_TOLERANCE: Duration = Duration::from_micros(10);

impl Clocks {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, real: clock.real_time_offset() }
    }

    /// Stores a new measurement of the offset. Returns whether the real-time clock was set since
    /// the last one.
    pub(crate) fn update_offset(&mut self, real: RealTimeOffset) -> bool {
        let difference_ns = real.at_start_ns.abs_diff(self.real.at_start_ns);
        let tolerance = CLOCK_TOLERANCE + real.uncertainty + self.real.uncertainty;
        self.real = real;
        difference_ns > tolerance.as_nanos()
    }

    /// Converts the timestamp of a packet read at `now`. `None` if the timestamp is later than
    /// `now` by more than the uncertainty of the offset.
    fn at(&self, stamp_ns: u64, now: Instant) -> Option<Instant> {
        let at = Instant::from_nanos(stamp_ns.saturating_sub(self.real.at_start_ns));
        let ahead = at.saturating_since(now);
        (ahead <= CLOCK_TOLERANCE + self.real.uncertainty).then(|| at.min(now))
    }
}

/// The outcome of one read.
enum ReadOutcome {
    /// A packet was read, at this time.
    Packet(Instant),
    Empty,
}

/// The kernel timestamps a packet a little before the device has it.
const TIMESTAMP_LEAD_NS: u64 = 100_000;

impl Ingress {
    /// Without timestamps, the time of the read is the arrival time. `packet_bytes_max` is the MTU.
    pub(crate) fn new(
        device: Tun,
        timestamps: Option<Timestamps>,
        packet_bytes_max: usize,
    ) -> Self {
        let queue_packets = device.queue_packets();
        let backlog = Backlog::new(queue_packets);
        Self {
            device,
            queue_packets,
            timestamps,
            full_batches: 0,
            super_packet: None,
            scratch: vec![0; packet_bytes_max + 1].into(),
            read: VecDeque::new(),
            faults: IngressFaults::default(),
            last_at: Instant::START,
            empty_at: Instant::START,
            backlog,
            timestamps_valid: true,
            is_ready: true,
        }
    }

    /// Whether packets have kernel timestamps.
    pub(crate) fn is_timestamped(&self) -> bool {
        self.timestamps.is_some()
    }

    /// The queue length of the device, beyond which the kernel drops packets.
    pub(crate) fn queue_packets(&self) -> u32 {
        self.queue_packets
    }

    /// Prepares for a sleep. True if timestamps were paused: then the device must be read once more
    /// before the sleep.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let was_paused =
            self.timestamps.as_mut().is_some_and(|timestamps| timestamps.set_paused(false));
        self.is_ready |= was_paused;
        was_paused
    }

    /// Requests a read of the device even if the ring has no frame.
    pub(crate) fn set_ready(&mut self) {
        self.is_ready = true;
    }

    /// Whether the device may hold packets. Nearly every packet has a frame before the device has
    /// it; the driver reads for the others now and then.
    fn may_have_packets(&mut self) -> bool {
        std::mem::take(&mut self.is_ready)
            || self.timestamps.as_ref().is_none_or(Timestamps::may_have_packets)
    }

    /// The driver woke up. It could not have read anything before `ready`.
    pub(crate) fn on_wakeup(&mut self, ready: Instant) {
        self.backlog.none_before(ready);
    }

    /// The real-time clock was set: pending timestamps may be from before.
    pub(crate) fn on_clock_step(&mut self) {
        self.timestamps_valid = false;
    }

    /// Expects super-packets from the device.
    pub(crate) fn enable_super_packets(&mut self) {
        self.super_packet = Some(vec![0; offload::BYTES + offload::PACKET_BYTES_MAX].into());
    }

    /// Reads up to a batch of packets. Returns whether there may be more.
    pub(crate) fn read(&mut self, emulator: &mut Emulator, clocks: Clocks) -> io::Result<bool> {
        let mut before = clocks.clock.now();
        if !self.may_have_packets() {
            // Not every packet has a frame (packet(7), PACKET_QDISC_BYPASS), so the device is not
            // known to be empty.
            return Ok(false);
        }
        self.backlog.reads_after(before);
        let waiting = self.read.len();
        // Packets dropped because the store is full do not count towards the batch.
        for _ in 0..BATCH {
            if self.read.len() >= BATCH {
                break;
            }
            let received = match self.super_packet.take() {
                None => self.read_one(emulator, clocks)?,
                Some(mut buffer) => {
                    let received = self.read_super_packet(&mut buffer, emulator, clocks);
                    self.super_packet = Some(buffer);
                    received?
                }
            };
            match received {
                ReadOutcome::Packet(now) => before = now,
                ReadOutcome::Empty => {
                    self.on_empty(before);
                    return Ok(false);
                }
            }
        }
        self.full_batches += u32::from(self.read.len() > waiting);
        if self.full_batches == BUSY_BATCHES
            && let Some(timestamps) = &mut self.timestamps
        {
            timestamps.set_paused(true);
        }
        // The remaining packets may have no frames, if the ring was full.
        self.is_ready = true;
        Ok(true)
    }

    /// A read that started at `before` found the device empty.
    fn on_empty(&mut self, before: Instant) {
        self.full_batches = 0;
        self.empty_at = before;
        self.backlog.none_before(before);
        if !self.timestamps_valid {
            self.timestamps.iter_mut().for_each(Timestamps::discard);
            self.timestamps_valid = true;
        }
    }

    fn read_one(&mut self, emulator: &mut Emulator, clocks: Clocks) -> io::Result<ReadOutcome> {
        let Some(slot) = emulator.alloc() else { return self.discard_one(emulator, clocks) };
        let received = self.device.receive(emulator.bytes_mut(slot))?;
        let now = clocks.clock.now();
        let Some(bytes) = received else {
            emulator.free(slot);
            return Ok(ReadOutcome::Empty);
        };
        let (at, uncertainty) = self.arrival_time(&emulator.bytes_mut(slot)[..bytes], now, clocks);
        if bytes > emulator.packet_bytes_max() {
            emulator.free(slot);
            self.faults.too_long += 1;
        } else {
            self.read.push_back(ReceivedPacket {
                at,
                slot,
                bytes,
                uncertainty,
                checksum_valid: false,
            });
        }
        Ok(ReadOutcome::Packet(now))
    }

    /// Reads and drops one packet. If it stayed in the device, it would wake the driver again at
    /// once.
    fn discard_one(&mut self, emulator: &mut Emulator, clocks: Clocks) -> io::Result<ReadOutcome> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let received = self.device.receive(&mut scratch);
        let now = clocks.clock.now();
        if let Ok(Some(bytes)) = received {
            self.arrival_time(&scratch[..bytes], now, clocks);
            emulator.count_refused();
        }
        self.scratch = scratch;
        Ok(received?.map_or(ReadOutcome::Empty, |_| ReadOutcome::Packet(now)))
    }

    /// Reads one super-packet and segments it. All its packets have one arrival time.
    fn read_super_packet(
        &mut self,
        buffer: &mut [u8],
        emulator: &mut Emulator,
        clocks: Clocks,
    ) -> io::Result<ReadOutcome> {
        let Some(bytes) = self.device.receive(buffer)? else { return Ok(ReadOutcome::Empty) };
        let now = clocks.clock.now();
        let (header, packet) = buffer[..bytes].split_first_chunk().unwrap_or((&[0; _], &[]));
        let (at, uncertainty) = self.arrival_time(packet, now, clocks);
        let segmenter = Segmenter::new(Offload::parse(header), packet);
        let Some(mut segmenter) = segmenter.filter(|_| !packet.is_empty()) else {
            self.faults.unsegmented += 1;
            return Ok(ReadOutcome::Packet(now));
        };
        let checksum_valid = segmenter.checksum_valid();
        let packet_bytes_max = emulator.packet_bytes_max();
        loop {
            let slot = emulator.alloc();
            let buffer = slot.map_or(&mut self.scratch[..], |slot| emulator.bytes_mut(slot));
            let next = segmenter.write_next(&mut buffer[..packet_bytes_max]);
            match (next, slot) {
                (Some(bytes), Some(slot)) if bytes <= packet_bytes_max => {
                    self.read.push_back(ReceivedPacket {
                        at,
                        slot,
                        bytes,
                        uncertainty,
                        checksum_valid,
                    });
                    continue;
                }
                (Some(bytes), _) if bytes > packet_bytes_max => self.faults.too_long += 1,
                (Some(_), _) => emulator.count_refused(),
                (None, _) => {}
            }
            if let Some(slot) = slot {
                emulator.free(slot);
            }
            if next.is_none() {
                return Ok(ReadOutcome::Packet(now));
            }
        }
    }

    /// All packets that arrived until this time have been read, even if there are more.
    pub(crate) fn read_until(&self) -> Instant {
        self.last_at
    }

    /// The arrival time of a packet read at `now`, and how much earlier it may have arrived.
    fn arrival_time(&mut self, packet: &[u8], now: Instant, clocks: Clocks) -> (Instant, Duration) {
        let none_before = self.backlog.read();
        let (at, uncertainty) = match self.timestamp(packet, now, clocks) {
            Some(at) => (at, Duration::ZERO),
            None => (now, now.saturating_since(none_before)),
        };
        self.last_at = at.max(self.last_at);
        (self.last_at, uncertainty)
    }

    /// The timestamp of a packet read at `now`, limited to the time between the last empty read and
    /// `now`.
    fn timestamp(&mut self, packet: &[u8], now: Instant, clocks: Clocks) -> Option<Instant> {
        if !self.timestamps_valid {
            return None;
        }
        let empty_at = clocks.real.at_start_ns + self.empty_at.as_nanos();
        let stamp_ns =
            self.timestamps.as_mut()?.lookup(packet, empty_at.saturating_sub(TIMESTAMP_LEAD_NS))?;
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

    fn real(at_start_ns: u64) -> RealTimeOffset {
        RealTimeOffset { at_start_ns, uncertainty: US }
    }

    fn clocks() -> Clocks {
        Clocks { clock: Clock::start(), real: real(1_000_000_000) }
    }

    /// The world's device with `count` datagrams for the island in it, and a link with 256 slots
    /// for packets. `None`, with a message, where labs cannot run.
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
                socket.send_to(&[0; 100], to).expect("space in the device");
            }
            Ok::<_, LabError>(())
        });
        sent.expect("a thread in the namespace");
    }

    /// Given 300 packets in a device and 256 slots, expect 44 packets dropped and counted and the
    /// device empty: a packet left in a device would wake the driver again at once.
    #[test]
    fn packets_without_a_slot_are_read_and_counted() {
        let Some((world, mut emulator)) = full_store(300) else { return };
        let mut ingress = Ingress::new(world.device, None, 1_500);
        let mut read = 0;
        while ingress.read(&mut emulator, clocks()).expect("a device") {
            read += ingress.read.drain(..).count();
        }
        read += ingress.read.len();
        assert_eq!((read, emulator.store_full()), (256, 44));
        assert!(!ingress.read(&mut emulator, clocks()).expect("a device"));
        assert_eq!(emulator.store_full(), 44, "an empty read counts nothing");
    }

    /// Given 20 timestamped packets and a step of the real-time clock, expect no timestamp to be
    /// used until the device was found empty, and all arrival times to be uncertain.
    #[test]
    fn timestamps_from_before_a_clock_step_are_not_used() {
        let Some((world, mut emulator)) = full_store(20) else { return };
        let mut ingress = Ingress::new(world.device, None, 1_500);
        let clocks = Clocks::new(Clock::start());
        ingress.on_clock_step();
        assert!(ingress.read(&mut emulator, clocks).expect("a device"), "a batch of 16");
        assert!(!ingress.timestamps_valid);
        assert!(ingress.read.drain(..).all(|packet| packet.uncertainty > Duration::ZERO));
        assert!(!ingress.read(&mut emulator, clocks).expect("a device"));
        assert!(ingress.timestamps_valid);
    }

    /// Given paused timestamps and 5 packets that arrive meanwhile, expect the packets to be read
    /// before the driver sleeps, with an uncertainty of the whole time: an empty ring does not mean
    /// an empty device.
    #[test]
    fn an_empty_ring_does_not_mean_an_empty_device() {
        let Some((world, mut emulator)) = full_store(0) else { return };
        let open = || Ok::<_, LabError>(Timestamps::open(INTERFACE, 500).ok());
        let mut timestamps = world.namespace.run(open).expect("a thread").expect("packet sockets");
        timestamps.set_paused(true);
        let mut ingress = Ingress::new(world.device, Some(timestamps), 1_500);
        let clocks = Clocks::new(Clock::start());
        assert!(!ingress.read(&mut emulator, clocks).expect("a device"), "it is empty");
        let empty_at = clocks.clock.now();
        send(&world.namespace, 5);
        assert!(ingress.prepare_sleep(), "the driver must not sleep yet");
        let waited = clocks.clock.now().saturating_since(empty_at);
        assert!(!ingress.read(&mut emulator, clocks).expect("a device"));
        assert_eq!(ingress.read.len(), 5);
        assert!(ingress.read.iter().all(|packet| packet.uncertainty >= waited));
        assert!(!ingress.prepare_sleep(), "now it may sleep");
        let none_before = ingress.empty_at;
        assert!(!ingress.read(&mut emulator, clocks).expect("a device"));
        assert_eq!(ingress.empty_at, none_before, "the device was not read");
    }

    /// Given two offsets with an uncertainty of 1 us each and a tolerance of 10 us, expect a step
    /// to be reported beyond a difference of 12 us in either direction, and only once.
    #[test]
    fn a_step_of_the_real_time_clock_is_detected() {
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
            assert_eq!(clocks.update_offset(real(at_start_ns)), stepped, "{at_start_ns}");
            assert!(!clocks.update_offset(real(at_start_ns)), "reported once");
        }
    }

    /// Given a packet read 2 s after the start, expect a timestamp before the read to be its
    /// arrival time, one up to 11 us later to count as the time of the read, and a later one to be
    /// rejected.
    #[test]
    fn a_timestamp_later_than_the_read_is_rejected() {
        let now = Instant::START + Duration::from_secs(2);
        let at = |stamp_ns| clocks().at(stamp_ns, now);
        assert_eq!(at(2_999_999_000), Some(Instant::from_nanos(1_999_999_000)));
        assert_eq!(at(3_000_011_000), Some(now));
        assert_eq!(at(3_000_011_001), None);
    }
}
