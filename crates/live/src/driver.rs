//! The one loop: read what has come, run the link to the clock, write what is due, wait.
//!
//! One thread does it all, since waking another costs more than modelling a packet. It sleeps until
//! shortly before the next event and looks at the clock from there, because a sleep ends late by
//! tens of microseconds. Events happen at their own moments inside, however late the loop comes to
//! them, so lateness never adds up along a chain; it is measured where packets leave.

use std::io;
use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sim::InterfaceId;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::schedule::{Scheduling, prefer_this_thread};
use bentpipe_sys::stamps::Stamps;
use bentpipe_sys::tun::Tun;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::emulator::{Departure, Emulator};
use crate::entrance::{Clocks, Entrance, EntranceFaults};
use crate::error::LabError;
use crate::exit::{Exit, Hands};
use crate::lateness::Lateness;
use crate::store::Place;

/// An event that is nearer than this, and than a sleep is expected to last too long, is waited for by
/// looking at the clock.
const SPIN: Duration = Duration::from_micros(10);
/// A wait that was over within this was none. Longer than a wait without sleep takes, and no longer
/// than a sleep with its two changes of threads: nothing is lost by taking one for the other but
/// that a packet's lateness is told too high by so much.
const AT_ONCE: Duration = Duration::from_micros(10);
/// Packets that come may wait in their device for so long, if a link keeps them for longer anyway: then
/// one sleep serves many of them. Each has the time at which it came.
const UNWATCHED_MAX: Duration = Duration::from_millis(2);
/// No host is taken to send faster: a device must not overflow meanwhile.
const PACKET_INTERVAL_MIN: Duration = Duration::from_nanos(500);
/// A sleep that lasts longer beyond what was asked for tells of a busy machine, not of the next one.
const OVERSLEEP_MAX: Duration = Duration::from_micros(100);
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Stops a driver, or makes it look up, from any thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<(OwnedFd, AtomicBool)>);

impl Stop {
    /// One that has not been used.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new() -> Result<Self, LabError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| LabError::machine("making a descriptor", error, "raise ulimit -n"))?;
        Ok(Self(Arc::new((event, AtomicBool::new(false)))))
    }

    /// Asks the driver to end.
    pub fn stop(&self) {
        self.0.1.store(true, Ordering::Release);
        self.interrupt();
    }

    /// Makes the driver return from where it is, to be called again.
    pub fn interrupt(&self) {
        // It fails only if it was used 2^64 times.
        let _ = rustix::io::write(&self.0.0, &1_u64.to_ne_bytes());
    }

    /// Whether the driver is to go on, once it was interrupted.
    fn goes_on(&self) -> bool {
        if self.0.1.load(Ordering::Acquire) {
            return false;
        }
        let _ = rustix::io::read(&self.0.0, &mut [0; 8]);
        // Who asked in between is not to be forgotten.
        !self.0.1.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    /// Readable once somebody has asked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// What a driver saw of its own punctuality.
#[derive(Clone, Debug, Default)]
pub struct Punctuality {
    /// By how much packets may have been later than the link alone would have made them: what is
    /// not known of when they came, and how late the kernel had taken them. Of the driver, since this
    /// was last taken for a window; of a report, since the lab was set up.
    pub lateness: Lateness,
    /// Of this, what is not known of when they came.
    pub wait: Lateness,
    /// Packets that the kernel did not take.
    pub not_taken: u64,
    /// Super-packets that could not be split.
    pub not_split: u64,
    /// Packets longer than the link's longest, which it did not carry.
    pub too_long: u64,
    /// Packets stamped after they were read.
    pub future_stamps: u64,
    /// How often somebody set the real-time clock, by which packets are stamped.
    pub clock_steps: u64,
}

/// Reads, models and writes, until it is told to stop.
pub struct Driver {
    emulator: Emulator,
    /// By the number of the interface.
    entrances: Vec<Entrance>,
    clocks: Clocks,
    stop: Stop,
    punctuality: Punctuality,
    departures: Vec<Departure>,
    scheduling: Scheduling,
    /// Of the packet in each place.
    notes: Vec<Note>,
    /// Where packets are joined, if they are.
    exits: Option<Vec<Exit>>,
    oversleep: Oversleep,
    /// When a packet was last read.
    found_at: Instant,
    /// When all devices were last looked at, whatever their listeners were shown.
    looked_at: Instant,
}

impl Driver {
    /// A driver between devices, by the number of the interface, each with who listens there if anybody
    /// does: without one a packet counts from when it was read.
    #[must_use]
    pub fn new(
        emulator: Emulator,
        devices: impl IntoIterator<Item = (Tun, Option<Stamps>)>,
        clock: Clock,
        stop: Stop,
    ) -> Self {
        let packet_bytes_max = emulator.packet_bytes_max();
        let entrance = |(device, stamps)| Entrance::new(device, stamps, packet_bytes_max);
        Self {
            emulator,
            entrances: devices.into_iter().map(entrance).collect(),
            clocks: Clocks::new(clock),
            stop,
            punctuality: Punctuality::default(),
            departures: Vec::new(),
            scheduling: Scheduling::default(),
            notes: Vec::new(),
            exits: None,
            oversleep: Oversleep::default(),
            found_at: Instant::START,
            looked_at: Instant::START,
        }
    }

    /// Its devices hand over super-packets and take them. They are split before they are on the link,
    /// and what comes from it at a time is joined where it can be.
    pub fn take_super_packets(&mut self) {
        self.entrances.iter_mut().for_each(Entrance::take_super_packets);
        self.exits = Some(self.entrances.iter().map(|_| Exit::default()).collect());
    }

    /// Now, on its clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clocks.clock.now()
    }

    /// What is modelled.
    pub fn emulator_mut(&mut self) -> &mut Emulator {
        &mut self.emulator
    }

    /// How punctual it has been until now.
    pub fn punctuality(&mut self) -> &mut Punctuality {
        self.compare_clocks();
        let faults = self.entrances.iter().map(|entrance| entrance.faults);
        let faults = faults.fold(EntranceFaults::default(), EntranceFaults::plus);
        self.punctuality.not_split = faults.not_split;
        self.punctuality.too_long = faults.too_long;
        self.punctuality.future_stamps = faults.future_stamps;
        &mut self.punctuality
    }

    /// The link, once all is over.
    #[must_use]
    pub fn into_emulator(self) -> Emulator {
        self.emulator
    }

    /// Makes the calling thread the one that runs it.
    pub fn settle_in(&mut self) {
        prefer_this_thread();
        self.scheduling = Scheduling::of_this_thread();
    }

    /// Runs until `until`, or until somebody interrupts or stops it. Whether it may go on.
    ///
    /// # Errors
    /// If a device or the wait fails.
    pub fn run_until(&mut self, until: Instant) -> io::Result<bool> {
        self.compare_clocks();
        loop {
            let before = self.now();
            if before.saturating_since(self.looked_at) >= UNWATCHED_MAX {
                self.looked_at = before;
                self.entrances.iter_mut().for_each(Entrance::is_ready);
            }
            let (mut complete_until, mut found) = (None, false);
            for entrance in &mut self.entrances {
                let may_be_more = entrance.read(&mut self.emulator, self.clocks)?;
                found |= !entrance.read.is_empty();
                if may_be_more {
                    let until = complete_until.unwrap_or(entrance.complete_until());
                    complete_until = Some(until.min(entrance.complete_until()));
                }
            }
            let now = self.now();
            self.hand_over(complete_until.unwrap_or(now));
            self.write();
            if now >= until {
                return Ok(!self.sleep(Duration::ZERO)? || self.stop.goes_on());
            }
            if found {
                self.found_at = now;
            }
            if complete_until.is_none() && !self.wait(until)? {
                return Ok(self.stop.goes_on());
            }
        }
    }

    /// Hands what was read and came until `until` to the link, in the order in which it came, and runs
    /// the link until then. Nothing that came before may be read later: it would be too late for it.
    fn hand_over(&mut self, until: Instant) {
        loop {
            let came = |entrance: &Entrance| entrance.read.front().map(|packet| packet.at);
            let moments = self.entrances.iter().map(came).enumerate();
            let first = moments.filter_map(|(number, at)| Some((at?, number))).min();
            let Some((_, number)) = first else { break };
            let read = &mut self.entrances[number].read;
            let Some(&packet) = read.front().filter(|packet| packet.at <= until) else { break };
            read.pop_front();
            let unknown = packet.unknown + self.emulator.now().saturating_since(packet.at);
            self.punctuality.wait.add(unknown);
            let is_sound = packet.is_sound;
            note(&mut self.notes, packet.place, Note { unknown, is_sound });
            let from = InterfaceId(number as u32);
            self.emulator.arrive(packet.at, from, packet.place, packet.bytes);
        }
        self.emulator.run_until(until);
    }

    /// Waits for the next event, or until a packet comes. Where packets come one after the other, the next
    /// ones may wait. Whether the driver may go on.
    fn wait(&mut self, until: Instant) -> io::Result<bool> {
        let next = self.emulator.next_event().map_or(until, |at| at.min(until));
        let before = self.now();
        let is_busy = before.saturating_since(self.found_at) < UNWATCHED_MAX;
        let unwatched = if is_busy { self.unwatched() } else { Duration::ZERO };
        let is_watching = unwatched <= SPIN;
        let most = if is_watching { SLEEP_MAX } else { unwatched };
        let left = next.saturating_since(before).saturating_sub(self.oversleep.expected());
        if left > SPIN {
            let was_paused = |entrance: &mut Entrance| entrance.before_sleep();
            if self.entrances.iter_mut().map(was_paused).fold(false, |any, was| any | was) {
                return Ok(true);
            }
            let end = before + left.min(most);
            if is_watching {
                if self.sleep(left.min(most))? {
                    return Ok(false);
                }
            } else {
                self.clocks.clock.sleep_until(end);
            }
            self.woke(before, end);
        }
        while next.saturating_since(self.now()) <= SPIN && self.now() < next {
            std::hint::spin_loop();
        }
        Ok(true)
    }

    /// For how long nobody needs to look at the devices: until the first packet that comes now could be due.
    fn unwatched(&self) -> Duration {
        let capacity = self.entrances.iter().map(Entrance::queue_packets).min().unwrap_or(0);
        let fill = PACKET_INTERVAL_MIN.saturating_mul(capacity.into());
        if !self.entrances.iter().all(Entrance::is_stamped) {
            return Duration::ZERO;
        }
        let shortest = self.emulator.shortest_delay();
        UNWATCHED_MAX.min(fill).min(Duration::from_nanos(shortest.as_nanos() / 2))
    }

    /// A sleep from `before` until `end` at most is over.
    fn woke(&mut self, before: Instant, end: Instant) {
        let now = self.now();
        if now >= end {
            self.oversleep.add(now.saturating_since(end));
        }
        // What ended a wait at once may have been there before it: since the devices were seen empty.
        let slept = now.saturating_since(before);
        if slept > AT_ONCE {
            if !self.entrances.iter().all(Entrance::is_stamped) {
                // Else it came during the wait, or while this thread was ready to run and did not.
                if let Some(ready) = self.scheduling.kept_waiting() {
                    let none_before = before + slept.saturating_sub(ready);
                    self.entrances.iter_mut().for_each(|entrance| entrance.slept(none_before));
                }
            }
            self.compare_clocks();
        }
    }

    /// Others set the real-time clock.
    fn compare_clocks(&mut self) {
        if self.clocks.compare(self.clocks.clock.compare()) {
            self.punctuality.clock_steps += 1;
            self.entrances.iter_mut().for_each(Entrance::real_time_stepped);
        }
    }

    fn write(&mut self) {
        self.emulator.take_departures(&mut self.departures);
        if self.exits.is_some() {
            self.write_joined();
            return;
        }
        for departure in &self.departures {
            let device = &self.entrances[departure.to.0 as usize].device;
            let unknown = self.notes[departure.place.0 as usize].unknown;
            let packet = self.emulator.bytes(departure);
            let now = || self.clocks.clock.now();
            self.punctuality.hand_over([(departure, unknown)], || device.send(packet), now);
            self.emulator.free(departure.place);
        }
    }

    fn write_joined(&mut self) {
        let Some(exits) = &mut self.exits else { return };
        let mut hands = Hands {
            emulator: &mut self.emulator,
            clock: self.clocks.clock,
            punctuality: &mut self.punctuality,
        };
        for &departure in &self.departures {
            let Note { unknown, is_sound } = self.notes[departure.place.0 as usize];
            let number = departure.to.0 as usize;
            let device = &self.entrances[number].device;
            exits[number].put(departure, unknown, is_sound, device, &mut hands);
        }
        for (exit, entrance) in exits.iter_mut().zip(&self.entrances) {
            exit.flush(&entrance.device, &mut hands);
        }
    }

    /// Sleeps until a packet comes or the time is over. Whether somebody interrupts.
    fn sleep(&mut self, time: Duration) -> io::Result<bool> {
        let time = time.min(SLEEP_MAX).as_nanos();
        let timeout = Timespec {
            tv_sec: (time / 1_000_000_000).cast_signed(),
            tv_nsec: (time % 1_000_000_000).cast_signed(),
        };
        let devices = self.entrances.iter().map(|entrance| entrance.device.as_fd());
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
        for (entrance, _) in self.entrances.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready)
        {
            entrance.is_ready();
        }
        Ok(is_interrupted)
    }
}

/// How much longer a sleep lasts than was asked for: the mean, and by how much it differs from that, both
/// as TCP follows its round trips (RFC 6298, section 2).
#[derive(Clone, Copy, Debug, Default)]
struct Oversleep {
    mean: Duration,
    deviation: Duration,
}

impl Oversleep {
    fn add(&mut self, over: Duration) {
        let over = over.min(OVERSLEEP_MAX);
        let share = |old: Duration, new: Duration, of: u64| {
            Duration::from_nanos((old.as_nanos() * (of - 1) + new.as_nanos()) / of)
        };
        self.deviation = share(self.deviation, self.mean.abs_diff(over), 16);
        self.mean = share(self.mean, over, 16);
    }

    /// So much of it that few sleeps end early: the rest of these is spent looking at the clock.
    fn expected(self) -> Duration {
        self.mean.saturating_sub(self.deviation)
    }
}

/// What the link does not know of a packet.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    /// It came so much before the link was told, at most.
    unknown: Duration,
    /// Its checksum is known to be right.
    is_sound: bool,
}

fn note(notes: &mut Vec<Note>, place: Place, note: Note) {
    let place = place.0 as usize;
    if place >= notes.len() {
        notes.resize(place + 1, Note::default());
    }
    notes[place] = note;
}
