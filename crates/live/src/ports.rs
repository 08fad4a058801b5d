//! Traffic of measuring programs, by server port.
//!
//! iperf3 and similar programs open several connections to one port: the first is the control
//! connection, the others carry the measured traffic. The control connection must bypass the link:
//! its packets would be counted, and the link's delay and losses would affect the program's timing.

use bentpipe_core::delays::{DelayHistogram, Jitter};
use bentpipe_core::drop_counts::ByCause;
use bentpipe_core::play_out::PlayOut;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::DropCause;
use bentpipe_core::wire::{FiveTuple, Headers, TCP, UDP};
use bentpipe_sim::Side;

use crate::arrival_times::ArrivalTimes;

/// iperf3 opens a UDP stream with a datagram of this size in each direction, which is not counted.
const CONNECT_BYTES: usize = 4;

/// Counts the traffic of a range of server ports.
#[derive(Debug, Default)]
pub struct Ports {
    counts: PortCounts,
    /// Of packets that programs at gateways forward; `None` without such gateways. Not in the counts: the loop
    /// copies those for each report, and 65,536 times would keep it from packets for 10 ms.
    arrival_times: Option<ArrivalTimes>,
}

/// The traffic of a range of server ports.
#[derive(Clone, Debug, Default)]
pub struct PortCounts {
    first: u16,
    flows: Vec<PortFlows>,
}

/// The traffic of one server port, without the control connection.
#[derive(Clone, Debug, Default)]
pub struct PortFlows {
    control: Option<FiveTuple>,
    /// Whether no connection to the port is a control connection.
    is_without_control: bool,
    /// Traffic sent by the world, and by the island.
    pub traffic: [SideTraffic; 2],
}

/// Traffic sent by one side.
#[derive(Clone, Debug, Default)]
pub struct SideTraffic {
    /// Packets as they enter the link.
    pub offered: Tally,
    /// Packets as they leave the link.
    pub delivered: Tally,
    /// The sum of the delays of packets with a payload.
    pub delay_sum: Duration,
    /// The largest of these delays.
    pub delay_max: Duration,
    /// The distribution of the delays of datagrams.
    pub delays: DelayHistogram,
    /// The jitter of datagrams.
    pub jitter: Jitter,
    /// The jitter buffer of the receiver, if datagrams are speech.
    pub play_out: Option<PlayOut>,
    /// Packets dropped between the two ends of the link.
    pub dropped: ByCause,
}

impl SideTraffic {
    /// The delays by name, in ns, and the datagrams that were late; `None` if unknown.
    #[must_use]
    pub fn delay_fields(&self) -> [(&'static str, Option<u64>); 9] {
        let percentile = |percent| self.delays.percentile(percent).map(Duration::as_nanos);
        let play_out = self.play_out;
        [
            ("delay_sum_ns", Some(self.delay_sum.as_nanos())),
            ("delay_max_ns", Some(self.delay_max.as_nanos())),
            ("delay_p50_ns", percentile(50)),
            ("delay_p95_ns", percentile(95)),
            ("delay_p99_ns", percentile(99)),
            ("jitter_ns", self.jitter.estimate().map(Duration::as_nanos)),
            ("jitter_mean_ns", Jitter::mean([&self.jitter]).map(Duration::as_nanos)),
            ("late_packets", play_out.map(|each| each.late())),
            ("play_out_delay_ns", play_out.and_then(|each| each.delay()).map(Duration::as_nanos)),
        ]
    }
}

/// Counters at one end of the link.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Packets with a payload.
    pub segments: u64,
    /// Payload bytes, including retransmissions.
    pub payload_bytes: u64,
    /// The time of the first packet.
    pub first_at: Option<Instant>,
    /// The time of the last packet.
    pub last_at: Option<Instant>,
    /// The time of the first packet with a payload.
    pub first_payload_at: Option<Instant>,
    /// The time of the last packet with a payload.
    pub last_payload_at: Option<Instant>,
}

impl Tally {
    /// The counters by name; `None` for a packet that did not come.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, Option<u64>); 7] {
        let at = |at: Option<Instant>| at.map(Instant::as_nanos);
        [
            ("packets", Some(self.packets)),
            ("segments", Some(self.segments)),
            ("payload_bytes", Some(self.payload_bytes)),
            ("first_ns", at(self.first_at)),
            ("last_ns", at(self.last_at)),
            ("first_payload_ns", at(self.first_payload_at)),
            ("last_payload_ns", at(self.last_payload_at)),
        ]
    }

    fn add(&mut self, at: Instant, payload_bytes: usize) {
        self.packets += 1;
        self.first_at.get_or_insert(at);
        self.last_at = Some(at);
        if payload_bytes > 0 {
            self.segments += 1;
            self.payload_bytes += payload_bytes as u64;
            self.first_payload_at.get_or_insert(at);
            self.last_payload_at = Some(at);
        }
    }
}

/// A packet to or from one of the ports.
struct Match {
    tuple: FiveTuple,
    index: usize,
    /// Where its transport header begins, within the packet.
    transport_offset: usize,
    payload_bytes: usize,
}

impl PortFlows {
    /// The client's port of the control connection; `port` is the server's.
    #[must_use]
    pub fn control_port(&self, port: u16) -> Option<u16> {
        let FiveTuple { source_port, destination_port, .. } = self.control?;
        Some(if destination_port == port { source_port } else { destination_port })
    }
}

impl Ports {
    /// The server ports from `first` to `last`.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Self {
        let count = usize::from(last.saturating_sub(first)) + 1;
        let counts = PortCounts { first, flows: vec![PortFlows::default(); count] };
        Self { counts, arrival_times: None }
    }

    /// Sets the length of the jitter buffers of the flow with this index, in both directions.
    pub fn set_jitter_buffer(&mut self, index: usize, buffer: Duration) {
        if let Some(flows) = self.counts.flows.get_mut(index) {
            flows.traffic.iter_mut().for_each(|side| side.play_out = Some(PlayOut::new(buffer)));
        }
    }

    /// Counts all connections of the flow with this index: it has no control connection.
    pub fn count_all(&mut self, index: usize) {
        if let Some(flows) = self.counts.flows.get_mut(index) {
            flows.is_without_control = true;
        }
    }

    /// Programs at gateways forward packets as new ones: delays begin with the arrival of the packet that they got.
    pub fn follow_through_gateways(&mut self) {
        self.arrival_times = Some(ArrivalTimes::default());
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> &PortCounts {
        &self.counts
    }

    /// Whether a packet from `side` belongs to the control connection, the first TCP connection to
    /// its port. Other packets are counted.
    pub fn is_control(&mut self, at: Instant, side: Side, packet: &[u8]) -> bool {
        let Some(found) = self.counts.find(side, packet) else { return false };
        let flows = &mut self.counts.flows[found.index];
        if found.tuple.protocol == TCP && !flows.is_without_control {
            let control = flows.control.get_or_insert(found.tuple);
            if *control == found.tuple {
                return true;
            }
        }
        if !is_connect_datagram(&found) {
            flows.traffic[side as usize].offered.add(at, found.payload_bytes);
            if let Some(times) = &mut self.arrival_times {
                times.insert(&packet[found.transport_offset..], at);
            }
        }
        false
    }

    /// Counts a packet from `side` that entered the link at `created_at` and left it at `due`.
    pub fn delivered(&mut self, created_at: Instant, due: Instant, side: Side, packet: &[u8]) {
        let Some(found) = self.counts.find_counted(side, packet) else { return };
        let arrived = self.arrival_times.as_mut();
        let arrived = arrived.and_then(|times| times.take(&packet[found.transport_offset..]));
        let created_at = arrived.unwrap_or(created_at);
        let traffic = &mut self.counts.flows[found.index].traffic[side as usize];
        traffic.delivered.add(due, found.payload_bytes);
        if found.payload_bytes > 0 {
            let delay = due.saturating_since(created_at);
            traffic.delay_sum += delay;
            traffic.delay_max = traffic.delay_max.max(delay);
            if found.tuple.protocol == UDP {
                traffic.delays.add(delay);
                traffic.jitter.add(delay);
                if let Some(play_out) = &mut traffic.play_out {
                    play_out.add(delay);
                }
            }
        }
    }

    /// Counts a packet from `side` that the link dropped.
    pub fn dropped(&mut self, cause: DropCause, side: Side, packet: &[u8]) {
        if let Some(found) = self.counts.find_counted(side, packet) {
            self.counts.flows[found.index].traffic[side as usize].dropped[cause as usize] += 1;
        }
    }
}

impl PortCounts {
    /// Whether there are no ports.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The traffic by port.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &PortFlows)> {
        (self.first..=u16::MAX).zip(&self.flows)
    }

    fn find_counted(&self, side: Side, packet: &[u8]) -> Option<Match> {
        self.find(side, packet).filter(|found| !is_connect_datagram(found))
    }

    fn find(&self, side: Side, packet: &[u8]) -> Option<Match> {
        if self.flows.is_empty() {
            return None;
        }
        let headers = Headers::of(packet)?;
        let tuple = match side {
            Side::World => headers.tuple,
            Side::Island => headers.tuple.reversed(),
        };
        let index = [tuple.destination_port, tuple.source_port]
            .into_iter()
            .filter_map(|port| port.checked_sub(self.first))
            .map(usize::from)
            .find(|&index| index < self.flows.len())?;
        let header_bytes = match tuple.protocol {
            // The data offset, in words (RFC 9293, section 3.1).
            TCP => usize::from(packet.get(headers.transport_offset + 12)? >> 4) * 4,
            UDP => 8,
            _ => return None,
        };
        let payload_bytes =
            headers.total_bytes.saturating_sub(headers.transport_offset + header_bytes);
        packet.get(headers.transport_offset..)?;
        let transport_offset = headers.transport_offset;
        Some(Match { tuple, index, transport_offset, payload_bytes })
    }
}

fn is_connect_datagram(found: &Match) -> bool {
    found.tuple.protocol == UDP && found.payload_bytes == CONNECT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::{Departure, Emulator, Options};
    use bentpipe_sim::plan::Plan;
    use proptest::prelude::*;

    const CLIENT: [u8; 4] = [10, 84, 0, 1];
    const SERVER: [u8; 4] = [10, 84, 0, 2];

    /// A packet from the client's port to the server's, with a payload of so many bytes.
    fn packet(protocol: u8, ports: [u16; 2], payload_bytes: usize) -> Vec<u8> {
        let header_bytes = if protocol == TCP { 20 } else { 8 };
        let total_bytes = (20 + header_bytes + payload_bytes) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend(total_bytes.to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
        packet.extend(CLIENT.iter().chain(&SERVER));
        packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        packet.resize(total_bytes.into(), 0);
        if protocol == TCP {
            packet[32] = 5 << 4;
        }
        packet
    }

    fn reply(mut packet: Vec<u8>) -> Vec<u8> {
        packet[12..20].rotate_left(4);
        packet[20..24].rotate_left(2);
        packet
    }

    fn millis(count: u64) -> Instant {
        Instant::default() + Duration::from_millis(count)
    }

    /// A link of 8 Mbit/s, so a byte takes a microsecond, and 100 ms each way.
    fn emulator() -> Emulator {
        let direction = r#""rate_bps": {"kind": "constant", "value": 8000000},
            "delay_ns": {"kind": "constant", "value": 100000000}, "jitter_ns": 0,
            "framing": {"header_bytes": 0, "min_bytes": 0, "cells": null, "expansion": [1, 1],
                "inter_frame_bytes": 0},
            "queue": {"discipline": "drop_tail", "limit": {"unit": "packets", "value": 9}},
            "channel": {"kind": "clear"}"#;
        let to = |gateway| {
            format!(r#"{{"gateway": {gateway}, "delay_ns": 0, "channel": {{"kind": "clear"}}}}"#)
        };
        let (there, back) = (to(1), to(0));
        let plan = format!(
            r#"{{"format_version": 4, "stop_ns": 1000000000, "sample_interval_ns": null,
            "packet_events": false,
            "gateways": [{{"name": "hub", "functions": []}}, {{"name": "terminal", "functions": []}}],
            "directions": [{{"name": "forward", "from": 0, "to": [{there}], {direction}}},
                {{"name": "return", "from": 1, "to": [{back}], {direction}}}],
            "hosts": [],
            "flows": [{{"name": "a", "terminal": 0, "direction": "forward", "start_ns": 0, "start_jitter_ns": 0,
                "priority": 0, "splittable": true, "workload": {{"kind": "constant_rate", "rate_bps": 1000,
                    "payload_bytes": 100, "duration_ns": 1000000}}}}]}}"#
        );
        let plan = Plan::parse(&plan).expect("the plan is whole");
        let options = Options { control_ports: Some((5_201, 5_202)), ..Options::default() };
        Emulator::new(&[plan], 1, options).expect("one terminal")
    }

    /// Sends a packet through the link and returns the departures until `until`.
    fn pass(
        emulator: &mut Emulator,
        at: u64,
        side: Side,
        packet: &[u8],
        until: u64,
    ) -> Vec<Departure> {
        let slot = emulator.alloc().expect("there is room");
        emulator.bytes_mut(slot)[..packet.len()].copy_from_slice(packet);
        emulator.arrive(millis(at), side, slot, packet.len());
        emulator.run_until(millis(until));
        let mut departures = Vec::new();
        emulator.take_departures(&mut departures);
        departures.iter().for_each(|departure| emulator.free(departure.slot));
        departures
    }

    /// Given the first connection to a port, expect its packets on the other side at once and
    /// counted nowhere; given the next connection, expect its packets after 1 us per byte plus 100
    /// ms.
    #[test]
    fn the_first_connection_to_a_port_bypasses_the_link() {
        let mut emulator = emulator();
        let control = packet(TCP, [40_000, 5_201], 10);
        let departures = pass(&mut emulator, 1, Side::World, &control, 1);
        assert_eq!(
            (departures.len(), departures[0].due, departures[0].to),
            (1, millis(1), Side::Island.into())
        );
        assert!(!departures[0].on_link);
        let departures = pass(&mut emulator, 2, Side::Island, &reply(control.clone()), 2);
        assert_eq!((departures[0].due, departures[0].to), (millis(2), Side::World.into()));

        let data = packet(TCP, [40_001, 5_201], 460);
        let departures = pass(&mut emulator, 3, Side::World, &data, 900);
        let due = millis(103) + Duration::from_micros(500);
        assert_eq!(
            (departures[0].due, departures[0].to, departures[0].on_link),
            (due, Side::Island.into(), true)
        );
        assert!(
            !pass(&mut emulator, 901, Side::World, &control, 901)[0].on_link,
            "it stays a control connection"
        );

        let counters = emulator.counters();
        assert_eq!((counters[0].1.sent_packets, counters[1].1.sent_packets), (1, 0));
        let (port, flows) = emulator.ports().iter().next().expect("two ports");
        let [world, island] = &flows.traffic;
        assert_eq!((port, island.offered.packets), (5_201, 0));
        assert_eq!((world.offered.segments, world.delivered.payload_bytes), (1, 460));
        assert_eq!(world.offered.first_payload_at, Some(millis(3)));
        assert_eq!(world.delay_max, Duration::from_micros(100_500));
        assert_eq!(emulator.stored(), 0);
    }

    /// Given the other port, ports out of range, and datagrams, expect only the first TCP
    /// connection to each port in the range to be a control connection, and iperf3's UDP connect
    /// datagram not to be counted.
    #[test]
    fn each_port_has_one_control_connection() {
        let mut emulator = emulator();
        let mut at = 0;
        let mut on_link = |protocol, port, bytes| {
            at += 1_000;
            let packet = packet(protocol, [40_000, port], bytes);
            pass(&mut emulator, at, Side::World, &packet, at + 900)[0].on_link
        };
        assert!(!on_link(TCP, 5_202, 0));
        assert!(on_link(TCP, 5_203, 0) && on_link(TCP, 5_200, 0));
        assert!(on_link(UDP, 5_201, CONNECT_BYTES) && on_link(UDP, 5_201, 160));
        let flows = emulator.ports().iter().next().expect("two ports").1;
        let world = &flows.traffic[Side::World as usize];
        assert_eq!((world.offered.packets, world.offered.payload_bytes), (1, 160));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(mut packet: Vec<u8>, first: u16, last: u16) {
            let mut ports = Ports::new(first, last);
            ports.is_control(millis(1), Side::World, &packet);
            if let Some(byte) = packet.first_mut() {
                *byte = 0x45;
            }
            ports.is_control(millis(1), Side::Island, &packet);
            ports.delivered(millis(1), millis(2), Side::World, &packet);
        }
    }
}
