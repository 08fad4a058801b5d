//! A split connection: two legs, and the relay between them.

use super::{Answer, FlowLegs, Key, LegConfig, Pep, PepConfig, opposite};
use crate::engine::{Count, Cx, Engine};
use crate::packet::seq::SeqNumber;
use crate::packet::{Class, Packet, Port};
use crate::rng::Rng;
use crate::tcp::Endpoint;
use crate::time::{Duration, Instant, earlier};

/// How long a host may be silent during the handshake: until Linux gives up a SYN that it retransmitted
/// six times, after 1, 2, 4, 8, 16, 32 and 64 s (`tcp_syn_retries`).
pub(super) const HANDSHAKE_MAX: Duration = Duration::from_secs(127);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both legs are closed.
    Closed,
    /// The destination refused it.
    Refused,
    /// A host reset it.
    Reset,
    /// The handshake was not completed, and the host that began it is silent.
    Expired,
}

/// What a call of a connection led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The destination has answered, and the SYN waits for that.
    Answered(Answer),
    /// The near leg is established.
    Accepted,
    /// The connection has ended.
    Ended(End),
}

/// One leg.
#[derive(Debug)]
struct Leg {
    endpoint: Endpoint,
    port: Port,
    /// Read from this leg and not written to the other.
    held: u64,
    /// Written to this leg.
    written: u64,
    /// Whether its send buffer was full; then it waits until it is
    /// [writable](crate::tcp::Sender::is_writable).
    blocked: bool,
    /// Whether its sending direction was closed.
    closed: bool,
}

impl Leg {
    fn new(port: Port, endpoint: Endpoint) -> Self {
        Self { endpoint, port, held: 0, written: 0, blocked: false, closed: false }
    }

    fn check_buffers(&self, config: &PepConfig) -> Result<(), String> {
        let LegConfig { tcp, .. } = if self.port == Pep::LAN { config.lan } else { config.link };
        let receiver = self.endpoint.receiver();
        for (what, bytes, size) in [
            ("receive buffer", receiver.readable(), tcp.receive_buffer),
            ("relay", self.held, config.buffer_bytes),
            ("send buffer", self.endpoint.sender().buffered(), tcp.send_buffer),
        ] {
            if bytes > size {
                return Err(format!("{bytes} bytes in the {what} of {size} bytes"));
            }
        }
        Ok(())
    }

    /// Calls the endpoint, which sends by the port of its leg.
    #[inline]
    fn call<R>(
        &mut self,
        cx: &mut Cx<'_>,
        call: impl FnOnce(&mut Endpoint, &mut Cx<'_>) -> R,
    ) -> R {
        cx.through(self.port, |cx| call(&mut self.endpoint, cx))
    }
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Connection {
    key: Key,
    /// The leg to the host that opened the connection.
    near: Leg,
    /// The leg to its destination.
    far: Leg,
    /// Whether the far leg was opened; with early accept, it is when the near one is established.
    dialed: bool,
    /// Whether the near leg is established.
    accepted: bool,
    /// The SYN that is answered when the far leg is open.
    syn: Option<Box<Packet>>,
    /// When the handshake ends, unless both legs are open or the near host sends another packet.
    handshake_until: Option<Instant>,
    buffer_bytes: u64,
    max_held: u64,
}

impl Connection {
    /// The connection that `syn` requests, which arrived on `port`: opens the far leg, or with early
    /// accept answers the SYN. The packets of both legs have serials from `serial` on.
    pub(super) fn open(
        cx: &mut Cx<'_>,
        config: &mut PepConfig,
        port: Port,
        syn: Box<Packet>,
        serial: u64,
    ) -> Self {
        let (flow, opener) = (syn.flow, syn.id.origin());
        let connection = syn.segment().map_or(0, |segment| segment.connection);
        let mut leg = |port: Port, origin, peer| {
            let LegConfig { tcp, unsent_low_water } =
                if port == Pep::LAN { config.lan } else { config.link };
            let initial = SeqNumber((config.rng.next_u64() >> 32) as u32);
            let cycle = Rng::stream(config.rng.next_u64(), "cycle");
            let mut endpoint = Endpoint::new(tcp, flow, origin, initial)
                .with_serials(connection, serial)
                .toward(peer, Class(syn.class.0))
                .with_rng(cycle);
            if let Some(bytes) = unsent_low_water {
                endpoint.set_unsent_low_water(bytes);
            }
            let mut leg = Leg::new(port, endpoint);
            leg.call(cx, |endpoint, cx| endpoint.set_auto_read(cx, false));
            leg
        };
        let near = leg(port, opener.opposite(), (config.address)(flow, opener));
        let far = leg(opposite(port), opener, syn.destination);
        let mut connection = Self {
            key: (flow, connection),
            near,
            far,
            dialed: false,
            accepted: false,
            syn: Some(syn),
            handshake_until: Some(cx.now() + HANDSHAKE_MAX),
            buffer_bytes: config.buffer_bytes,
            max_held: 0,
        };
        if config.early_accept {
            connection.answer_syn(cx);
        } else {
            connection.dial(cx);
        }
        connection
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// Takes the SYN that was not answered.
    pub(super) fn take_syn(&mut self) -> Option<Box<Packet>> {
        self.syn.take()
    }

    /// Opens the far leg.
    #[cold]
    fn dial(&mut self, cx: &mut Cx<'_>) {
        self.dialed = true;
        self.far.call(cx, Endpoint::open);
    }

    /// Answers the SYN.
    #[cold]
    fn answer_syn(&mut self, cx: &mut Cx<'_>) {
        if let Some(syn) = self.syn.take() {
            self.near.call(cx, |endpoint, cx| endpoint.on_packet(cx, &syn));
            cx.discard(syn);
        }
    }

    /// Answers the SYN after the destination has accepted.
    pub(super) fn accept(&mut self, cx: &mut Cx<'_>) -> Option<Event> {
        self.answer_syn(cx);
        self.progress(cx)
    }

    /// Refuses the SYN as the destination has refused the far leg.
    pub(super) fn refuse(&mut self, cx: &mut Cx<'_>) -> Option<Event> {
        if let Some(syn) = self.syn.take() {
            self.near.call(cx, |endpoint, cx| endpoint.refuse(cx, &syn));
            cx.discard(syn);
        }
        Some(Event::Ended(End::Refused))
    }

    /// Opens the far leg, with early accept, now that the near one is established.
    pub(super) fn on_accepted(&mut self, cx: &mut Cx<'_>) -> Option<Event> {
        if !self.dialed {
            self.dial(cx);
        }
        self.progress(cx)
    }

    /// Handles a packet that arrived on `port`.
    pub(super) fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: &Packet) -> Option<Event> {
        if port == self.far.port {
            if !self.dialed {
                // Not an answer; an endpoint in LISTEN would accept a SYN.
                return None;
            }
            self.far.call(cx, |endpoint, cx| endpoint.on_packet(cx, packet));
            return self.progress(cx);
        }
        if let Some(until) = &mut self.handshake_until {
            *until = cx.now() + HANDSHAKE_MAX;
        }
        if self.syn.is_some() {
            return self.before_accept(cx, packet);
        }
        self.near.call(cx, |endpoint, cx| endpoint.on_packet(cx, packet));
        self.progress(cx)
    }

    /// A packet of the host whose SYN was not answered: a retransmitted SYN, or a reset if it gives up.
    #[cold]
    fn before_accept(&mut self, cx: &mut Cx<'_>, packet: &Packet) -> Option<Event> {
        let is_reset = packet.segment().is_some_and(|segment| segment.flags.rst());
        is_reset.then(|| {
            self.far.call(cx, Endpoint::abort);
            Event::Ended(End::Reset)
        })
    }

    /// Does what is due.
    pub(super) fn wake(&mut self, cx: &mut Cx<'_>) -> Option<Event> {
        let now = cx.now();
        for leg in [&mut self.near, &mut self.far] {
            if leg.endpoint.next_wake().is_some_and(|due| due <= now) {
                leg.call(cx, Endpoint::wake);
            }
        }
        if self.handshake_until.is_some_and(|until| until <= now) {
            self.abort(cx);
            return Some(Event::Ended(End::Expired));
        }
        self.progress(cx)
    }

    #[cold]
    fn abort(&mut self, cx: &mut Cx<'_>) {
        for leg in [&mut self.near, &mut self.far] {
            leg.call(cx, Endpoint::abort);
        }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let legs = earlier(self.near.endpoint.next_wake(), self.far.endpoint.next_wake());
        earlier(legs, self.handshake_until)
    }

    /// Passes on what the legs received: the end of the handshake, data, FIN and reset.
    #[inline]
    fn progress(&mut self, cx: &mut Cx<'_>) -> Option<Event> {
        if self.handshake_until.is_some()
            && let Some(event) = self.advance_handshake()
        {
            return Some(event);
        }
        if self.near.endpoint.is_reset() || self.far.endpoint.is_reset() {
            self.abort(cx);
            return Some(Event::Ended(End::Reset));
        }
        relay(cx, &mut self.near, &mut self.far, self.buffer_bytes);
        relay(cx, &mut self.far, &mut self.near, self.buffer_bytes);
        self.max_held = self.max_held.max(self.near.held).max(self.far.held);
        let is_closed = self.near.endpoint.is_closed() && self.far.endpoint.is_closed();
        is_closed.then_some(Event::Ended(End::Closed))
    }

    #[cold]
    fn advance_handshake(&mut self) -> Option<Event> {
        if self.syn.is_some() {
            if self.far.endpoint.is_reset() {
                return Some(Event::Answered(Answer::Refused));
            }
            if self.far.endpoint.is_established() {
                return Some(Event::Answered(Answer::Connected(())));
            }
        }
        if self.near.endpoint.is_established() {
            if !self.accepted {
                self.accepted = true;
                return Some(Event::Accepted);
            }
            if self.far.endpoint.is_established() {
                self.handshake_until = None;
            }
        }
        None
    }

    /// Packets sent by both legs.
    pub(super) fn sent(&self) -> Count {
        self.near.endpoint.ledger().sent.plus(self.far.endpoint.ledger().sent)
    }

    /// The most data that the relay held for a direction.
    pub(super) fn max_buffered_bytes(&self) -> u64 {
        self.max_held
    }

    /// Adds the statistics of both legs at `now`.
    pub(super) fn add_to(&self, legs: &mut FlowLegs, now: Instant) {
        legs.connections += 1;
        for leg in [&self.near, &self.far] {
            let totals = if leg.port == Pep::LAN { &mut legs.lan } else { &mut legs.link };
            totals.add(&leg.endpoint, now);
        }
    }

    /// See [`Pep::check`].
    pub(super) fn check(&self, config: &PepConfig) -> Result<(), String> {
        for (from, to) in [(&self.near, &self.far), (&self.far, &self.near)] {
            from.check_buffers(config).map_err(|error| format!("{:?}: {error}", self.key))?;
            let receiver = from.endpoint.receiver();
            let (received, readable) = (receiver.delivered(), receiver.readable());
            if from.endpoint.is_closed() || to.written + from.held + readable == received {
                continue;
            }
            let (key, written, held) = (self.key, to.written, from.held);
            return Err(format!(
                "{key:?}: {received} bytes received, {readable} readable, {held} held, {written} written"
            ));
        }
        Ok(())
    }
}

/// Moves data in order from one leg to the other: into its send buffer, and beyond that into the relay,
/// up to `buffer_bytes`. Closes the other leg behind the last byte.
#[inline]
fn relay(cx: &mut Cx<'_>, from: &mut Leg, to: &mut Leg, buffer_bytes: u64) {
    let unread = from.endpoint.receiver().readable();
    let waiting = from.held + unread;
    if waiting > 0 {
        let sender = to.endpoint.sender();
        to.blocked &= !sender.is_writable();
        let room = if to.blocked { 0 } else { sender.room() };
        let written = waiting.min(room);
        let held = (waiting - written).min(buffer_bytes);
        to.blocked |= written < waiting;
        let read = held + written - from.held;
        if read > 0 {
            from.call(cx, |endpoint, cx| endpoint.read(cx, read));
        }
        if written > 0 {
            to.call(cx, |endpoint, cx| endpoint.write(cx, written));
            to.written += written;
        }
        from.held = held;
    }
    if !to.closed && from.held == 0 && from.endpoint.receiver().finished() {
        let is_read = from.endpoint.receiver().readable() == 0;
        if is_read {
            to.closed = true;
            to.call(cx, Endpoint::close);
        }
    }
}
