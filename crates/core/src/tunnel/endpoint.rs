//! One end of a coded tunnel to one or more peers: the code and the policies around it, without contents.
//!
//! The shell around an endpoint (an engine of a simulation, or a daemon) has the packets. It sends what the
//! endpoint returns and tells it what it sent:
//!
//! - A packet from the hosts: [`Endpoint::classify`]. If it is coded, it becomes a symbol, with
//!   [`Endpoint::on_source_sent`], and the shell sends it. After each packet that went to the link:
//!   [`Endpoint::on_sent`], and all of [`Endpoint::next_repair`].
//! - A symbol from the link: [`Endpoint::on_source`] or [`Endpoint::on_repair`], then the symbols of
//!   [`Endpoint::recovered`].
//! - A message of a decoder: [`Endpoint::on_feedback`].
//! - At [`Endpoint::next_wake`], and after any of the above: [`Endpoint::wake`], all of
//!   [`Endpoint::next_repair`] and all of [`Endpoint::next_feedback`].

use std::collections::BTreeSet;

use super::classifier::{Classifier, ClassifierConfig, Treatment};
use super::feedback::Feedback;
use super::flow_table::FlowKey;
use super::message::{FeedbackHeader, ReceiverId};
use super::peer::{HeldRepair, Peer, PeerConfig, PeerCounts};
use super::redundancy::{OverflowConfig, RedundancyConfig};
use super::shadow_queue::{ShadowQueue, ShadowQueueConfig};
use super::titrator::{Titrator, TitratorConfig, TitratorCounts};
use super::tracker::FeedbackRejected;
use crate::coding::{Arrival, SymbolId, SymbolRows};
use crate::packet::symbol::{RepairHeader, SourceHeader, StreamId};
use crate::time::Instant;
use crate::units::BitRate;

/// The settings of an [`Endpoint`].
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Which packets are coded.
    pub classifier: ClassifierConfig,
    /// How much repair is made for each peer.
    pub redundancy: RedundancyConfig,
    /// How much more for symbols that the link's queue drops.
    pub overflow: Option<OverflowConfig>,
    /// When it is sent.
    pub titrator: TitratorConfig,
    /// The link's input queue.
    pub queue: ShadowQueueConfig,
    /// The code.
    pub peer: PeerConfig,
}

/// What changes while an endpoint runs.
#[derive(Clone, Copy, Debug)]
pub struct EndpointSettings {
    /// Which packets are coded.
    pub classifier: ClassifierConfig,
    /// How much repair is made for each peer.
    pub redundancy: RedundancyConfig,
    /// How much more for symbols that the link's queue drops.
    pub overflow: Option<OverflowConfig>,
    /// When it is sent.
    pub titrator: TitratorConfig,
}

/// See the module's description. `R` is what symbols consist of. The `number` of a peer is that which
/// [`Endpoint::add_peer`] returned; any other one panics.
#[derive(Clone, Debug)]
pub struct Endpoint<R> {
    classifier: Classifier,
    titrator: Titrator<HeldRepair>,
    queue: ShadowQueue,
    peers: Vec<Peer<R>>,
    /// The next wake of each peer that has one, which is its `noted_wake`.
    wakes: BTreeSet<(Instant, usize)>,
    /// The last instant of a call, from which [`Self::next_wake`] calculates.
    now: Instant,
    /// Released repair that was not sent, because its symbols had left the sender's memory.
    outdated_repairs: u64,
}

impl<R: SymbolRows> Endpoint<R> {
    /// An endpoint without peers.
    #[must_use]
    pub fn new(config: &EndpointConfig) -> Self {
        Self {
            classifier: Classifier::new(config.classifier),
            titrator: Titrator::new(config.titrator),
            queue: ShadowQueue::new(config.queue),
            peers: Vec::new(),
            wakes: BTreeSet::new(),
            now: Instant::START,
            outdated_repairs: 0,
        }
    }

    /// Adds a peer and returns its number, from 0 on. After a restart of this end, `stream` and `receiver`
    /// must be others than before: by them the peer notices that this end has forgotten what was sent.
    pub fn add_peer(
        &mut self,
        config: &EndpointConfig,
        stream: StreamId,
        receiver: ReceiverId,
    ) -> usize {
        self.peers.push(Peer::new(
            config.peer,
            (config.redundancy, config.overflow),
            stream,
            receiver,
            self.now,
        ));
        self.peers.len() - 1
    }

    /// Changes the settings. What waits or was measured is kept.
    pub fn reconfigure(&mut self, now: Instant, settings: &EndpointSettings) {
        self.now = now;
        self.classifier.reconfigure(settings.classifier);
        self.titrator.reconfigure(now, settings.titrator);
        for peer in &mut self.peers {
            peer.reconfigure(settings.redundancy, settings.overflow);
        }
    }

    /// Changes the rate of the link from `now` on.
    pub fn set_rate(&mut self, now: Instant, rate: BitRate) {
        self.now = now;
        self.queue.set_rate(now, rate);
    }

    /// The sequence number of a packet within its flow if it is coded. `class` is a traffic class or a DSCP
    /// value, as in [`ClassifierConfig::classes`].
    pub fn classify(
        &mut self,
        now: Instant,
        flow: FlowKey,
        class: u8,
        packet_bytes: u32,
    ) -> Option<u32> {
        self.now = now;
        let treatment = self.classifier.classify(now, flow, class, packet_bytes);
        (treatment == Treatment::Coded).then(|| self.classifier.sequence(flow))
    }

    /// Takes a symbol that the caller sends now, and returns its header.
    ///
    /// # Panics
    /// If the symbol is larger than [`PeerConfig::symbol_bytes`].
    pub fn on_source_sent(
        &mut self,
        now: Instant,
        number: usize,
        symbol: &R::Symbol,
    ) -> SourceHeader {
        self.now = now;
        let peer = &mut self.peers[number];
        let (id, due) = peer.send(now, symbol);
        for _ in 0..due.map_or(0, |due| due.count) {
            self.offer(now, number, due.and_then(|due| due.window));
        }
        self.note_wake(number);
        // Modulo 2^32: the receiver uses differences of delays only.
        let sent_us = (now.as_nanos() / 1_000) as u32;
        SourceHeader { stream: self.peers[number].stream(), id, sent_us }
    }

    /// Counts an IP packet that the caller has sent to the link now, in the link's input queue. If it has the last source
    /// symbol of peer `source` in it, and the queue drops it, repair is made.
    pub fn on_sent(&mut self, now: Instant, ip_bytes: u32, source: Option<usize>) {
        self.now = now;
        let was_queued = self.queue.push(now, ip_bytes);
        if let Some(number) = source.filter(|_| !was_queued)
            && let Some(due) = self.peers[number].on_overflow(now)
        {
            (0..due.count).for_each(|_| self.offer(now, number, due.window));
        }
    }

    /// The next repair symbol that is to be sent now, and to which peer. [`Self::on_sent`] comes before the
    /// next call, because this symbol may fill the queue up to the threshold.
    pub fn next_repair(&mut self, now: Instant) -> Option<(usize, RepairHeader, &R::Symbol)> {
        self.now = now;
        let (number, window, key) = loop {
            let held = self.titrator.release(now, self.queue.occupancy_bytes(now))?;
            let peer = &mut self.peers[held.peer];
            match peer.next_key(held.window) {
                Some(key) => break (held.peer, held.window, key),
                None => self.outdated_repairs += 1,
            }
        };
        let peer = &mut self.peers[number];
        let (header, symbol) = peer.repair(window, key)?;
        Some((number, header, symbol))
    }

    /// Takes a source symbol that arrived. If its stream is new, the decoder begins anew. It is stale if its
    /// stream is the former one, for 10 s, or if streams change more often than once a second after a
    /// burst of four.
    pub fn on_source(
        &mut self,
        now: Instant,
        number: usize,
        header: SourceHeader,
        symbol: &R::Symbol,
    ) -> Arrival {
        self.now = now;
        let arrival = self.peers[number].on_source(now, header, symbol);
        self.note_wake(number);
        arrival
    }

    /// Takes a repair symbol that arrived; a new stream is as with [`Self::on_source`].
    pub fn on_repair(
        &mut self,
        now: Instant,
        number: usize,
        header: RepairHeader,
        symbol: &R::Symbol,
    ) -> Arrival {
        self.now = now;
        let arrival = self.peers[number].on_repair(now, header, symbol);
        self.note_wake(number);
        arrival
    }

    /// The stream that comes from a peer.
    #[must_use]
    pub fn their_stream(&self, number: usize) -> Option<StreamId> {
        self.peers[number].their_stream()
    }

    /// The symbols of a peer that the last symbol from it made known, in order.
    #[must_use]
    pub fn recovered(&self, number: usize) -> &[SymbolId] {
        self.peers[number].recovered()
    }

    /// A symbol of a peer that is known and kept.
    #[must_use]
    pub fn symbol(&self, number: usize, id: SymbolId) -> Option<&R::Symbol> {
        self.peers[number].symbol(id)
    }

    /// Whether a symbol of a peer that has arrived or was covered by repair is neither known nor given up.
    #[must_use]
    #[inline]
    pub fn is_missing(&self, number: usize, id: SymbolId) -> bool {
        self.peers[number].is_missing(id)
    }

    /// Takes a message of a peer's decoder.
    ///
    /// # Errors
    /// If it is old or contradicts what was sent. It changes nothing then, except that feedback of another
    /// receiver begins a new stream: the peer has restarted.
    pub fn on_feedback(
        &mut self,
        now: Instant,
        number: usize,
        header: FeedbackHeader,
        feedback: Feedback,
    ) -> Result<(), FeedbackRejected> {
        self.now = now;
        let held = self.titrator.count(|held| held.peer == number);
        let peer = &mut self.peers[number];
        let stream = peer.stream();
        let due = peer.on_feedback(now, header, feedback, held);
        let peer = &self.peers[number];
        // Repair of a former stream: its windows mean nothing in the new one.
        if peer.stream() != stream {
            self.titrator.cancel(now, |held| held.peer == number);
            self.note_wake(number);
        }
        let due = due?;
        let peer = &self.peers[number];
        self.titrator.cancel(now, |held| held.peer == number && !peer.is_needed(held.window));
        for _ in 0..due.count {
            self.offer(now, number, due.window);
        }
        self.note_wake(number);
        Ok(())
    }

    /// The next message to a peer that is due now.
    pub fn next_feedback(&mut self, now: Instant) -> Option<(usize, FeedbackHeader, Feedback)> {
        self.now = now;
        for &(_, number) in self.wakes.iter().take_while(|&&(at, _)| at <= now) {
            if let Some((header, feedback)) = self.peers[number].feedback(now) {
                self.note_wake(number);
                return Some((number, header, feedback));
            }
        }
        None
    }

    /// Does what is due now, except what [`Self::next_repair`] and [`Self::next_feedback`] return.
    pub fn wake(&mut self, now: Instant) {
        self.now = now;
        self.titrator.expire(now);
        let due = self.wakes.iter().take_while(|&&(at, _)| at <= now);
        for number in due.map(|&(_, number)| number).collect::<Vec<_>>() {
            if let Some(due) = self.peers[number].on_pause(now) {
                (0..due.count).for_each(|_| self.offer(now, number, due.window));
            }
            self.note_wake(number);
        }
    }

    /// When [`Self::wake`] is due. It does not pass while repair or feedback that is due has not been taken.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        let peers = self.wakes.first().map(|&(at, _)| at);
        let repair = self.titrator.next_wake(|threshold| self.queue.below_at(self.now, threshold));
        peers.into_iter().chain(repair).min()
    }

    /// What became of repair.
    #[must_use]
    pub fn titrator(&self) -> TitratorCounts {
        self.titrator.counts()
    }

    /// Released repair that was not sent, because its symbols had left the sender's memory.
    #[must_use]
    pub fn outdated_repairs(&self) -> u64 {
        self.outdated_repairs
    }

    /// Which packets were coded.
    #[must_use]
    pub fn classifier(&self) -> &Classifier {
        &self.classifier
    }

    /// The counts of a peer.
    #[must_use]
    pub fn peer(&self, number: usize) -> PeerCounts {
        self.peers[number].counts()
    }

    /// The number of peers.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// The bytes of the link's input queue now.
    #[must_use]
    pub fn queue_bytes(&self, now: Instant) -> u64 {
        self.queue.occupancy_bytes(now)
    }

    fn offer(&mut self, now: Instant, number: usize, window: Option<super::peer::Window>) {
        let Some(window) = window else { return };
        let bytes = self.peers[number].repair_bytes();
        self.titrator.offer(now, bytes, HeldRepair { peer: number, window });
    }

    /// Notes the next wake of a peer in `wakes`, after each call that may change it.
    fn note_wake(&mut self, number: usize) {
        let peer = &mut self.peers[number];
        let at = peer.next_wake();
        if at != peer.noted_wake {
            if let Some(noted) = peer.noted_wake {
                self.wakes.remove(&(noted, number));
            }
            self.wakes.extend(at.map(|at| (at, number)));
            peer.noted_wake = at;
        }
    }
}
