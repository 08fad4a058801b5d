//! A conference: each participant sends at a constant rate to a reflector, which forwards every
//! datagram to all other participants (as a media relay without mixing).

use bentpipe_core::engine::{Count, Cx, Engine, Ledger};
use bentpipe_core::packet::{Address, Class, FlowId, Origin, Packet, PacketId, Port};
use bentpipe_core::time::Instant;

use super::{ConstantRate, DatagramSink, FlowEnd};

/// A host that sends its own stream and receives those of the others.
#[derive(Debug)]
pub struct Participant {
    source: ConstantRate,
    sink: DatagramSink,
}

impl Participant {
    /// Creates a participant that sends the stream of `source`.
    #[must_use]
    pub fn new(source: ConstantRate) -> Self {
        Self { source, sink: DatagramSink::default() }
    }
}

impl FlowEnd for Participant {
    fn source(&self) -> Option<&ConstantRate> {
        Some(&self.source)
    }

    fn sink(&self) -> Option<&DatagramSink> {
        Some(&self.sink)
    }

    fn records(&self) -> bool {
        true
    }

    fn finished(&self) -> Option<Instant> {
        self.source.finished()
    }

    fn fraction(&self, now: Instant) -> Option<f64> {
        self.source.fraction(now)
    }
}

impl Engine for Participant {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        self.sink.input(cx, port, packet);
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        self.source.wake(cx);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.source.next_wake()
    }

    fn ledger(&self) -> Ledger {
        let Ledger { received, consumed, .. } = self.sink.ledger();
        Ledger { received, consumed, ..self.source.ledger() }
    }
}

/// A participant, for the reflector.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its flow.
    pub flow: FlowId,
    /// Its host.
    pub address: Address,
    /// The class of packets to it.
    pub class: Class,
}

/// Forwards each datagram to all participants except its sender. A copy belongs to the flow of its
/// receiver. It keeps the creation time of the original, so that its delay is that from host to
/// host.
#[derive(Debug)]
pub struct Reflector {
    /// The participants, and the number of copies sent to each.
    participants: Vec<(Member, u64)>,
    received: Count,
    sent: Count,
}

impl Reflector {
    /// The port to the network.
    pub const NET: Port = Port(0);

    /// Creates the reflector of these participants.
    #[must_use]
    pub fn new(participants: impl IntoIterator<Item = Member>) -> Self {
        let participants = participants.into_iter().map(|member| (member, 0)).collect();
        Self { participants, received: Count::default(), sent: Count::default() }
    }
}

impl FlowEnd for Reflector {}

impl Engine for Reflector {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        self.received.add(packet.bytes);
        let from = packet.flow;
        for (member, serial) in self.participants.iter_mut().filter(|to| to.0.flow != from) {
            let &mut Member { flow, address: destination, class } = member;
            let id = PacketId::new(flow, Origin::Receiver, *serial);
            *serial += 1;
            self.sent.add(packet.bytes);
            cx.send(Self::NET, Packet { id, flow, destination, class, ..(*packet).clone() });
        }
        cx.discard(packet);
    }

    fn wake(&mut self, _cx: &mut Cx<'_>) {}

    fn next_wake(&self) -> Option<Instant> {
        None
    }

    fn ledger(&self) -> Ledger {
        let Self { received, sent, .. } = *self;
        Ledger { received, consumed: received, created: sent, sent, ..Ledger::default() }
    }
}
