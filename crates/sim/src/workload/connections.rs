//! The connections of one host in one flow, successive or parallel, with their totals.
//!
//! A connection is removed when both directions are closed and acknowledged, so that memory does
//! not grow with the number of connections. TIME-WAIT needs no state: its only task is to
//! acknowledge a retransmitted FIN, and the ACK's numbers follow from the FIN. A real host removes
//! the state after 2 MSL and then responds with a reset, which has the same size and also ends the
//! peer's connection.

use bentpipe_core::engine::{Count, Cx, Engine, Ledger};
use bentpipe_core::header_bytes;
use bentpipe_core::packet::segment::Segment;
use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::packet::{Address, Class, FlowId, Origin, Packet, PacketId, Payload};
use bentpipe_core::tcp::{Endpoint, Totals};
use bentpipe_core::time::Instant;

use super::{Host, StreamBytes, TcpEnd};

/// An open connection, with the state of the application that uses it.
#[derive(Debug)]
pub(super) struct Connection<A = ()> {
    number: u16,
    pub(super) endpoint: Box<Endpoint>,
    pub(super) app: A,
    closed: bool,
}

impl<A> Connection<A> {
    /// The number of the connection.
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Closes the sending direction.
    pub(super) fn close(&mut self, cx: &mut Cx<'_>) {
        if !self.closed {
            self.closed = true;
            self.endpoint.close(cx);
        }
    }

    fn is_closed(&self) -> bool {
        self.closed && self.endpoint.is_closed()
    }
}

/// The connections of one host in one flow; see the module documentation.
#[derive(Debug)]
pub(super) struct Connections<A = ()> {
    flow: FlowId,
    peer: Address,
    class: Class,
    origin: Origin,
    /// Whether this host closes connections first, and enters TIME-WAIT.
    closes_first: bool,
    /// Whether the peer may retransmit data after both ends have closed: this host closed while the
    /// peer was sending.
    acknowledges_data: bool,
    /// Open connections, the newest last.
    open: Vec<Connection<A>>,
    opened: u64,
    closed_totals: Totals,
    closed_sent: Count,
    received: Count,
    /// Packets of no open connection: datagrams, and ACKs of retransmitted FINs of closed
    /// connections.
    others: Count,
}

impl<A> Connections<A> {
    pub(super) fn new(host: &Host, origin: Origin, closes_first: bool) -> Self {
        Self {
            flow: host.flow,
            peer: host.peer,
            class: host.class,
            origin,
            closes_first,
            acknowledges_data: false,
            open: Vec::new(),
            opened: 0,
            closed_totals: Totals::default(),
            closed_sent: Count::default(),
            received: Count::default(),
            others: Count::default(),
        }
    }

    /// Acknowledges also data that the peer retransmits on a closed connection.
    pub(super) fn acknowledging_data(mut self) -> Self {
        self.acknowledges_data = true;
        self
    }

    /// Sets the host that packets of no open connection are sent to. An end whose connections are to
    /// different hosts sets it before each [`Connections::input`].
    pub(super) fn set_peer(&mut self, peer: Address) {
        self.peer = peer;
    }

    /// The number of the next connection. Numbers wrap after 2^16, as port numbers do.
    #[expect(clippy::cast_possible_truncation, reason = "they wrap")]
    pub(super) fn next_number(&self) -> u16 {
        self.opened as u16
    }

    /// Adds the next connection.
    pub(super) fn add(&mut self, endpoint: Endpoint, app: A) -> &mut Connection<A> {
        let number = self.next_number();
        self.add_numbered(number, endpoint, app)
    }

    /// Adds a connection with this number. A server whose client opens several connections at a
    /// time receives their SYNs in any order.
    pub(super) fn add_numbered(
        &mut self,
        number: u16,
        endpoint: Endpoint,
        app: A,
    ) -> &mut Connection<A> {
        self.opened += 1;
        let Count { packets, .. } = self.sent();
        let endpoint = Box::new(endpoint.of_connection(number, packets));
        self.open.push(Connection { number, endpoint, app, closed: false });
        self.open.last_mut().expect("just added")
    }

    /// An open connection by number.
    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut Connection<A>> {
        self.open.iter_mut().rfind(|connection| connection.number == number)
    }

    /// Open connections, the oldest first.
    pub(super) fn open_mut(&mut self) -> impl Iterator<Item = &mut Connection<A>> {
        self.open.iter_mut()
    }

    /// The open connection that was added last.
    pub(super) fn last(&self) -> Option<&Connection<A>> {
        self.open.last()
    }

    /// Whether more than half of all numbers were used since the oldest open connection. The next
    /// number could then be that of an open connection.
    pub(super) fn numbers_are_scarce(&self) -> bool {
        let used = |first: &Connection<A>| self.next_number().wrapping_sub(first.number);
        self.open.first().is_some_and(|first| used(first) > u16::MAX / 2)
    }

    /// Whether a packet is the SYN of the next connection. A client opens connections in order, so
    /// any other SYN is a duplicate.
    pub(super) fn is_opened_by(&self, packet: &Packet) -> bool {
        let opens =
            |segment: &Segment| segment.flags.syn() && segment.connection == self.next_number();
        packet.segment().is_some_and(opens)
    }

    /// The newest connection, if it is open.
    pub(super) fn newest(&self) -> Option<&Connection<A>> {
        let newest = self.next_number().wrapping_sub(1);
        self.open.last().filter(|connection| connection.number == newest)
    }

    /// The newest connection, if it is open.
    pub(super) fn newest_mut(&mut self) -> Option<&mut Connection<A>> {
        let newest = self.next_number().wrapping_sub(1);
        self.open.last_mut().filter(|connection| connection.number == newest)
    }

    /// Passes a packet to its connection, and returns the connection.
    pub(super) fn input(&mut self, cx: &mut Cx<'_>, packet: &Packet) -> Option<&mut Connection<A>> {
        self.received.add(packet.bytes);
        let segment = packet.segment()?;
        let index = self.open.iter().rposition(|each| each.number == segment.connection);
        let Some(index) = index else {
            self.repeat_last_ack(cx, segment);
            return None;
        };
        let connection = &mut self.open[index];
        connection.endpoint.on_packet(cx, packet);
        Some(connection)
    }

    /// Acknowledges a retransmitted FIN of a closed connection, and data if that may be
    /// retransmitted; ignores all other segments. The connection has received everything, so the
    /// ACK of the end of any segment is true.
    #[expect(clippy::cast_possible_truncation, reason = "a segment is short, and numbers wrap")]
    fn repeat_last_ack(&mut self, cx: &mut Cx<'_>, segment: &Segment) {
        let is_answered =
            segment.flags.fin() || (self.acknowledges_data && segment.sequence_length() > 0);
        let Some(seq) = segment.ack.filter(|_| self.closes_first && is_answered) else {
            return;
        };
        let SeqNumber(start) = segment.seq;
        let ack = Segment {
            connection: segment.connection,
            seq,
            ack: Some(SeqNumber(start.wrapping_add(segment.sequence_length() as u32))),
            window: segment.window,
            ..Segment::default()
        };
        self.send_other(cx, ack.ip_bytes(), Payload::Tcp(ack));
    }

    /// Sends a datagram with this many bytes of payload.
    pub(super) fn send_datagram(&mut self, cx: &mut Cx<'_>, payload_bytes: u32, sequence: u64) {
        let payload = Payload::Datagram { source: self.flow, sequence };
        self.send_other(cx, payload_bytes + header_bytes::DATAGRAM, payload);
    }

    /// Sends a packet of no open connection.
    fn send_other(&mut self, cx: &mut Cx<'_>, bytes: u32, payload: Payload) {
        // Serials of these packets count down from the last one of hosts; those of connections count
        // up from 0.
        let serial = PacketId::HOST_SERIALS - 1 - self.others.packets;
        let id = PacketId::new(self.flow, self.origin, serial);
        self.others.add(bytes);
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

    /// The number of open connections.
    #[cfg(test)]
    pub(super) fn open_connections(&self) -> usize {
        self.open.len()
    }

    /// Removes closed connections.
    #[inline]
    pub(super) fn remove_closed(&mut self) {
        if self.open.iter().any(Connection::<A>::is_closed) {
            self.remove_all_closed();
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_all_closed(&mut self) {
        while let Some(index) = self.open.iter().position(Connection::<A>::is_closed) {
            let Connection { endpoint, .. } = self.open.remove(index);
            // Its last limit began before and has no end: the application has nothing more to send.
            self.closed_totals.add(&endpoint, Instant::START);
            self.closed_sent = self.closed_sent.plus(endpoint.ledger().sent);
        }
    }

    pub(super) fn wake(&mut self, cx: &mut Cx<'_>) {
        for Connection { endpoint, .. } in &mut self.open {
            endpoint.wake(cx);
        }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.open.iter().filter_map(|each| each.endpoint.next_wake()).min()
    }

    /// Packets sent by all connections.
    fn sent(&self) -> Count {
        let open = self.open.iter().map(|each| each.endpoint.ledger().sent);
        open.fold(self.closed_sent.plus(self.others), Count::plus)
    }

    pub(super) fn ledger(&self) -> Ledger {
        let sent = self.sent();
        let received = self.received;
        Ledger { received, consumed: received, created: sent, sent, ..Ledger::default() }
    }
}

impl<A> TcpEnd for Connections<A> {
    fn totals(&self, now: Instant) -> Totals {
        let mut totals = self.closed_totals;
        for Connection { endpoint, .. } in &self.open {
            totals.add_open(endpoint, now);
        }
        totals
    }

    fn stream_bytes(&self) -> StreamBytes {
        let Totals { sent_bytes, acked_bytes, delivered_bytes, .. } = self.closed_totals;
        let closed =
            StreamBytes { sent: sent_bytes, acked: acked_bytes, delivered: delivered_bytes };
        self.open.iter().fold(closed, |sum, Connection { endpoint, .. }| {
            let StreamBytes { sent, acked, delivered } = endpoint.stream_bytes();
            StreamBytes {
                sent: sum.sent + sent,
                acked: sum.acked + acked,
                delivered: sum.delivered + delivered,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_core::engine::Outbox;
    use bentpipe_core::packet::segment::Flags;
    use bentpipe_core::time::Instant;
    use bentpipe_core::trace::NodeId;

    use super::super::request_response::tests::host;
    use super::*;

    /// The serial of the SYN of a new connection.
    fn first_serial(connections: &mut Connections) -> u64 {
        let endpoint = Endpoint::new(host("a").config, FlowId(0), Origin::Sender, SeqNumber(0));
        let mut outbox = Outbox::new();
        let mut cx = Cx::new(Instant::START, NodeId(0), &mut outbox, None);
        connections.add(endpoint, ()).endpoint.open(&mut cx);
        drop(cx);
        let (_, _, syn) = outbox.drain().next().expect("a SYN");
        serial(&syn)
    }

    fn serial(packet: &Packet) -> u64 {
        packet.id.0 & ((1 << 40) - 1)
    }

    /// Given an open connection 0, expect numbers to be scarce when 2^15 more were opened, before
    /// the number 0 is used again, and not without an open connection.
    #[test]
    fn numbers_are_scarce_before_they_wrap() {
        let mut connections = Connections::<()>::new(&host("a"), Origin::Receiver, true);
        assert!(!connections.numbers_are_scarce());
        first_serial(&mut connections);
        for (opened, expected) in [(1, false), (1 << 15, true), (40_000, true), (32_767, false)] {
            connections.opened = opened;
            assert_eq!(connections.numbers_are_scarce(), expected, "{opened} opened");
        }
        connections.open.clear();
        assert!(!connections.numbers_are_scarce());
    }

    /// Given connections that sent 2^25 packets, expect the next connection to start at the next
    /// free block of 2^24 serials.
    #[test]
    fn connections_have_different_packet_serials() {
        let mut connections = Connections::new(&host("a"), Origin::Sender, true);
        assert_eq!(first_serial(&mut connections), 0);
        assert_eq!(first_serial(&mut connections), 1 << 24);
        connections.closed_sent = Count { packets: 1 << 25, bytes: 40 << 25 };
        assert!(first_serial(&mut connections) >= 1 << 25, "after all used serials");
        assert_eq!(first_serial(&mut connections), 5 << 24);
    }

    /// Given the numbers of connections at which blocks of 2^24 serials reach the end of those of
    /// hosts, and a retransmitted FIN of a closed connection, expect only serials of hosts: PEPs use the
    /// others.
    #[test]
    fn packets_of_hosts_have_serials_of_hosts() {
        let mut connections = Connections::new(&host("a"), Origin::Sender, true);
        for (number, expected) in [
            ((1 << 15) - 1, ((1 << 15) - 1) << 24),
            (1 << 15, 0),
            (u64::from(u16::MAX), ((1 << 15) - 1) << 24),
        ] {
            connections.opened = number;
            assert_eq!(first_serial(&mut connections), expected, "connection {number}");
        }
        let fin = Segment {
            connection: 7,
            flags: Flags::FIN,
            ack: Some(SeqNumber(5)),
            ..Segment::default()
        };
        let fin = Packet { bytes: 40, payload: Payload::Tcp(fin), ..Packet::default() };
        let mut outbox = Outbox::new();
        let mut cx = Cx::new(Instant::START, NodeId(0), &mut outbox, None);
        assert!(connections.input(&mut cx, &fin).is_none());
        drop(cx);
        let answers: Vec<_> = outbox.drain().map(|(_, _, packet)| serial(&packet)).collect();
        assert_eq!(answers, [PacketId::HOST_SERIALS - 1]);
    }
}
