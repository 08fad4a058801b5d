//! The event loop: reads packets that arrived, runs the link up to the current time, writes packets that
//! are due, and waits.
//!
//! It is one thread, because waking another costs more than simulating a packet. A sleep ends late
//! by tens of microseconds, so it sleeps until shortly before the next event and then spins. Events
//! inside the link happen at their own times however late the loop processes them, so lateness does
//! not accumulate along a chain. It is measured where packets leave.

use std::io;
use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sim::InterfaceId;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::schedule::{RunDelay, request_real_time_scheduling};
use bentpipe_sys::timestamps::Timestamps;
use bentpipe_sys::tun::Tun;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::egress::{Egress, EgressContext};
use crate::emulator::{Departure, Emulator};
use crate::error::LabError;
use crate::ingress::{Clocks, Ingress, IngressFaults};
use crate::lateness::Limits;
use crate::punctuality::Punctuality;
use crate::store::Slot;

/// The loop spins instead of sleeping if the next event is nearer than this plus the expected
/// oversleep.
const SPIN: Duration = Duration::from_micros(10);
/// A wait that ends within this did not sleep. It is longer than a poll that returns at once and no
/// longer than a sleep with its two context switches. A sleep mistaken for none only raises the
/// lateness of a packet by this much.
const IMMEDIATE_WAKEUP: Duration = Duration::from_micros(10);
/// The longest time that packets may wait in a device of a link that delays them for longer anyway:
/// one sleep then serves many packets. Each has the timestamp of its arrival.
const UNPOLLED_MAX: Duration = Duration::from_millis(2);
/// The shortest interval between packets of one host, by assumption: the device must not overflow
/// while it is not polled.
const PACKET_INTERVAL_MIN: Duration = Duration::from_nanos(500);
/// Oversleep beyond this is due to a busy machine and does not predict the next sleep.
const OVERSLEEP_MAX: Duration = Duration::from_micros(100);
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Stops or interrupts a driver, from any thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<(OwnedFd, AtomicBool)>);

impl Stop {
    /// Creates a handle.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn new() -> Result<Self, LabError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| LabError::machine("creating an eventfd", error, "raise ulimit -n"))?;
        Ok(Self(Arc::new((event, AtomicBool::new(false)))))
    }

    /// Stops the driver permanently.
    pub fn stop(&self) {
        self.0.1.store(true, Ordering::Release);
        self.interrupt();
    }

    /// Makes [`Driver::run_until`] return; it may be called again.
    pub fn interrupt(&self) {
        // It fails only after 2^64 writes.
        let _ = rustix::io::write(&self.0.0, &1_u64.to_ne_bytes());
    }

    /// Clears an interrupt. Returns false if the driver must stop.
    fn should_continue(&self) -> bool {
        if self.0.1.load(Ordering::Acquire) {
            return false;
        }
        let _ = rustix::io::read(&self.0.0, &mut [0; 8]);
        // `stop` may have been called before the read.
        !self.0.1.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    /// Readable after a stop or an interrupt.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// The event loop of a link and its devices.
pub struct Driver {
    emulator: Emulator,
    /// By interface.
    ingresses: Vec<Ingress>,
    clocks: Clocks,
    stop: Stop,
    punctuality: Punctuality,
    departures: Vec<Departure>,
    run_delay: RunDelay,
    /// By slot of the packet.
    notes: Vec<PacketNote>,
    /// Present if devices take super-packets.
    egresses: Option<Vec<Egress>>,
    oversleep: Oversleep,
    /// When a packet was last read.
    last_packet_at: Instant,
    /// When all devices were last read, frames or not.
    last_poll_at: Instant,
}

impl Driver {
    /// Creates a driver between devices, by interface, each with its timestamps. Without timestamps
    /// the time of the read is the arrival time.
    #[must_use]
    pub fn new(
        emulator: Emulator,
        devices: impl IntoIterator<Item = (Tun, Option<Timestamps>)>,
        clock: Clock,
        stop: Stop,
    ) -> Self {
        let packet_bytes_max = emulator.packet_bytes_max();
        let ingress = |(device, timestamps)| Ingress::new(device, timestamps, packet_bytes_max);
        Self {
            emulator,
            ingresses: devices.into_iter().map(ingress).collect(),
            clocks: Clocks::new(clock),
            stop,
            punctuality: Punctuality::default(),
            departures: Vec::new(),
            run_delay: RunDelay::default(),
            notes: Vec::new(),
            egresses: None,
            oversleep: Oversleep::default(),
            last_packet_at: Instant::START,
            last_poll_at: Instant::START,
        }
    }

    /// Exchanges super-packets with the devices: segments them before the link, and coalesces
    /// packets that leave it at the same time where possible.
    pub fn enable_super_packets(&mut self) {
        self.ingresses.iter_mut().for_each(Ingress::enable_super_packets);
        self.egresses = Some(self.ingresses.iter().map(|_| Egress::default()).collect());
    }

    /// The current time of its clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clocks.clock.now()
    }

    /// Sets the limits of lateness of packets from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.punctuality.lateness.set_limits(limits);
    }

    /// The link.
    pub fn emulator_mut(&mut self) -> &mut Emulator {
        &mut self.emulator
    }

    /// Its punctuality so far.
    pub fn punctuality(&mut self) -> &mut Punctuality {
        self.compare_clocks();
        let faults = self.ingresses.iter().map(|ingress| ingress.faults);
        let faults = faults.fold(IngressFaults::default(), IngressFaults::plus);
        self.punctuality.unsegmented = faults.unsegmented;
        self.punctuality.too_long = faults.too_long;
        self.punctuality.future_stamps = faults.future_stamps;
        &mut self.punctuality
    }

    /// Returns the link.
    #[must_use]
    pub fn into_emulator(self) -> Emulator {
        self.emulator
    }

    /// Prepares the calling thread for running the driver. Returns whether it has priority over ordinary
    /// programs.
    pub fn prepare_thread(&mut self) -> bool {
        self.run_delay = RunDelay::of_this_thread();
        request_real_time_scheduling()
    }

    /// Runs until `until`, an interrupt or a stop. Returns false after a stop.
    ///
    /// # Errors
    /// If a device or poll(2) fails.
    pub fn run_until(&mut self, until: Instant) -> io::Result<bool> {
        self.compare_clocks();
        loop {
            let before = self.now();
            if before.saturating_since(self.last_poll_at) >= UNPOLLED_MAX {
                self.last_poll_at = before;
                self.ingresses.iter_mut().for_each(Ingress::set_ready);
            }
            let (mut read_until, mut found) = (None, false);
            for ingress in &mut self.ingresses {
                let may_be_more = ingress.read(&mut self.emulator, self.clocks)?;
                found |= !ingress.read.is_empty();
                if may_be_more {
                    let until = read_until.unwrap_or(ingress.read_until());
                    read_until = Some(until.min(ingress.read_until()));
                }
            }
            let now = self.now();
            self.feed(read_until.unwrap_or(now));
            self.write();
            if now >= until {
                return Ok(!self.sleep(Duration::ZERO)? || self.stop.should_continue());
            }
            if found {
                self.last_packet_at = now;
            }
            if read_until.is_none() && !self.wait(until)? {
                return Ok(self.stop.should_continue());
            }
        }
    }

    /// Feeds packets that arrived until `until` to the link, in order of arrival, and runs the link
    /// until then. No earlier packet may be read afterwards: it would be too late for the link.
    fn feed(&mut self, until: Instant) {
        loop {
            let arrival = |ingress: &Ingress| ingress.read.front().map(|packet| packet.at);
            let arrivals = self.ingresses.iter().map(arrival).enumerate();
            let first = arrivals.filter_map(|(number, at)| Some((at?, number))).min();
            let Some((_, number)) = first else { break };
            let read = &mut self.ingresses[number].read;
            let Some(&packet) = read.front().filter(|packet| packet.at <= until) else { break };
            read.pop_front();
            let uncertainty = packet.uncertainty + self.emulator.now().saturating_since(packet.at);
            self.punctuality.wait.add(uncertainty);
            let checksum_valid = packet.checksum_valid;
            set_note(&mut self.notes, packet.slot, PacketNote { uncertainty, checksum_valid });
            let from = InterfaceId(number as u32);
            self.emulator.arrive(packet.at, from, packet.slot, packet.bytes);
        }
        self.emulator.run_until(until);
    }

    /// Waits for the next event or the next packet. While packets arrive steadily, the next ones
    /// may wait in their devices. Returns false after an interrupt.
    fn wait(&mut self, until: Instant) -> io::Result<bool> {
        let next = self.emulator.next_event().map_or(until, |at| at.min(until));
        let before = self.now();
        let is_busy = before.saturating_since(self.last_packet_at) < UNPOLLED_MAX;
        let unpolled = if is_busy { self.unpolled() } else { Duration::ZERO };
        let polls_devices = unpolled <= SPIN;
        let sleep_max = if polls_devices { SLEEP_MAX } else { unpolled };
        let left = next.saturating_since(before).saturating_sub(self.oversleep.expected());
        if left > SPIN {
            let was_paused = |ingress: &mut Ingress| ingress.prepare_sleep();
            if self.ingresses.iter_mut().map(was_paused).fold(false, |any, was| any | was) {
                return Ok(true);
            }
            let end = before + left.min(sleep_max);
            if polls_devices {
                if self.sleep(left.min(sleep_max))? {
                    return Ok(false);
                }
            } else {
                self.clocks.clock.sleep_until(end);
            }
            self.on_wakeup(before, end);
        }
        while next.saturating_since(self.now()) <= SPIN && self.now() < next {
            std::hint::spin_loop();
        }
        Ok(true)
    }

    /// How long the devices need not be polled: until a packet that arrives now could be due.
    fn unpolled(&self) -> Duration {
        let capacity = self.ingresses.iter().map(Ingress::queue_packets).min().unwrap_or(0);
        let fill = PACKET_INTERVAL_MIN.saturating_mul(capacity.into());
        if !self.ingresses.iter().all(Ingress::is_timestamped) {
            return Duration::ZERO;
        }
        let shortest = self.emulator.shortest_delay();
        UNPOLLED_MAX.min(fill).min(Duration::from_nanos(shortest.as_nanos() / 2))
    }

    /// Accounts for a sleep from `before` until at most `end`.
    fn on_wakeup(&mut self, before: Instant, end: Instant) {
        let now = self.now();
        if now >= end {
            self.oversleep.add(now.saturating_since(end));
        }
        // A packet that ended the wait at once may have arrived before it, at any time since the
        // devices were found empty.
        let slept = now.saturating_since(before);
        if slept > IMMEDIATE_WAKEUP {
            if !self.ingresses.iter().all(Ingress::is_timestamped) {
                // Otherwise it arrived during the wait, or while this thread was runnable and
                // waited for a processor.
                if let Some(ready) = self.run_delay.take() {
                    let none_before = before + slept.saturating_sub(ready);
                    self.ingresses.iter_mut().for_each(|ingress| ingress.on_wakeup(none_before));
                }
            }
            self.compare_clocks();
        }
    }

    /// Detects steps of the real-time clock.
    fn compare_clocks(&mut self) {
        if self.clocks.update_offset(self.clocks.clock.real_time_offset()) {
            self.punctuality.clock_steps += 1;
            self.ingresses.iter_mut().for_each(Ingress::on_clock_step);
        }
    }

    fn write(&mut self) {
        self.emulator.take_departures(&mut self.departures);
        if self.egresses.is_some() {
            self.write_coalesced();
            return;
        }
        for departure in &self.departures {
            let device = &self.ingresses[departure.to.0 as usize].device;
            let uncertainty = self.notes[departure.slot.0 as usize].uncertainty;
            let packet = self.emulator.bytes(departure);
            let now = || self.clocks.clock.now();
            self.punctuality.deliver([(departure, uncertainty)], || device.send(packet), now);
            self.emulator.free(departure.slot);
        }
    }

    fn write_coalesced(&mut self) {
        let Some(egresses) = &mut self.egresses else { return };
        let mut context = EgressContext {
            emulator: &mut self.emulator,
            clock: self.clocks.clock,
            punctuality: &mut self.punctuality,
        };
        for &departure in &self.departures {
            let PacketNote { uncertainty, checksum_valid } = self.notes[departure.slot.0 as usize];
            let number = departure.to.0 as usize;
            let device = &self.ingresses[number].device;
            egresses[number].push(departure, uncertainty, checksum_valid, device, &mut context);
        }
        for (egress, ingress) in egresses.iter_mut().zip(&self.ingresses) {
            egress.flush(&ingress.device, &mut context);
        }
    }

    /// Sleeps until a packet arrives or the time elapses. Returns whether it was interrupted.
    fn sleep(&mut self, time: Duration) -> io::Result<bool> {
        let time = time.min(SLEEP_MAX).as_nanos();
        let timeout = Timespec {
            tv_sec: (time / 1_000_000_000).cast_signed(),
            tv_nsec: (time % 1_000_000_000).cast_signed(),
        };
        let devices = self.ingresses.iter().map(|ingress| ingress.device.as_fd());
        let descriptors = iter::once(self.stop.as_fd()).chain(devices);
        let mut polled: Vec<_> =
            descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let mut ready = polled.iter().map(|polled| !polled.revents().is_empty());
        let is_interrupted = ready.next().unwrap_or(false);
        let ready: Vec<_> = ready.collect();
        for (ingress, _) in self.ingresses.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
            ingress.set_ready();
        }
        Ok(is_interrupted)
    }
}

/// The oversleep: how much longer than requested a sleep lasts, as a smoothed mean and deviation
/// (as for round-trip times in RFC 6298, section 2).
#[derive(Clone, Copy, Debug, Default)]
struct Oversleep {
    mean: Duration,
    deviation: Duration,
}

impl Oversleep {
    fn add(&mut self, oversleep: Duration) {
        let oversleep = oversleep.min(OVERSLEEP_MAX);
        let smooth = |old: Duration, new: Duration, of: u64| {
            Duration::from_nanos((old.as_nanos() * (of - 1) + new.as_nanos()) / of)
        };
        self.deviation = smooth(self.deviation, self.mean.abs_diff(oversleep), 16);
        self.mean = smooth(self.mean, oversleep, 16);
    }

    /// An oversleep that most sleeps reach, so that few end late; the rest is spent spinning.
    fn expected(self) -> Duration {
        self.mean.saturating_sub(self.deviation)
    }
}

/// The driver's state of a packet in the link.
#[derive(Clone, Copy, Debug, Default)]
struct PacketNote {
    /// How much before the link's time it may have arrived.
    uncertainty: Duration,
    /// Whether its checksum is known to be valid.
    checksum_valid: bool,
}

fn set_note(notes: &mut Vec<PacketNote>, slot: Slot, note: PacketNote) {
    let slot = slot.0 as usize;
    if slot >= notes.len() {
        notes.resize(slot + 1, PacketNote::default());
    }
    notes[slot] = note;
}
