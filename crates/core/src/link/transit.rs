//! What a direction has let in and what has not arrived yet, in order.
//!
//! Packets come in runs of one size. The line keeps where each run begins and the sums of all that came
//! before it. What lies between two positions, however many packets that is, is then the difference of
//! two products, and neither a packet that comes nor one that passes a mark is added to anything.

use super::{Backlog, Framing, PacketSize, WaitingPackets};
use crate::packet::{FlowId, Packet};
use crate::ring::Ring;
use crate::time::Instant;

/// Sizes of packets, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SizeTotals {
    /// IP bytes.
    pub(super) bytes: u64,
    /// Bits on the link, framing included.
    pub(super) frame_bits: u64,
    /// Bytes on the link, those of each packet rounded up.
    pub(super) link_bytes: u64,
}

impl SizeTotals {
    /// So many packets of a size more.
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

/// How large a packet of so many IP bytes is on the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSize {
    pub(super) bytes: u32,
    /// A frame of the largest IP packet, 65,535 bytes, may grow a thousandfold within 32 bits.
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

/// Packets of one size that follow each other.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The position of the first.
    from: u64,
    /// Of all that came before it.
    before: SizeTotals,
    size: FrameSize,
}

/// A packet that was let in and has not arrived yet.
#[derive(Debug, Default)]
pub(super) struct InTransit {
    pub(super) arrival: Instant,
    /// When its first bit is sent.
    pub(super) start: Instant,
    /// As in the packet, which lies elsewhere in memory.
    pub(super) flow: FlowId,
    pub(super) corrupted: bool,
    pub(super) packet: Option<Box<Packet>>,
}

/// See the module's description. Positions count from the first packet that ever came.
#[derive(Debug)]
pub(super) struct Transit {
    ring: Ring<InTransit>,
    /// The one that the next packet is of.
    current: Run,
    /// Those before it of which something is in the line, and perhaps some more.
    runs: Vec<Run>,
}

impl Transit {
    /// An empty line, for packets of this size to begin with.
    pub(super) fn new(size: FrameSize) -> Self {
        let current = Run { from: 0, before: SizeTotals::default(), size };
        Self { ring: Ring::default(), current, runs: Vec::new() }
    }

    /// How many packets arrived: the position of the front.
    #[inline]
    pub(super) fn begin(&self) -> u64 {
        self.ring.begin()
    }

    /// How many packets came: the position of the next one.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.ring.end()
    }

    /// That of the next packet.
    #[inline]
    pub(super) fn size(&self) -> FrameSize {
        self.current.size
    }

    /// Packets of so many IP bytes come from here on. `size_of` tells how large they are on the link.
    pub(super) fn begin_run(&mut self, bytes: u32, size_of: impl FnOnce() -> FrameSize) {
        // Two sizes often take turns.
        let size = match self.runs.last() {
            Some(run) if run.size.bytes == bytes => run.size,
            _ => size_of(),
        };
        let (from, before) = (self.end(), self.totals());
        // A run without packets, since all of its size were refused, is of no account.
        if self.current.from < from {
            if self.runs.len() == self.runs.capacity() {
                self.prune_runs();
            }
            self.runs.push(self.current);
        }
        self.current = Run { from, before, size };
    }

    /// Forgets the runs of which nothing is in the line, and takes more memory where few are forgotten:
    /// so the next time is far.
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
        if position >= self.current.from { &self.current } else { self.older_run_of(position) }
    }

    #[inline(never)]
    fn older_run_of(&self, position: u64) -> &Run {
        debug_assert!(position >= self.begin(), "sizes of what has left are forgotten");
        let begun = self.runs.partition_point(|run| run.from <= position);
        &self.runs[begun - 1]
    }

    /// Of all that came.
    pub(super) fn totals(&self) -> SizeTotals {
        self.totals_before(self.end())
    }

    /// Of all that came before the packet at a position, or at the one behind the last.
    pub(super) fn totals_before(&self, position: u64) -> SizeTotals {
        let &Run { from, before, size } = self.run_of(position);
        before.plus(position - from, size)
    }

    /// How large the packet at a position is.
    pub(super) fn size_at(&self, position: u64) -> FrameSize {
        self.run_of(position).size
    }

    /// The packet at a position.
    pub(super) fn at(&self, position: u64) -> &InTransit {
        self.ring.at(position)
    }

    /// The packet at a position, to be given another way: it comes and leaves in its turn.
    pub(super) fn at_mut(&mut self, position: u64) -> &mut InTransit {
        self.ring.at_mut(position)
    }

    /// When the first bit of the packet at a position is sent.
    pub(super) fn start(&self, position: u64) -> Instant {
        self.ring.at(position).start
    }

    /// The packets from a position on: when the first bit of each is sent, and what a queue counts.
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

    /// The position behind the last packet whose first bit is sent by `now`, given one that is not
    /// behind it.
    pub(super) fn started_by(&self, now: Instant, from: u64) -> u64 {
        let (mut low, mut high) = (from.max(self.begin()), self.end());
        // Few start between two looks: steps that double find where to search.
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

    /// Whether the sums that the front takes with it are those of its packet.
    pub(super) fn front_matches_its_run(&self) -> bool {
        let (left, front) = (self.begin(), self.front().and_then(|front| front.packet.as_deref()));
        front.is_none_or(|packet| {
            let SizeTotals { bytes, .. } =
                self.totals_before(left + 1).since(self.totals_before(left));
            bytes == u64::from(packet.bytes)
        })
    }

    /// Takes the front, which must be there, out of its place.
    #[inline]
    pub(super) fn pop_front(&mut self) -> &mut InTransit {
        self.ring.pop_front()
    }

    /// A packet comes, of the size of the present run.
    #[inline]
    pub(super) fn push_back(&mut self, packet: InTransit) {
        self.ring.push_back(packet);
    }

    /// What follows a position, counted.
    pub(super) fn backlog_from(&self, position: u64) -> Backlog {
        let SizeTotals { bytes, link_bytes, .. } =
            self.totals().since(self.totals_before(position));
        Backlog { packets: self.end() - position, bytes, link_bytes }
    }

    /// What follows a position.
    pub(super) fn waiting_from(&self, position: u64) -> WaitingFrom<'_> {
        WaitingFrom { transit: self, position }
    }
}

/// What of a line follows a position.
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

    /// A line together with all that ever came, one by one.
    struct Model {
        transit: Transit,
        rng: Rng,
        came: Vec<(Instant, PacketSize)>,
        /// Of all that came before each, and before the next one.
        before: Vec<SizeTotals>,
        left: u64,
        now: Instant,
    }

    impl Model {
        fn new() -> Self {
            Self {
                transit: Transit::new(size(0)),
                rng: Rng::stream(5, "line"),
                came: Vec::new(),
                before: vec![SizeTotals::default()],
                left: 0,
                now: Instant::START,
            }
        }

        /// Given a size that a packet is refused with, the run that began for it stays empty.
        fn begin(&mut self, bytes: u32) {
            if bytes != self.transit.size().bytes {
                self.transit.begin_run(bytes, || size(bytes));
            }
        }

        fn push(&mut self, bytes: u32) {
            self.begin(bytes);
            let FrameSize { bytes, frame_bits, link_bytes } = size(bytes);
            // Several may start at one moment.
            self.now += Duration::from_nanos(self.rng.below(3));
            let (start, flow) = (self.now, FlowId(self.rng.below(5) as u32));
            self.transit.push_back(InTransit { start, flow, ..InTransit::default() });
            self.came.push((start, PacketSize { flow, bytes, link_bytes }));
            let mut sums = *self.before.last().expect("that before the first");
            sums.bytes += u64::from(bytes);
            sums.frame_bits += u64::from(frame_bits);
            sums.link_bytes += u64::from(link_bytes);
            self.before.push(sums);
        }

        fn pop(&mut self) {
            if self.left < self.transit.end() {
                self.transit.pop_front();
                self.left += 1;
            }
        }

        fn check(&mut self) {
            let Self { transit, came, before, left, .. } = self;
            let end = came.len() as u64;
            assert_eq!(
                (transit.begin(), transit.end(), transit.totals()),
                (*left, end, before[came.len()])
            );
            for position in *left..=end {
                assert_eq!(
                    transit.totals_before(position),
                    before[position as usize],
                    "before {position}"
                );
            }
            // A mark anywhere: what follows it, and what starts by some moment.
            let from = *left + self.rng.below(end - *left + 1);
            assert!(
                transit.packet_sizes(from).eq(came[from as usize..].iter().copied()),
                "from {from}"
            );
            let waiting = transit.waiting_from(*left);
            let behind = came[from as usize..].iter().map(|&(_, size)| size);
            assert!(waiting.after(from - *left).eq(behind.clone()), "behind {from}");
            assert_eq!(transit.backlog_from(from), testing::backlog(behind));
            let now = Instant::START + Duration::from_nanos(self.rng.below(end + 2));
            let started = came.partition_point(|&(start, _)| start <= now) as u64;
            // A mark may be behind the front, or where it belongs already.
            for mark in [0, from.min(started), started] {
                assert_eq!(transit.started_by(now, mark), started.max(*left), "{now}, from {mark}");
            }
        }
    }

    /// 31 bits more than its bytes on the link, up to 2^32 - 1 bits.
    fn size(bytes: u32) -> FrameSize {
        let frame_bits = bytes.saturating_mul(if bytes > 60_000 { 100_000 } else { 8 });
        let frame_bits = frame_bits.saturating_add(31);
        FrameSize { bytes, frame_bits, link_bytes: frame_bits.div_ceil(8) }
    }

    /// Given runs of up to 40 packets, two sizes in turns, sizes at random and sizes that come to
    /// nothing, in a line that grows and shrinks between nothing and some hundreds, expect what a list
    /// of all packets holds.
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
            let falls = if step / 1_000 % 2 == 1 { 60 } else { 16 };
            (0..model.rng.below(falls)).for_each(|_| model.pop());
            longest = longest.max(model.transit.end() - model.left);
            if step % 4 == 0 {
                model.check();
            }
        }
        assert!(longest > 300, "{longest} at the most");
        assert!(model.left > 20_000, "{} left", model.left);
    }

    /// Given a line of 10 packets of two sizes in turns, expect as little memory after 100,000 as after
    /// 1,000; given one of 3,000, all that it needs and not much more.
    #[test]
    fn runs_that_have_left_are_pruned() {
        let mut model = Model::new();
        let mut turns = |packets: u32, in_line: u64| {
            for turn in 0..packets {
                model.push(if turn % 2 == 0 { 40 } else { 1_500 });
                while model.transit.end() - model.left > in_line {
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
