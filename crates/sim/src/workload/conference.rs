//! A conference: each participant sends at a constant rate to a reflector, which sends every
//! datagram on to all others (as a media relay does, without mixing).

use bentpipe_core::engine::{Count, Cx, Engine, Ledger};
use bentpipe_core::packet::{Address, Class, FlowId, Origin, Packet, PacketId, Port};
use bentpipe_core::time::Instant;

use super::{ConstantRate, DatagramSink};

/// A host that sends its own stream and takes in those of the others.
#[derive(Debug)]
pub struct Participant {
    source: ConstantRate,
    sink: DatagramSink,
}

impl Participant {
    /// A participant that sends what `source` does.
    #[must_use]
    pub fn new(source: ConstantRate) -> Self {
        Self { source, sink: DatagramSink::default() }
    }

    /// What it sends.
    #[must_use]
    pub fn source(&self) -> &ConstantRate {
        &self.source
    }

    /// What it gets from the others.
    #[must_use]
    pub fn sink(&self) -> &DatagramSink {
        &self.sink
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

/// A participant as its reflector knows it.
#[derive(Clone, Copy, Debug)]
pub struct Party {
    /// Its flow.
    pub flow: FlowId,
    /// Its host.
    pub address: Address,
    /// The class of what it is sent.
    pub class: Class,
}

/// Sends each datagram to all participants but the one that sent it. A copy is a packet of the flow
/// of the participant it goes to; it keeps the moment at which the original was made, so that its
/// delay is that from host to host.
#[derive(Debug)]
pub struct Reflector {
    /// The participants, and how many packets were made for each.
    participants: Vec<(Party, u64)>,
    received: Count,
    sent: Count,
}

impl Reflector {
    /// The port to the network.
    pub const NET: Port = Port(0);

    /// A reflector between these participants.
    #[must_use]
    pub fn new(participants: impl IntoIterator<Item = Party>) -> Self {
        let participants = participants.into_iter().map(|party| (party, 0)).collect();
        Self { participants, received: Count::default(), sent: Count::default() }
    }
}

impl Engine for Reflector {
    fn input(&mut self, cx: &mut Cx<'_>, _port: Port, packet: Box<Packet>) {
        self.received.add(packet.bytes);
        let from = packet.flow;
        for (party, serial) in self.participants.iter_mut().filter(|to| to.0.flow != from) {
            let &mut Party { flow, address: destination, class } = party;
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
