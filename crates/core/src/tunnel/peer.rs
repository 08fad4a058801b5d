//! What an endpoint knows of one peer: the encoder towards it, and the decoder of what comes from it.

use super::arrivals::{Arrivals, Decoded};
use super::feedback::Feedback;
use super::message::{FeedbackHeader, ReceiverId};
use super::redundancy::{OverflowConfig, RedundancyConfig, RedundancyController, RepairDue};
use super::tracker::{FeedbackRejected, FeedbackTracker};
use crate::coding::{
    Arrival, Code, Decoder, Density, Encoder, Limits, RepairId, SymbolId, SymbolRows,
};
use crate::packet::symbol::{RepairHeader, SourceHeader, StreamId};
use crate::time::{Duration, Instant};
use crate::token_bucket::{TokenBucket, TokenRate};

/// The first symbol of a stream.
const FIRST: SymbolId = SymbolId(0);
/// Restarts of a stream in each direction: one in this time, after a burst. A restart allocates the memory of a
/// code, and a peer could cause one with each message. One that restarts itself causes two in a round trip: it hears the
/// stream that was meant for its predecessor, and then the one that begins for itself.
const RESTARTS: TokenRate = TokenRate { each: Duration::from_secs(1), burst: 4 };
/// The time from a pause of a peer's packets to the repair for the last of them: longer than gaps between the packets
/// of a TCP sender that is not limited, shorter than the 200 ms of its least RTO.
const PAUSE: Duration = Duration::from_millis(20);
/// How long symbols of a former stream are taken for late ones: longer than any packet is in transit.
const FORMER_STREAM_FOR: Duration = Duration::from_secs(10);

/// The code between two ends, equal at both.
#[derive(Clone, Copy, Debug)]
pub struct PeerConfig {
    /// The code.
    pub code: Code,
    /// The density of its coefficients.
    pub density: Density,
    /// The symbols that the sender keeps for repair; the receiver keeps a quarter more, for symbols that overtake each
    /// other.
    pub memory_symbols: u16,
    /// The largest symbol.
    pub symbol_bytes: usize,
    /// The shortest time between two messages of the decoder; `None` for none.
    pub feedback_interval: Option<Duration>,
}

impl PeerConfig {
    fn limits(&self) -> Limits {
        let memory = usize::from(self.memory_symbols);
        Limits {
            span: memory + memory.div_ceil(4),
            equations: memory.div_ceil(2),
            symbol_bytes: self.symbol_bytes,
        }
    }
}

/// The symbols that repair covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    first: SymbolId,
    last: SymbolId,
}

/// Repair that waits: it is made when it is sent, because some of its symbols may have arrived by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldRepair {
    pub(super) peer: usize,
    pub(super) window: Window,
}

/// Repair that is due now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) count: u32,
    pub(super) window: Option<Window>,
}

/// Counts of one peer, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Source symbols sent to it.
    pub sources_sent: u64,
    /// Repair symbols sent to it.
    pub repairs_sent: u64,
    /// Source symbols that came from it and were new.
    pub sources_received: u64,
    /// Source symbols that came when they were known already.
    pub sources_redundant: u64,
    /// Source symbols that came when they had been given up.
    pub sources_late: u64,
    /// Repair symbols that came from it.
    pub repairs_received: u64,
    /// Those of them that were new equations.
    pub repairs_innovative: u64,
    /// Source symbols of it that were lost and decoded.
    pub recovered: u64,
    /// Source symbols of it that were never known.
    pub given_up: u64,
    /// Source symbols of it that are missing now.
    pub missing: u64,
    /// Messages sent to it.
    pub feedback_sent: u64,
    /// Messages of it that were read.
    pub feedback_received: u64,
    /// Repair for each source symbol now, in millionths.
    pub redundancy_ppm: u64,
    /// The loss that it is made for, in billionths.
    pub loss_ppb: u64,
    /// The times that a stream began anew, by either end.
    pub restarts: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Peer<R> {
    config: PeerConfig,
    redundancy: RedundancyConfig,
    overflow: Option<OverflowConfig>,
    counts: PeerCounts,
    /// The wake that the endpoint has noted.
    pub(super) noted_wake: Option<Instant>,

    stream: StreamId,
    encoder: Encoder<R>,
    controller: RedundancyController,
    tracker: FeedbackTracker,
    /// The next symbol, and the largest so far.
    next: SymbolId,
    largest_bytes: usize,
    key: u16,
    last_source_at: Instant,
    /// When to look whether a pause has begun; not after it has.
    pause_check_at: Option<Instant>,
    /// The receiver whose feedback came last.
    their_receiver: Option<ReceiverId>,
    sent_restarts: TokenBucket,

    receiver: ReceiverId,
    /// The stream that comes from the peer, and when it began.
    their_stream: Option<(StreamId, Instant)>,
    /// The stream before it.
    former_stream: Option<StreamId>,
    received_restarts: TokenBucket,
    decoder: Decoder<R>,
    arrivals: Arrivals,
    /// What the decoders of former streams gave up.
    given_up_before: u64,
}

impl<R: SymbolRows> Peer<R> {
    pub(super) fn new(
        config: PeerConfig,
        (redundancy, overflow): (RedundancyConfig, Option<OverflowConfig>),
        stream: StreamId,
        receiver: ReceiverId,
        now: Instant,
    ) -> Self {
        Self {
            config,
            redundancy,
            overflow,
            counts: PeerCounts::default(),
            noted_wake: None,
            stream,
            encoder: encoder(&config),
            controller: controller(redundancy, overflow),
            tracker: FeedbackTracker::new(now, FIRST),
            next: FIRST,
            largest_bytes: 0,
            key: 0,
            last_source_at: now,
            pause_check_at: None,
            their_receiver: None,
            sent_restarts: TokenBucket::FULL,
            receiver,
            their_stream: None,
            former_stream: None,
            received_restarts: TokenBucket::FULL,
            decoder: Decoder::new(config.code, FIRST, config.limits()),
            arrivals: arrivals(&config, FIRST),
            given_up_before: 0,
        }
    }

    pub(super) fn reconfigure(
        &mut self,
        redundancy: RedundancyConfig,
        overflow: Option<OverflowConfig>,
    ) {
        (self.redundancy, self.overflow) = (redundancy, overflow);
        self.controller.reconfigure(redundancy);
        self.controller.set_overflow(overflow);
    }

    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }

    pub(super) fn send(&mut self, now: Instant, symbol: &R::Symbol) -> (SymbolId, Option<Due>) {
        let id = self.encoder.push(symbol);
        self.next = id.plus(1);
        self.largest_bytes = self.largest_bytes.max(R::size(symbol));
        self.counts.sources_sent += 1;
        self.last_source_at = now;
        self.pause_check_at.get_or_insert(now + PAUSE);
        let due = self.controller.on_source(now, id);
        (id, (due.count > 0).then(|| self.due(due)))
    }

    /// The link's queue drops the last symbol sent.
    pub(super) fn on_overflow(&mut self, now: Instant) -> Option<Due> {
        let due = self.controller.on_overflow(now, self.last());
        (due.count > 0).then(|| self.due(due))
    }

    fn due(&self, due: RepairDue) -> Due {
        let window = self.tracker.window(self.last(), due.window);
        Due { count: due.count, window: window.map(|(first, last)| Window { first, last }) }
    }

    /// The last symbol sent.
    fn last(&self) -> SymbolId {
        self.next.minus(1)
    }

    /// The size of a repair symbol, at most.
    pub(super) fn repair_bytes(&self) -> u32 {
        u32::try_from(self.largest_bytes).unwrap_or(u32::MAX)
    }

    /// The key of a repair symbol for a window, unless its symbols are not kept any more.
    pub(super) fn next_key(&mut self, window: Window) -> Option<u16> {
        let (first, count) = self.encoder.window();
        let is_kept = count > 0 && window.last.ahead_of(first) >= 0;
        is_kept.then(|| {
            self.key = self.key.wrapping_add(1);
            self.key
        })
    }

    pub(super) fn repair(
        &mut self,
        window: Window,
        key: u16,
    ) -> Option<(RepairHeader, &R::Symbol)> {
        let Window { first, last } = window;
        let stream = self.stream;
        let (id, symbol) = self.encoder.repair_of(first, last.plus(1), key, self.config.density)?;
        self.counts.repairs_sent += 1;
        Some((RepairHeader { stream, id }, symbol))
    }

    pub(super) fn is_needed(&self, window: Window) -> bool {
        self.tracker.is_needed(window.first, window.last)
    }

    pub(super) fn on_feedback(
        &mut self,
        now: Instant,
        header: FeedbackHeader,
        feedback: Feedback,
        held: u32,
    ) -> Result<Due, FeedbackRejected> {
        if self.their_receiver.is_some_and(|known| known != header.receiver) {
            if !self.sent_restarts.take(RESTARTS, now) {
                return Err(FeedbackRejected::Stale);
            }
            self.restart_stream(now);
        }
        self.their_receiver = Some(header.receiver);
        if header.stream != self.stream {
            return Err(FeedbackRejected::Stale);
        }
        let mut report = self.tracker.on_feedback(now, feedback, self.last())?;
        self.counts.feedback_received += 1;
        self.encoder.release_before(report.next);
        // The decoder may miss symbols that are not kept here: no repair brings them back.
        report.deficit = report.deficit.min(self.tracker.missing_from(self.encoder.window().0));
        let due = self.controller.on_report(now, &report, self.last(), held);
        Ok(self.due(due))
    }

    /// The peer has restarted and knows nothing of this stream.
    fn restart_stream(&mut self, now: Instant) {
        self.stream = StreamId(self.stream.0.wrapping_add(1));
        self.encoder = encoder(&self.config);
        self.controller = controller(self.redundancy, self.overflow);
        self.tracker = FeedbackTracker::new(now, FIRST);
        self.next = FIRST;
        self.counts.restarts += 1;
    }

    pub(super) fn on_pause(&mut self, now: Instant) -> Option<Due> {
        self.pause_check_at.filter(|&at| at <= now)?;
        let pause_at = self.last_source_at + PAUSE;
        if now < pause_at {
            self.pause_check_at = Some(pause_at);
            return None;
        }
        self.pause_check_at = None;
        let due = self.controller.on_pause(now, self.last());
        (due.count > 0).then(|| self.due(due))
    }

    pub(super) fn on_source(
        &mut self,
        now: Instant,
        header: SourceHeader,
        symbol: &R::Symbol,
    ) -> Arrival {
        let SourceHeader { stream, id, sent_us } = header;
        if !self.follow(now, stream, id) {
            return Arrival::Stale;
        }
        let arrival = self.decoder.on_source(id, symbol);
        let counts = &mut self.counts;
        match arrival {
            Arrival::Innovative => {
                counts.sources_received += 1;
                let now_us = (now.as_nanos() / 1_000) as u32;
                self.arrivals.on_source(now, id, now_us.wrapping_sub(sent_us));
            }
            Arrival::Redundant => counts.sources_redundant += 1,
            Arrival::Stale => counts.sources_late += 1,
            Arrival::Refused => {}
        }
        counts.recovered += self.decoder.recovered().len() as u64;
        arrival
    }

    pub(super) fn on_repair(
        &mut self,
        now: Instant,
        header: RepairHeader,
        symbol: &R::Symbol,
    ) -> Arrival {
        let RepairHeader { stream, id } = header;
        if !self.follow(now, stream, id.first) {
            return Arrival::Stale;
        }
        let arrival = self.decoder.on_repair(id, symbol);
        self.counts.repairs_received += 1;
        self.counts.repairs_innovative += u64::from(arrival == Arrival::Innovative);
        self.counts.recovered += self.decoder.recovered().len() as u64;
        if arrival != Arrival::Refused {
            self.arrivals.on_repair(now, last_of(id));
        }
        arrival
    }

    /// A symbol of a stream arrived. If that is a new one, the present one ends. Returns whether it is the present one then:
    /// neither the former one, nor one too many.
    fn follow(&mut self, now: Instant, stream: StreamId, id: SymbolId) -> bool {
        if let Some((present, began_at)) = self.their_stream {
            if present == stream {
                return true;
            }
            self.decoder.clear_recovered();
            let is_former =
                self.former_stream == Some(stream) && now < began_at + FORMER_STREAM_FOR;
            if is_former || !self.received_restarts.take(RESTARTS, now) {
                return false;
            }
            self.counts.restarts += 1;
            self.former_stream = Some(present);
        }
        self.their_stream = Some((stream, now));
        // A stream that is further was begun while this end did not run.
        let limits = self.config.limits();
        let is_from_its_start = id.since(FIRST).is_some_and(|count| (count as usize) < limits.span);
        let first = if is_from_its_start { FIRST } else { id };
        self.given_up_before += self.decoder.lost();
        self.decoder = Decoder::new(self.config.code, first, limits);
        self.arrivals = arrivals(&self.config, first);
        true
    }

    pub(super) fn their_stream(&self) -> Option<StreamId> {
        self.their_stream.map(|(stream, _)| stream)
    }

    pub(super) fn recovered(&self) -> &[SymbolId] {
        self.decoder.recovered()
    }

    pub(super) fn symbol(&self, id: SymbolId) -> Option<&R::Symbol> {
        self.decoder.symbol(id)
    }

    #[inline]
    pub(super) fn is_missing(&self, id: SymbolId) -> bool {
        self.decoder.is_missing(id)
    }

    pub(super) fn feedback(&mut self, now: Instant) -> Option<(FeedbackHeader, Feedback)> {
        let stream = self.their_stream()?;
        self.config.feedback_interval?;
        let decoder = &self.decoder;
        let decoded = Decoded {
            next: decoder.missing().next().unwrap_or(decoder.span().end),
            deficit: u32::try_from(decoder.deficit()).unwrap_or(u32::MAX),
            given_up: decoder.lost() as u32,
        };
        let is_missing = |id| decoder.symbol(id).is_none();
        let feedback = self.arrivals.report(now, decoded, is_missing)?;
        self.counts.feedback_sent += 1;
        Some((FeedbackHeader { stream, receiver: self.receiver }, feedback))
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let feedback = self.config.feedback_interval.and(self.arrivals.next_wake());
        self.pause_check_at.into_iter().chain(feedback).min()
    }

    pub(super) fn counts(&self) -> PeerCounts {
        PeerCounts {
            given_up: self.given_up_before + self.decoder.lost(),
            missing: self.decoder.missing().count() as u64,
            redundancy_ppm: self.controller.redundancy_ppm(),
            loss_ppb: self.controller.loss_ppb(),
            ..self.counts
        }
    }
}

fn controller(
    redundancy: RedundancyConfig,
    overflow: Option<OverflowConfig>,
) -> RedundancyController {
    let mut controller = RedundancyController::new(redundancy);
    controller.set_overflow(overflow);
    controller
}

fn encoder<R: SymbolRows>(config: &PeerConfig) -> Encoder<R> {
    Encoder::new(config.code, FIRST, config.memory_symbols, config.symbol_bytes)
}

fn arrivals(config: &PeerConfig, first: SymbolId) -> Arrivals {
    Arrivals::new(first, config.feedback_interval.unwrap_or(Duration::ZERO))
}

fn last_of(id: RepairId) -> SymbolId {
    id.first.plus(u32::from(id.count) - 1)
}
