//! The path between a gateway and a distant host: serialisation at the rate of the access line, a fixed
//! delay and jitter, the same in both directions. It holds any number of packets, drops none and does not
//! reorder: a packet that would overtake arrives together with its predecessor.

use std::collections::VecDeque;

use super::Transmitter;
use crate::engine::{Count, Cx, Engine, Ledger, Nested};
use crate::packet::{LimitedBy, Packet, Port};
use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::trace::EventKind;
use crate::units::{BitRate, Bits, Bytes};

/// The parameters of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessConfig {
    /// The one-way delay.
    pub delay: Duration,
    /// The maximum jitter; drawn uniformly from zero for each packet and added to the delay.
    pub jitter: Duration,
    /// The rate of the line in IP bits per second; `None` for no serialisation delay.
    pub rate: Option<BitRate>,
}

/// One direction of the path.
#[derive(Debug)]
struct PathDirection {
    transmitter: Option<Transmitter>,
    rng: Rng,
    last_arrival: Instant,
    /// The packets in flight with their arrival times, in order.
    packets: VecDeque<(Instant, Box<Packet>)>,
    received: Count,
    sent: Count,
}

/// See the module's description.
#[derive(Debug)]
pub struct Access {
    config: AccessConfig,
    /// By input port.
    directions: [PathDirection; 2],
}

impl Access {
    /// The port of the host.
    pub const HOST: Port = Port(0);
    /// The port of the gateway.
    pub const NET: Port = Port(1);

    /// An idle path. `rngs` draw the jitter of packets from the host and of packets to it. `None` if the
    /// rate is zero: packets would never leave.
    #[must_use]
    pub fn new(config: AccessConfig, rngs: [Rng; 2]) -> Option<Self> {
        let transmitter = match config.rate {
            Some(rate) => Some(Transmitter::new(Profile::Constant(rate))?),
            None => None,
        };
        let directions = rngs.map(|rng| PathDirection {
            transmitter: transmitter.clone(),
            rng,
            last_arrival: Instant::START,
            packets: VecDeque::new(),
            received: Count::default(),
            sent: Count::default(),
        });
        Some(Self { config, directions })
    }
}

impl PathDirection {
    /// The arrival time of a packet that is sent now, and the start of its transmission.
    fn schedule(&mut self, now: Instant, bytes: u32, config: &AccessConfig) -> (Instant, Instant) {
        let (start, departure) = match &mut self.transmitter {
            None => (now, now),
            Some(transmitter) => {
                let transmission = transmitter.take(now, Bits::from(Bytes(bytes.into())));
                (transmission.start, transmission.departure)
            }
        };
        let jitter = match config.jitter.as_nanos() {
            0 => 0,
            max => self.rng.below(max + 1),
        };
        let arrival = departure + config.delay + Duration::from_nanos(jitter);
        self.last_arrival = self.last_arrival.max(arrival);
        (start, self.last_arrival)
    }

    fn first_arrival(&self) -> Option<Instant> {
        self.packets.front().map(|first| first.0)
    }
}

impl Engine for Access {
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, mut packet: Box<Packet>) {
        debug_assert!(port == Self::HOST || port == Self::NET, "a path has two ends");
        let direction = &mut self.directions[usize::from(port.0)];
        direction.received.add(packet.bytes);
        let (start, arrival) = direction.schedule(cx.now(), packet.bytes, &self.config);
        if start > cx.now() {
            packet.delayed_by(LimitedBy::AccessLine);
        }
        cx.trace(cx.now(), EventKind::Enqueued, &packet);
        cx.trace(start, EventKind::Transmitted, &packet);
        direction.packets.push_back((arrival, packet));
    }

    fn wake(&mut self, cx: &mut Cx<'_>) {
        for (direction, out) in self.directions.iter_mut().zip([Self::NET, Self::HOST]) {
            while direction.first_arrival().is_some_and(|arrival| arrival <= cx.now()) {
                let Some((arrival, packet)) = direction.packets.pop_front() else { break };
                direction.sent.add(packet.bytes);
                cx.trace(arrival, EventKind::Delivered, &packet);
                cx.forward(out, packet);
            }
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let [from_host, to_host] = self.directions.each_ref().map(PathDirection::first_arrival);
        match (from_host, to_host) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn ledger(&self) -> Ledger {
        let (mut held, mut nested) = (Count::default(), Nested::default());
        for (_, packet) in self.directions.iter().flat_map(|direction| &direction.packets) {
            held.add(packet.bytes);
            nested.held.add_nested(packet);
        }
        let [one, other] = &self.directions;
        Ledger {
            received: one.received.plus(other.received),
            sent: one.sent.plus(other.sent),
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
    use crate::trace::NodeId;

    fn access(delay_ms: u64, jitter_ms: u64, rate: Option<u64>) -> Graph<Access> {
        let config = AccessConfig {
            delay: Duration::from_millis(delay_ms),
            jitter: Duration::from_millis(jitter_ms),
            rate: rate.map(BitRate),
        };
        let rngs = ["out", "in"].map(|name| Rng::stream(7, name));
        let mut graph = Graph::default();
        graph.add(Access::new(config, rngs).expect("a rate"));
        graph
    }

    /// Sends packets of 1,000 bytes into a port and returns when and by which port each left.
    fn pass(graph: &mut Graph<Access>, port: Port, at_ms: &[u64]) -> Vec<(u64, Port)> {
        for &at in at_ms {
            let packet = Packet { bytes: 1_000, ..Packet::default() };
            graph.inject(Instant::from_millis(at), (NodeId(0), port), packet, None);
        }
        graph.run_until(Instant::from_millis(1_000_000), None);
        assert_eq!(graph.engine(NodeId(0)).ledger().check(), Ok(()));
        let egress = graph.drain_egress();
        egress.map(|(at, _, port, _)| (at.as_nanos() / 1_000_000, port)).collect()
    }

    #[test]
    fn both_directions_have_the_same_delay() {
        let out = pass(&mut access(195, 0, None), Access::HOST, &[0, 0, 10]);
        assert_eq!(out, [(195, Access::NET), (195, Access::NET), (205, Access::NET)]);
        let back = pass(&mut access(195, 0, None), Access::NET, &[3]);
        assert_eq!(back, [(198, Access::HOST)]);
    }

    /// 1,000 bytes at 1 Mbit/s take 8 ms each.
    #[test]
    fn packets_are_serialised_at_the_line_rate() {
        let out = pass(&mut access(100, 0, Some(1_000_000)), Access::HOST, &[0, 0, 50]);
        assert_eq!(out.iter().map(|left| left.0).collect::<Vec<_>>(), [108, 116, 158]);
    }

    /// Given jitter of 20 ms on packets a millisecond apart, expect each within its bounds, in order, and
    /// some of them late by more than half of the jitter.
    #[test]
    fn jitter_is_bounded_and_keeps_the_order() {
        let sent: Vec<u64> = (0..1_000).collect();
        let out = pass(&mut access(50, 20, None), Access::HOST, &sent);
        assert!(out.is_sorted_by_key(|left| left.0));
        let extra: Vec<u64> =
            out.iter().zip(&sent).map(|((left, _), sent)| left - sent - 50).collect();
        assert!(extra.iter().all(|&extra| extra <= 20), "{extra:?}");
        assert!(extra.iter().any(|&extra| extra > 10));
    }

    #[test]
    fn a_rate_of_zero_is_rejected() {
        let config =
            AccessConfig { delay: Duration::ZERO, jitter: Duration::ZERO, rate: Some(BitRate(0)) };
        assert!(Access::new(config, ["out", "in"].map(|name| Rng::stream(7, name))).is_none());
    }
}
