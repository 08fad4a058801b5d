//! One end of a connection: a sender and a receiver, the handshake (RFC 9293, section 3.5) and wire
//! sequence numbers. Each half closes with its own FIN. TIME-WAIT needs no timer here, because it
//! only acknowledges retransmitted FINs.
//!
//! Not modelled: simultaneous open, urgent data, checksums (the channel decides which
//! packets are corrupted), and options other than those of [`Segment`].

mod application;
mod emitting;
mod receiving;
mod reset;

pub use application::Readiness;
pub use reset::{reset_for, time_wait_ack};

use super::config::Config;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::engine::{Count, Cx, Engine, Ledger};
use crate::packet::segment::Flags;
use crate::packet::seq::SeqNumber;
use crate::packet::{Address, Class, Ecn, FlowId, Origin, Packet, PacketId, Port};
use crate::rng::Rng;
use crate::time::{Duration, Instant, earlier};

/// Statistics of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// When the handshake completed at this end.
    pub established: Option<Instant>,
    /// When SND.UNA last advanced over data.
    pub last_ack: Option<Instant>,
    /// When data first arrived in order.
    pub first_delivery: Option<Instant>,
    /// When data last arrived in order.
    pub last_delivery: Option<Instant>,
    /// Segments sent without data, SYN or FIN.
    pub acks_sent: u64,
    /// Data segments received.
    pub data_segments_received: u64,
    /// Sum of the one-way delays of received data segments.
    pub one_way_delay_sum: Duration,
    /// Maximum one-way delay of a received data segment.
    pub one_way_delay_max: Duration,
}

/// The negotiated options that every segment needs.
#[derive(Clone, Copy, Debug, Default)]
struct Negotiated {
    timestamps: bool,
    peer_shift: u8,
}

/// State of the handshake (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Handshake {
    /// LISTEN.
    Listen,
    /// SYN-SENT.
    SynSent,
    /// The peer's SYN was received.
    SynReceived,
    /// ESTABLISHED and later.
    Established,
    /// CLOSED by this end; the peer's segments are answered with a reset.
    Aborted,
    /// CLOSED by a reset from the peer.
    Reset,
}

/// See the module's description. The cost of a packet is the number of cache lines (64 bytes) that
/// it touches, so fields are grouped into lines by the segments that use them, here and in the two
/// halves. Every segment uses the first line, the receiver's first and the sender's first.
#[derive(Debug)]
#[repr(C)]
pub struct Endpoint {
    /// The application's timer; independent of the connection's timers.
    app_timer: Option<Instant>,
    packets_received: u64,
    bytes_received: u64,
    bytes_sent: u64,
    next_id: PacketId,
    initial: SeqNumber,
    /// The peer's initial sequence number, once its SYN was received.
    peer_initial: SeqNumber,
    /// The host at the other end.
    peer: Address,
    /// TS.Recent (RFC 7323, section 4.3): the value to echo.
    ts_recent: u32,
    connection: u16,
    negotiated: Negotiated,
    handshake: Handshake,
    /// ECN codepoint of new data: ECT(0) if ECN was negotiated.
    ecn: Ecn,
    /// ECE from the arrival of a CE mark until that of CWR; CWR until the next new data segment.
    ecn_flags: Flags,
    class: Class,
    receiver: Receiver,
    sender: Sender,
    /// Whether SACK was negotiated.
    sack: bool,
    established: Option<Instant>,
    first_id: PacketId,
    syns_sent: u64,
    config: Config,
    origin: Origin,
    /// Disables the fast paths: tests compare such an endpoint with a regular one.
    #[cfg(test)]
    slow_path_only: bool,
}

impl Endpoint {
    /// The port towards the network.
    pub const NET: Port = Port(0);

    /// An endpoint in LISTEN; [`Endpoint::open`] sends a SYN. `initial` is its initial sequence
    /// number.
    #[must_use]
    pub fn new(config: Config, flow: FlowId, origin: Origin, initial: SeqNumber) -> Self {
        Self {
            config,
            peer: Address::default(),
            class: Class::default(),
            connection: 0,
            origin,
            initial,
            peer_initial: SeqNumber::default(),
            handshake: Handshake::Listen,
            ecn: Ecn::NotEct,
            ecn_flags: Flags::default(),
            negotiated: Negotiated::default(),
            sack: false,
            sender: Sender::new(&config),
            receiver: Receiver::new(&config),
            ts_recent: 0,
            app_timer: None,
            first_id: PacketId::new(flow, origin, 0),
            next_id: PacketId::new(flow, origin, 0),
            established: None,
            syns_sent: 0,
            packets_received: 0,
            bytes_received: 0,
            bytes_sent: 0,
            #[cfg(test)]
            slow_path_only: false,
        }
    }

    /// Makes this endpoint one of several connections of its flow. Earlier connections created
    /// `packets_before` packets at this end. Each connection has its own block of 2^24 packet
    /// serials, after those of the earlier ones and a reserve for their late packets; the blocks
    /// repeat after 2^15.
    #[must_use]
    pub fn of_connection(self, connection: u16, packets_before: u64) -> Self {
        let block =
            u64::from(connection) + ((packets_before + LATE_PACKETS) >> CONNECTION_SERIAL_BITS);
        let serial = block << CONNECTION_SERIAL_BITS;
        self.with_serials(connection, serial % PacketId::HOST_SERIALS)
    }

    /// Sets the number of the connection in its flow, and the first serial of its packets.
    #[must_use]
    pub fn with_serials(mut self, connection: u16, first_serial: u64) -> Self {
        self.connection = connection;
        self.first_id = PacketId::new(self.next_id.flow(), self.origin, first_serial);
        self.next_id = self.first_id;
        self
    }

    /// Sets the destination and the class of the packets that this endpoint sends.
    #[must_use]
    pub fn toward(mut self, peer: Address, class: Class) -> Self {
        self.peer = peer;
        self.class = class;
        self
    }

    /// Sets the random stream that BBR draws the initial phase of its gain cycle from.
    #[must_use]
    pub fn with_rng(mut self, rng: Rng) -> Self {
        self.sender.set_rng(rng);
        self
    }

    /// Disables the fast paths.
    #[cfg(test)]
    pub(super) fn slow_path_only(mut self) -> Self {
        self.slow_path_only = true;
        self
    }

    /// Whether the fast paths are enabled; always true outside of tests.
    #[inline(always)]
    fn may_take_fast_path(&self) -> bool {
        #[cfg(test)]
        return !self.slow_path_only;
        #[cfg(not(test))]
        true
    }

    /// The sender.
    #[must_use]
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The receiver.
    #[must_use]
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Statistics of the connection so far.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        let data_stats = self.receiver.data_stats();
        EndpointStats {
            established: self.established,
            last_ack: self.sender.last_advance(),
            first_delivery: data_stats.first_delivery,
            last_delivery: data_stats.last_delivery,
            acks_sent: self.packets_sent() - self.sender.counters().segments - self.syns_sent,
            data_segments_received: data_stats.segments,
            one_way_delay_sum: data_stats.delay_sum,
            one_way_delay_max: data_stats.delay_max,
        }
    }

    /// Packets have consecutive serials, which wrap.
    fn packets_sent(&self) -> u64 {
        self.next_id.0.wrapping_sub(self.first_id.0) % PACKET_SERIALS
    }

    /// Sets the application's timer, or stops it. [`Engine::next_wake`] includes it. It is stored
    /// here because both deadlines are read together.
    pub fn set_app_timer(&mut self, at: Option<Instant>) {
        self.app_timer = at;
    }

    /// The expiry of the application's timer.
    #[must_use]
    pub fn app_timer(&self) -> Option<Instant> {
        self.app_timer
    }

    /// Sends everything that may be sent now.
    pub(super) fn flush(&mut self, cx: &mut Cx<'_>) {
        if self.syn_received() {
            self.respond(cx);
        } else if self.handshake == Handshake::SynSent {
            self.send(cx);
        }
    }
}

impl Engine for Endpoint {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        self.on_packet(cx, &packet);
        cx.discard(packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        if self.sender.deadline().is_some_and(|deadline| deadline <= cx.now()) {
            self.sender.on_timer(cx.now());
        }
        self.flush(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        let connection = earlier(self.sender.deadline(), self.receiver.ack_deadline());
        earlier(connection, self.app_timer)
    }

    /// A host consumes and sends immediately; it holds no packets.
    fn ledger(&self) -> Ledger {
        let received = Count { packets: self.packets_received, bytes: self.bytes_received };
        let sent = Count { packets: self.packets_sent(), bytes: self.bytes_sent };
        Ledger { received, consumed: received, created: sent, sent, ..Ledger::default() }
    }
}

/// See [`PacketId::new`].
const PACKET_SERIALS: u64 = 1 << 40;
/// Bits of a packet's serial within its connection.
const CONNECTION_SERIAL_BITS: u32 = 24;
/// Reserve for packets that earlier connections may still send: ACKs and retransmissions.
const LATE_PACKETS: u64 = 1 << 20;

/// A timestamp clock of one millisecond (RFC 7323, section 5.4, allows 1 ms to 1 s).
const TICK_NANOS: u64 = 1_000_000;

#[expect(clippy::cast_possible_truncation, reason = "the clock wraps, modulo 2^32")]
fn tick(now: Instant) -> u32 {
    (now.as_nanos() / TICK_NANOS) as u32
}

fn since_tick(now: Instant, echo: u32) -> Duration {
    Duration::from_millis(tick(now).wrapping_sub(echo).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn the_receiver_starts_on_a_cache_line() {
        assert_eq!(align_of::<Endpoint>(), 64);
        assert_eq!(
            offset_of!(Endpoint, receiver),
            64,
            "the endpoint's own hot fields fill one line"
        );
    }
}
