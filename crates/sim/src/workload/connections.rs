//! The connections of one host within one flow, one after the other, and what they did together.
//!
//! A connection is forgotten when both halves are closed and acknowledged, so that memory does not
//! grow with their number. TIME-WAIT needs no record: all it has to do is to repeat the last ACK for
//! a repeated FIN, and the numbers of that ACK are those of the FIN. A real host forgets after
//! 2 MSL, and then answers with a reset, which is as small and ends the peer's connection as well.

use super::request_response::Host;
use bentpipe_core::engine::{Count, Cx, Engine, Ledger};
use bentpipe_core::packet::segment::Segment;
use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::packet::{Address, Class, FlowId, Origin, Packet, PacketId, Payload};
use bentpipe_core::tcp::{Endpoint, SenderCounters};
use bentpipe_core::time::{Duration, Instant};

/// What TCP did at one end, over one connection or several.
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
    /// What was sent.
    pub counters: SenderCounters,
    /// Segments without data, SYN or FIN that were sent.
    pub acks_sent: u64,
    /// Segments with data that arrived.
    pub data_segments_received: u64,
    /// Their one-way delays, added up.
    pub one_way_delay_sum: Duration,
    /// The largest of these.
    pub one_way_delay_max: Duration,
    /// The least round trip.
    pub rtt_min: Option<Duration>,
    /// Round trips, added up.
    pub rtt_sum: Duration,
    /// How many.
    pub rtt_samples: u64,
}

impl Totals {
    /// Those of a single connection.
    #[must_use]
    pub fn of(endpoint: &Endpoint) -> Self {
        let mut totals = Self::default();
        totals.add(endpoint);
        totals
    }

    fn add(&mut self, endpoint: &Endpoint) {
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
    }
}

/// A connection that is not over.
#[derive(Debug)]
pub(super) struct Connection {
    number: u16,
    pub(super) endpoint: Box<Endpoint>,
    closed: bool,
}

impl Connection {
    /// The application has nothing more to send.
    pub(super) fn close(&mut self, cx: &mut Cx<'_>) {
        if !self.closed {
            self.closed = true;
            self.endpoint.close(cx);
        }
    }

    fn is_over(&self) -> bool {
        self.closed && self.endpoint.sender().finished() && self.endpoint.receiver().finished()
    }
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Connections {
    flow: FlowId,
    peer: Address,
    class: Class,
    origin: Origin,
    /// Whether this host is the first to close a connection, and stays in TIME-WAIT.
    closes_first: bool,
    /// Those that are not over, the newest last.
    live: Vec<Connection>,
    opened: u64,
    past: Totals,
    past_sent: Count,
    received: Count,
    /// Last ACKs that were repeated.
    repeated: Count,
}

impl Connections {
    pub(super) fn new(host: &Host, origin: Origin, closes_first: bool) -> Self {
        Self {
            flow: host.flow,
            peer: host.peer,
            class: host.class,
            origin,
            closes_first,
            live: Vec::new(),
            opened: 0,
            past: Totals::default(),
            past_sent: Count::default(),
            received: Count::default(),
            repeated: Count::default(),
        }
    }

    /// The number of the next connection. Numbers wrap after 2^16, as port numbers do.
    #[expect(clippy::cast_possible_truncation, reason = "they wrap")]
    pub(super) fn next_number(&self) -> u16 {
        self.opened as u16
    }

    /// Adds the next connection.
    pub(super) fn add(&mut self, endpoint: Endpoint) -> &mut Connection {
        let number = self.next_number();
        self.opened += 1;
        let Count { packets, .. } = self.sent();
        let endpoint = Box::new(endpoint.of_connection(number, packets));
        self.live.push(Connection { number, endpoint, closed: false });
        self.live.last_mut().expect("just added")
    }

    /// Whether a packet is the SYN of the next connection. A client opens one after the other, so that
    /// any other SYN is an old one.
    pub(super) fn is_opened_by(&self, packet: &Packet) -> bool {
        let opens =
            |segment: &Segment| segment.flags.syn() && segment.connection == self.next_number();
        packet.segment().is_some_and(opens)
    }

    /// The newest connection, if it is not over.
    pub(super) fn newest(&self) -> Option<&Connection> {
        let newest = self.next_number().wrapping_sub(1);
        self.live.last().filter(|connection| connection.number == newest)
    }

    /// The newest connection, if it is not over.
    pub(super) fn newest_mut(&mut self) -> Option<&mut Connection> {
        let newest = self.next_number().wrapping_sub(1);
        self.live.last_mut().filter(|connection| connection.number == newest)
    }

    /// Gives a packet to its connection, and returns that one.
    pub(super) fn input(&mut self, cx: &mut Cx<'_>, packet: &Packet) -> Option<&mut Connection> {
        self.received.add(packet.bytes);
        let segment = packet.segment()?;
        let place = self.live.iter().rposition(|live| live.number == segment.connection);
        let Some(place) = place else {
            self.repeat_last_ack(cx, segment);
            return None;
        };
        let connection = &mut self.live[place];
        connection.endpoint.on_packet(cx, packet);
        Some(connection)
    }

    /// Answers for a connection that is over. The only segment that waits for an answer is a FIN.
    fn repeat_last_ack(&mut self, cx: &mut Cx<'_>, segment: &Segment) {
        let Some(seq) = segment.ack.filter(|_| self.closes_first && segment.flags.fin()) else {
            return;
        };
        let SeqNumber(start) = segment.seq;
        let ack = Segment {
            connection: segment.connection,
            seq,
            // A segment's length is far below 2^32, and numbers wrap.
            ack: Some(SeqNumber(start.wrapping_add(segment.payload.into()).wrapping_add(1))),
            window: segment.window,
            ..Segment::default()
        };
        // From the end of the flow's serials, which its connections count from the start.
        let id = PacketId::new(self.flow, self.origin, u64::MAX - self.repeated.packets);
        let (bytes, payload) = (ack.ip_bytes(), Payload::Tcp(ack));
        self.repeated.add(bytes);
        cx.send(
            Endpoint::NET,
            Packet {
                id,
                created_at: cx.now(),
                flow: self.flow,
                destination: self.peer,
                class: self.class,
                bytes,
                payload,
                ..Packet::default()
            },
        );
    }

    /// How many are not over.
    #[cfg(test)]
    pub(super) fn live_connections(&self) -> usize {
        self.live.len()
    }

    /// Forgets connections that are over.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.live.iter().any(Connection::is_over) {
            self.forget();
        }
    }

    #[cold]
    #[inline(never)]
    fn forget(&mut self) {
        while let Some(place) = self.live.iter().position(Connection::is_over) {
            let Connection { endpoint, .. } = self.live.remove(place);
            self.past.add(&endpoint);
            self.past_sent = self.past_sent.plus(endpoint.ledger().sent);
        }
    }

    pub(super) fn wake(&mut self, cx: &mut Cx<'_>) {
        for Connection { endpoint, .. } in &mut self.live {
            endpoint.wake(cx);
        }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.live.iter().filter_map(|live| live.endpoint.next_wake()).min()
    }

    /// Over all connections.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = self.past;
        for Connection { endpoint, .. } in &self.live {
            totals.add(endpoint);
        }
        totals
    }

    /// What all connections sent.
    fn sent(&self) -> Count {
        let live = self.live.iter().map(|live| live.endpoint.ledger().sent);
        live.fold(self.past_sent.plus(self.repeated), Count::plus)
    }

    pub(super) fn ledger(&self) -> Ledger {
        let sent = self.sent();
        let received = self.received;
        Ledger { received, consumed: received, created: sent, sent, ..Ledger::default() }
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_core::engine::Outbox;
    use bentpipe_core::time::Instant;
    use bentpipe_core::trace::NodeId;

    use super::super::request_response::tests::host;
    use super::*;

    /// The serial of the SYN of a connection that is added now.
    fn first_serial(connections: &mut Connections) -> u64 {
        let endpoint = Endpoint::new(host("a").config, FlowId(0), Origin::Sender, SeqNumber(0));
        let mut outbox = Outbox::new();
        let mut cx = Cx::new(Instant::START, NodeId(0), &mut outbox, None);
        connections.add(endpoint).endpoint.open(&mut cx);
        drop(cx);
        let (_, _, syn) = outbox.drain().next().expect("a SYN");
        syn.id.0 & ((1 << 40) - 1)
    }

    /// Given a connection that made 2^25 packets, expect the next one to number its own behind them:
    /// connection 1 in the fourth block of 2^24, as the first three were used.
    #[test]
    fn a_long_connection_shares_no_identity_with_the_next() {
        let mut connections = Connections::new(&host("a"), Origin::Sender, true);
        assert_eq!(first_serial(&mut connections), 0);
        assert_eq!(first_serial(&mut connections), 1 << 24);
        connections.past_sent = Count { packets: 1 << 25, bytes: 40 << 25 };
        assert!(first_serial(&mut connections) >= 1 << 25, "behind all that were used");
        assert_eq!(first_serial(&mut connections), 5 << 24);
    }
}
