//! A TCP endpoint with any configuration, calls, segments and timers.

use bentpipe_core::engine::{Cx, Engine, Outbox};
use bentpipe_core::packet::segment::{Flags, SackBlocks, Segment, SynOptions, Timestamps};
use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::packet::{Ecn, FlowId, Origin, Packet, PacketId, Payload};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::config::{
    AckPolicy, AvoidanceCounting, BufferCounts, CongestionName, RtoConfig, RtoMinBounds,
    StackVariant,
};
use bentpipe_core::tcp::{Config, Endpoint};
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::NodeId;

use crate::ITERATIONS;
use crate::decoder::Decoder;

const STEPS_MAX: u64 = 400;
/// More than the largest window in segments of the smallest size.
const SEGMENTS_MAX: usize = 3_000;

#[test]
fn any_events() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let mut decoder = Decoder::new(bytes);
        let config = config(&mut decoder);
        Run::new(config, &mut decoder).play(&mut decoder);
    });
}

pub(crate) fn config(decoder: &mut Decoder<'_>) -> Config {
    let mss = 88 + decoder.below(1_400) as u16;
    let receive_buffer = u64::from(mss) + decoder.scaled(12);
    let bits = decoder.u16();
    let flag = |bit: u16| bits >> bit & 1 == 1;
    Config {
        mss,
        initial_window_segments: 1 + decoder.below(12) as u32,
        congestion: CongestionName::ALL[decoder.below(7) as usize].1,
        sack: flag(0),
        timestamps: flag(1),
        window_scaling: flag(2),
        send_buffer: u64::from(mss) + decoder.scaled(12),
        receive_buffer,
        receive_buffer_initial: (u64::from(mss) + decoder.scaled(12)).min(receive_buffer),
        receive_buffer_counts: if flag(3) { BufferCounts::Window } else { BufferCounts::Memory },
        acks: AckPolicy {
            delayed_segments: 1 + decoder.below(4) as u32,
            delayed_timeout: Duration::from_millis(decoder.below(500)),
            quick_segments: decoder.below(20) as u32,
        },
        rto: RtoConfig {
            initial: Duration::from_millis(1_000 + decoder.below(2_000)),
            min: Duration::from_millis(1 + decoder.below(1_000)),
            max: Duration::from_millis(3_000 + decoder.below(60_000)),
            granularity: Duration::from_nanos(1 << decoder.below(30)),
            min_bounds: if flag(4) { RtoMinBounds::Timeout } else { RtoMinBounds::Variance },
        },
        slow_start_segments_per_ack: 1 + decoder.below(4) as u32,
        avoidance: if flag(5) { AvoidanceCounting::Bytes } else { AvoidanceCounting::Acks },
        limited_transmit: flag(6),
        rack_tlp: flag(7),
        prr: flag(8),
        hystart: flag(9),
        stack: if flag(10) { StackVariant::Linux } else { StackVariant::Rfc },
        ecn: flag(11),
    }
}

struct Run {
    endpoint: Endpoint,
    /// The initial sequence numbers of the endpoint and of its peer.
    initial: u32,
    peer: u32,
    now: Instant,
    /// Nothing is written after closing.
    is_closed: bool,
    delivered: u64,
    acked: u64,
}

impl Run {
    fn new(config: Config, decoder: &mut Decoder<'_>) -> Self {
        let (initial, peer) = (decoder.u32(), decoder.u32());
        let endpoint = Endpoint::new(config, FlowId(0), Origin::Sender, SeqNumber(initial))
            .with_rng(Rng::stream(7, "endpoint"));
        Self {
            endpoint,
            initial,
            peer,
            now: Instant::START,
            is_closed: false,
            delivered: 0,
            acked: 0,
        }
    }

    /// Plays the events; then only timers expire.
    fn play(mut self, decoder: &mut Decoder<'_>) {
        let mut step = 0;
        while !decoder.is_empty() && step < STEPS_MAX {
            self.step(decoder, step);
            step += 1;
        }
        for _ in 0..100 {
            let Some(due) = self.endpoint.next_wake() else { return };
            self.now = due;
            self.call(Endpoint::wake);
            let next = self.endpoint.next_wake();
            assert!(next.is_none_or(|next| next > due), "no progress at {due}");
        }
    }

    fn step(&mut self, decoder: &mut Decoder<'_>, step: u64) {
        let then = self.now + Duration::from_micros(decoder.scaled(12));
        let due = self.endpoint.next_wake().filter(|&due| due <= then);
        self.now = due.unwrap_or(then);
        if due.is_some() {
            self.call(Endpoint::wake);
            let next = self.endpoint.next_wake();
            assert!(next.is_none_or(|next| next > self.now), "no progress at {}", self.now);
            return;
        }
        match decoder.below(16) {
            0 if !self.is_closed => {
                let bytes = decoder.scaled(8);
                self.call(|endpoint, cx| endpoint.write(cx, bytes));
            }
            1 => {
                let enabled = decoder.flag();
                self.call(|endpoint, cx| endpoint.set_auto_read(cx, enabled));
            }
            2 => self.call(Endpoint::open),
            3 | 4 if decoder.below(8) == 0 => {
                self.is_closed = true;
                self.call(Endpoint::close);
            }
            4 if decoder.below(8) == 0 => {
                self.is_closed = true;
                self.call(Endpoint::stop);
            }
            // A wake-up that is not due changes nothing.
            5 => {
                let before = self.endpoint.next_wake();
                self.call(Endpoint::wake);
                assert_eq!(self.endpoint.next_wake(), before, "early wake-up at {}", self.now);
            }
            _ => {
                let payload = Payload::Tcp(self.segment(decoder));
                let (id, ecn) = (PacketId(step), Ecn::of_traffic_class(decoder.u8()));
                let packet = Packet {
                    id,
                    created_at: self.now,
                    bytes: 40,
                    ecn,
                    payload,
                    ..Packet::default()
                };
                self.call(|endpoint, cx| endpoint.on_packet(cx, &packet));
            }
        }
    }

    /// Calls the endpoint and checks what holds after every call.
    fn call(&mut self, call: impl FnOnce(&mut Endpoint, &mut Cx<'_>)) {
        let mut outbox = Outbox::new();
        call(&mut self.endpoint, &mut Cx::new(self.now, NodeId(0), &mut outbox, None));
        let endpoint = &self.endpoint;
        assert!(endpoint.next_wake().is_none_or(|next| next >= self.now), "a deadline in the past");
        assert_eq!(endpoint.ledger().check(), Ok(()));
        let (sender, receiver) = (endpoint.sender(), endpoint.receiver());
        assert!(receiver.delivered() >= self.delivered, "delivered bytes decreased");
        assert!(sender.acked_bytes() >= self.acked, "acknowledged bytes decreased");
        assert!(sender.una() <= sender.max(), "acknowledged before it was sent");
        (self.delivered, self.acked) = (receiver.delivered(), sender.acked_bytes());
        let sent = outbox.drain().count();
        assert!(sent < SEGMENTS_MAX, "{sent} segments at once");
    }

    /// A sequence number near one of the edges of a window.
    fn near(&self, decoder: &mut Decoder<'_>) -> SeqNumber {
        let low = |position: u64| position as u32;
        let una = self.initial.wrapping_add(low(self.endpoint.sender().una()));
        let max = self.initial.wrapping_add(low(self.endpoint.sender().max()));
        let next = self.peer.wrapping_add(low(self.endpoint.receiver().next()));
        let choice = decoder.below(8);
        let offset = match choice {
            0..4 => 0,
            4 => 1,
            5 => decoder.scaled(8) as u32,
            6 => (decoder.scaled(8) as u32).wrapping_neg(),
            _ => decoder.u32(),
        };
        let edge = [una, max, next, self.peer][decoder.below(4) as usize];
        SeqNumber(edge.wrapping_add(offset))
    }

    fn segment(&self, decoder: &mut Decoder<'_>) -> Segment {
        let mut sack = SackBlocks::default();
        for _ in 0..decoder.below(5) {
            sack.push(self.near(decoder), self.near(decoder));
        }
        let bits = decoder.u8();
        let flags = Flags::from_bits(decoder.u8());
        Segment {
            connection: 0,
            seq: self.near(decoder),
            flags,
            payload: decoder.below(2_000) as u16,
            ack: (bits & 3 > 0).then(|| self.near(decoder)),
            window: decoder.u16(),
            syn_options: (flags.syn() && bits & 4 > 0).then(|| SynOptions {
                mss: decoder.u16(),
                window_shift: (bits & 8 > 0).then(|| decoder.u8()),
                sack: bits & 16 > 0,
            }),
            timestamps: (bits & 32 > 0)
                .then(|| Timestamps { value: decoder.u32(), echo: decoder.u32() }),
            sack,
        }
    }
}
