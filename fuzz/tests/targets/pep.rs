//! A PEP between two hosts, with any calls of the hosts, losses, duplicates, reordering and timers, and
//! with segments that no host sent.

use std::collections::VecDeque;
use std::sync::Arc;

use bentpipe_core::engine::{Cx, Engine, Outbox};
use bentpipe_core::packet::segment::{Flags, Segment};
use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::packet::{Address, Class, FlowId, Origin, Packet, PacketId, Payload, Port};
use bentpipe_core::pep::{LegConfig, Pep, PepConfig};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::Endpoint;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::NodeId;

use crate::ITERATIONS;
use crate::decoder::Decoder;
use crate::endpoint::config;

const STEPS_MAX: u64 = 400;
/// Packets sent after the last input, until everything is delivered.
const DRAIN_MAX: u64 = 100_000;

#[test]
fn any_events() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let mut decoder = Decoder::new(bytes);
        Run::new(&mut decoder).play(&mut decoder);
    });
}

fn address(flow: FlowId, end: Origin) -> Address {
    Address(2 * flow.0 + u32::from(end == Origin::Receiver))
}

fn pep(decoder: &mut Decoder<'_>) -> Pep {
    let mut leg = || {
        let low = decoder.scaled(12);
        LegConfig { tcp: config(decoder), unsent_low_water: (low > 0).then_some(low) }
    };
    let (lan, link) = (leg(), leg());
    Pep::new(PepConfig {
        lan,
        link,
        buffer_bytes: decoder.scaled(12),
        connections_max: decoder.below(3) as usize,
        early_accept: decoder.flag(),
        unsplittable: Arc::default(),
        address,
        first_serial: PacketId::HOST_SERIALS,
        rng: Rng::stream(decoder.u16().into(), "pep"),
    })
}

/// A host, and the application's part of its stream.
struct Host {
    endpoint: Endpoint,
    to_write: u64,
    written: u64,
    read: u64,
    is_closed: bool,
}

struct Run {
    pep: Pep,
    /// Behind the ports of the PEP, by number: the client and the server.
    hosts: [Host; 2],
    /// On the way from each host to the PEP, and from the PEP to each host.
    to_pep: [VecDeque<Packet>; 2],
    to_host: [VecDeque<Packet>; 2],
    now: Instant,
    /// Whether a host aborted, or got a segment that the other one did not send.
    is_disturbed: bool,
}

impl Run {
    fn new(decoder: &mut Decoder<'_>) -> Self {
        let pep = pep(decoder);
        let hosts = [Origin::Sender, Origin::Receiver].map(|end| {
            let initial = SeqNumber(decoder.u32());
            let endpoint = Endpoint::new(config(decoder), FlowId(0), end, initial)
                .toward(address(FlowId(0), end.opposite()), Class(0))
                .with_rng(Rng::stream(7, "endpoint"));
            Host { endpoint, to_write: 0, written: 0, read: 0, is_closed: false }
        });
        let mut run = Self {
            pep,
            hosts,
            to_pep: Default::default(),
            to_host: Default::default(),
            now: Instant::START,
            is_disturbed: false,
        };
        for number in 0..2 {
            run.call(number, |host, cx| host.endpoint.set_auto_read(cx, false));
        }
        run.call(0, |host, cx| host.endpoint.open(cx));
        run
    }

    fn play(mut self, decoder: &mut Decoder<'_>) {
        let mut step = 0;
        while !decoder.is_empty() && step < STEPS_MAX {
            self.step(decoder);
            step += 1;
        }
        self.drain();
    }

    fn step(&mut self, decoder: &mut Decoder<'_>) {
        let end = usize::from(decoder.flag());
        match decoder.below(16) {
            0..6 => self.deliver(end, decoder.below(8) > 0),
            6..8 => self.deliver_to_host(end, decoder.below(8) > 0),
            8 => self.to_host[end].make_contiguous().reverse(),
            9 => self.write(end, decoder.scaled(12)),
            10 => self.read(end, decoder.scaled(12)),
            11 if decoder.below(4) == 0 => self.close(end),
            12 if decoder.below(16) == 0 => {
                self.is_disturbed = true;
                self.call(end, |host, cx| host.endpoint.abort(cx));
            }
            13 if decoder.below(8) == 0 => {
                let packet = self.stray(decoder, end);
                self.to_pep[end].push_back(packet);
            }
            14 => {
                if let Some(packet) = self.to_pep[end].front().cloned() {
                    self.to_pep[end].push_back(packet);
                }
            }
            _ => self.advance(decoder.scaled(24)),
        }
    }

    /// A segment of this or another connection that no host sent.
    fn stray(&mut self, decoder: &mut Decoder<'_>, end: usize) -> Packet {
        let connection = decoder.below(2) as u16;
        self.is_disturbed |= connection == 0;
        let origin = if end == 0 { Origin::Sender } else { Origin::Receiver };
        let segment = Segment {
            seq: SeqNumber(decoder.u32()),
            ack: decoder.flag().then(|| SeqNumber(decoder.u32())),
            flags: Flags::from_bits(decoder.u8()),
            payload: decoder.below(2_000) as u16,
            window: decoder.u16(),
            connection,
            ..Segment::default()
        };
        Packet {
            id: PacketId::new(FlowId(0), origin, 1 << 30),
            created_at: self.now,
            destination: address(FlowId(0), origin.opposite()),
            bytes: segment.ip_bytes(),
            payload: Payload::Tcp(segment),
            ..Packet::default()
        }
    }

    /// Calls a host, whose application then writes what there is room for.
    fn call(&mut self, end: usize, call: impl FnOnce(&mut Host, &mut Cx<'_>)) {
        let mut outbox = Outbox::new();
        let mut cx = Cx::new(self.now, NodeId(end as u32), &mut outbox, None);
        let host = &mut self.hosts[end];
        call(host, &mut cx);
        host.to_write -= host.endpoint.try_write(&mut cx, host.to_write);
        if host.is_closed && host.to_write == 0 {
            host.endpoint.close(&mut cx);
        }
        drop(cx);
        self.to_pep[end].extend(outbox.drain().map(|(_, _, packet)| packet));
    }

    /// Calls the PEP and checks what holds after every call.
    fn call_pep(&mut self, call: impl FnOnce(&mut Pep, &mut Cx<'_>)) {
        let mut outbox = Outbox::new();
        call(&mut self.pep, &mut Cx::new(self.now, NodeId(2), &mut outbox, None));
        for (_, port, packet) in outbox.drain() {
            self.to_host[usize::from(port.0)].push_back(packet);
        }
        assert_eq!(self.pep.ledger().check(), Ok(()));
        assert_eq!(self.pep.check(), Ok(()));
        assert!(self.pep.next_wake().is_none_or(|next| next >= self.now), "a deadline in the past");
    }

    fn deliver(&mut self, end: usize, arrives: bool) {
        if let Some(packet) = self.to_pep[end].pop_front().filter(|_| arrives) {
            self.call_pep(|pep, cx| pep.input(cx, Port(end as u8), Box::new(packet)));
        }
    }

    fn deliver_to_host(&mut self, end: usize, arrives: bool) {
        if let Some(packet) = self.to_host[end].pop_front().filter(|_| arrives) {
            let is_own = packet.segment().is_some_and(|segment| segment.connection == 0);
            if is_own {
                self.call(end, |host, cx| host.endpoint.on_packet(cx, &packet));
            }
        }
    }

    fn write(&mut self, end: usize, bytes: u64) {
        self.call(end, |host, _| {
            if !host.is_closed {
                host.to_write += bytes;
                host.written += bytes;
            }
        });
    }

    fn read(&mut self, end: usize, bytes: u64) {
        self.call(end, |host, cx| host.read += host.endpoint.read(cx, bytes));
        assert!(self.is_disturbed || self.hosts[end].read <= self.hosts[1 - end].written);
    }

    fn close(&mut self, end: usize) {
        self.call(end, |host, _| host.is_closed = true);
    }

    /// The earliest deadline, and the engine that it belongs to: a host or, as number 2, the PEP.
    fn next(&self) -> Option<(Instant, usize)> {
        let hosts = self.hosts.iter().map(|host| host.endpoint.next_wake());
        let all = hosts.chain([self.pep.next_wake()]).zip(0..);
        all.filter_map(|(at, number)| Some((at?, number))).min()
    }

    /// Moves the clock, to the next deadline at most.
    fn advance(&mut self, nanos: u64) {
        let then = self.now + Duration::from_nanos(nanos);
        let Some((at, number)) = self.next().filter(|next| next.0 <= then) else {
            self.now = then;
            return;
        };
        self.now = self.now.max(at);
        if number == 2 {
            self.call_pep(Engine::wake);
            let next = self.pep.next_wake();
            assert!(next.is_none_or(|next| next > self.now), "no progress at {}", self.now);
        } else {
            self.call(number, |host, cx| host.endpoint.wake(cx));
        }
    }

    /// Both hosts close and read everything, and nothing is lost any more: expect both streams complete,
    /// unless something disturbed them, and that the PEP keeps no connection of the hosts.
    fn drain(mut self) {
        for end in 0..2 {
            self.close(end);
        }
        for _ in 0..DRAIN_MAX {
            for end in 0..2 {
                self.deliver(end, true);
                self.deliver_to_host(end, true);
                self.read(end, u64::MAX);
            }
            let is_quiet = self.to_pep.iter().chain(&self.to_host).all(VecDeque::is_empty);
            if is_quiet {
                if self.next().is_none() {
                    break;
                }
                self.advance(u64::MAX >> 8);
            }
            if self.is_disturbed && self.now > Instant::from_millis(3_600_000) {
                return;
            }
        }
        if !self.is_disturbed {
            for end in 0..2 {
                let (host, peer) = (&self.hosts[end], &self.hosts[1 - end]);
                assert_eq!(host.read, peer.written, "host {end}");
                assert!(host.endpoint.is_closed() && !host.endpoint.is_reset(), "host {end}");
            }
        }
    }
}
