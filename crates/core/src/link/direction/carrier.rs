//! What all packets of a direction pass, whenever their times are decided: transmitter, channel and
//! propagation.

use super::Direction;
use super::usage::Usage;
use super::waiting::Waiting;
use crate::engine::{Count, Cx};
use crate::link::transit::{FrameSize, InTransit, Transit};
use crate::link::{Channel, Framing, PacketSize, Propagation, Transmission, Transmitter};
use crate::packet::{FlowId, Packet};
use crate::profile::Profile;
use crate::time::{Duration, Instant};
use crate::trace::{DropCause, EventKind};
use crate::units::{BitRate, Bits};

/// The initial frame size.
pub(super) const NO_SIZE: FrameSize = FrameSize { bytes: 0, frame_bits: 0, link_bytes: 0 };

/// See the module's description.
#[derive(Debug)]
pub(super) struct Carrier {
    framing: Framing,
    pub(super) transmitter: Transmitter,
    pub(super) channel: Channel,
    pub(super) propagation: Propagation,
    pub(super) transit: Transit,
    /// The next deadline: the arrival of the first packet of `transit`, or the time when the transmitter
    /// becomes free, if a packet is dequeued then and that is earlier.
    pub(super) due: Option<Instant>,
    pub(super) dropped: [Count; DropCause::ALL.len()],
    pub(super) nested_lost: Count,
    pub(super) marked: Count,
    pub(super) waiting: Waiting,
    /// The size of the largest packet that has arrived.
    pub(super) largest: FrameSize,
    pub(super) usage: Option<Box<Usage>>,
}

impl Carrier {
    /// An idle carrier. `None` if the rate ends at zero.
    pub(super) fn new(
        framing: Framing,
        rate: Profile<BitRate>,
        channel: Channel,
        delay: Profile<Duration>,
    ) -> Option<Self> {
        Some(Self {
            framing,
            transmitter: Transmitter::new(rate)?,
            channel,
            propagation: Propagation::new(delay),
            transit: Transit::new(NO_SIZE),
            due: None,
            dropped: Default::default(),
            nested_lost: Count::default(),
            marked: Count::default(),
            waiting: Waiting::default(),
            largest: NO_SIZE,
            usage: None,
        })
    }

    /// Packets delivered, with their IP bytes.
    pub(super) fn delivered(&self) -> Count {
        let corrupted = self.dropped[DropCause::BitError as usize];
        let (packets, bytes) =
            (self.transit.begin(), self.transit.totals_before(self.transit.begin()).bytes);
        Count { packets: packets - corrupted.packets, bytes: bytes - corrupted.bytes }
    }

    /// The largest packet that has arrived.
    pub(super) fn largest_packet(&self) -> PacketSize {
        let FrameSize { bytes, link_bytes, .. } = self.largest;
        PacketSize { flow: FlowId::default(), bytes, link_bytes }
    }

    /// Counts a packet that is dropped.
    fn count_drop(&mut self, cx: &mut Cx<'_>, cause: DropCause, packet: &Packet) {
        self.dropped[cause as usize].add(packet.bytes);
        self.nested_lost.add_nested(packet);
        cx.record_drop(cause, packet);
    }

    /// Counts a packet that a discipline dropped.
    pub(super) fn on_drop(&mut self, cx: &mut Cx<'_>, cause: DropCause, packet: &Packet) {
        self.count_drop(cx, cause, packet);
        cx.note_freed();
    }

    #[cold]
    #[inline(never)]
    pub(super) fn drop(&mut self, cx: &mut Cx<'_>, cause: DropCause, packet: Box<Packet>) {
        self.count_drop(cx, cause, &packet);
        cx.discard(packet);
    }

    /// Counts a packet that the queue marked.
    #[cold]
    #[inline(never)]
    pub(super) fn count_mark(&mut self, cx: &mut Cx<'_>, packet: &Packet) {
        self.marked.add(packet.bytes);
        cx.trace(cx.now(), EventKind::Marked, packet);
    }

    /// Begins a run of packets of another size. Returns whether it is the largest so far.
    pub(super) fn begin_run(&mut self, bytes: u32) -> bool {
        let framing = &self.framing;
        self.transit.begin_run(bytes, || FrameSize::new(framing, bytes));
        let is_largest = bytes > self.largest.bytes;
        if is_largest {
            self.largest = self.transit.size();
        }
        is_largest
    }

    /// Notes an idle time of the transmitter since `free_at`, if there was one.
    #[inline(always)]
    pub(super) fn end_idle_time(&mut self, free_at: Instant, now: Instant) {
        if now > free_at
            && let Some(usage) = &mut self.usage
        {
            usage.on_idle(free_at, now);
        }
    }

    /// Schedules a packet on the transmitter and sends it.
    #[inline(always)]
    pub(super) fn transmit(
        &mut self,
        cx: &mut Cx<'_>,
        packet: Box<Packet>,
        frame_bits: u32,
        start: Instant,
    ) {
        let transmission = self.transmitter.take_from(start, Bits(frame_bits.into()));
        if let Some(usage) = &mut self.usage {
            usage.on_sent(&packet, transmission, frame_bits);
        }
        cx.trace(transmission.start, EventKind::Transmitted, &packet);
        self.send(cx.now(), transmission, packet, frame_bits);
    }

    /// Applies channel and propagation to a packet that the transmitter has scheduled.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        now: Instant,
        transmission: Transmission,
        mut packet: Box<Packet>,
        frame_bits: u32,
    ) {
        packet.transmitted = true;
        let Transmission { start, departure } = transmission;
        let corrupted = self.channel.corrupts(now, transmission, Bits(frame_bits.into()));
        let arrival = self.propagation.arrival(departure);
        if self.due.is_none() {
            self.due = Some(arrival);
        }
        let (flow, packet) = (packet.flow, Some(packet));
        self.transit.push_back(InTransit { arrival, start, flow, corrupted, packet });
    }

    #[inline]
    pub(super) fn first_arrival(&self) -> Option<Instant> {
        self.transit.front().map(|first| first.arrival)
    }

    /// Delivers the first packet in transit, or drops it if it is corrupted.
    #[inline(always)]
    pub(super) fn arrive(&mut self, cx: &mut Cx<'_>) {
        debug_assert!(self.transit.front_matches_its_run(), "delivered counts follow from runs");
        let first = self.transit.pop_front();
        let corrupted = first.corrupted;
        let Some(packet) = first.packet.take() else { return };
        self.due = self.first_arrival();
        if let Some(next) = self.transit.front().and_then(|next| next.packet.as_ref()) {
            // Prefetches the packet, which was written a propagation delay ago.
            std::hint::black_box(next.flow);
        }
        if corrupted {
            self.drop(cx, DropCause::BitError, packet);
            return;
        }
        cx.trace(cx.now(), EventKind::Delivered, &packet);
        cx.forward(Direction::OUT, packet);
    }
}
