//! The path between a gateway and a host at some distance from it: serialisation at the rate of its
//! access line, a fixed delay and jitter, the same both ways. It holds any number of packets, loses
//! none and keeps their order: a packet that would overtake arrives together with the one ahead.

use std::collections::VecDeque;

use super::Transmitter;
use crate::engine::{Count, Cx, Engine, Ledger, Nested};
use crate::packet::{Packet, Port};
use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::trace::EventKind;
use crate::units::{BitRate, Bits, Bytes};

/// The numbers of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessConfig {
    /// One-way delay.
    pub delay: Duration,
    /// The most that a packet is delayed on top; drawn for each packet, uniformly from zero.
    pub jitter: Duration,
    /// The rate of the line in IP bits per second; `None` if packets take no time on it.
    pub rate: Option<BitRate>,
}

/// One way along the path.
#[derive(Debug)]
struct PathDirection {
    transmitter: Option<Transmitter>,
    rng: Rng,
    last_arrival: Instant,
    /// When each packet arrives, in order.
    packets: VecDeque<(Instant, Box<Packet>)>,
    received: Count,
    sent: Count,
}

/// See the module's description.
#[derive(Debug)]
pub struct Access {
    config: AccessConfig,
    /// By the port at which packets come in.
    directions: [PathDirection; 2],
}

impl Access {
    /// The side of the host.
    pub const HOST: Port = Port(0);
    /// The side of the gateway.
    pub const NET: Port = Port(1);

    /// A path with nothing on it. Jitter is drawn from `rngs`: of packets from the host, and of packets
    /// for it. `None` if the rate is zero, which would hold packets for ever.
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
    /// When a packet arrives that comes now, and when its first bit is sent.
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
    fn input(&mut self, cx: &mut Cx<'_>, port: Port, packet: Box<Packet>) {
        debug_assert!(port == Self::HOST || port == Self::NET, "a path has two ends");
        let direction = &mut self.directions[usize::from(port.0)];
        direction.received.add(packet.bytes);
        let (start, arrival) = direction.schedule(cx.now(), packet.bytes, &self.config);
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

    /// Sends packets of 1,000 bytes into a port and returns when each left, by which port.
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
    fn both_ways_take_the_same_delay() {
        let out = pass(&mut access(195, 0, None), Access::HOST, &[0, 0, 10]);
        assert_eq!(out, [(195, Access::NET), (195, Access::NET), (205, Access::NET)]);
        let back = pass(&mut access(195, 0, None), Access::NET, &[3]);
        assert_eq!(back, [(198, Access::HOST)]);
    }

    /// 1,000 bytes at 1 Mbit/s take 8 ms each.
    #[test]
    fn packets_are_serialised_at_the_rate_of_the_line() {
        let out = pass(&mut access(100, 0, Some(1_000_000)), Access::HOST, &[0, 0, 50]);
        assert_eq!(out.iter().map(|left| left.0).collect::<Vec<_>>(), [108, 116, 158]);
    }

    /// Given jitter of 20 ms on packets a millisecond apart, expect each to arrive within its bounds, in
    /// order, some of them later than the fixed delay by more than half of the jitter.
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
    fn a_line_without_a_rate_is_refused() {
        let config =
            AccessConfig { delay: Duration::ZERO, jitter: Duration::ZERO, rate: Some(BitRate(0)) };
        assert!(Access::new(config, ["out", "in"].map(|name| Rng::stream(7, name))).is_none());
    }
}
