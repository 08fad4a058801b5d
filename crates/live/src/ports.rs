//! Conversations of measuring programs, by the port of their server.
//!
//! iperf3 and its like talk over two connections to one port: the first says what is to be measured,
//! the others are what is measured. The first must not be on the link: its packets would count, and
//! the link's delay and losses would be in the program's timing.

use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::wire::{FiveTuple, Headers, TCP, UDP};
use bentpipe_sim::Side;

/// iperf3 opens a UDP stream with a datagram of so many bytes each way, which is no traffic.
const HELLO_BYTES: usize = 4;

/// The conversations with a range of server ports.
#[derive(Clone, Debug, Default)]
pub struct Ports {
    first: u16,
    conversations: Vec<Conversations>,
}

/// Those with one server port, but for the first TCP conversation.
#[derive(Clone, Debug, Default)]
pub struct Conversations {
    control: Option<FiveTuple>,
    /// What the world sent, and what the island sent.
    pub carried: [Carried; 2],
}

/// What packets from one side carried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    /// As they came to the link.
    pub offered: Tally,
    /// As they came out at its other end.
    pub delivered: Tally,
    /// The time on the link, of all that had a payload.
    pub delay_sum: Duration,
    /// The longest of these times.
    pub delay_max: Duration,
}

/// Packets at one place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// All of them.
    pub packets: u64,
    /// Those with a payload.
    pub segments: u64,
    /// Bytes of these payloads, those that were retransmitted included.
    pub payload_bytes: u64,
    /// When the first packet came.
    pub first_at: Option<Instant>,
    /// When the last packet came.
    pub last_at: Option<Instant>,
    /// When the first payload came.
    pub first_payload_at: Option<Instant>,
    /// When the last payload came.
    pub last_payload_at: Option<Instant>,
}

impl Tally {
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

/// A packet of a conversation with one of the ports.
struct Found {
    tuple: FiveTuple,
    index: usize,
    payload_bytes: usize,
}

impl Conversations {
    /// The client's port of the conversation that goes past the link; `port` is the server's.
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
        Self { first, conversations: vec![Conversations::default(); count] }
    }

    /// Whether no port is looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conversations.is_empty()
    }

    /// What was carried, by port.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Conversations)> {
        (self.first..=u16::MAX).zip(&self.conversations)
    }

    /// Whether a packet that comes from `side` belongs to the first TCP conversation with its port;
    /// if not, it is counted.
    pub fn is_control(&mut self, at: Instant, side: Side, packet: &[u8]) -> bool {
        let Some(found) = self.find(side, packet) else { return false };
        let conversations = &mut self.conversations[found.index];
        if found.tuple.protocol == TCP {
            let control = conversations.control.get_or_insert(found.tuple);
            if *control == found.tuple {
                return true;
            }
        }
        if !is_hello(&found) {
            conversations.carried[side as usize].offered.add(at, found.payload_bytes);
        }
        false
    }

    /// A packet from `side` that was handed to the link at `created_at` came out at `due`.
    pub fn delivered(&mut self, created_at: Instant, due: Instant, side: Side, packet: &[u8]) {
        let Some(found) = self.find(side, packet).filter(|found| !is_hello(found)) else { return };
        let carried = &mut self.conversations[found.index].carried[side as usize];
        carried.delivered.add(due, found.payload_bytes);
        if found.payload_bytes > 0 {
            let delay = due.saturating_since(created_at);
            carried.delay_sum += delay;
            carried.delay_max = carried.delay_max.max(delay);
        }
    }

    fn find(&self, side: Side, packet: &[u8]) -> Option<Found> {
        if self.conversations.is_empty() {
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
            .find(|&index| index < self.conversations.len())?;
        let header_bytes = match tuple.protocol {
            // The data offset, in words (RFC 9293, section 3.1).
            TCP => usize::from(packet.get(headers.transport_offset + 12)? >> 4) * 4,
            UDP => 8,
            _ => return None,
        };
        let payload_bytes =
            headers.total_bytes.saturating_sub(headers.transport_offset + header_bytes);
        Some(Found { tuple, index, payload_bytes })
    }
}

fn is_hello(found: &Found) -> bool {
    found.tuple.protocol == UDP && found.payload_bytes == HELLO_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::{Departure, Emulator, Options};
    use bentpipe_sim::plan::Plan;
    use proptest::prelude::*;

    const CLIENT: [u8; 4] = [10, 84, 0, 1];
    const SERVER: [u8; 4] = [10, 84, 0, 2];

    /// One packet from the client's port to the server's, with a payload of so many bytes.
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

    fn answer(mut packet: Vec<u8>) -> Vec<u8> {
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
            "delay_ns": {"kind": "constant", "value": 100000000},
            "framing": {"header_bytes": 0, "min_bytes": 0, "cells": null, "expansion": [1, 1],
                "inter_frame_bytes": 0},
            "queue": {"discipline": "drop_tail", "limit": {"unit": "packets", "value": 9}},
            "channel": {"kind": "clear"}"#;
        let to = |gateway| {
            format!(r#"{{"gateway": {gateway}, "delay_ns": 0, "channel": {{"kind": "clear"}}}}"#)
        };
        let (there, back) = (to(1), to(0));
        let plan = format!(
            r#"{{"format_version": 3, "stop_ns": 1000000000, "sample_interval_ns": null,
            "packet_events": false,
            "gateways": [{{"name": "hub", "functions": []}}, {{"name": "terminal", "functions": []}}],
            "directions": [{{"name": "forward", "from": 0, "to": [{there}], {direction}}},
                {{"name": "return", "from": 1, "to": [{back}], {direction}}}],
            "hosts": [],
            "flows": [{{"name": "a", "terminal": 0, "direction": "forward", "start_ns": 0,
                "priority": 0, "workload": {{"kind": "constant_rate", "rate_bps": 1000,
                    "payload_bytes": 100, "duration_ns": 1000000}}}}]}}"#
        );
        let plan = Plan::parse(&plan).expect("the plan is whole");
        let options = Options { control_ports: Some((5_201, 5_202)), ..Options::default() };
        Emulator::new(&[plan], 1, options).expect("one terminal")
    }

    /// What comes out until `until` after a packet has come.
    fn pass(
        emulator: &mut Emulator,
        at: u64,
        side: Side,
        packet: &[u8],
        until: u64,
    ) -> Vec<Departure> {
        let place = emulator.room().expect("there is room");
        emulator.bytes_mut(place)[..packet.len()].copy_from_slice(packet);
        emulator.arrive(millis(at), side, place, packet.len());
        emulator.run_until(millis(until));
        let mut departures = Vec::new();
        emulator.take_departures(&mut departures);
        departures.iter().for_each(|departure| emulator.free(departure.place));
        departures
    }

    /// Given the first conversation with a port, expect it on the other side at once and nowhere
    /// counted; given the next one, expect it there after a byte a microsecond and 100 ms.
    #[test]
    fn the_first_conversation_with_a_port_goes_past_the_link() {
        let mut emulator = emulator();
        let control = packet(TCP, [40_000, 5_201], 10);
        let passed = pass(&mut emulator, 1, Side::World, &control, 1);
        assert_eq!(
            (passed.len(), passed[0].due, passed[0].to),
            (1, millis(1), Side::Island.into())
        );
        assert!(!passed[0].on_link);
        let passed = pass(&mut emulator, 2, Side::Island, &answer(control.clone()), 2);
        assert_eq!((passed[0].due, passed[0].to), (millis(2), Side::World.into()));

        let data = packet(TCP, [40_001, 5_201], 460);
        let passed = pass(&mut emulator, 3, Side::World, &data, 900);
        let due = millis(103) + Duration::from_micros(500);
        assert_eq!(
            (passed[0].due, passed[0].to, passed[0].on_link),
            (due, Side::Island.into(), true)
        );
        assert!(!pass(&mut emulator, 901, Side::World, &control, 901)[0].on_link, "it stays so");

        let counters = emulator.counters();
        assert_eq!((counters[0].1.sent_packets, counters[1].1.sent_packets), (1, 0));
        let (port, conversations) = emulator.ports().iter().next().expect("two ports");
        let [world, island] = &conversations.carried;
        assert_eq!((port, island.offered.packets), (5_201, 0));
        assert_eq!((world.offered.segments, world.delivered.payload_bytes), (1, 460));
        assert_eq!(world.offered.first_payload_at, Some(millis(3)));
        assert_eq!(world.delay_max, Duration::from_micros(100_500));
        assert_eq!(emulator.stored(), 0);
    }

    /// Given the other port, one out of range, and datagrams: only the first TCP conversation with a
    /// port of the range is control, and the hello of a stream of datagrams is no traffic.
    #[test]
    fn each_port_has_one_control_conversation() {
        let mut emulator = emulator();
        let mut at = 0;
        let mut on_link = |protocol, port, bytes| {
            at += 1_000;
            let packet = packet(protocol, [40_000, port], bytes);
            pass(&mut emulator, at, Side::World, &packet, at + 900)[0].on_link
        };
        assert!(!on_link(TCP, 5_202, 0));
        assert!(on_link(TCP, 5_203, 0) && on_link(TCP, 5_200, 0));
        assert!(on_link(UDP, 5_201, HELLO_BYTES) && on_link(UDP, 5_201, 160));
        let conversations = emulator.ports().iter().next().expect("two ports").1;
        let world = &conversations.carried[Side::World as usize];
        assert_eq!((world.offered.packets, world.offered.payload_bytes), (1, 160));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(mut packet: Vec<u8>, first: u16, last: u16) {
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
