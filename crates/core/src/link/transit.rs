//! The packets that a direction has accepted and not delivered yet, in order.
//!
//! Packets are stored in runs of equal size, each with its first position and the total of all packets
//! before it. The total before a position is that of its run, and the position in the run times the size; a
//! backlog is a difference of two totals. No counter is updated when a packet arrives or starts.

use super::{Backlog, Framing, PacketSize, WaitingPackets};
use crate::packet::{FlowId, Packet};
use crate::ring::Ring;
use crate::time::Instant;

/// Totals of packet sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SizeTotals {
    /// IP bytes.
    pub(super) bytes: u64,
    /// Bits on the link, framing included.
    pub(super) frame_bits: u64,
    /// Bytes on the link, rounded up for each packet.
    pub(super) link_bytes: u64,
}

impl SizeTotals {
    /// Adds `packets` packets of one size.
    fn plus(self, packets: u64, size: FrameSize) -> Self {
        Self {
            bytes: self.bytes + packets * u64::from(size.bytes),
            frame_bits: self.frame_bits + packets * u64::from(size.frame_bits),
            link_bytes: self.link_bytes + packets * u64::from(size.link_bytes),
        }
    }

    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes - earlier.bytes,
            frame_bits: self.frame_bits - earlier.frame_bits,
            link_bytes: self.link_bytes - earlier.link_bytes,
        }
    }
}

/// The size of a packet on the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSize {
    pub(super) bytes: u32,
    /// A frame of the largest IP packet, 65,535 bytes, can expand a thousandfold within 32 bits.
    pub(super) frame_bits: u32,
    pub(super) link_bytes: u32,
}

impl FrameSize {
    #[expect(clippy::cast_possible_truncation, reason = "an eighth of 32 bits")]
    pub(super) fn new(framing: &Framing, bytes: u32) -> Self {
        let frame_bits = u32::try_from(framing.frame(bytes).0).unwrap_or(u32::MAX);
        let link_bytes = u64::from(frame_bits).div_ceil(8) as u32;
        Self { bytes, frame_bits, link_bytes }
    }
}

/// Consecutive packets of one size.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The position of the first packet.
    from: u64,
    /// The totals of all packets before it.
    before: SizeTotals,
    size: FrameSize,
}

/// A packet that was accepted and has not been delivered yet.
#[derive(Debug, Default)]
pub(super) struct InTransit {
    pub(super) arrival: Instant,
    /// The start of its transmission.
    pub(super) start: Instant,
    /// A copy of the packet's field: the packet is elsewhere in memory.
    pub(super) flow: FlowId,
    pub(super) corrupted: bool,
    pub(super) packet: Option<Box<Packet>>,
}

/// See the module's description. Positions count from the first packet accepted.
#[derive(Debug)]
pub(super) struct Transit {
    ring: Ring<InTransit>,
    /// The run of the next packet.
    current: Run,
    /// Earlier runs: those with packets in transit, and possibly some before them.
    runs: Vec<Run>,
}

impl Transit {
    /// Empty, with this size for the first packet.
    pub(super) fn new(size: FrameSize) -> Self {
        let current = Run { from: 0, before: SizeTotals::default(), size };
        Self { ring: Ring::default(), current, runs: Vec::new() }
    }

    /// The number of packets delivered: the position of the front.
    #[inline]
    pub(super) fn begin(&self) -> u64 {
        self.ring.begin()
    }

    /// The number of packets accepted: the position of the next one.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.ring.end()
    }

    /// The size of the next packet.
    #[inline]
    pub(super) fn size(&self) -> FrameSize {
        self.current.size
    }

    /// Begins a run of packets of `bytes`. `size_of` computes their size on the link.
    pub(super) fn begin_run(&mut self, bytes: u32, size_of: impl FnOnce() -> FrameSize) {
        // Two sizes often alternate.
        let size = match self.runs.last() {
            Some(run) if run.size.bytes == bytes => run.size,
            _ => size_of(),
        };
        let (from, before) = (self.end(), self.totals());
        // A run stays empty if all its packets were dropped; it is not stored.
        if self.current.from < from {
            if self.runs.len() == self.runs.capacity() {
                self.prune_runs();
            }
            self.runs.push(self.current);
        }
        self.current = Run { from, before, size };
    }

    /// Removes runs without packets in transit, and doubles the capacity if few were removed, so that
    /// pruning is rare.
    #[cold]
    #[inline(never)]
    fn prune_runs(&mut self) {
        let begun = self.runs.partition_point(|run| run.from <= self.begin());
        self.runs.drain(..begun.saturating_sub(1));
        if self.runs.len() > self.runs.capacity() / 2 {
            self.runs.reserve(self.runs.capacity());
        }
    }

    #[inline]
    fn run_of(&self, position: u64) -> &Run {
        if position >= self.current.from { &self.current } else { self.earlier_run(position) }
    }

    #[inline(never)]
    fn earlier_run(&self, position: u64) -> &Run {
        debug_assert!(position >= self.begin(), "runs before the front are pruned");
        let begun = self.runs.partition_point(|run| run.from <= position);
        &self.runs[begun - 1]
    }

    /// The totals of all packets accepted.
    pub(super) fn totals(&self) -> SizeTotals {
        self.totals_before(self.end())
    }

    /// The totals of all packets before a position, which may be that of the next packet.
    pub(super) fn totals_before(&self, position: u64) -> SizeTotals {
        let &Run { from, before, size } = self.run_of(position);
        before.plus(position - from, size)
    }

    /// The size of the packet at a position.
    pub(super) fn size_at(&self, position: u64) -> FrameSize {
        self.run_of(position).size
    }

    /// The packet at a position.
    pub(super) fn at(&self, position: u64) -> &InTransit {
        self.ring.at(position)
    }

    /// The packet at a position, to change its times; its order does not change.
    pub(super) fn at_mut(&mut self, position: u64) -> &mut InTransit {
        self.ring.at_mut(position)
    }

    /// The start of transmission of the packet at a position.
    pub(super) fn start(&self, position: u64) -> Instant {
        self.ring.at(position).start
    }

    /// The packets from a position on: start of transmission, and size.
    pub(super) fn packet_sizes(
        &self,
        position: u64,
    ) -> impl Iterator<Item = (Instant, PacketSize)> {
        (position..self.end()).map(|position| {
            let &InTransit { start, flow, .. } = self.ring.at(position);
            let FrameSize { bytes, link_bytes, .. } = self.run_of(position).size;
            (start, PacketSize { flow, bytes, link_bytes })
        })
    }

    /// The position after the last packet whose transmission starts by `now`; `from` is a lower bound.
    pub(super) fn started_by(&self, now: Instant, from: u64) -> u64 {
        let (mut low, mut high) = (from.max(self.begin()), self.end());
        // Few packets start between two calls: exponential search, then binary search.
        let mut step = 1;
        while low + step < high {
            if self.start(low + step) > now {
                high = low + step;
                break;
            }
            low += step + 1;
            step *= 2;
        }
        while low < high {
            let middle = low.midpoint(high);
            if self.start(middle) <= now {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The packets themselves.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.ring.iter().filter_map(|next| next.packet.as_deref())
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&InTransit> {
        self.ring.front()
    }

    /// Whether the size in the first run is that of the front packet.
    pub(super) fn front_matches_its_run(&self) -> bool {
        let (begin, front) = (self.begin(), self.front().and_then(|front| front.packet.as_deref()));
        front.is_none_or(|packet| {
            let SizeTotals { bytes, .. } =
                self.totals_before(begin + 1).since(self.totals_before(begin));
            bytes == u64::from(packet.bytes)
        })
    }

    /// Removes the front, which must exist, and returns its slot.
    #[inline]
    pub(super) fn pop_front(&mut self) -> &mut InTransit {
        self.ring.pop_front()
    }

    /// Adds a packet of the size of the current run.
    #[inline]
    pub(super) fn push_back(&mut self, packet: InTransit) {
        self.ring.push_back(packet);
    }

    /// Removes the packets from a position on, and returns them in order.
    #[expect(clippy::vec_box, reason = "packets are passed by address")]
    pub(super) fn truncate(&mut self, position: u64) -> Vec<Box<Packet>> {
        if position < self.current.from {
            let before = self.totals_before(position);
            self.runs.retain(|run| run.from < position);
            self.current = Run { from: position, before, size: self.current.size };
        }
        let removed = (position..self.end()).map(|_| self.ring.pop_back().packet);
        let mut packets: Vec<_> = removed.flatten().collect();
        packets.reverse();
        packets
    }

    /// The backlog from a position on.
    pub(super) fn backlog_from(&self, position: u64) -> Backlog {
        let SizeTotals { bytes, link_bytes, .. } =
            self.totals().since(self.totals_before(position));
        Backlog { packets: self.end() - position, bytes, link_bytes }
    }

    /// The packets from a position on.
    pub(super) fn waiting_from(&self, position: u64) -> WaitingFrom<'_> {
        WaitingFrom { transit: self, position }
    }
}

/// The packets in transit from a position on.
pub(super) struct WaitingFrom<'a> {
    transit: &'a Transit,
    position: u64,
}

impl WaitingPackets for WaitingFrom<'_> {
    fn after(&self, first: u64) -> impl Iterator<Item = PacketSize> {
        self.transit.packet_sizes(self.position + first).map(|(_, size)| size)
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::testing;
    use super::*;
    use crate::rng::Rng;
    use crate::time::Duration;

    /// `Transit` and a list of all packets that were ever added.
    struct Model {
        transit: Transit,
        rng: Rng,
        pushed: Vec<(Instant, PacketSize)>,
        /// The totals before each packet, and before the next one.
        before: Vec<SizeTotals>,
        popped: u64,
        now: Instant,
    }

    impl Model {
        fn new() -> Self {
            Self {
                transit: Transit::new(size(0)),
                rng: Rng::stream(5, "line"),
                pushed: Vec::new(),
                before: vec![SizeTotals::default()],
                popped: 0,
                now: Instant::START,
            }
        }

        /// A packet that is dropped leaves the run that begins for it empty.
        fn begin(&mut self, bytes: u32) {
            if bytes != self.transit.size().bytes {
                self.transit.begin_run(bytes, || size(bytes));
            }
        }

        fn push(&mut self, bytes: u32) {
            self.begin(bytes);
            let FrameSize { bytes, frame_bits, link_bytes } = size(bytes);
            // Several may start at the same time.
            self.now += Duration::from_nanos(self.rng.below(3));
            let (start, flow) = (self.now, FlowId(self.rng.below(5) as u32));
            self.transit.push_back(InTransit { start, flow, ..InTransit::default() });
            self.pushed.push((start, PacketSize { flow, bytes, link_bytes }));
            let mut sums = *self.before.last().expect("that before the first");
            sums.bytes += u64::from(bytes);
            sums.frame_bits += u64::from(frame_bits);
            sums.link_bytes += u64::from(link_bytes);
            self.before.push(sums);
        }

        fn pop(&mut self) {
            if self.popped < self.transit.end() {
                self.transit.pop_front();
                self.popped += 1;
            }
        }

        fn check(&mut self) {
            let Self { transit, pushed, before, popped, .. } = self;
            let end = pushed.len() as u64;
            assert_eq!(
                (transit.begin(), transit.end(), transit.totals()),
                (*popped, end, before[pushed.len()])
            );
            for position in *popped..=end {
                assert_eq!(
                    transit.totals_before(position),
                    before[position as usize],
                    "before {position}"
                );
            }
            // Any position: the packets from it on, and those started by some time.
            let from = *popped + self.rng.below(end - *popped + 1);
            assert!(
                transit.packet_sizes(from).eq(pushed[from as usize..].iter().copied()),
                "from {from}"
            );
            let waiting = transit.waiting_from(*popped);
            let waiting_sizes = pushed[from as usize..].iter().map(|&(_, size)| size);
            assert!(waiting.after(from - *popped).eq(waiting_sizes.clone()), "waiting from {from}");
            assert_eq!(transit.backlog_from(from), testing::backlog(waiting_sizes));
            let now = Instant::START + Duration::from_nanos(self.rng.below(end + 2));
            let started = pushed.partition_point(|&(start, _)| start <= now) as u64;
            // The lower bound may be before the front, or exact.
            for mark in [0, from.min(started), started] {
                assert_eq!(
                    transit.started_by(now, mark),
                    started.max(*popped),
                    "{now}, from {mark}"
                );
            }
        }
    }

    /// Eight bits for each byte, or 100,000 for those of large packets, and 31 more; at most 2^32 - 1.
    fn size(bytes: u32) -> FrameSize {
        let frame_bits = bytes.saturating_mul(if bytes > 60_000 { 100_000 } else { 8 });
        let frame_bits = frame_bits.saturating_add(31);
        FrameSize { bytes, frame_bits, link_bytes: frame_bits.div_ceil(8) }
    }

    /// Given runs of up to 40 packets, two alternating sizes, random sizes and sizes without packets, with
    /// none to some hundreds in transit, expect the contents of a list of all packets.
    #[test]
    fn it_agrees_with_a_plain_list() {
        let mut model = Model::new();
        let mut longest = 0;
        for step in 0..6_000u32 {
            let bytes = 40 + 4_000 * model.rng.below(17) as u32;
            match step / 100 % 5 {
                0 => (0..model.rng.below(40)).for_each(|_| model.push(bytes)),
                1 => model.push(if step % 2 == 0 { 40 } else { 1_500 }),
                2 => model.begin(bytes),
                _ => model.push(bytes),
            }
            let pops_max = if step / 1_000 % 2 == 1 { 60 } else { 16 };
            (0..model.rng.below(pops_max)).for_each(|_| model.pop());
            longest = longest.max(model.transit.end() - model.popped);
            if step % 4 == 0 {
                model.check();
            }
        }
        assert!(longest > 300, "{longest} at most");
        assert!(model.popped > 20_000, "{} popped", model.popped);
    }

    /// Given 10 packets in transit of two alternating sizes, expect as little memory after 100,000 packets as
    /// after 1,000; given 3,000, expect memory for them and not much more.
    #[test]
    fn runs_that_have_left_are_pruned() {
        let mut model = Model::new();
        let mut turns = |packets: u32, in_line: u64| {
            for turn in 0..packets {
                model.push(if turn % 2 == 0 { 40 } else { 1_500 });
                while model.transit.end() - model.popped > in_line {
                    model.pop();
                }
            }
            model.check();
            model.transit.runs.capacity()
        };
        let early = turns(1_000, 10);
        assert_eq!(turns(100_000, 10), early);
        assert!(early <= 40, "{early} for some 10 runs");
        let many = turns(20_000, 3_000);
        assert!((3_000..=12_000).contains(&many), "{many} for some 3,000 runs");
    }
}
