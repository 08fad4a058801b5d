//! Statistics over several connections.

use super::{Endpoint, SenderCounters};
use crate::packet::LimitedBy;
use crate::time::{Duration, Instant};

/// TCP statistics of one end, over one or more connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// When the first handshake was complete.
    pub established: Option<Instant>,
    /// When data was last acknowledged.
    pub last_ack: Option<Instant>,
    /// When data first arrived in order.
    pub first_delivery: Option<Instant>,
    /// When data last arrived in order.
    pub last_delivery: Option<Instant>,
    /// Application bytes sent at least once.
    pub sent_bytes: u64,
    /// Application bytes acknowledged.
    pub acked_bytes: u64,
    /// Application bytes that arrived in order.
    pub delivered_bytes: u64,
    /// Counters of the sender.
    pub counters: SenderCounters,
    /// Segments without data, SYN or FIN that were sent.
    pub acks_sent: u64,
    /// Segments with data that arrived.
    pub data_segments_received: u64,
    /// Sum of their one-way delays.
    pub one_way_delay_sum: Duration,
    /// Maximum of their one-way delays.
    pub one_way_delay_max: Duration,
    /// Minimum of the round-trip samples.
    pub rtt_min: Option<Duration>,
    /// Sum of the round-trip samples.
    pub rtt_sum: Duration,
    /// Number of round-trip samples.
    pub rtt_samples: u64,
    /// Data that arrived and was not used: duplicates, and data beyond the window.
    pub discarded_bytes: u64,
    /// Time for which each limit applied to the sender, in the order of [`LimitedBy::ALL`].
    pub limit_times: [Duration; LimitedBy::OF_SENDER],
    /// The limit of the sender of the newest open connection.
    pub limited_by: LimitedBy,
}

impl Totals {
    /// The totals of one connection at `now`.
    #[must_use]
    pub fn of(endpoint: &Endpoint, now: Instant) -> Self {
        let mut totals = Self::default();
        totals.add_open(endpoint, now);
        totals
    }

    /// Adds an open connection at `now`, the newest last.
    pub fn add_open(&mut self, endpoint: &Endpoint, now: Instant) {
        self.add(endpoint, now);
        self.limited_by = endpoint.sender().limited_by();
    }

    /// Adds a connection at `now`.
    pub fn add(&mut self, endpoint: &Endpoint, now: Instant) {
        let (facts, sender) = (endpoint.stats(), endpoint.sender());
        let (rtt_sum, rtt_samples) = sender.rtt().total();
        let counters = sender.counters();
        let earliest = |a: Option<_>, b: Option<_>| a.into_iter().chain(b).min();
        self.established = earliest(self.established, facts.established);
        self.last_ack = self.last_ack.max(facts.last_ack);
        self.first_delivery = earliest(self.first_delivery, facts.first_delivery);
        self.last_delivery = self.last_delivery.max(facts.last_delivery);
        self.sent_bytes += sender.sent_bytes();
        self.acked_bytes += sender.acked_bytes();
        self.delivered_bytes += endpoint.receiver().delivered();
        self.counters.segments += counters.segments;
        self.counters.retransmitted_segments += counters.retransmitted_segments;
        self.counters.retransmitted_bytes += counters.retransmitted_bytes;
        self.counters.timeouts += counters.timeouts;
        self.counters.fast_recoveries += counters.fast_recoveries;
        self.counters.tail_loss_probes += counters.tail_loss_probes;
        self.counters.spurious_timeouts += counters.spurious_timeouts;
        self.counters.spurious_recoveries += counters.spurious_recoveries;
        self.acks_sent += facts.acks_sent;
        self.data_segments_received += facts.data_segments_received;
        self.one_way_delay_sum += facts.one_way_delay_sum;
        self.one_way_delay_max = self.one_way_delay_max.max(facts.one_way_delay_max);
        self.rtt_min = self.rtt_min.into_iter().chain(sender.rtt().min()).min();
        self.rtt_sum += rtt_sum;
        self.rtt_samples += rtt_samples;
        self.discarded_bytes += endpoint.receiver().discarded_bytes();
        for (sum, time) in self.limit_times.iter_mut().zip(sender.limit_times(now)) {
            *sum += time;
        }
    }
}
