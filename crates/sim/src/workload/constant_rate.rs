//! UDP datagrams at a constant rate, and the sink that counts them.

use bentpipe_core::delays::{DelayHistogram, Jitter};
use bentpipe_core::engine::{Count, Cx, Engine, Ledger};
use bentpipe_core::header_bytes;
use bentpipe_core::packet::{Address, Class, FlowId, Origin, Packet, PacketId, Payload, Port};
use bentpipe_core::play_out::PlayOut;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::units::{BitRate, Bytes, Carry};

use super::{FlowEnd, TalkSpurts, fraction};

/// A source that sends one datagram every payload / rate, from its start until before its end. With
/// talk spurts it sends none in the pauses, and the first of a spurt at its beginning.
#[derive(Debug)]
pub struct ConstantRate {
    flow: FlowId,
    destination: Address,
    class: Class,
    rate: BitRate,
    payload: u32,
    next_at: Instant,
    end: Instant,
    carry: Carry,
    talk_spurts: Option<Box<TalkSpurts>>,
    sequence: u64,
    last_sent: Option<Instant>,
    sent: Count,
}

impl ConstantRate {
    /// The port to the network.
    pub const NET: Port = Port(0);

    /// Creates a source of datagrams with `payload` bytes, at `rate` payload bits per second.
    #[must_use]
    pub fn new(flow: FlowId, rate: BitRate, payload: u32, start: Instant, end: Instant) -> Self {
        Self {
            flow,
            destination: Address::default(),
            class: Class::default(),
            rate,
            payload,
            next_at: start,
            end,
            carry: Carry::default(),
            talk_spurts: None,
            sequence: 0,
            last_sent: None,
            sent: Count::default(),
        }
    }

    /// Sets the destination and the class of the packets.
    #[must_use]
    pub fn toward(mut self, destination: Address, class: Class) -> Self {
        self.destination = destination;
        self.class = class;
        self
    }

    /// Sends in talk spurts only.
    #[must_use]
    pub fn with_talk_spurts(mut self, mut talk_spurts: TalkSpurts) -> Self {
        self.next_at = talk_spurts.talking_from(self.next_at);
        self.talk_spurts = Some(Box::new(talk_spurts));
        self
    }

    /// Datagrams sent.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        self.sequence
    }

    /// Payload bytes sent.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.sequence * u64::from(self.payload)
    }

    /// Payload of one datagram.
    #[must_use]
    pub fn payload(&self) -> u32 {
        self.payload
    }
}

impl FlowEnd for ConstantRate {
    fn source(&self) -> Option<&ConstantRate> {
        Some(self)
    }

    fn finished(&self) -> Option<Instant> {
        if self.next_at < self.end { None } else { self.last_sent }
    }

    fn fraction(&self, now: Instant) -> Option<f64> {
        Some(fraction(self.sequence, None, now, self.end))
    }
}

impl Engine for ConstantRate {
    fn input(&mut self, _cx: &mut Cx<'_>, _port: Port, _packet: Box<Packet>) {
        unreachable!("a source receives no packets");
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        while self.next_at <= cx.now() && self.next_at < self.end {
            let bytes = self.payload + header_bytes::DATAGRAM;
            let id = PacketId::new(self.flow, Origin::Sender, self.sequence);
            let payload = Payload::Datagram { source: self.flow, sequence: self.sequence };
            cx.send(
                Self::NET,
                Packet {
                    id,
                    created_at: cx.now(),
                    flow: self.flow,
                    destination: self.destination,
                    class: self.class,
                    bytes,
                    payload,
                    ..Packet::default()
                },
            );
            self.sequence += 1;
            self.sent.add(bytes);
            self.last_sent = Some(cx.now());
            let (gap, carry) = self.rate.transmit_time(Bytes(self.payload.into()), self.carry);
            self.carry = carry;
            self.next_at += gap;
            if let Some(talk_spurts) = &mut self.talk_spurts {
                self.next_at = talk_spurts.talking_from(self.next_at);
            }
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        (self.next_at < self.end).then_some(self.next_at)
    }

    fn ledger(&self) -> Ledger {
        Ledger { created: self.sent, sent: self.sent, ..Ledger::default() }
    }
}

/// A sink of datagrams from one source or, in a conference, from several.
#[derive(Debug, Default)]
pub struct DatagramSink {
    received: Count,
    first: Option<Instant>,
    last: Option<Instant>,
    delay_sum: Duration,
    delay_max: Duration,
    delays: DelayHistogram,
    /// The jitter of the datagrams of each source, in order of sources (RFC 3550 measures it by SSRC).
    jitters: Vec<(FlowId, Jitter)>,
    play_out: Option<PlayOut>,
}

impl DatagramSink {
    /// A sink with a jitter buffer of this length, for datagrams from one source.
    #[must_use]
    pub fn with_jitter_buffer(buffer: Duration) -> Self {
        Self { play_out: Some(PlayOut::new(buffer)), ..Self::default() }
    }

    /// The jitter buffer, if it has one.
    #[must_use]
    pub fn play_out(&self) -> Option<&PlayOut> {
        self.play_out.as_ref()
    }

    /// Datagrams received, with their IP bytes.
    #[must_use]
    pub fn received(&self) -> Count {
        self.received
    }

    /// Payload bytes received.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.received.bytes - self.received.packets * u64::from(header_bytes::DATAGRAM)
    }

    /// When the first and the last datagram arrived.
    #[must_use]
    pub fn span(&self) -> (Option<Instant>, Option<Instant>) {
        (self.first, self.last)
    }

    /// The sum and the maximum of one-way delays.
    #[must_use]
    pub fn delays(&self) -> (Duration, Duration) {
        (self.delay_sum, self.delay_max)
    }

    /// The distribution of one-way delays.
    #[must_use]
    pub fn delay_histogram(&self) -> &DelayHistogram {
        &self.delays
    }

    /// The jitter after the last datagram of each source, as the mean over sources; `None` without
    /// datagrams.
    #[must_use]
    pub fn jitter(&self) -> Option<Duration> {
        let estimates = self.jitters.iter().filter_map(|(_, jitter)| jitter.estimate());
        let sum: u64 = estimates.map(Duration::as_nanos).sum();
        sum.checked_div(self.jitters.len() as u64).map(Duration::from_nanos)
    }

    /// The mean difference of the delays of two datagrams of a source that arrive in succession.
    #[must_use]
    pub fn jitter_mean(&self) -> Option<Duration> {
        Jitter::mean(self.jitters.iter().map(|(_, jitter)| jitter))
    }

    /// The number of sources of the datagrams received.
    #[must_use]
    pub fn sources(&self) -> usize {
        self.jitters.len()
    }

    fn jitter_of(&mut self, source: FlowId) -> &mut Jitter {
        let found = self.jitters.binary_search_by_key(&source, |(source, _)| *source);
        let index = found.unwrap_or_else(|index| {
            self.jitters.insert(index, (source, Jitter::default()));
            index
        });
        &mut self.jitters[index].1
    }
}

impl FlowEnd for DatagramSink {
    fn sink(&self) -> Option<&DatagramSink> {
        Some(self)
    }
}

impl Engine for DatagramSink {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        self.received.add(packet.bytes);
        self.first.get_or_insert(cx.now());
        self.last = Some(cx.now());
        let delay = cx.now().saturating_since(packet.created_at);
        self.delay_sum += delay;
        self.delay_max = self.delay_max.max(delay);
        self.delays.add(delay);
        if let Payload::Datagram { source, sequence } = packet.payload {
            self.jitter_of(source).add(delay);
            if let Some(play_out) = &mut self.play_out {
                play_out.add_numbered(sequence, delay);
            }
        }
        cx.discard(packet);
    }

    fn wake(&mut self, _cx: &mut Cx<'_>) {}

    fn next_wake(&self) -> Option<Instant> {
        None
    }

    fn ledger(&self) -> Ledger {
        Ledger { received: self.received, consumed: self.received, ..Ledger::default() }
    }
}
