//! The part of a shared direction that belongs to one terminal: the terminal's own channel and its
//! additional delay.

use std::collections::VecDeque;

use super::{Channel, Framing, Propagation, Transmission};
use crate::engine::{Count, Cx, Engine, Ledger, Nested};
use crate::packet::{Packet, Port};
use crate::profile::Profile;
use crate::time::{Duration, Instant};
use crate::trace::{DropCause, EventKind};

/// The parameters of a terminal's path.
#[derive(Clone, Debug)]
pub struct TerminalPathConfig {
    /// The one-way delay in addition to that of the direction.
    pub delay: Profile<Duration>,
    /// The framing of the link.
    pub framing: Framing,
    /// The channel, in addition to that of the direction.
    pub channel: Channel,
}

/// See the module's description.
#[derive(Debug)]
pub struct TerminalPath {
    propagation: Propagation,
    framing: Framing,
    channel: Channel,
    /// The packets in flight, in order: arrival time, and whether the channel corrupted the packet.
    packets: VecDeque<(Instant, bool, Box<Packet>)>,
    received: Count,
    sent: Count,
    lost: Count,
    nested_lost: Count,
}

impl TerminalPath {
    /// The input port.
    pub const IN: Port = Port(0);
    /// The output port.
    pub const OUT: Port = Port(1);

    /// An empty path.
    #[must_use]
    pub fn new(config: TerminalPathConfig) -> Self {
        Self {
            propagation: Propagation::new(config.delay),
            framing: config.framing,
            channel: config.channel,
            packets: VecDeque::new(),
            received: Count::default(),
            sent: Count::default(),
            lost: Count::default(),
            nested_lost: Count::default(),
        }
    }

    fn arrive(&mut self, cx: &mut Cx<'_>, corrupted: bool, packet: Box<Packet>) {
        if corrupted {
            self.lost.add(packet.bytes);
            self.nested_lost.add_nested(&packet);
            cx.record_drop(DropCause::BitError, &packet);
            cx.discard(packet);
            return;
        }
        self.sent.add(packet.bytes);
        cx.trace(cx.now(), EventKind::Delivered, &packet);
        cx.forward(Self::OUT, packet);
    }
}

impl Engine for TerminalPath {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        debug_assert_eq!(port, Self::IN, "a terminal path has one input");
        self.received.add(packet.bytes);
        // Transmission is over: the channel's state is taken at its end.
        let transmission = Transmission { start: cx.now(), departure: cx.now() };
        let corrupted =
            self.channel.corrupts(cx.now(), transmission, self.framing.frame(packet.bytes));
        let arrival = self.propagation.arrival(cx.now());
        cx.trace(cx.now(), EventKind::Enqueued, &packet);
        self.packets.push_back((arrival, corrupted, packet));
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        while self.next_wake().is_some_and(|arrival| arrival <= cx.now()) {
            let Some((_, corrupted, packet)) = self.packets.pop_front() else { return };
            self.arrive(cx, corrupted, packet);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.packets.front().map(|first| first.0)
    }

    fn ledger(&self) -> Ledger {
        let mut held = Count::default();
        let mut nested = Nested { lost: self.nested_lost, ..Nested::default() };
        for (_, _, packet) in &self.packets {
            held.add(packet.bytes);
            nested.held.add_nested(packet);
        }
        let mut dropped = [Count::default(); DropCause::ALL.len()];
        dropped[DropCause::BitError as usize] = self.lost;
        Ledger {
            received: self.received,
            sent: self.sent,
            dropped,
            held,
            nested,
            ..Ledger::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::rng::Rng;
    use crate::trace::NodeId;
    use crate::units::Probability;

    fn terminal_path(delay_ms: u64, bit_error_rate: f64) -> Graph<TerminalPath> {
        let rate = Probability::new(bit_error_rate).expect("a probability");
        let mut graph = Graph::default();
        graph.add(TerminalPath::new(TerminalPathConfig {
            delay: Profile::Constant(Duration::from_millis(delay_ms)),
            framing: Framing::overhead(0),
            channel: Channel::bit_errors(rate, Rng::stream(3, "branch")),
        }));
        graph
    }

    /// Given 10,000 packets of 1,000 bytes over a bit error rate of 1e-5, expect losses of
    /// 1 - (1 - 1e-5)^8000 = 7.69 % within four standard deviations (1.1 %), and the delay on the rest.
    #[test]
    fn a_terminal_path_delays_and_corrupts() {
        let mut graph = terminal_path(12, 1e-5);
        for n in 0..10_000 {
            let packet = Packet { bytes: 1_000, ..Packet::default() };
            graph.inject(Instant::from_millis(n), (NodeId(0), TerminalPath::IN), packet, None);
        }
        graph.run_until(Instant::from_millis(20_000), None);
        let ledger = graph.engine(NodeId(0)).ledger();
        assert_eq!(ledger.check(), Ok(()));
        let lost = ledger.dropped[DropCause::BitError as usize].packets;
        assert!((660..=878).contains(&lost), "{lost} of 10,000 were lost");
        let (first, ..) = graph.drain_egress().next().expect("some arrive");
        assert!(first >= Instant::from_millis(12));
    }
}
