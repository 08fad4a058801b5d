//! Input scripts, generated from a seed.

use core::ops::RangeInclusive;

use crate::packet::{FlowId, Origin, Packet, PacketId, Payload, Port};
use crate::rng::Rng;
use crate::time::{Duration, Instant};

/// Packets to feed to an engine: when, into which port, and the packet; in order of time.
pub type Script = Vec<(Instant, Port, Packet)>;

/// The pattern of a generated script: bursts at random times, with idle gaps between them.
///
/// Half of the bursts start on a whole millisecond, and half of the packets of a burst arrive at the
/// same instant as the previous one, so that arrivals tie with each other and with deadlines.
#[derive(Clone, Debug)]
pub struct ArrivalPattern {
    /// The input ports, each equally likely.
    pub ports: Vec<Port>,
    /// The number of packets.
    pub packets: u64,
    /// The time in which bursts start.
    pub span: Duration,
    /// The most packets in a burst.
    pub burst_packets_max: u64,
    /// The longest gap between two packets of a burst.
    pub pause_max: Duration,
    /// The number of flows.
    pub flows: u32,
    /// The sizes of packets at the IP layer.
    pub bytes: RangeInclusive<u32>,
}

impl ArrivalPattern {
    /// A hundred packets in two seconds, alone and in bursts.
    #[must_use]
    pub fn mixed(ports: Vec<Port>) -> Self {
        Self {
            ports,
            packets: 100,
            span: Duration::from_secs(2),
            burst_packets_max: 25,
            pause_max: Duration::from_millis(3),
            flows: 3,
            bytes: 28..=1_500,
        }
    }

    /// The given number of packets in a week. Whether that is an overload depends on the engine.
    #[must_use]
    pub fn week(ports: Vec<Port>, packets: u64) -> Self {
        let span = Duration::from_secs(7 * 24 * 3_600);
        Self { packets, span, ..Self::mixed(ports) }
    }

    /// Generates the script of this pattern and seed.
    ///
    /// # Panics
    /// If there are no ports, flows or sizes, or if bursts have no packets.
    #[must_use]
    pub fn script(&self, seed: u64) -> Script {
        let mut rng = Rng::stream(seed, "conformance.script");
        let mut arrivals = self.arrivals(&mut rng);
        arrivals.sort_unstable();
        let arrivals = arrivals.into_iter().zip(0..);
        arrivals.map(|(at, sequence)| self.arrival(&mut rng, at, sequence)).collect()
    }

    fn arrivals(&self, rng: &mut Rng) -> Vec<Instant> {
        let mut arrivals = Vec::new();
        while (arrivals.len() as u64) < self.packets {
            let room = self.packets - arrivals.len() as u64;
            let burst = (1 + rng.below(self.burst_packets_max)).min(room);
            let mut at = rng.below(self.span.as_nanos() + 1);
            if rng.below(2) == 0 {
                at -= at % Duration::from_millis(1).as_nanos();
            }
            for _ in 0..burst {
                arrivals.push(Instant::from_nanos(at));
                at += rng.below(2) * rng.below(self.pause_max.as_nanos() + 1);
            }
        }
        arrivals
    }

    fn arrival(&self, rng: &mut Rng, at: Instant, sequence: u64) -> (Instant, Port, Packet) {
        let ports = 0..=u32::try_from(self.ports.len()).expect("port numbers have 8 bits") - 1;
        let port = self.ports[between(rng, &ports) as usize];
        let flow = FlowId(between(rng, &(0..=self.flows - 1)));
        let id = PacketId::new(flow, Origin::Sender, sequence);
        let bytes = between(rng, &self.bytes);
        (
            at,
            port,
            Packet {
                id,
                created_at: at,
                flow,
                bytes,
                payload: Payload::Datagram { source: FlowId(0), sequence },
                ..Packet::default()
            },
        )
    }
}

#[expect(clippy::cast_possible_truncation, reason = "below 2^32 by its bound")]
fn between(rng: &mut Rng, range: &RangeInclusive<u32>) -> u32 {
    range.start() + rng.below(u64::from(range.end() - range.start()) + 1) as u32
}
